//! A clock that jumps, of one process: the wall's, as an administrator or NTP sets it. The
//! monotonic one, by which a process measures how long something takes, never does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::program::Server;
use crate::support::toolchain;

/// Far enough to be seen in a log.
const YEARS: &str = "3650d";

pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// Kept in `folder`. None where libfaketime is not installed.
    pub fn new(folder: &Path) -> Option<Self> {
        let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("chaos/setup");
        if !toolchain::is_there(&setup) {
            return None;
        }
        let candidates = fs::read_dir("/usr/lib").unwrap().filter_map(Result::ok);
        let library = candidates
            .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
            .find(|library| library.exists())
            .expect("the one that the set-up has found");
        let file = folder.join("clock");
        let clock = Self { library, file };
        clock.set("+0");
        Some(clock)
    }

    /// Lets a process have it.
    pub fn give(&self, process: &mut Command) {
        process
            .env("LD_PRELOAD", &self.library)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }

    fn set(&self, offset: &str) {
        let aside = self.file.with_extension("new");
        fs::write(&aside, offset).unwrap();
        fs::rename(aside, &self.file).unwrap();
    }

    /// Anywhere, by less than a lease or by years.
    pub fn jump(&self, rng: &mut fastrand::Rng) {
        let sign = if rng.bool() { '+' } else { '-' };
        match rng.bool() {
            true => self.set(&format!("{sign}{YEARS}")),
            false => self.set(&format!("{sign}{}", rng.u32(1..120))),
        }
    }

    /// Back to what it is for everybody, once a server that is at work has logged another time.
    pub async fn mend(&self, server: &Server) {
        self.set(&format!("+{YEARS}"));
        let year = |line: &str| {
            let (_, time) = line.split_once(r#""timestamp":""#)?;
            time.get(..4).map(str::to_owned)
        };
        for _ in 0..3000 {
            let log = server.stderr();
            let mut years: Vec<_> = log.lines().filter_map(year).collect();
            years.dedup();
            if years.len() > 1 {
                self.set("+0");
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("its clock does not jump: {}", server.stderr());
    }
}
