//! The four holes that the usual statements have, each forced open: first on the usual
//! statements, so that the test is known to find it, then on the host's.
//!
//! Nothing here is left to luck. A gate holds a statement in the middle of its work; a
//! transaction that began earlier has an earlier `now()`, and is in time for a session that
//! is dead to everybody who comes later.

use std::time::Duration;

use tenure::postgres::{REAP_BATCH, sql};
use tenure::{Acquired, Closed, Error, Heartbeat, Reaped, Renewed, Revoked, SessionId};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::support::database::{Gate, TestDatabase};
use crate::support::host::{Host, LONG, key};

const MINUTE: i64 = 60_000;

/// A transaction that begins now, and to which it stays now.
async fn earlier_transaction(database: &TestDatabase) -> Client {
    database.begin("SELECT now()").await
}

async fn pinned_heartbeat(client: &Client, session: &SessionId) -> u64 {
    client
        .execute(sql::HEARTBEAT, &[&session.uuid(), &MINUTE])
        .await
        .unwrap()
}

/// Runs the pinned heartbeat and commits; returns its rows.
fn spawn_pinned_heartbeat(client: Client, session: &SessionId) -> JoinHandle<u64> {
    let session = session.clone();
    tokio::spawn(async move {
        let rows = pinned_heartbeat(&client, &session).await;
        client.batch_execute("COMMIT").await.unwrap();
        rows
    })
}

fn spawn_heartbeat(host: &Host, session: &SessionId) -> JoinHandle<Result<Heartbeat, Error>> {
    let (registry, session) = (host.registry.clone(), session.clone());
    tokio::spawn(async move { registry.heartbeat(&session, LONG).await })
}

fn spawn_close(host: &Host, session: &SessionId) -> JoinHandle<Result<Closed, Error>> {
    let (registry, session) = (host.registry.clone(), session.clone());
    tokio::spawn(async move { registry.close_session(&session).await })
}

fn spawn_try_insert(
    host: &Host,
    name: &str,
    session: &SessionId,
) -> JoinHandle<Result<Acquired, Error>> {
    let (locks, name, session) = (host.locks.clone(), key(name), session.clone());
    tokio::spawn(async move { locks.try_insert(&name, &session, LONG).await })
}

fn spawn_reaper(host: &Host) -> JoinHandle<Result<Reaped, Error>> {
    let locks = host.locks.clone();
    tokio::spawn(async move { locks.reap_expired().await })
}

async fn open_as(host: &Host, owner: &str) -> SessionId {
    let session = host.registry.open_session(owner, LONG).await.unwrap();
    session.id
}

fn granted(answer: Result<Acquired, Error>) -> tenure::Grant {
    match answer {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("{other:?}"),
    }
}

fn holder(answer: Result<Acquired, Error>) -> String {
    match answer {
        Ok(Acquired::Held(holder)) => holder.owner,
        other => panic!("{other:?}"),
    }
}

fn is_contention<T: std::fmt::Debug>(answer: Result<T, Error>) {
    assert!(matches!(answer, Err(Error::Contention(_))), "{answer:?}");
}

async fn is_alive(host: &Host, session: &SessionId) -> bool {
    let beat = host.registry.heartbeat(session, LONG).await;
    beat.unwrap().is_alive()
}

// 1. A token that is drawn before its key is owned.

const SLOW_INSERTS: &str = "BEFORE INSERT ON lock_entry FOR EACH ROW WHEN (NEW.owner_id = 'slow')";

