//! What a check has found.

use serde::Serialize;

use super::player::Observed;
use super::scenario::{Outcome, Step};

/// What was found of a policy.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// What the random operations were drawn from: the same seed draws the same ones.
    pub seed: u64,
    /// How many random operations there were to be.
    pub operations: usize,
    /// What one call may use: roughly a unit for each instruction, the same everywhere.
    pub fuel: u64,
    /// The most that a call has used.
    pub fuel_used: u64,
    /// The most linear memory that a call has used, in bytes.
    pub memory_used: usize,
    /// Each thing that was checked. Nothing comes after a policy that does not fit.
    pub checks: Vec<Checked>,
}

impl Report {
    /// Whether the policy may be trusted with sessions: nothing has failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What has failed.
    pub fn failures(&self) -> impl Iterator<Item = (&Checked, &Failure)> {
        self.checks
            .iter()
            .filter_map(|checked| match &checked.verdict {
                Verdict::Failed(failure) => Some((checked, &**failure)),
                _ => None,
            })
    }

    /// Where the policy says no and the default policy does not. A scenario ends there, so
    /// what comes after has not been checked.
    pub fn stricter(&self) -> impl Iterator<Item = (&Checked, &Stricter)> {
        self.checks
            .iter()
            .filter_map(|checked| match &checked.verdict {
                Verdict::Stricter(stricter) => Some((checked, stricter)),
                _ => None,
            })
    }
}

/// One thing that was checked.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Checked {
    /// What it is called.
    pub name: String,
    /// What would go wrong for whom if it failed.
    pub why: String,
    /// What was found.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// What was found of one thing.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// As it has to be.
    Passed,
    /// The policy said no, which the contract lets it.
    Stricter(Stricter),
    /// As it must not be.
    Failed(Box<Failure>),
}

/// A call that a policy failed.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Failure {
    /// Which step of the scenario or the random history, counted from 1; 0 if there are none.
    pub step: usize,
    /// What was done.
    pub did: String,
    /// What has to come of it.
    pub expected: String,
    /// What came of it.
    pub got: String,
    /// Of a random history, the fewest steps that were found to show it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<String>,
}

impl Failure {
    pub(super) fn new(at: usize, step: &Step, expected: &Outcome, observed: &Observed) -> Self {
        Self {
            step: at + 1,
            did: step.to_string(),
            expected: expected.to_string(),
            got: match observed {
                Observed::Answered(outcome, text) if text.is_empty() => outcome.to_string(),
                Observed::Answered(outcome, text) => format!("{outcome}: {text}"),
                Observed::Broken(what) => what.clone(),
                Observed::Nothing => "nothing".to_owned(),
            },
            history: Vec::new(),
        }
    }

    /// Of something that is no call.
    pub(super) fn of(did: &str, expected: &str, got: String) -> Verdict {
        Verdict::Failed(Box::new(Self {
            step: 0,
            did: did.to_owned(),
            expected: expected.to_owned(),
            got,
            history: Vec::new(),
        }))
    }
}

/// A call to which a policy said no.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Stricter {
    /// Which step, counted from 1.
    pub step: usize,
    /// What was done.
    pub did: String,
    /// What it said.
    pub said: String,
}

impl Stricter {
    pub(super) fn new(at: usize, step: &Step, outcome: &Outcome, text: &str) -> Self {
        Self {
            step: at + 1,
            did: step.to_string(),
            said: format!("{outcome}: {text}"),
        }
    }
}
