//! Policies that misbehave: what the host answers, that it costs one call and no other, and
//! that the database is as it should be.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::{self, Either};
use tenure::policy::conformance::{self, Settings};
use tenure::policy::{LIFECYCLE, LoadError};
use tenure::postgres::{Statements, StoreError};
use tenure::{
    DatabaseOptions, Error, Heartbeat, Limits, PinnedStatements, Policy, PolicyEngine, PolicyFault,
    SessionId, SessionRegistry,
};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::policy_instances::remembers;
use crate::policy_limits::{asks_on_and_on, takes_much_room};
use crate::policy_settings::reads_settings;
use crate::policy_wasi::{looks_around_wasi, says_a_lot, sleeps};
use crate::rollout::turns_bad;
use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, engine};
use crate::support::policies::{self, for_each_policy};

macro_rules! assert_test_exists {
    ($policy:ident) => {
        const _: fn() = $policy;
    };
}
for_each_policy!(assert_test_exists);

/// The session that some fixtures name although it is not the caller's.
const ANOTHER: &str = "00000000-0000-4000-8000-000000000000";

/// A host with a bad policy and one with a good one, on one engine and one database.
struct Hosts {
    database: TestDatabase,
    bad: Host,
    good: Host,
}

impl Hosts {
    async fn with(policy: &[u8]) -> Self {
        let database = TestDatabase::create().await;
        Self {
            bad: Host::with_policy(&database, policy),
            good: Host::new(&database),
            database,
        }
    }

    async fn open(&self) -> SessionId {
        self.good.open(LONG).await
    }

    fn violations(&self) -> u64 {
        self.bad.registry.policy().counts().violations
    }

    async fn expiry(&self, session: &SessionId) -> SystemTime {
        self.database
            .scalar(&format!(
                "SELECT expires_at FROM lock_session WHERE session_id = '{session}'"
            ))
            .await
    }

    async fn is_alive(&self, session: &SessionId) -> bool {
        let beat = self.good.registry.heartbeat(session, LONG).await;
        beat.unwrap().is_alive()
    }

    /// Every operation of the good policy, which has nothing to do with the bad one's.
    async fn assert_that_the_good_policy_works(&self) {
        let session = self.open().await;
        let _ = self.good.lock("good", &session).await;
        assert!(self.is_alive(&session).await);
        let registry = &self.good.registry;
        assert_eq!(registry.locks_of(&session).await.unwrap(), ["good"]);
        let closed = registry.close_session(&session).await.unwrap();
        assert_eq!((closed.existed, closed.locks_released), (true, 1));
        assert_eq!(registry.policy().counts().violations, 0);
    }
}

fn violation(what: &str) -> Error {
    Error::Policy(PolicyFault::Violation(what.to_owned()))
}

fn is_contention<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Contention(_))), "{answer:?}");
}

fn is_store_error<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Store(_))), "{answer:?}");
}

