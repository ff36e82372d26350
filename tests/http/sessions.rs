//! `/v1/sessions`

use std::time::Duration;

use serde_json::{Value, json};
use tenure::SessionId;
use uuid::Uuid;

use super::client::{SESSION_TTL, Server, millis};
use crate::support::database::TestDatabase;
use crate::support::host::Host;
use crate::support::odd::encoded;

fn random() -> SessionId {
    Uuid::new_v4().into()
}

fn session(answer: &Value) -> SessionId {
    answer["sessionId"].as_str().unwrap().parse().unwrap()
}

/// When a session's lease ends, in milliseconds since 1970, cut as the answers cut it.
async fn expiry(server: &Server, session: &SessionId) -> u64 {
    let millis: i64 = server
        .database
        .scalar(&format!(
            "SELECT floor(extract(epoch FROM expires_at) * 1000)::bigint
               FROM lock_session WHERE session_id = '{session}'"
        ))
        .await;
    u64::try_from(millis).unwrap()
}

#[tokio::test]
async fn an_opened_session_is_as_the_answer_says() {
    let server = Server::start().await;
    let body = json!({ "ownerId": "alice", "ttlMillis": 20_000 });

    let answer = server.post("/v1/sessions", body).await;

    let body = answer.is(201);
    assert_eq!(body["ownerId"], "alice");
    assert_eq!(body["ttlMillis"], 20_000);
    let id = session(body);
    assert_eq!(millis(&body["expiresAt"]), expiry(&server, &id).await);
    let owner: String = server
        .database
        .scalar("SELECT owner_id FROM lock_session")
        .await;
    assert_eq!(owner, "alice");
    let lease: i32 = server
        .database
        .scalar("SELECT extract(epoch FROM expires_at - created_at)::int FROM lock_session")
        .await;
    assert_eq!(lease, 20);
}

#[tokio::test]
async fn one_owner_may_have_many_sessions() {
    let server = Server::start().await;

    assert_ne!(server.open("alice").await, server.open("alice").await);

    assert_eq!(server.database.sessions().await, 2);
}

#[tokio::test]
async fn a_session_without_a_ttl_gets_the_default() {
    let server = Server::start().await;
    for body in [
        json!({ "ownerId": "alice" }),
        json!({ "ownerId": "alice", "ttlMillis": null }),
    ] {
        let answer = server.post("/v1/sessions", body).await;
        assert_eq!(answer.is(201)["ttlMillis"], SESSION_TTL);
    }
    assert_eq!(SESSION_TTL, 15_000);

    // And not because it is written down in the routes.
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let server = Server::of(database, host, |app| {
        app.session_ttl = Duration::from_secs(7);
    })
    .await;
    let answer = server
        .post("/v1/sessions", json!({ "ownerId": "alice" }))
        .await;
    assert_eq!(answer.is(201)["ttlMillis"], 7000);
    let beat = server.heartbeat(&session(&answer.body)).await;
    let body = beat.is(200);
    assert_eq!(
        millis(&body["expiresAt"]) - millis(&body["serverTime"]),
        7000
    );
}

/// Each with whether it is within bounds.
fn ttls() -> Vec<(Value, bool)> {
    let huge: Value = serde_json::from_str("18446744073709551616").unwrap();
    vec![
        (json!(1000), true),
        (json!(1001), true),
        (json!(59_999), true),
        (json!(60_000), true),
        (json!(999), false),
        (json!(60_001), false),
        (json!(0), false),
        (json!(-1), false),
        (json!(1.5), false),
        (json!(2000.5), false),
        (json!(2000.0), false),
        (json!(u32::MAX), false),
        (json!(u64::from(u32::MAX) + 2001), false),
        (json!(i64::MAX), false),
        (json!("x"), false),
        (json!("2000"), false),
        (json!(true), false),
        (json!([2000]), false),
        (json!({ "ms": 2000 }), false),
        (json!(u64::MAX), false),
        (json!(i64::MIN), false),
        (json!(1e300), false),
        (huge, false),
    ]
}

