//! A store on which a test decides what befalls the next statement.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::postgres::{Statements, StoreError};

/// What befalls one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fault {
    /// Contention, and the statement has not taken effect.
    ContentionBefore,
    /// Contention, and the statement has taken effect.
    ContentionAfter,
    /// The database refuses the statement for a broken constraint.
    Rejected,
    /// Another fault of the database's, with a long text. To a policy it is `rejected`.
    Other,
}

/// Where a statement waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    /// Before it takes effect.
    Before,
    /// After that, and before the policy has its answer.
    After,
}

/// A statement that a policy has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Its name.
    pub statement: &'static str,
    /// The TTL that the policy has chosen for it, if it has one.
    pub ttl_ms: Option<i64>,
}

/// Statements on some store, with faults on order and a barrier.
pub struct Stage {
    inner: Arc<dyn Statements>,
    script: Mutex<Script>,
}

#[derive(Default)]
struct Script {
    fault: Option<Fault>,
    barrier: Option<Barrier>,
    ran: Vec<Ran>,
}

struct Barrier {
    when: When,
    reached: oneshot::Sender<()>,
    opened: oneshot::Receiver<()>,
}

/// The other side of a barrier at which a statement waits.
#[derive(Debug)]
pub(super) struct Gate {
    /// Resolves when a statement waits there.
    pub(super) reached: oneshot::Receiver<()>,
    /// Lets it go on, when it is sent to or dropped.
    pub(super) open: oneshot::Sender<()>,
}

impl Stage {
    /// On `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Statements>) -> Self {
        Self {
            inner,
            script: Mutex::default(),
        }
    }

    /// Orders what befalls the next statement, in place of what was ordered before.
    pub(super) fn order(&self, fault: Option<Fault>, wait: Option<When>) -> Option<Gate> {
        let mut script = self.script();
        script.fault = fault;
        script.barrier = None;
        let when = wait?;
        let (reached, is_reached) = oneshot::channel();
        let (open, opened) = oneshot::channel();
        script.barrier = Some(Barrier {
            when,
            reached,
            opened,
        });
        Some(Gate {
            reached: is_reached,
            open,
        })
    }

    /// What has run since this was last asked.
    pub(super) fn take_ran(&self) -> Vec<Ran> {
        std::mem::take(&mut self.script().ran)
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run<T>(
        &self,
        ran: Ran,
        statement: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let (fault, mut barrier) = {
            let mut script = self.script();
            script.ran.push(ran);
            (script.fault.take(), script.barrier.take())
        };
        wait(&mut barrier, When::Before).await;
        let lost = || "the connection was lost".to_owned();
        let outcome = match fault {
            None => statement.await,
            Some(Fault::ContentionBefore) => Err(StoreError::Contention(lost())),
            Some(Fault::ContentionAfter) => {
                // Whatever became of it, nobody hears of it.
                let _ = statement.await;
                Err(StoreError::Contention(lost()))
            }
            Some(Fault::Rejected) => Err(StoreError::Rejected(
                "the row violates a check constraint".to_owned(),
            )),
            Some(Fault::Other) => Err(StoreError::Other("No space left on device. ".repeat(100))),
        };
        wait(&mut barrier, When::After).await;
        outcome
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage").finish_non_exhaustive()
    }
}

async fn wait(barrier: &mut Option<Barrier>, when: When) {
    if let Some(here) = barrier.take_if(|barrier| barrier.when == when)
        && here.reached.send(()).is_ok()
    {
        let _ = here.opened.await;
    }
}

#[async_trait]
impl Statements for Stage {
    fn new_id(&self) -> Uuid {
        self.inner.new_id()
    }

    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError> {
        let ran = Ran {
            statement: "open-session",
            ttl_ms: Some(ttl_ms),
        };
        self.run(ran, self.inner.open_session(id, owner, ttl_ms))
            .await
    }

    async fn heartbeat(&self, id: Uuid, ttl_ms: i64) -> Result<Option<SystemTime>, StoreError> {
        let ran = Ran {
            statement: "heartbeat",
            ttl_ms: Some(ttl_ms),
        };
        self.run(ran, self.inner.heartbeat(id, ttl_ms)).await
    }

    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError> {
        let ran = Ran {
            statement: "close-session",
            ttl_ms: None,
        };
        self.run(ran, self.inner.close_session(id)).await
    }

    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError> {
        let ran = Ran {
            statement: "locks-of",
            ttl_ms: None,
        };
        self.run(ran, self.inner.locks_of(id)).await
    }
}
