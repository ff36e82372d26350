//! What a heartbeat costs, beside its peers on the same machine and in the same run, and what
//! the other calls cost.
//!
//! Closed loops with a warm-up. Every answer is counted, any but the expected one ends the
//! run, and PostgreSQL's own count of what it has written has to agree.

mod load;
mod operations;
mod paths;
mod peers;
mod report;
mod stage;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use tenure::policy::LIFECYCLE;
use tenure::{Limits, LockStore, Policy, PolicyEngine, SessionRegistry};
use uuid::Uuid;

use load::{Client, Pace};
use operations::{Acquires, Closes, Opens, Renews};
use paths::{Component, Http, Native, Server};
use peers::{Etcd, Redis};
use report::{GROWTH, Report, Row};
use stage::{HOT_UPDATES, Stage, UPDATES};

#[derive(Parser)]
#[command(about = "Measures heartbeats: Tenure's, pgbench's, etcd's and Redis's")]
struct Arguments {
    /// Shows that everything works, in little time. The figures mean nothing.
    #[arg(long)]
    quick: bool,
    /// How many sessions there are.
    #[arg(long, default_value_t = 100_000)]
    sessions: usize,
    /// For how many seconds each line is measured.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// Only the lines whose name has this in it.
    #[arg(long, default_value = "")]
    only: String,
    /// Where the report goes.
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
}

/// The threads are the machine's, as in the program.
#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    if arguments.quick {
        arguments.sessions = arguments.sessions.min(2000);
        arguments.seconds = 1;
    }
    let scratch = std::env::temp_dir().join(format!("tenure-bench-{}", Uuid::new_v4()));
    fs::create_dir_all(&scratch)?;
    let mut bench = Bench::new(arguments, scratch.clone()).await?;
    let outcome = bench.run().await;
    let stopped = bench.stage.stop().await;
    fs::remove_dir_all(scratch)?;
    outcome?;
    stopped?;
    bench.report.write(&bench.arguments.folder)?;
    println!("{}", bench.arguments.folder.join("report.md").display());
    Ok(())
}

struct Bench {
    arguments: Arguments,
    scratch: PathBuf,
    stage: Stage,
    registry: SessionRegistry,
    /// Whose policy's instances serve many calls.
    reusing: SessionRegistry,
    report: Report,
}

const COMPONENT: &str = "tenure, component";
const REUSING: &str = "tenure, component, reused instances";
const NATIVE: &str = "tenure, native rules";
const HTTP: &str = "tenure, HTTP";
const OPEN: &str = "tenure, open";
const CLOSE: &str = "tenure, close";
const ACQUIRE: &str = "tenure, acquire and release";
const RENEW: &str = "tenure, renew";
const PGBENCH: &str = "pgbench";
const ETCD: &str = "etcd";
const REDIS_ALWAYS: &str = "Redis, fsync always";
const REDIS_EVERYSEC: &str = "Redis, fsync everysec";

/// etcd keeps as many leases as it is given, but takes a while to grant them.
const MOST_LEASES: usize = 10_000;

/// Of PostgreSQL's. `pgbench` has a connection for each client.
const MOST_CONNECTIONS: usize = 90;

/// Sessions to be closed, for each second of that: more than can be.
const CLOSES_A_SECOND: usize = 40_000;

/// As many as `--policy-instances reuse` allows.
const CALLS_PER_INSTANCE: u32 = 100;

fn registry(stage: &Stage, calls_per_instance: u32) -> Result<SessionRegistry> {
    let mut limits = Limits::default();
    limits.calls_per_instance = calls_per_instance;
    let policy = Policy::load(&PolicyEngine::new(limits)?, LIFECYCLE)?;
    Ok(SessionRegistry::new(policy, stage.statements.clone()))
}

impl Bench {
    async fn new(arguments: Arguments, scratch: PathBuf) -> Result<Self> {
        let stage = Stage::new().await?;
        let reusing = registry(&stage, CALLS_PER_INSTANCE)?;
        let registry = registry(&stage, 1)?;
        let mut report = Report::default();
        let cores = std::thread::available_parallelism()?;
        report.about.push(format!(
            "{cores} cores, which all servers and the load share; {} s a line",
            arguments.seconds
        ));
        report.about.push(stage.settings().await?);
        Ok(Self {
            arguments,
            scratch,
            stage,
            registry,
            reusing,
            report,
        })
    }

