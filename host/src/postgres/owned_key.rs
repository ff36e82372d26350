//! Owning a key while a token is drawn for it.
//!
//! A free key has no row to own, and an `INSERT ... ON CONFLICT` draws before it knows that
//! it wins. So whatever draws a token, a grant or a revocation's floor, first takes a
//! transaction-level advisory lock on the key. Tokens of a key thereby rise in the order in
//! which their transactions commit.

use futures_util::future;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row, Statement};

use super::database::Connection;
use super::sql;

/// Runs a statement that draws a token for the key, in a transaction that is sent whole in
/// one go, so that a caller that goes away leaves nothing half done.
pub(super) async fn query_owning(
    connection: &Connection,
    key: &str,
    statement: &Statement,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Option<Row>, Error> {
    let own = connection.prepare_cached(sql::OWN_KEY).await?;
    // `join4` polls in order, and each sends at its first poll.
    let (begun, owned, row, committed) = future::join4(
        connection.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"),
        connection.execute_raw(&own, [key]),
        connection.query_opt(statement, parameters),
        connection.batch_execute("COMMIT"),
    )
    .await;
    begun?;
    owned?;
    let row = row?;
    committed?;
    Ok(row)
}
