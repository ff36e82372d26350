//! Requests of every route, mutated, and bytes that are no request any more, on connections
//! to the real router on a real PostgreSQL. Every answer is as the server's own document says.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};
use tenure::SessionId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::client::{Answer, Server};
use crate::support::host::LONG;
use crate::support::odd::{encoded, text};
use crate::{mutate, panics, rounds};

/// Requests of a round, each on a connection of its own.
const REQUESTS: usize = 20;

const KEYS: &[&str] = &["a", "b", "orders:42"];

/// A request, in the parts that are mutated.
#[derive(Debug)]
struct Request {
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Option<Vec<u8>>,
}

/// What there is to ask about.
struct Known {
    sessions: [SessionId; 2],
    /// The token that was granted last, for each key.
    tokens: BTreeMap<String, i64>,
}

/// A request that is right, and one thing about its body that may not be.
fn request(rng: &mut Rng, known: &Known) -> Request {
    let session = rng.choice(&known.sessions).unwrap().to_string();
    let key = *rng.choice(KEYS).unwrap();
    let token = known.tokens.get(key).copied().unwrap_or(1);
    let mut headers = Vec::new();
    let (method, target, body) = match rng.u8(..20) {
        0 => ("GET", "/health/live".to_owned(), None),
        1 => ("GET", format!("/v1/sessions/{session}/locks"), None),
        2 => ("GET", format!("/v1/locks/{key}"), None),
        3 => ("DELETE", format!("/v1/sessions/{session}"), None),
        4 | 5 => ("DELETE", format!("/v1/locks/{key}"), None),
        6 | 7 => {
            let body = json!({ "ownerId": "alice", "ttlMillis": 60_000 });
            ("POST", "/v1/sessions".to_owned(), Some(body))
        }
        8 => {
            let body = json!({ "sessionIds": known.sessions.each_ref().map(|id| &**id) });
            ("POST", "/v1/heartbeats".to_owned(), Some(body))
        }
        9 | 10 => {
            let target = format!("/v1/sessions/{session}/heartbeat?count=true");
            ("POST", target, Some(json!({ "ttlMillis": 60_000 })))
        }
        11 | 12 => {
            let body = json!({ "ttlMillis": 60_000 });
            ("POST", format!("/v1/locks/{key}/renew"), Some(body))
        }
        13 | 14 => {
            let body =
                json!({ "operator": "root", "reason": "it was time", "expectedToken": token });
            ("POST", format!("/v1/locks/{key}/revoke"), Some(body))
        }
        _ => {
            let body = json!({ "sessionId": session, "ttlMillis": 30_000, "waitMillis": 30_000 });
            ("POST", format!("/v1/locks/{key}/acquire"), Some(body))
        }
    };
    if method == "DELETE" || target.ends_with("/renew") {
        headers.push(("X-Fencing-Token".to_owned(), token.to_string().into_bytes()));
    }
    let body = body.map(|mut body: Value| {
        headers.push(("Content-Type".to_owned(), b"application/json".to_vec()));
        if rng.u8(..3) == 0 {
            mutate::object(rng, &mut body);
        }
        mutate::spelled(&body)
    });
    Request {
        method: method.to_owned(),
        target,
        headers,
        body,
    }
}

/// Changes one thing about a request, which is one for whoever reads HTTP nevertheless.
fn mutated(rng: &mut Rng, request: &mut Request) {
    const METHODS: &[&str] = &[
        "GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS", "get", "X",
    ];
    const NAMES: &[&str] = &[
        "Content-Type",
        "X-Fencing-Token",
        "X-Owner-Id",
        "Authorization",
        "traceparent",
        "Accept-Encoding",
        "Origin",
        "Cookie",
    ];
    match rng.u8(..16) {
        0 => request.method = (*rng.choice(METHODS).unwrap()).to_owned(),
        1..=3 => {
            let mut segments: Vec<_> = request.target.split('/').map(str::to_owned).collect();
            let at = rng.usize(1..segments.len());
            segments[at] = encoded(&text(rng, &[1, 3, 36, 129, 1000]));
            request.target = segments.join("/");
        }
        4 | 5 => {
            let more = match rng.u8(..4) {
                0 => "?count".to_owned(),
                1 => "?count=true&count=true".to_owned(),
                2 => format!("?{}={}", encoded(&text(rng, &[8])), rng.u32(..)),
                _ => format!("?count={}", encoded(&text(rng, &[8]))),
            };
            request.target.push_str(&more);
        }
        6 => request.target.push_str("/%2e%2e"),
        7..=9 => {
            if let Some((_, value)) = request.headers.first_mut() {
                let times = rng.usize(1..=4);
                mutate::bytes(rng, value, times);
                value.retain(may_be_in_header);
            }
        }
        10 | 11 => {
            let name = *rng.choice(NAMES).unwrap();
            let mut value = text(rng, &[1, 32, 65, 1000]).into_bytes();
            value.retain(may_be_in_header);
            request.headers.push((name.to_owned(), value));
        }
        12 => drop(request.headers.pop()),
        _ => {
            let body = request.body.get_or_insert_default();
            let times = rng.usize(1..=4);
            mutate::bytes(rng, body, times);
        }
    }
}

