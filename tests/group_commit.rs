//! Heartbeats that share a statement and a commit, and what that costs nobody.
//!
//! A future's first poll sends its heartbeat, and on the one thread of a test nothing else
//! runs before the next await. So heartbeats that are polled one after the other are in one
//! batch, and a gate tells when a batch is under way.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use futures_util::future::{join_all, poll_immediate};
use tenure::postgres::{Statements, StoreError, sql};
use tenure::{DatabaseOptions, PinnedStatements, SessionId};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::database::{Gate, TestDatabase};
use crate::support::given::seed;
use crate::support::host::LONG;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;

/// No timestamp is so far away.
const OVERFLOWING: i64 = i64::MAX;

type Answer = Result<Option<SystemTime>, StoreError>;

/// A database that notes each statement that updates sessions, and with how many rows.
struct Stage {
    database: TestDatabase,
    client: Client,
    statements: PinnedStatements,
}

impl Stage {
    async fn new() -> Self {
        let database = TestDatabase::create().await;
        let client = database.connect().await;
        client
            .batch_execute(
                "CREATE TABLE ran (number bigserial, query text, rows bigint);
                 CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN
                     INSERT INTO ran (query, rows) SELECT current_query(), count(*) FROM updated;
                     RETURN NULL;
                 END $$;
                 CREATE TRIGGER note AFTER UPDATE ON lock_session
                     REFERENCING NEW TABLE AS updated
                     FOR EACH STATEMENT EXECUTE FUNCTION note()",
            )
            .await
            .unwrap();
        let statements = host(&database);
        Self {
            database,
            client,
            statements,
        }
    }

    /// Sessions of one shard, however many shards there are, in the order of their ids.
    async fn sessions<const N: usize>(&self) -> [Uuid; N] {
        let high = fastrand::u64(..);
        let ids = std::array::from_fn(|at| Uuid::from_u64_pair(high, (at as u64 + 1) << 32));
        for id in ids {
            insert(&self.client, id, "quick", "1 minute").await;
        }
        ids
    }

    /// Marks the session as one that the gate stops.
    async fn slow(&self, id: Uuid) {
        self.client
            .execute(
                "UPDATE lock_session SET owner_id = 'slow' WHERE session_id = $1",
                &[&id],
            )
            .await
            .unwrap();
        self.client.batch_execute("TRUNCATE ran").await.unwrap();
    }

    async fn shut_gate(&self) -> Gate {
        let event = "BEFORE UPDATE ON lock_session FOR EACH ROW WHEN (NEW.owner_id = 'slow')";
        Gate::shut(&self.database, event).await
    }

    /// A heartbeat that has been sent.
    async fn sent(&self, id: Uuid, ttl_ms: i64) -> Pin<Box<impl Future<Output = Answer>>> {
        let mut beat = Box::pin(self.statements.heartbeat(id, ttl_ms));
        assert!(poll_immediate(&mut beat).await.is_none());
        beat
    }

