//! Input of every kind that comes from outside, mutated from what is right: requests, arguments
//! of the policy, configuration files, components. Nothing panics, nothing hangs, and nothing
//! is answered as the server's own fault.
//!
//! Each target goes round after round, each with a seed of its own, which a failure names:
//! `TENURE_TEST_SEED` is the seed of the first round, so that a failed one is repeated at once.
//! There are as many rounds as take a few seconds, or as fit into `TENURE_FUZZ_SECONDS`.
//! `tasks/test --fuzz SECONDS --seed N` sets both.
//!
//! `fastrand` chooses, without coverage to guide it: that would lead into hyper, wasmtime and
//! toml, which are fuzzed so by their own projects, and through async code and a database
//! it leads nowhere twice.

#[path = "../http/client.rs"]
#[allow(
    dead_code,
    reason = "what the routes' tests ask with is used here in part"
)]
mod client;
mod components;
mod configuration;
mod mutate;
mod requests;
#[path = "../support/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the test programs share is used by each in part"
)]
mod support;
mod values;

use std::cell::Cell;
use std::panic;
use std::sync::Once;
use std::time::{Duration, Instant};

use fastrand::Rng;

use support::given::{number, seed};
use support::server::tell;

/// The rounds of a target.
struct Rounds {
    target: &'static str,
    seed: u64,
    begun: Instant,
    /// How long it goes on, if not for `few` rounds.
    seconds: Option<u64>,
    few: u64,
    done: u64,
}

/// The rounds of a target: `few`, unless they are to go on by the clock.
fn rounds(target: &'static str, few: u64) -> Rounds {
    let seed = seed();
    tell(&format!("fuzzing {target}, TENURE_TEST_SEED={seed}"));
    Rounds {
        target,
        seed,
        begun: Instant::now(),
        seconds: number("TENURE_FUZZ_SECONDS"),
        few,
        done: 0,
    }
}

impl Iterator for Rounds {
    type Item = Rng;

    fn next(&mut self) -> Option<Rng> {
        let more = match self.seconds {
            Some(seconds) => self.begun.elapsed() < Duration::from_secs(seconds),
            None => self.done < self.few,
        };
        if !more {
            return None;
        }
        let seed = self.seed.wrapping_add(self.done);
        self.done += 1;
        Some(Rng::with_seed(seed))
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        let (target, done) = (self.target, self.done);
        if std::thread::panicking() {
            let seed = self.seed.wrapping_add(done.saturating_sub(1));
            tell(&format!(
                "fuzzing {target}: the round of TENURE_TEST_SEED={seed} failed"
            ));
        } else {
            tell(&format!("fuzzing {target}: {done} rounds"));
        }
    }
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// How many panics there were on this thread, those that somebody caught included.
fn panics() -> u32 {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.with(|panics| panics.set(panics.get() + 1));
            usual(info);
        }));
    });
    PANICS.with(Cell::get)
}
