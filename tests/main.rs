//! Integration tests, on a real PostgreSQL.
//!
//! Which server they use is printed; see `support/server.rs` for the choice.

mod cancellation;
mod cli;
mod component;
mod concurrency;
mod conformance;
mod contract;
mod database_tls;
mod edge;
mod fencing;
mod group_commit;
mod holes;
mod http;
mod locks;
mod migrations;
mod other_languages;
mod overload;
mod own_host;
mod pgbouncer;
mod plans;
mod policies;
mod policy_instances;
mod policy_limits;
mod policy_settings;
mod policy_wasi;
mod pool;
mod rollout;
mod session_registry;
mod support;
mod tutorial;
mod versions;
