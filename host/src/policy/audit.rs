//! Holding a policy's verdict against the call record.
//!
//! Pure functions, one for each operation, over every pair of verdict and evidence. The
//! order of trust: what the database did stands above what the policy says of it.

use std::time::Duration;

use uuid::Uuid;

use super::PolicyFault;
use super::bindings::tenure::registry::types::RegistryError;
use super::record::Evidence;
use crate::Error;
use crate::postgres::StoreError;
use crate::session::{Closed, Heartbeat, Lease};

/// What the host makes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judgement<T> {
    pub(crate) answer: Result<T, Error>,
    /// What the policy did wrong, to be counted and logged; also where the call fails for
    /// another reason.
    pub(crate) violation: Option<&'static str>,
    /// A session that must not outlive the call. It is closed first; where that fails, the
    /// call fails with that fault.
    pub(crate) close: bool,
}

impl<T> Judgement<T> {
    fn give(answer: T) -> Self {
        Self {
            answer: Ok(answer),
            violation: None,
            close: false,
        }
    }

    fn fail(error: Error) -> Self {
        Self {
            answer: Err(error),
            violation: None,
            close: false,
        }
    }

    fn violation(what: &'static str) -> Self {
        Self::fail(PolicyFault::Violation(what.to_owned()).into()).blamed_on(what)
    }

    /// The policy failed and gave no verdict.
    pub(crate) fn failed(fault: PolicyFault, close: bool) -> Self {
        Self {
            close,
            ..Self::fail(fault.into())
        }
    }

    /// The policy returned an error. Where the statement had a fault it is that fault, which
    /// the policy can neither change nor hide; and it cannot undo a statement by a refusal.
    fn error<O>(error: RegistryError, outcome: &Result<O, StoreError>) -> Self {
        let told = |fault: &StoreError| match fault {
            StoreError::Contention(_) => matches!(error, RegistryError::Contention(_)),
            _ => matches!(error, RegistryError::Store(_)),
        };
        match (&error, outcome) {
            (_, Err(fault)) if told(fault) => Self::fail(fault.clone().into()),
            (_, Err(fault)) => Self::fail(fault.clone().into())
                .blamed_on("turned a fault of the database into another error"),
            (RegistryError::InvalidArgument(_) | RegistryError::Refused(_), Ok(_)) => {
                Self::violation("refused a call after its statement had run")
            }
            (_, Ok(_)) => Self::fail(own_error(error)),
        }
    }

    fn blamed_on(mut self, what: &'static str) -> Self {
        self.violation = Some(what);
        self
    }

    fn closing(mut self) -> Self {
        self.close = true;
        self
    }
}

type Verdict<T> = Result<T, RegistryError>;

/// A new session: the id has to be the one that was inserted. Whenever one was inserted
/// and the caller is not told its id, it is closed.
pub(crate) fn open_session(
    verdict: Verdict<String>,
    evidence: &Evidence,
) -> Judgement<(Uuid, Lease)> {
    let (id, ttl, outcome) = match evidence {
        Evidence::Opened { id, ttl, outcome } => (*id, *ttl, outcome),
        _ => {
            return match verdict {
                Ok(_) => Judgement::violation("returned a session that it did not open"),
                Err(error) => Judgement::fail(own_error(error)),
            };
        }
    };
    match (verdict, outcome) {
        (Ok(said), Ok(expires_at)) if Uuid::try_parse(&said) == Ok(id) => {
            Judgement::give((id, lease(*expires_at, ttl)))
        }
        (Ok(_), Ok(_)) => {
            Judgement::violation("returned another session than the one it opened").closing()
        }
        (Ok(_), Err(fault)) => Judgement::fail(fault.clone().into())
            .blamed_on("returned a session although opening it had failed"),
        (Err(error), Ok(_)) => Judgement::fail(own_error(error)).closing(),
        (Err(error), Err(_)) => Judgement::error(error, outcome),
    }
}

/// A heartbeat: `true` needs one row; `false` needs none, and is final.
pub(crate) fn heartbeat(verdict: Verdict<bool>, evidence: &Evidence) -> Judgement<Heartbeat> {
    let (ttl, outcome) = match evidence {
        Evidence::Beat { ttl, outcome } => (*ttl, outcome),
        _ => {
            return match verdict {
                Ok(_) => Judgement::violation("judged a session without asking the database"),
                Err(error) => Judgement::fail(own_error(error)),
            };
        }
    };
    match (verdict, outcome) {
        (Ok(true), Ok(Some(expires_at))) => {
            Judgement::give(Heartbeat::Alive(lease(*expires_at, ttl)))
        }
        (Ok(true), Ok(None)) => Judgement::violation("called a dead session alive"),
        (Ok(true), Err(_)) => {
            Judgement::violation("called a session alive although the heartbeat had failed")
        }
        (Ok(false), Ok(None)) => Judgement::give(Heartbeat::Dead),
        // Stricter than the database, which a policy may be. But it has to be final.
        (Ok(false), Ok(Some(_))) => Judgement::give(Heartbeat::Dead)
            .blamed_on("called a live session dead")
            .closing(),
        (Ok(false), Err(fault)) => Judgement::fail(fault.clone().into())
            .blamed_on("called a session dead although the heartbeat had failed"),
        (Err(error), outcome) => Judgement::error(error, outcome),
    }
}

/// A close: the count has to be the database's.
pub(crate) fn close_session(verdict: Verdict<u32>, evidence: &Evidence) -> Judgement<Closed> {
    let outcome = match evidence {
        Evidence::Closed(outcome) => outcome,
        _ => {
            return match verdict {
                Ok(_) => Judgement::violation("counted locks without asking the database"),
                Err(error) => Judgement::fail(own_error(error)),
            };
        }
    };
    match (verdict, outcome) {
        (Ok(said), Ok(locks)) if said == locks.unwrap_or(0) => Judgement::give(Closed {
            existed: locks.is_some(),
            locks_released: said,
        }),
        (Ok(_), Ok(_)) => Judgement::violation("invented a number of released locks"),
        (Ok(_), Err(fault)) => Judgement::fail(fault.clone().into())
            .blamed_on("called a session closed although closing it had failed"),
        (Err(error), outcome) => Judgement::error(error, outcome),
    }
}

/// A list of locks: it has to be the database's.
pub(crate) fn locks_of(
    verdict: Verdict<Vec<String>>,
    evidence: &Evidence,
) -> Judgement<Vec<String>> {
    let outcome = match evidence {
        Evidence::Listed(outcome) => outcome,
        _ => {
            return match verdict {
                Ok(_) => Judgement::violation("listed locks without asking the database"),
                Err(error) => Judgement::fail(own_error(error)),
            };
        }
    };
    match (verdict, outcome) {
        (Ok(said), Ok(keys)) if said == *keys => Judgement::give(said),
        (Ok(_), Ok(_)) => Judgement::violation("invented a list of locks"),
        (Ok(_), Err(fault)) => Judgement::fail(fault.clone().into())
            .blamed_on("listed locks although reading them had failed"),
        (Err(error), outcome) => Judgement::error(error, outcome),
    }
}

fn lease(expires_at: std::time::SystemTime, ttl: Duration) -> Lease {
    Lease { expires_at, ttl }
}

fn own_error(error: RegistryError) -> Error {
    match error {
        RegistryError::InvalidArgument(text) => Error::InvalidArgument(text),
        RegistryError::Refused(text) => Error::Refused(text),
        RegistryError::Contention(text) => Error::Contention(text),
        RegistryError::Store(text) => Error::Store(text),
    }
}
