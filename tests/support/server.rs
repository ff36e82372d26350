//! The PostgreSQL that the tests run on, one for the whole run:
//!
//! 1. the one at `TENURE_TEST_DATABASE_URL`, if that is set: a server where the user may
//!    create databases;
//! 2. else, where a Docker engine answers, a container of `TENURE_TEST_IMAGE` (default
//!    `postgres:17-alpine`), by testcontainers;
//! 3. else a private cluster of the installed server programs.
//!
//! Which one it is, and why not one before it, is printed. What was asked for by name, a
//! URL or an image, is used or is an error: nothing else takes its place.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, future};

use tenure::postgres::private::PrivateCluster;
use testcontainers::core::IntoContainerPort;
use testcontainers::core::client::docker_client_instance;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio_postgres::{Config, NoTls};

use super::database;

const DEFAULT_IMAGE: &str = "postgres:17-alpine";

/// How long an engine may take to say that it is there.
const ENGINE_LIMIT: Duration = Duration::from_secs(10);

/// How long a container may take to make its cluster and take connections.
const CONTAINER_LIMIT: Duration = Duration::from_secs(60);

/// How to reach the server, as a user who may create databases.
pub fn config() -> Config {
    // A failure is kept too: the next test would only meet it again, and wait for it.
    static CONFIG: OnceLock<Result<Config, String>> = OnceLock::new();
    CONFIG
        .get_or_init(start)
        .clone()
        .unwrap_or_else(|error| panic!("no PostgreSQL for the tests: {error}"))
}

/// The thread that keeps the server, and the word on which it ends it.
static KEEPER: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>> = Mutex::new(None);

fn start() -> Result<Config, String> {
    let (ready, started) = mpsc::channel();
    let (end, ended) = oneshot::channel();
    let keeper = thread::spawn(move || keep(&ready, ended));
    *KEEPER.lock().unwrap() = Some((end, keeper));
    // SAFETY: `stop` is an ordinary function that takes and returns nothing.
    assert_eq!(unsafe { libc::atexit(stop) }, 0);
    started
        .recv()
        .unwrap_or_else(|_| Err("the thread that starts it panicked".to_owned()))
}

/// At the end of the program, since statics are not dropped.
extern "C" fn stop() {
    database::drop_left_over();
    if let Ok(mut keeper) = KEEPER.lock()
        && let Some((end, thread)) = keeper.take()
    {
        let _ = end.send(());
        let _ = thread.join();
    }
}

enum Server {
    Named,
    Container(Box<ContainerAsync<GenericImage>>),
    Private(Box<PrivateCluster>),
}

/// A runtime of the server's own: each test has its own, which ends with it.
fn keep(ready: &mpsc::Sender<Result<Config, String>>, ended: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = match choose().await {
            Ok((server, config)) => {
                let _ = ready.send(Ok(config));
                server
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        // A container does not end with the program, not even at a Ctrl-C.
        let signal = tokio::select! {
            _ = ended => None,
            signal = deadly_signal() => Some(signal),
        };
        let stopped = match server {
            Server::Named => Ok(()),
            Server::Container(container) => container.rm().await.map_err(|e| e.to_string()),
            Server::Private(cluster) => cluster.stop().await.map_err(|e| e.to_string()),
        };
        if let Err(error) = stopped {
            tell(&format!("the server did not stop in order: {error}"));
        }
        if let Some(signal) = signal {
            // SAFETY: back to the default, which ends the program, and again.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::raise(signal);
            }
        }
    });
}

/// The number of the first signal to arrive that is meant to end the program.
async fn deadly_signal() -> i32 {
    let mut signals = [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
    ]
    .map(|kind| (kind, signal(kind).unwrap()));
    future::poll_fn(|context| {
        for (kind, signal) in &mut signals {
            if signal.poll_recv(context).is_ready() {
                return std::task::Poll::Ready(kind.as_raw_value());
            }
        }
        std::task::Poll::Pending
    })
    .await
}

async fn choose() -> Result<(Server, Config), String> {
    if let Some(url) = setting("TENURE_TEST_DATABASE_URL") {
        return named(&url)
            .await
            .map_err(|error| format!("TENURE_TEST_DATABASE_URL: {error}"));
    }
    let image = setting("TENURE_TEST_IMAGE");
    match engine().await {
        Ok(()) => match container(image.as_deref().unwrap_or(DEFAULT_IMAGE)).await {
            Err(error) if image.is_none() => {
                tell(&format!("a Docker engine answers, but {error}"));
            }
            settled => return settled,
        },
        Err(error) if image.is_none() => tell(&format!("no Docker engine answers: {error}")),
        Err(error) => {
            return Err(format!(
                "TENURE_TEST_IMAGE is set, but no Docker engine answers: {error}"
            ));
        }
    }
    private().await
}

