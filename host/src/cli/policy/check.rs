//! `tenure policy check`

use std::process::ExitCode;

use anyhow::Result;
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use tenure::policy::conformance::{self, Report, Settings, Verdict};

use super::{Given, file, given_options, json, number, options, title};

pub fn command() -> Command {
    Command::new("check")
        .about("Check a policy against the contract, without a database")
        .long_about(
            "Check a policy against the contract, without a database: does it fit the world, and \
             does it keep the rules through every scenario and through random operations, on a \
             model of the store whose clock and faults belong to the check.\n\n\
             A policy may be stricter than the contract asks. What it refuses is shown as \
             \"stricter\" and fails nothing, but what would have come after is not checked: give \
             it an --owner that it lets in.\n\n\
             Exit status: 0 if nothing has failed, 1 if something has, 2 for a file that cannot \
             be read or is no component.",
        )
        .after_help(
            "Examples:\n  \
             tenure policy check my-policy.wasm\n  \
             tenure policy check clamp.wasm --setting min-ttl-ms=1000\n  \
             tenure policy check my-python-policy.wasm --profile interpreted\n  \
             tenure policy check my-policy.wasm --seed 42 --operations 100000 --json",
        )
        .arg(file())
        .arg(json())
        .args(options())
        .arg(number::<u64>(
            "seed",
            "What the random operations are drawn from [default: another each time; it is printed]",
        ))
        .arg(number::<usize>(
            "operations",
            "How many random operations there are [default: 10000]",
        ))
        .arg(number::<u64>(
            "fuel",
            "What one call may use, about one unit for each instruction [default: 10000000]",
        ))
        .arg(
            Arg::new("owner")
                .long("owner")
                .value_name("NAME")
                .help("For whom sessions are opened [default: tester]"),
        )
}

pub fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode> {
    let mut settings = Settings::default();
    if let Some(seed) = matches.get_one("seed") {
        settings.seed = *seed;
    }
    if let Some(operations) = matches.get_one("operations") {
        settings.operations = *operations;
    }
    if let Some(fuel) = matches.get_one("fuel") {
        settings.fuel = *fuel;
    }
    if let Some(owner) = matches.get_one::<String>("owner") {
        settings.owner.clone_from(owner);
    }
    settings.options = given_options(matches);
    let report = conformance::check(&settings, &given.bytes);
    if matches.get_flag("json") {
        let about = &given.about;
        let mut document = json!({
            "policy": {
                "name": about.name,
                "version": about.version,
                "size": about.size,
                "sha256": about.sha256,
            },
            "passed": report.passed(),
        });
        if let (Some(document), Some(found)) = (
            document.as_object_mut(),
            serde_json::to_value(&report)?.as_object_mut(),
        ) {
            document.append(found);
        }
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        println!("{}\n", title(&given.about));
        print(&report);
    }
    Ok(if report.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(report: &Report) {
    for checked in &report.checks {
        match &checked.verdict {
            Verdict::Passed => println!("ok        {}", checked.name),
            Verdict::Stricter(stricter) => {
                println!("stricter  {}", checked.name);
                println!("            step {}: {}", stricter.step, stricter.did);
                println!("            said      {}", stricter.said);
            }
            Verdict::Failed(failure) => {
                println!("FAILED    {}", checked.name);
                match failure.step {
                    0 => println!("            did       {}", failure.did),
                    step => println!("            step {step}: {}", failure.did),
                }
                println!("            expected  {}", failure.expected);
                println!("            got       {}", failure.got);
                println!("            matters   {}", checked.why);
                for (n, step) in failure.history.iter().enumerate() {
                    let label = if n == 0 { "history" } else { "" };
                    println!("            {label:9} {step}");
                }
            }
        }
    }
    let (failed, stricter) = (report.failures().count(), report.stricter().count());
    println!(
        "\n{} checks: {} passed, {stricter} stricter, {failed} failed; seed {}, {} operations",
        report.checks.len(),
        report.checks.len() - failed - stricter,
        report.seed,
        report.operations
    );
    println!(
        "the most that a call used: {} of {} units of fuel, {} bytes of memory",
        report.fuel_used, report.fuel, report.memory_used
    );
}
