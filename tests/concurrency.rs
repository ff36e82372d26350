//! Many tasks on two hosts that race on a few keys, and what they were told held against the
//! rules.

pub mod checker;
#[allow(
    dead_code,
    reason = "what the test programs share is used by each in part"
)]
pub mod witness;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tenure::{FencingToken, SessionId};

use crate::support::database::TestDatabase;
use crate::support::given::seed;
use crate::support::host::Host;
use checker::{Call, History, check};
use witness::{Recorder, Witness, history, watch_deletions};

const TASKS: usize = 64;
const ROUNDS: usize = 50;
const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Sessions at a time, each shared by whichever tasks come along.
const SLOTS: usize = 12;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_tasks_on_two_hosts_are_told_nothing_that_breaks_a_rule() {
    let seed = seed();
    let database = TestDatabase::create().await;
    watch_deletions(&database.connect().await).await;
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

    let history = history(&database.connect().await, &recorder).await;
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
