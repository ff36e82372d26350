//! `tenure fence`

use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, ArgMatches, Command};
use tenure::{FencingToken, LockStore};

use super::log;
use super::print;
use super::settings::{Settings, arguments};
use super::store::Store;

const ABOVE: &str = "above";

pub fn command() -> Command {
    Command::new("fence")
        .about("Look after the fencing tokens")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("raise")
                .about("Make every later token greater than a number, after a restore")
                .long_about(
                    "Make every later fencing token greater than a number, and end. For a \
                     database that was restored from a backup, before any server works on it: \
                     its tokens go on from where they were at the backup, and resources that \
                     have seen later ones would refuse every new holder, or take an old one for \
                     a new. The number is the greatest token that any resource has seen or the \
                     servers have logged (lock_granted, lock_revoked); where that is not known, \
                     one that is greater for certain. Tokens are never lowered. After a failover \
                     to a synchronous standby none of this is needed.",
                )
                .after_help(
                    "Example:\n  \
                     tenure fence raise --above 1000000 --database-url postgres://tenure@db/lockdb",
                )
                .arg(
                    Arg::new(ABOVE)
                        .long(ABOVE)
                        .value_name("N")
                        .required(true)
                        .value_parser(|text: &str| text.parse::<FencingToken>())
                        .help("A whole number from 1"),
                )
                .args(arguments()),
        )
}

pub fn run(matches: &ArgMatches) -> Result<ExitCode> {
    match matches.subcommand() {
        Some(("raise", matches)) => {
            let above = matches.get_one(ABOVE).expect("clap asks for it");
            raise(&Settings::resolve(matches)?, *above)?;
        }
        _ => unreachable!("clap asks for a subcommand"),
    }
    Ok(ExitCode::SUCCESS)
}

#[tokio::main]
async fn raise(settings: &Settings, above: FencingToken) -> Result<()> {
    log::start(settings)?;
    let (store, _) = Store::open(settings).await?;
    let raised = LockStore::new(store.database.clone())
        .raise_fence(above)
        .await;
    // Whatever came of it, the private PostgreSQL has to be stopped.
    let closed = store.close().await;
    let floor = raised?;
    closed?;
    print(&format!(
        "every token from now on is greater than {floor}\n"
    ))
}
