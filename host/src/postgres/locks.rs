//! The lock statements on PostgreSQL, save for acquiring, which is in `acquire`.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::owned_key::query_owning;
use super::{Database, StoreError, sql};
use crate::Error;
use crate::lock::{FencingToken, Grant, LockKey, Renewed, Revocation, Revoked};
use crate::session::SessionId;

/// The longest lease of a lock: 24 hours.
pub const MAX_LOCK_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The shortest reason for a revocation, in characters.
pub const MIN_REASON_CHARS: usize = 8;

/// The longest reason for a revocation, in characters.
pub const MAX_REASON_CHARS: usize = 1024;

/// The longest name of an operator, in characters.
pub const MAX_OPERATOR_CHARS: usize = 64;

/// Fenced locks on sessions.
///
/// Stateless beyond the pool: any number of hosts may work on one database. The lock alone
/// excludes nobody who does not ask for it; show the [token](Grant::token) to the
/// resource, and let the resource refuse a lower one than it has seen.
///
/// Unless a method says otherwise, [`Error::Contention`] means that the outcome is
/// unknown and a retry is safe, and [`Error::Store`] that the database failed in a way that
/// a retry does not mend.
#[derive(Clone, Debug)]
pub struct LockStore {
    pub(super) database: Database,
}

impl LockStore {
    /// On `database`, whose schema has to be [up to date](Database::migrate).
    #[must_use]
    pub fn new(database: Database) -> Self {
        Self { database }
    }

    /// Renews a grant: its lease ends `ttl` from now, and its token stays.
    ///
    /// [`Renewed::Lost`] when the token is not the key's, or the lease or the session is
    /// over. That is an answer and no fault; do not retry.
    pub async fn extend(
        &self,
        key: &LockKey,
        token: FencingToken,
        ttl: Duration,
    ) -> Result<Renewed, Error> {
        let ttl_ms = ttl_ms(ttl)?;
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::RENEW).await?;
                match connection
                    .query_opt(&statement, &[&&**key, &token.get(), &ttl_ms])
                    .await?
                {
                    Some(row) => Ok(Renewed::Until(row.try_get("expires_at")?)),
                    None => Ok(Renewed::Lost),
                }
            })
            .await;
        Ok(connection.finish(outcome)?)
    }

    /// Gives a grant back. `false` when the key was not held under this token, which means
    /// that the lock was lost before, and needs no retry: it is not held now.
    pub async fn delete_if_owner(&self, key: &LockKey, token: FencingToken) -> Result<bool, Error> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::RELEASE).await?;
                connection
                    .execute(&statement, &[&&**key, &token.get()])
                    .await
            })
            .await;
        let released = connection.finish(outcome)? > 0;
        if released {
            tracing::info!(key = %key, token = token.get(), "lock_released");
        }
        Ok(released)
    }

    /// Who holds a key, if anybody does: a snapshot for people, old when it arrives.
    pub async fn read(&self, key: &LockKey) -> Result<Option<Grant>, Error> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::READ).await?;
                connection.query_opt(&statement, &[&&**key]).await
            })
            .await;
        let row = connection.finish(outcome)?;
        Ok(row.map(|row| grant(key, &row)).transpose()?)
    }

    /// How many locks hang on a session: a snapshot for people, lapsed ones included.
    pub async fn count_of(&self, session: &SessionId) -> Result<u64, Error> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::COUNT_OF).await?;
                let row = connection.query_one(&statement, &[&session.uuid()]).await?;
                row.try_get::<_, i64>(0)
            })
            .await;
        Ok(connection.finish(outcome)?.unsigned_abs())
    }

    /// Whether the row of a session still stands, dead or alive: a snapshot for people, who
    /// want to know whether a dead session has lapsed or never was.
    pub async fn session_stands(&self, session: &SessionId) -> Result<bool, Error> {
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let statement = connection.prepare_cached(sql::SESSION_STATE).await?;
                connection.query_opt(&statement, &[&session.uuid()]).await
            })
            .await;
        Ok(connection.finish(outcome)?.is_some())
    }

    /// Takes a grant away from its holder, whose token is worth nothing from then on, and
    /// records who did it and why. The session lives on.
    ///
    /// With `expected`, only a grant under that token is revoked, so that an operator who
    /// looked a moment ago cannot hit the next holder. A grant that has lapsed but still
    /// stands is revoked as well.
    ///
    /// [`Error::InvalidArgument`] for an `operator` that is blank or longer than 64
    /// characters, or a `reason` of less than 8 or more than 1024. After
    /// [`Error::Contention`] look first whether the grant stands: a retry would hit a new
    /// holder, unless `expected` is given.
    pub async fn revoke(
        &self,
        key: &LockKey,
        operator: &str,
        reason: &str,
        expected: Option<FencingToken>,
    ) -> Result<Revoked, Error> {
        check_text("operator", operator, 1, MAX_OPERATOR_CHARS)?;
        check_text("reason", reason, MIN_REASON_CHARS, MAX_REASON_CHARS)?;
        let expected = expected.map(FencingToken::get);
        let connection = self.database.connection().await?;
        let outcome = connection
            .bounded(async {
                let revoke = connection.prepare_cached(sql::REVOKE).await?;
                let parameters: [&(dyn ToSql + Sync); 4] = [&&**key, &expected, &operator, &reason];
                let row = query_owning(&connection, key, &revoke, &parameters).await?;
                if row.is_some() {
                    return Ok((row, None));
                }
                let look = connection.prepare_cached(sql::REVOKE_LOOK).await?;
                Ok((None, connection.query_opt(&look, &[&&**key]).await?))
            })
            .await;
        match connection.finish(outcome)? {
            (Some(row), _) => {
                let revocation = Revocation {
                    id: get(&row, "id")?,
                    owner: get(&row, "prev_owner")?,
                    token: token(&row, "prev_token")?,
                    token_floor: token(&row, "token_floor")?,
                };
                tracing::warn!(
                    key = %key,
                    owner = revocation.owner,
                    token = revocation.token.get(),
                    operator,
                    reason,
                    revocation = revocation.id,
                    "lock_revoked"
                );
                Ok(Revoked::Done(revocation))
            }
            (None, None) => Ok(Revoked::NotHeld),
            (None, Some(row)) => Ok(Revoked::OtherToken(token(&row, "fencing_token")?)),
        }
    }
}

