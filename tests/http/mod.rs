//! The routes: the real router on a real loopback port, asked as clients ask it.
//!
//! Every answer that any of these tests gets, of whatever status, is held against the
//! server's own OpenAPI document; see `client.rs`.

mod any_text;
pub mod auth;
mod client;
mod contention;
mod document;
mod health;
mod heartbeats;
mod http2;
mod locks;
mod odd_requests;
mod policies;
mod sessions;
mod slow_clients;
mod tls;
mod waiting;
