//! Instances that wait for their next call, where one instance may serve several.
//!
//! By default none does: that a policy has no memory between calls is then a property of the
//! runtime. [`Limits::calls_per_instance`](super::Limits::calls_per_instance) gives that up
//! for speed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wasmtime::Store;

use super::About;
use super::bindings::SessionPolicy;
use super::call::CallState;

/// An instance, the store that it lives in, and how many more calls it may serve.
pub(super) struct Instance {
    pub(super) store: Store<CallState>,
    pub(super) policy: SessionPolicy,
    pub(super) calls_left: u32,
}

/// Those of an engine, whichever policy they are of. The last to come is the first to go: its
/// memory is the likeliest to be at hand.
#[derive(Default)]
pub(super) struct Idle(Mutex<Vec<Instance>>);

impl Idle {
    /// Nothing panics under it, and nothing is dropped under it that takes long.
    fn lock(&self) -> MutexGuard<'_, Vec<Instance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of this policy.
    pub(super) fn take(&self, policy: &Arc<About>) -> Option<Instance> {
        let mut idle = self.lock();
        let at = idle
            .iter()
            .rposition(|instance| Arc::ptr_eq(instance.store.data().policy(), policy))?;
        Some(idle.swap_remove(at))
    }

    /// Keeps one for the next call, for as long as its policy is in charge.
    pub(super) fn keep(&self, instance: Instance) {
        let mut idle = self.lock();
        if instance.store.data().policy().is_in_charge() {
            idle.push(instance);
        } else {
            drop(idle);
            drop(instance);
        }
    }

    /// Makes room for an instance of another policy. Whether there was one to give up.
    pub(super) fn give_one_up(&self) -> bool {
        let given_up = self.lock().pop();
        given_up.is_some()
    }

    /// Gives up those of a policy that is in charge no more.
    pub(super) fn forget(&self, policy: &Arc<About>) {
        let forgotten: Vec<_> = self
            .lock()
            .extract_if(.., |instance| {
                Arc::ptr_eq(instance.store.data().policy(), policy)
            })
            .collect();
        drop(forgotten);
    }
}
