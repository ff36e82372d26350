//! The engine that runs policies: one for the whole process.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};
use wasmtime::component::Linker;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::call::CallState;
use super::capability::add_to_linker;
use super::extras;
use super::idle::Idle;
use super::limits::Limits;
use super::profile::Profile;
use super::usage::{Usage, Used};
use crate::Error;

/// How long an epoch lasts, which is how finely processor time is told apart. Longer than
/// what a call takes by three orders of magnitude, shorter than anyone would wait.
pub(super) const EPOCH: Duration = Duration::from_millis(10);

/// Bytes of each memory that stay mapped, and are cleared by hand, when an instance ends.
/// The default policy fits and so costs no system call and no page fault; each byte more
/// is work for every call.
const KEEP_RESIDENT: usize = 128 * 1024;
const TABLE_KEEP_RESIDENT: usize = 8 * 1024;

/// A policy's calls go to slots that it has used before. Where there are none, and more than
/// this many of other policies stand unused, it gets those: else every swap would leave memory
/// behind, until all slots had some.
const MAX_WARM: u32 = 32;

/// An engine could not be made, or a policy not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The bytes are native code that was compiled ahead. It is never run: it could do
    /// anything, and corrupt code is not noticed.
    #[error("this is precompiled code; a policy has to be a WebAssembly component (.wasm)")]
    Precompiled,
    /// The bytes are no component that fits the engine: no WebAssembly, a core module, or a
    /// component that wants more than any profile has, or is nested more than 100 deep.
    #[error("this is no component that can be run here: {0}")]
    NotAComponent(String),
    /// The component needs more room than its profile may have, as far as that is known
    /// before it runs.
    #[error(
        "the component needs {needs}; the profile {allowed}, which is allowed, has {room}{}",
        match .fits {
            Some(profile) => format!("; the profile {profile} would do"),
            None => "; no profile has so much".to_owned(),
        }
    )]
    TooLarge {
        /// What it needs, for people.
        needs: String,
        /// The largest profile that is allowed.
        allowed: Profile,
        /// What that has, for people.
        room: String,
        /// The profile that would do, if there is one.
        fits: Option<Profile>,
    },
    /// The component imports what a policy does not get, or does not export the registry.
    #[error("the component does not fit the world tenure:registry/session-policy: {0}")]
    DoesNotFit(String),
    /// The machine does not give what the limits need, such as address space for the
    /// pool of instances.
    #[error("the policy engine could not be set up: {0}")]
    Engine(String),
}

/// Which calls wait for which.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Priority {
    /// Has slots that no other call takes.
    Heartbeat,
    /// Every other call.
    Common,
}

/// Runs policies. One for a process; cloning it shares it.
#[derive(Clone)]
pub struct PolicyEngine {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) engine: Engine,
    pub(super) linker: Linker<CallState>,
    pub(super) limits: Limits,
    /// Where it measures: what calls have used.
    pub(super) usage: Option<Usage>,
    /// Stands before the pool of instances, which answers with an error when it is full.
    pub(super) slots: Semaphore,
    pub(super) idle: Idle,
    /// The slots that others than heartbeats may have.
    common: Semaphore,
    /// As many places to wait for these. Whoever waited behind them would be near its deadline
    /// when it begins, and its work done for nothing.
    queue: Semaphore,
}

impl std::fmt::Debug for PolicyEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicyEngine")
            .field("limits", &self.inner.limits)
            .finish_non_exhaustive()
    }
}

impl PolicyEngine {
    /// An engine whose calls may use what `limits` allows. Starts a thread that counts
    /// epochs, which ends with the engine.
    ///
    /// [`LoadError::Engine`] where the machine cannot give what the limits need.
    pub fn new(limits: Limits) -> Result<Self, LoadError> {
        let engine = Self::build(limits, None)?;
        let ticking = Arc::downgrade(&engine.inner);
        // A thread rather than a task: a runtime that is blocked would stop the clock.
        thread::Builder::new()
            .name("tenure-epochs".to_owned())
            .spawn(move || count_epochs(&ticking))
            .map_err(|error| LoadError::Engine(error.to_string()))?;
        Ok(engine)
    }

    /// An engine for looking at policies, not for serving: it bounds a call by `fuel`, which
    /// is the same on every machine, in place of [`Limits::cpu`], and keeps what calls have
    /// [used](Self::used).
    pub fn measuring(limits: Limits, fuel: u64) -> Result<Self, LoadError> {
        Self::build(limits, Some(Usage::new(fuel)))
    }

