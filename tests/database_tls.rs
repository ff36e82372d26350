//! TLS between a host and its database.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tenure::postgres::private::{DATABASE, PrivateCluster};
use tenure::postgres::{MigrationError, StoreError, TrustedAuthorities};
use tenure::{Database, DatabaseOptions};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::support::host::{Host, LONG, lifecycle};
use crate::support::program::{Folder, Server, complaint, run, tenure};
use crate::support::server::server_program;
use crate::support::tls::Authority;

/// Nothing ends by itself in the time of a test.
const NEVER: Duration = Duration::from_secs(3600);

/// A PostgreSQL on a port of the loopback, whose certificate is for `localhost` and for that
/// address. `tenure` comes in by TLS and a password only, `plain` without TLS only.
struct Postgres {
    process: Child,
    port: u16,
    authority: Authority,
    folder: Folder,
}

impl Postgres {
    async fn start() -> Self {
        let folder = Folder::new();
        let data = folder.path().join("data");
        // It listens on a socket only, but knows how a cluster is made.
        let cluster = PrivateCluster::start(&data).await.unwrap();
        let (client, connection) = tokio_postgres::connect(&cluster.url(DATABASE), NoTls)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        for statement in [
            "ALTER ROLE tenure PASSWORD 'secret'",
            "CREATE ROLE plain SUPERUSER LOGIN",
            "ALTER SYSTEM SET ssl = on",
        ] {
            client.batch_execute(statement).await.unwrap();
        }
        drop(client);
        connection.await.unwrap().unwrap();
        let program = server_program(&cluster, "postgres");
        cluster.stop().await.unwrap();

        let data = data.join("postgres");
        let owner = fs::metadata(&data).unwrap();
        let authority = Authority::new("the database's");
        let issued = authority.issue(&["localhost", "127.0.0.1"]);
        let access = "hostssl all tenure 127.0.0.1/32 scram-sha-256\n\
                      hostnossl all plain 127.0.0.1/32 trust\n";
        for (name, text) in [
            ("server.crt", issued.certificate.as_str()),
            ("server.key", issued.key.as_str()),
            ("pg_hba.conf", access),
        ] {
            let file = data.join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            chown(&file, Some(owner.uid()), Some(owner.gid())).unwrap();
        }
        // Free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let port = port.unwrap().port();
        let process = Command::new(program)
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(["-c", &format!("port={port}")])
            .uid(owner.uid())
            .gid(owner.gid())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.at("log")).unwrap())
            .spawn()
            .unwrap();
        let mut postgres = Self {
            process,
            port,
            authority,
            folder,
        };
        let deadline = Instant::now() + LONG;
        while postgres.connect().await.is_err() {
            let ended = postgres.process.try_wait().unwrap();
            let log = || fs::read_to_string(postgres.folder.at("log")).unwrap();
            assert!(ended.is_none() && Instant::now() < deadline, "{}", log());
            sleep(Duration::from_millis(20)).await;
        }
        postgres
    }

    /// A connection string that asks for TLS, with whatever else.
    fn url(&self, more: &str) -> String {
        let port = self.port;
        format!("host=localhost port={port} user=tenure password=secret dbname={DATABASE} {more}")
    }

    /// To look, without TLS.
    async fn connect(&self) -> Result<Client, tokio_postgres::Error> {
        let port = self.port;
        let url = format!("host=127.0.0.1 port={port} user=plain dbname={DATABASE}");
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    fn trusting(&self) -> DatabaseOptions {
        trusting(&self.authority)
    }

    async fn turn_tls_off(&self) {
        let client = self.connect().await.unwrap();
        for statement in ["ALTER SYSTEM SET ssl = off", "SELECT pg_reload_conf()"] {
            client.batch_execute(statement).await.unwrap();
        }
        let deadline = Instant::now() + LONG;
        loop {
            let client = self.connect().await.unwrap();
            let row = client.query_one("SHOW ssl", &[]).await.unwrap();
            if row.get::<_, String>(0) == "off" {
                return;
            }
            assert!(Instant::now() < deadline, "TLS stays on");
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let id = i32::try_from(self.process.id()).unwrap();
        // SAFETY: no memory is involved, and the child has not been waited for.
        unsafe { libc::kill(id, libc::SIGINT) };
        let _ = self.process.wait();
    }
}

fn trusting(authority: &Authority) -> DatabaseOptions {
    let authorities = TrustedAuthorities::from_pem(authority.certificate().as_bytes());
    let mut options = DatabaseOptions::default();
    options.authorities = Some(authorities.unwrap());
    options
}

/// Waits until the one number that the query answers is this.
async fn until(client: &Client, number: i64, query: &str) {
    let deadline = Instant::now() + LONG;
    loop {
        let found: i64 = client.query_one(query, &[]).await.unwrap().get(0);
        if found == number {
            return;
        }
        assert!(Instant::now() < deadline, "{found}: {query}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn all_of_a_hosts_work_goes_through_tls() {
    let postgres = Postgres::start().await;
    let mut options = postgres.trusting();
    options.lock_timeout = NEVER;
    options.statement_timeout = NEVER;
    let pool = Database::new(&postgres.url(""), &options).unwrap();
    assert!(!pool.migrate().await.unwrap().is_empty());
    let host = Host::on(pool, lifecycle());
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;

    // An address is a name too.
    let url = postgres.url("").replace("localhost", "127.0.0.1");
    let by_address = Database::new(&url, &options).unwrap();
    by_address.ping().await.unwrap();

    // An abandoned statement is cancelled, and waits for the table no more.
    let observer = postgres.connect().await.unwrap();
    observer
        .batch_execute("BEGIN; LOCK TABLE lock_session IN ACCESS EXCLUSIVE MODE")
        .await
        .unwrap();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
    let registry = host.registry.clone();
    let call = tokio::spawn(async move { registry.open_session("waits", LONG).await });
    until(&observer, 1, waiting).await;
    call.abort();
    until(&observer, 0, waiting).await;
    observer.batch_execute("ROLLBACK").await.unwrap();
    host.pool.ping().await.unwrap();
}

#[tokio::test]
async fn a_server_that_cannot_show_who_it_is_is_refused() {
    let postgres = Postgres::start().await;
    let another = trusting(&Authority::new("another"));
    let named = postgres
        .url("hostaddr=127.0.0.1")
        .replace("localhost", "db.test");
    for (url, options, why) in [
        (postgres.url(""), another, "UnknownIssuer"),
        // With the system's authorities, whether or not somebody asked for TLS.
        (
            postgres.url(""),
            DatabaseOptions::default(),
            "UnknownIssuer",
        ),
        (
            postgres.url("sslmode=require"),
            DatabaseOptions::default(),
            "UnknownIssuer",
        ),
        (named, postgres.trusting(), "not valid for name \"db.test\""),
    ] {
        let database = Database::new(&url, &options).unwrap();
        let migrated = match database.migrate().await.unwrap_err() {
            MigrationError::Unreachable(error) => error,
            other => panic!("{other:?}"),
        };
        for error in [database.ping().await.unwrap_err(), migrated] {
            let StoreError::Other(text) = error else {
                panic!("{error:?}");
            };
            for part in [why, "database.ca"] {
                assert!(text.contains(part), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_refused_by_whoever_asked_for_it() {
    let postgres = Postgres::start().await;
    let unencrypted = |more: &str| postgres.url(more).replace("user=tenure", "user=plain");
    let disabled = unencrypted("sslmode=disable");
    let database = Database::new(&disabled, &DatabaseOptions::default()).unwrap();
    database.ping().await.unwrap();
    let error = Database::new(&disabled, &postgres.trusting()).unwrap_err();
    assert!(error.to_string().contains("sslmode=disable"), "{error}");

    postgres.turn_tls_off().await;
    for (more, options) in [
        ("", postgres.trusting()),
        ("sslmode=prefer", postgres.trusting()),
        ("sslmode=require", postgres.trusting()),
        ("sslmode=require", DatabaseOptions::default()),
    ] {
        let database = Database::new(&unencrypted(more), &options).unwrap();
        let error = database.ping().await.unwrap_err().to_string();
        assert!(error.contains("server does not support TLS"), "{error}");
        database.migrate().await.unwrap_err();
    }
    for more in ["", "sslmode=prefer", "sslmode=disable"] {
        let database = Database::new(&unencrypted(more), &DatabaseOptions::default()).unwrap();
        database.ping().await.unwrap();
    }
}

#[tokio::test]
async fn the_program_takes_authorities_from_a_file_or_from_the_system() {
    let postgres = Postgres::start().await;
    let url = postgres.url("");
    let file = postgres
        .folder
        .write("ca.pem", &postgres.authority.certificate());
    let migrate = ["migrate", "--database-url", &url];
    let error = complaint(&mut tenure(migrate), 1);
    assert!(
        error.contains("UnknownIssuer") && error.contains("database.ca"),
        "{error}"
    );
    let migrated = run(tenure(migrate).args(["--database-ca", &file]));
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    let again = run(tenure(migrate).env("SSL_CERT_FILE", &file));
    assert_eq!(again.code, Some(0), "{again:?}");
    let server = Server::start(&["--database-url", &url, "--database-ca", &file]);
    let session = server.open("me", 60_000).await;
    let _ = server.lock("k", &session).await;
    server.stop();

    let empty = postgres.folder.write("empty.pem", "");
    let key = postgres.folder.write(
        "bad.pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    let missing = postgres.folder.at("missing.pem");
    for (authorities, why) in [
        (&missing, "cannot read database.ca"),
        (&empty, "no certificate in it"),
        (&key, "of no use"),
    ] {
        let error = complaint(tenure(migrate).args(["--database-ca", authorities]), 1);
        assert!(
            error.contains(why) && error.contains(authorities),
            "{error}"
        );
    }
    for (mode, why) in [
        ("disable", "sslmode=disable contradicts database.ca"),
        ("verify-full", "always verified"),
    ] {
        let url = postgres.url(&format!("sslmode={mode}"));
        let migrate = ["migrate", "--database-url", &url, "--database-ca", &file];
        let error = complaint(&mut tenure(migrate), 1);
        assert!(error.contains(why), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
    let error = complaint(&mut tenure(["migrate", "--database-ca", &file]), 1);
    assert!(
        error.contains("database.ca") && error.contains("database-url"),
        "{error}"
    );
}
