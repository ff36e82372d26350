//! Logs go to standard error: for people on a terminal, as JSON otherwise.

use std::io::{self, IsTerminal};

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use super::settings::{LOG, Settings};

pub fn start(settings: &Settings) -> Result<()> {
    let filter = settings.get(LOG).unwrap_or_default();
    // What refinery says at `info`, we say ourselves, and PostgreSQL's notices are about it.
    let filter = EnvFilter::try_new(format!("refinery_core=warn,tokio_postgres=warn,{filter}"))
        .with_context(|| format!("log = {filter:?}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Where nobody reads standard error any more, it would say so there, and panic.
        .log_internal_errors(false);
    if io::stderr().is_terminal() {
        builder.with_target(false).init();
    } else {
        builder.json().flatten_event(true).init();
    }
    Ok(())
}
