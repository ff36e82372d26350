//! Many clients, each with a session of its own, that want the same few keys.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tenure::{FencingToken, SessionId};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::client::{Caller, Http};
use crate::faults::Site;
use crate::support::host::{Host, LONG};
use crate::witness::{Recorder, Witness};

const CLIENTS: usize = 24;
const KEYS: usize = 6;

/// After this long a client gives up, and knows nothing.
const PATIENCE: Duration = Duration::from_secs(2);

pub struct Workload {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

/// What the clients know of each other.
#[derive(Default)]
struct Shared {
    tokens: Vec<(String, FencingToken)>,
    retired: Vec<SessionId>,
}

impl Workload {
    /// On every host of a site.
    pub fn start(site: &Site, recorder: &Arc<Recorder>, rng: &mut Rng) -> Self {
        let mut callers = vec![Caller::Embedded(Witness::of_failing(
            Arc::clone(&site.embedded),
            Arc::clone(recorder),
        ))];
        let urls = site.urls.iter();
        callers.extend(urls.map(|url| Caller::Http(Http::new(url, recorder, PATIENCE))));
        Self::with(callers, rng)
    }

    /// On a process, by clients who wait for an answer as long as there is.
    pub fn over_http(url: &Arc<Mutex<String>>, recorder: &Arc<Recorder>, rng: &mut Rng) -> Self {
        Self::with(vec![Caller::Http(Http::new(url, recorder, LONG))], rng)
    }

    /// On embedded hosts.
    pub fn on(hosts: &[Arc<Host>], recorder: &Arc<Recorder>, rng: &mut Rng) -> Self {
        let witness = |host| Witness::of_failing(Arc::clone(host), Arc::clone(recorder));
        let callers = hosts.iter().map(witness).map(Caller::Embedded);
        Self::with(callers.collect(), rng)
    }

    /// As many clients for each, on keys of their own.
    fn with(callers: Vec<Caller>, rng: &mut Rng) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Mutex::new(Shared::default()));
        let prefix = rng.u32(..);
        let keys: Arc<[String]> = (0..KEYS).map(|nth| format!("{prefix:08x}-{nth}")).collect();
        let clients = (0..CLIENTS)
            .map(|nth| {
                tokio::spawn(live(
                    callers[nth % callers.len()].clone(),
                    Arc::clone(&keys),
                    Arc::clone(&shared),
                    Arc::clone(&stop),
                    rng.fork(),
                ))
            })
            .collect();
        Self { stop, clients }
    }

    pub async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// Most leases end within the round; the others have to outlast whatever happens in it.
fn ttl(rng: &mut Rng) -> Duration {
    match rng.u32(..3) {
        0 => Duration::from_secs(60),
        _ => Duration::from_millis(rng.u64(1000..2000)),
    }
}

async fn live(
    caller: Caller,
    keys: Arc<[String]>,
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
    mut rng: Rng,
) {
    let mut session: Option<SessionId> = None;
    while !stop.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(rng.u64(..20))).await;
        let Some(own) = &session else {
            session = caller.open(ttl(&mut rng)).await;
            continue;
        };
        let key = &keys[rng.usize(..keys.len())];
        let (token, retired) = {
            let shared = shared.lock().unwrap();
            let recent = &shared.tokens[shared.tokens.len().saturating_sub(12)..];
            let token = rng.choice(recent).cloned();
            (token, rng.choice(&shared.retired).cloned())
        };
        let mut over = false;
        match (rng.u32(..100), token, retired) {
            (0..35, ..) => match caller.acquire(key, own, ttl(&mut rng)).await {
                Ok(Some(token)) => {
                    let mut shared = shared.lock().unwrap();
                    shared.tokens.push((key.clone(), token));
                }
                Ok(None) => {}
                Err(()) => over = true,
            },
            (35..60, ..) => over = caller.heartbeat(own, ttl(&mut rng)).await == Some(false),
            (60..70, Some((key, token)), _) => caller.renew(&key, token, ttl(&mut rng)).await,
            (70..82, Some((key, token)), _) => caller.release(&key, token).await,
            (82..84, Some((key, token)), _) => caller.revoke(&key, Some(token)).await,
            (84..86, ..) => caller.revoke(key, None).await,
            (86..92, ..) => {
                caller.close(own).await;
                over = true;
            }
            (92..96, _, Some(retired)) => {
                let _ = caller.heartbeat(&retired, ttl(&mut rng)).await;
            }
            (96.., _, Some(retired)) => {
                let _ = caller.acquire(key, &retired, ttl(&mut rng)).await;
            }
            _ => {}
        }
        if over {
            shared.lock().unwrap().retired.extend(session.take());
        }
    }
    // What was promised stands, now that all is well.
    if let Some(session) = session {
        let _ = caller.heartbeat(&session, Duration::from_secs(1)).await;
    }
}
