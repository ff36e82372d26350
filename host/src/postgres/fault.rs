//! From PostgreSQL's faults to the contract's words.
//!
//! There is one translator, and it has three answers, none of which says that a session
//! is dead. Only rows say that.

use std::error::Error as _;
use std::io;

use deadpool_postgres::{HookError, PoolError, TimeoutType};

/// Why a statement gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// A conflict, a time-out or a lost connection: the statement may or may not have
    /// taken effect. A retry is safe.
    #[error("contention: {0}")]
    Contention(String),
    /// The database refused the statement, which had no effect. Do not retry.
    #[error("rejected: {0}")]
    Rejected(String),
    /// Anything else, in the database's own words.
    #[error("{0}")]
    Other(String),
}

/// A fault, reduced to what decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault<'a> {
    /// An error that the server reported, by SQLSTATE.
    Sql {
        /// The five characters.
        code: &'a str,
        /// The server's text.
        message: &'a str,
    },
    /// The connection is closed, was cut, or could not be made.
    Connection(&'a str),
    /// The pool had no connection to give in time, or could not make one in time.
    TimedOut(&'a str),
    /// Neither of these: a fault of the program or of the set-up.
    Other(&'a str),
}

pub(super) const CONNECT_TIMED_OUT: &str = "connecting to the database timed out";

/// Sorts a fault. Contention: serialization failure, deadlock, lock not available, query
/// cancelled, the classes of connection faults (08) and of operator intervention (57P),
/// a connection that was lost, a time-out. Rejected: a broken foreign key or check.
/// Everything else keeps its text.
#[must_use]
pub fn translate(fault: Fault<'_>) -> StoreError {
    match fault {
        Fault::Sql { code, message } => {
            let text = message.to_owned();
            match code {
                "40001" | "40P01" | "55P03" | "57014" => StoreError::Contention(text),
                _ if code.starts_with("08") || code.starts_with("57P") => {
                    StoreError::Contention(text)
                }
                "23503" | "23514" => StoreError::Rejected(text),
                _ => StoreError::Other(text),
            }
        }
        Fault::Connection(text) | Fault::TimedOut(text) => StoreError::Contention(text.to_owned()),
        Fault::Other(text) => StoreError::Other(text.to_owned()),
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(reported) = error.as_db_error() {
            return translate(Fault::Sql {
                code: reported.code().code(),
                message: reported.message(),
            });
        }
        let mut text = match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        // The crate keeps its kinds to itself. An I/O error beneath means that the
        // socket failed, at connecting or later; what it could not encode or parse has
        // such a cause too, but then of kind `InvalidInput` or `InvalidData`.
        let io = error
            .source()
            .and_then(|cause| cause.downcast_ref::<io::Error>());
        let socket_failed = io.is_some_and(|io| {
            !matches!(
                io.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData
            )
        });
        let tls = io
            .and_then(io::Error::get_ref)
            .and_then(|cause| cause.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(_)) = tls {
            text.push_str(
                "; the server has to show a certificate for the host's name, from an authority in \
                 database.ca or, without that, from one that the system trusts",
            );
        }
        if error.is_closed() || socket_failed {
            translate(Fault::Connection(&text))
        } else {
            translate(Fault::Other(&text))
        }
    }
}

impl From<PoolError> for StoreError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => {
                error.into()
            }
            PoolError::Timeout(TimeoutType::Wait) => translate(Fault::TimedOut(
                "no database connection became free in time; the pool is exhausted",
            )),
            // The hook says nothing else.
            PoolError::Timeout(TimeoutType::Create)
            | PoolError::PostCreateHook(HookError::Message(_)) => {
                translate(Fault::TimedOut(CONNECT_TIMED_OUT))
            }
            PoolError::Timeout(TimeoutType::Recycle) => {
                translate(Fault::TimedOut("reusing a database connection timed out"))
            }
            PoolError::Closed => translate(Fault::Connection("the connection pool is closed")),
            PoolError::NoRuntimeSpecified => translate(Fault::Other(&error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Kind {
        Contention,
        Rejected,
        Other,
    }

    /// Exhaustive on purpose: a fourth answer would not compile, and there is none that
    /// could stand for a dead session.
    fn kind(error: &StoreError) -> Kind {
        match error {
            StoreError::Contention(_) => Kind::Contention,
            StoreError::Rejected(_) => Kind::Rejected,
            StoreError::Other(_) => Kind::Other,
        }
    }

    fn sql(code: &str) -> StoreError {
        translate(Fault::Sql {
            code,
            message: "text",
        })
    }

    #[test]
    fn each_row_of_the_table() {
        for (code, expected) in [
            ("40001", Kind::Contention), // serialization_failure
            ("40P01", Kind::Contention), // deadlock_detected
            ("55P03", Kind::Contention), // lock_not_available
            ("57014", Kind::Contention), // query_canceled
            ("08000", Kind::Contention), // connection_exception
            ("08003", Kind::Contention), // connection_does_not_exist
            ("08006", Kind::Contention), // connection_failure
            ("08P01", Kind::Contention), // protocol_violation
            ("57P01", Kind::Contention), // admin_shutdown
            ("57P02", Kind::Contention), // crash_shutdown
            ("57P03", Kind::Contention), // cannot_connect_now
            ("57P05", Kind::Contention), // idle_session_timeout
            ("23503", Kind::Rejected),   // foreign_key_violation
            ("23514", Kind::Rejected),   // check_violation
            ("23505", Kind::Other),      // unique_violation
            ("40002", Kind::Other),      // the rest of class 40
            ("40003", Kind::Other),
            ("55000", Kind::Other), // the rest of class 55
            ("55006", Kind::Other),
            ("57000", Kind::Other), // operator intervention, but not 57P
            ("22008", Kind::Other), // datetime_field_overflow
            ("25P02", Kind::Other), // in_failed_sql_transaction
            ("28P01", Kind::Other), // invalid_password
            ("3D000", Kind::Other), // no such database
            ("42P01", Kind::Other), // no such table
            ("53100", Kind::Other), // disk_full
            ("53300", Kind::Other), // too_many_connections
            ("XX000", Kind::Other), // internal_error
            ("00000", Kind::Other),
            ("", Kind::Other),
            ("08", Kind::Contention),
            ("57p01", Kind::Other), // SQLSTATEs are upper case
            ("\u{e9}\u{e9}", Kind::Other),
        ] {
            assert_eq!(kind(&sql(code)), expected, "{code:?}");
        }
    }

    #[test]
    fn connections_and_time_outs_are_contention() {
        assert_eq!(
            kind(&translate(Fault::Connection("gone"))),
            Kind::Contention
        );
        assert_eq!(kind(&translate(Fault::TimedOut("slow"))), Kind::Contention);
        assert_eq!(kind(&translate(Fault::Other("odd"))), Kind::Other);
        for timeout in [TimeoutType::Wait, TimeoutType::Create, TimeoutType::Recycle] {
            assert_eq!(
                kind(&PoolError::Timeout(timeout).into()),
                Kind::Contention,
                "{timeout:?}"
            );
        }
        assert_eq!(kind(&PoolError::Closed.into()), Kind::Contention);
        assert_eq!(kind(&PoolError::NoRuntimeSpecified.into()), Kind::Other);
    }

    /// Every class that SQLSTATE can spell, each with the subclasses that occur: the text
    /// is kept, and nothing that is not in the table counts as contention or rejection.
    #[test]
    fn no_input_means_dead_and_none_loses_its_text() {
        let digits: Vec<char> = ('0'..='9').chain('A'..='Z').collect();
        for first in &digits {
            for second in &digits {
                for third in &digits {
                    for rest in ["00", "01", "02", "03", "04", "05", "14", "P0", "ZZ"] {
                        let code = format!("{first}{second}{third}{rest}");
                        let error = sql(&code);
                        let expected = match code.as_str() {
                            "40001" | "40P01" | "55P03" | "57014" => Kind::Contention,
                            "23503" | "23514" => Kind::Rejected,
                            other if other.starts_with("08") || other.starts_with("57P") => {
                                Kind::Contention
                            }
                            _ => Kind::Other,
                        };
                        assert_eq!(kind(&error), expected, "{code}");
                        assert!(error.to_string().ends_with("text"), "{code}");
                    }
                }
            }
        }
    }
}
