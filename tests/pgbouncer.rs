//! Behind PgBouncer: it works where a connection has a session of its own, and is refused where
//! one is lent from transaction to transaction.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::future::try_join_all;
use tenure::policy::LIFECYCLE;
use tenure::postgres::{MigrationError, StoreError};
use tenure::{Closed, Database, DatabaseOptions, Error, Limits, Policy, PolicyEngine, Revoked};
use tokio_postgres::{Config, NoTls};

use crate::pool::{settings, watched_database};
use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, key, lifecycle};
use crate::support::program::{Folder, complaint, tenure, until};
use crate::support::proxy::Proxy;
use crate::support::toolchain;

fn is_there() -> bool {
    toolchain::is_there(&Path::new(env!("CARGO_MANIFEST_DIR")).join("pgbouncer/setup"))
}

/// One that runs, on a socket in its folder.
struct PgBouncer {
    child: Child,
    url: String,
    /// It runs as a user who may not be let in to PostgreSQL's socket.
    _way: Proxy,
    _folder: Folder,
}

impl PgBouncer {
    /// With these settings besides, a line each.
    async fn before(database: &TestDatabase, settings: &str) -> Self {
        let way = database.proxy().await;
        let folder = Folder::new();
        let sockets = folder.at("sockets");
        fs::create_dir(&sockets).unwrap();
        fs::set_permissions(&sockets, Permissions::from_mode(0o777)).unwrap();
        let config = folder.write(
            "pgbouncer.ini",
            &format!(
                "[databases]\nlocks = {}\n[pgbouncer]\nauth_type = any\nlisten_addr =\n\
                 unix_socket_dir = {sockets}\n{settings}\n",
                // Which PgBouncer does not know.
                way.url().replace("sslmode=disable", "")
            ),
        );
        let mut command = Command::new("pgbouncer");
        // SAFETY: no memory is involved.
        if unsafe { libc::geteuid() } == 0 {
            command.args(["-u", "nobody"]);
        }
        let log = File::create(folder.at("log")).unwrap();
        command.arg(config).stdin(Stdio::null()).stderr(log);
        let mut child = command.spawn().unwrap();
        let socket = PathBuf::from(&sockets).join(".s.PGSQL.6432");
        until("PgBouncer's socket", || {
            let log = fs::read_to_string(folder.at("log")).unwrap();
            assert_eq!(child.try_wait().unwrap(), None, "it ended: {log}");
            UnixStream::connect(&socket).ok()
        });
        Self {
            child,
            url: format!("host={sockets} port=6432 user=anyone dbname=locks"),
            _way: way,
            _folder: folder,
        }
    }

    fn pool(&self, options: &DatabaseOptions) -> Database {
        Database::new(&self.url, options).unwrap()
    }

