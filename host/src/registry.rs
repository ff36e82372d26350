//! The session registry: the policy decides, the database knows, the host compares.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::Error;
use crate::policy::{
    self, Judgement, Policy, PolicyFault, PolicySlot, Priority, StatementsCtx, call,
};
use crate::postgres::Statements;
use crate::session::{Closed, Heartbeat, Session, SessionId};

/// The longest argument that is passed on to a policy, in bytes. Every policy so gets what
/// it needs in order to refuse an argument, and none has to have room for a huge one.
const MAX_ARGUMENT: usize = 4096;

/// Opens, keeps and closes sessions.
///
/// Every call runs in the policy, on an instance of its own, with one pinned statement at
/// its disposal; then the policy's verdict is held against what the statement did. The
/// registry itself keeps nothing: no session, no cache. Cloning it is cheap, and any number
/// of hosts may work on one database.
///
/// Errors that every method can return: [`Error::InvalidArgument`] and [`Error::Refused`],
/// the policy's own, after which nothing has happened; [`Error::Contention`] and
/// [`Error::DeadlineExceeded`], after which a retry is safe; [`Error::Rejected`] and
/// [`Error::Store`], the database's; [`Error::Policy`], where the policy misbehaved.
#[derive(Clone, Debug)]
pub struct SessionRegistry {
    slot: Arc<PolicySlot>,
    statements: StatementsCtx,
}

impl SessionRegistry {
    /// Under the rules of `policy`, on `statements`.
    #[must_use]
    pub fn new(policy: Policy, statements: Arc<dyn Statements>) -> Self {
        Self::with_slot(Arc::new(PolicySlot::new(policy)), statements)
    }

    /// Under the rules of whichever policy is in the slot when a call begins.
    #[must_use]
    pub fn with_slot(slot: Arc<PolicySlot>, statements: Arc<dyn Statements>) -> Self {
        Self {
            slot,
            statements: StatementsCtx::new(statements),
        }
    }

    /// The policy in charge at this moment.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.slot.load()
    }

    /// Holds the policy in charge.
    #[must_use]
    pub fn slot(&self) -> &Arc<PolicySlot> {
        &self.slot
    }

    /// Runs one call under the policy in charge, within its engine's deadline.
    async fn call<T>(
        &self,
        priority: Priority,
        call: impl AsyncFnOnce(&Policy) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let policy = self.slot.load();
        let outcome = policy
            .engine()
            .within_deadline(priority, call(&policy))
            .await;
        policy.ended(&outcome);
        outcome
    }

    /// Opens a session for `owner`, which lives for `ttl` without a heartbeat.
    ///
    /// The granted lease is the policy's and may differ from `ttl`. Every call opens a new
    /// session, whether or not the owner has one: one session for each client is the
    /// client's own invariant. After an error with a safe retry, a session that nobody
    /// knows of may stand until its TTL is over.
    pub async fn open_session(&self, owner: &str, ttl: Duration) -> Result<Session, Error> {
        bounded("owner", owner)?;
        let (id, lease) = self
            .call(Priority::Common, async |policy: &Policy| {
                let (outcome, evidence) =
                    call::open_session(policy, &self.statements, owner, millis(ttl)).await;
                let inserted = evidence.inserted();
                let judgement = match outcome {
                    Ok(verdict) => policy::open_session(verdict, &evidence),
                    Err(fault) => {
                        policy.misbehaved(&fault);
                        Judgement::failed(fault, inserted.is_some())
                    }
                };
                self.settle(policy, judgement, inserted).await
            })
            .await?;
        let id = SessionId::from(id);
        tracing::info!(
            session = %id,
            owner,
            ttl_ms = millis(lease.ttl),
            "session_opened"
        );
        Ok(Session {
            id,
            owner: owner.to_owned(),
            lease,
        })
    }

    /// Keeps a session alive for `ttl` from now.
    ///
    /// [`Heartbeat::Dead`] is terminal, whatever the policy: the database no longer has the
    /// session, or can no longer extend it. A fault is an error, never that answer; and no
    /// heartbeat ever makes a session.
    pub async fn heartbeat(&self, session: &str, ttl: Duration) -> Result<Heartbeat, Error> {
        bounded("session", session)?;
        self.call(Priority::Heartbeat, async |policy: &Policy| {
            let (outcome, evidence) =
                call::heartbeat(policy, &self.statements, session, millis(ttl)).await;
            let verdict = outcome.inspect_err(|fault| policy.misbehaved(fault))?;
            self.settle(
                policy,
                policy::heartbeat(verdict, &evidence),
                Uuid::try_parse(session).ok(),
            )
            .await
        })
        .await
    }

    /// Closes a session, and all of its locks go with it.
    ///
    /// A session that is unknown, or closed already, is no error: see
    /// [`Closed::existed`]. The count is exact.
    pub async fn close_session(&self, session: &str) -> Result<Closed, Error> {
        bounded("session", session)?;
        let closed = self
            .call(Priority::Common, async |policy: &Policy| {
                let (outcome, evidence) =
                    call::close_session(policy, &self.statements, session).await;
                let verdict = outcome.inspect_err(|fault| policy.misbehaved(fault))?;
                self.settle(policy, policy::close_session(verdict, &evidence), None)
                    .await
            })
            .await?;
        if closed.existed {
            tracing::info!(session, locks = closed.locks_released, "session_closed");
        }
        Ok(closed)
    }

    /// The keys of the locks that hang on a session, the first 100 in order. Empty for a
    /// session that has none or is unknown.
    ///
    /// Not authoritative: for people and for tidying up, never for deciding whether a lock
    /// is held.
    pub async fn locks_of(&self, session: &str) -> Result<Vec<String>, Error> {
        bounded("session", session)?;
        self.call(Priority::Common, async |policy: &Policy| {
            let (outcome, evidence) = call::locks_of(policy, &self.statements, session).await;
            let verdict = outcome.inspect_err(|fault| policy.misbehaved(fault))?;
            self.settle(policy, policy::locks_of(verdict, &evidence), None)
                .await
        })
        .await
    }

    /// Carries a judgement out.
    async fn settle<T>(
        &self,
        policy: &Policy,
        judgement: Judgement<T>,
        session: Option<Uuid>,
    ) -> Result<T, Error> {
        if let Some(what) = judgement.violation {
            policy.misbehaved(&PolicyFault::Violation(what.to_owned()));
        }
        if let (true, Some(id)) = (judgement.close, session) {
            self.statements.statements().close_session(id).await?;
        }
        judgement.answer
    }
}

/// What is beyond every policy's rules need not reach one.
fn bounded(name: &str, argument: &str) -> Result<(), Error> {
    if argument.len() > MAX_ARGUMENT {
        return Err(Error::InvalidArgument(format!(
            "{name} has {} bytes; at most {MAX_ARGUMENT} are passed on to the policy",
            argument.len()
        )));
    }
    Ok(())
}

/// Longer than the contract can say is as long as it can say, which every policy refuses.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
