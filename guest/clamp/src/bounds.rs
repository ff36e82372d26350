//! The bounds of a TTL, as the settings have them.

use std::cmp::Reverse;

use rules::MAX_TTL_MS;

/// Bounds of a TTL in milliseconds, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    min: u64,
    max: u64,
}

impl Bounds {
    /// The bounds for `owner`, or where it is not known for everybody. Settings that are not
    /// about bounds are passed over; of the ones that are, all have to make sense, whether
    /// or not this owner is meant. The error names the setting.
    pub fn of(settings: &[(String, String)], owner: Option<&str>) -> Result<Self, String> {
        let bounds = Self {
            min: bound(settings, "min-ttl-ms", owner)?.unwrap_or(1),
            max: bound(settings, "max-ttl-ms", owner)?.unwrap_or(MAX_TTL_MS),
        };
        if bounds.min > bounds.max {
            return Err(format!(
                "min-ttl-ms of {} is more than max-ttl-ms of {}",
                bounds.min, bounds.max
            ));
        }
        Ok(bounds)
    }

    /// The nearest TTL within the bounds.
    pub fn clamp(self, ttl_ms: u64) -> u64 {
        ttl_ms.clamp(self.min, self.max)
    }
}

/// The setting `name` with the longest prefix that `owner` begins with.
fn bound(
    settings: &[(String, String)],
    name: &str,
    owner: Option<&str>,
) -> Result<Option<u64>, String> {
    let mut found: Option<(Reverse<usize>, u64)> = None;
    for (key, value) in settings {
        let prefix = match key.strip_prefix(name) {
            Some("") => "",
            Some(rest) => match rest.strip_prefix('.') {
                Some(prefix) => prefix,
                None => continue,
            },
            None => continue,
        };
        let ttl_ms = match value.parse() {
            Ok(ttl_ms) if (1..=MAX_TTL_MS).contains(&ttl_ms) => ttl_ms,
            _ => {
                return Err(format!(
                    "{key} has to be a number of milliseconds from 1 to {MAX_TTL_MS}"
                ));
            }
        };
        let is_meant = prefix.is_empty() || owner.is_some_and(|owner| owner.starts_with(prefix));
        let candidate = (Reverse(prefix.len()), ttl_ms);
        if is_meant && found.is_none_or(|found| candidate < found) {
            found = Some(candidate);
        }
    }
    Ok(found.map(|(_, ttl_ms)| ttl_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn ttls_become_the_nearest_within_the_bounds() {
        let settings = settings(&[
            ("max-ttl-ms.batch-", "600000"),
            ("min-ttl-ms", "5000"),
            ("max-ttl-ms", "30000"),
            ("max-ttl-ms.batch-night-", "3600000"),
            ("min-ttl-ms.batch-", "60000"),
            ("max-ttl-milliseconds", "something else"),
            ("allow", "*"),
        ]);
        for (owner, asked, got) in [
            (None, 0, 5_000),
            (None, 1, 5_000),
            (None, 5_000, 5_000),
            (None, 12_345, 12_345),
            (None, 30_000, 30_000),
            (None, 30_001, 30_000),
            (None, u64::MAX, 30_000),
            (Some("worker"), u64::MAX, 30_000),
            (Some("batch"), u64::MAX, 30_000),
            (Some("a-batch-"), u64::MAX, 30_000),
            (Some("batch-1"), 1, 60_000),
            (Some("batch-1"), u64::MAX, 600_000),
            (Some("batch-night-1"), u64::MAX, 3_600_000),
            (Some("batch-night-1"), 1, 60_000),
        ] {
            let bounds = Bounds::of(&settings, owner).unwrap();
            assert_eq!(bounds.clamp(asked), got, "{owner:?} {asked}");
        }
    }

    #[test]
    fn without_settings_the_bounds_are_the_default_policys() {
        let bounds = Bounds::of(&[], None).unwrap();
        for (asked, got) in [
            (0, 1),
            (1, 1),
            (MAX_TTL_MS, MAX_TTL_MS),
            (u64::MAX, MAX_TTL_MS),
        ] {
            assert_eq!(bounds.clamp(asked), got, "{asked}");
        }
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        for (pairs, complaint) in [
            (&[("min-ttl-ms", "")][..], "min-ttl-ms has to be"),
            (&[("min-ttl-ms", "0")], "min-ttl-ms has to be"),
            (&[("max-ttl-ms", "5s")], "max-ttl-ms has to be"),
            (&[("max-ttl-ms", "-1")], "max-ttl-ms has to be"),
            (&[("max-ttl-ms", "86400001")], "max-ttl-ms has to be"),
            (&[("max-ttl-ms.x", "much")], "max-ttl-ms.x has to be"),
            (
                &[("min-ttl-ms", "10"), ("max-ttl-ms", "9")],
                "min-ttl-ms of 10 is more than max-ttl-ms of 9",
            ),
        ] {
            let error = Bounds::of(&settings(pairs), Some("tester")).unwrap_err();
            assert!(error.starts_with(complaint), "{pairs:?}: {error}");
        }
    }
}
