//! Calls written down, with what was answered, and what the database says to it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::{Acquired, Error, FencingToken, Heartbeat, Renewed, Revoked, SessionId};
use tokio_postgres::Client;

use super::checker::{self, At, Call, Event, History};
use crate::support::host::{Host, key};

/// Writes down what is asked and answered, by one clock.
pub struct Recorder {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
            events: Mutex::default(),
        }
    }

    /// Makes a call, and keeps what `describe` makes of its answer, if that is anything.
    pub async fn record<T>(
        &self,
        call: impl Future<Output = T>,
        describe: impl FnOnce(&T) -> Option<Call>,
    ) -> T {
        let from = self.start.elapsed();
        let answer = call.await;
        let to = self.start.elapsed();
        if let Some(call) = describe(&answer) {
            self.events.lock().unwrap().push(Event { from, to, call });
        }
        answer
    }

    /// A moment, by the clock of the history.
    pub fn at(&self, moment: Instant) -> At {
        moment - self.start
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

/// The calls of one host, written down.
#[derive(Clone)]
pub struct Witness {
    host: Arc<Host>,
    recorder: Arc<Recorder>,
    /// Whether the database may fail in ways that a retry does not mend.
    database_fails: bool,
}

impl Witness {
    pub fn new(host: Arc<Host>, recorder: Arc<Recorder>) -> Self {
        Self {
            host,
            recorder,
            database_fails: false,
        }
    }

    /// Of a host whose database is made to fail.
    pub fn of_failing(host: Arc<Host>, recorder: Arc<Recorder>) -> Self {
        Self {
            database_fails: true,
            ..Self::new(host, recorder)
        }
    }

    /// `None` for an outcome that is unknown. No other error is to be expected.
    fn outcome<T: Clone, U>(
        &self,
        answer: &Result<T, Error>,
        known: impl FnOnce(T) -> U,
    ) -> Option<U> {
        match answer {
            Ok(value) => Some(known(value.clone())),
            Err(error) if error.is_retry_safe() => None,
            Err(Error::Store(_)) if self.database_fails => None,
            Err(other) => panic!("{other}"),
        }
    }

    pub async fn open(&self, ttl: Duration) -> Option<SessionId> {
        let call = self.host.registry.open_session("racer", ttl);
        let describe = |answer: &Result<tenure::Session, Error>| {
            self.outcome(answer, |opened| Call::Open {
                session: opened.id,
                ttl,
            })
        };
        let opened = self.recorder.record(call, describe).await;
        opened.ok().map(|opened| opened.id)
    }

    /// `None` where the outcome is unknown.
    pub async fn heartbeat(&self, session: &SessionId, ttl: Duration) -> Option<bool> {
        let call = self.host.registry.heartbeat(session, ttl);
        let alive = |answer: &_| self.outcome(answer, |beat: Heartbeat| beat.is_alive());
        let describe = |answer: &_| {
            Some(Call::Heartbeat {
                session: session.clone(),
                ttl,
                alive: alive(answer),
            })
        };
        alive(&self.recorder.record(call, describe).await)
    }

    pub async fn close(&self, session: &SessionId) {
        let call = self.host.registry.close_session(session);
        let describe = |answer: &_| {
            Some(Call::Close {
                session: session.clone(),
                closed: self.outcome(answer, |closed: tenure::Closed| checker::Closed {
                    existed: closed.existed,
                    locks: closed.locks_released,
                }),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }

    /// The token, or where the session is over an error.
    pub async fn acquire(
        &self,
        name: &str,
        session: &SessionId,
        ttl: Duration,
    ) -> Result<Option<FencingToken>, ()> {
        let key = key(name);
        let call = self.host.locks.try_insert(&key, session, ttl);
        let describe = |answer: &_| {
            let answer = match answer {
                Err(Error::SessionUnknown(_) | Error::SessionExpired(_)) => {
                    Some(checker::Acquired::NoSession)
                }
                answer => self.outcome(answer, |acquired| match acquired {
                    Acquired::Granted(grant) => checker::Acquired::Granted {
                        token: grant.token.get(),
                        at: Some(grant.acquired_at),
                    },
                    Acquired::Held(_) => checker::Acquired::Held,
                }),
            };
            Some(Call::Acquire {
                key: name.to_owned(),
                session: session.clone(),
                ttl,
                answer,
            })
        };
        match self.recorder.record(call, describe).await {
            Ok(Acquired::Granted(grant)) => Ok(Some(grant.token)),
            Err(Error::SessionUnknown(_) | Error::SessionExpired(_)) => Err(()),
            _ => Ok(None),
        }
    }

    pub async fn renew(&self, name: &str, token: FencingToken, ttl: Duration) {
        let key = key(name);
        let call = self.host.locks.extend(&key, token, ttl);
        let describe = |answer: &_| {
            Some(Call::Renew {
                key: name.to_owned(),
                token: token.get(),
                ttl,
                renewed: self.outcome(answer, |renewed| matches!(renewed, Renewed::Until(_))),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }

    pub async fn release(&self, name: &str, token: FencingToken) {
        let key = key(name);
        let call = self.host.locks.delete_if_owner(&key, token);
        let describe = |answer: &_| {
            Some(Call::Release {
                key: name.to_owned(),
                token: token.get(),
                released: self.outcome(answer, |released| released),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }

    pub async fn revoke(&self, name: &str, expected: Option<FencingToken>) {
        let key = key(name);
        let locks = &self.host.locks;
        let call = locks.revoke(&key, "ops", "for a test", expected);
        let describe = |answer: &_| {
            Some(Call::Revoke {
                key: name.to_owned(),
                expected: expected.map(FencingToken::get),
                answer: self.outcome(answer, |revoked| match revoked {
                    Revoked::Done(revocation) => checker::Revoked::Done {
                        token: revocation.token.get(),
                        floor: revocation.token_floor.get(),
                    },
                    Revoked::NotHeld | Revoked::OtherToken(_) => checker::Revoked::No,
                }),
            })
        };
        let _ = self.recorder.record(call, describe).await;
    }
}

/// Lets the database write down which locks it deletes together with a session.
pub async fn watch_deletions(database: &Client) {
    database
        .batch_execute(
            "CREATE TABLE deleted (what text, session_id uuid, transaction bigint);
             CREATE FUNCTION note_deletion() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO deleted VALUES (TG_TABLE_NAME, OLD.session_id, txid_current());
                 RETURN NULL;
             END $$;
             CREATE TRIGGER note_deletion AFTER DELETE ON lock_session
                FOR EACH ROW EXECUTE FUNCTION note_deletion();
             CREATE TRIGGER note_deletion AFTER DELETE ON lock_entry
                FOR EACH ROW EXECUTE FUNCTION note_deletion()",
        )
        .await
        .unwrap();
}

/// What it has written down.
pub async fn history(database: &Client, recorder: &Recorder) -> History {
    let rows = database
        .query(
            "SELECT session_id, count(*) FILTER (WHERE what = 'lock_entry')
               FROM deleted GROUP BY session_id, transaction
             HAVING bool_or(what = 'lock_session')",
            &[],
        )
        .await
        .unwrap();
    let deleted_with = rows.iter().map(|row| {
        let session: uuid::Uuid = row.get(0);
        let locks: i64 = row.get(1);
        (session.into(), u32::try_from(locks).unwrap())
    });
    History {
        events: recorder.events(),
        deleted_with: deleted_with.collect(),
    }
}
