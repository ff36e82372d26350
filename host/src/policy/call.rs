//! One call: a store and an instance of its own, made for it and gone with it.

use std::sync::Arc;

use tokio::task::yield_now;
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};
use wasmtime_wasi::{WasiCtxView, WasiView};
use wasmtime_wasi_config::WasiConfigVariables;

use super::bindings::SessionPolicy;
use super::bindings::tenure::registry::types::RegistryError;
use super::capability::{StatementsCtx, StatementsView};
use super::engine::EPOCH;
use super::fault::{Breach, classify};
use super::limits::Meter;
use super::log::CallLog;
use super::record::{CallRecord, Evidence, Operation};
use super::usage::Usage;
use super::wasi::{MAX_HANDLES, Wasi};
use super::{About, Policy, PolicyFault};

/// What the store of a call holds.
///
/// The host's functions reach what they work on through its methods, each of which so counts
/// a call of a function. What not every policy uses is made at its first use.
pub(super) struct CallState {
    statements: StatementsCtx,
    record: CallRecord,
    meter: Meter,
    policy: Arc<About>,
    log: Option<Arc<CallLog>>,
    wasi: Option<Box<Wasi>>,
}

impl CallState {
    pub(super) fn statements(&mut self) -> StatementsView<'_> {
        self.meter.host_call();
        StatementsView {
            ctx: &self.statements,
            record: &mut self.record,
        }
    }

    pub(super) fn settings(&mut self) -> &WasiConfigVariables {
        self.meter.host_call();
        &self.policy.variables
    }

    pub(super) fn log(&mut self) -> &CallLog {
        self.meter.host_call();
        let (policy, operation) = (&self.policy, self.record.operation().name());
        self.log
            .get_or_insert_with(|| Arc::new(CallLog::new(policy.clone(), operation)))
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        self.meter.host_call();
        let (policy, operation) = (&self.policy, self.record.operation().name());
        let log = self
            .log
            .get_or_insert_with(|| Arc::new(CallLog::new(policy.clone(), operation)));
        self.wasi
            .get_or_insert_with(|| Box::new(Wasi::new(log)))
            .view()
    }
}

/// How a call ended: what the policy said, or how it failed; and what the database did.
pub(crate) type Ended<T> = (Result<Result<T, RegistryError>, PolicyFault>, Evidence);

/// Opens a session. Like each of the functions below it makes one call, on an instance of
/// its own.
pub(crate) async fn open_session(
    policy: &Policy,
    statements: &StatementsCtx,
    owner: &str,
    ttl_ms: u64,
) -> Ended<String> {
    let operation = || Operation::OpenSession {
        owner: owner.to_owned(),
    };
    run(
        policy,
        statements,
        operation,
        |instance, mut call| async move {
            let registry = instance.tenure_registry_session_registry();
            let outcome = registry
                .call_open_session(&mut call.store, owner, ttl_ms)
                .await;
            (call, outcome)
        },
    )
    .await
}

pub(crate) async fn heartbeat(
    policy: &Policy,
    statements: &StatementsCtx,
    session: &str,
    ttl_ms: u64,
) -> Ended<bool> {
    let session = &session.to_owned();
    let operation = || Operation::Heartbeat {
        session: session.clone(),
    };
    run(
        policy,
        statements,
        operation,
        |instance, mut call| async move {
            let registry = instance.tenure_registry_session_registry();
            let outcome = registry
                .call_heartbeat(&mut call.store, session, ttl_ms)
                .await;
            (call, outcome)
        },
    )
    .await
}

pub(crate) async fn close_session(
    policy: &Policy,
    statements: &StatementsCtx,
    session: &str,
) -> Ended<u32> {
    let session = &session.to_owned();
    let operation = || Operation::CloseSession {
        session: session.clone(),
    };
    run(
        policy,
        statements,
        operation,
        |instance, mut call| async move {
            let registry = instance.tenure_registry_session_registry();
            let outcome = registry.call_close_session(&mut call.store, session).await;
            (call, outcome)
        },
    )
    .await
}

pub(crate) async fn locks_of(
    policy: &Policy,
    statements: &StatementsCtx,
    session: &str,
) -> Ended<Vec<String>> {
    let session = &session.to_owned();
    let operation = || Operation::LocksOf {
        session: session.clone(),
    };
    run(
        policy,
        statements,
        operation,
        |instance, mut call| async move {
            let registry = instance.tenure_registry_session_registry();
            let outcome = registry.call_locks_of(&mut call.store, session).await;
            (call, outcome)
        },
    )
    .await
}

