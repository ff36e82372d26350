//! The PostgreSQL that the tests run on, one for the whole run:
//!
//! 1. the one at `TENURE_TEST_DATABASE_URL`, if that is set: a server where the user may
//!    create databases;
//! 2. else, where a Docker engine answers, a container of `TENURE_TEST_IMAGE` (default
//!    `postgres:17-alpine`), by testcontainers;
//! 3. else a private cluster of the installed server programs.
//!
//! With `TENURE_TEST_IMAGE` set, a container that does not start is an error.

use std::sync::{Mutex, OnceLock, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{env, path::Path};

use tenure::postgres::private::PrivateCluster;
use testcontainers::core::IntoContainerPort;
use testcontainers::runners::AsyncRunner;
use testcontainers::{ContainerAsync, GenericImage, ImageExt};
use tokio_postgres::{Config, NoTls};

use super::database;

const DEFAULT_IMAGE: &str = "postgres:17-alpine";

/// How to reach the server, as a user who may create databases.
pub fn config() -> Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(start).clone()
}

/// The thread that keeps the server, and the word on which it ends it.
static KEEPER: Mutex<Option<(mpsc::Sender<()>, JoinHandle<()>)>> = Mutex::new(None);

fn start() -> Config {
    // SAFETY: `stop` is an ordinary function that takes and returns nothing.
    assert_eq!(unsafe { libc::atexit(stop) }, 0);
    if let Ok(url) = env::var("TENURE_TEST_DATABASE_URL") {
        eprintln!("tests run on the server at TENURE_TEST_DATABASE_URL");
        return url.parse().expect("TENURE_TEST_DATABASE_URL");
    }
    let (ready, started) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let keeper = thread::spawn(move || keep(&ready, &ended));
    *KEEPER.lock().unwrap() = Some((end, keeper));
    started.recv().expect("a PostgreSQL for the tests")
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
    Container(ContainerAsync<GenericImage>),
    Private(PrivateCluster),
}

/// A runtime of the server's own: each test has its own, which ends with it.
fn keep(ready: &mpsc::Sender<Config>, ended: &mpsc::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (server, config) = runtime.block_on(async {
        if engine_answers() {
            match container().await {
                Ok(started) => return started,
                Err(error) if env::var_os("TENURE_TEST_IMAGE").is_some() => panic!("{error}"),
                Err(error) => eprintln!("a Docker engine answers, but: {error}"),
            }
        }
        private().await
    });
    ready.send(config).unwrap();
    let _ = ended.recv();
    runtime.block_on(async {
        let stopped = match server {
            Server::Container(container) => container.rm().await.map_err(|e| e.to_string()),
            Server::Private(cluster) => cluster.stop().await.map_err(|e| e.to_string()),
        };
        if let Err(error) = stopped {
            eprintln!("the tests' server did not stop in order: {error}");
        }
    });
}

fn engine_answers() -> bool {
    env::var_os("DOCKER_HOST").is_some()
        || std::os::unix::net::UnixStream::connect(Path::new("/var/run/docker.sock")).is_ok()
}

async fn container() -> Result<(Server, Config), String> {
    let image = env::var("TENURE_TEST_IMAGE").unwrap_or_else(|_| DEFAULT_IMAGE.to_owned());
    let (name, tag) = image.rsplit_once(':').unwrap_or((&image, "latest"));
    let container = GenericImage::new(name, tag)
        .with_exposed_port(5432.tcp())
        .with_env_var("POSTGRES_HOST_AUTH_METHOD", "trust")
        .start()
        .await
        .map_err(|error| format!("the image {image} does not start: {error}"))?;
    let port = container
        .get_host_port_ipv4(5432)
        .await
        .map_err(|error| error.to_string())?;
    let config: Config = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres")
        .parse()
        .unwrap();
    // The official image runs a server for its own set-up first, which has no TCP port.
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = config.connect(NoTls).await {
        if Instant::now() > deadline {
            return Err(format!("the image {image} takes no connections: {error}"));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eprintln!("tests run on a container of {image}, by testcontainers");
    Ok((Server::Container(container), config))
}

async fn private() -> (Server, Config) {
    let cluster = PrivateCluster::start_temporary()
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    eprintln!(
        "tests run on a private cluster in {}",
        cluster.data_dir().display()
    );
    let config = cluster.url("postgres").parse().unwrap();
    (Server::Private(cluster), config)
}
