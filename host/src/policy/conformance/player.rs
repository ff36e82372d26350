//! Performs steps, through the registry that the server uses too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::reference::MAX_TTL_MS;
use super::scenario::{Action, Keys, Outcome, Step, Text};
use super::stage::{Ran, Stage};
use crate::policy::Policy;
use crate::postgres::Statements;
use crate::{Error, Heartbeat, SessionRegistry};

/// What a scenario does to a store past the policy.
#[async_trait]
pub trait Surroundings: Send + Sync {
    /// Takes a lock for a session, for longer than the session lives; returns whether it was
    /// granted.
    async fn lock(&self, session: Uuid, key: &str) -> bool;

    /// Lets time pass.
    async fn advance(&self, by: Duration);

    /// How much is left of a session's lease; nothing where it is over, or never was.
    async fn left(&self, session: Uuid) -> Duration;

    /// Removes the sessions that are dead; returns how many.
    async fn reap(&self) -> usize;
}

/// What was seen of a step.
#[derive(Clone, Debug)]
pub enum Observed {
    /// It had this outcome. The text is the error's, if it is one.
    Answered(Outcome, String),
    /// The policy broke a rule that holds for every policy, in every call.
    Broken(String),
    /// Nothing: the clock was moved, a call begun, or the session was never opened.
    Nothing,
}

/// Performs steps on a store, under a policy.
#[derive(Debug)]
pub struct Player {
    registry: SessionRegistry,
    stage: Arc<Stage>,
    surroundings: Arc<dyn Surroundings>,
    owner: String,
    /// The ids of the sessions that were opened, by their names.
    sessions: BTreeMap<String, String>,
    held: BTreeMap<String, Held>,
    violations: u64,
}

type Answer = Result<(Outcome, Option<String>), Error>;

#[derive(Debug)]
struct Held {
    call: JoinHandle<Answer>,
    open: oneshot::Sender<()>,
    ran: Vec<Ran>,
    name: Option<String>,
}

impl std::fmt::Debug for dyn Surroundings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Surroundings")
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        for held in self.held.values() {
            held.call.abort();
        }
    }
}

