//! Whether each connection has a session of PostgreSQL's of its own.
//!
//! A pooler can lend its sessions to one connection for one transaction, and then to another:
//! PgBouncer does so with `pool_mode = transaction`. Nothing of a session's holds there. The
//! settings that the statements rest on are somebody else's, a prepared statement is missing, or
//! is another one of the same name, and a lock is never given back.

use tokio::time::timeout;
use tokio_postgres::{Client, Error};

use super::database::Database;
use super::fault::{Fault, StoreError, translate};

/// Connections that are kept in a transaction, each in whichever session is lent to it. One shows
/// a pooler that lends the session it had back last; two, also one that takes turns.
const HELD: usize = 2;

impl Database {
    /// Fails with [`StoreError::Other`] where connections share sessions.
    pub(super) async fn have_own_sessions(&self) -> Result<(), StoreError> {
        let limit = self.statement_timeout();
        match timeout(limit, self.look_for_sharing()).await {
            Ok(looked) => looked,
            Err(_) => Err(translate(Fault::TimedOut(&format!(
                "{} connections at once had no answer within {} ms",
                HELD + 1,
                limit.as_millis()
            )))),
        }
    }

    async fn look_for_sharing(&self) -> Result<(), StoreError> {
        let first = self.dedicated().await?;
        let own = session(&first).await?;
        let mut held = Vec::with_capacity(HELD);
        for _ in 0..HELD {
            let other = self.dedicated().await?;
            other.batch_execute("BEGIN").await?;
            if session(&other).await? == own || session(&first).await? != own {
                return Err(shared());
            }
            held.push(other);
        }
        Ok(())
    }
}

/// The process that serves a connection at this moment. In one round trip, as whatever is
/// prepared may be gone by the next.
async fn session(client: &Client) -> Result<i32, Error> {
    client
        .query_typed_one("SELECT pg_backend_pid()", &[])
        .await?
        .try_get(0)
}

fn shared() -> StoreError {
    StoreError::Other(
        "between here and PostgreSQL is a pooler that lends its sessions for one transaction at a \
         time, and tenure needs one for each connection, for its settings, prepared statements and \
         locks; with PgBouncer, set pool_mode = session for this database, or else connect to \
         PostgreSQL itself"
            .to_owned(),
    )
}
