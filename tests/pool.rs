//! The pool of connections: its limits, servers that do not answer, connections that break,
//! and the settings that the statements rest on.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::policy::LIFECYCLE;
use tenure::postgres::{MigrationError, StoreError, sql};
use tenure::{
    Acquired, Database, DatabaseOptions, Error, FencingToken, Heartbeat, Limits, Policy,
    PolicyEngine, Reaped, Renewed, Revoked, SessionId,
};
use tokio::join;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, key, lifecycle};
use crate::support::proxy::{Proxy, Weather};

fn is_contention<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Err(Error::Contention(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// What a call says that a fault must never say: that something is dead, lost or not held.
#[derive(Debug, PartialEq)]
enum Said {
    Good,
    Fault(Error),
    Bad(String),
}

impl Said {
    fn of<T: std::fmt::Debug>(answer: Result<T, Error>, good: impl Fn(&T) -> bool) -> Self {
        match answer {
            Ok(value) if good(&value) => Self::Good,
            Ok(value) => Self::Bad(format!("{value:?}")),
            Err(error @ Error::Contention(_)) => Self::Fault(error),
            Err(error) => Self::Bad(format!("{error:?}")),
        }
    }
}

/// Every call, each after `before`, on a live session that holds `k` under `token`, and `m`;
/// or would, if the database were there.
async fn every_call(
    host: &Host,
    session: &SessionId,
    token: FencingToken,
    before: impl AsyncFn(),
) -> Vec<Said> {
    let (registry, locks, k) = (&host.registry, &host.locks, key("k"));
    let mut said = Vec::new();
    before().await;
    let answer = registry.open_session("tester", LONG).await;
    said.push(Said::of(answer, |_| true));
    before().await;
    let answer = registry.heartbeat(session, LONG).await;
    said.push(Said::of(answer, Heartbeat::is_alive));
    before().await;
    let answer = registry.locks_of(session).await;
    said.push(Said::of(answer, |keys| keys == &["k", "m"]));
    before().await;
    let answer = locks.read(&k).await;
    said.push(Said::of(answer, Option::is_some));
    before().await;
    let answer = locks.count_of(session).await;
    said.push(Said::of(answer, |count| *count == 2));
    before().await;
    let answer = locks.session_stands(session).await;
    said.push(Said::of(answer, |stands| *stands));
    before().await;
    let answer = locks.try_insert(&key("l"), session, LONG).await;
    said.push(Said::of(answer, |acquired| {
        matches!(acquired, Acquired::Granted(_))
    }));
    before().await;
    let answer = locks.extend(&k, token, LONG).await;
    said.push(Said::of(answer, |renewed| {
        matches!(renewed, Renewed::Until(_))
    }));
    before().await;
    let answer = locks.reap_expired().await;
    said.push(Said::of(answer, |reaped| *reaped == Reaped::default()));
    before().await;
    let answer = locks.revoke(&key("m"), "ops", "for a test", None).await;
    said.push(Said::of(answer, |revoked| {
        matches!(revoked, Revoked::Done(_))
    }));
    before().await;
    let answer = locks.delete_if_owner(&k, token).await;
    said.push(Said::of(answer, |held| *held));
    before().await;
    let answer = registry.close_session(session).await;
    said.push(Said::of(answer, |closed| closed.existed));
    said
}

/// What [`every_call`] asks for.
async fn set_up(host: &Host) -> (SessionId, FencingToken) {
    let session = host.open(LONG).await;
    let grant = host.lock("k", &session).await;
    let _ = host.lock("m", &session).await;
    (session, grant.token)
}

async fn every_call_works(host: &Host, session: &SessionId, token: FencingToken) {
    let said = every_call(host, session, token, async || ()).await;
    assert!(said.iter().all(|said| *said == Said::Good), "{said:?}");
}

fn spawn_heartbeat(host: &Host, session: &SessionId) -> JoinHandle<Result<Heartbeat, Error>> {
    let (registry, session) = (host.registry.clone(), session.clone());
    tokio::spawn(async move { registry.heartbeat(&session, LONG).await })
}

/// Short, for those who wait in vain.
const SOON: Duration = Duration::from_millis(100);

fn options(connections: usize, connect_timeout: Duration) -> DatabaseOptions {
    let mut options = DatabaseOptions::default();
    options.connections = connections;
    options.connect_timeout = connect_timeout;
    options.lock_timeout = LONG;
    options.statement_timeout = LONG;
    options
}

// Limits.

#[tokio::test]
async fn a_call_that_finds_the_pool_exhausted_is_contention() {
    let database = TestDatabase::create().await;
    let patient = Host::new(&database);
    let (session, token) = set_up(&patient).await;
    let host = Host::on(database.pool_with(&options(1, SOON)), lifecycle());
    // Connecting may take longer than they are to wait.
    while host.pool.ping().await.is_err() {}
    let holder = database.hold(&session).await;
    let busy = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(1).await;

    let said = every_call(&host, &session, token, async || ()).await;

    // The only connection is still in use, so no call has had any.
    assert!(!busy.is_finished());
    let exhausted = "no database connection became free in time; the pool is exhausted";
    for said in &said {
        let expected = Said::Fault(Error::Contention(exhausted.to_owned()));
        assert_eq!(said, &expected);
    }
    holder.batch_execute("COMMIT").await.unwrap();
    assert!(busy.await.unwrap().unwrap().is_alive());
    every_call_works(&host, &session, token).await;
}

#[tokio::test]
async fn a_pool_makes_no_more_connections_than_it_may() {
    let database = TestDatabase::create().await;
    let host = Host::on(database.pool_with(&options(3, LONG)), lifecycle());
    let session = host.open(LONG).await;
    let holder = database.hold(&session).await;

    let calls: Vec<_> = (0..12).map(|_| spawn_heartbeat(&host, &session)).collect();
    database.until_somebody_waits(3).await;
    let connections: i64 = database
        .scalar(
            "SELECT count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'tenure'",
        )
        .await;
    holder.batch_execute("COMMIT").await.unwrap();

    assert_eq!(connections, 3);
    for call in calls {
        assert!(call.await.unwrap().unwrap().is_alive());
    }
}

// Servers that are not there.

async fn every_call_is_contention(url: &str) -> Vec<String> {
    let pool = Database::new(url, &options(2, SOON)).unwrap();
    let host = Host::on(pool, lifecycle());

    let session = Uuid::new_v4().into();
    let said = every_call(&host, &session, 1.try_into().unwrap(), async || ()).await;
    let ping = host.pool.ping().await;
    assert!(matches!(ping, Err(StoreError::Contention(_))), "{ping:?}");
    let migrated = host.pool.migrate().await;
    assert!(
        matches!(
            migrated,
            Err(MigrationError::Unreachable(StoreError::Contention(_)))
        ),
        "{migrated:?}"
    );
    said.into_iter()
        .map(|said| match said {
            Said::Fault(Error::Contention(text)) => text,
            other => panic!("{other:?}"),
        })
        .collect()
}

async fn port() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (
        listener,
        format!("postgres://tester@127.0.0.1:{port}/lockdb"),
    )
}

#[tokio::test]
async fn a_server_that_refuses_connections_is_contention() {
    let (listener, url) = port().await;
    drop(listener);

    let texts = every_call_is_contention(&url).await;

    assert!(texts[0].contains("onnection refused"), "{}", texts[0]);
}

#[tokio::test]
async fn a_server_that_says_nothing_is_contention() {
    // The kernel takes the connections; nobody ever reads from them.
    let (_listener, url) = port().await;

    let texts = every_call_is_contention(&url).await;

    assert_eq!(texts[0], "connecting to the database timed out");
}

#[tokio::test]
async fn a_server_that_hangs_up_is_contention() {
    let (listener, url) = port().await;
    let server = tokio::spawn(async move {
        loop {
            drop(listener.accept().await.unwrap());
        }
    });

    every_call_is_contention(&url).await;

    server.abort();
}

#[tokio::test]
async fn a_socket_that_does_not_exist_is_contention() {
    every_call_is_contention("host=/nonexistent user=tester dbname=lockdb").await;
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_no_contention() {
    let database = TestDatabase::create_empty().await;
    let url = format!("{} dbname=no_such_database", database.url());
    let host = Host::on(Database::new(&url, &options(1, LONG)).unwrap(), lifecycle());

    let answer = host.registry.open_session("tester", LONG).await;

    let Err(Error::Store(text)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(text, r#"database "no_such_database" does not exist"#);
}

#[tokio::test]
async fn a_connection_string_that_cannot_be_read_is_an_error_at_once() {
    for url in ["no connection string", "postgres://host:port/"] {
        let answer = Database::new(url, &DatabaseOptions::default());
        assert!(matches!(answer, Err(StoreError::Other(_))), "{url}");
    }
}

// Servers that fall silent.

#[tokio::test]
async fn a_server_that_falls_silent_in_mid_call_is_contention_after_a_while() {
    let database = TestDatabase::create().await;
    let patient = Host::new(&database);
    let (session, token) = set_up(&patient).await;
    let proxy = database.proxy().await;
    let mut options = options(1, 10 * SOON);
    options.statement_timeout = SOON;
    let mut limits = Limits::default();
    limits.deadline = 3 * SOON;
    let policy = Policy::load(&PolicyEngine::new(limits).unwrap(), LIFECYCLE).unwrap();
    let host = Host::on(Database::new(proxy.url(), &options).unwrap(), policy);
    let silence = "contention: the database was silent for 200 ms";
    let deadline = format!("{:?}", Error::DeadlineExceeded(3 * SOON));
    // Each on a connection that was there before the silence.
    let ready = async || {
        proxy.set(Weather::Clear);
        host.pool.ping().await.unwrap();
        proxy.set(Weather::Silent);
    };

    let said = every_call(&host, &session, token, ready).await;

    for said in &said {
        match said {
            Said::Fault(error) => assert_eq!(error.to_string(), silence),
            // A heartbeat's own limit is the call's.
            Said::Bad(text) if *text == deadline => {}
            said => panic!("{said:?}"),
        }
    }
    ready().await;
    let ping = host.pool.ping().await;
    assert_eq!(ping.unwrap_err().to_string(), silence);
}

#[tokio::test]
async fn a_connection_that_fell_silent_is_not_used_again() {
    let database = TestDatabase::create().await;
    let proxy = database.proxy().await;
    let mut options = options(1, SOON);
    options.statement_timeout = SOON;
    let pool = Database::new(proxy.url(), &options).unwrap();
    let host = Host::on(pool, lifecycle());
    let session = host.open(LONG).await;
    // The statements are prepared from here on.
    let _ = host.lock("j", &session).await;
    let backend = format!("SELECT min(pid) {BACKENDS}");
    let before: i32 = database.scalar(&backend).await;

    proxy.set(Weather::HalfOpen);
    // Done, but nobody is told.
    is_contention(host.locks.try_insert(&key("k"), &session, LONG).await);
    // Its socket is closed.
    database
        .until(0, &format!("SELECT count(*) {BACKENDS}"))
        .await;
    proxy.set(Weather::Clear);

    assert_eq!(host.locks.count_of(&session).await, Ok(2));
    let after: i32 = database.scalar(&backend).await;
    assert_ne!(before, after);
}

/// So it is one round trip, and a caller that goes away leaves nothing half done.
#[tokio::test]
async fn a_transaction_is_sent_whole_before_any_of_it_is_answered() {
    let database = TestDatabase::create().await;
    let proxy = database.proxy().await;
    let pool = Database::new(proxy.url(), &options(1, LONG)).unwrap();
    let host = Host::on(pool, lifecycle());
    let (j, k) = (host.open(LONG).await, host.open(LONG).await);
    let session = |name| if name == "j" { &j } else { &k };

    let take = async |name| {
        let taken = host.locks.try_insert(&key(name), session(name), LONG).await;
        taken.map(drop)
    };
    let granted = "SELECT count(*) FROM lock_entry WHERE lock_key = 'k'";
    is_sent_whole(&database, &proxy, take, granted).await;

    let revoke = async |name| {
        let (name, reason) = (key(name), "stuck for hours");
        let revoked = host.locks.revoke(&name, "carol", reason, None).await;
        revoked.map(drop)
    };
    let recorded = "SELECT count(*) FROM lock_revocation WHERE lock_key = 'k'";
    is_sent_whole(&database, &proxy, revoke, recorded).await;

    let close = async |name| {
        let closed = host.registry.close_session(session(name));
        closed.await.map(drop)
    };
    let gone = format!("SELECT 1 - count(*) FROM lock_session WHERE session_id = '{k}'");
    is_sent_whole(&database, &proxy, close, &gone).await;
}

/// A call on `k` is done although nothing is answered.
async fn is_sent_whole(
    database: &TestDatabase,
    proxy: &Proxy,
    call: impl AsyncFn(&'static str) -> Result<(), Error>,
    done: &str,
) {
    proxy.set(Weather::Clear);
    // The statements are prepared from here on.
    call("j").await.unwrap();
    proxy.set(Weather::HalfOpen);
    tokio::select! {
        answer = call("k") => panic!("it was answered: {answer:?}"),
        () = database.until(1, done) => {}
    }
}

// Connections that are not as they should be.

const BACKENDS: &str = "FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name = 'tenure'";

/// Ends the server's side of every connection of the hosts.
async fn kill_all(database: &TestDatabase) -> i64 {
    database
        .scalar(&format!(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) {BACKENDS}"
        ))
        .await
}

#[tokio::test]
async fn a_connection_that_was_left_in_a_transaction_is_not_handed_on() {
    let database = TestDatabase::create().await;
    let host = Host::on(database.pool_with(&options(1, LONG)), lifecycle());
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;
    let holder = database.hold(&session).await;

    let close = tokio::spawn({
        let (registry, session) = (host.registry.clone(), session.clone());
        async move { registry.close_session(&session).await }
    });
    database.until_somebody_waits(1).await;
    // The first statement after the transaction's BEGIN.
    let at: String = database.scalar(&format!("SELECT query {BACKENDS}")).await;
    assert_eq!(at, sql::CLOSE_SESSION_LOCK);
    let before: i32 = database.scalar(&format!("SELECT pid {BACKENDS}")).await;
    close.abort();
    assert!(close.await.unwrap_err().is_cancelled());
    let other = host.open(LONG).await;
    database
        .until(1, &format!("SELECT count(*) {BACKENDS}"))
        .await;
    let after: i32 = database.scalar(&format!("SELECT pid {BACKENDS}")).await;

    assert_ne!(before, after);
    // Committed on its own, not a part of what was given up, which is rolled back.
    assert!(host.locks.session_stands(&other).await.unwrap());
    assert_eq!(database.sessions().await, 2);
    drop(holder);
    assert_eq!(host.locks.count_of(&session).await, Ok(1));
}

#[tokio::test]
async fn connections_that_are_killed_while_idle_cost_contention_at_most() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    // Several connections, by calls that wait at the same time.
    let holder = database.hold(&session).await;
    let patient = Host::on(database.pool_with(&options(4, LONG)), lifecycle());
    let calls: Vec<_> = (0..4)
        .map(|_| spawn_heartbeat(&patient, &session))
        .collect();
    database.until_somebody_waits(4).await;
    holder.batch_execute("COMMIT").await.unwrap();
    for call in calls {
        assert!(call.await.unwrap().unwrap().is_alive());
    }

    assert_eq!(kill_all(&database).await, 5);

    // Each of the four may cost one call, and no more.
    let mut said = Vec::new();
    for _ in 0..5 {
        let beat = patient.registry.heartbeat(&session, LONG).await;
        said.push(Said::of(beat, Heartbeat::is_alive));
    }
    assert!(
        said.iter().all(|said| !matches!(said, Said::Bad(_))),
        "{said:?}"
    );
    assert_eq!(said[4], Said::Good);
    let (session, token) = set_up(&patient).await;
    every_call_works(&patient, &session, token).await;
}

#[tokio::test]
async fn whichever_call_meets_a_killed_connection_says_neither_dead_nor_lost() {
    let database = TestDatabase::create().await;
    let host = Host::on(database.pool_with(&options(1, LONG)), lifecycle());
    let (session, token) = set_up(&host).await;

    let said = every_call(&host, &session, token, async || {
        kill_all(&database).await;
    })
    .await;

    assert!(
        said.iter().all(|said| !matches!(said, Said::Bad(_))),
        "{said:?}"
    );
    // Two in a row: the first at most meets a connection that broke.
    let _ = host.pool.ping().await;
    let (session, token) = set_up(&host).await;
    every_call_works(&host, &session, token).await;
}

#[tokio::test]
async fn a_call_whose_connection_is_killed_while_it_waits_is_contention() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let (session, token) = set_up(&host).await;
    let holder = database.hold(&session).await;
    holder
        .batch_execute("SELECT FROM lock_entry FOR UPDATE")
        .await
        .unwrap();
    let waiting = format!(
        "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid, 10000)) {BACKENDS}
            AND wait_event_type = 'Lock'"
    );

    let (registry, locks, k) = (&host.registry, &host.locks, key("k"));
    let killed = async || {
        database.until_somebody_waits(1).await;
        assert_eq!(database.scalar::<i64>(&waiting).await, 1);
    };
    let text = [
        is_contention(join!(registry.heartbeat(&session, LONG), killed()).0),
        is_contention(join!(registry.close_session(&session), killed()).0),
        is_contention(join!(locks.try_insert(&k, &session, LONG), killed()).0),
        is_contention(join!(locks.extend(&k, token, LONG), killed()).0),
        is_contention(join!(locks.delete_if_owner(&k, token), killed()).0),
        is_contention(join!(locks.revoke(&k, "ops", "for a test", None), killed()).0),
    ];

    for text in text {
        let expected = "terminating connection due to administrator command";
        assert_eq!(text, expected);
    }
    drop(holder);
    every_call_works(&host, &session, token).await;
}

// Settings.

/// The settings of the connection that opens a session, as it sees them.
pub async fn settings(database: &TestDatabase, pool: Database) -> BTreeMap<String, String> {
    let host = Host::on(pool, lifecycle());
    let _ = host.open(LONG).await;
    let rows = database
        .connect()
        .await
        .query("SELECT name, setting FROM seen", &[])
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// Writes down the settings that every session is opened under. The database's own defaults
/// are as bad as can be.
pub async fn watched_database() -> TestDatabase {
    let database = TestDatabase::create().await;
    let name: String = database.scalar("SELECT current_database()::text").await;
    database
        .execute(&format!(
            "CREATE TABLE seen AS SELECT name, setting FROM pg_settings WHERE false;
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 DELETE FROM seen;
                 INSERT INTO seen SELECT name, setting FROM pg_settings;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER see AFTER INSERT ON lock_session
                FOR EACH STATEMENT EXECUTE FUNCTION see();
             ALTER DATABASE {name} SET lock_timeout = 0;
             ALTER DATABASE {name} SET statement_timeout = 0;
             ALTER DATABASE {name} SET idle_in_transaction_session_timeout = 0;
             ALTER DATABASE {name} SET default_transaction_isolation = 'serializable';
             ALTER DATABASE {name} SET default_transaction_read_only = on;
             ALTER DATABASE {name} SET synchronous_commit = off;
             ALTER DATABASE {name} SET plan_cache_mode = 'force_custom_plan'"
        ))
        .await;
    database
}

#[tokio::test]
async fn connections_have_the_settings_that_the_statements_rest_on() {
    let database = watched_database().await;

    let seen = settings(&database, database.pool()).await;

    for (name, value) in [
        ("application_name", "tenure"),
        ("lock_timeout", "250"),
        ("statement_timeout", "5000"),
        ("idle_in_transaction_session_timeout", "5000"),
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_read_only", "off"),
        ("synchronous_commit", "on"),
        ("plan_cache_mode", "force_generic_plan"),
        ("enable_seqscan", "off"),
        ("jit", "off"),
    ] {
        assert_eq!(seen[name], value, "{name}");
    }
}

#[tokio::test]
async fn time_limits_are_as_configured_and_never_off() {
    let database = watched_database().await;
    let mut options = DatabaseOptions::default();
    options.lock_timeout = Duration::from_micros(1);
    options.statement_timeout = Duration::from_millis(1234);

    let seen = settings(&database, database.pool_with(&options)).await;

    assert_eq!(seen["lock_timeout"], "1");
    assert_eq!(seen["statement_timeout"], "1234");
    assert_eq!(seen["idle_in_transaction_session_timeout"], "1234");
}

#[tokio::test]
async fn settings_of_the_connection_string_are_kept_unless_the_statements_need_others() {
    let database = watched_database().await;
    let url = format!(
        "{} application_name=ours options='-c work_mem=5MB -c lock_timeout=0 -c \
         synchronous_commit=off'",
        database.url()
    );
    let pool = Database::new(&url, &DatabaseOptions::default()).unwrap();

    let seen = settings(&database, pool).await;

    assert_eq!(seen["application_name"], "ours");
    assert_eq!(seen["work_mem"], "5120");
    assert_eq!(seen["lock_timeout"], "250");
    assert_eq!(seen["synchronous_commit"], "on");
}
