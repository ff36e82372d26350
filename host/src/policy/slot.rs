//! The slot that holds the policy in charge, and that another can be put into while calls
//! run.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Policy;

/// Holds the policy in charge. A call takes the one that is there when it begins and keeps it
/// to its end, so swapping neither waits for a call nor makes one wait.
#[derive(Debug)]
pub struct PolicySlot {
    policy: ArcSwap<Policy>,
}

impl PolicySlot {
    /// With its first policy.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        policy.takes_charge();
        Self {
            policy: ArcSwap::from_pointee(policy),
        }
    }

    /// The policy in charge at this moment.
    #[must_use]
    pub fn load(&self) -> Arc<Policy> {
        self.policy.load_full()
    }

    /// Puts `policy` in charge of every call that begins from now on, and returns the one
    /// before, whose memory is freed when its last call ends and nobody else keeps it.
    pub fn swap(&self, policy: Policy) -> Arc<Policy> {
        policy.takes_charge();
        let before = self.policy.swap(Arc::new(policy));
        before.leaves();
        before
    }
}

impl Drop for PolicySlot {
    fn drop(&mut self) {
        self.policy.load().leaves();
    }
}
