//! What a policy has done since it was loaded.

use std::sync::atomic::{AtomicU64, Ordering};

use super::PolicyFault;
use crate::Error;

/// Counts the calls of a policy by how they ended.
#[derive(Debug, Default)]
pub(super) struct Counters {
    calls: AtomicU64,
    refusals: AtomicU64,
    violations: AtomicU64,
    traps: AtomicU64,
    time_outs: AtomicU64,
}

/// How the calls of a policy have ended since it was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyCounts {
    /// All that have ended, but for the ones whose callers went away.
    pub calls: u64,
    /// The policy said no.
    pub refusals: u64,
    /// The policy did what no policy may do, or said what the database did not bear out.
    pub violations: u64,
    /// The policy trapped, or broke a limit.
    pub traps: u64,
    /// The call was over its deadline, which may be the database's fault.
    pub time_outs: u64,
}

impl Counters {
    pub(super) fn ended<T>(&self, outcome: &Result<T, Error>) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Err(Error::Refused(_)) => self.refusals.fetch_add(1, Ordering::Relaxed),
            Err(Error::DeadlineExceeded(_)) => self.time_outs.fetch_add(1, Ordering::Relaxed),
            _ => return,
        };
    }

    pub(super) fn misbehaved(&self, fault: &PolicyFault) {
        let counter = match fault {
            PolicyFault::Violation(_) => &self.violations,
            _ => &self.traps,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> PolicyCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PolicyCounts {
            calls: read(&self.calls),
            refusals: read(&self.refusals),
            violations: read(&self.violations),
            traps: read(&self.traps),
            time_outs: read(&self.time_outs),
        }
    }
}
