//! What a call may use, and how that is enforced inside wasmtime.

use std::fmt;
use std::time::Duration;

use wasmtime::ResourceLimiter;

use super::PolicyFault;
use super::fault::Breach;
use super::profile::Profile;

/// What one call of a policy may use. A breach costs that call, with an error of its own
/// ([`PolicyFault`], or
/// [`Error::DeadlineExceeded`](crate::Error::DeadlineExceeded) for the deadline), and no
/// other.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Processor time of the policy itself, to the nearest 10 ms. What it waits for the
    /// database does not count.
    pub cpu: Duration,
    /// Bytes of stack.
    pub stack: usize,
    /// Bytes that may cross from the policy to the host, in each call of a function.
    pub transfer: usize,
    /// Calls of the host's functions, whichever they are. One that calls on and on is
    /// stopped within 10 ms of its processor time, if not before.
    pub host_calls: u32,
    /// Room for policies of the profile [`Strict`](Profile::Strict).
    pub strict: Room,
    /// Room for policies of the profile [`Interpreted`](Profile::Interpreted).
    pub interpreted: Room,
    /// Memories that a policy may have altogether, those of all the components that it is
    /// composed of.
    pub memories: u32,
    /// Tables, likewise. `wit-component` makes two for each component.
    pub tables: u32,
    /// Instances of core modules, likewise. `wit-component` makes three for a plain
    /// component, and more for one that links libraries.
    pub core_instances: u32,
    /// Time for the whole call, with all that it waits for: a free slot, a connection, the
    /// database.
    pub deadline: Duration,
    /// Calls that run at once, in the whole process. A quarter of the slots, at least one, is
    /// kept for heartbeats, unless there is only one. Further calls wait for a free slot,
    /// within their deadline: heartbeats however many there are, others as long as no more
    /// wait than may run.
    pub calls_in_flight: u32,
    /// Calls that an instance serves, one after the other. With 1, which is the default,
    /// every call has a fresh one, and that a policy has no memory between calls is a
    /// property of the runtime. With more, a call costs less, and it becomes a promise of
    /// the policy: what one call leaves in the instance's memory, the next can find there,
    /// be it another client's. An instance whose call did not end well serves none after it.
    pub calls_per_instance: u32,
}

/// The room that a policy of one profile has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Room {
    /// Memories of each component.
    pub memories: u32,
    /// Bytes of each memory.
    pub memory: usize,
    /// Elements of each table.
    pub table_elements: usize,
}

impl Limits {
    /// The room that policies of `profile` have.
    #[must_use]
    pub fn room(&self, profile: Profile) -> &Room {
        match profile {
            Profile::Strict => &self.strict,
            Profile::Interpreted => &self.interpreted,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            cpu: Duration::from_millis(100),
            stack: 256 * 1024,
            // The default policy's largest answer is a list of 100 keys of 128 bytes.
            transfer: 256 * 1024,
            // The default policy makes 1. A runtime that starts up under WASI looks at some
            // dozens of things.
            host_calls: 1000,
            strict: Room {
                memories: 1,
                // 32 pages. The default policy has 1.
                memory: 2 * 1024 * 1024,
                table_elements: 1024,
            },
            interpreted: Room {
                // QuickJS, for one, has 3.
                memories: 3,
                // 256 pages. CPython starts with 145 to 197.
                memory: 16 * 1024 * 1024,
                // StarlingMonkey has 7690.
                table_elements: 8000,
            },
            memories: 3,
            tables: 8,
            // CPython, which links its libraries, has 38 with `componentize-py --stub-wasi`.
            core_instances: 64,
            deadline: Duration::from_secs(5),
            calls_in_flight: 1024,
            calls_per_instance: 1,
        }
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} memories of {} bytes and tables of {} elements",
            self.memories, self.memory, self.table_elements
        )
    }
}

/// Counts one call's use against its limits, inside the store.
#[derive(Debug)]
pub(super) struct Meter {
    memory: usize,
    /// The largest size that a memory has had.
    memory_used: usize,
    table_elements: usize,
    /// Epochs that have begun while the policy was computing.
    epochs_used: u32,
    epochs: u32,
    cpu: Duration,
    host_calls_made: u32,
    host_calls: u32,
}

impl Meter {
    pub(super) fn new(limits: &Limits, profile: Profile, epoch: Duration) -> Self {
        let room = limits.room(profile);
        let epochs = limits.cpu.as_nanos().div_ceil(epoch.as_nanos());
        Self {
            memory: room.memory,
            memory_used: 0,
            table_elements: room.table_elements,
            epochs_used: 0,
            epochs: u32::try_from(epochs).unwrap_or(u32::MAX),
            cpu: limits.cpu,
            host_calls_made: 0,
            host_calls: limits.host_calls,
        }
    }

    /// Called at the first instruction of the policy's after each epoch has begun. A long
    /// wait for the database spans many epochs and counts as one.
    pub(super) fn epoch(&mut self) -> Result<(), Breach> {
        self.within_host_calls()?;
        self.epochs_used += 1;
        if self.epochs_used > self.epochs {
            return Err(Breach(PolicyFault::CpuLimit(self.cpu)));
        }
        Ok(())
    }

    pub(super) fn memory_used(&self) -> usize {
        self.memory_used
    }

    /// Called by each of the host's functions. Not all of them can fail, so one call too
    /// many is found at the next epoch or when the policy returns.
    pub(super) fn host_call(&mut self) {
        self.host_calls_made = self.host_calls_made.saturating_add(1);
    }

    pub(super) fn within_host_calls(&self) -> Result<(), Breach> {
        if self.host_calls_made > self.host_calls {
            return Err(Breach(PolicyFault::HostCallLimit(self.host_calls)));
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
