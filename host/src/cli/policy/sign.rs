//! `tenure policy sign`

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Command};
use tenure::rollout::sign;

use super::super::policy_source::signature_of;
use super::super::print;
use super::{Given, file, number};

pub fn command() -> Command {
    Command::new("sign")
        .about("Sign a policy, for servers that are started with --policy-key")
        .long_about(
            "Sign a policy, for servers that are started with --policy-key. The signature goes to \
             FILE.sig. It is over the policy's SHA-256 and a revision number; a server refuses a \
             revision that is lower than the highest it has accepted.",
        )
        .after_help(
            "Examples:\n  \
             openssl genpkey -algorithm ed25519 -out private.pem\n  \
             openssl pkey -in private.pem -pubout -out public.pem\n  \
             tenure policy sign my-policy.wasm --key private.pem --revision 7",
        )
        .arg(file())
        .arg(
            Arg::new("key")
                .long("key")
                .value_name("FILE")
                .required(true)
                .help("The Ed25519 private key, in PEM"),
        )
        .arg(
            number::<u64>(
                "revision",
                "A number that is higher than that of any policy before",
            )
            .required(true),
        )
}

pub fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode> {
    let key: &String = matches.get_one("key").expect("clap asks for it");
    let revision: u64 = *matches.get_one("revision").expect("clap asks for it");
    let policy: &String = matches.get_one("file").expect("clap asks for it");
    anyhow::ensure!(
        (1..=i64::MAX.unsigned_abs()).contains(&revision),
        "--revision has to be from 1 to {}",
        i64::MAX
    );
    let pem = fs::read_to_string(key).with_context(|| format!("cannot read the key {key}"))?;
    let signature = sign(&pem, &given.about.sha256, revision).with_context(|| key.clone())?;
    let path = signature_of(Path::new(policy));
    fs::write(&path, signature).with_context(|| format!("cannot write {}", path.display()))?;
    print(&format!("{}\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}
