//! Middleware in front of a policy: says which owners may open a session. It imports what it
//! exports, the session registry, so it stands before any policy without either being
//! compiled again; whatever it lets pass is up to the policy behind it.
//!
//! Settings, all optional. A refusal is `refused` with its reason, before anything has
//! happened.
//!
//! - `naming.characters`: the characters that an owner id may have, as `a-z0-9.-`. `-`
//!   between two characters is a range; at the start or at the end it is itself.
//! - `naming.max-length`: how many characters it may have.
//! - `deny`: patterns of owner ids, separated by commas. Who matches one is refused.
//! - `allow`: patterns of owner ids, separated by commas. Who matches none is refused;
//!   without the setting, nobody is.
//!
//! In a pattern `*` stands for any characters or none, and `?` for one character. White
//! space around it does not count. With settings that make no sense nobody is admitted.
//!
//! [`rules`] is plain Rust and is tested natively; `component` binds it to the contract and
//! exists only on WebAssembly.
#![deny(missing_docs)]

#[cfg(target_arch = "wasm32")]
mod component;
pub mod rules;
