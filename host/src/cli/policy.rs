//! `tenure policy`

use anyhow::Result;
use clap::{ArgMatches, Command};
use tenure::policy::LIFECYCLE;
use tenure::{Limits, Policy, PolicyEngine};

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
    println!("name     {}", policy.name());
    println!("version  {}", policy.version().unwrap_or("(none)"));
    println!("size     {} bytes", policy.size());
    println!("sha256   {}", policy.sha256());
    for import in policy.imports() {
        println!("import   {import}");
    }
    for export in policy.exports() {
        println!("export   {export}");
    }
    Ok(())
}
