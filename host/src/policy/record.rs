//! The call record: what was asked for, and what the database did about it.

use std::mem;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::postgres::StoreError;

/// What a caller asks of the policy. A call permits the one statement of the same name,
/// once, with the caller's own owner or session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Open a session for this owner.
    OpenSession {
        /// As the caller gave it.
        owner: String,
    },
    /// Keep this session alive.
    Heartbeat {
        /// As the caller gave it, which need not be a UUID.
        session: String,
    },
    /// Close this session.
    CloseSession {
        /// As the caller gave it.
        session: String,
    },
    /// List this session's locks.
    LocksOf {
        /// As the caller gave it.
        session: String,
    },
}

impl Operation {
    /// The operation's name, which is its statement's too.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::OpenSession { .. } => "open-session",
            Self::Heartbeat { .. } => "heartbeat",
            Self::CloseSession { .. } => "close-session",
            Self::LocksOf { .. } => "locks-of",
        }
    }
}

/// What a statement did: the evidence that a verdict is held against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// No statement has run.
    Nothing,
    /// One was begun, and the call ended before its outcome was known.
    Unknown,
    Opened {
        id: Uuid,
        ttl: Duration,
        outcome: Result<SystemTime, StoreError>,
    },
    Beat {
        ttl: Duration,
        outcome: Result<Option<SystemTime>, StoreError>,
    },
    Closed(Result<Option<u32>, StoreError>),
    Listed(Result<Vec<String>, StoreError>),
}

impl Evidence {
    /// The session that was opened, if one was.
    pub(crate) fn inserted(&self) -> Option<Uuid> {
        match self {
            Self::Opened {
                id, outcome: Ok(_), ..
            } => Some(*id),
            _ => None,
        }
    }
}

/// Follows one call: decides which statement may run, and keeps what it did.
///
/// Made anew for every call. A host of one's own makes it with the operation that it is
/// about to call, lends it to the [view](super::StatementsView), and may read
/// [`violation`](Self::violation) afterwards.
#[derive(Debug)]
pub struct CallRecord {
    operation: Operation,
    evidence: Evidence,
    violation: Option<String>,
}

impl CallRecord {
    /// For a call of `operation`, before which nothing has run.
    #[must_use]
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            evidence: Evidence::Nothing,
            violation: None,
        }
    }

    /// What was asked for.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// What the policy tried to do and may not, if it did. The call it happened in has
    /// trapped, and its answer, if any, must not be used.
    #[must_use]
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Whether the policy may run `wanted` now. If so it counts as run; if not, the
    /// violation is kept.
    pub(crate) fn permit(&mut self, wanted: &Operation) -> Result<(), String> {
        let denied = if wanted.name() != self.operation.name() {
            format!(
                "ran the statement {} during {}",
                wanted.name(),
                self.operation.name()
            )
        } else if *wanted != self.operation {
            format!(
                "ran the statement {} for another than the caller's own {}",
                wanted.name(),
                match wanted {
                    Operation::OpenSession { .. } => "owner",
                    _ => "session",
                }
            )
        } else if self.evidence != Evidence::Nothing {
            format!("ran the statement {} twice", wanted.name())
        } else {
            self.evidence = Evidence::Unknown;
            return Ok(());
        };
        self.violation = Some(denied.clone());
        Err(denied)
    }

    pub(crate) fn keep(&mut self, evidence: Evidence) {
        self.evidence = evidence;
    }

    pub(crate) fn take_evidence(&mut self) -> Evidence {
        mem::replace(&mut self.evidence, Evidence::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(session: &str) -> Operation {
        Operation::Heartbeat {
            session: session.to_owned(),
        }
    }

    #[test]
    fn a_call_permits_its_own_statement_once() {
        let mut record = CallRecord::new(heartbeat("s"));
        assert_eq!(record.permit(&heartbeat("s")), Ok(()));
        assert_eq!(record.violation(), None);
        assert_eq!(
            record.permit(&heartbeat("s")),
            Err("ran the statement heartbeat twice".to_owned())
        );
        assert_eq!(
            record.violation(),
            Some("ran the statement heartbeat twice")
        );
    }

    #[test]
    fn another_statement_is_denied_and_leaves_no_evidence() {
        for (asked, wanted) in [
            (heartbeat("s"), Operation::OpenSession { owner: "o".into() }),
            (
                heartbeat("s"),
                Operation::CloseSession {
                    session: "s".into(),
                },
            ),
            (
                Operation::LocksOf {
                    session: "s".into(),
                },
                heartbeat("s"),
            ),
            (heartbeat("s"), heartbeat("another")),
            (
                Operation::OpenSession { owner: "o".into() },
                Operation::OpenSession { owner: "O".into() },
            ),
        ] {
            let mut record = CallRecord::new(asked.clone());
            assert!(record.permit(&wanted).is_err(), "{asked:?} {wanted:?}");
            assert!(record.violation().is_some());
            assert_eq!(record.take_evidence(), Evidence::Nothing);
        }
    }
}
