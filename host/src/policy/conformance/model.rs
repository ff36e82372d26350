//! A store in memory that keeps sessions by the rules of the pinned statements, with a clock
//! of its own. To check policies with; it serves nobody.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use uuid::Uuid;

use super::Surroundings;
use crate::postgres::{Statements, StoreError};

/// The first moment that PostgreSQL has no time stamp for, in milliseconds since 1970.
const END_OF_TIME_MS: i64 = 9_224_318_016_000_000;

/// Where the clock starts, in milliseconds since 1970: the beginning of 2026.
const START_MS: u64 = 1_767_225_600_000;

/// How many keys `locks-of` returns.
const LISTED: usize = 100;

/// Sessions and their locks, as PostgreSQL would have them: one statement after another, each
/// whole. The clock stands still but for [`advance`](Surroundings::advance).
///
/// What it leaves out: connections, waiting for rows, and leases of single locks, which here
/// last as long as their session.
#[derive(Debug)]
pub struct Model {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    ids: fastrand::Rng,
    now: SystemTime,
    sessions: HashMap<Uuid, Row>,
    /// Each key with the session that holds it.
    locks: BTreeMap<String, Uuid>,
}

#[derive(Debug)]
struct Row {
    created_at: SystemTime,
    expires_at: SystemTime,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                ids: fastrand::Rng::with_seed(0),
                now: SystemTime::UNIX_EPOCH + Duration::from_millis(START_MS),
                sessions: HashMap::new(),
                locks: BTreeMap::new(),
            }),
        }
    }
}

impl Model {
    /// Whether a session is alive.
    #[must_use]
    pub fn is_live(&self, id: Uuid) -> bool {
        self.state().is_live(id)
    }

    /// All keys that hang on a session, in order.
    #[must_use]
    pub fn locks(&self, id: Uuid) -> Vec<String> {
        self.state().locks(id)
    }

    /// A heartbeat whose transaction began at `began`, and so judges by that moment's clock.
    ///
    /// One that finds no live row seals the session before it answers `None`: one that has
    /// begun earlier and is still on its way then finds it dead too.
    fn beat(
        &self,
        began: SystemTime,
        id: Uuid,
        ttl_ms: i64,
    ) -> Result<Option<SystemTime>, StoreError> {
        let mut state = self.state();
        let now = state.now;
        let Some(row) = state.sessions.get_mut(&id) else {
            return Ok(None);
        };
        if row.expires_at > began {
            let expires_at = later(began, ttl_ms)?;
            checked(row.created_at, expires_at)?;
            row.expires_at = expires_at;
            return Ok(Some(expires_at));
        }
        if row.expires_at <= now {
            row.expires_at = row.created_at + Duration::from_micros(1);
        }
        Ok(None)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_live(&self, id: Uuid) -> bool {
        let row = self.sessions.get(&id);
        row.is_some_and(|row| row.expires_at > self.now)
    }

    fn locks(&self, id: Uuid) -> Vec<String> {
        let mine = self.locks.iter().filter(|(_, holder)| **holder == id);
        mine.map(|(key, _)| key.clone()).collect()
    }

    /// Deletes a session and, by the cascade, its locks; returns how many these were.
    fn delete(&mut self, id: Uuid) -> Option<usize> {
        self.sessions.remove(&id)?;
        let before = self.locks.len();
        self.locks.retain(|_, holder| *holder != id);
        Some(before - self.locks.len())
    }
}

#[async_trait]
impl Statements for Model {
    /// The same ones in every run, so that a policy does the same work.
    fn new_id(&self) -> Uuid {
        let mut bytes = [0; 16];
        self.state().ids.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError> {
        if owner.contains('\0') {
            return Err(StoreError::Other(
                "invalid byte sequence for encoding \"UTF8\": 0x00".to_owned(),
            ));
        }
        let mut state = self.state();
        let created_at = state.now;
        let expires_at = later(created_at, ttl_ms)?;
        checked(created_at, expires_at)?;
        state.sessions.insert(
            id,
            Row {
                created_at,
                expires_at,
            },
        );
        Ok(expires_at)
    }

    async fn heartbeat(&self, id: Uuid, ttl_ms: i64) -> Result<Option<SystemTime>, StoreError> {
        let now = self.state().now;
        self.beat(now, id, ttl_ms)
    }

    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError> {
        let locks = self.state().delete(id);
        Ok(locks.map(|locks| u32::try_from(locks).unwrap_or(u32::MAX)))
    }

    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError> {
        let mut keys = self.locks(id);
        keys.truncate(LISTED);
        Ok(keys)
    }
}

#[async_trait]
impl Surroundings for Model {
    async fn lock(&self, session: Uuid, key: &str) -> bool {
        let mut state = self.state();
        let holder = state.locks.get(key).copied();
        let free = holder.is_none_or(|holder| holder == session || !state.is_live(holder));
        let granted = free && state.is_live(session);
        if granted {
            state.locks.insert(key.to_owned(), session);
        }
        granted
    }

    async fn advance(&self, by: Duration) {
        self.state().now += by;
    }

    async fn left(&self, session: Uuid) -> Duration {
        let state = self.state();
        let row = state.sessions.get(&session);
        row.and_then(|row| row.expires_at.duration_since(state.now).ok())
            .unwrap_or_default()
    }

