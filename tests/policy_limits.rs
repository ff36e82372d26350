//! What a call may use, with other numbers than the usual, and which profile a policy gets
//! for the room that it takes.

use std::time::Duration;

use tenure::policy::{LIFECYCLE, LoadError};
use tenure::{
    DatabaseOptions, Error, Limits, Policy, PolicyEngine, PolicyFault, PolicyOptions, Profile,
};

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, engine};
use crate::support::policies;

/// A host on an engine with a few slots and limits of its own.
fn host(database: &TestDatabase, policy: &[u8], change: impl FnOnce(&mut Limits)) -> Host {
    let mut limits = Limits::default();
    limits.calls_in_flight = 4;
    change(&mut limits);
    let engine = PolicyEngine::new(limits).unwrap();
    Host::on(database.pool(), Policy::load(&engine, policy).unwrap())
}

/// A heartbeat that ends with this fault, whatever the usual limits are.
async fn fails_with(policy: &[u8], change: impl FnOnce(&mut Limits), fault: PolicyFault) {
    let database = TestDatabase::create().await;
    let session = Host::new(&database).open(LONG).await;
    let host = host(&database, policy, change);

    let answer = host.registry.heartbeat(&session, LONG).await;

    assert_eq!(answer, Err(Error::Policy(fault)));
}

#[tokio::test]
async fn each_limit_can_be_set() {
    let ms = Duration::from_millis(30);
    fails_with(
        policies::LOOPS_FOR_EVER,
        |limits| limits.cpu = ms,
        PolicyFault::CpuLimit(ms),
    )
    .await;
    fails_with(
        policies::EATS_MEMORY,
        |limits| limits.strict.memory = 640 * 1024,
        PolicyFault::MemoryLimit(640 * 1024),
    )
    .await;
    fails_with(
        policies::GROWS_TABLES,
        |limits| limits.strict.table_elements = 100,
        PolicyFault::TableLimit(100),
    )
    .await;
    fails_with(
        policies::RECURSES_WITHOUT_END,
        |limits| limits.stack = 64 * 1024,
        PolicyFault::StackLimit(64 * 1024),
    )
    .await;
    fails_with(
        policies::SENDS_TOO_MUCH,
        |limits| limits.transfer = 1024,
        PolicyFault::TransferLimit(1024),
    )
    .await;
}

#[tokio::test]
async fn waiting_for_the_database_takes_no_processor_time() {
    let database = TestDatabase::create().await;
    let mut limits = Limits::default();
    limits.calls_in_flight = 4;
    // Less than a call would need if the wait counted.
    limits.cpu = Duration::from_millis(20);
    limits.deadline = LONG;
    let engine = PolicyEngine::new(limits).unwrap();
    let mut options = DatabaseOptions::default();
    options.lock_timeout = LONG;
    options.statement_timeout = LONG;
    let policy = Policy::load(&engine, LIFECYCLE).unwrap();
    let host = Host::on(database.pool_with(&options), policy);
    let session = host.open(LONG).await;
    let holder = database.hold(&session).await;

    let beat = async { host.registry.heartbeat(&session, LONG).await };
    let release = async {
        database.until_somebody_waits(1).await;
        // Ten times the limit. That it takes longer yet changes nothing.
        holder
            .batch_execute("SELECT pg_sleep(0.2); COMMIT")
            .await
            .unwrap();
    };
    let (beat, ()) = tokio::join!(beat, release);

    assert!(beat.unwrap().is_alive());
}

#[tokio::test]
pub(crate) async fn asks_on_and_on() {
    let database = TestDatabase::create().await;
    let host = host(&database, policies::ASKS_ON_AND_ON, |limits| {
        limits.host_calls = 10;
    });
    let registry = &host.registry;
    let too_many = || Error::Policy(PolicyFault::HostCallLimit(10));

    // With the statement, 10.
    let within = registry.open_session("9", LONG).await;
    assert!(within.is_ok(), "{within:?}");
    assert_eq!(database.sessions().await, 1);

    // The statement was one too many: what it did is undone, since nobody is told of it.
    let beyond = registry.open_session("10", LONG).await;
    assert_eq!(beyond.unwrap_err(), too_many());
    assert_eq!(database.sessions().await, 1);

    // For ever.
    let endless = registry.open_session("tester", LONG).await;
    assert_eq!(endless.unwrap_err(), too_many());
    assert_eq!(database.sessions().await, 1);
}

