//! Policies that say no, and policies that misbehave, as a client sees them.

use serde_json::json;
use tenure::SessionId;
use uuid::Uuid;

use super::client::Server;
use crate::support::host::LONG;
use crate::support::policies;

/// A server under a fixture policy, with a session that was opened past it.
async fn under(policy: &[u8]) -> (Server, SessionId) {
    let server = Server::with_policy(policy).await;
    let good = crate::support::host::Host::new(&server.database);
    let session = good.open(LONG).await;
    (server, session)
}

#[tokio::test]
async fn a_refusal_is_forbidden() {
    let server = Server::with_policy(policies::REFUSES_TOO_LATE).await;

    let answer = server
        .post("/v1/sessions", json!({ "ownerId": "alice" }))
        .await;

    let body = answer.is_error(403, "REFUSED");
    assert_eq!(body["message"], "on second thoughts");
    assert_eq!(body["retrySafe"], false);
    assert_eq!(server.database.sessions().await, 0);
}

#[tokio::test]
async fn a_violation_is_the_policys_failure() {
    for policy in [
        policies::TRUE_ON_ZERO_ROWS,
        policies::INSERTS_DURING_HEARTBEAT,
    ] {
        let server = Server::with_policy(policy).await;
        let answer = server.heartbeat(&Uuid::new_v4().into()).await;
        answer.is_error(500, "POLICY_FAILED");
        assert_eq!(server.host.registry.policy().counts().violations, 1);
        assert_eq!(server.database.sessions().await, 0);
    }
    for policy in [
        policies::ACTS_ON_ANOTHER_SESSION,
        policies::ANSWERS_WITHOUT_ASKING,
        policies::RUNS_STATEMENT_TWICE,
        policies::LOOPS_FOR_EVER,
        policies::EATS_MEMORY,
        policies::RECURSES_WITHOUT_END,
        policies::GROWS_TABLES,
        policies::SENDS_TOO_MUCH,
        policies::TRAPS,
    ] {
        let (server, session) = under(policy).await;
        let answer = server.heartbeat(&session).await;
        answer.is_error(500, "POLICY_FAILED");
        assert_eq!(server.database.sessions().await, 1);
    }
}

#[tokio::test]
async fn a_session_or_a_count_that_is_made_up_is_the_policys_failure() {
    let server = Server::with_policy(policies::MAKES_UP_SESSION_ID).await;
    let body = json!({ "ownerId": "alice" });
    let answer = server.post("/v1/sessions", body).await;
    answer.is_error(500, "POLICY_FAILED");
    assert_eq!(server.database.sessions().await, 0);

    let (server, session) = under(policies::INVENTS_LOCK_COUNT).await;
    let _ = server.lock("a", &session).await;
    let locks = server.get(&format!("/v1/sessions/{session}/locks")).await;
    locks.is_error(500, "POLICY_FAILED");
    let closed = server.close(&session).await;
    closed.is_error(500, "POLICY_FAILED");
}

#[tokio::test]
async fn a_live_session_that_the_policy_calls_dead_is_unknown() {
    let (server, session) = under(policies::FALSE_ON_ONE_ROW).await;
    let _ = server.lock("a", &session).await;

    let answer = server.heartbeat(&session).await;

    answer.is_error(404, "SESSION_UNKNOWN");
    assert_eq!(server.database.sessions().await, 0);
    assert_eq!(server.database.locks().await, 0);
}

#[tokio::test]
async fn a_fault_that_the_policy_hides_is_that_fault() {
    let (server, session) = under(policies::FALSE_ON_FAULT).await;
    let holder = server.database.hold(&session).await;

    server.heartbeat(&session).await.is_error(503, "CONTENTION");

    holder.batch_execute("ROLLBACK").await.unwrap();
    server.heartbeat(&session).await.is(200);
    server
        .database
        .execute("ALTER TABLE lock_session RENAME TO away")
        .await;
    server
        .heartbeat(&session)
        .await
        .is_error(500, "STORE_FAILED");

    let (server, session) = under(policies::TRUE_ON_FAULT).await;
    let _holder = server.database.hold(&session).await;
    server
        .heartbeat(&session)
        .await
        .is_error(500, "POLICY_FAILED");
}

#[tokio::test]
async fn a_statement_that_the_store_rejects_is_the_stores_failure() {
    let (server, session) = under(policies::ASKS_FOR_NONSENSE).await;

    let answer = server.heartbeat(&session).await;

    answer.is_error(500, "STORE_FAILED");
    assert_eq!(answer.body["retrySafe"], false);
}

#[tokio::test]
async fn each_fault_of_the_store_is_contention_or_its_failure() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let fail = async |code: &str| {
        server
            .database
            .execute(&format!(
                "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'it failed' USING ERRCODE = '{code}'; END $$;
                 CREATE OR REPLACE TRIGGER fail BEFORE INSERT OR UPDATE ON lock_session
                 FOR EACH ROW EXECUTE FUNCTION fail();
                 CREATE OR REPLACE TRIGGER fail BEFORE INSERT ON lock_entry
                 FOR EACH ROW EXECUTE FUNCTION fail()"
            ))
            .await;
    };
    for code in [
        "40001", "40P01", "55P03", "57014", "08000", "08006", "57P01", "57P03",
    ] {
        fail(code).await;
        let body = json!({ "ownerId": "alice" });
        let opened = server.post("/v1/sessions", body).await;
        for answer in [
            opened,
            server.heartbeat(&session).await,
            server.acquire("a", &session).await,
        ] {
            let body = answer.is_error(503, "CONTENTION");
            assert!(body["message"].as_str().unwrap().contains("it failed"));
        }
    }
    for code in ["23503", "23514", "22001", "42501", "53100", "XX000"] {
        fail(code).await;
        let body = json!({ "ownerId": "alice" });
        let opened = server.post("/v1/sessions", body).await;
        for answer in [
            opened,
            server.heartbeat(&session).await,
            server.acquire("a", &session).await,
        ] {
            let body = answer.is_error(500, "STORE_FAILED");
            assert!(body["message"].as_str().unwrap().contains("it failed"));
        }
    }
    assert_eq!(server.database.sessions().await, 1);
    assert_eq!(server.database.locks().await, 0);
}

/// The database's text is passed on, but not at any length.
#[tokio::test]
async fn a_long_message_is_cut() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    server
        .database
        .execute(
            "CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION '%', repeat('no! ', 25000); END $$;
             CREATE TRIGGER complain BEFORE UPDATE ON lock_session
             EXECUTE FUNCTION complain()",
        )
        .await;

    let answer = server.heartbeat(&session).await;

    let body = answer.is_error(500, "STORE_FAILED");
    let message = body["message"].as_str().unwrap();
    assert!(message.contains("no! no!") && message.len() < 1100);
}