#[tokio::test]
async fn the_usual_upsert_grants_a_lower_token_later() {
    let upsert =
        "INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, expires_at)
         VALUES ('k', $1, $2, nextval('fencing_token_seq'), now() + interval '1 minute')
         ON CONFLICT (lock_key) DO UPDATE
            SET owner_id = excluded.owner_id, session_id = excluded.session_id,
                fencing_token = nextval('fencing_token_seq'), expires_at = excluded.expires_at
          WHERE lock_entry.expires_at <= now()
         RETURNING fencing_token";
    async fn token(client: Client, upsert: &str, owner: &str, session: SessionId) -> i64 {
        let row = client.query_one(upsert, &[&owner, &session.uuid()]).await;
        row.unwrap().get(0)
    }
    let database = TestDatabase::create().await;
    let session = Host::new(&database).open(LONG).await;
    let gate = Gate::shut(&database, SLOW_INSERTS).await;

    let slow = tokio::spawn(token(
        database.connect().await,
        upsert,
        "slow",
        session.clone(),
    ));
    database.until_somebody_waits(1).await;
    let first = token(database.connect().await, upsert, "fast", session).await;
    database.execute("DELETE FROM lock_entry").await;
    gate.open().await;
    let second = slow.await.unwrap();

    assert!(second < first, "{second} after {first}");
}

async fn tokens_rise_although_an_insert_is_slow(lapsed: bool) {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let (slow, fast) = (open_as(&host, "slow").await, open_as(&host, "fast").await);
    if lapsed {
        let _ = host.lock("k", &fast).await;
        database.lapse("k").await;
    }
    let drawn = "SELECT coalesce(pg_sequence_last_value('fencing_token_seq'), 0)";
    let before: i64 = database.scalar(drawn).await;
    let gate = Gate::shut(&database, SLOW_INSERTS).await;

    let first = spawn_try_insert(&host, "k", &slow);
    database.until_somebody_waits(1).await;
    let second = spawn_try_insert(&host, "k", &fast);
    database.until_somebody_waits(2).await;
    assert_eq!(database.scalar::<i64>(drawn).await, before + 1);
    gate.open().await;

    let first = granted(first.await.unwrap());
    assert_eq!(holder(second.await.unwrap()), "slow");
    assert!(
        host.locks
            .delete_if_owner(&key("k"), first.token)
            .await
            .unwrap()
    );
    let third = host.lock("k", &fast).await;
    assert!(third.token > first.token, "{third:?} after {first:?}");
}

#[tokio::test]
async fn tokens_of_a_free_key_rise_although_an_insert_is_slow() {
    tokens_rise_although_an_insert_is_slow(false).await;
}

#[tokio::test]
async fn tokens_of_a_lapsed_key_rise_although_an_insert_is_slow() {
    tokens_rise_although_an_insert_is_slow(true).await;
}

#[tokio::test]
async fn a_grant_that_waits_for_a_revocation_is_above_its_floor() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let revoked = host.lock("k", &session).await;
    let gate = Gate::shut(&database, "BEFORE INSERT ON lock_revocation FOR EACH ROW").await;

    let revoking = tokio::spawn({
        let locks = host.locks.clone();
        async move {
            locks
                .revoke(&key("k"), "operator", "stuck for hours", None)
                .await
        }
    });
    database.until_somebody_waits(1).await;
    let again = spawn_try_insert(&host, "k", &session);
    database.until_somebody_waits(2).await;
    gate.open().await;

    let Ok(Revoked::Done(revocation)) = revoking.await.unwrap() else {
        panic!("it was not revoked");
    };
    let grant = granted(again.await.unwrap());
    assert_eq!(revocation.token, revoked.token);
    assert!(revocation.token_floor > revoked.token);
    assert!(
        grant.token > revocation.token_floor,
        "{grant:?} {revocation:?}"
    );
}

// 2. A grant, or its end, at the same moment as the close of its session.

#[tokio::test]
async fn a_close_that_takes_no_row_lock_miscounts() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("a", &session).await;
    let close = database.begin("").await;
    let id = session.uuid();

    let row = close.query_one(sql::COUNT_OF, &[&id]).await;
    let counted: i64 = row.unwrap().get(0);
    let _ = host.lock("b", &session).await;
    close
        .execute(sql::CLOSE_SESSION_DELETE, &[&id])
        .await
        .unwrap();
    close.batch_execute("COMMIT").await.unwrap();

    assert_eq!(database.locks().await, 0);
    assert_eq!(counted, 1, "of the two that went");
}

