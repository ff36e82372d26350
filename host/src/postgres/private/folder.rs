//! The folder of a private cluster.
//!
//! ```text
//! tenure.lock    held while a tenure uses the folder
//! guard.lock     held while a guard, which may outlive its tenure, does
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
use std::time::Duration;

use nix::unistd::{Uid, User};
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use super::guard::{self, Afterwards};
use super::programs::Programs;
use super::{ClusterError, STOP_LIMIT};

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
    /// Shared with the guards, each of which holds the lock until it ends.
    guard_lock: File,
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
        let open = |name: &str| {
            no_symlink(&path.join(name))
                .and_then(|()| {
                    File::options()
                        .create(true)
                        .truncate(false)
                        .write(true)
                        .open(path.join(name))
                })
                .map_err(|error| failed(format!("{name}: {error}")))
        };
        let lock = open("tenure.lock")?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ClusterError::InUse(path)),
            Err(TryLockError::Error(error)) => {
                return Err(failed(format!("tenure.lock: {error}")));
            }
        }
        let guard_lock = open("guard.lock")?;
        // Otherwise made anew, under a name that nobody can have guessed.
        let elsewhere = format!("tenure-run-{}", uuid::Uuid::new_v4());
        let socket_dir = [
            path.join("run"),
            std::env::temp_dir().join(&elsewhere),
            Path::new("/tmp").join(&elsewhere),
        ]
        .into_iter()
        // A connection string is text.
        .find(|dir| dir.as_os_str().len() <= LONGEST_SOCKET_DIR && dir.to_str().is_some())
        .expect("the last one is short");
        let folder = Self {
            path,
            socket_dir,
            user,
            _lock: lock,
            guard_lock,
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

    /// The sockets' folder, if it is not beneath this one.
    pub(super) fn sockets_elsewhere(&self) -> Option<&Path> {
        let elsewhere = !self.socket_dir.starts_with(&self.path);
        elsewhere.then_some(&self.socket_dir)
    }

    pub(super) fn lock_for_guard(&self) -> std::io::Result<File> {
        self.guard_lock.try_clone()
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
        no_symlink(folder)?;
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
        // PGPORT, PGDATA and their like are meant for other clusters.
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
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
        no_symlink(&path)
            .and_then(|()| File::options().create(true).append(true).open(path))
            .map_err(failed)
    }

    /// An error with the end of the log.
    pub(super) fn failure(&self, what: String) -> ClusterError {
        ClusterError::Server {
            what: format!("{what}; the end of {}:", self.log().display()),
            log: tail(&self.log()).unwrap_or_else(|error| format!("(unreadable: {error})")),
        }
    }

    /// Waits until the guard of a program that was killed has ended what it guards, and
    /// stops a PostgreSQL whose guard was killed as well. The folder's lock is ours, so
    /// neither is anybody's.
    pub(super) async fn stop_leftover(&self, programs: &Programs) -> Result<(), ClusterError> {
        let deadline = Instant::now() + STOP_LIMIT;
        loop {
            match self.guard_lock.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(20)).await;
                }
                Err(error) => {
                    return Err(self.failure(format!(
                        "a PostgreSQL that was left behind uses the folder and does not stop \
                         within {} s (guard.lock: {error})",
                        STOP_LIMIT.as_secs()
                    )));
                }
            }
        }
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
        let initdb = guard::spawn(
            self,
            &programs.path("initdb"),
            |command| {
                command
                    .args(["--auth=trust", "--encoding=UTF8", "--locale=C"])
                    .args(["--username", superuser])
                    .arg("--pgdata")
                    .arg(&unfinished);
            },
            Stdio::piped(),
            Afterwards::Keep,
        )
        .map_err(|error| failed(format!("cannot run initdb: {error}")))?;
        // Open until it has ended.
        let _lifeline = initdb.lifeline;
        let output = initdb
            .child
            .wait_with_output()
            .await
            .map_err(|error| failed(format!("cannot run initdb: {error}")))?;
        if !output.status.success() {
            let mut what = format!(
                "initdb failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            if let Some(user) = &self.user
                && what.contains("ermission denied")
            {
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
        if let Some(sockets) = self.sockets_elsewhere() {
            // Not empty before PostgreSQL has ended, upon which its guard removes it.
            let _ = fs::remove_dir(sockets);
        }
    }
}

/// What belongs to the user that PostgreSQL runs as must not lead root elsewhere.
fn no_symlink(path: &Path) -> std::io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(std::io::Error::other(format!(
            "{} is a symbolic link, which it must not be",
            path.display()
        ))),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
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
