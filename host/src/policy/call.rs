//! One call: on a store and an instance of its own, made for it and gone with it, unless the
//! engine is told to let an instance serve several.

use std::sync::Arc;

use tokio::task::yield_now;
use wasmtime::{PoolConcurrencyLimitError, Store, UpdateDeadline};
use wasmtime_wasi::{WasiCtxView, WasiView};
use wasmtime_wasi_config::WasiConfigVariables;

use super::bindings::tenure::registry::types::RegistryError;
use super::capability::{StatementsCtx, StatementsView};
use super::engine::EPOCH;
use super::fault::{Breach, classify};
use super::idle::Instance;
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
    fn new(policy: &Policy, statements: &StatementsCtx, operation: Operation) -> Self {
        let limits = &policy.engine.inner.limits;
        Self {
            statements: statements.clone(),
            record: CallRecord::new(operation),
            meter: Meter::new(limits, policy.about.profile, EPOCH),
            policy: policy.about.clone(),
            log: None,
            wasi: None,
        }
    }

    pub(super) fn policy(&self) -> &Arc<About> {
        &self.policy
    }

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
    run(policy, statements, operation, |mut instance| async move {
        let registry = instance.policy.tenure_registry_session_registry();
        let outcome = registry
            .call_open_session(&mut instance.store, owner, ttl_ms)
            .await;
        (instance, outcome)
    })
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
    run(policy, statements, operation, |mut instance| async move {
        let registry = instance.policy.tenure_registry_session_registry();
        let outcome = registry
            .call_heartbeat(&mut instance.store, session, ttl_ms)
            .await;
        (instance, outcome)
    })
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
    run(policy, statements, operation, |mut instance| async move {
        let registry = instance.policy.tenure_registry_session_registry();
        let outcome = registry
            .call_close_session(&mut instance.store, session)
            .await;
        (instance, outcome)
    })
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
    run(policy, statements, operation, |mut instance| async move {
        let registry = instance.policy.tenure_registry_session_registry();
        let outcome = registry.call_locks_of(&mut instance.store, session).await;
        (instance, outcome)
    })
    .await
}

/// Makes a call on an instance, which `export` is lent.
async fn run<T, Ran>(
    policy: &Policy,
    statements: &StatementsCtx,
    operation: impl Fn() -> Operation,
    export: impl Fn(Instance) -> Ran,
) -> Ended<T>
where
    Ran: Future<Output = (Instance, wasmtime::Result<Result<T, RegistryError>>)>,
{
    let idle = &policy.engine.inner.idle;
    loop {
        let state = CallState::new(policy, statements, operation());
        let (failed, mut store) = match instance(policy, state).await {
            Ok(instance) => {
                let (mut instance, outcome) = export(instance).await;
                match outcome {
                    Err(error) => (error, instance.store),
                    answer => {
                        let ended = end(policy, &mut instance.store, answer);
                        if ended.0.is_ok() && instance.may_serve_again() {
                            idle.keep(instance);
                        }
                        return ended;
                    }
                }
            }
            Err(failed) => failed,
        };
        if !failed.is::<PoolConcurrencyLimitError>() {
            return end(policy, &mut store, Err(failed));
        }
        // Nothing of the policy has run, and the caller has a slot, so there is room in the
        // pool, save for what idle instances of other policies take. Yet the pool can miss
        // it: it looks through its parts one after the other, while other threads take here
        // and give back there.
        drop(store);
        if !idle.give_one_up() {
            yield_now().await;
        }
    }
}

/// One that is idle, or a fresh one.
async fn instance(
    policy: &Policy,
    state: CallState,
) -> Result<Instance, (wasmtime::Error, Store<CallState>)> {
    let engine = &policy.engine.inner;
    let calls = engine.limits.calls_per_instance;
    if calls > 1
        && let Some(mut instance) = engine.idle.take(&policy.about)
    {
        *instance.store.data_mut() = state;
        instance.store.set_epoch_deadline(1);
        instance.calls_left -= 1;
        return Ok(instance);
    }
    let mut store = store(policy, state);
    match policy.pre.instantiate_async(&mut store).await {
        Ok(policy) => Ok(Instance {
            store,
            policy,
            calls_left: calls.saturating_sub(1),
        }),
        Err(error) => Err((error, store)),
    }
}

