//! The folder of a private cluster.
//!
//! ```text
//! tenure.lock    held while a tenure uses the folder
//! postgres/      the cluster
//! postgres.log   what PostgreSQL logs
//! run/           the socket
//! ```

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::unistd::{Uid, User};
use tokio::process::Command;

use super::ClusterError;
use super::programs::Programs;

/// The longest path of a Unix socket is 107 bytes on Linux and 103 on macOS; PostgreSQL
/// appends `/.s.PGSQL.5432.lock`.
const LONGEST_SOCKET_DIR: usize = 80;

/// A log that has grown beyond this is put aside at the next start.
const LARGE_LOG: u64 = 16 * 1024 * 1024;

/// A folder that this process has to itself.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    socket_dir: PathBuf,
    /// As whom PostgreSQL has to run; `None` where it may be the program's own user.
    user: Option<User>,
    /// Holds the lock until it is closed.
    _lock: File,
}

impl Folder {
    /// Makes the folder where there is none, and locks it.
    pub(super) fn open(path: &Path) -> Result<Self, ClusterError> {
        let failed = |what: String| ClusterError::Folder {
            path: path.to_owned(),
            what,
        };
        let user = server_user().map_err(failed)?;
        fs::create_dir_all(path).map_err(|error| failed(error.to_string()))?;
        // It is about to be given to another user and closed to everybody else, so it must
        // not be somebody's home.
        let strange = !path.join("tenure.lock").exists()
            && fs::read_dir(path)
                .map_err(|error| failed(error.to_string()))?
                .next()
                .is_some();
        if strange {
            return Err(failed(
                "it is not empty, and was not made by tenure; name a new or empty one".to_owned(),
            ));
        }
        let path = path
            .canonicalize()
            .map_err(|error| failed(error.to_string()))?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("tenure.lock"))
            .map_err(|error| failed(format!("tenure.lock: {error}")))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ClusterError::InUse(path)),
            Err(TryLockError::Error(error)) => {
                return Err(failed(format!("tenure.lock: {error}")));
            }
        }
        let beneath = path.join("run");
        let socket_dir = if beneath.as_os_str().len() <= LONGEST_SOCKET_DIR {
            beneath
        } else {
            // Made anew under a name that nobody can have guessed.
            std::env::temp_dir().join(format!("tenure-run-{}", uuid::Uuid::new_v4()))
        };
        let folder = Self {
            path,
            socket_dir,
            user,
            _lock: lock,
        };
        folder
            .own(&folder.path)
            .and_then(|()| match fs::create_dir(&folder.socket_dir) {
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                made => made,
            })
            .and_then(|()| folder.own(&folder.socket_dir))
            .map_err(|error| failed(error.to_string()))?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    pub(super) fn cluster(&self) -> PathBuf {
        self.path.join("postgres")
    }

    fn log(&self) -> PathBuf {
        self.path.join("postgres.log")
    }

    /// The major version of the cluster in the folder, if there is one.
    pub(super) fn cluster_version(&self) -> Option<String> {
        let version = fs::read_to_string(self.cluster().join("PG_VERSION")).ok()?;
        Some(version.trim().to_owned())
    }

    /// Gives a folder to the user that PostgreSQL runs as, and to nobody else.
    fn own(&self, folder: &Path) -> std::io::Result<()> {
        if let Some(user) = &self.user {
            chown(folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
        }
        fs::set_permissions(folder, Permissions::from_mode(0o700))
    }

    /// A command that runs as the user that PostgreSQL runs as, in a process group of its
    /// own, so that a Ctrl-C at the terminal does not reach it.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = std::process::Command::new(program);
        command.current_dir("/").process_group(0);
        if let Some(user) = &self.user {
            command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
        }
        Command::from(command)
    }

    pub(super) fn open_log(&self) -> Result<File, ClusterError> {
        let path = self.log();
        let failed = |error: std::io::Error| ClusterError::Folder {
            path: self.path.clone(),
            what: format!("postgres.log: {error}"),
        };
        if fs::metadata(&path).is_ok_and(|log| log.len() > LARGE_LOG) {
            fs::rename(&path, path.with_extension("log.1")).map_err(failed)?;
        }
        File::options()
            .create(true)
            .append(true)
            .open(path)
            .map_err(failed)
    }

    /// An error with the end of the log.
    pub(super) fn failure(&self, what: String) -> ClusterError {
        ClusterError::Server {
            what: format!("{what}; the end of {}:", self.log().display()),
            log: tail(&self.log()).unwrap_or_else(|error| format!("(unreadable: {error})")),
        }
    }

    /// Stops a PostgreSQL that was left behind, guard and all, by a program that was
    /// killed. The lock is ours, so it is nobody's.
    pub(super) async fn stop_leftover(&self, programs: &Programs) -> Result<(), ClusterError> {
        if !self.cluster().join("postmaster.pid").exists() {
            return Ok(());
        }
        let running = self.pg_ctl(programs, &["status"]).await?;
        if running
            && !self
                .pg_ctl(programs, &["stop", "-m", "fast", "-w", "-t", "60"])
                .await?
        {
            return Err(self.failure(
                "a PostgreSQL that was left behind uses the folder and does not stop".to_owned(),
            ));
        }
        Ok(())
    }

    async fn pg_ctl(&self, programs: &Programs, arguments: &[&str]) -> Result<bool, ClusterError> {
        let status = self
            .command(&programs.path("pg_ctl"))
            .args(arguments)
            .arg("-D")
            .arg(self.cluster())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .await;
        Ok(status
            .map_err(|error| self.failure(format!("cannot run pg_ctl: {error}")))?
            .success())
    }

    /// Makes the cluster where there is none yet: beside its place first, so that one
    /// which was interrupted is not taken for whole.
    pub(super) async fn initialise(
        &self,
        programs: &Programs,
        superuser: &str,
    ) -> Result<(), ClusterError> {
        let cluster = self.cluster();
        if cluster.join("PG_VERSION").exists() {
            return Ok(());
        }
        let failed = |what: String| ClusterError::Folder {
            path: self.path.clone(),
            what,
        };
        let unfinished = self.path.join("postgres.unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(|error| failed(error.to_string()))?;
        }
        let output = self
            .command(&programs.path("initdb"))
            .args(["--auth=trust", "--encoding=UTF8", "--locale=C"])
            .args(["--username", superuser])
            .arg("--pgdata")
            .arg(&unfinished)
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(|error| failed(format!("cannot run initdb: {error}")))?;
        if !output.status.success() {
            let mut what = format!(
                "initdb failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            if let Some(user) = &self.user {
                what.push_str(&format!(
                    "\nAs tenure runs as root, PostgreSQL runs as the user {}, who needs to \
                     reach the folder: choose one outside of a home folder with --data-dir",
                    user.name
                ));
            }
            return Err(failed(what));
        }
        fs::rename(&unfinished, &cluster).map_err(|error| failed(error.to_string()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.socket_dir.starts_with(&self.path) {
            // Empty once PostgreSQL has ended; if it has not, it stays.
            let _ = fs::remove_dir(&self.socket_dir);
        }
    }
}

/// As whom PostgreSQL runs: nobody in particular, unless the program is root.
fn server_user() -> Result<Option<User>, String> {
    if !Uid::effective().is_root() {
        return Ok(None);
    }
    for name in ["postgres", "nobody"] {
        if let Ok(Some(user)) = User::from_name(name) {
            return Ok(Some(user));
        }
    }
    Err(
        "tenure runs as root, PostgreSQL refuses to, and there is neither a user postgres nor \
         one nobody to run it"
            .to_owned(),
    )
}

fn tail(path: &Path) -> std::io::Result<String> {
    const TAIL: u64 = 2048;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    Ok(String::from_utf8_lossy(&end).trim().to_owned())
}
