//! One call: a store and an instance of its own, made for it and gone with it.

use std::sync::Arc;

use wasmtime::{Store, UpdateDeadline};
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

/// A call about to be made. Its store is never used again: after a trap, an error or a
/// dropped future it would stay unusable, and after a success it would be a memory between
/// calls.
pub(crate) struct Call<'a> {
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

    pub(crate) async fn open_session(
        policy: &'a Policy,
        statements: &StatementsCtx,
        owner: &str,
        ttl_ms: u64,
    ) -> Ended<String> {
        let operation = Operation::OpenSession {
            owner: owner.to_owned(),
        };
        let mut call = Self::new(policy, statements, operation);
        let outcome = match call.instantiate().await {
            Ok(instance) => {
                instance
                    .tenure_registry_session_registry()
                    .call_open_session(&mut call.store, owner, ttl_ms)
                    .await
            }
            Err(error) => Err(error),
        };
        call.end(outcome)
    }

    pub(crate) async fn heartbeat(
        policy: &'a Policy,
        statements: &StatementsCtx,
        session: &str,
        ttl_ms: u64,
    ) -> Ended<bool> {
        let session = session.to_owned();
        let operation = Operation::Heartbeat {
            session: session.clone(),
        };
        let mut call = Self::new(policy, statements, operation);
        let outcome = match call.instantiate().await {
            Ok(instance) => {
                instance
                    .tenure_registry_session_registry()
                    .call_heartbeat(&mut call.store, &session, ttl_ms)
                    .await
            }
            Err(error) => Err(error),
        };
        call.end(outcome)
    }

    pub(crate) async fn close_session(
        policy: &'a Policy,
        statements: &StatementsCtx,
        session: &str,
    ) -> Ended<u32> {
        let session = session.to_owned();
        let operation = Operation::CloseSession {
            session: session.clone(),
        };
        let mut call = Self::new(policy, statements, operation);
        let outcome = match call.instantiate().await {
            Ok(instance) => {
                instance
                    .tenure_registry_session_registry()
                    .call_close_session(&mut call.store, &session)
                    .await
            }
            Err(error) => Err(error),
        };
        call.end(outcome)
    }

    pub(crate) async fn locks_of(
        policy: &'a Policy,
        statements: &StatementsCtx,
        session: &str,
    ) -> Ended<Vec<String>> {
        let session = session.to_owned();
        let operation = Operation::LocksOf {
            session: session.clone(),
        };
        let mut call = Self::new(policy, statements, operation);
        let outcome = match call.instantiate().await {
            Ok(instance) => {
                instance
                    .tenure_registry_session_registry()
                    .call_locks_of(&mut call.store, &session)
                    .await
            }
            Err(error) => Err(error),
        };
        call.end(outcome)
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
