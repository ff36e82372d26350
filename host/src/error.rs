//! What can go wrong with a call, as the caller sees it.

use std::time::Duration;

use crate::policy::PolicyFault;
use crate::postgres::StoreError;
use crate::session::SessionId;

/// Why a call failed.
///
/// No variant means that a session is dead: that is an answer
/// ([`Heartbeat::Dead`](crate::Heartbeat::Dead)), and a fault is never that answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks a rule; nothing ran. The same call will fail again.
    #[error("invalid argument: {0}")]
    InvalidArgument(String),

    /// The policy says no; nothing ran. The text is its reason.
    #[error("refused by the policy: {0}")]
    Refused(String),

    /// A conflict, a time-out, a lost connection, or too many calls at once: the call may
    /// or may not have taken effect. A retry is safe.
    #[error("contention: {0}")]
    Contention(String),

    /// The call took longer than its deadline and was given up; its statement was
    /// cancelled, or had ended unseen. A retry is safe.
    #[error("no answer within {} ms; the call may or may not have taken effect", .0.as_millis())]
    DeadlineExceeded(Duration),

    /// The database refused the statement, which had no effect: a broken constraint or a
    /// reference to what is not there. The same call will fail again.
    #[error("rejected by the database: {0}")]
    Rejected(String),

    /// Any other fault of the database, in its own words. Look at the database before
    /// trying again.
    #[error("store: {0}")]
    Store(String),

    /// No such session: it was closed, was reaped, or never was. Final.
    #[error("session {0} is unknown: it was closed, has been reaped, or never was")]
    SessionUnknown(SessionId),

    /// The session's lease is over. Final, whether or not its row still stands.
    #[error("session {0} has expired")]
    SessionExpired(SessionId),

    /// The policy misbehaved, which cost this call and no other.
    #[error("policy: {0}")]
    Policy(#[from] PolicyFault),
}

impl Error {
    /// Whether the same call may be made again without harm and with a chance of success.
    #[must_use]
    pub fn is_retry_safe(&self) -> bool {
        matches!(self, Self::Contention(_) | Self::DeadlineExceeded(_))
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Contention(text) => Self::Contention(text),
            StoreError::Rejected(text) => Self::Rejected(text),
            StoreError::Other(text) => Self::Store(text),
        }
    }
}
