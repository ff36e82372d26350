//! How a policy can fail, and how that is told from what wasmtime reports.

use std::time::Duration;

use wasmtime::Trap;

/// What a policy did wrong. It cost the call in which it happened, and no other.
///
/// Of a statement that the policy had run before, the effect stands, save that a session
/// which the caller was never told of is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFault {
    /// It did what no policy may do, or said what the database does not bear out.
    #[error("violation: it {0}")]
    Violation(String),
    /// It trapped: a panic, an `unreachable`, a broken rule of WebAssembly.
    #[error("it trapped: {0}")]
    Trap(String),
    /// It computed for longer than this. Time spent waiting for the database does not
    /// count.
    #[error("it used more than {} ms of processor time", .0.as_millis())]
    CpuLimit(Duration),
    /// It needed more fuel than this, roughly a unit for each instruction. Only a
    /// [measuring engine](super::PolicyEngine::measuring) counts in fuel.
    #[error("it used more than {0} units of fuel")]
    FuelLimit(u64),
    /// It wanted more memory than this, in bytes.
    #[error("it wanted more than {0} bytes of memory")]
    MemoryLimit(usize),
    /// It wanted larger tables than this, in elements.
    #[error("it wanted a table of more than {0} elements")]
    TableLimit(usize),
    /// It recursed until its stack was full. The size is in bytes.
    #[error("it used more than {0} bytes of stack")]
    StackLimit(usize),
    /// It called the host's functions more often than this.
    #[error("it made more than {0} calls of the host's functions")]
    HostCallLimit(u32),
    /// It passed more than this across its boundary in one call of a function, in bytes.
    #[error("it passed more than {0} bytes to the host at once")]
    TransferLimit(usize),
}

/// Marks, inside a wasmtime error, a fault that the host itself has found.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Breach(pub(super) PolicyFault);

/// wasmtime keeps the type of this error to itself; a test holds the text against it.
const TRANSFER_EXHAUSTED: &str = "fuel allocated for hostcalls has been exhausted";

pub(super) fn classify(
    error: &wasmtime::Error,
    stack: usize,
    transfer: usize,
    fuel: u64,
) -> PolicyFault {
    if let Some(Breach(fault)) = error.downcast_ref() {
        return fault.clone();
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => PolicyFault::StackLimit(stack),
        Some(Trap::OutOfFuel) => PolicyFault::FuelLimit(fuel),
        Some(trap) => PolicyFault::Trap(trap.to_string()),
        None => {
            let text = error.root_cause().to_string();
            if text.contains(TRANSFER_EXHAUSTED) {
                PolicyFault::TransferLimit(transfer)
            } else {
                PolicyFault::Trap(text)
            }
        }
    }
}
