//! A database of a test's own, empty but for the schema, gone with the test.

use std::time::Duration;

use tenure::{Database, DatabaseOptions};
use tokio_postgres::{Client, Config, NoTls, Row};

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
        let name = format!("tenure_test_{}", uuid::Uuid::new_v4().simple());
        let mut config = server::config();
        connect(&config)
            .await
            .batch_execute(&format!("CREATE DATABASE {name}"))
            .await
            .unwrap();
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
        use std::fmt::Write as _;
        use tokio_postgres::config::Host;
        let config = &self.config;
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
        write!(url, "dbname={}", self.name).unwrap();
        url
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

    pub async fn sessions(&self) -> i64 {
        self.scalar("SELECT count(*) FROM lock_session").await
    }

    pub async fn locks(&self) -> i64 {
        self.scalar("SELECT count(*) FROM lock_entry").await
    }

    pub async fn execute(&self, sql: &str) {
        self.connect().await.batch_execute(sql).await.unwrap();
    }

    /// Waits until some connection of this database is waiting for a lock of another: the
    /// way to know that a call has got as far as it is meant to.
    pub async fn until_somebody_waits(&self, how_many: i64) {
        let client = self.connect().await;
        for _ in 0..1000 {
            let waiting: i64 = client
                .query_one(
                    "SELECT count(*) FROM pg_stat_activity \
                     WHERE datname = current_database() AND wait_event_type = 'Lock'",
                    &[],
                )
                .await
                .unwrap()
                .get(0);
            if waiting >= how_many {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("nobody waits for a lock");
    }
}

async fn connect(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let (config, name) = (server::config(), self.name.clone());
        // The test's runtime is about to end, and cannot be waited on from here.
        let dropped = std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap()
                .block_on(async {
                    connect(&config)
                        .await
                        .batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
                        .await
                })
        })
        .join();
        if !matches!(dropped, Ok(Ok(()))) {
            eprintln!("the database {} was not dropped: {dropped:?}", self.name);
        }
    }
}