/// The caller has a slot, so there is room in the pool. Yet the pool can miss it: it looks
/// through its parts one after the other, while other threads take here and give back there.
/// Nothing of the policy has run by then.
async fn run<'a, T, Ran>(
    policy: &'a Policy,
    statements: &StatementsCtx,
    operation: impl Fn() -> Operation,
    export: impl Fn(SessionPolicy, Call<'a>) -> Ran,
) -> Ended<T>
where
    Ran: Future<Output = (Call<'a>, wasmtime::Result<Result<T, RegistryError>>)>,
{
    loop {
        let mut call = Call::new(policy, statements, operation());
        let (call, outcome) = match call.instantiate().await {
            Ok(instance) => export(instance, call).await,
            Err(error) => (call, Err(error)),
        };
        match outcome {
            Err(error) if error.is::<PoolConcurrencyLimitError>() => yield_now().await,
            outcome => return call.end(outcome),
        }
    }
}

/// A call about to be made. Its store is never used again: after a trap, an error or a
/// dropped future it would stay unusable, and after a success it would be a memory between
/// calls.
struct Call<'a> {
    policy: &'a Policy,
    store: Store<CallState>,
}

impl<'a> Call<'a> {
    fn new(policy: &'a Policy, statements: &StatementsCtx, operation: Operation) -> Self {
        let engine = &policy.engine.inner;
        let limits = &engine.limits;
        let mut store = Store::new(
            &engine.engine,
            CallState {
                statements: statements.clone(),
                record: CallRecord::new(operation),
                meter: Meter::new(limits, policy.about.profile, EPOCH),
                policy: policy.about.clone(),
                log: None,
                wasi: None,
            },
        );
        store.limiter(|state| &mut state.meter);
        store.set_hostcall_fuel(limits.transfer);
        // The contract has no resources. WASI does.
        store.set_max_component_handles(MAX_HANDLES);
        match &engine.usage {
            Some(usage) => store
                .set_fuel(usage.fuel())
                .expect("a measuring engine counts fuel"),
            None => {
                store.set_epoch_deadline(1);
                store.epoch_deadline_callback(|mut store| {
                    store.data_mut().meter.epoch()?;
                    // A policy that computes for long lets others have the thread in
                    // between.
                    Ok(UpdateDeadline::Yield(1))
                });
            }
        }
        Self { policy, store }
    }

    async fn instantiate(&mut self) -> wasmtime::Result<SessionPolicy> {
        self.policy.pre.instantiate_async(&mut self.store).await
    }

    fn end<T>(self, outcome: wasmtime::Result<Result<T, RegistryError>>) -> Ended<T> {
        let engine = &self.policy.engine.inner;
        let limits = &engine.limits;
        let fuel = engine.usage.as_ref().map_or(0, Usage::fuel);
        if let Some(usage) = &engine.usage {
            let left = self.store.get_fuel().unwrap_or(0);
            let CallState { record, meter, .. } = self.store.data();
            usage.keep(record.operation().name(), left, meter.memory_used());
        }
        let CallState { record, meter, .. } = self.store.into_data();
        let outcome = match (record.violation(), meter.within_host_calls()) {
            // Whatever became of the trap on its way through the policy.
            (Some(what), _) => Err(PolicyFault::Violation(what.to_owned())),
            (None, Err(Breach(fault))) => Err(fault),
            (None, Ok(())) => {
                outcome.map_err(|error| classify(&error, limits.stack, limits.transfer, fuel))
            }
        };
        (outcome, record.into_evidence())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use async_trait::async_trait;
    use tokio::task::JoinSet;
    use uuid::Uuid;

    use super::*;
    use crate::policy::{LIFECYCLE, Limits, PolicyEngine};
    use crate::postgres::{Statements, StoreError};
    use crate::registry::SessionRegistry;

    /// Lets another call begin before each answer.
    struct Yielding;

    #[async_trait]
    impl Statements for Yielding {
        async fn open_session(&self, _: Uuid, _: &str, _: i64) -> Result<SystemTime, StoreError> {
            unimplemented!("only heartbeats are sent")
        }

        async fn heartbeat(&self, _: Uuid, _: i64) -> Result<Option<SystemTime>, StoreError> {
            yield_now().await;
            Ok(Some(SystemTime::UNIX_EPOCH))
        }

        async fn close_session(&self, _: Uuid) -> Result<Option<u32>, StoreError> {
            unimplemented!("only heartbeats are sent")
        }

        async fn locks_of(&self, _: Uuid) -> Result<Vec<String>, StoreError> {
            unimplemented!("only heartbeats are sent")
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 16)]
    async fn a_full_pool_fails_no_call() {
        let limits = Limits {
            // The fewest for which the pool is in parts.
            calls_in_flight: 128,
            ..Limits::default()
        };
        let engine = PolicyEngine::new(limits).unwrap();
        let policy = Policy::load(&engine, LIFECYCLE).unwrap();
        let registry = SessionRegistry::new(policy, Arc::new(Yielding));
        let session = Uuid::new_v4().to_string();
        let mut clients = JoinSet::new();
        for _ in 0..512 {
            let (registry, session) = (registry.clone(), session.clone());
            clients.spawn(async move {
                for _ in 0..200 {
                    let beat = registry.heartbeat(&session, Duration::from_secs(15)).await;
                    assert!(beat.unwrap().is_alive());
                }
            });
        }
        clients.join_all().await;
    }
}
