//! Hosts on a test's database.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure::policy::LIFECYCLE;
use tenure::{
    Acquired, Database, DatabaseOptions, Grant, Limits, LockKey, LockStore, PinnedStatements,
    Policy, PolicyEngine, SessionId, SessionRegistry,
};

use super::database::TestDatabase;

/// Long enough for every test that does not wait for it.
pub const LONG: Duration = Duration::from_secs(60);

/// A host, as a program that embeds the library has one.
pub struct Host {
    pub pool: Database,
    pub registry: SessionRegistry,
    pub locks: LockStore,
}

impl Host {
    /// With the default policy.
    pub fn new(database: &TestDatabase) -> Self {
        Self::on(database.pool(), lifecycle())
    }

    /// With the default policy, and a patience that outlasts every wait of a test.
    pub fn patient(database: &TestDatabase) -> Self {
        let policy = Policy::load(patient_engine(), LIFECYCLE).unwrap();
        Self::on(patient_pool(database), policy)
    }

    pub fn with_policy(database: &TestDatabase, policy: &[u8]) -> Self {
        Self::on(database.pool(), Policy::load(engine(), policy).unwrap())
    }

    pub fn on(pool: Database, policy: Policy) -> Self {
        Self {
            registry: SessionRegistry::new(policy, Arc::new(PinnedStatements::new(pool.clone()))),
            locks: LockStore::new(pool.clone()),
            pool,
        }
    }

    pub async fn open(&self, ttl: Duration) -> SessionId {
        self.registry.open_session("tester", ttl).await.unwrap().id
    }

    /// Takes a lock that has to be free.
    pub async fn lock(&self, name: &str, session: &SessionId) -> Grant {
        match self.locks.try_insert(&key(name), session, LONG).await {
            Ok(Acquired::Granted(grant)) => grant,
            other => panic!("{name} was not granted: {other:?}"),
        }
    }
}

/// One engine for the whole run, as for a process.
pub fn engine() -> &'static PolicyEngine {
    static ENGINE: OnceLock<PolicyEngine> = OnceLock::new();
    ENGINE.get_or_init(|| PolicyEngine::new(Limits::default()).unwrap())
}

/// The default policy, compiled once.
pub fn lifecycle() -> Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY
        .get_or_init(|| Policy::load(engine(), LIFECYCLE).unwrap())
        .clone()
}

/// An engine that gives a call as much time as there is.
pub fn patient_engine() -> &'static PolicyEngine {
    static ENGINE: OnceLock<PolicyEngine> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let mut limits = Limits::default();
        limits.deadline = LONG;
        PolicyEngine::new(limits).unwrap()
    })
}

/// A pool whose statements wait as long as there is.
pub fn patient_pool(database: &TestDatabase) -> Database {
    let mut options = DatabaseOptions::default();
    options.queue_timeout = LONG;
    options.lock_timeout = LONG;
    options.statement_timeout = LONG;
    database.pool_with(&options)
}

pub fn key(name: &str) -> LockKey {
    name.parse().unwrap()
}
