//! Sessions as the host's callers see them.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

/// Names one session. It is also the capability to keep the session alive, to take locks
/// with it and to close it: who knows it, may.
///
/// Dereferences to its text, the hyphenated lower-case form.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    uuid: Uuid,
    text: String,
}

impl SessionId {
    /// The id as a UUID.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }
}

impl From<Uuid> for SessionId {
    fn from(uuid: Uuid) -> Self {
        Self {
            uuid,
            text: uuid.to_string(),
        }
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // The parser takes other forms as well, which the contract does not have.
        match Uuid::try_parse(text) {
            Ok(uuid) if text.len() == 36 => Ok(Self::from(uuid)),
            _ => Err(InvalidSessionId),
        }
    }
}

/// A text that is no [`SessionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id is a UUID of 36 characters")]
pub struct InvalidSessionId;

impl Deref for SessionId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A stretch of life that the database has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When it ends, by the database's clock.
    pub expires_at: SystemTime,
    /// How long it was when it was granted. The policy may have granted less, or more,
    /// than was asked for.
    pub ttl: Duration,
}

impl Lease {
    /// When it was granted, by the database's clock.
    #[must_use]
    pub fn granted_at(&self) -> SystemTime {
        self.expires_at - self.ttl
    }
}

/// A session that has just been opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a session that nobody keeps alive dies with its TTL"]
pub struct Session {
    /// Its id.
    pub id: SessionId,
    /// Whose it is, as given.
    pub owner: String,
    /// How long it lives without a heartbeat.
    pub lease: Lease,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a dead session has lost its locks, and its holder has to stop"]
pub enum Heartbeat {
    /// The session was alive, and lives on for the lease.
    Alive(Lease),
    /// **Terminal.** The session has lapsed, was closed, or never was. Nothing brings it
    /// back; its locks are gone or going.
    Dead,
}

impl Heartbeat {
    /// Whether the session lives on.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        matches!(self, Self::Alive(_))
    }
}

/// The answer to a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "tells whether there was a session to close"]
pub struct Closed {
    /// Whether this call found the session; `false` for one that is unknown or closed
    /// already.
    pub existed: bool,
    /// How many locks went with it.
    pub locks_released: u32,
}
