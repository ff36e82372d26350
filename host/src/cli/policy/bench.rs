//! `tenure policy bench`

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{ArgMatches, Command};
use serde::Serialize;
use serde_json::json;
use tenure::policy::conformance::{FUEL, Model};
use tenure::{Limits, Policy, PolicyEngine, SessionRegistry};

use super::{Given, file, given_options, json, number, options, title};

const CALLS: usize = 10_000;

/// What is called before anything is measured, for each operation.
const WARM_UP: usize = 200;

/// Who the sessions are for, and for how long. Nothing lapses: the model's clock stands still.
const OWNER: &str = "tester";
const TTL: Duration = Duration::from_secs(60);

pub fn command() -> Command {
    Command::new("bench")
        .about("Measure what a call of a policy costs, without a database")
        .long_about(
            "Measure what a call of a policy costs, without a database: time by percentiles, and \
             memory and fuel. One call after another on a warm engine, each on an instance of \
             its own and through the audit, as in the server; the store is one in memory, which \
             answers at once.",
        )
        .after_help("Example:\n  tenure policy bench my-policy.wasm")
        .arg(file())
        .arg(json())
        .args(options())
        .arg(number::<usize>(
            "calls",
            "How many calls there are of each operation [default: 10000]",
        ))
}

/// What the calls of one operation cost: microseconds, bytes and units of fuel.
#[derive(Serialize)]
struct Cost {
    operation: &'static str,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    max_us: f64,
    memory: usize,
    fuel: u64,
}

#[tokio::main(flavor = "current_thread")]
pub async fn run(matches: &ArgMatches, given: &Given) -> Result<ExitCode> {
    let calls = matches.get_one("calls").copied().unwrap_or(CALLS).max(1);
    let mut limits = Limits::default();
    limits.calls_in_flight = 4;
    let options = given_options(matches);
    let began = Instant::now();
    let policy = Policy::load_with(&PolicyEngine::new(limits.clone())?, &given.bytes, &options)?;
    let loading = began.elapsed();
    measure(&policy, WARM_UP).await?;
    let times = measure(&policy, calls).await?;
    // Another engine, whose code counts as it goes and so is slower.
    let engine = PolicyEngine::measuring(limits, FUEL)?;
    let policy = Policy::load_with(&engine, &given.bytes, &options)?;
    measure(&policy, 1).await?;
    let used = engine.used();
    let costs = times.map(|(operation, times)| {
        let used = used.get(operation).copied().unwrap_or_default();
        Cost {
            operation,
            p50_us: percentile(&times, 50),
            p90_us: percentile(&times, 90),
            p99_us: percentile(&times, 99),
            max_us: percentile(&times, 100),
            memory: used.memory,
            fuel: used.fuel,
        }
    });

    let loading_ms = loading.as_secs_f64() * 1e3;
    if matches.get_flag("json") {
        let document = json!({
            "policy": { "name": given.about.name, "sha256": given.about.sha256 },
            "loading_ms": loading_ms,
            "calls": calls,
            "operations": costs,
        });
        println!("{}", serde_json::to_string_pretty(&document)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("{}\n", title(&given.about));
    println!(
        "{:14} {:>9} {:>9} {:>9} {:>9} {:>13} {:>9}",
        "operation", "p50", "p90", "p99", "max", "memory", "fuel"
    );
    for cost in &costs {
        println!(
            "{:14} {:>6.1} us {:>6.1} us {:>6.1} us {:>6.0} us {:>7} bytes {:>9}",
            cost.operation,
            cost.p50_us,
            cost.p90_us,
            cost.p99_us,
            cost.max_us,
            cost.memory,
            cost.fuel
        );
    }
    println!("\n{calls} calls of each; loading took {loading_ms:.1} ms");
    Ok(ExitCode::SUCCESS)
}

/// The times of each operation, in order of length.
async fn measure(policy: &Policy, calls: usize) -> Result<[(&'static str, Vec<Duration>); 4]> {
    let registry = SessionRegistry::new(policy.clone(), Arc::new(Model::default()));
    let [mut opens, mut beats, mut lists, mut closes] = [(); 4].map(|()| Vec::with_capacity(calls));
    for _ in 0..calls {
        let session = timed(&mut opens, registry.open_session(OWNER, TTL)).await?;
        let _ = timed(&mut beats, registry.heartbeat(&session.id, TTL)).await?;
        timed(&mut lists, registry.locks_of(&session.id)).await?;
        let _ = timed(&mut closes, registry.close_session(&session.id)).await?;
    }
    for times in [&mut opens, &mut beats, &mut lists, &mut closes] {
        times.sort_unstable();
    }
    Ok([
        ("open-session", opens),
        ("heartbeat", beats),
        ("locks-of", lists),
        ("close-session", closes),
    ])
}

async fn timed<T>(
    times: &mut Vec<Duration>,
    call: impl Future<Output = Result<T, tenure::Error>>,
) -> Result<T> {
    let began = Instant::now();
    let answer = call.await;
    times.push(began.elapsed());
    answer.with_context(|| format!("a call failed, so there is nothing to measure ({OWNER})"))
}

/// In microseconds; of times that are in order.
fn percentile(times: &[Duration], percent: usize) -> f64 {
    let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times[at].as_secs_f64() * 1e6
}
