//! A server that works for a long time takes no more of anything than it did at first.
//!
//! `tasks/test --soak [SECONDS]` runs it; `TENURE_SOAK_SECONDS` is for how long, ten minutes by
//! default. Every few seconds the figures are printed, other clients come, and the policy is
//! swapped; and what the clients were told is judged.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tenure::policy::LIFECYCLE;
use tenure::postgres::private::{DATABASE, PrivateCluster};
use tokio::task::block_in_place;
use tokio::time::sleep;
use tokio_postgres::{Client, NoTls};

use crate::checker::check;
use crate::client;
use crate::support::given::number;
use crate::support::policies;
use crate::support::program::{Folder, Server};
use crate::support::server::tell;
use crate::witness::{Recorder, history, watch_deletions};
use crate::workload::Workload;

/// One set of clients, and one line of figures.
const ROUND: Duration = Duration::from_secs(5);

/// Until pools, caches and the allocator have what they need.
const WARM_UP: Duration = Duration::from_secs(60);

const CONNECTIONS: u64 = 8;

/// A column of what is printed, and how much more of it there may be in the end than early on.
struct Figure {
    name: &'static str,
    of: fn(&Sample) -> u64,
    /// In percent of what there was.
    growth: u64,
    /// And so many more.
    slack: u64,
}

const FIGURES: [Figure; 6] = [
    Figure {
        name: "KiB of memory",
        of: |sample| sample.memory,
        growth: 5,
        slack: 2048,
    },
    Figure {
        name: "file handles",
        of: |sample| sample.handles,
        growth: 0,
        slack: 4,
    },
    Figure {
        name: "connections to the database",
        of: |sample| sample.connections,
        growth: 0,
        slack: 0,
    },
    Figure {
        name: "rows",
        of: |sample| sample.rows,
        growth: 25,
        slack: 100,
    },
    Figure {
        name: "dead rows",
        of: |sample| sample.dead,
        growth: 50,
        slack: 500,
    },
    Figure {
        name: "KiB of tables and indexes",
        of: |sample| sample.size,
        growth: 25,
        slack: 256,
    },
];

#[derive(Clone, Copy)]
struct Sample {
    memory: u64,
    handles: u64,
    connections: u64,
    rows: u64,
    dead: u64,
    size: u64,
}

impl Sample {
    async fn take(server: &Server, database: &Client) -> Self {
        let process = format!("/proc/{}", server.id());
        let status = fs::read_to_string(format!("{process}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        // All but the one table that is only ever added to.
        let row = database
            .query_one(
                "SELECT (SELECT count(*) FROM pg_stat_activity
                          WHERE datname = current_database() AND application_name = 'tenure'),
                        (SELECT count(*) FROM lock_session) + (SELECT count(*) FROM lock_entry),
                        sum(n_dead_tup)::bigint,
                        sum(pg_total_relation_size(relid))::bigint / 1024
                   FROM pg_stat_user_tables
                  WHERE relname IN ('lock_session', 'lock_entry')",
                &[],
            )
            .await
            .unwrap();
        let number = |column| row.get::<_, i64>(column).unsigned_abs();
        Self {
            memory: resident
                .and_then(|text| text.trim().strip_suffix(" kB")?.parse().ok())
                .unwrap_or_else(|| panic!("{status}")),
            handles: fs::read_dir(format!("{process}/fd")).unwrap().count() as u64,
            connections: number(0),
            rows: number(1),
            dead: number(2),
            size: number(3),
        }
    }

    fn describe(&self) -> String {
        let described = FIGURES.map(|figure| format!("{} {}", (figure.of)(self), figure.name));
        described.join(", ")
    }
}

fn median(samples: &[Sample], of: fn(&Sample) -> u64) -> u64 {
    let mut all: Vec<u64> = samples.iter().map(of).collect();
    all.sort_unstable();
    all[all.len() / 2]
}

/// What there was of each in the first third of the time, and in the last.
fn compare(samples: &[Sample]) -> [(u64, u64); FIGURES.len()] {
    let third = samples.len().div_ceil(3);
    let (early, late) = (&samples[..third], &samples[samples.len() - third..]);
    FIGURES.map(|figure| (median(early, figure.of), median(late, figure.of)))
}

/// What there is too much more of.
fn grown(samples: &[Sample]) -> Vec<&'static str> {
    let compared = FIGURES.iter().zip(compare(samples));
    compared
        .filter(|(figure, (early, late))| {
            *late > early + early * figure.growth / 100 + figure.slack
        })
        .map(|(figure, _)| figure.name)
        .collect()
}

