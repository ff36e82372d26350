//! `/v1/locks`

use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::client::{Answer, LOCK_TTL, Server, millis};
use crate::support::database::TestDatabase;
use crate::support::host::Host;

/// What is no token, each as a header's value.
const NO_TOKENS: [&[u8]; 16] = [
    b"",
    b"0",
    b"-1",
    b"+1",
    b"x",
    b"1x",
    b"1.0",
    b"1e3",
    b"0x1",
    b"1,2",
    b"\"1\"",
    b"1 2",
    b"9223372036854775808",
    b"99999999999999999999999999999999",
    b"-9223372036854775808",
    b"\xd9\xa1",
];

fn lease(answer: &Value) -> u64 {
    millis(&answer["expiresAt"]) - millis(&answer["acquiredAt"])
}

#[track_caller]
fn is_held_by(answer: &Answer, owner: &str) {
    let body = answer.is_error(409, "LOCK_CONTENDED");
    let holder = body["details"]["holder"].as_object().unwrap();
    assert_eq!(holder["ownerId"], owner);
    assert!(millis(&holder["expiresAt"]) > millis(&holder["acquiredAt"]));
    // Who knows the session's id or the token can do with them what the holder can.
    assert_eq!(holder.len(), 3, "{holder:?}");
}

#[tokio::test]
async fn a_free_lock_is_granted() {
    let server = Server::start().await;
    let session = server.open("alice").await;

    let answer = server.acquire("a", &session).await;

    let body = answer.is(200);
    assert_eq!(body["key"], "a");
    assert_eq!(body["sessionId"], session.to_string());
    assert_eq!(body["ownerId"], "alice");
    let token: i64 = server
        .database
        .scalar("SELECT fencing_token FROM lock_entry WHERE lock_key = 'a'")
        .await;
    assert_eq!(body["fencingToken"], token);
    assert_eq!(lease(body), LOCK_TTL);
    assert_eq!(LOCK_TTL, 30_000);
}

#[tokio::test]
async fn the_default_lease_of_a_lock_can_be_set() {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let server = Server::of(database, host, |app| {
        app.lock_ttl = Duration::from_secs(11);
    })
    .await;
    let session = server.open("alice").await;

    let answer = server.acquire("a", &session).await;

    assert_eq!(lease(answer.is(200)), 11_000);
}

#[tokio::test]
async fn a_lock_that_another_has_is_contended() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let token = server.lock("a", &alice).await;

    is_held_by(&server.acquire("a", &bob).await, "alice");

    // Its own session is granted it again, under a new token.
    let again = server.lock("a", &alice).await;
    assert!(again > token);
    server.release("a", token).await.is_error(409, "LOCK_LOST");
    is_held_by(&server.acquire("a", &bob).await, "alice");
    server.release("a", again).await.is(204);
    assert!(server.lock("a", &bob).await > again);
}

#[tokio::test]
async fn a_lapsed_lock_and_that_of_a_dead_session_are_free() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);

    let token = server.lock("a", &alice).await;
    server.database.lapse("a").await;
    server.renew("a", token).await.is_error(409, "LOCK_LOST");
    assert!(server.lock("a", &bob).await > token);

    let token = server.lock("b", &alice).await;
    server.database.expire(&alice).await;
    server.renew("b", token).await.is_error(409, "LOCK_LOST");
    assert_eq!(server.get("/v1/locks/b").await.is(200)["held"], false);
    assert!(server.lock("b", &bob).await > token);
}

#[tokio::test]
async fn only_a_session_that_lives_gets_a_lock() {
    let server = Server::start().await;
    let nobody = Uuid::new_v4().into();
    server
        .acquire("a", &nobody)
        .await
        .is_error(404, "SESSION_UNKNOWN");
    let session = server.open("alice").await;
    server.database.expire(&session).await;
    server
        .acquire("a", &session)
        .await
        .is_error(410, "SESSION_EXPIRED");

    let long = "x".repeat(5000);
    for id in [
        json!("x"),
        json!(""),
        json!(long),
        json!(session.uuid().simple().to_string()),
        json!(format!("{session}\0")),
        json!(format!("{{{session}}}")),
        json!(1),
        json!(null),
        json!([session.to_string()]),
    ] {
        let answer = server
            .post("/v1/locks/a/acquire", json!({ "sessionId": id }))
            .await;
        answer.blames("sessionId");
    }
    let answer = server.post("/v1/locks/a/acquire", json!({})).await;
    let body = answer.is_error(400, "VALIDATION_FAILED");
    assert!(body["message"].as_str().unwrap().contains("sessionId"));
    assert_eq!(server.database.locks().await, 0);
}

