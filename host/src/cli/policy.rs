//! `tenure policy`

use anyhow::Result;
use clap::{ArgMatches, Command};
use tenure::policy::LIFECYCLE;
use tenure::{Limits, Policy, PolicyEngine};

use super::print;

pub fn command() -> Command {
    Command::new("policy")
        .about("Look at the policy, the component that holds the rules")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("show")
                .about("Show the policy in use: name, size, digest, imports and exports")
                .after_help("Example:\n  tenure policy show"),
        )
}

pub fn run(matches: &ArgMatches) -> Result<()> {
    match matches.subcommand() {
        Some(("show", _)) => show(),
        _ => unreachable!("clap asks for a subcommand"),
    }
}

fn show() -> Result<()> {
    // One slot: nothing is called.
    let mut limits = Limits::default();
    limits.calls_in_flight = 1;
    let policy = Policy::load(&PolicyEngine::new(limits)?, LIFECYCLE)?;
    let mut text = format!(
        "name     {}\nversion  {}\nsize     {} bytes\nsha256   {}\n",
        policy.name(),
        policy.version().unwrap_or("(none)"),
        policy.size(),
        policy.sha256()
    );
    for import in policy.imports() {
        text.push_str(&format!("import   {import}\n"));
    }
    for export in policy.exports() {
        text.push_str(&format!("export   {export}\n"));
    }
    print(&text)
}
