//! Session leases and fenced locks on PostgreSQL, whose lifecycle rules are a WebAssembly
//! component.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "server")]
pub mod http;
mod lock;
pub mod policy;
pub mod postgres;
mod registry;
mod session;

pub use error::Error;
pub use lock::{
    Acquired, FencingToken, Grant, Holder, InvalidKey, InvalidToken, LockKey, MAX_KEY_LEN, Reaped,
    Renewed, Revocation, Revoked,
};
pub use policy::{
    Limits, Policy, PolicyEngine, PolicyFault, PolicyOptions, PolicySettings, Profile,
};
pub use postgres::{Database, DatabaseOptions, LockStore, PinnedStatements};
pub use registry::SessionRegistry;
pub use session::{Closed, Heartbeat, InvalidSessionId, Lease, Session, SessionId};
