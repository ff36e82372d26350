//! Heartbeats, alone or in company: group commit.
//!
//! Heartbeats that wait at the same moment run as one statement and one commit. A lone one
//! runs at once, as the pinned statement; what arrives while a commit runs is the next batch.
//!
//! A batch only ever says that a session lives. Its statement waits for no row: one that
//! somebody else has locked is left out, like one that is dead or gone. Whoever is left out
//! then runs alone, so that every other verdict is the single statement's.
//!
//! Sharing a commit is what makes heartbeats cheap, and not doing without one: with
//! `synchronous_commit` off, a crash of the server could take back an extension that was
//! answered with `true`, and the session be reaped while its client holds on to its locks.

use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::sessions::{Sealed, seal};
use super::{Database, StoreError, sql};

/// Batches that can be under way at once. A session's heartbeats are always in the same one,
/// so two batches of a host never want the same row. With two, one is being made while the
/// other waits for its commit; more make the batches smaller, and gain nothing.
const SHARDS: usize = 2;

/// The most heartbeats in a batch. Larger ones gain nothing and are slower to answer.
const MAX_BATCH: usize = 512;

/// How long a shard waits for a lone heartbeat, which may be waiting for its row, before it
/// serves the next. Some commits long.
const PATIENCE: Duration = Duration::from_millis(5);

/// Runs heartbeats. Cloning it shares the shards, which end with the last clone.
#[derive(Clone, Debug)]
pub(super) struct Heartbeats {
    database: Database,
    shards: Vec<mpsc::UnboundedSender<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    id: Uuid,
    ttl_ms: i64,
    told: oneshot::Sender<Told>,
}

/// What a caller is told.
#[derive(Debug)]
enum Told {
    Answer(Answer),
    /// It was in a batch that has not done it, and now has to run alone.
    LeftOut,
}

type Answer = Result<Option<SystemTime>, StoreError>;

impl Heartbeats {
    /// Has to be called in a tokio runtime, where the shards then run.
    pub(super) fn new(database: &Database) -> Self {
        let shards = (0..SHARDS).map(|_| {
            let (shard, arriving) = mpsc::unbounded_channel();
            tokio::spawn(serve(database.clone(), arriving));
            shard
        });
        Self {
            database: database.clone(),
            shards: shards.collect(),
        }
    }

    /// As [`Statements::heartbeat`](super::Statements::heartbeat).
    pub(super) async fn beat(&self, id: Uuid, ttl_ms: i64) -> Answer {
        let (tell, told) = oneshot::channel();
        let (_, low) = id.as_u64_pair();
        let shard = &self.shards[low as usize % SHARDS];
        let waiting = Waiting {
            id,
            ttl_ms,
            told: tell,
        };
        match (shard.send(waiting), told.await) {
            (Ok(()), Ok(Told::Answer(answer))) => answer,
            (Ok(()), Ok(Told::LeftOut)) => single(&self.database, id, ttl_ms).await,
            _ => Err(StoreError::Contention(
                "the host is shutting down".to_owned(),
            )),
        }
    }
}

/// One shard.
async fn serve(database: Database, mut arriving: mpsc::UnboundedReceiver<Waiting>) {
    let mut waiting = Vec::with_capacity(MAX_BATCH);
    loop {
        if waiting.is_empty() && arriving.recv_many(&mut waiting, MAX_BATCH).await == 0 {
            return;
        }
        while waiting.len() < MAX_BATCH
            && let Ok(another) = arriving.try_recv()
        {
            waiting.push(another);
        }
        let mut batch = next_batch(&mut waiting);
        if batch.len() > 1 {
            // It waits for nobody's row, so only the database can be slow.
            let patience = database.lock_timeout();
            unless_slow(patience, together(database.clone(), batch)).await;
        } else if let Some(lone) = batch.pop() {
            unless_slow(PATIENCE, alone(database.clone(), lone)).await;
        }
    }
}

/// Waits for `work` so long, and then leaves it to itself.
async fn unless_slow(patience: Duration, work: impl Future<Output = ()> + Send + 'static) {
    let mut work = Box::pin(work);
    if timeout(patience, work.as_mut()).await.is_err() {
        tokio::spawn(work);
    }
}

/// Takes one heartbeat of each session, in the order of their ids. Two of one session are
/// judged one after the other, as two statements would be. A caller that has gone away is
/// left out.
fn next_batch(waiting: &mut Vec<Waiting>) -> Vec<Waiting> {
    waiting.retain(|waiting| !waiting.told.is_closed());
    // Stable, so that of two the first comes first.
    waiting.sort_by_key(|waiting| waiting.id);
    let mut later = Vec::new();
    let mut batch: Vec<Waiting> = Vec::with_capacity(waiting.len());
    for beat in waiting.drain(..) {
        match batch.last() {
            Some(last) if last.id == beat.id => later.push(beat),
            _ => batch.push(beat),
        }
    }
    waiting.append(&mut later);
    batch
}

