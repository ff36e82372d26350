//! Contention, wherever it comes from, is 503 and may be tried again.

use serde_json::json;

use super::client::{Answer, Server};

#[track_caller]
fn is_contention(answer: &Answer) {
    let body = answer.is_error(503, "CONTENTION");
    assert_eq!(body["retrySafe"], true);
    let wait = body["retryAfterMillis"].as_u64().unwrap();
    assert!((1..=1000).contains(&wait), "{wait}");
    // In whole seconds, which is what this header has.
    assert_eq!(answer.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_session_whose_row_another_transaction_holds_is_contention() {
    let server = Server::hasty().await;
    let session = server.open("alice").await;
    let _ = server.lock("a", &session).await;
    let holder = server.database.hold(&session).await;

    is_contention(&server.heartbeat(&session).await);
    is_contention(&server.close(&session).await);
    is_contention(&server.acquire("b", &session).await);

    // The same requests, once it is free.
    holder.batch_execute("ROLLBACK").await.unwrap();
    server.heartbeat(&session).await.is(200);
    let _ = server.lock("b", &session).await;
    server.close(&session).await.is(204);
    assert_eq!(server.database.locks().await, 0);
}

#[tokio::test]
async fn a_lock_whose_row_another_transaction_holds_is_contention() {
    let server = Server::hasty().await;
    let session = server.open("alice").await;
    let token = server.lock("a", &session).await;
    let reason = json!({ "operator": "carol", "reason": "stuck for hours" });
    let holder = server
        .database
        .begin("SELECT FROM lock_entry WHERE lock_key = 'a' FOR UPDATE")
        .await;

    is_contention(&server.acquire("a", &session).await);
    is_contention(&server.renew("a", token).await);
    is_contention(&server.release("a", token).await);
    is_contention(&server.post("/v1/locks/a/revoke", reason.clone()).await);
    is_contention(&server.close(&session).await);
    // Whoever only looks is not in anybody's way.
    assert_eq!(server.get("/v1/locks/a").await.is(200)["held"], true);

    holder.batch_execute("ROLLBACK").await.unwrap();
    server.renew("a", token).await.is(200);
    server.post("/v1/locks/a/revoke", reason).await.is(200);
    assert_eq!(server.database.locks().await, 0);
}

#[tokio::test]
async fn every_route_can_meet_contention() {
    let server = Server::hasty().await;
    let session = server.open("alice").await;
    let locks = format!("/v1/sessions/{session}/locks");
    let reason = json!({ "operator": "carol", "reason": "stuck for hours" });
    let holder = server
        .database
        .begin("LOCK TABLE lock_session, lock_entry, lock_revocation IN ACCESS EXCLUSIVE MODE")
        .await;

    let body = json!({ "ownerId": "alice" });
    is_contention(&server.post("/v1/sessions", body).await);
    is_contention(&server.heartbeat(&session).await);
    is_contention(&server.get(&locks).await);
    is_contention(&server.close(&session).await);
    is_contention(&server.acquire("a", &session).await);
    is_contention(&server.renew("a", 1).await);
    is_contention(&server.release("a", 1).await);
    is_contention(&server.get("/v1/locks/a").await);
    is_contention(&server.post("/v1/locks/a/revoke", reason).await);
    server.get("/health/ready").await.is(200);

    holder.batch_execute("ROLLBACK").await.unwrap();
    server.get(&locks).await.is(200);
    assert_eq!(server.database.sessions().await, 1);
}

/// The count is a second read. Where it fails, so does the request, although the session
/// has been kept alive: a retry is safe, and a count that is not there is none.
#[tokio::test]
async fn a_count_that_fails_is_contention_and_the_session_lives() {
    let server = Server::hasty().await;
    let session = server.open("alice").await;
    let target = format!("/v1/sessions/{session}/heartbeat?count=true");
    let holder = server
        .database
        .begin("LOCK TABLE lock_entry IN ACCESS EXCLUSIVE MODE")
        .await;

    is_contention(&server.request("POST", &target).send().await);
    is_contention(&server.get(&format!("/v1/sessions/{session}/locks")).await);
    server.heartbeat(&session).await.is(200);

    holder.batch_execute("ROLLBACK").await.unwrap();
    let answer = server.request("POST", &target).send().await;
    assert_eq!(answer.is(200)["heldLockCount"], 0);
}