async fn named(url: &str) -> Result<(Server, Config), String> {
    let config: Config = url.parse().map_err(chain)?;
    let version = version(&config).await.map_err(chain)?;
    tell(&format!(
        "on PostgreSQL {version}, the server at TENURE_TEST_DATABASE_URL"
    ));
    Ok((Server::Named, config))
}

/// Whether an engine is where testcontainers will look for it.
async fn engine() -> Result<(), String> {
    let client = docker_client_instance().await.map_err(chain)?;
    match tokio::time::timeout(ENGINE_LIMIT, client.ping()).await {
        Ok(answer) => answer.map(drop).map_err(chain),
        Err(_) => Err(format!("silence for {} s", ENGINE_LIMIT.as_secs())),
    }
}

async fn container(image: &str) -> Result<(Server, Config), String> {
    // Said before the waiting starts: the engine may have to fetch it.
    tell(&format!("starting a container of {image}"));
    // A colon before the last slash is that of a registry's port.
    let (name, tag) = match image.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (image, "latest"),
    };
    let container = GenericImage::new(name, tag)
        .with_exposed_port(5432.tcp())
        .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
        .start()
        .await
        .map_err(|error| format!("the image {image} does not start: {}", chain(error)))?;
    let host = container.get_host().await.map_err(chain)?.to_string();
    let port = container.get_host_port_ipv4(5432).await.map_err(chain)?;
    // Inside of a container, testcontainers takes the engine for that of the machine
    // outside; it may also be one inside.
    let hosts = [host.as_str(), "127.0.0.1"];
    // The official image runs a server for its own set-up first, which has no TCP port.
    let deadline = Instant::now() + CONTAINER_LIMIT;
    let (config, version) = loop {
        let mut failure = String::new();
        let mut found = None;
        for host in hosts {
            let config: Config = format!("host={host} port={port} user=postgres dbname=postgres")
                .parse()
                .map_err(chain)?;
            match version(&config).await {
                Ok(version) => found = Some((config, version)),
                Err(error) => failure = chain(error),
            }
        }
        if let Some(found) = found {
            break found;
        }
        let runs = container.is_running().await.unwrap_or(false);
        if !runs || Instant::now() > deadline {
            let log = container.stderr_to_vec().await.unwrap_or_default();
            return Err(format!(
                "the image {image} takes no connections: {failure}; its log:\n{}",
                String::from_utf8_lossy(&log).trim_end()
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    tell(&format!(
        "on PostgreSQL {version}, a container of {image} by testcontainers"
    ));
    Ok((Server::Container(Box::new(container)), config))
}

async fn private() -> Result<(Server, Config), String> {
    let cluster = PrivateCluster::start_temporary().await.map_err(chain)?;
    let config: Config = cluster.url("postgres").parse().map_err(chain)?;
    let version = version(&config).await.map_err(chain)?;
    tell(&format!(
        "on PostgreSQL {version}, a private cluster in {}",
        cluster.data_dir().display()
    ));
    Ok((Server::Private(Box::new(cluster)), config))
}

async fn version(config: &Config) -> Result<String, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    let row = client.query_one("SHOW server_version", &[]).await?;
    Ok(row.get(0))
}

/// The id of a cluster's process, which the first line of `postmaster.pid` says.
pub fn postmaster(cluster: &PrivateCluster) -> i32 {
    let file = cluster.data_dir().join("postgres/postmaster.pid");
    let text = fs::read_to_string(file).unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

/// One of PostgreSQL's programs, beside the server that runs, or else wherever it is found.
pub fn server_program(cluster: &PrivateCluster, name: &str) -> PathBuf {
    let server = fs::read_link(format!("/proc/{}/exe", postmaster(cluster)));
    let beside = server.ok().map(|server| server.with_file_name(name));
    match beside {
        Some(program) if program.exists() => program,
        _ => name.into(),
    }
}

/// A variable that is set to nothing is not set.
fn setting(name: &str) -> Option<String> {
    let value = env::var_os(name).filter(|value| !value.is_empty())?;
    Some(value.into_string().expect(name))
}

/// Straight to standard error: what `eprintln!` prints is captured with the test's own
/// output, also from threads that the test has started, and shown only if the test fails.
pub fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "integration tests: {what}");
}

/// An error with its causes.
fn chain(error: impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
