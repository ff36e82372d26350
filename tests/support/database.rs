//! A database of a test's own, empty but for the schema.
//!
//! To create one takes half a second, so a test that is over leaves its own to the next:
//! emptied, cut off from whoever still uses it, and under another name, which nobody knows.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tenure::{Database, DatabaseOptions, SessionId};
use tokio_postgres::{Client, Config, NoTls, Row};

use super::proxy::Proxy;
use super::server;

pub struct TestDatabase {
    name: String,
    config: Config,
}

impl TestDatabase {
    /// With the schema.
    pub async fn create() -> Self {
        let database = Self::create_empty().await;
        database
            .pool()
            .migrate()
            .await
            .expect("migrations on an empty database");
        database
    }

    /// Without the schema.
    pub async fn create_empty() -> Self {
        let mut config = server::config();
        let left = left_over().pop();
        let name = match left {
            Some(name) => name,
            None => {
                let name = new_name();
                connect(&config)
                    .await
                    .batch_execute(&format!("CREATE DATABASE {name}"))
                    .await
                    .unwrap();
                name
            }
        };
        config.dbname(&name);
        Self { name, config }
    }

    /// A pool of the usual size.
    pub fn pool(&self) -> Database {
        self.pool_with(&DatabaseOptions::default())
    }

    pub fn pool_with(&self, options: &DatabaseOptions) -> Database {
        Database::new(&self.url(), options).unwrap()
    }

    /// A connection string.
    pub fn url(&self) -> String {
        connection_string(&self.config)
    }

    /// A proxy before it.
    pub async fn proxy(&self) -> Proxy {
        Proxy::before(&self.config, fastrand::u64(..)).await
    }

