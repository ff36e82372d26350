//! The routes: the real router on a real loopback port, asked as clients ask it.
//!
//! Every answer that any of these tests gets, of whatever status, is held against the
//! server's own OpenAPI document; see `client.rs`.

mod client;
mod document;
mod health;
mod sessions;