#[tokio::test]
async fn true_on_zero_rows() {
    let hosts = Hosts::with(policies::TRUE_ON_ZERO_ROWS).await;
    let unknown = Uuid::new_v4().to_string();

    let answer = hosts.bad.registry.heartbeat(&unknown, LONG).await;

    assert_eq!(answer, Err(violation("called a dead session alive")));
    assert_eq!(hosts.violations(), 1);
    assert_eq!(hosts.database.sessions().await, 0);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn true_on_fault() {
    let hosts = Hosts::with(policies::TRUE_ON_FAULT).await;
    let session = hosts.open().await;
    let before = hosts.expiry(&session).await;
    let holder = hosts.database.hold(&session).await;

    let answer = hosts.bad.registry.heartbeat(&session, LONG).await;

    assert_eq!(
        answer,
        Err(violation(
            "called a session alive although the heartbeat had failed"
        ))
    );
    assert_eq!(hosts.violations(), 1);
    assert_eq!(hosts.expiry(&session).await, before);
    holder.batch_execute("COMMIT").await.unwrap();
    assert!(hosts.is_alive(&session).await);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn false_on_fault() {
    let hosts = Hosts::with(policies::FALSE_ON_FAULT).await;
    let session = hosts.open().await;
    let _ = hosts.good.lock("a", &session).await;
    let registry = &hosts.bad.registry;

    let holder = hosts.database.hold(&session).await;
    is_contention(registry.heartbeat(&session, LONG).await);
    is_contention(registry.close_session(&session).await);
    holder.batch_execute("COMMIT").await.unwrap();
    let holder = hosts
        .database
        .begin("LOCK TABLE lock_session, lock_entry IN ACCESS EXCLUSIVE MODE")
        .await;
    is_contention(registry.open_session("tester", LONG).await);
    is_contention(registry.locks_of(&session).await);
    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(hosts.violations(), 4);
    assert!(hosts.is_alive(&session).await);
    assert_eq!(hosts.database.locks().await, 1);
    assert_eq!(hosts.database.sessions().await, 1);
    hosts.assert_that_the_good_policy_works().await;

    hosts
        .database
        .execute("DROP TABLE lock_entry, lock_session")
        .await;
    is_store_error(registry.heartbeat(&session, LONG).await);
    is_store_error(registry.close_session(&session).await);
    is_store_error(registry.open_session("tester", LONG).await);
    is_store_error(registry.locks_of(&session).await);
    assert_eq!(hosts.violations(), 8);
}

#[tokio::test]
async fn disguises_faults() {
    let hosts = Hosts::with(policies::DISGUISES_FAULTS).await;
    let session = hosts.open().await;
    let holder = hosts.database.hold(&session).await;

    is_contention(hosts.bad.registry.heartbeat(&session, LONG).await);

    holder.batch_execute("COMMIT").await.unwrap();
    assert_eq!(hosts.violations(), 1);
    assert_eq!(
        hosts.bad.registry.policy().last_violation().as_deref(),
        Some("turned a fault of the database into another error")
    );
    assert!(hosts.is_alive(&session).await);
    hosts.assert_that_the_good_policy_works().await;
}

/// It does not misbehave; it is here for the others to be told from.
#[tokio::test]
async fn stricter() {
    let hosts = Hosts::with(policies::STRICTER).await;
    let registry = &hosts.bad.registry;

    let refused = registry.open_session("tester", LONG).await;
    let session = registry.open_session("worker-7", 10 * LONG).await.unwrap();

    assert_eq!(refused, Err(Error::Refused("workers only".to_owned())));
    assert_eq!(session.lease.ttl, Duration::from_secs(60));
    assert_eq!(hosts.violations(), 0);
    assert_eq!(hosts.database.sessions().await, 1);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn false_on_one_row() {
    let hosts = Hosts::with(policies::FALSE_ON_ONE_ROW).await;
    let session = hosts.open().await;
    let _ = hosts.good.lock("a", &session).await;

    let answer = hosts.bad.registry.heartbeat(&session, LONG).await;

    assert_eq!(answer, Ok(Heartbeat::Dead));
    assert_eq!(hosts.violations(), 1);
    assert_eq!(hosts.database.sessions().await, 0);
    assert_eq!(hosts.database.locks().await, 0);
    assert!(!hosts.is_alive(&session).await);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn a_false_that_cannot_be_made_final_is_not_given() {
    let hosts = Hosts::with(policies::FALSE_ON_ONE_ROW).await;
    let session = hosts.open().await;
    let _ = hosts.good.lock("a", &session).await;
    let holder = hosts
        .database
        .begin("SELECT FROM lock_entry FOR UPDATE")
        .await;

    is_contention(hosts.bad.registry.heartbeat(&session, LONG).await);

    holder.batch_execute("COMMIT").await.unwrap();
    assert!(hosts.is_alive(&session).await);
    assert_eq!(hosts.violations(), 1);
}

#[tokio::test]
async fn answers_without_asking() {
    let hosts = Hosts::with(policies::ANSWERS_WITHOUT_ASKING).await;
    let session = hosts.open().await;
    let _ = hosts.good.lock("a", &session).await;
    let before = hosts.expiry(&session).await;
    let registry = &hosts.bad.registry;
    let judged = || Err(violation("judged a session without asking the database"));

    let alive = registry.heartbeat(&session, LONG).await;
    let dead = registry.heartbeat(&session, Duration::from_secs(1)).await;
    let opened = registry.open_session("tester", LONG).await;
    let closed = registry.close_session(&session).await;
    let listed = registry.locks_of(&session).await;

    assert_eq!(alive, judged());
    assert_eq!(dead, judged());
    assert_eq!(
        opened,
        Err(violation("returned a session that it did not open"))
    );
    assert_eq!(
        closed,
        Err(violation("counted locks without asking the database"))
    );
    assert_eq!(
        listed,
        Err(violation("listed locks without asking the database"))
    );
    assert_eq!(hosts.violations(), 5);
    assert_eq!(hosts.expiry(&session).await, before);
    assert_eq!(hosts.database.sessions().await, 1);
    assert_eq!(hosts.database.locks().await, 1);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn inserts_during_heartbeat() {
    let hosts = Hosts::with(policies::INSERTS_DURING_HEARTBEAT).await;
    let unknown = Uuid::new_v4().to_string();

    let answer = hosts.bad.registry.heartbeat(&unknown, LONG).await;

    assert_eq!(
        answer,
        Err(violation("ran the statement open-session during heartbeat"))
    );
    assert_eq!(hosts.violations(), 1);
    assert_eq!(hosts.database.sessions().await, 0);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn runs_statement_twice() {
    let hosts = Hosts::with(policies::RUNS_STATEMENT_TWICE).await;
    let session = hosts.open().await;

    let beat = hosts.bad.registry.heartbeat(&session, LONG).await;
    let opened = hosts.bad.registry.open_session("tester", LONG).await;

    assert_eq!(beat, Err(violation("ran the statement heartbeat twice")));
    assert_eq!(
        opened,
        Err(violation("ran the statement open-session twice"))
    );
    assert_eq!(hosts.violations(), 2);
    assert_eq!(hosts.database.sessions().await, 1);
    assert!(hosts.is_alive(&session).await);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn acts_on_another_session() {
    let hosts = Hosts::with(policies::ACTS_ON_ANOTHER_SESSION).await;
    let session = hosts.open().await;
    let another: SessionId = ANOTHER.parse().unwrap();
    hosts
        .database
        .execute(&format!(
            "INSERT INTO lock_session (session_id, owner_id, expires_at)
             VALUES ('{another}', 'another', now() + interval '1 minute')"
        ))
        .await;
    let before = hosts.expiry(&another).await;
    let registry = &hosts.bad.registry;

    let beat = registry.heartbeat(&session, LONG).await;
    let closed = registry.close_session(&session).await;
    let opened = registry.open_session("tester", LONG).await;

    let another_ran = |statement: &str, own: &str| {
        violation(&format!(
            "ran the statement {statement} for another than the caller's own {own}"
        ))
    };
    assert_eq!(beat, Err(another_ran("heartbeat", "session")));
    assert_eq!(closed, Err(another_ran("close-session", "session")));
    assert_eq!(opened, Err(another_ran("open-session", "owner")));
    assert_eq!(hosts.violations(), 3);
    assert_eq!(hosts.expiry(&another).await, before);
    assert_eq!(hosts.database.sessions().await, 2);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn makes_up_session_id() {
    let hosts = Hosts::with(policies::MAKES_UP_SESSION_ID).await;

    let answer = hosts.bad.registry.open_session("tester", LONG).await;

    assert_eq!(
        answer,
        Err(violation("returned another session than the one it opened"))
    );
    assert_eq!(hosts.violations(), 1);
    assert_eq!(hosts.database.sessions().await, 0);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn refuses_too_late() {
    let hosts = Hosts::with(policies::REFUSES_TOO_LATE).await;

    let answer = hosts.bad.registry.open_session("tester", LONG).await;

    assert_eq!(answer, Err(Error::Refused("on second thoughts".to_owned())));
    assert_eq!(hosts.database.sessions().await, 0);

    // A session that is not told of can be taken back. These two statements cannot.
    let session = hosts.open().await;
    let beat = hosts.bad.registry.heartbeat(&session, LONG).await;
    let closed = hosts.bad.registry.close_session(&session).await;
    let lie = Err(violation("refused a call after its statement had run"));
    assert_eq!(beat, lie.clone().map(|()| Heartbeat::Dead));
    assert_eq!(closed.map(|_| ()), lie);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn invents_lock_count() {
    let hosts = Hosts::with(policies::INVENTS_LOCK_COUNT).await;
    let session = hosts.open().await;
    let _ = hosts.good.lock("a", &session).await;

    let listed = hosts.bad.registry.locks_of(&session).await;
    let closed = hosts.bad.registry.close_session(&session).await;

    assert_eq!(listed, Err(violation("invented a list of locks")));
    assert_eq!(
        closed,
        Err(violation("invented a number of released locks"))
    );
    assert_eq!(hosts.violations(), 2);
    // The statement itself did what it was asked to do.
    assert_eq!(hosts.database.sessions().await, 0);
    assert_eq!(hosts.database.locks().await, 0);
    hosts.assert_that_the_good_policy_works().await;
}

/// A heartbeat whose policy fails once its statement has run: this fault, no verdict, and
/// the session lives on.
async fn fails_with(policy: &[u8], fault: PolicyFault) {
    let hosts = Hosts::with(policy).await;
    let session = hosts.open().await;
    let before = hosts.expiry(&session).await;

    let answer = hosts.bad.registry.heartbeat(&session, LONG).await;

    assert_eq!(answer, Err(Error::Policy(fault)));
    assert_eq!(hosts.violations(), 0);
    assert!(hosts.expiry(&session).await > before);
    assert!(hosts.is_alive(&session).await);
    assert_eq!(hosts.database.sessions().await, 1);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn loops_for_ever() {
    let limit = Limits::default().cpu;
    fails_with(policies::LOOPS_FOR_EVER, PolicyFault::CpuLimit(limit)).await;
}

#[tokio::test]
async fn eats_memory() {
    let limit = Limits::default().strict.memory;
    fails_with(policies::EATS_MEMORY, PolicyFault::MemoryLimit(limit)).await;
}

#[tokio::test]
async fn recurses_without_end() {
    let limit = Limits::default().stack;
    fails_with(
        policies::RECURSES_WITHOUT_END,
        PolicyFault::StackLimit(limit),
    )
    .await;
}

#[tokio::test]
async fn grows_tables() {
    let limit = Limits::default().strict.table_elements;
    fails_with(policies::GROWS_TABLES, PolicyFault::TableLimit(limit)).await;
}

#[tokio::test]
async fn sends_too_much() {
    let hosts = Hosts::with(policies::SENDS_TOO_MUCH).await;
    let session = hosts.open().await;
    let before = hosts.expiry(&session).await;

    let answer = hosts.bad.registry.heartbeat(&session, LONG).await;

    let limit = Limits::default().transfer;
    assert_eq!(answer, Err(PolicyFault::TransferLimit(limit).into()));
    assert_eq!(hosts.expiry(&session).await, before);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn traps() {
    let hosts = Hosts::with(policies::TRAPS).await;
    let session = hosts.open().await;
    let before = hosts.expiry(&session).await;
    let trapped = |error: Error| matches!(error, Error::Policy(PolicyFault::Trap(_)));

    for _ in 0..3 {
        let beat = hosts.bad.registry.heartbeat(&session, LONG).await;
        assert!(trapped(beat.unwrap_err()));
        let opened = hosts.bad.registry.open_session("tester", LONG).await;
        assert!(trapped(opened.unwrap_err()));
        let listed = hosts.bad.registry.locks_of(&session).await.unwrap();
        assert!(listed.is_empty());
    }

    assert_eq!(hosts.violations(), 0);
    assert_eq!(hosts.expiry(&session).await, before);
    assert_eq!(hosts.database.sessions().await, 1);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn asks_for_nonsense() {
    let hosts = Hosts::with(policies::ASKS_FOR_NONSENSE).await;
    let session = hosts.open().await;

    let answer = hosts.bad.registry.heartbeat(&session, LONG).await;

    assert!(matches!(answer, Err(Error::Rejected(_))), "{answer:?}");
    assert!(hosts.is_alive(&session).await);
    hosts.assert_that_the_good_policy_works().await;
}

#[tokio::test]
async fn a_fault_with_a_long_text_is_that_fault() {
    let hosts = Hosts::with(LIFECYCLE).await;
    let session = hosts.open().await;
    hosts
        .database
        .execute(
            "CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION '%', repeat('no! ', 25000); END $$;
             CREATE TRIGGER complain BEFORE UPDATE ON lock_session
             EXECUTE FUNCTION complain()",
        )
        .await;

    let answer = hosts.good.registry.heartbeat(&session, LONG).await;

    match answer {
        Err(Error::Store(text)) => assert_eq!(text.len(), 100_000),
        Err(other) => panic!("{other}"),
        Ok(beat) => panic!("{beat:?}"),
    }
}

#[tokio::test]
async fn a_policy_that_computes_lets_others_have_the_thread() {
    let mut limits = Limits::default();
    limits.cpu = Duration::from_secs(60);
    limits.deadline = Duration::from_secs(60);
    let engine = PolicyEngine::new(limits).unwrap();
    let database = TestDatabase::create().await;
    let load = |policy| Policy::load(&engine, policy).unwrap();
    let bad = Host::on(database.pool(), load(policies::LOOPS_FOR_EVER));
    let good = Host::on(database.pool(), load(LIFECYCLE));
    let session = good.open(LONG).await;

    let looping = Box::pin(bad.registry.heartbeat(&session, LONG));
    let working = Box::pin(good.registry.heartbeat(&session, LONG));
    let (first, other) = match future::select(looping, working).await {
        Either::Left(_) => panic!("it was meant to loop"),
        Either::Right(done) => done,
    };

    assert!(first.unwrap().is_alive());
    drop(other);
    assert!(
        good.registry
            .heartbeat(&session, LONG)
            .await
            .unwrap()
            .is_alive()
    );
}

fn short_deadline(calls_in_flight: u32) -> PolicyEngine {
    let mut limits = Limits::default();
    limits.deadline = Duration::from_millis(500);
    limits.calls_in_flight = calls_in_flight;
    PolicyEngine::new(limits).unwrap()
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_given_up_and_its_statement_cancelled() {
    let database = TestDatabase::create().await;
    let mut options = DatabaseOptions::default();
    options.connections = 1;
    options.lock_timeout = Duration::from_secs(60);
    options.statement_timeout = Duration::from_secs(60);
    let engine = short_deadline(8);
    let policy = Policy::load(&engine, LIFECYCLE).unwrap();
    let host = Host::on(database.pool_with(&options), policy);
    let (held, free) = (host.open(LONG).await, host.open(LONG).await);
    let _holder: Client = database.hold(&held).await;
    let deadline = engine.limits().deadline;

    let beat = host.registry.heartbeat(&held, LONG).await;
    let next = host.registry.heartbeat(&free, LONG).await.unwrap();
    let closed = host.registry.close_session(&held).await;

    assert_eq!(beat, Err(Error::DeadlineExceeded(deadline)));
    assert!(beat.unwrap_err().is_retry_safe());
    assert!(next.is_alive());
    assert_eq!(closed, Err(Error::DeadlineExceeded(deadline)));
    database.until_hosts_are_idle().await;
    database.until_somebody_waits(0).await;
    assert_eq!(database.sessions().await, 2);
}

#[tokio::test]
async fn calls_beyond_the_slots_wait_for_their_turn() {
    let database = TestDatabase::create().await;
    let mut limits = Limits::default();
    limits.calls_in_flight = 2;
    limits.deadline = Duration::from_secs(60);
    let engine = PolicyEngine::new(limits).unwrap();
    let host = Host::on(database.pool(), Policy::load(&engine, LIFECYCLE).unwrap());
    let session = host.open(LONG).await;

    let beats = (0..40).map(|_| host.registry.heartbeat(&session, LONG));
    let answers = future::join_all(beats).await;

    for answer in answers {
        // Heartbeats of one session may be in each other's way; nothing else may.
        match answer {
            Ok(beat) => assert!(beat.is_alive()),
            other => panic!("{other:?}"),
        }
    }
}

/// Heartbeats that block their thread, until told to go on.
struct Blocked {
    real: PinnedStatements,
    entered: Sender<()>,
    go_on: Mutex<Receiver<()>>,
}

#[async_trait]
impl Statements for Blocked {
    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError> {
        self.real.open_session(id, owner, ttl_ms).await
    }

    async fn heartbeat(&self, _id: Uuid, _ttl_ms: i64) -> Result<Option<SystemTime>, StoreError> {
        self.entered.send(()).unwrap();
        let _ = self
            .go_on
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv();
        Ok(None)
    }

    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError> {
        self.real.close_session(id).await
    }

    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError> {
        self.real.locks_of(id).await
    }
}

/// A call that waits yields its slot at its own deadline, which is before that of any call
/// behind it. So that the one behind finds no slot takes a call that blocks its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_gets_no_slot_in_time_is_contention() {
    let database = TestDatabase::create().await;
    let policy = Policy::load(&short_deadline(1), LIFECYCLE).unwrap();
    let (entered, inside) = channel();
    let (go_on, told) = channel();
    let registry = SessionRegistry::new(
        policy,
        Arc::new(Blocked {
            real: PinnedStatements::new(database.pool()),
            entered,
            go_on: Mutex::new(told),
        }),
    );
    let session = registry.open_session("tester", LONG).await.unwrap().id;
    let blocking = tokio::spawn({
        let (registry, session) = (registry.clone(), session.clone());
        async move { registry.heartbeat(&session, LONG).await }
    });
    tokio::task::spawn_blocking(move || inside.recv())
        .await
        .unwrap()
        .unwrap();

    let waiting = registry.locks_of(&session).await;

    let expected = "1 calls are in flight, and none ended within 500 ms";
    assert_eq!(waiting, Err(Error::Contention(expected.to_owned())));
    go_on.send(()).unwrap();
    let _ = blocking.await.unwrap();
    assert!(registry.locks_of(&session).await.unwrap().is_empty());
}

fn load(component: &[u8]) -> LoadError {
    match Policy::load(engine(), component) {
        Ok(policy) => panic!("{policy:?} was loaded"),
        Err(error) => error,
    }
}

#[test]
fn what_is_no_component_is_not_loaded() {
    let module = wat::parse_str("(module)").unwrap();
    for (bytes, says) in [
        (&b""[..], "unexpected end"),
        (b"\0asm", "unexpected end"),
        (b"this is no WebAssembly", "magic header"),
        (&LIFECYCLE[..LIFECYCLE.len() / 2], "out of bounds"),
        (&LIFECYCLE[..LIFECYCLE.len() - 1], "unexpected end"),
        (&module, "module"),
    ] {
        let error = load(bytes);
        assert!(matches!(error, LoadError::NotAComponent(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// What is nested so deep takes a minute to validate and to compile, and longer by the square
/// of its depth.
#[test]
fn components_that_are_nested_very_deep_are_refused_at_once() {
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
    const COMPONENT_SECTION: u8 = 4;
    let nested = |depth: usize| {
        (0..depth).fold(EMPTY.to_vec(), |inner, _| {
            let mut length = inner.len();
            let mut outer = EMPTY.to_vec();
            outer.push(COMPONENT_SECTION);
            while length >= 0x80 {
                outer.push(length as u8 | 0x80);
                length >>= 7;
            }
            outer.push(length as u8);
            outer.extend(inner);
            outer
        })
    };
    for (depth, complaint) in [
        (100, "session-registry"),
        (101, "nested more than 100 deep"),
        (20_000, "nested more than 100 deep"),
    ] {
        let component = nested(depth);
        let error = load(&component).to_string();
        assert!(error.contains(complaint), "{error}");
        let checked = conformance::check(&Settings::default(), &component);
        let error = checked.failures().next().unwrap().1.got.clone();
        assert!(error.contains(complaint), "{error}");
    }
}

#[test]
fn precompiled_code_is_not_loaded() {
    let compiler = wasmtime::Engine::default();
    let native = compiler.precompile_component(LIFECYCLE).unwrap();

    let error = load(&native);

    assert!(matches!(error, LoadError::Precompiled), "{error}");
}

#[test]
fn a_component_that_imports_something_else_is_not_loaded_and_the_error_names_it() {
    for import in [
        "wasi:cli/command@0.2.6",
        "wasi:http/outgoing-handler@0.2.6",
        "wasi:io/poll@0.3.0",
        "tenure:registry/statements@9.0.0",
        "tenure:registry/everything@0.1.0",
    ] {
        let component = wat::parse_str(format!(
            r#"(component (import "{import}" (instance (export "run" (func)))))"#
        ))
        .unwrap();

        let error = load(&component);

        assert!(matches!(error, LoadError::DoesNotFit(_)), "{error}");
        assert!(error.to_string().contains(import), "{error}");
    }
}

#[test]
fn a_component_without_the_export_is_not_loaded_and_the_error_names_it() {
    let nothing = wat::parse_str("(component)").unwrap();
    let older = wat::parse_str(
        r#"(component
             (instance $nothing)
             (export "tenure:registry/session-registry@0.0.9" (instance $nothing)))"#,
    )
    .unwrap();
    let empty = wat::parse_str(
        r#"(component
             (instance $nothing)
             (export "tenure:registry/session-registry@0.1.0" (instance $nothing)))"#,
    )
    .unwrap();
    for (component, missing) in [
        (nothing, "tenure:registry/session-registry@0.1.0"),
        (older, "tenure:registry/session-registry@0.1.0"),
        (empty, "open-session"),
    ] {
        let error = load(&component);
        assert!(matches!(error, LoadError::DoesNotFit(_)), "{error}");
        assert!(error.to_string().contains(missing), "{error}");
    }
}
