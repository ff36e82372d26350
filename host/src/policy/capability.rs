//! The capability: the interface `statements`, lent to a policy for one call.
//!
//! For a wasmtime host of one's own: keep a [`StatementsCtx`] for the life of the process,
//! a [`CallRecord`] for each call, lend both as a [`StatementsView`], and link with
//! [`add_to_linker`]. What the record rules out is then ruled out there too. Holding the
//! verdict against the database, as [`SessionRegistry`](crate::SessionRegistry) does, is up
//! to that host.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;
use wasmtime::component::{HasData, Linker};

use super::PolicyFault;
use super::bindings::tenure::registry::{statements, types};
use super::fault::Breach;
use super::record::{CallRecord, Evidence, Operation};
use crate::postgres::{Statements, StoreError};

/// What lives as long as the process: the statements' store.
#[derive(Clone)]
pub struct StatementsCtx {
    statements: Arc<dyn Statements>,
}

impl StatementsCtx {
    /// On `statements`.
    #[must_use]
    pub fn new(statements: Arc<dyn Statements>) -> Self {
        Self { statements }
    }

    pub(crate) fn statements(&self) -> &dyn Statements {
        &*self.statements
    }
}

impl fmt::Debug for StatementsCtx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatementsCtx").finish_non_exhaustive()
    }
}

/// What is lent for one call.
#[derive(Debug)]
pub struct StatementsView<'a> {
    /// The store.
    pub ctx: &'a StatementsCtx,
    /// The record of this call.
    pub record: &'a mut CallRecord,
}

struct HasStatements;

impl HasData for HasStatements {
    type Data<'a> = StatementsView<'a>;
}

/// Adds `tenure:registry/statements` to a linker. `view` lends the context and the record
/// of the call out of the store's data.
///
/// The functions are asynchronous, so the policy has to be instantiated and called by
/// wasmtime's `_async` methods, on a Tokio runtime. Fails when the linker already has the
/// interface.
pub fn add_to_linker<T: Send + 'static>(
    linker: &mut Linker<T>,
    view: fn(&mut T) -> StatementsView<'_>,
) -> wasmtime::Result<()> {
    types::add_to_linker::<T, HasStatements>(linker, view)?;
    statements::add_to_linker::<T, HasStatements>(linker, view)
}

impl StatementsView<'_> {
    /// Lets the statement run, or ends the call with a trap.
    fn permit(&mut self, wanted: &Operation) -> wasmtime::Result<()> {
        self.record
            .permit(wanted)
            .map_err(|what| Breach(PolicyFault::Violation(what)).into())
    }
}

type Outcome<T> = wasmtime::Result<Result<T, types::StoreError>>;

impl statements::Host for StatementsView<'_> {
    async fn open_session(&mut self, owner_id: String, ttl_ms: u64) -> Outcome<String> {
        let asked = Operation::OpenSession { owner: owner_id };
        self.permit(&asked)?;
        let Operation::OpenSession { owner } = asked else {
            unreachable!("made three lines above")
        };
        let id = self.ctx.statements.new_id();
        let outcome = match ttl(ttl_ms) {
            Ok(ttl_ms) => self.ctx.statements.open_session(id, &owner, ttl_ms).await,
            Err(error) => Err(error),
        };
        let answer = outcome.as_ref().map(|_| id.to_string()).map_err(to_wit);
        self.record.keep(Evidence::Opened {
            id,
            ttl: Duration::from_millis(ttl_ms),
            outcome,
        });
        Ok(answer)
    }

    async fn heartbeat(&mut self, session: String, ttl_ms: u64) -> Outcome<u32> {
        let id = parse(&session);
        self.permit(&Operation::Heartbeat { session })?;
        let outcome = match (id, ttl(ttl_ms)) {
            (Ok(id), Ok(ttl_ms)) => self.ctx.statements.heartbeat(id, ttl_ms).await,
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        let answer = outcome
            .as_ref()
            .map(|extended| u32::from(extended.is_some()))
            .map_err(to_wit);
        self.record.keep(Evidence::Beat {
            ttl: Duration::from_millis(ttl_ms),
            outcome,
        });
        Ok(answer)
    }

    async fn close_session(&mut self, session: String) -> Outcome<u32> {
        let id = parse(&session);
        self.permit(&Operation::CloseSession { session })?;
        let outcome = match id {
            Ok(id) => self.ctx.statements.close_session(id).await,
            Err(error) => Err(error),
        };
        let answer = outcome
            .as_ref()
            .map(|locks| locks.unwrap_or(0))
            .map_err(to_wit);
        self.record.keep(Evidence::Closed(outcome));
        Ok(answer)
    }

    async fn locks_of(&mut self, session: String) -> Outcome<Vec<String>> {
        let id = parse(&session);
        self.permit(&Operation::LocksOf { session })?;
        let outcome = match id {
            Ok(id) => self.ctx.statements.locks_of(id).await,
            Err(error) => Err(error),
        };
        let answer = outcome.clone().map_err(|error| to_wit(&error));
        self.record.keep(Evidence::Listed(outcome));
        Ok(answer)
    }
}

impl types::Host for StatementsView<'_> {}

/// The number is the policy's to choose. What PostgreSQL cannot count to is refused here;
/// a time stamp out of its range, and 0, it refuses itself.
fn ttl(ttl_ms: u64) -> Result<i64, StoreError> {
    i64::try_from(ttl_ms)
        .map_err(|_| StoreError::Rejected(format!("a ttl-ms of {ttl_ms} is out of range")))
}

/// The text is the caller's; a policy that lets anything pass must not make the host panic.
fn parse(session: &str) -> Result<Uuid, StoreError> {
    Uuid::try_parse(session)
        .map_err(|_| StoreError::Rejected("session-id is not a UUID".to_owned()))
}

/// The longest text of a fault that a policy is told, in bytes: a policy has little memory,
/// and one that runs out of it would turn the fault into a trap. The caller gets the whole
/// text in any case, from the call's evidence.
const MAX_FAULT_TEXT: usize = 1024;

/// The one place where a fault of the store becomes a word of the contract, which has no
/// third case.
fn to_wit(error: &StoreError) -> types::StoreError {
    let told = |text: &String| text[..text.floor_char_boundary(MAX_FAULT_TEXT)].to_owned();
    match error {
        StoreError::Contention(text) => types::StoreError::Contention(told(text)),
        StoreError::Rejected(text) | StoreError::Other(text) => {
            types::StoreError::Rejected(told(text))
        }
    }
}
