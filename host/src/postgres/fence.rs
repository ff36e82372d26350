//! Raising the tokens above what was drawn before the database forgot it.

use futures_util::future;

use super::locks::{LockStore, get};
use super::{StoreError, sql};
use crate::Error;
use crate::lock::FencingToken;

/// The lock keeps everybody from drawing a token between a look at the sequence and its
/// raising. Nothing of the sequence changes.
const LOCK_SEQUENCE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; \
                             ALTER SEQUENCE fencing_token_seq NO CYCLE";

impl LockStore {
    /// Makes every token that is drawn from now on greater than `above`; returns the number
    /// that they are all greater than, which is more than `above` if they already were.
    ///
    /// For a database that was restored from a backup, before any host works on it: tokens
    /// go on from where they were at the backup, and a resource that has seen later ones
    /// would refuse every new holder. Tokens are never lowered by this, so a generous number
    /// does no harm. Has to be run as the owner of the schema, or a superuser.
    ///
    /// [`Error::InvalidArgument`] for the greatest number there is, above which is no token;
    /// [`Error::Contention`] where hosts draw tokens at the same moment.
    pub async fn raise_fence(&self, above: FencingToken) -> Result<FencingToken, Error> {
        if above.get() == i64::MAX {
            return Err(Error::InvalidArgument(format!(
                "there are no tokens above {above}"
            )));
        }
        let connection = self.database.connection().await?;
        let raised = async {
            let raise = connection.prepare_cached(sql::FENCE_RAISE).await?;
            let above = above.get();
            // As in `owned_key.rs`: sent whole, and all awaited.
            let (locked, row, committed) = future::join3(
                connection.batch_execute(LOCK_SEQUENCE),
                connection.query_one(&raise, &[&above]),
                connection.batch_execute("COMMIT"),
            )
            .await;
            locked?;
            let row = row?;
            committed?;
            Ok(row)
        };
        let outcome = connection.bounded(raised).await;
        let row = connection.finish(outcome)?;
        let floor: FencingToken = get::<i64>(&row, "setval")?
            .try_into()
            .map_err(|_| StoreError::Other("the database has a token below 1".to_owned()))?;
        tracing::warn!(above = above.get(), floor = floor.get(), "fence_raised");
        Ok(floor)
    }
}
