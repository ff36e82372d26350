//! Whether a policy keeps the contract: a check without a database, before it is shipped or
//! swapped in.
//!
//! The policy runs behind the registry that the server uses, audit and all, on a [`Model`] of
//! the store whose clock and whose faults belong to the check. It goes through
//! [`scenarios`](scenarios()) and through random operations, and each call is bounded by fuel,
//! which is the same on every machine.
//!
//! # What is demanded
//!
//! Of every call of every policy:
//! - it runs at most its own statement, for the caller's own session or owner, and its answer
//!   is borne out by what the statement did: what the server's audit demands;
//! - a fault of the store stays that fault, as `contention` or as `store`;
//! - `invalid-argument` and `refused` come before any statement;
//! - the TTL of a statement is within the contract's bounds, 1 ms to 24 hours;
//! - it does not trap, and keeps its limits.
//!
//! Of each step, beside that, the outcome that the scenario expects, which is the default
//! policy's. A policy may be stricter than the contract asks: it may say `refused` or
//! `invalid-argument` to any call. A scenario ends there and the report says so
//! ([`Verdict::Stricter`]): nothing has failed, and what would have come after has not been
//! checked. A step may admit further outcomes, as where a policy brings a TTL within bounds
//! instead of refusing it; a session that was granted less than it asked for fails nothing,
//! as scenarios move the clock by what was granted.

mod fit;
mod history;
mod inspection;
mod model;
mod player;
mod reference;
mod report;
mod scenario;
mod stage;

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::subscriber::{NoSubscriber, with_default};

pub use history::history;
pub use inspection::{Inspection, NotAComponent};
pub use model::Model;
pub use player::{Observed, Player, Surroundings};
pub use report::{Checked, Failure, Report, Stricter, Verdict};
pub use scenario::{Action, Hold, Keys, NamedTtl, Outcome, Scenario, Step, Text, Ttl, scenarios};
pub use stage::{Fault, When};

use super::{Limits, Policy, PolicyEngine, PolicyOptions};
use crate::postgres::Statements;

/// What a call may use by default, in units of fuel: roughly as many instructions, a few
/// milliseconds' worth. The most that the default policy needs, for a list of 100 long keys or
/// an id of 4096 bytes, is under 20 000.
pub const FUEL: u64 = 10_000_000;

/// How many random operations a check has by default.
pub const OPERATIONS: usize = 10_000;

/// How many there are when a server accepts a policy, where somebody waits for it.
pub const SWAP_OPERATIONS: usize = 1_000;

/// How a policy is checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// What a call may use, but for the time: that is bounded by `fuel`.
    pub limits: Limits,
    /// What a call may use, in units of fuel.
    pub fuel: u64,
    /// How many random operations there are.
    pub operations: usize,
    /// What they are drawn from.
    pub seed: u64,
    /// For whom sessions are opened: one that the policy lets in.
    pub owner: String,
    /// What the policy is loaded with.
    pub options: PolicyOptions,
    /// How long it may take altogether. Fuel bounds what a policy computes, and not how long
    /// it sleeps.
    pub patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            fuel: FUEL,
            operations: OPERATIONS,
            seed: fastrand::u64(..),
            owner: "tester".to_owned(),
            options: PolicyOptions::default(),
            patience: Duration::from_secs(10 * 60),
        }
    }
}

/// Checks a policy, and blocks the thread meanwhile.
///
/// Not for a thread of an asynchronous runtime.
#[must_use]
pub fn check(settings: &Settings, component: &[u8]) -> Report {
    check_until(settings, component, pending())
}

