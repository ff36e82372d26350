//! The command line: one file for each subcommand, and the settings that they share.

mod admin;
mod config;
mod fence;
mod handles;
mod log;
mod migrate;
mod policy;
mod policy_source;
mod serve;
mod settings;
mod store;
mod tls;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{ArgMatches, Command};

use settings::Settings;

const ABOUT: &str = "Session leases and fenced locks on PostgreSQL";

const LONG_ABOUT: &str = "\
Session leases and fenced locks on PostgreSQL.

A client opens one session, hangs any number of locks on it, and keeps it alive with one
heartbeat. When the session dies, every lock on it goes. Locks carry fencing tokens that only
ever rise.

Each setting can be given by a flag, an environment variable or a TOML file (--config), in this
order of precedence; `tenure config` shows what is in force and where it comes from.";

fn command() -> Command {
    Command::new("tenure")
        .version(env!("CARGO_PKG_VERSION"))
        .about(ABOUT)
        .long_about(LONG_ABOUT)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(serve::command())
        .subcommand(migrate::command())
        .subcommand(config::command())
        .subcommand(fence::command())
        .subcommand(policy::command())
}

/// Parses the command line and runs the subcommand. Exit status: 0, or 1 after an error,
/// which standard error explains, or 2 where the command line is wrong. `tenure policy` says
/// more by it: see its subcommands.
pub fn main() -> ExitCode {
    let matches = command().get_matches();
    match run(&matches) {
        Ok(status) => status,
        Err(error) => {
            // Not `eprintln!`, which panics where nobody reads.
            let _ = writeln!(io::stderr(), "tenure: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Writes to standard output. A reader who has gone, as `head` does, is no error.
fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn run(matches: &ArgMatches) -> Result<ExitCode> {
    match matches.subcommand() {
        Some(("serve", matches)) => serve::run(matches)?,
        Some(("migrate", matches)) => migrate::run(&Settings::resolve(matches)?)?,
        Some(("config", matches)) => config::run(&Settings::resolve(matches)?)?,
        Some(("fence", matches)) => return fence::run(matches),
        Some(("policy", matches)) => return policy::run(matches),
        _ => unreachable!("clap asks for a subcommand"),
    }
    Ok(ExitCode::SUCCESS)
}
