//! Tenure's default lifecycle policy: check the arguments, run the one statement, say
//! what its outcome means. No retry, no insert but in `open-session`, no memory between
//! calls.
//!
//! The contract is `wit/session-registry.wit`. [`rules`] is plain Rust and is tested
//! natively; `component` binds it to the contract and exists only on WebAssembly.
#![deny(missing_docs)]

#[cfg(all(target_arch = "wasm32", feature = "component"))]
mod component;
pub mod rules;