impl Player {
    /// Performs on `store`, whose `surroundings` these are. Sessions are opened for `owner`
    /// where a step says nothing else. Needs a Tokio runtime.
    #[must_use]
    pub fn new<S: Statements + Surroundings>(policy: Policy, store: Arc<S>, owner: &str) -> Self {
        let stage = Arc::new(Stage::new(store.clone()));
        Self {
            violations: policy.counts().violations,
            registry: SessionRegistry::new(policy, stage.clone()),
            stage,
            surroundings: store,
            owner: owner.to_owned(),
            sessions: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// The id of the session that a text names.
    pub(super) fn id(&self, session: &Text) -> Option<String> {
        session.resolve(&self.sessions)
    }

    /// Performs a step.
    pub async fn perform(&mut self, step: &Step) -> Observed {
        match &step.action {
            Action::Finish { call } => self.finish(call).await,
            Action::Lock { session, keys } => match self.uuid(session) {
                Some(session) => {
                    let mut granted = 0;
                    for key in keys.list() {
                        granted += usize::from(self.surroundings.lock(session, &key).await);
                    }
                    answered(Outcome::Granted(granted))
                }
                None => Observed::Nothing,
            },
            Action::Advance { ms } => {
                self.surroundings.advance(Duration::from_millis(*ms)).await;
                Observed::Nothing
            }
            Action::AdvanceToEnd { session, before_ms } => {
                if let Some(session) = self.uuid(session) {
                    let left = self.surroundings.left(session).await;
                    let by = left.saturating_sub(Duration::from_millis(*before_ms));
                    self.surroundings.advance(by).await;
                }
                Observed::Nothing
            }
            Action::Reap => answered(Outcome::Reaped(self.surroundings.reap().await)),
            Action::OpenSession { .. }
            | Action::Heartbeat { .. }
            | Action::CloseSession { .. }
            | Action::LocksOf { .. } => self.call(step).await,
        }
    }

    fn uuid(&self, session: &Text) -> Option<Uuid> {
        Uuid::try_parse(&self.id(session)?).ok()
    }

    async fn call(&mut self, step: &Step) -> Observed {
        let (call, name) = match &step.action {
            Action::OpenSession {
                name,
                owner,
                ttl_ms,
            } => {
                let owner = match owner {
                    Some(owner) => self.id(owner),
                    None => Some(self.owner.clone()),
                };
                let ttl = Duration::from_millis(ttl_ms.ms());
                (owner.map(|owner| Call::Open(owner, ttl)), name.clone())
            }
            Action::Heartbeat { session, ttl_ms } => {
                let ttl = Duration::from_millis(ttl_ms.ms());
                (self.id(session).map(|id| Call::Beat(id, ttl)), None)
            }
            Action::CloseSession { session } => (self.id(session).map(Call::Close), None),
            Action::LocksOf { session } => (self.id(session).map(Call::List), None),
            _ => (None, None),
        };
        let Some(call) = call else {
            return Observed::Nothing;
        };
        self.stage.take_ran();
        let gate = self
            .stage
            .order(step.fault, step.hold.as_ref().map(|hold| hold.when));
        let call = call.run(self.registry.clone());
        let (Some(gate), Some(hold)) = (gate, &step.hold) else {
            let answer = call.await;
            let ran = self.stage.take_ran();
            return self.judge(answer, &ran, name);
        };
        let mut call = tokio::spawn(call);
        let mut early = None;
        tokio::select! {
            biased;
            Ok(()) = gate.reached => {}
            answer = &mut call => early = Some(answer),
        }
        if let Some(answer) = early {
            // It has an answer already, so it never was in the middle of its statement.
            call = tokio::spawn(async move { answer.unwrap_or_else(|_| Err(lost())) });
        }
        let held = Held {
            call,
            open: gate.open,
            ran: self.stage.take_ran(),
            name,
        };
        self.held.insert(hold.call.clone(), held);
        Observed::Nothing
    }

    async fn finish(&mut self, call: &str) -> Observed {
        let Some(held) = self.held.remove(call) else {
            return Observed::Nothing;
        };
        // Nobody listens where the call has ended early.
        let _ = held.open.send(());
        let answer = held.call.await.unwrap_or_else(|_| Err(lost()));
        self.judge(answer, &held.ran, held.name)
    }

    /// The rules for every call of every policy, beside those that the audit has.
    fn judge(&mut self, answer: Answer, ran: &[Ran], name: Option<String>) -> Observed {
        let violations = self.registry.policy().counts().violations;
        if std::mem::replace(&mut self.violations, violations) != violations {
            let what = self.registry.policy().last_violation();
            return Observed::Broken(format!("violation: it {}", what.unwrap_or_default()));
        }
        let (outcome, text) = match answer {
            Ok((outcome, id)) => {
                if let (Some(name), Some(id)) = (name, id) {
                    self.sessions.insert(name, id);
                }
                (outcome, String::new())
            }
            Err(Error::InvalidArgument(text)) => (Outcome::InvalidArgument, text),
            Err(Error::Refused(text)) => (Outcome::Refused, text),
            Err(Error::Contention(text)) => (Outcome::Contention, text),
            Err(Error::Rejected(text) | Error::Store(text)) => (Outcome::Store, text),
            Err(Error::Policy(fault)) => return Observed::Broken(fault.to_string()),
            Err(other) => return Observed::Broken(other.to_string()),
        };
        if let (true, [ran, ..]) = (outcome.is_no(), ran) {
            return Observed::Broken(format!(
                "it answered {outcome} ({text}) after its statement {} had run",
                ran.statement
            ));
        }
        for ran in ran {
            if let Some(ttl) = ran.ttl_ms
                && !u64::try_from(ttl).is_ok_and(|ttl| (1..=MAX_TTL_MS).contains(&ttl))
            {
                return Observed::Broken(format!(
                    "it ran the statement {} with a TTL of {ttl} ms; the contract has 1 to \
                     {MAX_TTL_MS}",
                    ran.statement
                ));
            }
        }
        Observed::Answered(outcome, text)
    }
}

fn answered(outcome: Outcome) -> Observed {
    Observed::Answered(outcome, String::new())
}

fn lost() -> Error {
    Error::Store("the call's task was lost".to_owned())
}

enum Call {
    Open(String, Duration),
    Beat(String, Duration),
    Close(String),
    List(String),
}

impl Call {
    async fn run(self, registry: SessionRegistry) -> Answer {
        match self {
            Self::Open(owner, ttl) => {
                let session = registry.open_session(&owner, ttl).await?;
                Ok((Outcome::Opened, Some(session.id.to_string())))
            }
            Self::Beat(session, ttl) => match registry.heartbeat(&session, ttl).await? {
                Heartbeat::Alive(_) => Ok((Outcome::Alive, None)),
                Heartbeat::Dead => Ok((Outcome::Dead, None)),
            },
            Self::Close(session) => {
                let closed = registry.close_session(&session).await?;
                Ok((Outcome::Closed(closed.locks_released), None))
            }
            Self::List(session) => {
                let keys = registry.locks_of(&session).await?;
                Ok((Outcome::Locks(Keys::Listed(keys)), None))
            }
        }
    }
}
