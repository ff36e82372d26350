//! Many tasks on two hosts that race on a few keys, and what they were told held against the
//! rules.

pub mod checker;

use std::env;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tenure::{Acquired, Error, FencingToken, Heartbeat, Renewed, Revoked, SessionId};

use crate::support::database::TestDatabase;
use crate::support::host::{Host, key};
use checker::{Call, Event, History, check};

const TASKS: usize = 64;
const ROUNDS: usize = 50;
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Sessions at a time, each shared by whichever tasks come along.
const SLOTS: usize = 12;

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

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

/// The calls of one host, written down.
#[derive(Clone)]
pub struct Witness {
    host: Arc<Host>,
    recorder: Arc<Recorder>,
}

/// `None` for an outcome that is unknown. No other error is to be expected.
fn outcome<T: Clone, U>(answer: &Result<T, Error>, known: impl FnOnce(T) -> U) -> Option<U> {
    match answer {
        Ok(value) => Some(known(value.clone())),
        Err(error) if error.is_retry_safe() => None,
        Err(other) => panic!("{other}"),
    }
}

impl Witness {
    pub fn new(host: Arc<Host>, recorder: Arc<Recorder>) -> Self {
        Self { host, recorder }
    }

    pub async fn open(&self, ttl: Duration) -> Option<SessionId> {
        let call = self.host.registry.open_session("racer", ttl);
        let describe = |answer: &Result<tenure::Session, Error>| {
            outcome(answer, |opened| Call::Open {
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
        let alive = |answer: &_| outcome(answer, |beat: Heartbeat| beat.is_alive());
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
                closed: outcome(answer, |closed: tenure::Closed| checker::Closed {
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
                answer => outcome(answer, |acquired| match acquired {
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
                renewed: outcome(answer, |renewed| matches!(renewed, Renewed::Until(_))),
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
                released: outcome(answer, |released| released),
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
                answer: outcome(answer, |revoked| match revoked {
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

#[derive(Clone, Default)]
enum Slot {
    #[default]
    Empty,
    /// By some task.
    BeingFilled,
    Filled(SessionId),
}

impl Slot {
    fn holds(&self, session: &SessionId) -> bool {
        matches!(self, Self::Filled(held) if held == session)
    }
}

/// What the tasks share: the sessions in use, the ones that are over, the last tokens.
#[derive(Default)]
struct Shared {
    sessions: [Slot; SLOTS],
    retired: Vec<SessionId>,
    tokens: Vec<(&'static str, FencingToken)>,
}

/// Long enough for the whole test, or, one time in so many, over in a moment.
fn ttl(rng: &mut Rng, one_in: u32) -> Duration {
    match rng.u32(..one_in) {
        0 => Duration::from_millis(rng.u64(1..100)),
        _ => Duration::from_secs(60),
    }
}

async fn race(witness: Witness, shared: Arc<Mutex<Shared>>, mut rng: Rng) {
    let mut rounds = 0;
    while rounds < ROUNDS {
        let (slot, found) = {
            let sessions = &mut shared.lock().unwrap().sessions;
            let mut slot = rng.usize(..SLOTS);
            if let Slot::BeingFilled = sessions[slot] {
                slot = rng.usize(..SLOTS);
            }
            let found = sessions[slot].clone();
            if let Slot::Empty = found {
                sessions[slot] = Slot::BeingFilled;
            }
            (slot, found)
        };
        let session = match found {
            Slot::Filled(session) => session,
            Slot::BeingFilled => {
                tokio::time::sleep(Duration::from_millis(1)).await;
                continue;
            }
            Slot::Empty => {
                rounds += 1;
                let opened = witness.open(ttl(&mut rng, 4)).await;
                shared.lock().unwrap().sessions[slot] = opened.map_or(Slot::Empty, Slot::Filled);
                continue;
            }
        };
        rounds += 1;
        let retire = || {
            let mut shared = shared.lock().unwrap();
            if shared.sessions[slot].holds(&session) {
                shared.sessions[slot] = Slot::Empty;
                shared.retired.push(session.clone());
            }
        };
        let name = KEYS[rng.usize(..KEYS.len())];
        // One of the last tokens, most of them of others.
        let token = {
            let tokens = &shared.lock().unwrap().tokens;
            let recent = &tokens[tokens.len().saturating_sub(8)..];
            rng.choice(recent).copied()
        };
        match (rng.u32(..100), token) {
            (0..35, _) => match witness.acquire(name, &session, ttl(&mut rng, 2)).await {
                Ok(Some(token)) => shared.lock().unwrap().tokens.push((name, token)),
                Ok(None) => {}
                Err(()) => retire(),
            },
            (35..55, _) => {
                if witness.heartbeat(&session, ttl(&mut rng, 10)).await == Some(false) {
                    retire();
                }
            }
            (55..67, Some((name, token))) => witness.renew(name, token, ttl(&mut rng, 4)).await,
            (67..79, Some((name, token))) => witness.release(name, token).await,
            (79..82, Some((name, token))) => witness.revoke(name, Some(token)).await,
            (82..86, _) => witness.revoke(name, None).await,
            (86..92, _) => {
                witness.close(&session).await;
                retire();
            }
            _ => {
                let retired = rng.choice(&shared.lock().unwrap().retired).cloned();
                if let Some(retired) = retired {
                    match rng.bool() {
                        true => drop(witness.heartbeat(&retired, ttl(&mut rng, 2)).await),
                        false => drop(witness.acquire(name, &retired, ttl(&mut rng, 2)).await),
                    }
                }
            }
        }
        // So that leases end between calls, and not only during them.
        tokio::time::sleep(Duration::from_micros(rng.u64(..2000))).await;
    }
}

/// Lets the database write down which locks it deletes together with a session.
pub async fn watch_deletions(database: &TestDatabase) {
    database
        .execute(
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
        .await;
}

/// What it has written down.
pub async fn history(database: &TestDatabase, recorder: &Recorder) -> History {
    let rows = database
        .connect()
        .await
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_tasks_on_two_hosts_are_told_nothing_that_breaks_a_rule() {
    let seed = match env::var("TENURE_TEST_SEED") {
        Ok(seed) => seed.parse().expect("TENURE_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("TENURE_TEST_SEED={seed}");
    let database = TestDatabase::create().await;
    watch_deletions(&database).await;
    let recorder = Arc::new(Recorder::new());
    let hosts = [(); 2].map(|()| Arc::new(Host::new(&database)));
    let reapers = hosts.each_ref().map(|host| {
        let locks = host.locks.clone();
        tokio::spawn(locks.reap_every(Duration::from_millis(20)))
    });

    let shared = Arc::new(Mutex::new(Shared::default()));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let host = Arc::clone(&hosts[task % hosts.len()]);
            let witness = Witness::new(host, Arc::clone(&recorder));
            let rng = Rng::with_seed(seed.wrapping_add(task as u64));
            tokio::spawn(race(witness, Arc::clone(&shared), rng))
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    for reaper in reapers {
        reaper.abort();
    }

    let history = history(&database, &recorder).await;
    let violations = check(&history);
    assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    assert_that_much_happened(&history);
}

/// A history in which nothing happens breaks no rule.
fn assert_that_much_happened(history: &History) {
    let count = |is: fn(&Call) -> bool| {
        let events = history.events.iter();
        events.filter(|event| is(&event.call)).count()
    };
    use checker::{Acquired as A, Revoked as R};
    let happened = [
        count(|call| matches!(call, Call::Open { .. })),
        count(|call| {
            matches!(
                call,
                Call::Heartbeat {
                    alive: Some(true),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Heartbeat {
                    alive: Some(false),
                    ..
                }
            )
        }),
        count(|call| matches!(call, Call::Close { closed: Some(c), .. } if c.locks > 0)),
        count(|call| {
            matches!(
                call,
                Call::Acquire {
                    answer: Some(A::Granted { .. }),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Acquire {
                    answer: Some(A::Held),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Acquire {
                    answer: Some(A::NoSession),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Renew {
                    renewed: Some(true),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Renew {
                    renewed: Some(false),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Release {
                    released: Some(true),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Release {
                    released: Some(false),
                    ..
                }
            )
        }),
        count(|call| {
            matches!(
                call,
                Call::Revoke {
                    answer: Some(R::Done { .. }),
                    ..
                }
            )
        }),
    ];
    println!("{} calls: {happened:?}", history.events.len());
    assert!(happened.iter().all(|count| *count > 0), "{happened:?}");
}
