//! The guard: a shell between the program and PostgreSQL that outlives the one and ends the
//! other.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Child;

use super::ClusterError;
use super::folder::Folder;
use super::programs::Programs;

/// Runs PostgreSQL until it ends by itself, or until the other end of standard input is
/// closed: by the program, or by the kernel when the program is no more. SIGINT is
/// PostgreSQL's fast shutdown. `$0` is a folder to remove in the end, or empty.
const SCRIPT: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
postgres=$!
(read -r _ <&3; kill -INT "$postgres" 2>/dev/null) &
lifeline=$!
wait "$postgres"
status=$?
kill "$lifeline" 2>/dev/null
[ -z "$0" ] || rm -rf "$0"
exit "$status"
"#;

pub(super) fn spawn(
    folder: &Folder,
    programs: &Programs,
    temporary: bool,
) -> Result<Child, ClusterError> {
    let failed =
        |error: std::io::Error| folder.failure(format!("cannot start PostgreSQL: {error}"));
    let log = folder.open_log()?;
    let mut command = folder.command(Path::new("/bin/sh"));
    command.arg("-c").arg(SCRIPT);
    if temporary {
        command.arg(folder.path());
    } else {
        command.arg("");
    }
    command
        .arg(programs.path("postgres"))
        .arg("-D")
        .arg(folder.cluster())
        .arg("-k")
        .arg(folder.socket_dir())
        .args(["-c", "listen_addresses="])
        .args(["-c", "unix_socket_permissions=0700"])
        .args(["-c", "max_connections=100"])
        .stdin(Stdio::piped())
        .stdout(log.try_clone().map_err(failed)?)
        .stderr(log)
        .spawn()
        .map_err(failed)
}