#[tokio::test]
async fn a_lock_has_a_lease_of_1_second_to_24_hours() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let token = server.lock("renewed", &session).await;
    let lease_of = "SELECT extract(epoch FROM expires_at - now())::float8 FROM lock_entry
                     WHERE lock_key = 'renewed'";
    for (ttl, fits) in [
        (json!(1000), true),
        (json!(1001), true),
        (json!(60_001), true),
        (json!(86_399_999), true),
        (json!(86_400_000), true),
        (json!(999), false),
        (json!(86_400_001), false),
        (json!(0), false),
        (json!(-1), false),
        (json!(1.5), false),
        (json!("x"), false),
        (json!(u32::MAX), false),
        (json!(i64::MAX), false),
        (json!(u64::MAX), false),
        (json!(1e300), false),
    ] {
        let body = json!({ "sessionId": session.to_string(), "ttlMillis": ttl });
        let acquired = server.post("/v1/locks/a/acquire", body).await;
        // So that no renewal comes too late.
        server
            .database
            .execute(
                "UPDATE lock_entry SET expires_at = now() + interval '48 hours'
                  WHERE lock_key = 'renewed'",
            )
            .await;
        let renewed = server
            .request("POST", "/v1/locks/renewed/renew")
            .header("X-Fencing-Token", token.to_string())
            .json(&json!({ "ttlMillis": ttl }))
            .send()
            .await;
        if fits {
            assert_eq!(lease(acquired.is(200)), ttl);
            renewed.is(200);
            let left: f64 = server.database.scalar(lease_of).await;
            assert!(left <= ttl.as_f64().unwrap() / 1000.0, "{left} {ttl}");
        } else {
            acquired.blames("ttlMillis");
            renewed.blames("ttlMillis");
        }
    }
}

#[tokio::test]
async fn a_caller_waits_at_most_30_seconds() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    for (wait, fits) in [
        (json!(0), true),
        (json!(30_000), true),
        (json!(null), true),
        (json!(30_001), false),
        (json!(-1), false),
        (json!(0.5), false),
        (json!("1"), false),
        (json!(u64::MAX), false),
    ] {
        let body = json!({ "sessionId": session.to_string(), "waitMillis": wait });
        let answer = server.post("/v1/locks/a/acquire", body).await;
        if fits {
            answer.is(200);
        } else {
            answer.blames("waitMillis");
        }
    }
}

#[tokio::test]
async fn a_key_is_1_to_128_characters_of_a_few() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let longest = "k".repeat(128);
    for (sent, key) in [
        ("a", "a"),
        ("aZ09:._-", "aZ09:._-"),
        ("orders%3A42", "orders:42"),
        ("%61%62", "ab"),
        ("..", ".."),
        (".", "."),
        ("-", "-"),
        ("acquire", "acquire"),
        (&longest, &longest),
    ] {
        let target = format!("/v1/locks/{sent}");
        let body = json!({ "sessionId": session.to_string() });
        let granted = server
            .request("POST", &format!("{target}/acquire"))
            .json(&body)
            .send_as_is()
            .await;
        assert_eq!(granted.is(200)["key"], key);
        let state = server.request("GET", &target).send_as_is().await;
        assert_eq!(state.is(200)["key"], key);
        assert_eq!(state.is(200)["held"], true);
        let token = granted.body["fencingToken"].to_string();
        let released = server
            .request("DELETE", &target)
            .header("X-Fencing-Token", token)
            .send_as_is()
            .await;
        released.is(204);
    }

    let too_long = "k".repeat(129);
    let far_too_long = "k".repeat(10_000);
    for sent in [
        "a%20b",
        "a+b",
        "a%2Fb",
        "%2e%2e%2f",
        "a%00",
        "%00",
        "%0d%0a",
        "%C3%A9",
        "%F0%9F%94%92",
        "%25",
        "a%2525",
        "a~b",
        "a*",
        "a;b",
        "a@b",
        "'%3B%20DROP%20TABLE%20lock_entry",
        "a%",
        "a%2",
        "a%zz",
        "%%",
        &too_long,
        &far_too_long,
    ] {
        for (method, suffix) in [
            ("POST", "/acquire"),
            ("POST", "/renew"),
            ("POST", "/revoke"),
            ("GET", ""),
            ("DELETE", ""),
        ] {
            let mut request = server
                .request(method, &format!("/v1/locks/{sent}{suffix}"))
                .header("X-Fencing-Token", "1");
            request = match suffix {
                "/acquire" => request.json(&json!({ "sessionId": session.to_string() })),
                "/revoke" => request.json(&json!({ "operator": "bob", "reason": "it is stuck" })),
                _ => request,
            };
            request.send_as_is().await.blames("key");
        }
    }
    // What decodes to no text at all has no key to blame.
    for sent in ["%ff", "a%C3", "%ED%A0%80"] {
        let target = format!("/v1/locks/{sent}");
        let answer = server.request("GET", &target).send_as_is().await;
        answer.blames("path");
    }
    // An empty key is none, or at the path's end another path.
    let acquire = server
        .request("POST", "/v1/locks//acquire")
        .json(&json!({ "sessionId": session.to_string() }));
    acquire.send_as_is().await.blames("key");
    server.renew("", 1).await.blames("key");
    for (method, target) in [
        ("GET", "/v1/locks/"),
        ("DELETE", "/v1/locks/"),
        ("GET", "/v1/locks"),
    ] {
        let answer = server.request(method, target).send_as_is().await;
        answer.is_error(404, "NOT_FOUND");
    }
    assert_eq!(server.database.locks().await, 0);
}

