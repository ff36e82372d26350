//! Removing what is over: dead sessions with their locks, and lapsed grants.
//!
//! Any number of hosts reap at once: each takes only rows that nobody else has locked. A
//! session that is alive is never locked, so no heartbeat of one waits.
//!
//! No index tells the dead: each heartbeat would have to change it. The reaper looks through
//! the table, a slice at a time and so many in a round, and goes on from there in the next. So
//! what a round costs does not grow with the table, and no statement is long: while one runs,
//! nothing that heartbeats have left since it began can be pruned. With a million sessions it
//! takes some rounds until it comes by a dead one. That costs nobody anything: whoever wants
//! one of its locks meanwhile reaps it himself.

use std::time::Duration;

use tokio::time::MissedTickBehavior;
use uuid::Uuid;

use super::locks::{LockStore, get};
use super::{StoreError, sql};
use crate::Error;
use crate::lock::Reaped;

/// The most sessions, and the most grants, that one statement removes.
pub const REAP_BATCH: usize = 1000;

/// Pages that one statement looks through: some 36 000 sessions, in some 3 ms.
const SLICE: i64 = 1024;

/// Slices of a round.
const SLICES: u32 = 4;

impl LockStore {
    /// Removes up to [`REAP_BATCH`] dead sessions, with their locks, and as many lapsed
    /// grants of sessions that live; returns how many of each. Looks through the whole table
    /// of sessions, which takes some 70 ms for a million of them. Safe to run anywhere, at
    /// any time, any number of times.
    ///
    /// After [`Error::Contention`] some may have been removed; the next round takes the
    /// rest.
    pub async fn reap_expired(&self) -> Result<Reaped, Error> {
        self.reap_slices(&mut 0, u32::MAX).await
    }

    /// As [`reap_expired`](Self::reap_expired), but looks through so many slices at the most,
    /// from the page `from` on. Leaves there where to go on.
    async fn reap_slices(&self, from: &mut i64, slices: u32) -> Result<Reaped, Error> {
        let found = self.find_dead(from, slices).await?;
        let full = found.len() == REAP_BATCH;
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

        if full && sessions < REAP_BATCH {
            // Others sit on what is here. It must not keep the reaper from the rest.
            *from += SLICE;
        }

        let limit = REAP_BATCH as i64;
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

    /// Sessions that seem dead, [`REAP_BATCH`] at the most.
    async fn find_dead(&self, from: &mut i64, slices: u32) -> Result<Vec<Uuid>, StoreError> {
        let mut found = Vec::new();
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let extent = connection.prepare_cached(sql::REAP_EXTENT).await?;
                let find = connection.prepare_cached(sql::REAP_FIND).await?;
                let pages: i64 = connection.query_one(&extent, &[]).await?.try_get(0)?;
                for _ in 0..slices {
                    let wanted = REAP_BATCH - found.len();
                    let to = *from + SLICE;
                    let rows = connection
                        .query(&find, &[&page(*from), &page(to), &(wanted as i64)])
                        .await?;
                    for row in &rows {
                        found.push(row.try_get(0)?);
                    }
                    if rows.len() == wanted {
                        // There may be more in this slice.
                        break;
                    }
                    *from = to;
                    if to >= pages {
                        *from = 0;
                        break;
                    }
                }
                Ok(())
            })
            .await;
        connection.finish(outcome)?;
        Ok(found)
    }

    /// Reaps for ever, a round every `interval`, and round upon round while there is a full
    /// batch to remove. A round looks through some 140 000 sessions, and the next goes on
    /// from there. A fault is logged and the next round goes on. To be spawned; ends when it
    /// is dropped.
    pub async fn reap_every(self, interval: Duration) {
        let mut rounds = tokio::time::interval(interval);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        let mut from = 0;
        loop {
            rounds.tick().await;
            loop {
                match self.reap_slices(&mut from, SLICES).await {
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

/// Where a page begins, as PostgreSQL writes it.
fn page(number: i64) -> String {
    format!("({number},0)")
}
