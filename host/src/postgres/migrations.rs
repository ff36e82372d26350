//! The schema's history, `migrations/`, applied by refinery under one lock.

use refinery::error::Kind;

use super::{Database, StoreError};

mod embedded {
    refinery::embed_migrations!("../migrations");
}

/// Names the lock that two hosts which migrate at once contend for; any number does that
/// nobody else uses.
const MIGRATION_LOCK: i64 = 0x7465_6e75_7265; // "tenure"

/// Why the schema could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrationError {
    /// The database does not answer, or what answers is a pooler that lends sessions for one
    /// transaction at a time. Nothing has been done.
    #[error("cannot reach the database: {0}")]
    Unreachable(StoreError),
    /// The database has a migration that this program does not know.
    #[error(
        "the database has migration {0}, which this version of tenure does not know; it was \
         migrated by a newer one: upgrade tenure, or point it at another database"
    )]
    DatabaseIsNewer(String),
    /// The database's history has a hole: a later migration was applied without this one.
    #[error(
        "migration {0} was never applied, though later ones were; restore the database's \
         refinery_schema_history from a backup"
    )]
    HistoryHasAHole(String),
    /// A migration was changed after it was applied.
    #[error(
        "migration {0} was applied in another form than this version of tenure has; either the \
         file or the database's refinery_schema_history was edited: restore the original"
    )]
    HistoryWasEdited(String),
    /// The history table cannot be read.
    #[error("the table refinery_schema_history is damaged; restore it from a backup")]
    HistoryIsDamaged,
    /// The database failed at a migration, which was rolled back.
    #[error("the database failed: {0}")]
    Store(#[from] StoreError),
}

impl Database {
    /// Brings the schema up to date; returns the names of what was applied. Running it
    /// again, or from two hosts at once, is safe: the second finds nothing to do.
    ///
    /// Each migration is one transaction. After an error, those before it stay applied and
    /// a retry goes on from there.
    ///
    /// Looks first whether every connection has a session of its own, which all else rests on.
    pub async fn migrate(&self) -> Result<Vec<String>, MigrationError> {
        self.have_own_sessions()
            .await
            .map_err(MigrationError::Unreachable)?;
        let mut client = self.dedicated().await?;
        client
            .batch_execute(&format!(
                "SET lock_timeout = '60s'; SELECT pg_advisory_lock({MIGRATION_LOCK})"
            ))
            .await
            .map_err(StoreError::from)?;
        // A task of its own, since refinery panics on a history that it cannot parse. The
        // lock goes with the connection.
        let report =
            tokio::spawn(
                async move { embedded::migrations::runner().run_async(&mut client).await },
            )
            .await
            .map_err(|_| MigrationError::HistoryIsDamaged)?
            .map_err(explain)?;
        Ok(report
            .applied_migrations()
            .iter()
            .map(|migration| {
                let name = migration.to_string();
                tracing::info!(migration = name, "migration_applied");
                name
            })
            .collect())
    }
}

fn explain(error: refinery::Error) -> MigrationError {
    match error.kind() {
        Kind::DivergentVersion(applied, _) => MigrationError::HistoryWasEdited(applied.to_string()),
        // One kind for two opposite cases.
        Kind::MissingVersion(migration) => {
            let known = embedded::migrations::runner()
                .get_migrations()
                .iter()
                .any(|ours| ours.version() == migration.version());
            if known {
                MigrationError::HistoryHasAHole(migration.to_string())
            } else {
                MigrationError::DatabaseIsNewer(migration.to_string())
            }
        }
        Kind::Connection(what, cause) => {
            let detail = match cause.downcast_ref::<tokio_postgres::Error>() {
                Some(error) => match error.as_db_error() {
                    Some(reported) => reported.message().to_owned(),
                    None => error.to_string(),
                },
                None => cause.to_string(),
            };
            MigrationError::Store(StoreError::Other(format!("{what}: {detail}")))
        }
        other => MigrationError::Store(StoreError::Other(other.to_string())),
    }
}