#[tokio::test]
async fn a_session_has_a_ttl_of_1_to_60_seconds() {
    let server = Server::start().await;
    for (ttl, fits) in ttls() {
        let body = json!({ "ownerId": "alice", "ttlMillis": ttl });
        let answer = server.post("/v1/sessions", body).await;
        if fits {
            assert_eq!(answer.is(201)["ttlMillis"], ttl);
        } else {
            answer.blames("ttlMillis");
        }
    }
    assert_eq!(server.database.sessions().await, 4);
}

#[tokio::test]
async fn a_heartbeat_has_a_ttl_of_1_to_60_seconds() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let target = format!("/v1/sessions/{session}/heartbeat");
    for (ttl, fits) in ttls() {
        let before = expiry(&server, &session).await;
        let answer = server.post(&target, json!({ "ttlMillis": ttl })).await;
        if fits {
            let body = answer.is(200);
            let lease = millis(&body["expiresAt"]) - millis(&body["serverTime"]);
            assert_eq!(ttl, lease);
        } else {
            answer.blames("ttlMillis");
            assert_eq!(expiry(&server, &session).await, before);
        }
    }
}

#[tokio::test]
async fn the_owner_may_be_in_the_header() {
    let server = Server::start().await;
    let open = || server.request("POST", "/v1/sessions");

    let alone = open().header("X-Owner-Id", "alice").send().await;
    assert_eq!(alone.is(201)["ownerId"], "alice");
    let with_ttl = open()
        .header("x-owner-id", "alice")
        .json(&json!({ "ttlMillis": 2000 }))
        .send()
        .await;
    assert_eq!(with_ttl.is(201)["ownerId"], "alice");
    assert_eq!(with_ttl.is(201)["ttlMillis"], 2000);
    let agreeing = open()
        .header("X-Owner-Id", "alice")
        .json(&json!({ "ownerId": "alice" }))
        .send()
        .await;
    assert_eq!(agreeing.is(201)["ownerId"], "alice");
    let wide = open().header("X-Owner-Id", "Zo\u{eb}").send().await;
    assert_eq!(wide.is(201)["ownerId"], "Zo\u{eb}");
    assert_eq!(server.database.sessions().await, 4);

    let disagreeing = open()
        .header("X-Owner-Id", "alice")
        .json(&json!({ "ownerId": "Alice" }))
        .send()
        .await;
    disagreeing.blames("ownerId");
    let not_utf8 = open().header("X-Owner-Id", *b"\xff\xfe").send().await;
    not_utf8.blames("X-Owner-Id");
    let twice = open()
        .header("X-Owner-Id", "alice")
        .header("X-Owner-Id", "bob")
        .send()
        .await;
    twice.blames("X-Owner-Id");
    assert_eq!(server.database.sessions().await, 4);
}

#[tokio::test]
async fn an_owner_is_1_to_64_characters_that_can_be_read() {
    let server = Server::start().await;
    let longest = "\u{1F512}".repeat(64);
    for owner in ["a", "Zo\u{eb} \u{4e2d}\u{6587}", " padded ", &longest] {
        let answer = server
            .post("/v1/sessions", json!({ "ownerId": owner }))
            .await;
        assert_eq!(answer.is(201)["ownerId"], owner);
    }
    for owner in [
        String::new(),
        "  ".to_owned(),
        "\u{3000}".to_owned(),
        "x".repeat(65),
        "x".repeat(5000),
        "a\0b".to_owned(),
        "a\nb".to_owned(),
        "a\u{7f}".to_owned(),
    ] {
        let body = json!({ "ownerId": owner });
        server.post("/v1/sessions", body).await.blames("ownerId");
        if owner.is_empty() || owner.starts_with('x') {
            let request = server.request("POST", "/v1/sessions");
            let answer = request.header("X-Owner-Id", owner).send().await;
            answer.blames("ownerId");
        }
    }
    server
        .post("/v1/sessions", json!({}))
        .await
        .blames("ownerId");
    let none = server.request("POST", "/v1/sessions").send().await;
    none.blames("ownerId");
    assert_eq!(server.database.sessions().await, 4);
}

