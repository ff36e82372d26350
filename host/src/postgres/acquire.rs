//! Taking a lock.
//!
//! Each attempt owns its key: see `owned_key.rs`.
//!
//! Every lock that is waited for is waited for in one order (key, session, entry), and no
//! longer than the lock time-out.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;
use tokio_postgres::{Error as PgError, Row};
use uuid::Uuid;

use super::database::Connection;
use super::locks::{LockStore, get, grant, ttl_ms};
use super::owned_key::query_owning;
use super::sessions::{Sealed, seal};
use super::{StoreError, sql};
use crate::Error;
use crate::lock::{Acquired, Holder, LockKey};
use crate::session::SessionId;

/// How often one attempt looks again when what was in its way has just gone. Each such
/// round has seen another call make progress, so few are needed.
const ROUNDS: usize = 4;

/// The pauses of a waiting caller: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl LockStore {
    /// Takes a lock for a session, or says who is in the way: one attempt, without waiting
    /// for the holder.
    ///
    /// A key is granted when it is free, when its lease or its holder's session is over,
    /// and when the session holds it already; each time under a new, greater token. A
    /// holder whose session is over is removed on the spot, not at the reaper's next round.
    ///
    /// [`Error::SessionUnknown`] or [`Error::SessionExpired`] when the session is not alive,
    /// which is final; [`Error::InvalidArgument`] for a `ttl` outside 1 ms to 24 hours.
    pub async fn try_insert(
        &self,
        key: &LockKey,
        session: &SessionId,
        ttl: Duration,
    ) -> Result<Acquired, Error> {
        let ttl_ms = ttl_ms(ttl)?;
        let mut spared = false;
        for _ in 0..ROUNDS {
            let connection = self.database.connection().await?;
            let outcome = connection
                .bounded(attempt(&connection, key, session.uuid(), ttl_ms))
                .await;
            let look = match connection.finish(outcome)? {
                Attempt::Granted(row) => {
                    let grant = grant(key, &row)?;
                    tracing::info!(
                        key = %key,
                        session = %session,
                        owner = grant.owner,
                        token = grant.token.get(),
                        "lock_granted"
                    );
                    return Ok(Acquired::Granted(grant));
                }
                Attempt::Looked(row) => Look::read(&row)?,
            };
            match look {
                Look::NoSession => return Err(Error::SessionUnknown(session.clone())),
                Look::SessionLapsed => match self.seal(session).await? {
                    Sealed::Expired => return Err(Error::SessionExpired(session.clone())),
                    Sealed::Gone => return Err(Error::SessionUnknown(session.clone())),
                    Sealed::Revived => {}
                },
                Look::DeadHolder { session, holder } => {
                    // Not reaped: either somebody else did it first, or a heartbeat that
                    // came in time holds the row. If the holder is still there in the next
                    // round it is the latter, and the holder is not dead, or not yet.
                    if self.reap_sessions(&[session]).await? == 0
                        && std::mem::replace(&mut spared, true)
                    {
                        return Ok(Acquired::Held(holder));
                    }
                }
                Look::Held(holder) => return Ok(Acquired::Held(holder)),
                Look::Takeable => {}
            }
        }
        Err(Error::Contention(format!(
            "lock {key} changed hands repeatedly at the same moment"
        )))
    }

    /// As [`try_insert`](Self::try_insert), but while the key is held, tries again for up to
    /// `wait`, with growing and jittered pauses, and one last time at the end of it. There is
    /// no queue: of several waiters any may be next. With a `wait` of zero it tries once.
    ///
    /// Waiting does not keep the session alive; its heartbeats do.
    pub async fn acquire(
        &self,
        key: &LockKey,
        session: &SessionId,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Acquired, Error> {
        let over = async {
            // A sleep of no time takes some.
            if !wait.is_zero() {
                sleep(wait).await;
            }
        };
        self.acquire_until(key, session, ttl, over).await
    }

    /// As [`acquire`](Self::acquire), but waits until `give_up` resolves, and then tries one
    /// last time. If it has resolved at the start, there is one attempt.
    pub async fn acquire_until(
        &self,
        key: &LockKey,
        session: &SessionId,
        ttl: Duration,
        give_up: impl Future<Output = ()>,
    ) -> Result<Acquired, Error> {
        let mut give_up = pin!(give_up);
        let mut pause = FIRST_PAUSE;
        let mut last = give_up.as_mut().now_or_never().is_some();
        loop {
            let answer = self.try_insert(key, session, ttl).await;
            let again = match &answer {
                Ok(Acquired::Held(_)) => true,
                Ok(Acquired::Granted(_)) => false,
                Err(error) => error.is_retry_safe(),
            };
            if !again || last {
                return answer;
            }
            // Half of it is jitter, so that waiters who were woken together part.
            tokio::select! {
                () = sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
                () = &mut give_up => last = true,
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn seal(&self, session: &SessionId) -> Result<Sealed, StoreError> {
        let connection = self.database.connection().await?;
        let outcome = connection.bounded(seal(&connection, session.uuid())).await;
        connection.finish(outcome)
    }
}

enum Attempt {
    Granted(Row),
    Looked(Row),
}

/// If it grants nothing, a look at what was in the way.
async fn attempt(
    connection: &Connection,
    key: &LockKey,
    session: Uuid,
    ttl_ms: i64,
) -> Result<Attempt, PgError> {
    let key: &str = key;
    let grant = connection.prepare_cached(sql::ACQUIRE_GRANT).await?;
    if let Some(row) = query_owning(connection, key, &grant, &[&key, &session, &ttl_ms]).await? {
        return Ok(Attempt::Granted(row));
    }
    let look = connection.prepare_cached(sql::ACQUIRE_LOOK).await?;
    let row = connection.query_one(&look, &[&key, &session]).await?;
    Ok(Attempt::Looked(row))
}

/// What was in the way, as a snapshot shows it. It decides only what to do next.
enum Look {
    NoSession,
    SessionLapsed,
    DeadHolder {
        session: Uuid,
        holder: Holder,
    },
    Held(Holder),
    /// Nothing any more.
    Takeable,
}

impl Look {
    fn read(row: &Row) -> Result<Self, StoreError> {
        match get::<Option<bool>>(row, "session_live")? {
            None => return Ok(Self::NoSession),
            Some(false) => return Ok(Self::SessionLapsed),
            Some(true) => {}
        }
        let Some(owner) = get::<Option<String>>(row, "owner_id")? else {
            return Ok(Self::Takeable);
        };
        if get::<bool>(row, "own")? || !get::<bool>(row, "lease_live")? {
            return Ok(Self::Takeable);
        }
        let holder = Holder {
            owner,
            acquired_at: get(row, "acquired_at")?,
            expires_at: get(row, "expires_at")?,
        };
        if get::<bool>(row, "holder_live")? {
            Ok(Self::Held(holder))
        } else {
            Ok(Self::DeadHolder {
                session: get(row, "session_id")?,
                holder,
            })
        }
    }
}
