//! Toolchains that only some tests need, and that their own scripts install.

use std::env;
use std::path::Path;
use std::process::Command;

use super::server::tell;

/// Whether all is there that this script installs. If not, it is said how to get it, and
/// nothing else is tested; where `TENURE_TEST_ALL` is set, as `.ci/run` sets it, that is a
/// failure.
pub fn is_there(setup: &Path) -> bool {
    let checked = Command::new(setup).arg("--check").output().unwrap();
    if checked.status.success() {
        return true;
    }
    let missing = String::from_utf8_lossy(&checked.stderr);
    assert!(env::var_os("TENURE_TEST_ALL").is_none(), "{missing}");
    tell(&format!("NOT TESTED: {}", missing.trim()));
    false
}
