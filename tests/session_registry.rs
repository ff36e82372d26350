//! The life of a session, and what becomes of its locks.

use std::time::Duration;

use tenure::Error;
use tokio::time::sleep;
use uuid::Uuid;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, key};

const SHORT: Duration = Duration::from_millis(40);

async fn expiry(database: &TestDatabase) -> std::time::SystemTime {
    database.scalar("SELECT expires_at FROM lock_session").await
}

#[tokio::test]
async fn a_heartbeat_of_an_open_session_is_true_and_moves_its_expiry_forward() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.registry.open_session("tester", LONG).await.unwrap();
    let before = expiry(&database).await;
    assert_eq!(before, session.lease.expires_at);

    let beat = host.registry.heartbeat(&session.id, LONG).await.unwrap();

    assert!(beat.is_alive());
    assert!(expiry(&database).await > before);
}

#[tokio::test]
async fn a_heartbeat_of_a_random_uuid_is_false() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);

    let beat = host
        .registry
        .heartbeat(&Uuid::new_v4().to_string(), LONG)
        .await
        .unwrap();

    assert!(!beat.is_alive());
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn a_heartbeat_after_the_ttl_is_false_and_stays_false_and_makes_no_session() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(SHORT).await;
    let rows = database.sessions().await;
    sleep(SHORT * 2).await;

    let first = host.registry.heartbeat(&session, LONG).await.unwrap();
    let second = host.registry.heartbeat(&session, LONG).await.unwrap();

    assert!(!first.is_alive());
    assert!(!second.is_alive());
    assert_eq!(database.sessions().await, rows);
}

#[tokio::test]
async fn a_close_releases_both_locks_and_their_rows_are_gone() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("a", &session).await;
    let _ = host.lock("b", &session).await;

    let closed = host.registry.close_session(&session).await.unwrap();

    assert_eq!(closed.locks_released, 2);
    assert_eq!(database.locks().await, 0);
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn closing_twice_returns_two_and_then_zero() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("a", &session).await;
    let _ = host.lock("b", &session).await;

    let first = host.registry.close_session(&session).await.unwrap();
    let second = host.registry.close_session(&session).await.unwrap();

    assert_eq!((first.locks_released, first.existed), (2, true));
    assert_eq!((second.locks_released, second.existed), (0, false));
}

#[tokio::test]
async fn locks_of_shows_both_before_the_close_and_none_after() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let session = host.open(LONG).await;
    let _ = host.lock("b", &session).await;
    let _ = host.lock("a", &session).await;

    assert_eq!(host.registry.locks_of(&session).await.unwrap(), ["a", "b"]);
    let _ = host.registry.close_session(&session).await.unwrap();
    assert!(host.registry.locks_of(&session).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_lock_against_a_session_that_does_not_exist_is_an_error() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let nobody = Uuid::new_v4().into();

    let free = host.locks.try_insert(&key("free"), &nobody, LONG).await;
    assert_eq!(free, Err(Error::SessionUnknown(nobody.clone())));

    // Neither is it "contended" where somebody else holds the lock.
    let session = host.open(LONG).await;
    let _ = host.lock("held", &session).await;
    let held = host.locks.try_insert(&key("held"), &nobody, LONG).await;
    assert_eq!(held, Err(Error::SessionUnknown(nobody)));
    assert_eq!(database.locks().await, 1);
}

#[tokio::test]
async fn after_a_close_a_new_session_gets_the_same_keys_under_greater_tokens() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let first = host.open(LONG).await;
    let before = [host.lock("a", &first).await, host.lock("b", &first).await];
    let _ = host.registry.close_session(&first).await.unwrap();

    let second = host.open(LONG).await;
    let after = [host.lock("a", &second).await, host.lock("b", &second).await];

    for (before, after) in before.iter().zip(&after) {
        assert!(after.token > before.token, "{after:?} after {before:?}");
    }
}