    fn reconnect(&mut self) -> Result<()> {
        self.stage.reconnect()?;
        for registry in [&mut self.registry, &mut self.reusing] {
            let policy = registry.slot().clone();
            *registry = SessionRegistry::with_slot(policy, self.stage.statements.clone());
        }
        Ok(())
    }

    fn pace(&self) -> Pace {
        let warm_up = if self.arguments.quick { 200 } else { 1500 };
        Pace {
            warm_up: Duration::from_millis(warm_up),
            measured: Duration::from_secs(self.arguments.seconds),
            rate: None,
        }
    }

    fn wanted(&self, what: &str) -> bool {
        what.contains(&self.arguments.only)
    }

    async fn run(&mut self) -> Result<()> {
        let sessions = self.arguments.sessions;
        let some: &[usize] = match self.arguments.quick {
            true => &[1, 64],
            false => &[1, 16, 64, 256, 1024],
        };
        for &clients in some {
            if clients <= MOST_CONNECTIONS {
                self.pgbench(clients).await?;
            }
            self.component(COMPONENT, clients, sessions, self.pace())
                .await?;
            self.component(REUSING, clients, sessions, self.pace())
                .await?;
            self.native(clients).await?;
        }
        for &clients in some {
            self.http(clients).await?;
        }
        for &clients in some {
            self.etcd(clients).await?;
            self.redis(REDIS_ALWAYS, "always", clients).await?;
            self.redis(REDIS_EVERYSEC, "everysec", clients).await?;
        }
        self.half_load().await?;
        self.growth().await?;
        for clients in [1, 64] {
            self.operations(clients).await?;
        }
        self.closes().await?;
        self.reaper().await?;
        self.memory().await?;
        self.ratios();
        Ok(())
    }

    /// Runs clients whose every answer makes a count of PostgreSQL's one greater.
    async fn counted<C: Client>(
        &mut self,
        what: &str,
        clients: Vec<C>,
        sessions: usize,
        pace: Pace,
        count: &str,
    ) -> Result<Row> {
        let how_many = clients.len();
        let before = self.stage.count(count).await?;
        let mut processor = [Duration::ZERO; 2];
        let began = [
            stage::own_processor_time(),
            self.stage.processor_time().await?,
        ];
        let measured = load::run(clients, pace).await?;
        let ended = [
            stage::own_processor_time(),
            self.stage.processor_time().await?,
        ];
        for (at, time) in processor.iter_mut().enumerate() {
            *time = (ended[at] - began[at]).div_f64(measured.answers.max(1) as f64);
        }
        self.reconnect()?;
        self.stage
            .has_counted(count, before, measured.answers)
            .await?;
        Ok(Row {
            what: what.to_owned(),
            clients: how_many,
            sessions,
            measured,
            processor: Some(processor),
            hot: None,
        })
    }

    /// Runs heartbeats, each of which is a row that PostgreSQL has updated.
    async fn durable<C: Client>(
        &mut self,
        what: &str,
        clients: Vec<C>,
        sessions: usize,
        pace: Pace,
    ) -> Result<()> {
        let hot = self.stage.count(HOT_UPDATES).await?;
        let mut row = self.counted(what, clients, sessions, pace, UPDATES).await?;
        let hot = self.stage.count(HOT_UPDATES).await? - hot;
        row.hot = Some(hot as f64 / row.measured.answers.max(1) as f64);
        self.report.add(row);
        Ok(())
    }

