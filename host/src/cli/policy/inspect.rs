//! `tenure policy inspect`

use std::process::ExitCode;

use anyhow::Result;
use clap::{ArgMatches, Command};

use super::{Given, file, json};

pub fn command() -> Command {
    Command::new("inspect")
        .about("Tell what a component is and wants, without running it")
        .long_about(
            "Tell what a component is and wants, without running it: name, version, size, \
             digest, imports and exports, whether it needs WASI, whether it fits the world of \
             policies, and its WIT. Exit status: 0, or 2 for a file that cannot be read or is no \
             component.",
        )
        .after_help("Example:\n  tenure policy inspect my-policy.wasm")
        .arg(file())
        .arg(json())
}

pub fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode> {
    let about = &given.about;
    if matches.get_flag("json") {
        println!("{}", serde_json::to_string_pretty(about)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("name     {}", about.name.as_deref().unwrap_or("(none)"));
    println!("version  {}", about.version.as_deref().unwrap_or("(none)"));
    println!("size     {} bytes", about.size);
    println!("sha256   {}", about.sha256);
    println!(
        "wasi     {}",
        if about.needs_wasi {
            "needed"
        } else {
            "not needed"
        }
    );
    for import in &about.imports {
        println!("import   {import}");
    }
    for export in &about.exports {
        println!("export   {export}");
    }
    if about.misfits.is_empty() {
        println!("fits     the world tenure:registry/session-policy");
    }
    for misfit in &about.misfits {
        println!("misfit   {misfit}");
    }
    println!("\n{}", about.wit.trim_end());
    Ok(ExitCode::SUCCESS)
}
