//! A primary that dies, and a synchronous standby in its place.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tenure::postgres::private::{DATABASE, PrivateCluster};
use tenure::{Acquired, Database, DatabaseOptions, Error};
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::checker::{Call, check};
use crate::client;
use crate::support::host::{Host, LONG, key, lifecycle};
use crate::support::program::Folder;
use crate::support::proxy::{Proxy, Weather};
use crate::support::server::{postmaster, server_program, tell};
use crate::witness::{Recorder, history, watch_deletions};
use crate::workload::Workload;

/// How many numbers of a sequence PostgreSQL writes to its log in advance.
const LOGGED_AHEAD: i64 = 32;

/// Two clusters, each behind a proxy on the loopback, of which the second follows the first.
struct Pair {
    primary: PrivateCluster,
    standby: PrivateCluster,
    /// Before the primary and before the standby, for the hosts.
    ways: [Proxy; 2],
    /// From the standby to the primary.
    stream: Proxy,
    _folder: Folder,
}

async fn connect(cluster: &PrivateCluster) -> Client {
    let (client, connection) = tokio_postgres::connect(&cluster.url(DATABASE), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

fn succeeds(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

impl Pair {
    async fn start() -> Self {
        let folder = Folder::new();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        let primary = PrivateCluster::start(&first).await.unwrap();
        let stream = Proxy::before(&primary.url(DATABASE).parse().unwrap(), 0).await;
        copy(&primary, &second, stream.url());
        let standby = PrivateCluster::start(&second).await.unwrap();
        let client = connect(&primary).await;
        for statement in [
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
        ] {
            client.batch_execute(statement).await.unwrap();
        }
        let ways = [
            Proxy::before(&primary.url(DATABASE).parse().unwrap(), 1).await,
            Proxy::before(&standby.url(DATABASE).parse().unwrap(), 2).await,
        ];
        let pair = Self {
            primary,
            standby,
            ways,
            stream,
            _folder: folder,
        };
        pair.until_in_step(&client).await;
        pair
    }

    /// Waits until the standby is one that commits wait for.
    async fn until_in_step(&self, primary: &Client) {
        let deadline = Instant::now() + LONG;
        loop {
            let rows = primary
                .query(
                    "SELECT FROM pg_stat_replication WHERE sync_state = 'sync'",
                    &[],
                )
                .await
                .unwrap();
            if !rows.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "the standby does not follow");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// With both in its connection string.
    fn host(&self) -> Arc<Host> {
        let ports = self.ways.each_ref().map(Proxy::port);
        let url = format!(
            "host=127.0.0.1,127.0.0.1 port={},{} user=tenure dbname={DATABASE} \
             target_session_attrs=read-write sslmode=disable",
            ports[0], ports[1]
        );
        let mut options = DatabaseOptions::default();
        options.connections = 4;
        options.connect_timeout = Duration::from_secs(1);
        options.statement_timeout = Duration::from_secs(1);
        Arc::new(Host::on(
            Database::new(&url, &options).unwrap(),
            lifecycle(),
        ))
    }

    fn kill_primary(&self) {
        // SAFETY: no memory is involved.
        assert_eq!(
            unsafe { libc::kill(postmaster(&self.primary), libc::SIGKILL) },
            0
        );
    }

    /// Returns when the standby takes writes.
    async fn promote(&self) {
        let client = connect(&self.standby).await;
        let row = client.query_one("SELECT pg_promote()", &[]).await.unwrap();
        assert!(row.get::<_, bool>(0), "the standby was not promoted");
    }

    async fn stop(self) {
        // Killed, so it did not end in order.
        let _ = self.primary.stop().await;
        self.standby.stop().await.unwrap();
    }
}

/// Makes `folder` one in which a private cluster is the standby of another.
fn copy(primary: &PrivateCluster, folder: &Path, stream: &str) {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("tenure.lock"), "").unwrap();
    succeeds(
        Command::new(server_program(primary, "pg_basebackup"))
            .arg("--dbname")
            .arg(stream)
            .args([
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--wal-method=stream",
            ])
            .arg("--pgdata")
            .arg(folder.join("postgres")),
    );
    // PostgreSQL is not root even where the tests are.
    let owner = fs::metadata(primary.data_dir()).unwrap().uid();
    if owner != fs::metadata(folder).unwrap().uid() {
        let owner = owner.to_string();
        succeeds(Command::new("chown").arg("-R").arg(owner).arg(folder));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_primary() {
    let pair = Pair::start().await;
    let hosts = [pair.host(), pair.host()];
    hosts[0].pool.migrate().await.unwrap();
    watch_deletions(&connect(&pair.primary).await).await;
    let reapers = hosts.each_ref().map(|host| {
        let locks = host.locks.clone();
        tokio::spawn(locks.reap_every(Duration::from_millis(50)))
    });
    let recorder = Arc::new(Recorder::new());
    let mut rng = Rng::new();

    let workload = Workload::on(&hosts, &recorder, &mut rng);
    sleep(Duration::from_millis(1500)).await;
    pair.kill_primary();
    let died = Instant::now();
    sleep(Duration::from_millis(300)).await;
    pair.promote().await;
    for host in &hosts {
        while let Err(error) = host.registry.open_session("afterwards", LONG).await {
            assert!(error.is_retry_safe(), "{error:?}");
            assert!(died.elapsed() < LONG, "{error:?}");
        }
    }
    let without = died.elapsed();
    sleep(Duration::from_millis(1500)).await;
    workload.stop().await;
    for reaper in reapers {
        reaper.abort();
    }

    let mut history = history(&connect(&pair.standby).await, &recorder).await;
    client::fill_in_closes(&mut history).unwrap();
    let violations = check(&history);
    assert!(violations.is_empty(), "{violations:#?}");
    let after = history
        .events
        .iter()
        .filter(|event| event.from > recorder.at(died));
    let granted = |call: &Call| {
        let granted = crate::checker::Acquired::Granted { token: 0, at: None };
        matches!(call, Call::Acquire { answer: Some(answer), .. }
                 if std::mem::discriminant(answer) == std::mem::discriminant(&granted))
    };
    assert!(after.filter(|event| granted(&event.call)).count() > 0);
    tell(&format!(
        "failover: {} calls, {} ms without service, of which 300 ms before the promotion",
        history.events.len(),
        without.as_millis()
    ));
    pair.stop().await;
}

/// A sequence is written to the log some numbers ahead. So a standby that takes over goes on
/// above every token that anybody was granted, may leave some out, and may repeat those that
/// nobody was told of: the ones of transactions that never committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_sequence_skips_a_few_and_repeats_only_tokens_never_granted() {
    let pair = Pair::start().await;
    let host = pair.host();
    host.pool.migrate().await.unwrap();
    let session = host.open(LONG).await;
    let mut last = 0;
    for _ in 0..40 {
        last = host.lock("k", &session).await.token.get();
    }
    // The standby hears no more, so no commit is acknowledged.
    pair.stream.set(Weather::Silent);
    let primary = connect(&pair.primary).await;
    primary.batch_execute("BEGIN").await.unwrap();
    let drawn: i64 = primary
        .query_one(
            "SELECT max(nextval('fencing_token_seq')) FROM generate_series(1, 100)",
            &[],
        )
        .await
        .map(|row| row.get(0))
        .unwrap();
    let answer = host.locks.try_insert(&key("k"), &session, LONG).await;
    assert!(matches!(answer, Err(Error::Contention(_))), "{answer:?}");

    pair.kill_primary();
    pair.promote().await;

    let next = granted_at_last(&host, "k", &session).await;
    assert!(next > last, "{next} after {last}");
    assert!(next <= last + LOGGED_AHEAD + 1, "{next} after {last}");
    assert!(next <= drawn, "{next} was not drawn before: {drawn}");
    pair.stop().await;
}

/// Once the host has found the new primary.
async fn granted_at_last(host: &Host, name: &str, session: &tenure::SessionId) -> i64 {
    let begun = Instant::now();
    loop {
        match host.locks.try_insert(&key(name), session, LONG).await {
            Ok(Acquired::Granted(grant)) => return grant.token.get(),
            Err(error) if error.is_retry_safe() => assert!(begun.elapsed() < LONG, "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
