//! The session statements as a trait: what a policy can cause to run, and no more.

use std::time::SystemTime;

use async_trait::async_trait;
use uuid::Uuid;

use super::StoreError;

/// The statements that the contract pins for sessions (`wit/statements.wit`), on some
/// store. [`PinnedStatements`](super::PinnedStatements) runs them on PostgreSQL.
///
/// Each method runs its statement at most once, and reports a fault rather than guess.
/// Dropping a method's future has to leave the store as if the statement had either run
/// whole or not at all.
#[async_trait]
pub trait Statements: Send + Sync + 'static {
    /// Makes the id of a new session: one that nobody can guess, and that no other has.
    fn new_id(&self) -> Uuid {
        Uuid::new_v4()
    }

    /// Inserts the session `id` of `owner`; returns when it expires.
    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError>;

    /// Extends a live session; returns when it now expires, or `None` when it is dead.
    ///
    /// `None` is final: it is returned only once nothing that is still under way can
    /// extend the session. Where that is not sure, the answer is
    /// [`StoreError::Contention`].
    async fn heartbeat(&self, id: Uuid, ttl_ms: i64) -> Result<Option<SystemTime>, StoreError>;

    /// Ends a session; returns how many locks went with it, or `None` when there was no
    /// such session.
    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError>;

    /// The keys that hang on a session, in order, the first 100 of them. Not
    /// authoritative.
    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError>;
}
