//! The PostgreSQL side: pinned statements, connections, migrations, faults. Knows nothing
//! of WebAssembly.

mod acquire;
mod database;
mod fault;
mod fence;
mod heartbeats;
mod locks;
mod migrations;
mod own_sessions;
mod owned_key;
pub mod private;
mod reaper;
#[cfg(feature = "rollout")]
mod revisions;
mod sessions;
pub mod sql;
mod statements;
mod tls;

pub use database::{Database, DatabaseOptions};
pub use fault::{Fault, StoreError, translate};
pub use locks::{LockStore, MAX_LOCK_TTL, MAX_OPERATOR_CHARS, MAX_REASON_CHARS, MIN_REASON_CHARS};
pub use migrations::MigrationError;
pub use reaper::REAP_BATCH;
#[cfg(feature = "rollout")]
pub(crate) use revisions::Noted;
pub use sessions::PinnedStatements;
pub use statements::Statements;
pub use tls::{InvalidAuthorities, TrustedAuthorities};
