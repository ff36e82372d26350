//! A PostgreSQL of the program's own: its data in one folder, reachable through a Unix
//! socket only, gone with the program.

mod folder;
mod guard;
mod programs;

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::NoTls;

pub use programs::MissingPrograms;

use folder::Folder;
use guard::{Afterwards, Guarded};
use programs::Programs;

/// The database that a private cluster has for sessions and locks.
pub const DATABASE: &str = "lockdb";

/// The superuser of a private cluster, whom the socket's folder keeps apart from others.
const SUPERUSER: &str = "tenure";

/// The most connections that a pool may have to a private cluster.
pub const MAX_CONNECTIONS: usize = 90;

/// Ten more, for migrations and for whoever looks at it.
const SERVER_CONNECTIONS: usize = MAX_CONNECTIONS + 10;

/// There is no other in the folder of the socket.
const PORT: u16 = 5432;

/// How long a start may take, which after a crash includes PostgreSQL's recovery.
const START_LIMIT: Duration = Duration::from_secs(300);

/// How long a stop may take, which includes a checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Why a private cluster could not be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// PostgreSQL's server programs are not installed.
    #[error(transparent)]
    MissingPrograms(#[from] MissingPrograms),
    /// Another process uses the folder.
    #[error(
        "another tenure uses {}; stop it, or choose another folder with --data-dir",
        .0.display()
    )]
    InUse(PathBuf),
    /// The folder cannot be used.
    #[error("cannot use the folder {}: {what}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What failed.
        what: String,
    },
    /// A server program failed.
    #[error("{what}\n{log}")]
    Server {
        /// What failed.
        what: String,
        /// The end of what it logged.
        log: String,
    },
}

/// A private cluster that is running.
///
/// It is stopped by [`stop`](Self::stop), and also when the program ends in any other way,
/// `kill -9` included: a guard process watches over it.
#[derive(Debug)]
pub struct PrivateCluster {
    folder: Folder,
    postgres: Guarded,
}

impl PrivateCluster {
    /// Starts the cluster whose data are in `data_dir`; makes folder and cluster where
    /// there are none yet, and recovers one that was not stopped in order. Returns once it
    /// takes connections, with the database [`DATABASE`] in it.
    ///
    /// Run as root, it starts PostgreSQL, which refuses to be root, as the user `postgres`
    /// or else `nobody`, to whom the folder then belongs.
    pub async fn start(data_dir: &Path) -> Result<Self, ClusterError> {
        Self::launch(Folder::open(data_dir)?, false).await
    }

    /// As [`start`](Self::start), in a new folder beneath the system's folder for temporary
    /// files, which is removed when PostgreSQL has ended.
    pub async fn start_temporary() -> Result<Self, ClusterError> {
        let data_dir = std::env::temp_dir().join(format!("tenure-{}", uuid::Uuid::new_v4()));
        Self::launch(Folder::open(&data_dir)?, true).await
    }

    async fn launch(folder: Folder, temporary: bool) -> Result<Self, ClusterError> {
        let programs = Programs::find(folder.cluster_version().as_deref())?;
        folder.stop_leftover(&programs).await?;
        folder.initialise(&programs, SUPERUSER).await?;
        let log = folder.open_log()?;
        let postgres = guard::spawn(
            &folder,
            &programs.path("postgres"),
            |command| {
                command
                    .arg("-D")
                    .arg(folder.cluster())
                    .arg("-k")
                    .arg(folder.socket_dir())
                    .args(["-c", "listen_addresses="])
                    .args(["-c", "unix_socket_permissions=0700"])
                    .args(["-c", &format!("port={PORT}")])
                    .args(["-c", &format!("max_connections={SERVER_CONNECTIONS}")]);
            },
            Stdio::from(log),
            if temporary {
                Afterwards::RemoveAll
            } else {
                Afterwards::RemoveSockets
            },
        )
        .map_err(|error| folder.failure(format!("cannot start PostgreSQL: {error}")))?;
        let mut cluster = Self { folder, postgres };
        cluster.wait_until_ready().await?;
        Ok(cluster)
    }

    /// A connection string for a database of the cluster.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        let quoted = |text: &str| text.replace('\\', r"\\").replace('\'', r"\'");
        format!(
            "host='{}' port={PORT} user={SUPERUSER} dbname='{}'",
            quoted(&self.folder.socket_dir().display().to_string()),
            quoted(database)
        )
    }

    /// Where its data are.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Resolves when PostgreSQL has ended, which it should not by itself.
    pub async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.postgres.child.wait().await
    }

    /// Stops PostgreSQL in order, cutting what connections there are, and waits for its
    /// end.
    pub async fn stop(mut self) -> Result<(), ClusterError> {
        drop(self.postgres.lifeline.take());
        match timeout(STOP_LIMIT, self.postgres.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self
                .folder
                .failure(format!("PostgreSQL ended with {status}"))),
            Ok(Err(error)) => Err(self.folder.failure(error.to_string())),
            Err(_) => Err(self.folder.failure(format!(
                "PostgreSQL did not stop within {} s",
                STOP_LIMIT.as_secs()
            ))),
        }
    }

    async fn wait_until_ready(&mut self) -> Result<(), ClusterError> {
        let url = self.url("postgres");
        let deadline = Instant::now() + START_LIMIT;
        let client = loop {
            if let Ok(Some(status)) = self.postgres.child.try_wait() {
                return Err(self
                    .folder
                    .failure(format!("PostgreSQL did not start: {status}")));
            }
            match tokio_postgres::connect(&url, NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    break client;
                }
                Err(error) if Instant::now() > deadline => {
                    return Err(self.folder.failure(format!(
                        "PostgreSQL takes no connections after {} s: {error}",
                        START_LIMIT.as_secs()
                    )));
                }
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        let failed = |error: tokio_postgres::Error| {
            self.folder
                .failure(format!("cannot make the database {DATABASE}: {error}"))
        };
        let exists = client
            .query_opt("SELECT FROM pg_database WHERE datname = $1", &[&DATABASE])
            .await
            .map_err(failed)?
            .is_some();
        if !exists {
            client
                .batch_execute(&format!("CREATE DATABASE {DATABASE}"))
                .await
                .map_err(failed)?;
        }
        Ok(())
    }
}
