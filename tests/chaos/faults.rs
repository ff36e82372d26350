//! What can fail, and how it is mended.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tenure::policy::LIFECYCLE;
use tenure::{Database, DatabaseOptions, Policy};
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::sleep;
use tokio_postgres::{Client, Config, NoTls};

use crate::clock::Clock;
use crate::cluster::Cluster;
use crate::support::host::{Host, engine, lifecycle};
use crate::support::policies;
use crate::support::program::{Folder, Server, tenure};
use crate::support::proxy::{Proxy, Weather};
use crate::witness::watch_deletions;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9 of PostgreSQL.
    KillPostgres,
    /// kill -9 of a host.
    KillHost,
    /// A host is stopped for longer than a TTL.
    StopHost,
    Cut,
    Delay,
    Drip,
    HalfOpen,
    Garbage,
    Silence,
    /// Backends are terminated at random.
    Terminate,
    /// The database takes no connections, and ends those that it has.
    Refuse,
    DiskFull,
    /// Every statement waits, and every connection of every pool is in use.
    PoolExhausted,
    /// Every host gets another policy: the embedded one all the time, the processes by their
    /// files.
    SwapPolicies,
    /// The clock of a process.
    ClockJumps,
}

impl Fault {
    const ALL: [Self; 15] = [
        Self::KillPostgres,
        Self::KillHost,
        Self::StopHost,
        Self::Cut,
        Self::Delay,
        Self::Drip,
        Self::HalfOpen,
        Self::Garbage,
        Self::Silence,
        Self::Terminate,
        Self::Refuse,
        Self::DiskFull,
        Self::PoolExhausted,
        Self::SwapPolicies,
        Self::ClockJumps,
    ];

    /// Whether anybody has to notice.
    pub fn is_harmless(self) -> bool {
        matches!(
            self,
            Self::Delay | Self::Drip | Self::SwapPolicies | Self::ClockJumps
        )
    }

    pub fn lasts(self, rng: &mut Rng) -> Duration {
        Duration::from_millis(match self {
            // Longer than most of the sessions have.
            Self::StopHost => rng.u64(2500..3000),
            // Longer than clients wait.
            Self::Silence => rng.u64(2200..2700),
            // Until there is no room left in what was there.
            Self::DiskFull => rng.u64(1000..3000),
            _ => rng.u64(300..1800),
        })
    }
}

const PROCESSES: usize = 2;

/// Which of them has a clock of its own.
const WITH_CLOCK: usize = 0;

/// The policies that take turns.
const POLICIES: [&[u8]; 2] = [LIFECYCLE, policies::CLAMP];

/// The hosts, and what they stand on.
pub struct Site {
    cluster: Cluster,
    config: Config,
    rng: Rng,
    pub embedded: Arc<Host>,
    reaper: JoinHandle<()>,
    /// The embedded host's, and one for each process.
    proxies: Vec<Proxy>,
    processes: [Option<Server>; PROCESSES],
    /// Where each process listens now.
    pub urls: [Arc<Mutex<String>>; PROCESSES],
    stopped: Vec<usize>,
    holder: Option<Client>,
    /// Puts one policy after the other in charge of the embedded host.
    swapper: Option<JoinHandle<()>>,
    /// Which of the policies is in the file of each process, and how often that was replaced
    /// since the process began.
    policies: [(usize, usize); PROCESSES],
    clock: Option<Arc<Clock>>,
    clock_jumps: Option<JoinHandle<()>>,
    /// Of the processes: their policies, and a clock.
    files: Folder,
}

