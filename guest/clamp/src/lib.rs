//! A policy like Tenure's default one, save that it bounds TTLs: one that is too short or
//! too long is not refused, but becomes the nearest that is not. The client is told the TTL
//! that it got.
//!
//! Settings, in milliseconds, all optional:
//!
//! - `min-ttl-ms`, `max-ttl-ms`: the bounds for everybody;
//! - `min-ttl-ms.PREFIX`, `max-ttl-ms.PREFIX`: instead of those, for the owners whose id
//!   begins with `PREFIX`. The longest prefix counts, for each of the two by itself.
//!
//! A heartbeat does not say whose session it is, so it has the bounds for everybody; those
//! of an owner hold for the lease that a session begins with. With settings that make no
//! sense nobody gets a lease: `refused`, with the setting that is wrong.
//!
//! [`bounds`] is plain Rust and is tested natively; `component` binds it to the contract and
//! exists only on WebAssembly.
#![deny(missing_docs)]

pub mod bounds;
#[cfg(target_arch = "wasm32")]
mod component;
