//! How long an instance of a policy lives: for one call, or for several where the host is told
//! so.

use std::sync::Arc;

use tenure::policy::{LIFECYCLE, PolicySlot};
use tenure::{Error, Limits, Policy, PolicyEngine, PolicyFault, SessionRegistry};
use tenure::{PinnedStatements, SessionId};

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, patient_pool};
use crate::support::policies::{REMEMBERS, STRICTER};

fn engine(calls_per_instance: u32, calls_in_flight: u32) -> PolicyEngine {
    let mut limits = Limits::default();
    limits.calls_per_instance = calls_per_instance;
    limits.calls_in_flight = calls_in_flight;
    PolicyEngine::new(limits).unwrap()
}

fn host(database: &TestDatabase, policy: &[u8], engine: &PolicyEngine) -> Host {
    Host::on(
        patient_pool(database),
        Policy::load(engine, policy).unwrap(),
    )
}

/// What the policy remembers: how many calls its instance has had, this one included.
async fn asked(registry: &SessionRegistry) -> u32 {
    match registry.open_session("anybody", LONG).await {
        Err(Error::Refused(asked)) => asked.parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
pub(crate) async fn remembers() {
    let database = TestDatabase::create().await;
    // By default nothing outlives a call.
    let host = Host::with_policy(&database, REMEMBERS);
    for _ in 0..5 {
        assert_eq!(asked(&host.registry).await, 1);
    }
}

#[tokio::test]
async fn an_instance_serves_as_many_calls_as_it_may() {
    let database = TestDatabase::create().await;
    let registry = host(&database, REMEMBERS, &engine(3, 4)).registry;
    let mut all = Vec::new();
    for _ in 0..7 {
        all.push(asked(&registry).await);
    }
    assert_eq!(all, [1, 2, 3, 1, 2, 3, 1]);
}

#[tokio::test]
async fn an_instance_whose_call_traps_serves_no_other() {
    let database = TestDatabase::create().await;
    let registry = host(&database, REMEMBERS, &engine(100, 4)).registry;
    assert_eq!(asked(&registry).await, 1);
    assert_eq!(asked(&registry).await, 2);

    let trapped = registry.open_session("nemesis", LONG).await;

    assert!(
        matches!(trapped, Err(Error::Policy(PolicyFault::Trap(_)))),
        "{trapped:?}"
    );
    assert_eq!(asked(&registry).await, 1);
}

#[tokio::test]
async fn an_instance_whose_caller_goes_away_serves_no_other() {
    let database = TestDatabase::create().await;
    let session = Host::new(&database).open(LONG).await;
    let registry = host(&database, REMEMBERS, &engine(100, 4)).registry;
    assert_eq!(asked(&registry).await, 1);
    let row = database.hold(&session).await;
    let call = tokio::spawn({
        let (registry, session) = (registry.clone(), session.clone());
        async move { registry.close_session(&session).await }
    });
    database.until_somebody_waits(1).await;

    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    row.batch_execute("COMMIT").await.unwrap();

    assert_eq!(asked(&registry).await, 1);
}

/// Its memory is as small as can be, and has to be emptied in between.
#[tokio::test]
async fn the_default_policy_lasts() {
    let database = TestDatabase::create().await;
    let host = host(&database, LIFECYCLE, &engine(u32::MAX, 1));
    let unknown = SessionId::from(uuid::Uuid::new_v4());
    for _ in 0..300 {
        let session = host.open(LONG).await;
        let _grant = host.lock("a", &session).await;
        let beat = host.registry.heartbeat(&session, LONG).await.unwrap();
        assert!(beat.is_alive());
        assert_eq!(host.registry.locks_of(&session).await.unwrap(), ["a"]);
        let closed = host.registry.close_session(&session).await.unwrap();
        assert_eq!(closed.locks_released, 1);
        let beat = host.registry.heartbeat(&unknown, LONG).await.unwrap();
        assert!(!beat.is_alive());
        let refused = host.registry.open_session("", LONG).await;
        assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    }
    assert_eq!(host.registry.policy().counts().traps, 0);
}

/// Two in charge, on an engine that has room for one instance.
#[tokio::test]
async fn an_idle_instance_gives_way_to_another_policys() {
    let database = TestDatabase::create().await;
    let engine = engine(100, 1);
    let one = host(&database, REMEMBERS, &engine).registry;
    let other = host(&database, STRICTER, &engine).registry;
    let strict = Err(Error::Refused("workers only".to_owned()));
    for _ in 0..3 {
        assert_eq!(asked(&one).await, 1);
        assert_eq!(asked(&one).await, 2);
        assert_eq!(other.open_session("anybody", LONG).await, strict);
    }
}

/// With the policy goes all that its instances remember.
#[tokio::test]
async fn a_policy_that_leaves_leaves_no_instance_behind() {
    let database = TestDatabase::create().await;
    let engine = engine(100, 4);
    let remembers = Policy::load(&engine, REMEMBERS).unwrap();
    let stricter = Policy::load(&engine, STRICTER).unwrap();
    let slot = Arc::new(PolicySlot::new(remembers.clone()));
    let statements = PinnedStatements::new(patient_pool(&database));
    let registry = SessionRegistry::with_slot(slot.clone(), Arc::new(statements));
    let session = Host::new(&database).open(LONG).await;
    assert_eq!(asked(&registry).await, 1);
    assert_eq!(asked(&registry).await, 2);
    // A call that began under it and ends after it has left.
    let row = database.hold(&session).await;
    let call = tokio::spawn({
        let (registry, session) = (registry.clone(), session.clone());
        async move { registry.close_session(&session).await }
    });
    database.until_somebody_waits(1).await;

    drop(slot.swap(stricter));
    row.batch_execute("COMMIT").await.unwrap();
    assert!(call.await.unwrap().unwrap().existed);
    drop(slot.swap(remembers));

    assert_eq!(asked(&registry).await, 1);
}
