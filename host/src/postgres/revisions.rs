//! Which revisions of the policy were accepted, so that none older is accepted after them.

use super::{Database, StoreError, sql};

/// What became of a revision that asked to be accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// It is the newest.
    Newest,
    /// The newest is this one: a later revision, or another policy under the same number.
    Superseded { revision: u64, sha256: String },
}

impl Database {
    /// Notes a revision, for all hosts on this database, unless a newer one was noted before.
    /// A retry is safe.
    pub(crate) async fn note_revision(
        &self,
        revision: u64,
        sha256: &str,
    ) -> Result<Noted, StoreError> {
        let number = i64::try_from(revision)
            .map_err(|_| StoreError::Rejected(format!("{revision} is too large a revision")))?;
        let connection = self.connection().await?;
        let outcome = connection
            .bounded(async {
                let accept = connection.prepare_cached(sql::ACCEPT_REVISION).await?;
                connection.execute(&accept, &[&number, &sha256]).await?;
                // Read afterwards: the number may have been there already, for the same policy or
                // for another.
                let highest = connection.prepare_cached(sql::HIGHEST_REVISION).await?;
                let row = connection.query_one(&highest, &[]).await?;
                Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, String>(1)?))
            })
            .await;
        let (newest, digest) = connection.finish(outcome)?;
        if (newest, digest.as_str()) == (number, sha256) {
            Ok(Noted::Newest)
        } else {
            Ok(Noted::Superseded {
                revision: newest.unsigned_abs(),
                sha256: digest,
            })
        }
    }
}