    fn build(limits: Limits, usage: Option<Usage>) -> Result<Self, LoadError> {
        let set_up = |error: wasmtime::Error| LoadError::Engine(format!("{error:#}"));
        let mut config = config(&limits);
        config
            .epoch_interruption(usage.is_none())
            .consume_fuel(usage.is_some());
        let engine = Engine::new(&config).map_err(set_up)?;
        let linker = linker(&engine).map_err(set_up)?;
        let common = common(limits.calls_in_flight) as usize;
        let inner = Arc::new(Inner {
            engine,
            linker,
            slots: Semaphore::new(limits.calls_in_flight as usize),
            idle: Idle::default(),
            common: Semaphore::new(common),
            queue: Semaphore::new(common),
            limits,
            usage,
        });
        Ok(Self { inner })
    }

    /// The most that calls of each operation have used so far, by the operation's name.
    /// Empty unless the engine [measures](Self::measuring).
    #[must_use]
    pub fn used(&self) -> BTreeMap<&'static str, Used> {
        self.inner
            .usage
            .as_ref()
            .map(Usage::all)
            .unwrap_or_default()
    }

    /// What its calls may use.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    /// Waits for a free slot and runs `call`, both within the deadline. Giving a call up
    /// drops it, which cancels the statement that it runs.
    pub(crate) async fn within_deadline<T>(
        &self,
        priority: Priority,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let limits = &self.inner.limits;
        let deadline = Instant::now() + limits.deadline;
        let _common = match priority {
            Priority::Heartbeat => None,
            Priority::Common => {
                let _place = self.inner.queue.try_acquire().map_err(|_| {
                    Error::Contention("more calls are waiting than can be in flight".to_owned())
                })?;
                Some(self.slot(&self.inner.common, deadline).await?)
            }
        };
        let _slot = self.slot(&self.inner.slots, deadline).await?;
        timeout_at(deadline, call)
            .await
            .unwrap_or(Err(Error::DeadlineExceeded(limits.deadline)))
    }

    async fn slot<'a>(
        &self,
        slots: &'a Semaphore,
        deadline: Instant,
    ) -> Result<SemaphorePermit<'a>, Error> {
        let limits = &self.inner.limits;
        let slot = timeout_at(deadline, slots.acquire()).await.map_err(|_| {
            Error::Contention(format!(
                "{} calls are in flight, and none ended within {} ms",
                limits.calls_in_flight,
                limits.deadline.as_millis()
            ))
        })?;
        Ok(slot.expect("the slots are never closed"))
    }
}

/// How many of the slots others than heartbeats may have: all but a quarter, which is kept
/// for sessions that live. Of one slot, none can be kept.
fn common(slots: u32) -> u32 {
    slots.saturating_sub((slots / 4).max(1)).max(1)
}

/// All that a policy may import.
pub(super) fn linker(engine: &Engine) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::new(engine);
    add_to_linker(&mut linker, CallState::statements)?;
    extras::add_to_linker(&mut linker)?;
    Ok(linker)
}

/// Ticks that were missed are not caught up with: a burst of them would take the time of a
/// call that has only just begun.
fn count_epochs(inner: &Weak<Inner>) {
    while let Some(inner) = inner.upgrade() {
        inner.engine.increment_epoch();
        drop(inner);
        thread::sleep(EPOCH);
    }
}

/// One pool for the policies of all profiles, so that a swap from one to another changes
/// nothing but the policy. What the larger profile costs one that does not use it is address
/// space: a slot for a memory takes 4 GiB of it, be it for 32 pages or for 256, so three
/// memories a call are 12 TiB for 1024 calls, of the 128 TiB that a process has on the usual
/// machines. Pages that no policy has touched take no memory, and the time of a call does
/// not depend on how many slots there are. A second pool would save the address space where
/// no interpreted policy is loaded, and would need calls in flight of its own.
fn config(limits: &Limits) -> Config {
    let instances = limits.calls_in_flight;
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_memories(instances.saturating_mul(limits.memories))
        .total_tables(instances.saturating_mul(limits.tables))
        .total_core_instances(instances.saturating_mul(limits.core_instances))
        .total_stacks(instances)
        .max_memories_per_component(limits.memories)
        .max_tables_per_component(limits.tables)
        .max_core_instances_per_component(limits.core_instances)
        .max_memories_per_module(limits.memories)
        .max_tables_per_module(limits.tables)
        // The most of any profile. The profile's own bounds are the meter's.
        .max_memory_size(limits.strict.memory.max(limits.interpreted.memory))
        .table_elements(
            limits
                .strict
                .table_elements
                .max(limits.interpreted.table_elements),
        )
        .max_unused_warm_slots(MAX_WARM)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(TABLE_KEEP_RESIDENT);

    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .max_wasm_stack(limits.stack)
        // What is left beside the policy's own is for host functions, down to the
        // database driver.
        .async_stack_size(limits.stack + 1536 * 1024)
        // The contract is synchronous. Off, a call costs a quarter, and a component with
        // asynchronous functions is refused when it is loaded.
        .concurrency_support(false)
        // Nobody reads a backtrace of a policy; its fault is told from its trap.
        .wasm_backtrace_max_frames(None);
    config
}
