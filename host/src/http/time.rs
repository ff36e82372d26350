//! Times on the wire: RFC 3339, UTC, milliseconds.

use std::time::{Duration, SystemTime};

/// As text, cut to the millisecond, so that an expiry is never shown later than it is.
pub(super) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