#[tokio::test]
async fn a_heartbeat_moves_the_expiry() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let target = format!("/v1/sessions/{session}/heartbeat");

    for (body, ttl) in [
        (json!({ "ttlMillis": 30_000 }), 30_000),
        (json!({}), SESSION_TTL),
        (json!({ "ttlMillis": 60_000 }), 60_000),
    ] {
        let answer = server.post(&target, body).await;
        let body = answer.is(200);
        assert_eq!(body["sessionId"], session.to_string());
        let expires_at = millis(&body["expiresAt"]);
        assert_eq!(expires_at, expiry(&server, &session).await);
        assert_eq!(expires_at - millis(&body["serverTime"]), ttl);
        assert!(body.get("heldLockCount").is_none());
    }
    // Without a body.
    server.heartbeat(&session).await.is(200);
}

#[tokio::test]
async fn a_heartbeat_counts_the_locks_if_asked_to() {
    let server = Server::start().await;
    let (session, other) = (server.open("alice").await, server.open("bob").await);
    let beat = async |query: &str| {
        let target = format!("/v1/sessions/{session}/heartbeat{query}");
        server.request("POST", &target).send().await
    };

    assert_eq!(beat("?count=true").await.is(200)["heldLockCount"], 0);
    let _ = server.lock("a", &session).await;
    let _ = server.lock("b", &session).await;
    let _ = server.lock("c", &other).await;
    assert_eq!(beat("?count=true").await.is(200)["heldLockCount"], 2);
    for query in ["?count=false", "?", ""] {
        let answer = beat(query).await;
        assert!(answer.is(200).get("heldLockCount").is_none());
    }
    for query in [
        "?count=1",
        "?count=",
        "?count",
        "?count=TRUE",
        "?count=%ff",
        "?count=true&count=true",
        "?counts=true",
        "?count=true&x=1",
    ] {
        beat(query).await.blames("query");
    }
}

#[tokio::test]
async fn a_session_that_never_was_is_unknown() {
    let server = Server::start().await;
    let nobody = random();

    let beat = server.heartbeat(&nobody).await;
    let body = beat.is_error(404, "SESSION_UNKNOWN");
    assert!(body["message"].as_str().unwrap().contains(&*nobody));
    server.close(&nobody).await.is_error(404, "SESSION_UNKNOWN");
    let locks = server.get(&format!("/v1/sessions/{nobody}/locks")).await;
    assert_eq!(locks.is(200)["keys"], json!([]));
    assert_eq!(locks.is(200)["heldLockCount"], 0);
    assert_eq!(server.database.sessions().await, 0);
}

#[tokio::test]
async fn an_expired_session_is_gone_and_stays_gone() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let _ = server.lock("a", &session).await;
    server.database.expire(&session).await;

    for _ in 0..2 {
        let beat = server.heartbeat(&session).await;
        beat.is_error(410, "SESSION_EXPIRED");
    }
    let beat = server
        .request(
            "POST",
            &format!("/v1/sessions/{session}/heartbeat?count=true"),
        )
        .json(&json!({ "ttlMillis": 60_000 }))
        .send()
        .await;
    beat.is_error(410, "SESSION_EXPIRED");
    let acquired = server.acquire("b", &session).await;
    acquired.is_error(410, "SESSION_EXPIRED");

    // The reaper takes the row, by which the two are told apart.
    let reaped = server.host.locks.reap_expired().await.unwrap();
    assert_eq!(reaped.sessions, 1);
    let beat = server.heartbeat(&session).await;
    beat.is_error(404, "SESSION_UNKNOWN");
    let acquired = server.acquire("b", &session).await;
    acquired.is_error(404, "SESSION_UNKNOWN");
    assert_eq!(server.database.locks().await, 0);
}

#[tokio::test]
async fn an_expired_session_can_be_closed() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    server.database.expire(&session).await;

    server.close(&session).await.is(204);

    server
        .close(&session)
        .await
        .is_error(404, "SESSION_UNKNOWN");
}

