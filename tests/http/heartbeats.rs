//! `/v1/heartbeats`

use serde_json::{Value, json};
use tenure::SessionId;
use uuid::Uuid;

use super::client::{Server, millis};

async fn beat(server: &Server, ids: &[String]) -> Vec<Value> {
    let answer = server
        .post("/v1/heartbeats", json!({ "sessionIds": ids }))
        .await;
    let beats = answer.is(200)["sessions"].as_array().unwrap().clone();
    assert_eq!(beats.len(), ids.len());
    beats
}

#[tokio::test]
async fn each_session_has_its_answer_in_order() {
    let server = Server::start().await;
    let alive = server.open("alice").await;
    let expired = server.open("bob").await;
    server.database.expire(&expired).await;
    let unknown = SessionId::from(Uuid::new_v4());
    let ids = [&expired, &alive, &unknown, &alive].map(ToString::to_string);

    let beats = beat(&server, &ids).await;

    assert_eq!(beats[0], json!({ "outcome": "dead" }));
    assert_eq!(beats[1]["outcome"], "alive");
    assert_eq!(beats[2], json!({ "outcome": "dead" }));
    // Named twice, and kept alive once.
    assert_eq!(beats[3], beats[1]);
    let expiry: i64 = server
        .database
        .scalar(&format!(
            "SELECT floor(extract(epoch FROM expires_at) * 1000)::bigint
               FROM lock_session WHERE session_id = '{alive}'"
        ))
        .await;
    assert_eq!(
        millis(&beats[1]["expiresAt"]),
        u64::try_from(expiry).unwrap()
    );
}

#[tokio::test]
async fn a_fault_of_one_costs_the_others_nothing() {
    let server = Server::hasty().await;
    let (held, free) = (server.open("alice").await, server.open("bob").await);
    let _holder = server.database.hold(&held).await;
    let ids = [held.to_string(), "no id".to_owned(), free.to_string()];

    let beats = beat(&server, &ids).await;

    assert_eq!(beats[0]["outcome"], "failed");
    assert_eq!(beats[0]["code"], "CONTENTION");
    assert_eq!(beats[0]["retrySafe"], true);
    assert_eq!(beats[1]["outcome"], "failed");
    assert_eq!(beats[1]["code"], "VALIDATION_FAILED");
    assert_eq!(beats[1]["retrySafe"], false);
    assert_eq!(beats[2]["outcome"], "alive");
}

#[tokio::test]
async fn a_request_has_one_to_a_thousand_sessions() {
    let server = Server::start().await;
    let session = server.open("alice").await.to_string();
    let mut ids = vec![session.clone(); 1000];
    for id in &mut ids[900..] {
        *id = Uuid::new_v4().to_string();
    }

    let beats = beat(&server, &ids).await;

    assert_eq!(beats[0]["outcome"], "alive");
    assert!(beats[..900].iter().all(|beat| *beat == beats[0]));
    assert!(beats[900..].iter().all(|beat| beat["outcome"] == "dead"));
    for how_many in [0, 1001] {
        let ids = vec![session.clone(); how_many];
        let answer = server
            .post("/v1/heartbeats", json!({ "sessionIds": ids }))
            .await;
        let body = answer.is_error(400, "VALIDATION_FAILED");
        assert_eq!(body["details"]["field"], "sessionIds");
    }
    let bad_ttl = json!({ "sessionIds": [session], "ttlMillis": 999 });
    let answer = server.post("/v1/heartbeats", bad_ttl).await;
    let body = answer.is_error(400, "VALIDATION_FAILED");
    assert_eq!(body["details"]["field"], "ttlMillis");
}
