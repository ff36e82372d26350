//! The session statements on PostgreSQL.

use std::time::SystemTime;

use async_trait::async_trait;
use futures_util::future;
use tokio_postgres::Error;
use uuid::Uuid;

use super::database::Connection;
use super::heartbeats::Heartbeats;
use super::{Database, Statements, StoreError, sql};

/// Runs the pinned session statements on a database.
///
/// Heartbeats that wait at the same moment share one statement and one commit; a lone one
/// runs at once.
#[derive(Clone, Debug)]
pub struct PinnedStatements {
    database: Database,
    heartbeats: Heartbeats,
}

impl PinnedStatements {
    /// On `database`. Has to be called in a tokio runtime, where the heartbeats then run;
    /// panics elsewhere.
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self {
            heartbeats: Heartbeats::new(&database),
            database,
        }
    }
}

#[async_trait]
impl Statements for PinnedStatements {
    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::OPEN_SESSION).await?;
                let row = connection
                    .query_one(&statement, &[&id, &owner, &ttl_ms])
                    .await?;
                row.try_get(0)
            })
            .await;
        connection.finish(outcome)
    }

    async fn heartbeat(&self, id: Uuid, ttl_ms: i64) -> Result<Option<SystemTime>, StoreError> {
        self.heartbeats.beat(id, ttl_ms).await
    }

    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError> {
        let connection = self.database.connection().await?;
        let outcome = connection.bounded(close(&connection, id)).await;
        let locks = connection.finish(outcome)?;
        // A session cannot hold more locks than the counter has room for: each is a row.
        Ok(locks.map(|locks| u32::try_from(locks).unwrap_or(u32::MAX)))
    }

    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::LOCKS_OF).await?;
                let rows = connection.query(&statement, &[&id]).await?;
                rows.iter().map(|row| row.try_get(0)).collect()
            })
            .await;
        connection.finish(outcome)
    }
}

/// What became of a session that a statement did not find alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sealed {
    /// There is no such row, and ids are never used twice.
    Gone,
    /// It stands, and can no longer be extended.
    Expired,
    /// It is alive after all: a heartbeat that came in time was still under way.
    Revived,
}

/// Makes the death of a session final before anybody is told of it.
///
/// That a heartbeat updated no row is only what its snapshot showed. An earlier heartbeat
/// of the same session, in time but not yet committed, or waiting for the row, may still
/// extend it. Sealing takes the row's lock, so it comes after the one that holds it; and it
/// makes a new version of the row, so that one which waits behind it judges again, and
/// finds the session dead. It waits at most for the lock time-out.
pub(super) async fn seal(connection: &Connection, id: Uuid) -> Result<Sealed, Error> {
    let seal = connection.prepare_cached(sql::SEAL_SESSION).await?;
    let state = connection.prepare_cached(sql::SESSION_STATE).await?;
    // Two transactions in one round trip: the second sees what the first has done.
    let (sealed, stands) = future::join(
        connection.execute_raw(&seal, [&id]),
        connection.query_opt(&state, &[&id]),
    )
    .await;
    Ok(match (sealed?, stands?) {
        (1.., _) => Sealed::Expired,
        (0, None) => Sealed::Gone,
        (0, Some(_)) => Sealed::Revived,
    })
}

/// One transaction, sent whole in one go: a caller that goes away leaves it either all
/// done or not begun, and the connection is out of it either way.
async fn close(connection: &Connection, id: Uuid) -> Result<Option<i64>, Error> {
    let lock = connection.prepare_cached(sql::CLOSE_SESSION_LOCK).await?;
    let count = connection.prepare_cached(sql::CLOSE_SESSION_COUNT).await?;
    let delete = connection.prepare_cached(sql::CLOSE_SESSION_DELETE).await?;
    // `join5` polls in order, and each sends at its first poll. All are awaited, even
    // after an error: then the rest fail too, and the commit rolls back.
    let (begun, locked, counted, deleted, committed) = future::join5(
        connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"),
        connection.query_opt(&lock, &[&id]),
        connection.query_one(&count, &[&id]),
        connection.execute_raw(&delete, [&id]),
        connection.batch_execute("COMMIT"),
    )
    .await;
    begun?;
    let existed = locked?.is_some();
    let locks = counted?.try_get(0)?;
    deleted?;
    committed?;
    Ok(existed.then_some(locks))
}