#[tokio::test]
async fn a_renewal_keeps_the_token_and_moves_the_expiry() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let granted = server.acquire("a", &session).await;
    let token = granted.is(200)["fencingToken"].clone();

    let renewed = server
        .request("POST", "/v1/locks/a/renew")
        .header("X-Fencing-Token", token.to_string())
        .json(&json!({ "ttlMillis": 50_000 }))
        .send()
        .await;

    let body = renewed.is(200);
    assert_eq!(body["key"], "a");
    assert_eq!(body["fencingToken"], token);
    // 50 s from now, which is later than 30 s from then.
    assert!(
        millis(&body["expiresAt"]) >= millis(&granted.body["acquiredAt"]) + 50_000,
        "{renewed:?}"
    );
    let state = server.get("/v1/locks/a").await;
    assert_eq!(state.is(200)["fencingToken"], token);
    assert_eq!(state.is(200)["expiresAt"], body["expiresAt"]);

    // Without a body the lease is the default one.
    let renewed = server.renew("a", &token).await;
    assert_eq!(renewed.is(200)["fencingToken"], token);
    let lease: f64 = server
        .database
        .scalar("SELECT extract(epoch FROM expires_at - now())::float8 FROM lock_entry")
        .await;
    assert!(lease <= 30.0, "{lease}");
}

#[tokio::test]
async fn under_another_token_a_lock_is_lost() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let token = server.lock("a", &session).await;

    for (key, token) in [
        ("a", token + 1),
        ("a", i64::MAX),
        ("unheld", token),
        ("unheld", 1),
    ] {
        server.renew(key, token).await.is_error(409, "LOCK_LOST");
        server.release(key, token).await.is_error(409, "LOCK_LOST");
    }
    // Zeros in front are no other token.
    server.renew("a", format!("000{token}")).await.is(200);
    server.release("a", token).await.is(204);
    // Once is enough; twice is benign, and says so.
    let again = server.release("a", token).await;
    assert_eq!(again.is_error(409, "LOCK_LOST")["retrySafe"], false);
}

#[tokio::test]
async fn what_is_no_token_is_refused() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let token = server.lock("a", &session).await.to_string();

    for (method, target) in [("POST", "/v1/locks/a/renew"), ("DELETE", "/v1/locks/a")] {
        let refused = |answer: Answer| {
            let body = answer.is_error(400, "INVALID_TOKEN");
            assert_eq!(body["details"]["field"], "X-Fencing-Token");
        };
        for value in NO_TOKENS {
            let request = server.request(method, target);
            refused(request.header("X-Fencing-Token", value).send_as_is().await);
        }
        refused(server.request(method, target).send().await);
        let twice = server
            .request(method, target)
            .header("X-Fencing-Token", token.as_str())
            .header("X-Fencing-Token", token.as_str());
        refused(twice.send().await);
    }

    assert_eq!(server.get("/v1/locks/a").await.is(200)["held"], true);
}

#[tokio::test]
async fn a_lock_can_be_looked_at() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let unheld = server.get("/v1/locks/a").await;
    assert_eq!(unheld.is(200), &json!({ "key": "a", "held": false }));

    let granted = server.acquire("a", &session).await;
    let held = server.get("/v1/locks/a").await;

    let (granted, held) = (granted.is(200), held.is(200));
    assert_eq!(held["held"], true);
    for field in ["key", "ownerId", "fencingToken", "acquiredAt", "expiresAt"] {
        assert_eq!(held[field], granted[field], "{field}");
    }
    assert!(held.get("sessionId").is_none());

    server.database.lapse("a").await;
    let lapsed = server.get("/v1/locks/a").await;
    assert_eq!(lapsed.is(200), &json!({ "key": "a", "held": false }));
}