pub(super) fn ttl_ms(ttl: Duration) -> Result<i64, Error> {
    if ttl < Duration::from_millis(1) || ttl > MAX_LOCK_TTL {
        return Err(Error::InvalidArgument(
            "the TTL of a lock is 1 ms to 24 hours".to_owned(),
        ));
    }
    Ok(i64::try_from(ttl.as_millis()).expect("24 hours fit"))
}

fn check_text(name: &str, text: &str, min: usize, max: usize) -> Result<(), Error> {
    let length = text.trim().chars().count();
    if length < min || text.chars().count() > max {
        return Err(Error::InvalidArgument(format!(
            "{name} has to have {min} to {max} characters"
        )));
    }
    // A reason may have lines; whoever reads the log takes a name's for one of the log.
    let lines = name == "reason";
    if text
        .chars()
        .any(|c| c.is_control() && !(lines && c == '\n'))
    {
        return Err(Error::InvalidArgument(format!(
            "{name} must not contain control characters"
        )));
    }
    Ok(())
}

/// The columns of a grant, of whichever statement returned them.
pub(super) fn grant(key: &LockKey, row: &Row) -> Result<Grant, StoreError> {
    Ok(Grant {
        key: key.clone(),
        owner: get(row, "owner_id")?,
        session: SessionId::from(get::<uuid::Uuid>(row, "session_id")?),
        token: token(row, "fencing_token")?,
        acquired_at: get(row, "acquired_at")?,
        expires_at: get(row, "expires_at")?,
    })
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: &str,
) -> Result<T, StoreError> {
    Ok(row.try_get(column)?)
}

fn token(row: &Row, column: &str) -> Result<FencingToken, StoreError> {
    // `lock_entry_token_ck` rules it out; if the constraint is gone, say so.
    get::<i64>(row, column)?
        .try_into()
        .map_err(|_| StoreError::Other(format!("the database has a {column} below 1")))
}
