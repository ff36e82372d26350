//! File handles, of which each connection takes one.

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tenure::http::WireLimits;

use super::settings::{DATABASE_CONNECTIONS, Settings};

/// For what is no connection: listeners, files, the policies' memories, the operators.
const OTHERS: u64 = 64;

/// How many clients' connections there may be, with the process's limit raised so far, if it
/// may be. What is left over is for the database, where each connection may need a second one
/// to cancel what the first one runs.
pub fn for_clients(settings: &Settings) -> Result<WireLimits> {
    let mut limits = WireLimits::default();
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("cannot read the limit of file handles")?;
    let others = OTHERS + 2 * settings.parse::<u64>(DATABASE_CONNECTIONS)?;
    let wanted = others + limits.connections as u64;
    if soft >= wanted {
        return Ok(limits);
    }
    let handles = wanted.min(hard);
    setrlimit(Resource::RLIMIT_NOFILE, handles, hard).with_context(|| {
        format!("cannot raise the limit of file handles from {soft} to {handles}")
    })?;
    tracing::info!(from = soft, to = handles, "file_handles_raised");
    if handles < wanted {
        ensure!(
            handles > others,
            "{handles} file handles are too few: the server needs {others} before it can take a \
             connection, and {wanted} for as many as it would; raise the hard limit (ulimit -Hn)"
        );
        limits.connections = usize::try_from(handles - others)?;
        tracing::warn!(
            connections = limits.connections,
            handles,
            wanted,
            "connections_limited: further ones wait; raise the hard limit of file handles (ulimit \
             -Hn)"
        );
    }
    Ok(limits)
}
