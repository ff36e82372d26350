//! Tenure's default lifecycle policy: check the arguments, run the one statement, say
//! what its outcome means. No retry, no insert but in `open-session`, no memory between
//! calls.
//!
//! The contract is `wit/session-registry.wit`. The rules are plain Rust in the crate `rules`,
//! which is tested natively; `component` binds them to the contract and exists only on
//! WebAssembly.
#![deny(missing_docs)]

#[cfg(target_arch = "wasm32")]
mod component;