async fn database() -> (PrivateCluster, Client) {
    let cluster = PrivateCluster::start_temporary().await.unwrap();
    let (client, connection) = tokio_postgres::connect(&cluster.url(DATABASE), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    // So often that its rounds even out.
    for statement in [
        "ALTER SYSTEM SET autovacuum_naptime = '2s'",
        "SELECT pg_reload_conf()",
    ] {
        client.batch_execute(statement).await.unwrap();
    }
    (cluster, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "it takes ten minutes: tasks/test --soak"]
async fn nothing_grows() {
    let length = Duration::from_secs(number("TENURE_SOAK_SECONDS").unwrap_or(600));
    let shortest = WARM_UP + 6 * ROUND;
    assert!(length >= shortest, "a soak takes {shortest:?} at least");
    let (cluster, client) = database().await;
    let files = Folder::new();
    let policy = files.at("policy.wasm");
    fs::write(&policy, LIFECYCLE).unwrap();
    let server = block_in_place(|| {
        Server::start(&[
            "--database-url",
            &cluster.url(DATABASE),
            "--database-connections",
            &CONNECTIONS.to_string(),
            "--policy",
            &policy,
            "--log",
            "warn",
        ])
    });
    watch_deletions(&client).await;
    let url = Arc::new(Mutex::new(server.url.clone()));
    let mut rng = Rng::new();

    let begun = Instant::now();
    let mut samples = Vec::new();
    let mut calls = 0;
    for component in [policies::CLAMP, LIFECYCLE].iter().cycle() {
        if begun.elapsed() >= length {
            break;
        }
        let recorder = Arc::new(Recorder::new());
        let workload = Workload::over_http(&url, &recorder, &mut rng);
        fs::write(files.at("new"), component).unwrap();
        fs::rename(files.at("new"), &policy).unwrap();
        sleep(ROUND).await;
        let sample = Sample::take(&server, &client).await;
        workload.stop().await;

        let mut history = history(&client, &recorder).await;
        client.batch_execute("TRUNCATE deleted").await.unwrap();
        client::fill_in_closes(&mut history).unwrap();
        let violations = check(&history);
        assert!(violations.is_empty(), "{violations:#?}");
        calls += history.events.len();
        let seconds = begun.elapsed().as_secs();
        tell(&format!("soak, {seconds} s: {}", sample.describe()));
        assert!(sample.connections <= CONNECTIONS, "{}", sample.describe());
        if begun.elapsed() >= WARM_UP {
            samples.push(sample);
        }
    }

    tell(&format!(
        "soak: {calls} calls in {} s",
        begun.elapsed().as_secs()
    ));
    for (figure, (early, late)) in FIGURES.iter().zip(compare(&samples)) {
        tell(&format!(
            "soak: {}: {early} early, {late} late",
            figure.name
        ));
    }
    block_in_place(|| server.stop());
    drop(client);
    cluster.stop().await.unwrap();
    let grown = grown(&samples);
    assert!(grown.is_empty(), "there are more and more {grown:?}");
}

/// What a soak has to find.
#[test]
fn growth_is_found() {
    let sample = |nth: u64, leaks: u64| Sample {
        memory: 50_000 + nth % 7 * 100 + nth * 100 * leaks,
        handles: 40 + nth % 3,
        connections: 8,
        rows: 200,
        dead: nth % 5 * 100,
        size: 1000,
    };
    let steady: Vec<_> = (0..100).map(|nth| sample(nth, 0)).collect();
    assert_eq!(grown(&steady), [] as [&str; 0]);
    let leaks: Vec<_> = (0..100).map(|nth| sample(nth, 1)).collect();
    assert_eq!(grown(&leaks), ["KiB of memory"]);
}
