//! Locks as the host's callers see them.

use std::fmt;
use std::num::NonZeroI64;
use std::ops::Deref;
use std::str::FromStr;
use std::time::SystemTime;

use crate::session::SessionId;

/// The longest key, in characters, which are bytes here.
pub const MAX_KEY_LEN: usize = 128;

/// Names a lock: 1 to 128 characters of `a-z`, `A-Z`, `0-9`, `:`, `.`, `_` and `-`.
///
/// Dereferences to its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(String);

/// A text that is no [`LockKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a lock key is 1 to 128 characters of a-z, A-Z, 0-9, ':', '.', '_' and '-'")]
pub struct InvalidKey;

impl FromStr for LockKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = (1..=MAX_KEY_LEN).contains(&text.len())
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b":._-".contains(&b));
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidKey)
        }
    }
}

impl Deref for LockKey {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The number that makes a lock safe. Of two grants of a key the later has the greater
/// token, so a resource that remembers the greatest token that it has seen can refuse a
/// holder that lost the lock without noticing. Never zero or negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroI64);

impl FencingToken {
    /// The token as a number, 1 or more.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0.get()
    }
}

/// A number that is no [`FencingToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fencing token is a whole number from 1 to 9223372036854775807")]
pub struct InvalidToken;

impl TryFrom<i64> for FencingToken {
    type Error = InvalidToken;

    fn try_from(number: i64) -> Result<Self, Self::Error> {
        match NonZeroI64::new(number) {
            Some(number) if number.get() > 0 => Ok(Self(number)),
            _ => Err(InvalidToken),
        }
    }
}

impl FromStr for FencingToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // `i64` would take a sign as well.
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(InvalidToken);
        }
        text.parse::<i64>().map_err(|_| InvalidToken)?.try_into()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lock that was granted. There is none without a token.
///
/// It holds until `expires_at` **or the end of its session**, whichever is first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a grant that nobody keeps stays in the way of others until it lapses"]
pub struct Grant {
    /// What is locked.
    pub key: LockKey,
    /// Whose session holds it.
    pub owner: String,
    /// The session that holds it.
    pub session: SessionId,
    /// To be shown to every resource that the lock protects.
    pub token: FencingToken,
    /// When it was granted, by the database's clock.
    pub acquired_at: SystemTime,
    /// When its own lease ends, by the database's clock.
    pub expires_at: SystemTime,
}

/// Who is in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Whose session holds the lock.
    pub owner: String,
    /// Since when.
    pub acquired_at: SystemTime,
    /// When its lease ends, unless it is renewed.
    pub expires_at: SystemTime,
}

/// The answer to an attempt to take a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the lock may be another's"]
pub enum Acquired {
    /// It is the session's.
    Granted(Grant),
    /// It is another live session's.
    Held(Holder),
}

/// The answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a lock that was lost has to be given up"]
pub enum Renewed {
    /// The lease now ends at this time, by the database's clock; the token is the same.
    Until(SystemTime),
    /// The lease is over, or its session is, or the lock is another's. Its holder has to
    /// stop; it may acquire the key again, under a new token.
    Lost,
}

/// The answer to a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "tells whether anything was revoked"]
pub enum Revoked {
    /// The grant is gone, and recorded.
    Done(Revocation),
    /// Nobody holds the key.
    NotHeld,
    /// The key is held under another token than the one expected, so it was left alone.
    OtherToken(FencingToken),
}

/// The record of a revocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// The number of the record in `lock_revocation`.
    pub id: i64,
    /// Whose grant it was.
    pub owner: String,
    /// The token that is worth nothing any more.
    pub token: FencingToken,
    /// Every later grant of the key has a greater token than this, which itself was
    /// granted to nobody.
    pub token_floor: FencingToken,
}

/// What a round of the reaper removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// Sessions that were dead; their locks went with them.
    pub sessions: usize,
    /// Grants whose own lease was over, of sessions that live.
    pub grants: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for (key, ok) in [
            ("a", true),
            ("orders:2026.12_01-x", true),
            (&"k".repeat(128), true),
            ("", false),
            (&"k".repeat(129), false),
            ("a b", false),
            ("a/b", false),
            ("a\0", false),
            ("a%20", false),
            ("\u{e9}", false),
            ("\u{1F512}", false),
            ("'; DROP TABLE lock_entry; --", false),
        ] {
            assert_eq!(key.parse::<LockKey>().is_ok(), ok, "{key:?}");
        }
    }

    #[test]
    fn tokens() {
        for (token, ok) in [
            ("1", true),
            ("0042", true),
            ("9223372036854775807", true),
            ("0", false),
            ("-1", false),
            ("+1", false),
            ("", false),
            (" 1", false),
            ("1.0", false),
            ("0x1", false),
            ("9223372036854775808", false),
            ("\u{661}", false), // an Arabic digit
        ] {
            assert_eq!(token.parse::<FencingToken>().is_ok(), ok, "{token:?}");
        }
        assert_eq!(FencingToken::try_from(0), Err(InvalidToken));
        assert_eq!(FencingToken::try_from(i64::MIN), Err(InvalidToken));
    }
}