#[tokio::test]
async fn a_revoked_lock_is_lost_and_recorded() {
    let server = Server::start().await;
    let (alice, bob) = (server.open("alice").await, server.open("bob").await);
    let token = server.lock("a", &alice).await;
    let body = json!({ "operator": "carol", "reason": "stuck for hours" });

    let revoked = server.post("/v1/locks/a/revoke", body.clone()).await;

    let revoked = revoked.is(200);
    assert_eq!(revoked["key"], "a");
    assert_eq!(revoked["ownerId"], "alice");
    assert_eq!(revoked["revokedToken"], token);
    let floor = revoked["newTokenFloor"].as_i64().unwrap();
    assert!(floor > token);
    let record = server
        .database
        .connect()
        .await
        .query_one(
            "SELECT id, lock_key, prev_owner, prev_token, operator, reason FROM lock_revocation",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(revoked["revocationId"], record.get::<_, i64>(0));
    let texts = [1, 2, 4, 5].map(|column| record.get::<_, String>(column));
    assert_eq!(texts, ["a", "alice", "carol", "stuck for hours"]);
    assert_eq!(record.get::<_, i64>(3), token);

    server.renew("a", token).await.is_error(409, "LOCK_LOST");
    server.release("a", token).await.is_error(409, "LOCK_LOST");
    server
        .post("/v1/locks/a/revoke", body)
        .await
        .is_error(404, "LOCK_NOT_HELD");
    assert!(server.lock("a", &bob).await > floor);
    // The session that had it lives on.
    server.heartbeat(&alice).await.is(200);
}

#[tokio::test]
async fn a_revocation_may_be_for_one_token_only() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let token = server.lock("a", &session).await;
    let revoke = async |expected: Value| {
        let body = json!({
            "operator": "carol", "reason": "stuck for hours", "expectedToken": expected
        });
        server.post("/v1/locks/a/revoke", body).await
    };

    let mismatch = revoke(json!(token + 1)).await;
    let body = mismatch.is_error(409, "TOKEN_MISMATCH");
    assert_eq!(body["details"]["fencingToken"], token);
    for odd in [
        json!(0),
        json!(-1),
        json!(1.5),
        json!("1"),
        json!(u64::MAX),
        json!([1]),
    ] {
        revoke(odd).await.blames("expectedToken");
    }
    server.renew("a", token).await.is(200);

    assert_eq!(revoke(json!(token)).await.is(200)["revokedToken"], token);
    revoke(json!(token)).await.is_error(404, "LOCK_NOT_HELD");
    let again = server.lock("a", &session).await;
    // Null is as good as nothing.
    assert_eq!(revoke(json!(null)).await.is(200)["revokedToken"], again);
}

#[tokio::test]
async fn a_revocation_says_who_and_why() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let (name, text) = ("\u{eb}".repeat(64), "\u{eb}".repeat(1024));
    for (operator, reason) in [("c", "12345678"), (&name, &text), ("c", "two lines\nof it")] {
        let _ = server.lock("a", &session).await;
        let body = json!({ "operator": operator, "reason": reason });
        server.post("/v1/locks/a/revoke", body).await.is(200);
    }

    let token = server.lock("a", &session).await;
    let good = "stuck for hours";
    for (operator, reason, field) in [
        ("carol", "1234567", "reason"),
        ("carol", "", "reason"),
        ("carol", "          ", "reason"),
        ("carol", "  1234567  ", "reason"),
        ("carol", &"x".repeat(1025), "reason"),
        ("carol", "stuck\0for hours", "reason"),
        ("carol", "stuck \u{1b}[2J for hours", "reason"),
        ("", good, "operator"),
        (" ", good, "operator"),
        (&"x".repeat(65), good, "operator"),
        ("a\0b", good, "operator"),
        ("a\nb", good, "operator"),
    ] {
        let body = json!({ "operator": operator, "reason": reason });
        let answer = server.post("/v1/locks/a/revoke", body).await;
        answer.blames(field);
    }
    for (body, missing) in [
        (json!({ "operator": "carol" }), "reason"),
        (json!({ "reason": good }), "operator"),
        (json!({}), "operator"),
    ] {
        let answer = server.post("/v1/locks/a/revoke", body).await;
        let body = answer.is_error(400, "VALIDATION_FAILED");
        let message = body["message"].as_str().unwrap();
        assert!(message.contains(&format!("missing field `{missing}`")));
    }
    server.renew("a", token).await.is(200);
}