#[tokio::test]
async fn a_close_counts_the_grant_that_was_under_way_before_it() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("a", &session).await;
    let gate = Gate::shut(&database, "AFTER INSERT ON lock_entry FOR EACH ROW").await;

    let grant = spawn_try_insert(&host, "b", &session);
    database.until_somebody_waits(1).await;
    let close = spawn_close(&host, &session);
    database.until_somebody_waits(2).await;
    gate.open().await;

    let _ = granted(grant.await.unwrap());
    assert_eq!(close.await.unwrap().unwrap().locks_released, 2);
    assert_eq!(database.locks().await, 0);
}

#[tokio::test]
async fn a_grant_that_comes_while_its_session_closes_is_refused() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("a", &session).await;
    let gate = Gate::shut(&database, "BEFORE DELETE ON lock_session FOR EACH ROW").await;

    let close = spawn_close(&host, &session);
    database.until_somebody_waits(1).await;
    let grant = spawn_try_insert(&host, "b", &session);
    database.until_somebody_waits(2).await;
    gate.open().await;

    assert_eq!(close.await.unwrap().unwrap().locks_released, 1);
    assert_eq!(grant.await.unwrap(), Err(Error::SessionUnknown(session)));
    assert_eq!(database.locks().await, 0);
}

/// With the session's row lock alone.
#[tokio::test]
async fn a_close_that_takes_no_lock_on_what_it_counts_miscounts() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let grant = host.lock("a", &session).await;
    let close = database.hold(&session).await;
    let id = session.uuid();

    let row = close.query_one(sql::COUNT_OF, &[&id]).await;
    let counted: i64 = row.unwrap().get(0);
    let released = host.locks.delete_if_owner(&key("a"), grant.token).await;
    close
        .execute(sql::CLOSE_SESSION_DELETE, &[&id])
        .await
        .unwrap();
    close.batch_execute("COMMIT").await.unwrap();

    assert_eq!(released, Ok(true));
    assert_eq!(counted, 1, "which was released before");
}

#[tokio::test]
async fn a_lock_that_was_counted_by_a_close_is_not_released_after_it() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let grant = host.lock("a", &session).await;
    let gate = Gate::shut(&database, "BEFORE DELETE ON lock_session FOR EACH ROW").await;

    let close = spawn_close(&host, &session);
    database.until_somebody_waits(1).await;
    let release = tokio::spawn({
        let locks = host.locks.clone();
        async move { locks.delete_if_owner(&grant.key, grant.token).await }
    });
    database.until_somebody_waits(2).await;
    gate.open().await;

    assert_eq!(close.await.unwrap().unwrap().locks_released, 1);
    assert_eq!(release.await.unwrap(), Ok(false));
}

#[tokio::test]
async fn a_close_does_not_count_what_is_released_or_taken_over_before_it() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let (session, other) = (host.open(LONG).await, host.open(LONG).await);
    for name in ["kept", "released", "taken"] {
        let _ = host.lock(name, &session).await;
    }
    let under_way = database
        .begin(&format!(
            "DELETE FROM lock_entry WHERE lock_key = 'released';
             UPDATE lock_entry SET session_id = '{other}' WHERE lock_key = 'taken'"
        ))
        .await;

    let close = spawn_close(&host, &session);
    database.until_somebody_waits(1).await;
    under_way.batch_execute("COMMIT").await.unwrap();

    assert_eq!(close.await.unwrap().unwrap().locks_released, 1);
    assert_eq!(host.locks.count_of(&other).await, Ok(1));
}

// 3. A session that is dead and not yet reaped.