fn may_be_in_header(byte: &u8) -> bool {
    *byte >= b' ' && *byte != 0x7f
}

async fn ask(server: &Server, asked: &Request) -> Answer {
    let mut request = server.request(&asked.method, &asked.target);
    for (name, value) in &asked.headers {
        request = request.header(name, value.as_slice());
    }
    if let Some(body) = &asked.body {
        request = request.body(body.as_slice());
    }
    request.send_as_is().await
}

/// Some requests as the bytes of one connection, of which a few are changed.
fn garbage(rng: &mut Rng, requests: &[Request]) -> Vec<u8> {
    let mut all = Vec::new();
    for request in requests {
        let body = request.body.as_deref().unwrap_or_default();
        let length = body.len().to_string();
        let Request { method, target, .. } = request;
        all.extend_from_slice(format!("{method} {target} HTTP/1.1\r\nHost: x\r\n").as_bytes());
        let length = [("Content-Length".to_owned(), length.into_bytes())];
        for (name, value) in request.headers.iter().chain(&length) {
            all.extend_from_slice(name.as_bytes());
            all.extend_from_slice(b": ");
            all.extend_from_slice(value);
            all.extend_from_slice(b"\r\n");
        }
        all.extend_from_slice(b"\r\n");
        all.extend_from_slice(body);
    }
    let times = rng.usize(..=6);
    mutate::bytes(rng, &mut all, times);
    all
}

/// Sends bytes and no more, and returns the statuses of what comes back until the server
/// hangs up.
async fn send(server: &Server, bytes: &[u8]) -> Vec<u16> {
    let mut connection = server.connect().await;
    // It may have hung up before it has read them all.
    let _ = connection.write_all(bytes).await;
    let _ = connection.shutdown().await;
    let mut answer = Vec::new();
    let read = timeout(LONG, connection.read_to_end(&mut answer)).await;
    let _ = read.expect("the server keeps the connection open");
    // Bodies have no line breaks, so that a status line is one.
    let answer = String::from_utf8_lossy(&answer);
    answer
        .split("\r\n")
        .filter_map(|line| {
            let (before, rest) = line.split_once("HTTP/1.1 ")?;
            // The end of the body before it.
            let status = rest.get(..3)?.parse().ok()?;
            (before.is_empty() || before.ends_with('}')).then_some(status)
        })
        .collect()
}

#[tokio::test]
async fn no_request_is_the_servers_fault() {
    let server = Server::start().await;
    // Nobody waits for a lock then, however long they would. All else goes on.
    server.stop();
    let before = panics();
    let (mut answers, mut answered) = ([0; 5], [0; 5]);
    for mut rng in rounds("requests", 60) {
        let rng = &mut rng;
        let mut known = Known {
            sessions: [server.open("alice").await, server.open("bob").await],
            tokens: BTreeMap::new(),
        };
        for key in KEYS {
            let token = server.lock(key, &known.sessions[0]).await;
            known.tokens.insert((*key).to_owned(), token);
        }
        for _ in 0..REQUESTS {
            let mut asked = request(rng, &known);
            for _ in 0..rng.usize(..=2) {
                mutated(rng, &mut asked);
            }
            let answer = ask(&server, &asked).await;
            assert!(answer.status < 500, "{asked:?} -> {answer:?}");
            answers[usize::from(answer.status / 100)] += 1;
            if let (Some(key), Some(token)) = (
                answer.body["key"].as_str(),
                answer.body["fencingToken"].as_i64(),
            ) {
                known.tokens.insert(key.to_owned(), token);
            }

            let several: Vec<_> = (0..rng.usize(1..=3))
                .map(|_| request(rng, &known))
                .collect();
            let bytes = garbage(rng, &several);
            for status in send(&server, &bytes).await {
                let text = String::from_utf8_lossy(&bytes);
                assert!((200..500).contains(&status), "{text:?} -> {status}");
                answered[usize::from(status / 100)] += 1;
            }
            assert_eq!(panics(), before, "{asked:?}, or {several:?} mutated");
        }
        // Others have gone on as if nothing were.
        server.get("/v1/locks/a").await.is(200);
        server.database.execute("DELETE FROM lock_session").await;
    }
    let both = [answers, answered];
    assert!(both.iter().all(|of| of[2] > 0 && of[4] > 0), "{both:?}");
    tokio::time::timeout(Duration::from_secs(10), server.until_in_flight(0))
        .await
        .expect("what was asked has an end");
}
