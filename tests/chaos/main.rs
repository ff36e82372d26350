//! What callers are told while everything around them fails.
//!
//! Many clients work on one database through three hosts: one embedded in this program and
//! two processes, each with a proxy between it and PostgreSQL. Round by round something
//! breaks, or just changes, first each fault alone and then several at once, and is mended
//! again; and what the clients were told in the round is held against the rules of
//! `concurrency/checker.rs`.
//!
//! `TENURE_CHAOS_SECONDS` is how long that goes on, and `TENURE_TEST_SEED` what it depends on:
//! the seed decides which faults there are, where and for how long, and what the clients do,
//! but not how it all interleaves. `tasks/test --chaos SECONDS --seed N` sets both.

#[path = "../concurrency/checker.rs"]
mod checker;
mod client;
mod clock;
mod cluster;
mod failover;
mod faults;
mod restart;
mod soak;
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the test programs share is used by each in part"
)]
#[path = "../support/mod.rs"]
mod support;
#[path = "../concurrency/witness.rs"]
mod witness;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;

use checker::{Call, check};
use faults::{Fault, Site};
use support::given::{number, seed};
use support::server::tell;
use witness::{Recorder, history};
use workload::Workload;

/// What came of the rounds of one fault.
#[derive(Default)]
struct Tally {
    /// Whether anybody has to notice.
    harmful: bool,
    rounds: u32,
    calls: usize,
    unknown: usize,
    /// From mending until every host answers again.
    recovery: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_nobody_is_told_what_is_not_so() {
    let seed = seed();
    let seconds = number("TENURE_CHAOS_SECONDS").unwrap_or(60);
    tell(&format!("chaos for {seconds} s, TENURE_TEST_SEED={seed}"));
    let mut rng = Rng::with_seed(seed);
    let mut site = Site::set_up(rng.fork()).await;
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();

    let begun = Instant::now();
    let mut alone = site.possible().into_iter();
    let mut mixed = 0;
    while begun.elapsed() < Duration::from_secs(seconds) || mixed == 0 {
        let (name, faults) = match alone.next() {
            Some(fault) => (format!("{fault:?}"), vec![fault]),
            None => {
                mixed += 1;
                let how_many = rng.usize(2..=3);
                (
                    "several at once".to_owned(),
                    rng.choose_multiple(site.possible(), how_many),
                )
            }
        };
        let tally = tallies.entry(name).or_default();
        tally.harmful |= faults.iter().any(|fault| !fault.is_harmless());
        if let Err(found) = round(&mut site, &faults, &mut rng, tally).await {
            site.tear_down().await;
            panic!("seed {seed}, during {faults:?}: {found}");
        }
    }
    site.tear_down().await;

    let sum = |of: fn(&Tally) -> usize| tallies.values().map(of).sum::<usize>();
    for (fault, tally) in &tallies {
        tell(&format!(
            "{fault}: {} rounds, {} calls, {} of them unknown; well again within {} ms",
            tally.rounds,
            tally.calls,
            tally.unknown,
            tally.recovery.as_millis()
        ));
    }
    tell(&format!(
        "{} rounds, {} calls, {} of them unknown, in {} s",
        sum(|tally| tally.rounds as usize),
        sum(|tally| tally.calls),
        sum(|tally| tally.unknown),
        begun.elapsed().as_secs()
    ));
    // Faults that nobody notices test nothing.
    for (fault, tally) in &tallies {
        assert!(tally.calls > tally.unknown, "{fault}: nothing worked");
        assert!(
            !tally.harmful || tally.unknown > 0,
            "{fault}: nothing failed"
        );
    }
}

/// Works, breaks, mends, works, and judges.
async fn round(
    site: &mut Site,
    faults: &[Fault],
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let recorder = Arc::new(Recorder::new());
    let workload = Workload::start(site, &recorder, rng);
    tokio::time::sleep(Duration::from_millis(300)).await;
    for fault in faults {
        site.inject(*fault).await;
    }
    let longest = faults.iter().map(|fault| fault.lasts(rng)).max();
    tokio::time::sleep(longest.unwrap_or_default()).await;
    let mending = Instant::now();
    site.mend().await;
    tally.recovery = tally.recovery.max(mending.elapsed());
    tokio::time::sleep(Duration::from_millis(300)).await;
    workload.stop().await;

    let database = site.connect().await;
    let mut history = history(&database, &recorder).await;
    client::fill_in_closes(&mut history)?;
    tally.rounds += 1;
    tally.calls += history.events.len();
    let unknown = |call: &Call| match call {
        Call::Open { .. } => false,
        Call::Heartbeat { alive, .. } => alive.is_none(),
        Call::Close { closed, .. } => closed.is_none(),
        Call::Acquire { answer, .. } => answer.is_none(),
        Call::Renew { renewed, .. } => renewed.is_none(),
        Call::Release { released, .. } => released.is_none(),
        Call::Revoke { answer, .. } => answer.is_none(),
    };
    let events = history.events.iter();
    tally.unknown += events.filter(|event| unknown(&event.call)).count();
    let violations = check(&history);
    if violations.is_empty() {
        Ok(())
    } else {
        Err(format!("{violations:#?}"))
    }
}