#[tokio::test]
async fn the_usual_upsert_is_kept_out_by_a_dead_session() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let dead = host.open(LONG).await;
    let _ = host.lock("k", &dead).await;
    database.expire(&dead).await;
    let contender = host.open(LONG).await;

    let rows = database
        .connect()
        .await
        .execute(
            "INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, expires_at)
             VALUES ('k', 'contender', $1, 1000, now() + interval '1 minute')
             ON CONFLICT (lock_key) DO UPDATE SET session_id = excluded.session_id
              WHERE lock_entry.expires_at <= now()",
            &[&contender.uuid()],
        )
        .await
        .unwrap();

    assert_eq!(rows, 0);
}

#[tokio::test]
async fn a_contender_takes_the_lock_of_a_dead_session_at_once() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let dead = host.open(LONG).await;
    let before = [host.lock("k", &dead).await, host.lock("l", &dead).await];
    database.expire(&dead).await;
    let contender = host.open(LONG).await;

    let grant = host.lock("k", &contender).await;

    assert_eq!(grant.session, contender);
    assert!(grant.token > before[0].token);
    // The whole session went, as by the reaper.
    assert_eq!(database.sessions().await, 1);
    assert_eq!(database.locks().await, 1);
    assert!(!is_alive(&host, &dead).await);
    let renewed = host.locks.extend(&key("k"), before[0].token, LONG).await;
    assert_eq!(renewed, Ok(Renewed::Lost));
}

#[tokio::test]
async fn a_heartbeat_in_time_wins_against_a_contender() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = open_as(&host, "holder").await;
    let _ = host.lock("k", &session).await;
    let contender = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    let meanwhile = host.locks.try_insert(&key("k"), &contender, LONG).await;
    in_time.batch_execute("COMMIT").await.unwrap();
    let afterwards = host.locks.try_insert(&key("k"), &contender, LONG).await;

    assert_eq!(holder(meanwhile), "holder");
    assert_eq!(holder(afterwards), "holder");
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn a_heartbeat_loses_against_a_contender_that_came_first() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;
    let contender = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    let gate = Gate::shut(&database, "BEFORE DELETE ON lock_session FOR EACH ROW").await;

    let contending = spawn_try_insert(&host, "k", &contender);
    database.until_somebody_waits(1).await;
    let late = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(2).await;
    let in_time = spawn_pinned_heartbeat(in_time, &session);
    database.until_somebody_waits(3).await;
    gate.open().await;

    assert_eq!(granted(contending.await.unwrap()).session, contender);
    assert_eq!(late.await.unwrap(), Ok(Heartbeat::Dead));
    assert_eq!(in_time.await.unwrap(), 0);
    assert!(!is_alive(&host, &session).await);
}

#[tokio::test]
async fn a_dead_session_acquires_nothing() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let (dead, other) = (host.open(LONG).await, host.open(LONG).await);
    let own = host.lock("own", &dead).await;
    let _ = host.lock("held", &other).await;
    database.expire(&dead).await;

    for name in ["own", "held", "free"] {
        let answer = host.locks.try_insert(&key(name), &dead, LONG).await;
        assert_eq!(answer, Err(Error::SessionExpired(dead.clone())), "{name}");
    }
    let renewed = host.locks.extend(&key("own"), own.token, LONG).await;

    assert_eq!(renewed, Ok(Renewed::Lost));
    assert_eq!(host.locks.read(&key("own")).await, Ok(None));
}

#[tokio::test]
async fn a_session_that_could_not_acquire_because_it_is_dead_stays_dead() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;

    let answer = host.locks.try_insert(&key("k"), &session, LONG).await;

    assert_eq!(answer, Err(Error::SessionExpired(session.clone())));
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 0);
}

#[tokio::test]
async fn a_session_is_not_called_dead_while_a_heartbeat_in_time_is_under_way() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    is_contention(host.locks.try_insert(&key("k"), &session, LONG).await);

    in_time.batch_execute("COMMIT").await.unwrap();
    let _ = host.lock("k", &session).await;
}

