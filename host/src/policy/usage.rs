//! What calls have used, on an engine that measures.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The most that a call of one operation has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Fuel: roughly a unit for each instruction, the same on every machine.
    pub fuel: u64,
    /// Bytes of linear memory.
    pub memory: usize,
}

#[derive(Debug)]
pub(super) struct Usage {
    /// What one call may use.
    fuel: u64,
    most: Mutex<BTreeMap<&'static str, Used>>,
}

impl Usage {
    pub(super) fn new(fuel: u64) -> Self {
        Self {
            fuel,
            most: Mutex::default(),
        }
    }

    pub(super) fn fuel(&self) -> u64 {
        self.fuel
    }

    pub(super) fn keep(&self, operation: &'static str, fuel_left: u64, memory: usize) {
        let mut most = self.most.lock().unwrap_or_else(PoisonError::into_inner);
        let most = most.entry(operation).or_default();
        most.fuel = most.fuel.max(self.fuel - fuel_left);
        most.memory = most.memory.max(memory);
    }

    pub(super) fn all(&self) -> BTreeMap<&'static str, Used> {
        self.most
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
