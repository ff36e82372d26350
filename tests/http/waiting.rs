//! Callers that wait for a lock.

use futures_util::future::join;
use serde_json::{Value, json};
use tenure::SessionId;
use tokio::io::AsyncWriteExt;

use super::client::{Answer, Request, Server};
use crate::support::database::Gate;

/// Longer than any test takes. Whoever waits so long waits for what the test does.
const FOR_LONG: u64 = 30_000;

fn waiting<'a>(server: &'a Server, session: &SessionId, wait: u64) -> Request<'a> {
    let body = json!({ "sessionId": session.to_string(), "waitMillis": wait });
    server.request("POST", "/v1/locks/a/acquire").json(&body)
}

/// The answer to a caller who waits for a lock while this happens.
async fn meanwhile(
    server: &Server,
    session: &SessionId,
    happens: impl Future<Output = ()>,
) -> Answer {
    let since = server.now().await;
    let (answer, ()) = join(waiting(server, session, FOR_LONG).send(), async {
        server.until_a_caller_waits(&since).await;
        happens.await;
    })
    .await;
    answer
}

fn token(granted: &Answer) -> i64 {
    granted.is(200)["fencingToken"].as_i64().unwrap()
}

#[tokio::test]
async fn a_waiter_is_granted_the_lock_that_its_holder_releases() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let before = server.lock("a", &alice).await;

    let answer = meanwhile(&server, &bob, async {
        server.release("a", before).await.is(204);
    })
    .await;

    assert!(token(&answer) > before);
    assert_eq!(answer.body["ownerId"], "bob");
}

#[tokio::test]
async fn a_waiter_is_granted_the_lock_whose_session_is_closed_or_dies() {
    let server = Server::start().await;
    let bob = server.open("bob").await;

    let alice = server.open("alice").await;
    let before = server.lock("a", &alice).await;
    let closed = meanwhile(&server, &bob, async {
        server.close(&alice).await.is(204);
    })
    .await;
    assert!(token(&closed) > before);

    let carol = server.open("carol").await;
    let _ = meanwhile(&server, &carol, async {
        server.database.expire(&bob).await;
    })
    .await
    .is(200);
    server
        .heartbeat(&bob)
        .await
        .is_error(404, "SESSION_UNKNOWN");
}

#[tokio::test]
async fn a_waiter_is_granted_the_lock_that_is_revoked() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let _ = server.lock("a", &alice).await;
    let mut floor = Value::Null;

    let answer = meanwhile(&server, &bob, async {
        let body = json!({ "operator": "carol", "reason": "stuck for hours" });
        let revoked = server.post("/v1/locks/a/revoke", body).await;
        floor = revoked.is(200)["newTokenFloor"].clone();
    })
    .await;

    assert!(token(&answer) > floor.as_i64().unwrap());
}

#[tokio::test]
async fn a_waiter_that_waits_in_vain_is_told_who_has_the_lock() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let token = server.lock("a", &alice).await;

    for wait in [0, 1, 50] {
        let answer = waiting(&server, &bob, wait).send().await;
        let body = answer.is_error(409, "LOCK_CONTENDED");
        assert_eq!(body["details"]["holder"]["ownerId"], "alice");
        assert_eq!(body["retrySafe"], false);
    }

    server.renew("a", token).await.is(200);
    assert_eq!(server.database.locks().await, 1);
}

#[tokio::test]
async fn a_caller_that_does_not_wait_tries_once() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let _ = server.lock("a", &alice).await;
    server.database.count_attempts().await;

    let answer = waiting(&server, &bob, 0).send().await;
    answer.is_error(409, "LOCK_CONTENDED");
    assert_eq!(server.database.attempts().await, 1);

    // One that waits has a last try after its wait.
    let answer = waiting(&server, &bob, 1).send().await;
    answer.is_error(409, "LOCK_CONTENDED");
    assert!(server.database.attempts().await > 2);
}

#[tokio::test]
async fn a_waiter_whose_session_dies_is_told_so() {
    let server = Server::start().await;
    let alice = server.open("alice").await;
    let _ = server.lock("a", &alice).await;

    let bob = server.open("bob").await;
    let answer = meanwhile(&server, &bob, server.database.expire(&bob)).await;
    answer.is_error(410, "SESSION_EXPIRED");

    let bob = server.open("bob").await;
    let answer = meanwhile(&server, &bob, async {
        server.close(&bob).await.is(204);
    })
    .await;
    answer.is_error(404, "SESSION_UNKNOWN");
}

#[tokio::test]
async fn a_waiter_that_goes_away_leaves_nothing_behind() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let token = server.lock("a", &alice).await;
    let mut connection = server.connect().await;
    let request = waiting(&server, &bob, FOR_LONG).bytes();
    let since = server.now().await;
    connection.write_all(&request).await.unwrap();
    server.until_a_caller_waits(&since).await;
    server.until_in_flight(1).await;

    drop(connection);

    server.until_given_up(1).await;
    server.database.until_hosts_are_idle().await;
    server.release("a", token).await.is(204);
    assert_eq!(server.get("/v1/locks/a").await.is(200)["held"], false);
    let locks = server.get(&format!("/v1/sessions/{bob}/locks")).await;
    assert_eq!(locks.is(200)["heldLockCount"], 0);
    assert!(server.lock("a", &alice).await > token);
}

/// The worst moment: the grant's statement is running.
#[tokio::test]
async fn a_caller_that_goes_away_in_the_middle_of_its_grant_leaves_nothing_behind() {
    let server = Server::patient().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let gate = Gate::shut(
        &server.database,
        "AFTER INSERT ON lock_entry FOR EACH ROW WHEN (NEW.owner_id = 'bob')",
    )
    .await;
    let mut connection = server.connect().await;
    let request = waiting(&server, &bob, 0).bytes();
    connection.write_all(&request).await.unwrap();
    server.database.until_somebody_waits(1).await;

    drop(connection);

    // The gate is still shut, so it waits no more because it was cancelled.
    server.database.until_somebody_waits(0).await;
    server.until_given_up(1).await;
    gate.open().await;
    server.database.until_hosts_are_idle().await;
    assert_eq!(server.database.locks().await, 0);
    let _ = server.lock("a", &alice).await;
}