// 4. A heartbeat that waits.

#[tokio::test]
async fn a_heartbeat_that_waits_too_long_for_its_row_is_contention() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let holder = database.hold(&session).await;

    is_contention(host.registry.heartbeat(&session, LONG).await);

    holder.batch_execute("COMMIT").await.unwrap();
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn the_pinned_heartbeat_alone_says_false_of_a_session_that_lives() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    let zero_rows = pinned_heartbeat(&database.connect().await, &session).await;
    in_time.batch_execute("COMMIT").await.unwrap();

    assert_eq!(zero_rows, 0);
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn zero_rows_beside_a_heartbeat_in_time_are_contention() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    is_contention(host.registry.heartbeat(&session, LONG).await);

    in_time.batch_execute("COMMIT").await.unwrap();
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn zero_rows_before_a_heartbeat_in_time_commits_are_contention() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    let late = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(1).await;
    in_time.batch_execute("COMMIT").await.unwrap();

    is_contention(late.await.unwrap());
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn zero_rows_before_a_heartbeat_in_time_rolls_back_are_false() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    let late = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(1).await;
    in_time.batch_execute("ROLLBACK").await.unwrap();

    assert_eq!(late.await.unwrap(), Ok(Heartbeat::Dead));
    assert!(!is_alive(&host, &session).await);
}

#[tokio::test]
async fn the_pinned_heartbeat_alone_revives_a_session_after_a_false() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    let holder = database.hold(&session).await;

    let waiting = spawn_pinned_heartbeat(in_time, &session);
    database.until_somebody_waits(1).await;
    let said_false = pinned_heartbeat(&database.connect().await, &session).await == 0;
    holder.batch_execute("COMMIT").await.unwrap();

    assert_eq!(waiting.await.unwrap(), 1);
    assert!(said_false);
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn a_heartbeat_in_time_that_is_first_to_wait_for_the_row_keeps_the_session_alive() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    let holder = database.hold(&session).await;

    let in_time = spawn_pinned_heartbeat(in_time, &session);
    database.until_somebody_waits(1).await;
    let late = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(2).await;
    holder.batch_execute("COMMIT").await.unwrap();

    assert_eq!(in_time.await.unwrap(), 1);
    is_contention(late.await.unwrap());
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn after_a_false_no_heartbeat_that_waited_revives_the_session() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    let holder = database.hold(&session).await;

    let late = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(1).await;
    let in_time = spawn_pinned_heartbeat(in_time, &session);
    database.until_somebody_waits(2).await;
    holder.batch_execute("COMMIT").await.unwrap();

    assert_eq!(late.await.unwrap(), Ok(Heartbeat::Dead));
    assert_eq!(in_time.await.unwrap(), 0);
    assert!(!is_alive(&host, &session).await);
    assert_eq!(database.sessions().await, 1);
}

// The reaper, which all of them rest on.

#[tokio::test]
async fn two_reapers_at_once_take_a_session_once_and_do_not_wait_for_each_other() {
    let database = TestDatabase::create().await;
    let (first, second) = (Host::patient(&database), Host::new(&database));
    for _ in 0..3 {
        let session = first.open(LONG).await;
        database.expire(&session).await;
    }
    let gate = Gate::shut(&database, "BEFORE DELETE ON lock_session FOR EACH ROW").await;

    let reaping = spawn_reaper(&first);
    database.until_somebody_waits(1).await;
    let meanwhile = second.locks.reap_expired().await.unwrap();
    gate.open().await;

    assert_eq!(meanwhile.sessions, 0);
    assert_eq!(reaping.await.unwrap().unwrap().sessions, 3);
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn a_heartbeat_in_time_wins_against_the_reaper() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);

    let reaped = host.locks.reap_expired().await.unwrap();
    in_time.batch_execute("COMMIT").await.unwrap();

    assert_eq!(reaped.sessions, 0);
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn a_heartbeat_loses_against_the_reaper_that_came_first() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    let gate = Gate::shut(&database, "BEFORE DELETE ON lock_session FOR EACH ROW").await;

    let reaping = spawn_reaper(&host);
    database.until_somebody_waits(1).await;
    let late = spawn_heartbeat(&host, &session);
    database.until_somebody_waits(2).await;
    let in_time = spawn_pinned_heartbeat(in_time, &session);
    database.until_somebody_waits(3).await;
    gate.open().await;

    assert_eq!(reaping.await.unwrap().unwrap().sessions, 1);
    assert_eq!(late.await.unwrap(), Ok(Heartbeat::Dead));
    assert_eq!(in_time.await.unwrap(), 0);
    assert_eq!(database.sessions().await, 0);
}