    /// The statements that have updated sessions, in order, with their rows.
    async fn ran(&self) -> Vec<(String, i64)> {
        let rows = self
            .client
            .query("SELECT query, rows FROM ran ORDER BY number", &[])
            .await
            .unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

/// Whose waits for a row outlast the test.
fn host(database: &TestDatabase) -> PinnedStatements {
    let mut options = DatabaseOptions::default();
    options.lock_timeout = LONG;
    options.statement_timeout = LONG;
    PinnedStatements::new(database.pool_with(&options))
}

async fn insert(client: &Client, id: Uuid, owner: &str, ttl: &str) {
    client
        .execute(
            "INSERT INTO lock_session
             VALUES ($1, $2, now() - interval '1 hour', now() + $3::text::interval)",
            &[&id, &owner, &ttl],
        )
        .await
        .unwrap();
}

fn alone(rows: i64) -> (String, i64) {
    (sql::HEARTBEAT.to_owned(), rows)
}

fn together(rows: i64) -> (String, i64) {
    (sql::HEARTBEAT_MANY.to_owned(), rows)
}

fn is_alive(answer: Answer) {
    assert!(matches!(answer, Ok(Some(_))), "{answer:?}");
}

#[tokio::test]
async fn a_lone_heartbeat_is_the_pinned_statement() {
    let stage = Stage::new().await;
    let [a, b] = stage.sessions().await;

    for id in [a, b, a] {
        is_alive(stage.statements.heartbeat(id, MINUTE).await);
    }

    assert_eq!(stage.ran().await, [alone(1), alone(1), alone(1)]);
}

#[tokio::test]
async fn heartbeats_that_wait_at_the_same_moment_are_one_statement() {
    let stage = Stage::new().await;
    let ids = stage.sessions::<20>().await;

    let beats = ids.map(|id| stage.statements.heartbeat(id, MINUTE));
    join_all(beats).await.into_iter().for_each(is_alive);

    assert_eq!(stage.ran().await, [together(20)]);
}

#[tokio::test]
async fn what_arrives_while_a_commit_runs_is_the_next_batch() {
    let stage = Stage::new().await;
    let [slow, a, b, c, d] = stage.sessions().await;
    stage.slow(slow).await;
    let gate = stage.shut_gate().await;

    let slow = stage.sent(slow, MINUTE).await;
    let a = stage.sent(a, MINUTE).await;
    stage.database.until_somebody_waits(1).await;
    let c = stage.sent(c, MINUTE).await;
    let b = stage.sent(b, MINUTE).await;
    let d = stage.sent(d, MINUTE).await;
    assert_eq!(busy(&stage).await, 1);
    gate.open().await;

    for beat in [slow, a, b, c, d] {
        is_alive(beat.await);
    }
    assert_eq!(stage.ran().await, [together(2), together(3)]);
}

/// How many statements of the host are under way.
async fn busy(stage: &Stage) -> i64 {
    stage
        .database
        .scalar(
            "SELECT count(*) FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'tenure'
                AND state <> 'idle'",
        )
        .await
}

#[tokio::test]
async fn a_poisoned_row_fails_alone() {
    let stage = Stage::new().await;
    let [a, poisoned, b] = stage.sessions().await;
    let by_itself = stage.statements.heartbeat(poisoned, OVERFLOWING).await;

    let answers = join_all([
        stage.sent(a, MINUTE).await,
        stage.sent(poisoned, OVERFLOWING).await,
        stage.sent(b, MINUTE).await,
    ]);
    let [a, poisoned, b] = answers.await.try_into().unwrap();

    is_alive(a);
    is_alive(b);
    assert!(
        matches!(poisoned, Err(StoreError::Other(_))),
        "{poisoned:?}"
    );
    assert_eq!(poisoned, by_itself);
    assert_eq!(stage.ran().await, [alone(1), alone(1)]);
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_costs_the_others_nothing() {
    let stage = Stage::new().await;
    let [a, locked, b] = stage.sessions().await;
    let holder = stage.database.hold(&SessionId::from(locked)).await;

    let a = stage.sent(a, MINUTE).await;
    let mut locked = stage.sent(locked, MINUTE).await;
    let b = stage.sent(b, MINUTE).await;

    is_alive(a.await);
    is_alive(b.await);
    assert_eq!(stage.ran().await, [together(2)]);
    tokio::select! {
        biased;
        answer = &mut locked => panic!("{answer:?}"),
        () = stage.database.until_somebody_waits(1) => {}
    }
    holder.batch_execute("COMMIT").await.unwrap();
    is_alive(locked.await);
    assert_eq!(stage.ran().await, [together(2), alone(1)]);
}

#[tokio::test]
async fn a_lone_heartbeat_that_waits_for_its_row_costs_the_others_nothing() {
    let stage = Stage::new().await;
    let [locked, a, b] = stage.sessions().await;
    let holder = stage.database.hold(&SessionId::from(locked)).await;
    let waiting = stage.sent(locked, MINUTE).await;
    stage.database.until_somebody_waits(1).await;

    is_alive(stage.statements.heartbeat(a, MINUTE).await);
    is_alive(stage.statements.heartbeat(b, MINUTE).await);

    holder.batch_execute("COMMIT").await.unwrap();
    is_alive(waiting.await);
}

#[tokio::test]
async fn a_caller_that_goes_away_before_its_batch_is_left_out_of_it() {
    let stage = Stage::new().await;
    let [a, gone, b] = stage.sessions().await;

    let a = stage.sent(a, MINUTE).await;
    drop(stage.sent(gone, MINUTE).await);
    let b = stage.sent(b, MINUTE).await;

    is_alive(a.await);
    is_alive(b.await);
    assert_eq!(stage.ran().await, [together(2)]);
}

#[tokio::test]
async fn a_caller_that_goes_away_during_its_batch_costs_the_others_nothing() {
    let stage = Stage::new().await;
    let [slow, gone, b] = stage.sessions().await;
    stage.slow(slow).await;
    let gate = stage.shut_gate().await;

    let slow = stage.sent(slow, MINUTE).await;
    let gone = stage.sent(gone, MINUTE).await;
    let b = stage.sent(b, MINUTE).await;
    stage.database.until_somebody_waits(1).await;
    drop(gone);
    gate.open().await;

    is_alive(slow.await);
    is_alive(b.await);
    assert_eq!(stage.ran().await, [together(3)]);
}

#[tokio::test]
async fn a_connection_that_is_killed_under_a_batch_is_contention_for_exactly_those_in_it() {
    let stage = Stage::new().await;
    let [slow, a, b, c] = stage.sessions().await;
    stage.slow(slow).await;
    let _gate = stage.shut_gate().await;

    let slow = stage.sent(slow, MINUTE).await;
    let a = stage.sent(a, MINUTE).await;
    stage.database.until_somebody_waits(1).await;
    let b = stage.sent(b, MINUTE).await;
    let c = stage.sent(c, MINUTE).await;
    stage
        .database
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .await;

    for answer in [slow.await, a.await] {
        assert!(
            matches!(answer, Err(StoreError::Contention(_))),
            "{answer:?}"
        );
    }
    is_alive(b.await);
    is_alive(c.await);
    assert_eq!(stage.ran().await, [together(2)]);
}

/// The first host's batch has the one row and is about to take the other, while the second's
/// wants both.
#[tokio::test]
async fn two_hosts_that_cross_wait_for_no_batch() {
    let stage = Stage::new().await;
    let [shared, slow, other] = stage.sessions().await;
    stage.slow(slow).await;
    let second = host(&stage.database);
    let gate = stage.shut_gate().await;

    let first = [
        stage.sent(shared, MINUTE).await,
        stage.sent(slow, MINUTE).await,
    ];
    stage.database.until_somebody_waits(1).await;
    let crossing = tokio::spawn({
        let second = second.clone();
        async move { join_all([other, slow, shared].map(|id| second.heartbeat(id, MINUTE))).await }
    });
    // The two rows that the first has locked, each alone.
    stage.database.until_somebody_waits(3).await;
    assert_eq!(stage.ran().await, [together(1)]);
    gate.open().await;

    join_all(first).await.into_iter().for_each(is_alive);
    crossing.await.unwrap().into_iter().for_each(is_alive);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hosts_that_beat_the_same_sessions_get_no_contention() {
    let stage = Stage::new().await;
    let ids = stage.sessions::<32>().await;

    let hosts = [0, 1].map(|_| {
        let host = host(&stage.database);
        tokio::spawn(async move {
            for _ in 0..50 {
                let mut ids = ids;
                fastrand::shuffle(&mut ids);
                let beats = ids.map(|id| host.heartbeat(id, MINUTE));
                join_all(beats).await.into_iter().for_each(is_alive);
            }
        })
    });

    for host in hosts {
        host.await.unwrap();
    }
}

/// The answer, with the TTL in whole hours in the place of the time.
type Verdict = Result<Option<i64>, StoreError>;

fn hours(until: SystemTime) -> i64 {
    let left = until.duration_since(SystemTime::now()).unwrap();
    (left + Duration::from_secs(30 * 60)).as_secs() as i64 / 3600
}

/// Sessions, with how they stand afterwards: the TTL in hours, `None` for dead.
async fn standing(client: &Client) -> HashMap<Uuid, Option<i64>> {
    let rows = client
        .query(
            "SELECT session_id, expires_at, expires_at > now() FROM lock_session",
            &[],
        )
        .await
        .unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get::<_, bool>(2).then(|| hours(row.get(1)))))
        .collect()
}

#[tokio::test]
async fn any_mix_answers_as_the_single_statement_does_one_by_one() {
    let mut random = Rng::with_seed(seed());
    let database = TestDatabase::create().await;
    let client = database.connect().await;
    // As the host's connections do: a plan for the one argument would find out that this
    // overflows before it looks for a row.
    client
        .batch_execute("SET plan_cache_mode = force_generic_plan")
        .await
        .unwrap();
    let statements = host(&database);

    for round in 0..100 {
        let population: Vec<(Uuid, Option<&str>)> = (0..random.usize(1..=40))
            .map(|_| {
                let kinds = [Some("1 hour"), Some("1 hour"), Some("-1 minute"), None];
                (Uuid::from_u128(random.u128(..)), kinds[random.usize(..4)])
            })
            .collect();
        let poisoned = random.u8(..4) == 0;
        let beats: Vec<(Uuid, i64)> = (0..random.usize(1..=60))
            .map(|_| {
                let (id, _) = population[random.usize(..population.len())];
                match poisoned && random.u8(..8) == 0 {
                    true => (id, OVERFLOWING),
                    false => (id, random.i64(1..=20) * HOUR),
                }
            })
            .collect();
        let reset = async || {
            client
                .batch_execute("TRUNCATE lock_session CASCADE")
                .await
                .unwrap();
            for (id, ttl) in &population {
                if let Some(ttl) = ttl {
                    insert(&client, *id, "owner", ttl).await;
                }
            }
        };

        reset().await;
        let mut one_by_one: Vec<Verdict> = Vec::new();
        for (id, ttl_ms) in &beats {
            let row = client.query_opt(sql::HEARTBEAT, &[id, ttl_ms]).await;
            one_by_one.push(
                row.map(|row| row.map(|row| hours(row.get(0))))
                    .map_err(Into::into),
            );
        }
        let stand_one_by_one = standing(&client).await;

        reset().await;
        let answers = join_all(
            beats
                .iter()
                .map(|(id, ttl_ms)| statements.heartbeat(*id, *ttl_ms)),
        )
        .await;
        let at_once: Vec<Verdict> = answers
            .into_iter()
            .map(|answer| answer.map(|until| until.map(hours)))
            .collect();
        let stand_at_once = standing(&client).await;

        assert_eq!(at_once, one_by_one, "round {round} of {beats:?}");
        // All were called at the same moment, so of two of one session either may be last.
        for (id, stands) in stand_at_once {
            let last = beats
                .iter()
                .zip(&at_once)
                .any(|((of, _), verdict)| *of == id && *verdict == Ok(stands) && stands.is_some());
            assert!(
                last || stands == stand_one_by_one[&id],
                "round {round} of {beats:?}: {id} {stands:?}"
            );
        }
    }
}