impl Site {
    pub async fn set_up(mut rng: Rng) -> Self {
        let cluster = Cluster::start().await;
        let config = cluster.config();
        let mut proxies = Vec::new();
        for _ in 0..=PROCESSES {
            proxies.push(Proxy::before(&config, rng.u64(..)).await);
        }
        let mut options = DatabaseOptions::default();
        options.connections = 4;
        options.connect_timeout = Duration::from_millis(500);
        options.lock_timeout = Duration::from_millis(100);
        options.statement_timeout = Duration::from_secs(1);
        let pool = Database::new(proxies[PROCESSES].url(), &options).unwrap();
        pool.migrate().await.unwrap();
        let embedded = Arc::new(Host::on(pool, lifecycle()));
        let reaper = tokio::spawn(embedded.locks.clone().reap_every(Duration::from_millis(50)));
        let files = Folder::new();
        let mut site = Self {
            cluster,
            config,
            rng,
            embedded,
            reaper,
            proxies,
            processes: Default::default(),
            urls: Default::default(),
            stopped: Vec::new(),
            holder: None,
            swapper: None,
            policies: Default::default(),
            clock: Clock::new(files.path()).map(Arc::new),
            clock_jumps: None,
            files,
        };
        for nth in 0..PROCESSES {
            site.write_policy(nth);
        }
        let client = site.connect().await;
        watch_deletions(&client).await;
        // Or the log of the database fills the disk by itself.
        for setting in ["max_wal_size = '64MB'", "min_wal_size = '32MB'"] {
            let alter = format!("ALTER SYSTEM SET {setting}");
            client.batch_execute(&alter).await.unwrap();
        }
        client
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .unwrap();
        site.mend().await;
        site
    }

    /// Past every proxy.
    pub async fn connect(&self) -> Client {
        self.try_connect().await.unwrap()
    }