    /// The same as the variables that libpq, and most drivers, read.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        use tokio_postgres::config::Host;
        let config = &self.config;
        let mut variables = vec![("PGDATABASE", self.name.clone())];
        variables.extend(config.get_hosts().first().map(|host| match host {
            Host::Tcp(host) => ("PGHOST", host.clone()),
            Host::Unix(path) => ("PGHOST", path.display().to_string()),
        }));
        variables.extend(
            config
                .get_ports()
                .first()
                .map(|port| ("PGPORT", port.to_string())),
        );
        variables.extend(config.get_user().map(|user| ("PGUSER", user.to_owned())));
        variables.extend(
            config
                .get_password()
                .map(|password| ("PGPASSWORD", String::from_utf8_lossy(password).into_owned())),
        );
        variables
    }

    /// A connection past the pool, to look and to interfere.
    pub async fn connect(&self) -> Client {
        connect(&self.config).await
    }

    /// One row of one column.
    pub async fn scalar<T>(&self, query: &str) -> T
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let row: Row = self.connect().await.query_one(query, &[]).await.unwrap();
        row.get(0)
    }

    /// Lets a session's lease be over, by the clock of every transaction that begins later.
    pub async fn expire(&self, session: &SessionId) {
        self.execute(&format!(
            "UPDATE lock_session
                SET created_at = created_at - interval '1 hour', expires_at = clock_timestamp()
              WHERE session_id = '{session}'"
        ))
        .await;
    }

    /// Lets a lock's own lease be over, while its session lives on.
    pub async fn lapse(&self, key: &str) {
        self.execute(&format!(
            "UPDATE lock_entry
                SET acquired_at = acquired_at - interval '1 hour', expires_at = clock_timestamp()
              WHERE lock_key = '{key}'"
        ))
        .await;
    }

    pub async fn sessions(&self) -> i64 {
        self.scalar("SELECT count(*) FROM lock_session").await
    }

    pub async fn locks(&self) -> i64 {
        self.scalar("SELECT count(*) FROM lock_entry").await
    }

    pub async fn execute(&self, sql: &str) {
        self.connect().await.batch_execute(sql).await.unwrap();
    }

    /// A connection past the pool, in the middle of a transaction that has run this. Dropped,
    /// it rolls back.
    pub async fn begin(&self, sql: &str) -> Client {
        let client = self.connect().await;
        client.batch_execute("BEGIN").await.unwrap();
        client.batch_execute(sql).await.unwrap();
        client
    }

    /// Holds a session's row as another transaction would, until the connection commits.
    pub async fn hold(&self, session: &SessionId) -> Client {
        self.begin(&format!(
            "SELECT FROM lock_session WHERE session_id = '{session}' FOR UPDATE"
        ))
        .await
    }

    /// Counts the attempts to take a lock from now on, those that are granted nothing too.
    pub async fn count_attempts(&self) {
        self.execute(
            "CREATE SEQUENCE attempts MINVALUE 0;
             CREATE FUNCTION count_attempt() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM nextval('attempts');
                 RETURN NULL;
             END $$;
             CREATE TRIGGER attempt AFTER INSERT ON lock_entry FOR EACH STATEMENT
                 EXECUTE FUNCTION count_attempt()",
        )
        .await;
    }

    /// How many there were so far.
    pub async fn attempts(&self) -> i64 {
        self.scalar("SELECT last_value + is_called::int FROM attempts")
            .await
    }

    /// Waits until the hosts' connections have nothing to do and are in no transaction.
    pub async fn until_hosts_are_idle(&self) {
        self.until(
            0,
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'tenure' \
               AND state <> 'idle'",
        )
        .await;
    }

    /// Waits until some connection of this database is waiting for a lock of another: the
    /// way to know that a call has got as far as it is meant to.
    pub async fn until_somebody_waits(&self, how_many: i64) {
        self.until(
            how_many,
            "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .await;
    }

    /// Waits until a count is this.
    pub async fn until(&self, count: i64, query: &str) {
        let client = self.connect().await;
        let mut found: i64 = -1;
        for _ in 0..1000 {
            found = client.query_one(query, &[]).await.unwrap().get(0);
            if found == count {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{found} instead of {count}: {query}");
    }
}

/// What [`Config`] has parsed, as text again: hosts, ports, user, password, database. Without
/// TLS, as the tests' own connections are, so that a proxy sees what is sent.
pub fn connection_string(config: &Config) -> String {
    use std::fmt::Write as _;
    use tokio_postgres::config::Host;
    let mut url = String::new();
    let quoted = |text: &str| text.replace('\\', r"\\").replace('\'', r"\'");
    for host in config.get_hosts() {
        match host {
            Host::Tcp(host) => write!(url, "host='{}' ", quoted(host)).unwrap(),
            Host::Unix(path) => {
                write!(url, "host='{}' ", quoted(&path.display().to_string())).unwrap();
            }
        }
    }
    for port in config.get_ports() {
        write!(url, "port={port} ").unwrap();
    }
    if let Some(user) = config.get_user() {
        write!(url, "user='{}' ", quoted(user)).unwrap();
    }
    if let Some(password) = config.get_password() {
        let password = String::from_utf8_lossy(password);
        write!(url, "password='{}' ", quoted(&password)).unwrap();
    }
    if let Some(name) = config.get_dbname() {
        write!(url, "dbname='{}' ", quoted(name)).unwrap();
    }
    url + "sslmode=disable"
}

/// Keeps statements waiting in the middle of what they do, until it is opened.
pub struct Gate {
    keeper: Client,
}

impl Gate {
    /// `event` is where they wait, as `CREATE TRIGGER` spells it: when, on which table, for
    /// each row or statement, on which condition.
    pub async fn shut(database: &TestDatabase, event: &str) -> Self {
        let keeper = database.connect().await;
        keeper
            .batch_execute(&format!(
                "SELECT pg_advisory_lock(1);
                 CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN
                     PERFORM pg_advisory_xact_lock_shared(1);
                     IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER gate {event} EXECUTE FUNCTION wait_at_gate()"
            ))
            .await
            .unwrap();
        Self { keeper }
    }

    pub async fn open(self) {
        self.keeper
            .batch_execute("SELECT pg_advisory_unlock(1)")
            .await
            .unwrap();
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        // The test's runtime is about to end, and cannot be waited on from here.
        match in_a_runtime(empty(self.name.clone())) {
            Ok(name) => left_over().push(name),
            Err(error) => eprintln!("the database {} is not used again: {error}", self.name),
        }
    }
}

/// Removes what the tests have left, at the end of the run.
pub fn drop_left_over() {
    let names = std::mem::take(&mut *left_over());
    let dropped = in_a_runtime(async move {
        let server = connect(&server::config()).await;
        for name in names {
            server
                .batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
                .await?;
        }
        Ok(())
    });
    if let Err(error) = dropped {
        eprintln!("not every database of the tests was dropped: {error}");
    }
}

fn left_over() -> MutexGuard<'static, Vec<String>> {
    static LEFT_OVER: Mutex<Vec<String>> = Mutex::new(Vec::new());
    LEFT_OVER.lock().unwrap()
}

fn new_name() -> String {
    format!("tenure_test_{}", uuid::Uuid::new_v4().simple())
}

/// Returns the database's new name.
async fn empty(name: String) -> Result<String, tokio_postgres::Error> {
    let mut config = server::config();
    let server = connect(&config).await;
    server
        .batch_execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        .await?;
    server
        .query(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1",
            &[&name],
        )
        .await?;
    let renamed = new_name();
    for statement in [
        format!("ALTER DATABASE {name} RENAME TO {renamed}"),
        format!("ALTER DATABASE {renamed} RESET ALL"),
        format!("ALTER DATABASE {renamed} ALLOW_CONNECTIONS true"),
    ] {
        server.batch_execute(&statement).await?;
    }
    config.dbname(&renamed);
    connect(&config)
        .await
        .batch_execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        .await?;
    Ok(renamed)
}

fn in_a_runtime<T: Send + 'static>(
    work: impl Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
) -> Result<T, String> {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(work)
    })
    .join()
    .map_err(|_| "it panicked".to_owned())?
    .map_err(|error| format!("{error:?}"))
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}
