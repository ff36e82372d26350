//! Integration tests, on a real PostgreSQL.
//!
//! Which server they use is printed; see `support/server.rs` for the choice.

mod component;
mod contract;
mod holes;
mod policies;
mod policy_limits;
mod policy_settings;
mod policy_wasi;
mod session_registry;
mod support;
