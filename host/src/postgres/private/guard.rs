//! The guard: a shell between the program and a program of PostgreSQL's that outlives the
//! one and ends the other.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, ChildStdin};

use super::folder::Folder;

/// Runs a program until it ends by itself, or until the other end of standard input is
/// closed: by us, or by the kernel when we are no more. SIGINT is PostgreSQL's fast shutdown,
/// and `initdb` cleans up after itself. A PostgreSQL that gets it while it recovers from the
/// crash of a backend may never end (seen with 15.18), so after half a minute it gets
/// SIGQUIT, upon which it ends at once and recovers at the next start.
///
/// Standard output is the folder's lock on guards: held for as long as this shell runs, and
/// not by the program, which may leave processes behind.
///
/// `$0` and `$1` are folders to remove in the end, or empty.
const SCRIPT: &str = r#"
exec 3<&0 </dev/null 4>&1 >/dev/null
data=$0 sockets=$1
shift
"$@" 3<&- 4>&- &
program=$!
(
  read -r _ <&3
  kill -INT "$program" 2>/dev/null
  seconds=0
  while [ "$seconds" -lt 30 ]; do sleep 1 3<&- 4>&-; seconds=$((seconds + 1)); done
  kill -QUIT "$program" 2>/dev/null
) &
lifeline=$!
wait "$program"
status=$?
kill "$lifeline" 2>/dev/null
[ -z "$sockets" ] || rm -rf "$sockets"
[ -z "$data" ] || rm -rf "$data"
exit "$status"
"#;

/// A program that is guarded.
#[derive(Debug)]
pub(super) struct Guarded {
    pub(super) child: Child,
    /// The guard stops the program when this is closed, which the kernel does too.
    pub(super) lifeline: Option<ChildStdin>,
}

/// What is left of a folder when the guarded program has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Afterwards {
    /// All of it.
    Keep,
    /// All of it but the sockets' folder, where that is elsewhere.
    RemoveSockets,
    /// Nothing.
    RemoveAll,
}

/// Starts `program`, whose standard error goes to `output`.
pub(super) fn spawn(
    folder: &Folder,
    program: &Path,
    arguments: impl FnOnce(&mut tokio::process::Command),
    output: Stdio,
    afterwards: Afterwards,
) -> io::Result<Guarded> {
    let mut command = folder.command(Path::new("/bin/sh"));
    command.arg("-c").arg(SCRIPT);
    let nothing = Path::new("");
    command.arg(match afterwards {
        Afterwards::RemoveAll => folder.path(),
        _ => nothing,
    });
    command.arg(match folder.sockets_elsewhere() {
        Some(sockets) if afterwards != Afterwards::Keep => sockets,
        _ => nothing,
    });
    command.arg(program);
    arguments(&mut command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(folder.lock_for_guard()?)
        .stderr(output)
        .spawn()?;
    let lifeline = child.stdin.take();
    Ok(Guarded { child, lifeline })
}
