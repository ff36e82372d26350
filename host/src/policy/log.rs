//! What a policy says, in the host's log.
//!
//! Each line becomes one event of the target [`TARGET`], with the policy's name and the
//! operation that it was called for. A policy can neither flood the log nor forge it: a
//! line is cut at [`MAX_LINE`] bytes and its control characters are escaped, a call has
//! [`LINES_PER_CALL`] lines, and all calls of a policy together have [`LINES_PER_SECOND`]
//! in each second. What is beyond that is dropped, and counted by the next line that is not.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::About;

/// The events' target, for a filter such as `info,tenure::policy::log=off`.
const TARGET: &str = module_path!();

/// Bytes of one line. The rest of it is dropped.
pub(super) const MAX_LINE: usize = 1024;

/// A policy's call is short, and so is what is worth saying of it.
pub(super) const LINES_PER_CALL: u32 = 16;

/// Of one policy, whatever the number of its calls: enough for somebody who is looking, and
/// no burden for a disk.
pub(super) const LINES_PER_SECOND: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// Counts a policy's lines in windows of a second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    window: Mutex<Option<Window>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u32,
    /// Lines that were dropped since the last one that was not.
    dropped: u64,
}

impl Rate {
    /// Whether a line may be logged now; if so, how many were dropped before it.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let window = window.get_or_insert(Window {
            began: now,
            lines: 0,
            dropped: 0,
        });
        if now.duration_since(window.began) >= Duration::from_secs(1) {
            window.began = now;
            window.lines = 0;
        }
        if window.lines == LINES_PER_SECOND {
            window.dropped += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.dropped))
    }

    fn drop_line(&self) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = window.as_mut() {
            window.dropped += 1;
        }
    }
}

/// The log of one call, shared by all the ways that a policy has of saying something.
pub(super) struct CallLog {
    policy: Arc<About>,
    operation: &'static str,
    lines: AtomicU32,
}

impl CallLog {
    pub(super) fn new(policy: Arc<About>, operation: &'static str) -> Self {
        Self {
            policy,
            operation,
            lines: AtomicU32::new(0),
        }
    }

    /// Logs a line. `context` may be empty.
    pub(super) fn line(&self, level: Level, context: &str, message: &str) {
        if self.lines.fetch_add(1, Ordering::Relaxed) >= LINES_PER_CALL {
            self.policy.log_rate.drop_line();
            return;
        }
        let Some(dropped) = self.policy.log_rate.admit(Instant::now()) else {
            return;
        };
        let policy = self.policy.name.as_str();
        let operation = self.operation;
        // With `Debug`, a line break cannot start a line of its own.
        let context = &context[..context.floor_char_boundary(MAX_LINE)];
        let said = &message[..message.floor_char_boundary(MAX_LINE)];
        macro_rules! event {
            ($level:ident) => {
                tracing::event!(
                    target: TARGET,
                    tracing::Level::$level,
                    policy,
                    operation,
                    context = (!context.is_empty()).then(|| tracing::field::debug(context)),
                    dropped = (dropped > 0).then_some(dropped),
                    said = ?said,
                    "policy_says"
                )
            };
        }
        match level {
            Level::Trace => event!(TRACE),
            Level::Debug => event!(DEBUG),
            Level::Info => event!(INFO),
            Level::Warn => event!(WARN),
            Level::Error => event!(ERROR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_lines_and_the_next_one_says_how_many_were_dropped() {
        let rate = Rate::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);

        for _ in 0..LINES_PER_SECOND {
            assert_eq!(rate.admit(at(0)), Some(0));
        }
        assert_eq!(rate.admit(at(1)), None);
        rate.drop_line();
        assert_eq!(rate.admit(at(999)), None);
        assert_eq!(rate.admit(at(1000)), Some(3));
        assert_eq!(rate.admit(at(1001)), Some(0));
    }
}
