//! `tenure policy show`

use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use tenure::policy::LIFECYCLE;
use tenure::{Limits, Policy, PolicyEngine};

pub fn command() -> Command {
    Command::new("show")
        .about("Show the policy in use: name, size, digest, imports and exports")
        .after_help("Example:\n  tenure policy show")
}

pub fn run() -> Result<ExitCode> {
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
    Ok(ExitCode::SUCCESS)
}
