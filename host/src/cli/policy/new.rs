//! `tenure policy new`

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Command};
use wasm_metadata::{AddMetadata, AddMetadataField};
use wit_component::ComponentEncoder;

use super::NO_POLICY;

pub fn command() -> Command {
    Command::new("new")
        .about("Make a component of a core module, as compilers write it")
        .long_about(
            "Make a component of a core module, as compilers write it, with a name and a version \
             that logs and reports show. The module has to carry its world, as wit-bindgen lets \
             it. Exit status: 0, or 2 for a file that cannot be read or written or is no such \
             module.",
        )
        .after_help(
            "Example:\n  \
             tenure policy new target/wasm32-unknown-unknown/release/my_policy.wasm \\\n    \
             --name my-policy --output my-policy.wasm",
        )
        .arg(
            Arg::new("module")
                .value_name("MODULE")
                .required(true)
                .help("The core module, a .wasm file"),
        )
        .arg(
            Arg::new("output")
                .long("output")
                .short('o')
                .value_name("FILE")
                .required(true)
                .help("Where the component goes"),
        )
        .arg(
            Arg::new("name")
                .long("name")
                .value_name("NAME")
                .required(true)
                .help("The policy's name"),
        )
        .arg(
            Arg::new("version")
                .long("version")
                .value_name("VERSION")
                .default_value("0.1.0")
                .help("The policy's version"),
        )
}

pub fn run(matches: &ArgMatches) -> Result<ExitCode> {
    let given = |name: &str| matches.get_one::<String>(name).expect("clap sees to it");
    let (module, output) = (given("module"), given("output"));
    let made = fs::read(module)
        .with_context(|| format!("cannot read {module}"))
        .and_then(|bytes| {
            component(&bytes, given("name"), given("version"))
                .with_context(|| format!("cannot make a component of {module}"))
        })
        .and_then(|component| {
            fs::write(output, component).with_context(|| format!("cannot write {output}"))
        });
    match made {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("tenure: {error:#}");
            Ok(ExitCode::from(NO_POLICY))
        }
    }
}

fn component(module: &[u8], name: &str, version: &str) -> Result<Vec<u8>> {
    let component = ComponentEncoder::default()
        .validate(true)
        .module(module)?
        .encode()?;
    let mut metadata = AddMetadata::default();
    metadata.name = AddMetadataField::Set(name.to_owned());
    metadata.version = AddMetadataField::Set(version.parse()?);
    metadata.to_wasm(&component)
}
