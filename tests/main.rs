//! Integration tests, on a real PostgreSQL.
//!
//! Which server they use is printed; see `support/server.rs` for the choice.

mod component;
mod conformance;
mod contract;
mod holes;
mod policies;
mod session_registry;
mod support;