    /// What is no heartbeat.
    async fn operations(&mut self, how_many: usize) -> Result<()> {
        let pace = self.pace();
        if self.wanted(OPEN) {
            self.stage.sessions(0).await?;
            let clients = (0..how_many).map(|_| Opens {
                registry: self.registry.clone(),
            });
            let opened = "SELECT count(*) FROM lock_session";
            let row = self.counted(OPEN, clients.collect(), 0, pace, opened);
            let row = row.await?;
            self.report.add(row);
        }
        if self.wanted(CLOSE) {
            let seconds = (pace.warm_up + pace.measured).as_secs_f64().ceil() as usize;
            let sessions = seconds * CLOSES_A_SECOND;
            let client = Closes {
                registry: self.registry.clone(),
                sessions: self.stage.sessions(sessions).await?,
                next: Arc::default(),
            };
            self.stage.locks(1).await?;
            let clients = vec![client; how_many];
            // Neither a session nor its lock is left.
            let closed = "SELECT -greatest(count(*), (SELECT count(*) FROM lock_entry))
                            FROM lock_session";
            let row = self.counted(CLOSE, clients, sessions, pace, closed).await?;
            self.report.add(row);
        }
        if self.wanted(ACQUIRE) {
            let ids = self.stage.sessions(how_many).await?;
            let locks = LockStore::new(self.stage.database.clone());
            let clients = ids.iter().map(|id| Acquires::new(locks.clone(), *id));
            let drawn = "SELECT last_value - 1 + is_called::int FROM fencing_token_seq";
            let row = self.counted(ACQUIRE, clients.collect(), how_many, pace, drawn);
            let row = row.await?;
            self.stage
                .has_counted("SELECT count(*) FROM lock_entry", 0, 0)
                .await?;
            self.report.add(row);
        }
        if self.wanted(RENEW) {
            let ids = self.stage.sessions(how_many).await?;
            let locks = LockStore::new(self.stage.database.clone());
            let mut clients = Vec::new();
            for id in ids.iter() {
                clients.push(Renews::new(locks.clone(), *id).await?);
            }
            // A backend tells all of its statistics once nobody has its connection.
            drop(locks);
            let renewed = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'lock_entry'";
            let row = self
                .counted(RENEW, clients, how_many, pace, renewed)
                .await?;
            self.report.add(row);
        }
        Ok(())
    }

    async fn component(
        &mut self,
        what: &str,
        clients: usize,
        sessions: usize,
        pace: Pace,
    ) -> Result<()> {
        if !self.wanted(what) {
            return Ok(());
        }
        let ids = self.stage.sessions(sessions).await?;
        let registry = match what {
            REUSING => &self.reusing,
            _ => &self.registry,
        };
        let clients = (0..clients)
            .map(|_| Component {
                registry: registry.clone(),
                sessions: ids.clone(),
            })
            .collect();
        self.durable(what, clients, sessions, pace).await
    }

    async fn native(&mut self, clients: usize) -> Result<()> {
        if !self.wanted(NATIVE) {
            return Ok(());
        }
        let sessions = self.arguments.sessions;
        let ids = self.stage.sessions(sessions).await?;
        let clients = (0..clients)
            .map(|_| Native {
                statements: self.stage.statements.clone(),
                sessions: ids.clone(),
                deadline: Limits::default().deadline,
            })
            .collect();
        self.durable(NATIVE, clients, sessions, self.pace()).await
    }

    async fn http(&mut self, how_many: usize) -> Result<()> {
        if !self.wanted(HTTP) {
            return Ok(());
        }
        let sessions = self.arguments.sessions;
        let ids = self.stage.sessions(sessions).await?;
        let server = Server::start(&self.stage, self.registry.clone()).await?;
        let mut clients = Vec::new();
        for _ in 0..how_many {
            clients.push(Http::connect(server.address, ids.clone()).await?);
        }
        self.durable(HTTP, clients, sessions, self.pace()).await
    }

    async fn pgbench(&mut self, clients: usize) -> Result<()> {
        if !self.wanted(PGBENCH) {
            return Ok(());
        }
        let Some(program) = self.program("pgbench") else {
            return Ok(());
        };
        let sessions = self.arguments.sessions;
        self.stage.sessions(sessions).await?;
        let updates = self.stage.count(UPDATES).await?;
        let (url, pace, folder) = (self.stage.url(), self.pace(), self.scratch.clone());
        let measured = tokio::task::spawn_blocking(move || {
            peers::pgbench(&program, &url, clients, sessions, pace, &folder)
        })
        .await??;
        self.stage
            .has_counted(UPDATES, updates, measured.answers)
            .await?;
        self.report.add(Row {
            what: PGBENCH.to_owned(),
            clients,
            sessions,
            measured,
            processor: None,
            hot: None,
        });
        Ok(())
    }

    /// Where a peer's program is. One that is missing is named and left out.
    fn program(&mut self, name: &str) -> Option<PathBuf> {
        let found = peers::program(name);
        let missing = format!("{name} is not installed, and left out");
        if found.is_none() && !self.report.notes.contains(&missing) {
            self.report.note(missing);
        }
        found
    }

