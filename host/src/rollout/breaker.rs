//! Taking a new policy out of charge that turns out to misbehave.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{Rejection, Rollout};

/// When a new policy is taken out of charge again, by going back to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Breaker {
    /// After so many violations and traps. Time-outs do not count, as they may be the
    /// database's fault.
    pub failures: u64,
    /// Within so long from when it was put in charge.
    pub window: Duration,
}

impl Default for Breaker {
    fn default() -> Self {
        Self {
            failures: 5,
            window: Duration::from_secs(60),
        }
    }
}

impl Rollout {
    /// Watches over the policy that has just been put in charge.
    pub(super) fn watch(&self) {
        let rollout = self.clone();
        // Not the policy itself, whose memory is to go when another has taken its place.
        let counters = self.slot().load().counters();
        let breaker = self.inner.requirements.breaker;
        tokio::spawn(async move {
            let failed = async {
                while counters.failures() < breaker.failures {
                    counters.until_it_misbehaves().await;
                }
            };
            tokio::select! {
                () = sleep(breaker.window) => return,
                () = failed => {}
            }
            let mut state = rollout.inner.state.lock().await;
            let policy = rollout.slot().load();
            if !Arc::ptr_eq(&policy.counters(), &counters) {
                return;
            }
            tracing::error!(
                policy = policy.name(),
                sha256 = policy.sha256(),
                failures = counters.failures(),
                within_ms = breaker.window.as_millis(),
                "policy_breaker_tripped: the new policy misbehaves and is taken out of charge"
            );
            drop(policy);
            match rollout.go_back(&mut state).await {
                Ok(_) => {}
                Err(Rejection::NothingBefore) => {
                    tracing::error!("there is no policy before it to go back to: it stays");
                }
                Err(error) => {
                    tracing::error!(%error, "cannot go back to the policy before: it stays");
                }
            }
        });
    }
}