/// Runs a heartbeat as the pinned statement.
async fn alone(database: Database, waiting: Waiting) {
    let Waiting {
        id,
        ttl_ms,
        mut told,
    } = waiting;
    let answer = tokio::select! {
        answer = single(&database, id, ttl_ms) => answer,
        // Its statement is then cancelled.
        () = told.closed() => return,
    };
    // Whoever has gone away since does not want to know.
    let _ = told.send(Told::Answer(answer));
}

/// The pinned statement. Seals the session where that finds none alive.
async fn single(database: &Database, id: Uuid, ttl_ms: i64) -> Answer {
    enum Beat {
        Alive(SystemTime),
        Dead(Sealed),
    }
    let connection = database.urgent_connection().await?;
    let beat = async {
        let statement = connection.prepare_cached(sql::HEARTBEAT).await?;
        match connection.query_opt(&statement, &[&id, &ttl_ms]).await? {
            Some(row) => Ok(Beat::Alive(row.try_get(0)?)),
            None => Ok(Beat::Dead(seal(&connection, id).await?)),
        }
    };
    let outcome = connection.bounded(beat).await;
    match connection.finish(outcome)? {
        Beat::Alive(expires_at) => Ok(Some(expires_at)),
        Beat::Dead(Sealed::Gone | Sealed::Expired) => Ok(None),
        Beat::Dead(Sealed::Revived) => Err(StoreError::Contention(format!(
            "session {id} was extended by another heartbeat at the same moment"
        ))),
    }
}

/// Runs a batch, in the order of the ids.
async fn together(database: Database, batch: Vec<Waiting>) {
    // The server's own limit ends the statement; this one is for a connection that is silent.
    let limit = database.statement_timeout() * 2;
    let extended = timeout(limit, many(&database, &batch))
        .await
        .unwrap_or_else(|_| {
            Many::Unknown(StoreError::Contention(format!(
                "the database was silent for {} ms",
                limit.as_millis()
            )))
        });
    let tell = |waiting: Waiting, what| {
        // Whoever has gone away since does not want to know.
        let _ = waiting.told.send(what);
    };
    match extended {
        Many::Extended(mut extended) => {
            extended.sort_unstable();
            for waiting in batch {
                let found = extended.binary_search_by_key(&waiting.id, |(id, _)| *id);
                let what = match found {
                    Ok(at) => Told::Answer(Ok(Some(extended[at].1))),
                    Err(_) => Told::LeftOut,
                };
                tell(waiting, what);
            }
        }
        Many::NotDone => {
            for waiting in batch {
                tell(waiting, Told::LeftOut);
            }
        }
        Many::Unknown(fault) => {
            for waiting in batch {
                tell(waiting, Told::Answer(Err(fault.clone())));
            }
        }
    }
}

/// What became of a batch's statement.
enum Many {
    /// These sessions were extended, and until when.
    Extended(Vec<(Uuid, SystemTime)>),
    /// It was rolled back: one of the batch may be at fault, and the others need not suffer.
    NotDone,
    /// It may or may not have taken effect.
    Unknown(StoreError),
}

async fn many(database: &Database, batch: &[Waiting]) -> Many {
    let connection = match database.urgent_connection().await {
        Ok(connection) => connection,
        Err(fault) => return Many::Unknown(fault),
    };
    let ids: Vec<Uuid> = batch.iter().map(|waiting| waiting.id).collect();
    let ttls: Vec<i64> = batch.iter().map(|waiting| waiting.ttl_ms).collect();
    let outcome: Result<Vec<_>, Error> = async {
        let statement = connection.prepare_cached(sql::HEARTBEAT_MANY).await?;
        let rows = connection.query(&statement, &[&ids, &ttls]).await?;
        rows.iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
            .collect()
    }
    .await;
    let rolled_back = outcome.as_ref().err().is_some_and(was_rolled_back);
    match connection.finish(outcome) {
        Ok(extended) => Many::Extended(extended),
        Err(_) if rolled_back => Many::NotDone,
        Err(fault) => Many::Unknown(fault),
    }
}

/// The server has said so itself, and goes on. Where it ends the connection, a commit may
/// have come before.
fn was_rolled_back(error: &Error) -> bool {
    error.code().is_some_and(|code| {
        let class = &code.code()[..2];
        class != "08" && (class != "57" || *code == SqlState::QUERY_CANCELED)
    })
}