fn load(component: &[u8], profile: Profile) -> Result<Policy, LoadError> {
    let mut options = PolicyOptions::default();
    options.profile = profile;
    Policy::load_with(engine(), component, &options)
}

#[tokio::test]
pub(crate) async fn takes_much_room() {
    let database = TestDatabase::create().await;
    let policy = load(policies::TAKES_MUCH_ROOM, Profile::Interpreted).unwrap();
    assert_eq!(policy.profile(), Profile::Interpreted);
    let session = Host::new(&database).open(LONG).await;
    let host = Host::on(database.pool(), policy);

    let beat = host.registry.heartbeat(&session, LONG).await.unwrap();

    assert!(beat.is_alive());
}

#[test]
fn a_policy_that_needs_a_larger_profile_than_is_allowed_is_told_which() {
    let error = load(policies::TAKES_MUCH_ROOM, Profile::Strict).unwrap_err();

    assert_eq!(
        error.to_string(),
        "the component needs 3 memories, 13107200 bytes of memory and 8000 table elements; the \
         profile strict, which is allowed, has 1 memories of 2097152 bytes and tables of 1024 \
         elements; the profile interpreted would do"
    );
    assert!(matches!(
        error,
        LoadError::TooLarge {
            fits: Some(Profile::Interpreted),
            ..
        }
    ));
}

#[test]
fn a_policy_that_needs_little_gets_the_strict_profile_whatever_is_allowed() {
    let policy = load(LIFECYCLE, Profile::Interpreted).unwrap();

    assert_eq!(policy.profile(), Profile::Strict);
}

/// A component of `modules`, each instantiated once.
fn component(modules: &[&str]) -> Vec<u8> {
    let modules: String = modules
        .iter()
        .enumerate()
        .map(|(n, fields)| {
            format!("(core module $m{n} {fields}) (core instance (instantiate $m{n}))\n")
        })
        .collect();
    wat::parse_str(format!("(component {modules})")).unwrap()
}

#[test]
fn what_needs_too_much_before_it_runs_is_not_loaded() {
    use Profile::{Interpreted, Strict};
    let nothing = "";
    let memory = "(memory 1)";
    for (component, profile, says) in [
        (component(&["(memory 33)"]), Strict, "interpreted would do"),
        (component(&["(memory 257)"]), Interpreted, "memory"),
        (component(&[memory, memory]), Strict, "interpreted would do"),
        (
            component(&["(memory 1) (memory 1)"]),
            Strict,
            "interpreted would do",
        ),
        (
            component(&[memory; 4]),
            Interpreted,
            "4 Wasm linear memories",
        ),
        (
            component(&["(table 1025 funcref)"]),
            Strict,
            "interpreted would do",
        ),
        (component(&["(table 8001 funcref)"]), Interpreted, "table"),
        (
            component(&["(table 1 funcref)"; 9]),
            Interpreted,
            "9 tables",
        ),
        (
            component(&[nothing; 65]),
            Interpreted,
            "65 core module instances",
        ),
        // What fits is told what it lacks otherwise.
        (
            component(&["(memory 32) (table 1024 funcref)"]),
            Strict,
            "session-registry",
        ),
        (component(&[memory; 3]), Interpreted, "session-registry"),
        (component(&[nothing; 64]), Strict, "session-registry"),
    ] {
        let error = load(&component, profile).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
    }
}

/// Of a composition, each component counts for itself.
#[test]
fn three_components_of_one_memory_each_are_strict() {
    let inner = "(component (core module $m (memory 1)) (core instance (instantiate $m)))";
    let composed = |components: usize| {
        let each: String = (0..components)
            .map(|n| {
                format!(
                    "(component $c{n} {} (instance (instantiate $c{n}))\n",
                    &inner[10..]
                )
            })
            .collect();
        wat::parse_str(format!("(component {each})")).unwrap()
    };

    let fits = load(&composed(3), Profile::Strict).unwrap_err().to_string();
    let too_many = load(&composed(4), Profile::Strict).unwrap_err().to_string();

    assert!(fits.contains("session-registry"), "{fits}");
    assert!(too_many.contains("4 Wasm linear memories"), "{too_many}");
}
