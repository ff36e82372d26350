//! A PostgreSQL that can be killed, and whose disk can be filled.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tenure::postgres::private::{DATABASE, PrivateCluster};
use tokio::time::timeout;
use tokio_postgres::Config;

use crate::support::program::Folder;
use crate::support::server::tell;

/// Enough for a cluster, and soon filled.
const DISK: &str = "size=320m";

pub struct Cluster {
    folder: Folder,
    running: Option<PrivateCluster>,
    /// Whether it is on a file system of its own, which can be filled.
    own_disk: bool,
}

impl Cluster {
    pub async fn start() -> Self {
        let folder = Folder::new();
        let disk = folder.path().join("disk");
        fs::create_dir(&disk).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", DISK, "tmpfs"])
            .arg(&disk)
            .stdin(Stdio::null())
            .output();
        let own_disk = match &mounted {
            Ok(output) => output.status.success(),
            Err(_) => false,
        };
        if !own_disk {
            tell(&format!(
                "NO DISK IS FILLED IN THIS RUN: a small file system cannot be mounted here \
                 ({mounted:?})"
            ));
        }
        let mut cluster = Self {
            folder,
            running: None,
            own_disk,
        };
        cluster.launch().await;
        cluster
    }

    async fn launch(&mut self) {
        let running = PrivateCluster::start(&self.data_dir()).await;
        self.running = Some(running.unwrap_or_else(|error| panic!("{error}")));
    }

    fn data_dir(&self) -> PathBuf {
        self.folder.path().join("disk/data")
    }

    pub fn can_fill_disk(&self) -> bool {
        self.own_disk
    }

    pub fn config(&self) -> Config {
        let running = self.running.as_ref().expect("a cluster that runs");
        running.url(DATABASE).parse().unwrap()
    }

    /// Without a warning, and without a checkpoint.
    pub fn kill(&self) {
        let file = self.data_dir().join("postgres/postmaster.pid");
        // Where there is none it has ended already.
        let Ok(text) = fs::read_to_string(file) else {
            return;
        };
        let id: i32 = text.lines().next().unwrap().parse().unwrap();
        // SAFETY: no memory is involved.
        unsafe { libc::kill(id, libc::SIGKILL) };
    }

    pub fn fill_disk(&self) {
        let mut ballast = File::create(self.ballast()).unwrap();
        for size in [1 << 20, 1 << 12] {
            let block = vec![1; size];
            while ballast.write_all(&block).is_ok() {}
        }
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("disk/ballast")
    }

    /// Makes room, and starts it again if it has ended.
    pub async fn mend(&mut self) {
        let _ = fs::remove_file(self.ballast());
        let ended = match &mut self.running {
            Some(running) => timeout(Duration::from_millis(200), running.ended())
                .await
                .is_ok(),
            None => true,
        };
        if ended {
            self.running = None;
            self.launch().await;
        }
    }

    pub async fn stop(mut self) {
        if let Some(running) = self.running.take() {
            running.stop().await.unwrap();
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its guard ends it.
        self.running = None;
        if self.own_disk {
            let disk = self.folder.path().join("disk");
            // Lazily, as PostgreSQL may still be about to end.
            let unmounted = Command::new("umount").arg("--lazy").arg(&disk).output();
            if !unmounted
                .as_ref()
                .is_ok_and(|output| output.status.success())
            {
                tell(&format!("{} stays mounted: {unmounted:?}", disk.display()));
            }
        }
    }
}