    /// Lets it have this many idle sessions of PostgreSQL's.
    async fn warm_up(&self, sessions: usize) {
        let config: Config = self.url.parse().unwrap();
        let clients = try_join_all((0..sessions).map(async |_| {
            let (client, connection) = config.connect(NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute("BEGIN").await?;
            Ok::<_, tokio_postgres::Error>(client)
        }));
        for client in clients.await.unwrap() {
            client.batch_execute("COMMIT").await.unwrap();
        }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SESSION: &str = "pool_mode = session";
const TRANSACTION: &str = "pool_mode = transaction";

#[tokio::test]
async fn with_a_session_for_each_connection_everything_works() {
    if !is_there() {
        return;
    }
    let database = TestDatabase::create_empty().await;
    let pooler = PgBouncer::before(&database, SESSION).await;
    let pools = [(); 2].map(|()| pooler.pool(&DatabaseOptions::default()));
    pools[0].migrate().await.unwrap();
    let [one, other] = pools.map(|pool| Host::on(pool, lifecycle()));

    let session = one.open(LONG).await;
    let token = one.lock("k", &session).await.token;
    let _ = other.lock("l", &session).await;
    let beats = (0..10).map(|_| other.registry.heartbeat(&session, LONG));
    for beat in try_join_all(beats).await.unwrap() {
        assert!(beat.is_alive());
    }
    let revoked = one.locks.revoke(&key("l"), "ops", "for a test", None).await;
    assert!(matches!(revoked, Ok(Revoked::Done(_))), "{revoked:?}");
    assert!(other.lock("k", &session).await.token > token);
    let closed = one.registry.close_session(&session).await;
    let (existed, locks_released) = (true, 1);
    let expected = Closed {
        existed,
        locks_released,
    };
    assert_eq!(closed, Ok(expected));
    let beat = other.registry.heartbeat(&session, LONG).await.unwrap();
    assert!(!beat.is_alive());
}

#[tokio::test]
async fn the_settings_are_there_without_a_word_in_its_configuration() {
    if !is_there() {
        return;
    }
    let database = watched_database().await;
    let pooler = PgBouncer::before(&database, SESSION).await;

    let seen = settings(&database, pooler.pool(&DatabaseOptions::default())).await;

    for (name, value) in [
        ("lock_timeout", "250"),
        ("statement_timeout", "5000"),
        ("default_transaction_isolation", "read committed"),
        ("synchronous_commit", "on"),
        ("plan_cache_mode", "force_generic_plan"),
    ] {
        assert_eq!(seen[name], value, "{name}");
    }
}

/// PgBouncer may lose the request to cancel it, whose connection ends as soon as it is sent.
#[tokio::test]
async fn what_is_given_up_ends_within_the_servers_own_limits() {
    if !is_there() {
        return;
    }
    let database = TestDatabase::create().await;
    let pooler = PgBouncer::before(&database, SESSION).await;
    let mut options = DatabaseOptions::default();
    options.lock_timeout = Duration::from_secs(1);
    let mut limits = Limits::default();
    limits.calls_in_flight = 4;
    limits.deadline = Duration::from_millis(500);
    let policy = Policy::load(&PolicyEngine::new(limits).unwrap(), LIFECYCLE).unwrap();
    let host = Host::on(pooler.pool(&options), policy);
    // So that the time goes to the statement, not to the connection.
    host.pool.ping().await.unwrap();
    let session = Host::new(&database).open(LONG).await;
    let _holder = database.hold(&session).await;

    let closed = host.registry.close_session(&session).await;

    assert!(
        matches!(closed, Err(Error::DeadlineExceeded(_))),
        "{closed:?}"
    );
    database.until_somebody_waits(0).await;
    database.until_hosts_are_idle().await;
    assert_eq!(database.sessions().await, 1);
}

/// Whatever it lends first, last or in turn, and however many it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_sessions_are_lent_it_is_refused_with_the_setting_that_helps() {
    if !is_there() {
        return;
    }
    let database = TestDatabase::create_empty().await;
    for more in ["", "server_round_robin = 1", "default_pool_size = 1"] {
        for sessions in [0, 1, 2, 3, 8] {
            if more.contains("size") && sessions > 1 {
                continue;
            }
            let pooler = PgBouncer::before(&database, &format!("{TRANSACTION}\n{more}")).await;
            pooler.warm_up(sessions).await;

            let migrated = pooler.pool(&DatabaseOptions::default()).migrate().await;

            let Err(MigrationError::Unreachable(StoreError::Other(why))) = migrated else {
                panic!("{more}, {sessions}: {migrated:?}");
            };
            assert!(why.contains("set pool_mode = session"), "{why}");
        }
    }
    // It is found out before anything is done.
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(database.scalar::<i64>(tables).await, 0);

    let pooler = PgBouncer::before(&database, TRANSACTION).await;
    let serve = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--database-url",
        &pooler.url,
    ];
    let complained = complaint(&mut tenure(serve), 1);
    let expected = "tenure: cannot reach the database: between here and PostgreSQL is a pooler";
    assert!(complained.starts_with(expected), "{complained}");
}

#[tokio::test]
async fn where_there_are_too_few_sessions_it_does_not_wait_for_ever() {
    if !is_there() {
        return;
    }
    let database = TestDatabase::create_empty().await;
    let few = format!("{SESSION}\ndefault_pool_size = 2");
    let pooler = PgBouncer::before(&database, &few).await;
    let mut options = DatabaseOptions::default();
    options.statement_timeout = Duration::from_millis(500);

    let migrated = pooler.pool(&options).migrate().await;

    let Err(MigrationError::Unreachable(StoreError::Contention(why))) = migrated else {
        panic!("{migrated:?}");
    };
    assert_eq!(why, "3 connections at once had no answer within 500 ms");
}