#[tokio::test]
async fn a_closed_session_is_unknown_and_its_locks_are_free() {
    let server = Server::start().await;
    let (session, other) = (server.open("alice").await, server.open("bob").await);
    let before = server.lock("a", &session).await;
    let token = server.lock("b", &session).await;

    server.close(&session).await.is(204);

    server
        .close(&session)
        .await
        .is_error(404, "SESSION_UNKNOWN");
    server
        .heartbeat(&session)
        .await
        .is_error(404, "SESSION_UNKNOWN");
    server
        .acquire("a", &session)
        .await
        .is_error(404, "SESSION_UNKNOWN");
    server.renew("b", token).await.is_error(409, "LOCK_LOST");
    let locks = server.get(&format!("/v1/sessions/{session}/locks")).await;
    assert_eq!(locks.is(200)["heldLockCount"], 0);
    assert!(server.lock("a", &other).await > before);
}

#[tokio::test]
async fn a_session_id_is_a_uuid_of_36_characters() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let simple = session.uuid().simple().to_string();
    let long = "x".repeat(5000);
    for id in [
        "x",
        &simple,
        &format!("%7B{}%7D", &simple),
        &format!("%7B{session}%7D"),
        &format!("urn:uuid:{session}"),
        &format!("%20{session}"),
        &format!("{session}%0A"),
        &format!("{session}0"),
        &session[..35],
        &session.replace('-', "_"),
        &session.replacen('-', "", 1).replace('-', "--"),
        &format!("{session}%00"),
        &format!("{session}%20"),
        "%F0%9F%94%92",
        &long,
    ] {
        let beat = format!("/v1/sessions/{id}/heartbeat");
        server.request("POST", &beat).send().await.blames("id");
        server
            .delete(&format!("/v1/sessions/{id}"))
            .await
            .blames("id");
        server
            .get(&format!("/v1/sessions/{id}/locks"))
            .await
            .blames("id");
    }

    // Upper case is the same id, and so is one whose characters are encoded.
    let upper = session.to_uppercase();
    for id in [&upper, &encoded(&session)] {
        let beat = format!("/v1/sessions/{id}/heartbeat");
        let beat = server.request("POST", &beat).send_as_is().await;
        beat.is(200);
    }
    server
        .delete(&format!("/v1/sessions/{upper}"))
        .await
        .is(204);
}

#[tokio::test]
async fn the_locks_of_a_session_are_listed_in_order() {
    let server = Server::start().await;
    let (session, other) = (server.open("alice").await, server.open("bob").await);
    for key in ["c", "a", "b"] {
        let _ = server.lock(key, &session).await;
    }
    let _ = server.lock("d", &other).await;

    let answer = server.get(&format!("/v1/sessions/{session}/locks")).await;

    let body = answer.is(200);
    assert_eq!(body["sessionId"], session.to_string());
    assert_eq!(body["keys"], json!(["a", "b", "c"]));
    assert_eq!(body["heldLockCount"], 3);
}

#[tokio::test]
async fn a_list_that_is_cut_short_says_so() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let lock = |from: u32, to: u32| {
        format!(
            "INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, expires_at)
             SELECT 'k' || to_char(n, 'FM000'), 'alice', '{session}',
                    nextval('fencing_token_seq'), now() + interval '1 minute'
               FROM generate_series({from}, {to}) AS n"
        )
    };
    let target = format!("/v1/sessions/{session}/locks");

    server.database.execute(&lock(1, 100)).await;
    let answer = server.get(&target).await;
    assert_eq!(answer.is(200)["keys"].as_array().unwrap().len(), 100);
    assert_eq!(answer.is(200)["heldLockCount"], 100);

    server.database.execute(&lock(101, 250)).await;
    let answer = server.get(&target).await;
    let keys = answer.is(200)["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 100);
    assert_eq!(keys[0], "k001");
    assert_eq!(keys[99], "k100");
    assert_eq!(answer.is(200)["heldLockCount"], 250);
}
