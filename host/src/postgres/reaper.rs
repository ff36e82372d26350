//! Removing what is over: dead sessions with their locks, and lapsed grants.
//!
//! Any number of hosts reap at once: each takes only rows that nobody else has locked. A
//! session that is alive is never locked, so no heartbeat of one waits.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use super::locks::{LockStore, get};
use super::{StoreError, sql};
use crate::Error;
use crate::lock::Reaped;

/// The most sessions, and the most grants, that one statement removes.
pub const REAP_BATCH: usize = 1000;

impl LockStore {
    /// Removes up to [`REAP_BATCH`] dead sessions, with their locks, and as many lapsed
    /// grants of sessions that live; returns how many of each. Safe to run anywhere, at any
    /// time, any number of times.
    ///
    /// After [`Error::Contention`] some may have been removed; the next round takes the
    /// rest.
    pub async fn reap_expired(&self) -> Result<Reaped, Error> {
        let limit = REAP_BATCH as i64;
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::REAP_FIND).await?;
                let rows = connection.query(&statement, &[&limit]).await?;
                rows.iter()
                    .map(|row| row.try_get(0))
                    .collect::<Result<Vec<Uuid>, _>>()
            })
            .await;
        let found = connection.finish(outcome)?;

        let mut sessions = 0;
        if !found.is_empty() {
            match self.reap_sessions(&found).await {
                Ok(reaped) => sessions = reaped,
                // One lock that somebody sits on must not keep a whole batch alive.
                Err(StoreError::Contention(_)) => {
                    for id in found {
                        match self.reap_sessions(&[id]).await {
                            Ok(reaped) => sessions += reaped,
                            Err(StoreError::Contention(_)) => {}
                            Err(other) => return Err(other.into()),
                        }
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }

        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::REAP_ENTRIES).await?;
                connection.query(&statement, &[&limit]).await
            })
            .await;
        let rows = connection.finish(outcome)?;
        for row in &rows {
            tracing::info!(
                key = get::<&str>(row, "lock_key")?,
                owner = get::<&str>(row, "owner_id")?,
                token = get::<i64>(row, "fencing_token")?,
                "lease_expired"
            );
        }
        Ok(Reaped {
            sessions,
            grants: rows.len(),
        })
    }

    /// Runs [`reap_expired`](Self::reap_expired) for ever, a round every `interval`, and
    /// round upon round while there is a full batch to remove. A fault is logged and the
    /// next round goes on. To be spawned; ends when it is dropped.
    pub async fn reap_every(self, interval: Duration) {
        let mut rounds = tokio::time::interval(interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        loop {
            rounds.tick().await;
            loop {
                match self.reap_expired().await {
                    Ok(reaped) => {
                        if std::mem::take(&mut failing) {
                            tracing::info!("the reaper works again");
                        }
                        if reaped.sessions < REAP_BATCH && reaped.grants < REAP_BATCH {
                            break;
                        }
                    }
                    Err(error) => {
                        // Once, not once a second.
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(%error, "the reaper's round failed; it goes on trying");
                        }
                        break;
                    }
                }
            }
        }
    }

    /// Deletes those of `ids` that are dead and that nobody has locked; returns how many.
    ///
    /// This is the one statement by which a session dies of age. It holds the row's lock
    /// and judges the row's latest version, so a heartbeat at the same moment either has
    /// won, and the session stays, or finds no row.
    pub(super) async fn reap_sessions(&self, ids: &[Uuid]) -> Result<usize, StoreError> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::REAP_SESSIONS).await?;
                connection.query(&statement, &[&ids]).await
            })
            .await;
        let rows = connection.finish(outcome)?;
        for row in &rows {
            tracing::info!(
                session = %get::<Uuid>(row, "session_id")?,
                owner = get::<&str>(row, "owner_id")?,
                locks = get::<i64>(row, "locks")?,
                "session_expired"
            );
        }
        Ok(rows.len())
    }
}