    async fn redis(&mut self, what: &str, appendfsync: &str, how_many: usize) -> Result<()> {
        if !self.wanted(what) {
            return Ok(());
        }
        let Some(program) = self.program("redis-server") else {
            return Ok(());
        };
        let ids: Arc<[Uuid]> = (0..self.arguments.sessions)
            .map(|_| Uuid::new_v4())
            .collect();
        let server = peers::redis(&program, &self.fresh("redis")?, appendfsync).await?;
        Redis::connect(&server, ids.clone()).await?.fill().await?;
        let mut clients = Vec::new();
        for _ in 0..how_many {
            clients.push(Redis::connect(&server, ids.clone()).await?);
        }
        let measured = load::run(clients, self.pace()).await?;
        self.report.add(Row {
            what: what.to_owned(),
            clients: how_many,
            sessions: ids.len(),
            measured,
            processor: None,
            hot: None,
        });
        Ok(())
    }

    async fn etcd(&mut self, how_many: usize) -> Result<()> {
        if !self.wanted(ETCD) {
            return Ok(());
        }
        let Some(program) = self.program("etcd") else {
            return Ok(());
        };
        let server = peers::etcd(&program, &self.fresh("etcd")?).await?;
        let mut channels = Vec::new();
        for _ in 0..how_many.div_ceil(64) {
            channels.push(peers::etcd_channel(&server).await?);
        }
        let mut granting = tokio::task::JoinSet::new();
        let mut leases = Vec::new();
        for at in 0..self.arguments.sessions.min(MOST_LEASES) {
            granting.spawn(peers::etcd_grant(
                channels[at % channels.len()].clone(),
                3600,
            ));
            if granting.len() == 64 {
                leases.extend(granting.join_next().await.transpose()?.transpose()?);
            }
        }
        while let Some(granted) = granting.join_next().await {
            leases.push(granted??);
        }
        let leases: Arc<[i64]> = leases.into();
        let mut clients = Vec::new();
        for at in 0..how_many {
            let channel = channels[at % channels.len()].clone();
            clients.push(Etcd::connect(channel, leases.clone()).await?);
        }
        let measured = load::run(clients, self.pace()).await?;
        self.report.add(Row {
            what: ETCD.to_owned(),
            clients: how_many,
            // Its own figure is in the note, so that the lines are drawn together.
            sessions: self.arguments.sessions,
            measured,
            processor: None,
            hot: None,
        });
        let note = format!(
            "etcd's keep-alives go over gRPC streams, one a client, to {} leases, and are not durable",
            leases.len()
        );
        if !self.report.notes.contains(&note) {
            self.report.note(note);
        }
        Ok(())
    }