/// The reaper finds a session dead, and a heartbeat that came in time commits before the
/// reaper has its row.
#[tokio::test]
async fn a_heartbeat_that_commits_under_the_reapers_eyes_wins() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let in_time = earlier_transaction(&database).await;
    database.expire(&session).await;
    let reaper = database.begin("").await;
    let found = reaper
        .query(
            sql::REAP_FIND,
            &[&"(0,0)", &"(1024,0)", &(REAP_BATCH as i64)],
        )
        .await;
    assert_eq!(found.unwrap().len(), 1);

    assert_eq!(pinned_heartbeat(&in_time, &session).await, 1);
    in_time.batch_execute("COMMIT").await.unwrap();
    let reaped = reaper
        .query(sql::REAP_SESSIONS, &[&vec![session.uuid()]])
        .await;

    assert!(reaped.unwrap().is_empty());
    assert!(is_alive(&host, &session).await);
}

#[tokio::test]
async fn the_reaper_waits_for_no_session_that_lives() {
    let database = TestDatabase::create().await;
    let mut options = tenure::DatabaseOptions::default();
    options.lock_timeout = Duration::from_secs(60);
    let host = Host::on(
        database.pool_with(&options),
        crate::support::host::lifecycle(),
    );
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;
    let _busy = database.hold(&session).await;

    let reaped = host.locks.reap_expired().await;

    assert_eq!(reaped, Ok(Reaped::default()));
    assert_eq!(database.sessions().await, 1);
}

#[tokio::test]
async fn one_stuck_lock_does_not_keep_the_reaper_from_the_rest() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    for name in ["a", "stuck", "z"] {
        let session = host.open(LONG).await;
        let _ = host.lock(name, &session).await;
        database.expire(&session).await;
    }
    let stuck = database
        .begin("SELECT FROM lock_entry WHERE lock_key = 'stuck' FOR UPDATE")
        .await;

    let first = host.locks.reap_expired().await.unwrap();
    let left: String = database.scalar("SELECT lock_key FROM lock_entry").await;
    stuck.batch_execute("COMMIT").await.unwrap();
    let second = host.locks.reap_expired().await.unwrap();

    assert_eq!(first.sessions, 2);
    assert_eq!(left, "stuck");
    assert_eq!(second.sessions, 1);
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn the_reaper_leaves_a_lapsed_grant_that_is_being_taken() {
    let database = TestDatabase::create().await;
    let host = Host::patient(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("k", &session).await;
    database.lapse("k").await;
    let gate = Gate::shut(&database, "BEFORE UPDATE ON lock_entry FOR EACH ROW").await;

    let taking = spawn_try_insert(&host, "k", &session);
    database.until_somebody_waits(1).await;
    let reaped = host.locks.reap_expired().await.unwrap();
    gate.open().await;

    assert_eq!(reaped, Reaped::default());
    let grant = granted(taking.await.unwrap());
    let read = host.locks.read(&key("k")).await.unwrap();
    assert_eq!(read, Some(grant));
}
