//! Any text in the place of an owner, a key or an id: taken or refused with the field named,
//! and never the server's fault.

use fastrand::Rng;
use serde_json::{Value, json};
use tenure::http::MAX_BODY;

use super::client::{Answer, Server};
use crate::support::given::seed;
use crate::support::odd::{encoded, text};

const ROUNDS: usize = 300;

/// A string of JSON, some characters of which are escaped, those beyond the first plane as a
/// pair of surrogates.
fn spelled(rng: &mut Rng, text: &str) -> String {
    let mut json = "\"".to_owned();
    for character in text.chars() {
        if rng.u8(..4) == 0 {
            for unit in character.encode_utf16(&mut [0; 2]) {
                json.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            let quoted = Value::from(character.to_string()).to_string();
            json.push_str(&quoted[1..quoted.len() - 1]);
        }
    }
    json + "\""
}

#[tokio::test]
async fn any_text_is_taken_or_refused_by_name() {
    let mut rng = Rng::with_seed(seed());
    let server = Server::start().await;
    let session = server.open("alice").await;
    let mut taken = [0; 2];
    for _ in 0..ROUNDS {
        let text = text(&mut rng, &[1, 3, 64, 65, 128, 129, 5000, 20_000]);

        let body = format!(r#"{{"ownerId":{}}}"#, spelled(&mut rng, &text));
        let opened = server
            .request("POST", "/v1/sessions")
            .text(body.as_str())
            .send_as_is()
            .await;
        let readable = !text.trim().is_empty()
            && text.chars().count() <= 64
            && !text.chars().any(char::is_control);
        if body.len() > MAX_BODY {
            opened.is_error(413, "PAYLOAD_TOO_LARGE");
        } else if readable {
            assert_eq!(opened.is(201)["ownerId"], *text, "{text:?}");
            taken[0] += 1;
        } else {
            opened.blames("ownerId");
        }

        if text.is_empty() || text.len() > 2000 {
            continue;
        }
        let place = encoded(&text);
        let body = json!({ "sessionId": session.to_string() });
        let acquired = server
            .request("POST", &format!("/v1/locks/{place}/acquire"))
            .json(&body)
            .send_as_is()
            .await;
        if text.parse::<tenure::LockKey>().is_ok() {
            assert_eq!(acquired.is(200)["key"], *text, "{text:?}");
            taken[1] += 1;
        } else {
            acquired.blames("key");
        }
        let beat = server
            .request("POST", &format!("/v1/sessions/{place}/heartbeat"))
            .send_as_is()
            .await;
        beat.blames("id");
        let body = format!(r#"{{"sessionId":{}}}"#, spelled(&mut rng, &text));
        let acquired = server.request("POST", "/v1/locks/k/acquire").text(body);
        acquired.send_as_is().await.blames("sessionId");
    }
    assert!(taken.iter().all(|taken| *taken > 0), "{taken:?}");
}

/// A field, and a request in which its value is missing.
type Gap = (&'static str, String, String);

async fn ask(server: &Server, (_, target, body): &Gap, value: &str) -> Answer {
    let request = server.request("POST", target);
    let request = request.header("X-Fencing-Token", "1");
    let body = body.replace("GAP", value);
    request.text(body).send_as_is().await
}

#[tokio::test]
async fn half_a_character_is_refused_by_name_wherever_it_stands() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let gap = |field, target: &str, body: &str| -> Gap { (field, target.into(), body.into()) };
    let gaps = [
        gap("ownerId", "/v1/sessions", r#"{"ownerId":GAP}"#),
        gap("sessionId", "/v1/locks/k/acquire", r#"{"sessionId":GAP}"#),
        gap(
            "sessionIds[1]",
            "/v1/heartbeats",
            &format!(r#"{{"sessionIds":["{session}",GAP]}}"#),
        ),
        gap(
            "operator",
            "/v1/locks/k/revoke",
            r#"{"operator":GAP,"reason":"it was time"}"#,
        ),
        gap(
            "reason",
            "/v1/locks/k/revoke",
            r#"{"operator":"root","reason":GAP}"#,
        ),
    ];
    for gap in &gaps {
        for half in [
            r#""\ud83d""#,
            r#""\udd12""#,
            r#""\udd12\ud83d""#,
            r#""x\ud83dx""#,
            r#""\ud83d\n""#,
            r#""\uDBFF\uDBFF""#,
        ] {
            ask(&server, gap, half).await.blames(gap.0);
        }
    }
}

#[tokio::test]
async fn a_number_is_whole_however_it_is_spelled() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let gap = |field, target: &str, body: &str| -> Gap { (field, target.into(), body.into()) };
    let acquire = |field: &str| format!(r#"{{"sessionId":"{session}","{field}":GAP}}"#);
    let beat = format!("/v1/sessions/{session}/heartbeat");
    let ttl = r#"{"ttlMillis":GAP}"#;
    let gaps = [
        gap(
            "ttlMillis",
            "/v1/sessions",
            r#"{"ownerId":"a","ttlMillis":GAP}"#,
        ),
        gap("ttlMillis", &beat, ttl),
        gap(
            "ttlMillis",
            "/v1/heartbeats",
            &format!(r#"{{"sessionIds":["{session}"],"ttlMillis":GAP}}"#),
        ),
        gap("ttlMillis", "/v1/locks/k/acquire", &acquire("ttlMillis")),
        gap("waitMillis", "/v1/locks/k/acquire", &acquire("waitMillis")),
        gap("ttlMillis", "/v1/locks/k/renew", ttl),
        gap(
            "expectedToken",
            "/v1/locks/k/revoke",
            r#"{"operator":"root","reason":"it was time","expectedToken":GAP}"#,
        ),
    ];
    for gap in &gaps {
        for number in [
            "2000.0",
            "2e3",
            "2E+3",
            "20000e-1",
            "2000.5",
            "-2000",
            "-0",
            "-0.0",
            "1e-400",
            "1e400",
            "-1e400",
            "18446744073709551616",
            "-9223372036854775809",
            "\"2000\"",
            "[2000]",
            "false",
        ] {
            ask(&server, gap, number).await.blames(gap.0);
        }
    }
    assert_eq!(server.database.sessions().await, 1);
}