    /// A folder that is empty.
    fn fresh(&self, name: &str) -> Result<PathBuf> {
        let folder = self.scratch.join(name);
        if Path::exists(&folder) {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// At half of what 256 clients get.
    async fn half_load(&mut self) -> Result<()> {
        let Some(peak) = self.report.rate(COMPONENT, 256) else {
            return Ok(());
        };
        let pace = Pace {
            rate: Some(peak / 2.0),
            ..self.pace()
        };
        self.component(
            "tenure, component, half load",
            256,
            self.arguments.sessions,
            pace,
        )
        .await
    }

    async fn growth(&mut self) -> Result<()> {
        let sizes: &[usize] = match self.arguments.quick {
            true => &[1000],
            false => &[1000, 10_000, 100_000, 1_000_000],
        };
        for &sessions in sizes {
            self.component(GROWTH, 256, sessions, self.pace()).await?;
        }
        Ok(())
    }

    /// The close of a session, by its locks.
    async fn closes(&mut self) -> Result<()> {
        if !self.wanted("closes") {
            return Ok(());
        }
        for locks in [1, 10, 100, 1000] {
            let ids = self.stage.sessions(20).await?;
            self.stage.locks(locks).await?;
            let mut took = Vec::new();
            for id in ids.iter() {
                let began = Instant::now();
                let closed = self.registry.close_session(&id.to_string()).await?;
                took.push(began.elapsed());
                anyhow::ensure!(closed.locks_released as usize == locks, "{closed:?}");
            }
            took.sort_unstable();
            self.report.note(format!(
                "a close of a session with {locks} locks takes {:.2?} (median of {})",
                took[took.len() / 2],
                took.len()
            ));
        }
        Ok(())
    }

    /// Sessions that are all dead at once, while others are kept alive.
    async fn reaper(&mut self) -> Result<()> {
        if !self.wanted("reaper") {
            return Ok(());
        }
        let sessions = self.arguments.sessions;
        let ids = self.stage.sessions(sessions).await?;
        self.stage
            .execute(&format!(
                "INSERT INTO lock_session
                 SELECT gen_random_uuid(), 'dead', now() - interval '1 hour', now() - interval '1 minute'
                   FROM generate_series(1, {sessions})"
            ))
            .await?;
        let updates = self.stage.count(UPDATES).await?;
        let locks = LockStore::new(self.stage.database.clone());
        let began = Instant::now();
        let reaper = tokio::spawn(locks.reap_every(Duration::from_secs(1)));
        let clients = (0..64)
            .map(|_| Component {
                registry: self.registry.clone(),
                sessions: ids.clone(),
            })
            .collect();
        let reaped = async {
            self.stage.until_reaped().await?;
            Ok(began.elapsed())
        };
        let (measured, took) = tokio::try_join!(load::run(clients, self.pace()), reaped)?;
        reaper.abort();
        self.reconnect()?;
        self.stage
            .has_counted(UPDATES, updates, measured.answers)
            .await?;
        self.report.note(format!(
            "{sessions} dead sessions are reaped in {took:.2?} beside 64 clients, which get {:.0} \
             heartbeats a second, p99 {:.2?}",
            measured.rate, measured.p99
        ));
        Ok(())
    }

    /// Of calls that wait for a row.
    async fn memory(&mut self) -> Result<()> {
        if !self.wanted("memory") {
            return Ok(());
        }
        let ids = self.stage.sessions(1000).await?;
        let before = resident()?;
        self.stage
            .execute("BEGIN; LOCK TABLE lock_session IN ACCESS EXCLUSIVE MODE")
            .await?;
        let mut calls = tokio::task::JoinSet::new();
        for id in ids.iter() {
            let (registry, id) = (self.registry.clone(), id.to_string());
            calls.spawn(async move { registry.heartbeat(&id, Duration::from_secs(3600)).await });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let during = resident()?;
        self.stage.execute("COMMIT").await?;
        calls.join_all().await;
        self.report.note(format!(
            "1000 calls in flight take {} KiB of the host's memory",
            during.saturating_sub(before)
        ));
        Ok(())
    }

    /// Those of the targets.
    fn ratios(&mut self) {
        for (what, of, to, target) in [
            (
                "component at 256 / pgbench at 64",
                (COMPONENT, 256),
                (PGBENCH, 64),
                8.0,
            ),
            (
                "component at 256 / etcd at 256",
                (COMPONENT, 256),
                (ETCD, 256),
                2.5,
            ),
            (
                "component at 256 / Redis at 256, fsync always",
                (COMPONENT, 256),
                (REDIS_ALWAYS, 256),
                1.0,
            ),
            (
                "component at 1 / pgbench at 1",
                (COMPONENT, 1),
                (PGBENCH, 1),
                0.9,
            ),
            (
                "component at 256 / native rules at 256",
                (COMPONENT, 256),
                (NATIVE, 256),
                0.9,
            ),
            ("HTTP at 256 / etcd at 256", (HTTP, 256), (ETCD, 256), 1.0),
        ] {
            if let (Some(of), Some(to)) =
                (self.report.rate(of.0, of.1), self.report.rate(to.0, to.1))
            {
                self.report
                    .note(format!("{what}: {:.2} (target {target})", of / to));
            }
        }
        let of = |sessions| {
            let mut rows = self.report.rows.iter();
            rows.find(|row| row.what == GROWTH && row.sessions == sessions)
                .map(|row| row.measured.rate)
        };
        if let (Some(many), Some(few)) = (of(1_000_000), of(10_000)) {
            self.report.note(format!(
                "1 M sessions / 10 k sessions: {:.2} (target 0.8)",
                many / few
            ));
        }
    }
}

/// KiB of this process that are in memory.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size = line.and_then(|line| line.split_whitespace().next());
    Ok(size.unwrap_or_default().parse()?)
}
