//! What is no heartbeat: opens and closes, which go through the policy, and the locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use tenure::{
    Acquired, FencingToken, Grant, LockKey, LockStore, Renewed, SessionId, SessionRegistry,
};
use uuid::Uuid;

use crate::load::Client;
use crate::paths::TTL;

pub struct Opens {
    pub registry: SessionRegistry,
}

impl Client for Opens {
    async fn beat(&mut self) -> Result<()> {
        let _ = self.registry.open_session("bench", TTL).await?;
        Ok(())
    }
}

/// Of sessions with one lock.
#[derive(Clone)]
pub struct Closes {
    pub registry: SessionRegistry,
    pub sessions: Arc<[Uuid]>,
    /// The next to be closed, of all clients.
    pub next: Arc<AtomicUsize>,
}

impl Client for Closes {
    async fn beat(&mut self) -> Result<()> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        let session = self
            .sessions
            .get(at)
            .context("no session is left to close")?;
        let closed = self.registry.close_session(&session.to_string()).await?;
        ensure!(closed.locks_released == 1, "{session}: {closed:?}");
        Ok(())
    }
}

/// Takes a lock that nobody has.
async fn take(locks: &LockStore, session: &SessionId) -> Result<Grant> {
    let key: LockKey = format!("bench-{:x}", fastrand::u128(..)).parse()?;
    match locks.try_insert(&key, session, TTL).await? {
        Acquired::Granted(grant) => Ok(grant),
        Acquired::Held(holder) => bail!("{key} is held by {holder:?}"),
    }
}

/// Of a key that is free, and then free again.
pub struct Acquires {
    locks: LockStore,
    session: SessionId,
    last: Option<FencingToken>,
}

impl Acquires {
    pub fn new(locks: LockStore, session: Uuid) -> Self {
        Self {
            locks,
            session: session.into(),
            last: None,
        }
    }
}

impl Client for Acquires {
    async fn beat(&mut self) -> Result<()> {
        let grant = take(&self.locks, &self.session).await?;
        let last = self.last.replace(grant.token);
        ensure!(last < Some(grant.token), "{last:?}, and then {grant:?}");
        let released = self.locks.delete_if_owner(&grant.key, grant.token).await?;
        ensure!(released, "{grant:?} was lost");
        Ok(())
    }
}

/// Of the one lock of each client.
pub struct Renews {
    locks: LockStore,
    grant: Grant,
}

impl Renews {
    pub async fn new(locks: LockStore, session: Uuid) -> Result<Self> {
        let grant = take(&locks, &session.into()).await?;
        Ok(Self { locks, grant })
    }
}

impl Client for Renews {
    async fn beat(&mut self) -> Result<()> {
        let Grant { key, token, .. } = &self.grant;
        match self.locks.extend(key, *token, TTL).await? {
            Renewed::Until(_) => Ok(()),
            Renewed::Lost => bail!("{:?} was lost", self.grant),
        }
    }
}