    async fn reap(&self) -> usize {
        let mut state = self.state();
        let now = state.now;
        let lapsed = state
            .sessions
            .iter()
            .filter(|(_, row)| row.expires_at <= now);
        let lapsed: Vec<_> = lapsed.map(|(id, _)| *id).collect();
        for id in &lapsed {
            state.delete(*id);
        }
        lapsed.len()
    }
}

/// `ttl_ms` after `from`, where there is such a time.
fn later(from: SystemTime, ttl_ms: i64) -> Result<SystemTime, StoreError> {
    let from_ms = from
        .duration_since(SystemTime::UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok());
    let at = from_ms.and_then(|from| from.checked_add(ttl_ms));
    match at.and_then(|at| u64::try_from(at).ok()) {
        Some(at) if at < END_OF_TIME_MS as u64 => {
            Ok(SystemTime::UNIX_EPOCH + Duration::from_millis(at))
        }
        _ => Err(StoreError::Other("timestamp out of range".to_owned())),
    }
}

/// The constraint `lock_session_ttl_ck`.
fn checked(created_at: SystemTime, expires_at: SystemTime) -> Result<(), StoreError> {
    if expires_at > created_at {
        return Ok(());
    }
    Err(StoreError::Rejected(
        "new row for relation \"lock_session\" violates check constraint \"lock_session_ttl_ck\""
            .to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const TTL: i64 = 60_000;

    fn now<T>(future: impl Future<Output = T>) -> T {
        futures_util::FutureExt::now_or_never(future).expect("the model never waits")
    }

    fn open(model: &Model, ttl_ms: i64) -> Uuid {
        let id = Uuid::new_v4();
        now(model.open_session(id, "tester", ttl_ms)).unwrap();
        id
    }

    #[test]
    fn a_session_lives_until_the_very_moment_of_its_end() {
        let model = Model::default();
        let id = open(&model, TTL);
        now(model.advance(MINUTE - Duration::from_micros(1)));
        assert!(model.is_live(id));
        now(model.advance(Duration::from_micros(1)));
        assert!(!model.is_live(id));
        assert_eq!(now(model.heartbeat(id, TTL)), Ok(None));
    }

    #[test]
    fn a_heartbeat_replaces_what_was_left() {
        let model = Model::default();
        let id = open(&model, TTL);
        assert!(now(model.heartbeat(id, 1)).unwrap().is_some());
        assert_eq!(now(model.left(id)), Duration::from_millis(1));
    }

    #[test]
    fn a_heartbeat_that_began_in_time_extends_unless_the_session_was_sealed() {
        for sealed in [false, true] {
            let model = Model::default();
            let id = open(&model, TTL);
            now(model.advance(Duration::from_millis(1)));
            let began = model.state().now;
            now(model.advance(MINUTE));
            if sealed {
                assert_eq!(now(model.heartbeat(id, TTL)), Ok(None));
            }
            let late = model.beat(began, id, 2 * TTL).unwrap();
            assert_eq!(late.is_none(), sealed);
            assert_eq!(model.is_live(id), !sealed);
        }
    }

    #[test]
    fn a_close_counts_what_goes_with_the_session_and_nothing_else() {
        let model = Model::default();
        let (mine, other) = (open(&model, TTL), open(&model, TTL));
        for (session, key, granted) in [
            (mine, "b", true),
            (mine, "a", true),
            (other, "c", true),
            (other, "a", false),
        ] {
            assert_eq!(now(model.lock(session, key)), granted);
        }
        assert_eq!(now(model.locks_of(mine)).unwrap(), ["a", "b"]);
        assert_eq!(now(model.close_session(mine)), Ok(Some(2)));
        assert_eq!(now(model.close_session(mine)), Ok(None));
        assert_eq!(model.locks(other), ["c"]);
        assert!(now(model.lock(other, "a")));
        assert!(!now(model.lock(mine, "d")));
    }

    #[test]
    fn a_list_of_locks_ends_at_a_hundred() {
        let model = Model::default();
        let id = open(&model, TTL);
        for n in 0..101 {
            now(model.lock(id, &format!("{n:03}")));
        }
        let keys = now(model.locks_of(id)).unwrap();
        assert_eq!(keys.len(), 100);
        assert_eq!(keys.last().unwrap(), "099");
        assert_eq!(now(model.close_session(id)), Ok(Some(101)));
    }

    #[test]
    fn the_reaper_takes_the_dead_and_leaves_the_living() {
        let model = Model::default();
        let (short, long) = (open(&model, TTL), open(&model, 2 * TTL));
        now(model.lock(short, "a"));
        assert_eq!(now(model.reap()), 0);
        now(model.advance(MINUTE));
        assert_eq!(now(model.reap()), 1);
        assert_eq!(now(model.close_session(short)), Ok(None));
        assert!(model.is_live(long));
    }

    #[test]
    fn what_the_database_refuses_is_refused() {
        let model = Model::default();
        let id = Uuid::new_v4();
        let zero = now(model.open_session(id, "tester", 0));
        assert!(matches!(zero, Err(StoreError::Rejected(_))), "{zero:?}");
        let nul = now(model.open_session(id, "a\0b", TTL));
        assert!(matches!(nul, Err(StoreError::Other(_))), "{nul:?}");
        for ttl in [i64::MAX, END_OF_TIME_MS] {
            let endless = now(model.open_session(id, "tester", ttl));
            assert!(matches!(endless, Err(StoreError::Other(_))), "{endless:?}");
        }
        assert_eq!(now(model.reap()), 0);
        assert!(!model.is_live(id));
    }
}