/// The same, but stops when `given_up` resolves: nobody reads the report then.
pub(crate) fn check_until(
    settings: &Settings,
    component: &[u8],
    given_up: impl Future<Output = ()>,
) -> Report {
    let mut report = Report {
        seed: settings.seed,
        operations: settings.operations,
        fuel: settings.fuel,
        fuel_used: 0,
        memory_used: 0,
        checks: Vec::new(),
    };
    let policy = match load(settings, component, &mut report.checks) {
        Some(policy) => policy,
        None => return report,
    };
    // A candidate's violations are no news of the server's.
    with_default(NoSubscriber::new(), || {
        on_a_runtime(async {
            let checks = &mut report.checks;
            tokio::select! {
                () = run(settings, &policy, checks) => return,
                () = sleep(settings.patience) => {}
                () = given_up => {}
            }
            report.checks.push(Checked {
                name: "ends in time".to_owned(),
                why: "a policy that sleeps keeps its callers waiting".to_owned(),
                verdict: Failure::of(
                    "waiting for the check",
                    "its end",
                    format!("none within {} s", settings.patience.as_secs()),
                ),
            });
        });
    });
    for used in policy.engine().used().values() {
        report.fuel_used = report.fuel_used.max(used.fuel);
        report.memory_used = report.memory_used.max(used.memory);
    }
    report
}

/// The checks that come before any call. `None` if the policy does not get past them.
fn load(settings: &Settings, component: &[u8], checks: &mut Vec<Checked>) -> Option<Policy> {
    let misfits = match Inspection::of(component) {
        Ok(inspection) => inspection.misfits,
        Err(error) => vec![error.to_string()],
    };
    let fits = misfits.is_empty();
    checks.push(Checked {
        name: "fits the world".to_owned(),
        why: "a component of another shape could not be called, or would want what no policy gets"
            .to_owned(),
        verdict: if fits {
            Verdict::Passed
        } else {
            Failure::of(
                "comparing its imports and exports with the world tenure:registry/session-policy",
                "no difference",
                misfits.join("; "),
            )
        },
    });
    if !fits {
        return None;
    }
    let mut limits = settings.limits.clone();
    // Two calls at once are the most, and an address space for more is not free.
    limits.calls_in_flight = 4;
    limits.deadline = Duration::from_secs(24 * 60 * 60);
    let loaded = PolicyEngine::measuring(limits, settings.fuel)
        .and_then(|engine| Policy::load_with(&engine, component, &settings.options));
    let (verdict, policy) = match loaded {
        Ok(policy) => (Verdict::Passed, Some(policy)),
        Err(error) => (
            Failure::of(
                "loading it",
                "a policy ready to be called",
                error.to_string(),
            ),
            None,
        ),
    };
    checks.push(Checked {
        name: "loads within the limits".to_owned(),
        why: "the server runs nothing that wants more memory or tables than it allows".to_owned(),
        verdict,
    });
    policy
}

async fn run(settings: &Settings, policy: &Policy, checks: &mut Vec<Checked>) {
    for scenario in scenarios() {
        let verdict = play(
            policy,
            Arc::new(Model::default()),
            &settings.owner,
            &scenario,
        )
        .await;
        checks.push(Checked {
            name: scenario.name,
            why: scenario.why,
            verdict,
        });
    }
    let verdict = history::check(policy, &settings.owner, settings.seed, settings.operations).await;
    checks.push(Checked {
        name: format!(
            "{} random operations from seed {}",
            settings.operations, settings.seed
        ),
        why: "calls come in every order, and no order may make a dead session live or hide a \
              fault"
            .to_owned(),
        verdict,
    });
}

/// Plays a scenario on a store, under a policy. Needs a Tokio runtime.
pub async fn play<S: Statements + Surroundings>(
    policy: &Policy,
    store: Arc<S>,
    owner: &str,
    scenario: &Scenario,
) -> Verdict {
    let mut player = Player::new(policy.clone(), store, owner);
    for (at, step) in scenario.steps.iter().enumerate() {
        let observed = player.perform(step).await;
        let Some(expected) = &step.expect else {
            continue;
        };
        match &observed {
            Observed::Answered(outcome, _)
                if outcome == expected || step.admits.contains(outcome) => {}
            // Another way to refuse what has to be refused.
            Observed::Answered(outcome, _) if outcome.is_no() && expected.is_no() => {}
            Observed::Answered(outcome, text) if outcome.is_no() => {
                return Verdict::Stricter(Stricter::new(at, step, outcome, text));
            }
            _ => return Verdict::Failed(Box::new(Failure::new(at, step, expected, &observed))),
        }
    }
    Verdict::Passed
}

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without I/O needs nothing that could be missing")
        .block_on(work)
}
