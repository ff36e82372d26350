//! What a call may use, and how that is enforced inside wasmtime.

use std::time::Duration;

use wasmtime::ResourceLimiter;

use super::PolicyFault;
use super::fault::Breach;

/// What one call of a policy may use. A breach costs that call, with an error of its own
/// ([`PolicyFault`], or
/// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) for the last), and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Processor time of the policy itself, to the nearest 10 ms. What it waits for the
    /// database does not count.
    pub cpu: Duration,
    /// Bytes of linear memory.
    pub memory: usize,
    /// Elements of each table.
    pub table_elements: usize,
    /// Bytes of stack.
    pub stack: usize,
    /// Bytes that may cross from the policy to the host, in each call of a function.
    pub transfer: usize,
    /// Time for the whole call, with all that it waits for: a free slot, a connection, the
    /// database.
    pub deadline: Duration,
    /// Calls that run at once, in the whole process. Further ones wait for a free slot,
    /// within their deadline.
    pub calls_in_flight: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_millis(100),
            // 32 pages. The default policy has 1.
            memory: 2 * 1024 * 1024,
            table_elements: 1024,
            stack: 256 * 1024,
            // The default policy's largest answer is a list of 100 keys of 128 bytes.
            transfer: 256 * 1024,
            deadline: Duration::from_secs(5),
            calls_in_flight: 1024,
        }
    }
}

/// Counts one call's use against its limits, inside the store.
#[derive(Debug)]
pub(super) struct Meter {
    pub(super) memory: usize,
    /// The largest size that the memory has had.
    pub(super) memory_used: usize,
    pub(super) table_elements: usize,
    /// Epochs that have begun while the policy was computing.
    pub(super) epochs_used: u32,
    pub(super) epochs: u32,
    pub(super) cpu: Duration,
}

impl Meter {
    /// Called at the first instruction of the policy's after each epoch has begun. A long
    /// wait for the database spans many epochs and counts as one.
    pub(super) fn epoch(&mut self) -> Result<(), Breach> {
        self.epochs_used += 1;
        if self.epochs_used > self.epochs {
            return Err(Breach(PolicyFault::CpuLimit(self.cpu)));
        }
        Ok(())
    }
}

impl ResourceLimiter for Meter {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.memory {
            // An error rather than `false`: to the guest, `false` is a failed allocation,
            // and its panic would hide the reason.
            return Err(Breach(PolicyFault::MemoryLimit(self.memory)).into());
        }
        self.memory_used = self.memory_used.max(desired);
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.table_elements {
            return Err(Breach(PolicyFault::TableLimit(self.table_elements)).into());
        }
        Ok(true)
    }
}
