//! `tenure policy show`

use std::process::ExitCode;

use anyhow::Result;
use clap::Command;
use tenure::policy::LIFECYCLE;
use tenure::{Limits, Policy, PolicyEngine};

use super::super::print;

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
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
