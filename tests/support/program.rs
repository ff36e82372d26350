//! The program `tenure`, run as a process.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs it, and waits for its end.
pub fn tenure(arguments: &[&str]) -> Output {
    Command::new(executable()).args(arguments).output().unwrap()
}

/// Where it is; built once, as the tests are no part of its package.
fn executable() -> &'static Path {
    static EXECUTABLE: OnceLock<PathBuf> = OnceLock::new();
    EXECUTABLE.get_or_init(|| {
        let build = Command::new(env!("CARGO"))
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(["build", "--quiet", "--locked", "--package", "tenure"])
            .args(["--bin", "tenure", "--message-format", "json"])
            .output()
            .unwrap();
        assert!(
            build.status.success(),
            "{}",
            String::from_utf8_lossy(&build.stderr)
        );
        String::from_utf8(build.stdout)
            .unwrap()
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .find_map(|message| Some(message["executable"].as_str()?.into()))
            .expect("cargo says where it has put the program")
    })
}
