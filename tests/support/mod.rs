//! What the tests share: a database for each, hosts on it, the program as a
//! process, the fixture policies.

pub mod database;
pub mod host;
pub mod program;
pub mod proxy;
pub mod server;

/// The fixture policies, built by the build script: a constant for each.
pub mod policies {
    include!(concat!(env!("OUT_DIR"), "/policies.rs"));
}
