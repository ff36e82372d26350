//! `tenure policy`: one file for each subcommand.

mod bench;
mod check;
mod inspect;
mod new;
mod show;
mod sign;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
use tenure::policy::conformance::Inspection;
use tenure::{PolicyOptions, Profile};

/// The exit status for a file that is no policy, whatever is asked of it: it cannot be read,
/// or is no component.
const NO_POLICY: u8 = 2;

pub fn command() -> Command {
    Command::new("policy")
        .about("Look at policies, the components that hold the rules, and check them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(show::command())
        .subcommand(new::command())
        .subcommand(inspect::command())
        .subcommand(check::command())
        .subcommand(bench::command())
        .subcommand(sign::command())
}

pub fn run(matches: &ArgMatches) -> Result<ExitCode> {
    match matches.subcommand() {
        Some(("show", _)) => show::run(),
        Some(("new", matches)) => new::run(matches),
        Some(("inspect", matches)) => with_component(matches, inspect::run),
        Some(("check", matches)) => with_component(matches, check::run),
        Some(("bench", matches)) => with_component(matches, bench::run),
        Some(("sign", matches)) => with_component(matches, sign::run),
        _ => unreachable!("clap asks for a subcommand"),
    }
}

/// A component that was read from a file.
struct Given {
    bytes: Vec<u8>,
    about: Inspection,
}

fn with_component(
    matches: &ArgMatches,
    run: impl FnOnce(&ArgMatches, &Given) -> Result<ExitCode>,
) -> Result<ExitCode> {
    match read(matches) {
        Ok(given) => run(matches, &given),
        Err(error) => {
            eprintln!("tenure: {error:#}");
            Ok(ExitCode::from(NO_POLICY))
        }
    }
}

fn read(matches: &ArgMatches) -> Result<Given> {
    let file: &String = matches.get_one("file").expect("clap asks for it");
    let bytes = fs::read(file).with_context(|| format!("cannot read {file}"))?;
    let about = Inspection::of(&bytes).with_context(|| file.clone())?;
    Ok(Given { bytes, about })
}

fn file() -> Arg {
    Arg::new("file")
        .value_name("FILE")
        .required(true)
        .help("The component, a .wasm file")
}

fn json() -> Arg {
    Arg::new("json")
        .long("json")
        .action(ArgAction::SetTrue)
        .help("Print JSON, for programs")
}

fn number<T>(name: &'static str, help: &'static str) -> Arg
where
    T: std::str::FromStr + Clone + Send + Sync + 'static,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    Arg::new(name)
        .long(name)
        .value_name("N")
        .value_parser(|text: &str| text.parse::<T>())
        .help(help)
}

/// What a policy is loaded with, on the command line.
fn options() -> [Arg; 2] {
    [
        Arg::new("setting")
            .long("setting")
            .value_name("KEY=VALUE")
            .action(ArgAction::Append)
            .value_parser(setting)
            .help("A setting of the policy's; may be given several times"),
        Arg::new("profile")
            .long("profile")
            .value_name("PROFILE")
            .value_parser(|text: &str| text.parse::<Profile>())
            .help("The largest profile that it may have: strict or interpreted [default: strict]"),
    ]
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a setting is written key=value".to_owned()),
    }
}

/// What was given of [`options`].
fn given_options(matches: &ArgMatches) -> PolicyOptions {
    let mut options = PolicyOptions::default();
    if let Some(settings) = matches.get_many::<(String, String)>("setting") {
        options.settings = settings.cloned().collect();
    }
    if let Some(profile) = matches.get_one("profile") {
        options.profile = *profile;
    }
    options
}

/// One line that says which policy it is.
fn title(about: &Inspection) -> String {
    let name = about.name.as_deref().unwrap_or("unnamed");
    let version = about.version.as_deref().unwrap_or("without a version");
    format!(
        "{name} {version}, {} bytes, sha256 {}",
        about.size, about.sha256
    )
}