fn store(policy: &Policy, state: CallState) -> Store<CallState> {
    let engine = &policy.engine.inner;
    let mut store = Store::new(&engine.engine, state);
    store.limiter(|state| &mut state.meter);
    store.set_hostcall_fuel(engine.limits.transfer);
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
                // A policy that computes for long lets others have the thread in between.
                Ok(UpdateDeadline::Yield(1))
            });
        }
    }
    store
}

impl Instance {
    /// After a call that ended well. After a trap, an error or a dropped future a store
    /// stays unusable. One under WASI has handles and output of its call in it.
    fn may_serve_again(&self) -> bool {
        self.calls_left > 0 && self.store.data().wasi.is_none()
    }
}

/// Takes from the store what became of the call in it.
fn end<T>(
    policy: &Policy,
    store: &mut Store<CallState>,
    outcome: wasmtime::Result<Result<T, RegistryError>>,
) -> Ended<T> {
    let engine = &policy.engine.inner;
    let limits = &engine.limits;
    let fuel = engine.usage.as_ref().map_or(0, Usage::fuel);
    if let Some(usage) = &engine.usage {
        let left = store.get_fuel().unwrap_or(0);
        let CallState { record, meter, .. } = store.data();
        usage.keep(record.operation().name(), left, meter.memory_used());
    }
    let CallState { record, meter, .. } = store.data_mut();
    let outcome = match (record.violation(), meter.within_host_calls()) {
        // Whatever became of the trap on its way through the policy.
        (Some(what), _) => Err(PolicyFault::Violation(what.to_owned())),
        (None, Err(Breach(fault))) => Err(fault),
        (None, Ok(())) => {
            outcome.map_err(|error| classify(&error, limits.stack, limits.transfer, fuel))
        }
    };
    (outcome, record.take_evidence())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use async_trait::async_trait;
    use futures_util::FutureExt;
    use uuid::Uuid;

    use super::*;
    use crate::policy::{LIFECYCLE, Limits, PolicyEngine};
    use crate::postgres::{Statements, StoreError};
    use crate::registry::SessionRegistry;

    struct AtOnce;

    #[async_trait]
    impl Statements for AtOnce {
        async fn open_session(&self, _: Uuid, _: &str, _: i64) -> Result<SystemTime, StoreError> {
            Ok(SystemTime::UNIX_EPOCH)
        }

        async fn heartbeat(&self, _: Uuid, _: i64) -> Result<Option<SystemTime>, StoreError> {
            Ok(Some(SystemTime::UNIX_EPOCH))
        }

        async fn close_session(&self, _: Uuid) -> Result<Option<u32>, StoreError> {
            Ok(Some(0))
        }

        async fn locks_of(&self, _: Uuid) -> Result<Vec<String>, StoreError> {
            Ok(Vec::new())
        }
    }

    /// What a call with a slot meets when the pool misses the room that there is.
    #[tokio::test]
    async fn a_full_pool_fails_no_call() {
        let limits = Limits {
            calls_in_flight: 1,
            ..Limits::default()
        };
        let engine = PolicyEngine::new(limits).unwrap();
        let policy = Policy::load(&engine, LIFECYCLE).unwrap();
        let statements = StatementsCtx::new(Arc::new(AtOnce));
        let session = Uuid::new_v4().to_string();
        let operation = Operation::Heartbeat {
            session: session.clone(),
        };
        let state = CallState::new(&policy, &statements, operation);
        // All that the pool has, past the slots.
        let taken = instance(&policy, state).await.map_err(|(error, _)| error);
        let registry = SessionRegistry::new(policy.clone(), Arc::new(AtOnce));

        let mut beat = Box::pin(registry.heartbeat(&session, Duration::from_secs(15)));
        for _ in 0..10 {
            let early = (&mut beat).now_or_never();
            assert!(early.is_none(), "{early:?}");
        }
        drop(taken.unwrap());

        assert!(beat.await.unwrap().is_alive());
    }
}
