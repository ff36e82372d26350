//! Session leases and fenced locks on PostgreSQL, whose lifecycle rules are a WebAssembly
//! component.
//!
//! A client opens one session with a [`SessionRegistry`], hangs any number of locks on it with a
//! [`LockStore`], and keeps it alive with one heartbeat. When the session dies, every lock on
//! it goes. [`Heartbeat::Dead`] is terminal: the session is gone and nothing brings it back.
//! Locks carry [`FencingToken`]s that only ever rise; the resource that a lock guards has to
//! refuse tokens lower than the highest it has seen, since a lock alone protects nothing from
//! a holder that was paused.
//!
//! The rules are a [`Policy`], a component behind the contract in `wit/`. It is loaded into a
//! [`PolicyEngine`], runs sandboxed and within [`Limits`], and is never believed: each verdict
//! is held against what the database did.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use tenure::*;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let cluster = postgres::private::PrivateCluster::start_temporary().await?;
//! # let url = cluster.url("postgres");
//! let database = Database::new(&url, &DatabaseOptions::default())?;
//! database.migrate().await?;
//! let policy = Policy::load(&PolicyEngine::new(Limits::default())?, policy::LIFECYCLE)?;
//! let registry = SessionRegistry::new(policy, Arc::new(PinnedStatements::new(database.clone())));
//! let locks = LockStore::new(database);
//! tokio::spawn(locks.clone().reap_every(Duration::from_secs(1)));
//!
//! let ttl = Duration::from_secs(15);
//! let session = registry.open_session("worker-7", ttl).await?;
//! if let Acquired::Granted(grant) = locks.try_insert(&"orders:42".parse()?, &session.id, ttl).await? {
//!     println!("writing under fencing token {}", grant.token);
//! }
//! while let Heartbeat::Alive(lease) = registry.heartbeat(&session.id, ttl).await? {
//!     println!("alive until {:?}", lease.expires_at);
//! #   registry.close_session(&session.id).await?;
//! }
//! # cluster.stop().await?;
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "server")]
pub mod http;
mod lock;
pub mod policy;
pub mod postgres;
mod registry;
#[cfg(feature = "rollout")]
pub mod rollout;
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