    async fn try_connect(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub fn possible(&self) -> Vec<Fault> {
        let mut faults = Fault::ALL.to_vec();
        faults.retain(|fault| match fault {
            Fault::DiskFull => self.cluster.can_fill_disk(),
            Fault::ClockJumps => self.clock.is_some(),
            _ => true,
        });
        faults
    }

    pub async fn inject(&mut self, fault: Fault) {
        let which = self.rng.usize(..PROCESSES);
        match fault {
            Fault::KillPostgres => self.cluster.kill(),
            Fault::KillHost => {
                if let Some(process) = self.processes[which].take() {
                    block_in_place(|| process.kill());
                }
            }
            Fault::StopHost => {
                if let Some(process) = &self.processes[which] {
                    process.signal(libc::SIGSTOP);
                    self.stopped.push(which);
                }
            }
            Fault::Cut => self.weather(Weather::Cut),
            Fault::Delay => {
                let late = Duration::from_millis(self.rng.u64(20..150));
                self.weather(Weather::Delay(late));
            }
            Fault::Drip => self.weather(Weather::Drip(Duration::from_micros(200))),
            Fault::HalfOpen => self.weather(Weather::HalfOpen),
            Fault::Garbage => self.weather(Weather::Garbage),
            Fault::Silence => self.weather(Weather::Silent),
            Fault::Terminate => {
                for _ in 0..5 {
                    let seed = self.rng.u32(..1000);
                    self.database(&format!(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                          WHERE application_name = 'tenure' AND hashint4(pid + {seed}) % 2 = 0"
                    ))
                    .await;
                    sleep(Duration::from_millis(self.rng.u64(10..100))).await;
                }
            }
            Fault::Refuse => {
                let name = self.config.get_dbname().unwrap();
                self.database(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
                    .await;
                self.database(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                      WHERE application_name = 'tenure'",
                )
                .await;
            }
            Fault::DiskFull => {
                self.cluster.fill_disk();
                // The log soon needs another file, and PostgreSQL cannot go on without.
                for _ in 0..4 {
                    self.database("SELECT pg_switch_wal()").await;
                    sleep(Duration::from_millis(50)).await;
                }
            }
            Fault::PoolExhausted => {
                // Another fault may be in the way.
                if let Ok(holder) = self.try_connect().await {
                    let lock = "BEGIN; LOCK TABLE lock_session, lock_entry";
                    let _ = holder.batch_execute(lock).await;
                    self.holder = Some(holder);
                }
            }
            Fault::SwapPolicies => {
                let slot = Arc::clone(self.embedded.registry.slot());
                let policies = POLICIES.map(|bytes| Policy::load(engine(), bytes).unwrap());
                self.swapper = Some(tokio::spawn(async move {
                    for policy in policies.iter().cycle() {
                        slot.swap(policy.clone());
                        sleep(Duration::from_millis(5)).await;
                    }
                }));
                for nth in 0..PROCESSES {
                    let (which, times) = &mut self.policies[nth];
                    *which = (*which + 1) % POLICIES.len();
                    *times += 1;
                    self.write_policy(nth);
                }
            }
            Fault::ClockJumps => {
                let (clock, mut rng) = (self.clock.clone(), self.rng.fork());
                self.clock_jumps = clock.map(|clock| {
                    tokio::spawn(async move {
                        loop {
                            clock.jump(&mut rng);
                            sleep(Duration::from_millis(rng.u64(10..200))).await;
                        }
                    })
                });
            }
        }
    }

    fn policy_file(&self, nth: usize) -> String {
        self.files.at(&format!("policy-{nth}.wasm"))
    }

    fn write_policy(&self, nth: usize) {
        let (which, _) = self.policies[nth];
        let file = self.policy_file(nth);
        let aside = format!("{file}.new");
        fs::write(&aside, POLICIES[which]).unwrap();
        fs::rename(aside, file).unwrap();
    }

    /// A process that has not been there, or is no more.
    fn start(&self, nth: usize) -> Server {
        let mut command = tenure([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--database-url",
            self.proxies[nth].url(),
            "--database-connections",
            "4",
            "--lock-reaper-interval",
            "50ms",
            "--policy",
            &self.policy_file(nth),
        ]);
        if let (WITH_CLOCK, Some(clock)) = (nth, &self.clock) {
            clock.give(&mut command);
        }
        block_in_place(|| Server::spawn(&mut command))
    }

    /// Waits until each process has put its newest policy in charge.
    async fn settle_policies(&self) {
        for (process, (_, times)) in self.processes.iter().zip(self.policies) {
            let Some(server) = process else { continue };
            let deadline = Instant::now() + Duration::from_secs(60);
            while server.stderr().matches("policy_swapped").count() < times {
                assert!(Instant::now() < deadline, "{}", server.stderr());
                sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// On some of the ways to PostgreSQL, or all.
    fn weather(&mut self, weather: Weather) {
        let always = self.rng.usize(..self.proxies.len());
        for (nth, proxy) in self.proxies.iter().enumerate() {
            if nth == always || self.rng.bool() {
                proxy.set(weather);
            }
        }
    }

    /// Runs a statement as far as another fault lets it.
    async fn database(&self, sql: &str) {
        let mut config = self.config.clone();
        config.dbname("postgres");
        if let Ok((client, connection)) = config.connect(NoTls).await {
            tokio::spawn(connection);
            let _ = client.batch_execute(sql).await;
        }
    }

    /// Ends every fault, and returns when every host answers.
    pub async fn mend(&mut self) {
        self.holder = None;
        self.cluster.mend().await;
        let name = self.config.get_dbname().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            self.database(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
                .await;
            match self.try_connect().await {
                Ok(_) => break,
                Err(error) => assert!(Instant::now() < deadline, "{error:?}"),
            }
            // It may end only now, of a disk that was full.
            self.cluster.mend().await;
        }
        for proxy in &self.proxies {
            proxy.set(Weather::Clear);
        }
        for stopped in self.stopped.drain(..) {
            if let Some(process) = &self.processes[stopped] {
                process.signal(libc::SIGCONT);
            }
        }
        for nth in 0..PROCESSES {
            if self.processes[nth].is_none() {
                self.policies[nth].1 = 0;
                self.processes[nth] = Some(self.start(nth));
            }
            let server = self.processes[nth].as_ref().expect("it was started");
            self.urls[nth].lock().unwrap().clone_from(&server.url);
        }
        for server in self.processes.iter().flatten() {
            let body = serde_json::json!({ "ownerId": "mended", "ttlMillis": 1000 });
            loop {
                let request = server.request("POST", "/v1/sessions").json(&body);
                match request.send().await {
                    Ok(answer) if answer.status() == 201 => break,
                    other => assert!(Instant::now() < deadline, "{other:?}"),
                }
            }
        }
        while let Err(error) = self.embedded.pool.ping().await {
            assert!(Instant::now() < deadline, "{error:?}");
        }
        if let Some(swapper) = self.swapper.take() {
            swapper.abort();
            self.settle_policies().await;
        }
        if let (Some(jumps), Some(clock)) = (self.clock_jumps.take(), &self.clock) {
            jumps.abort();
            let _ = jumps.await;
            clock
                .mend(self.processes[WITH_CLOCK].as_ref().expect("it was started"))
                .await;
        }
    }

    pub async fn tear_down(self) {
        self.reaper.abort();
        block_in_place(|| {
            for process in self.processes.into_iter().flatten() {
                process.stop();
            }
        });
        drop(self.proxies);
        self.cluster.stop().await;
    }
}
