//! Requests that no client of ours sends. Each is answered in JSON, in the envelope, and none
//! is the server's fault.

use serde_json::{Value, json};
use tenure::http::MAX_BODY;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{Answer, Server};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// A body of exactly so many bytes that opens a session.
fn padded(bytes: usize) -> Vec<u8> {
    let mut body = json!({ "ownerId": "alice" }).to_string().into_bytes();
    body.resize(bytes, b' ');
    body
}

async fn open(server: &Server, body: impl Into<Vec<u8>>) -> Answer {
    let request = server.request("POST", "/v1/sessions");
    request.text(body).send_as_is().await
}

#[tokio::test]
async fn a_body_that_is_not_the_object_it_should_be_is_refused() {
    let server = Server::start().await;
    let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let objects = |depth: usize| format!("{}1{}", "{\"ownerId\":".repeat(depth), "}".repeat(depth));
    let bodies: Vec<Vec<u8>> = vec![
        b"{".to_vec(),
        b"}".to_vec(),
        b"nonsense".to_vec(),
        b"<html></html>".to_vec(),
        b"ownerId=alice".to_vec(),
        b"null".to_vec(),
        b"true".to_vec(),
        b"1".to_vec(),
        b"\"alice\"".to_vec(),
        b" ".to_vec(),
        b"\n".to_vec(),
        b"\0".to_vec(),
        // In the order of the fields.
        b"[]".to_vec(),
        b"[\"alice\", 2000]".to_vec(),
        b" [\"alice\", null]".to_vec(),
        br#"{"ownerId":"alice"} {}"#.to_vec(),
        br#"{"ownerId":"alice"}x"#.to_vec(),
        br#"{"ownerId":"alice",}"#.to_vec(),
        br#"{'ownerId':'alice'}"#.to_vec(),
        br#"{ownerId:"alice"}"#.to_vec(),
        br#"{"ownerId":"alice","ownerId":"alice"}"#.to_vec(),
        br#"{"ownerId":"alice","ttlMillis":2000,"ttlMillis":3000}"#.to_vec(),
        br#"{"ownerId":"alice","ttlmillis":2000}"#.to_vec(),
        br#"{"ownerId":"alice","ttl_millis":2000}"#.to_vec(),
        br#"{"ownerId":"alice","":1}"#.to_vec(),
        br#"{"ownerId":"alice","__proto__":{}}"#.to_vec(),
        br#"{"ownerId":["alice"]}"#.to_vec(),
        br#"{"ownerId":{"$ne":null}}"#.to_vec(),
        br#"{"ownerId":1}"#.to_vec(),
        br#"{"ownerId":true}"#.to_vec(),
        br#"{"ownerId":"alice","ttlMillis":NaN}"#.to_vec(),
        br#"{"ownerId":"alice","ttlMillis":1e999}"#.to_vec(),
        br#"{"ownerId":"alice","ttlMillis":02000}"#.to_vec(),
        br#"{"ownerId":"alice","ttlMillis":+2000}"#.to_vec(),
        format!(
            r#"{{"ownerId":"alice","ttlMillis":{}}}"#,
            "9".repeat(60_000)
        )
        .into(),
        // Halves of a pair, each alone, in a value and in a name.
        br#"{"ownerId":"\ud83d"}"#.to_vec(),
        br#"{"ownerId":"\udd12"}"#.to_vec(),
        br#"{"ownerId":"\ud83d\ud83d"}"#.to_vec(),
        br#"{"ownerId":"alice","\ud83d":1}"#.to_vec(),
        br#"{"ownerId":"\u12"}"#.to_vec(),
        br#"{"ownerId":"\x41"}"#.to_vec(),
        // Control characters, escaped and not.
        br#"{"ownerId":"a\u0000b"}"#.to_vec(),
        b"{\"ownerId\":\"a\0b\"}".to_vec(),
        b"{\"ownerId\":\"a\nb\"}".to_vec(),
        // No UTF-8: a byte that never occurs, a character cut off, one too long, a surrogate.
        b"{\"ownerId\":\"\xff\"}".to_vec(),
        b"{\"ownerId\":\"\xc3\"}".to_vec(),
        b"{\"ownerId\":\"\xc0\xaf\"}".to_vec(),
        b"{\"ownerId\":\"\xed\xa0\x80\"}".to_vec(),
        b"{\"ownerId\":\"alice\",\"\xff\":1}".to_vec(),
        b"\xff\xfe{\0\"\0".to_vec(),
        b"\xef\xbb\xbf{\"ownerId\":\"alice\"}".to_vec(),
        nested(100).into(),
        nested(30_000).into(),
        objects(5000).into(),
        format!(r#"{{"ownerId":"alice","x":{}}}"#, nested(30_000)).into(),
        format!(r#"{{"ownerId":{}}}"#, nested(30_000)).into(),
        format!(r#"{{"ownerId":"alice","{}":1}}"#, "x".repeat(60_000)).into(),
    ];
    for body in bodies {
        let text = String::from_utf8_lossy(&body).into_owned();
        let answer = open(&server, body).await;
        let body = answer.is_error(400, "VALIDATION_FAILED");
        assert!(body["details"]["field"].is_string(), "{text:.100}");
        let message = body["message"].as_str().unwrap();
        assert!(message.len() < 1100, "{text:.100}");
    }
    assert_eq!(server.database.sessions().await, 0);
}

#[tokio::test]
async fn a_body_that_is_odd_and_right_is_taken() {
    let server = Server::start().await;
    for body in [
        "\r\n\t {\"ownerId\" : \"alice\"}\r\n",
        r#"{"ttlMillis":2000,"ownerId":"alice"}"#,
        r#"{"owner\u0049d":"\u0061lice"}"#,
        r#"{"ownerId":"alice","ttlMillis":null}"#,
    ] {
        assert_eq!(open(&server, body).await.is(201)["ownerId"], "alice");
    }
    let paired = open(&server, r#"{"ownerId":"\ud83d\udd12"}"#).await;
    assert_eq!(paired.is(201)["ownerId"], "\u{1F512}");
}

#[tokio::test]
async fn every_body_is_read_alike() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let token = server.lock("a", &session).await.to_string();
    for target in [
        "/v1/sessions",
        &format!("/v1/sessions/{session}/heartbeat"),
        "/v1/locks/a/acquire",
        "/v1/locks/a/renew",
        "/v1/locks/a/revoke",
    ] {
        let post = || {
            let request = server.request("POST", target);
            request.header("X-Fencing-Token", token.as_str())
        };
        for body in ["{", "[]", "null", r#"{"surprise":1}"#, "{} {}"] {
            let answer = post().text(body).send().await;
            answer.is_error(400, "VALIDATION_FAILED");
        }
        let answer = post().body("{}").send().await;
        answer.is_error(415, "UNSUPPORTED_MEDIA_TYPE");
        let answer = post().text(padded(MAX_BODY + 1)).send_as_is().await;
        answer.is_error(413, "PAYLOAD_TOO_LARGE");
    }
    assert_eq!(server.database.sessions().await, 1);
    server.renew("a", token).await.is(200);
}

#[tokio::test]
async fn a_body_has_to_say_that_it_is_json() {
    let server = Server::start().await;
    let body = json!({ "ownerId": "alice" }).to_string();
    for mime in [
        "application/json",
        "application/json; charset=utf-8",
        "application/json ;charset=utf-8",
        "APPLICATION/JSON",
    ] {
        let request = server.request("POST", "/v1/sessions");
        let request = request.header("Content-Type", mime).body(body.as_str());
        request.send().await.is(201);
    }
    for mime in [
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "application/json+x",
        "application/xml",
        "json",
        "",
        ";",
        "text/plain; application/json",
    ] {
        let request = server.request("POST", "/v1/sessions");
        let request = request.header("Content-Type", mime).body(body.as_str());
        let answer = request.send().await;
        answer.is_error(415, "UNSUPPORTED_MEDIA_TYPE");
    }
    let request = server.request("POST", "/v1/sessions");
    let answer = request
        .header("Content-Type", *b"application/json\xff")
        .body(body.as_str())
        .send_as_is()
        .await;
    answer.is_error(415, "UNSUPPORTED_MEDIA_TYPE");
    let request = server.request("POST", "/v1/sessions");
    let answer = request.body(body).send().await;
    answer.is_error(415, "UNSUPPORTED_MEDIA_TYPE");

    // A body that is not there has no type.
    let request = server.request("POST", "/v1/sessions");
    let request = request.header("X-Owner-Id", "alice");
    let answer = request.header("Content-Type", "text/plain").send().await;
    answer.is(201);
}

#[tokio::test]
async fn a_body_has_at_most_64_kib() {
    let server = Server::start().await;
    assert_eq!(MAX_BODY, 65_536);
    open(&server, padded(MAX_BODY)).await.is(201);
    let answer = open(&server, padded(MAX_BODY + 1)).await;
    answer.is_error(413, "PAYLOAD_TOO_LARGE");

    // Without a length, in chunks.
    let chunked = |body: Vec<u8>| {
        let mut bytes = b"POST /v1/sessions HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n\
              Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            .to_vec();
        for chunk in body.chunks(10_000) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    };
    let mut fits = chunked(padded(MAX_BODY));
    fits.extend_from_slice(b"0\r\n\r\n");
    let answer = server.send_bytes("POST", "/v1/sessions", &fits).await;
    answer.is(201);
    // Nobody waits for its end.
    let endless = chunked(padded(MAX_BODY + 1));
    let answer = server.send_bytes("POST", "/v1/sessions", &endless).await;
    answer.is_error(413, "PAYLOAD_TOO_LARGE");

    // With a length that is too large, and nothing behind it.
    let announced = b"POST /v1/sessions HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n\
          Content-Type: application/json\r\nContent-Length: 1000000000000\r\n\r\n";
    let answer = server.send_bytes("POST", "/v1/sessions", announced).await;
    answer.is_error(413, "PAYLOAD_TOO_LARGE");
    assert_eq!(server.database.sessions().await, 2);
}

#[tokio::test]
async fn a_body_that_breaks_off_opens_nothing() {
    let server = Server::start().await;
    let mut connection = server.connect().await;
    connection
        .write_all(
            b"POST /v1/sessions HTTP/1.1\r\nHost: tenure\r\nContent-Type: application/json\r\n\
              Content-Length: 100\r\n\r\n{\"ownerId\":\"alice\"}",
        )
        .await
        .unwrap();
    server.until_in_flight(1).await;

    drop(connection);

    server.until_in_flight(0).await;
    assert_eq!(server.database.sessions().await, 0);

    let bad_chunk = b"POST /v1/sessions HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n\
          Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n{}\r\n";
    let answer = server.send_bytes("POST", "/v1/sessions", bad_chunk).await;
    answer.blames("body");
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up() {
    let server = Server::start().await;
    let stalled = b"POST /v1/sessions HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n\
          Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"ownerId\":";

    let answer = server.send_bytes("POST", "/v1/sessions", stalled).await;

    assert_eq!(answer.is(408)["code"], "REQUEST_TIMEOUT");
    assert_eq!(server.database.sessions().await, 0);
}

#[tokio::test]
async fn a_method_that_a_path_does_not_have_is_refused() {
    let server = Server::start().await;
    for target in [
        "/v1/sessions",
        "/v1/sessions/x",
        "/v1/sessions/x/heartbeat",
        "/v1/sessions/x/locks",
        "/v1/locks/a",
        "/v1/locks/a/acquire",
        "/v1/locks/a/renew",
        "/v1/locks/a/revoke",
        "/health/live",
        "/health/ready",
        "/openapi.json",
    ] {
        let item = document_of(&server, target);
        for method in [
            "GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "HEAD", "get", "post",
            "PROPFIND", "QUERY", "X",
        ] {
            let has = |method: &str| item.get(method).is_some();
            if has(&method.to_lowercase()) && method == method.to_uppercase() {
                continue;
            }
            let answer = server.request(method, target).send_as_is().await;
            if method == "HEAD" {
                // Whoever has GET has HEAD.
                assert_eq!(answer.status == 405, !has("get"), "{target} {answer:?}");
            } else {
                answer.is_error(405, "METHOD_NOT_ALLOWED");
            }
        }
    }
}

fn document_of(server: &Server, target: &str) -> Value {
    let path = target
        .replace("/x", "/{id}")
        .replace("/a", "/{key}")
        .replace("{key}cquire", "acquire");
    server.document()["paths"][&path].clone()
}

#[tokio::test]
async fn head_is_get_without_the_body() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let _ = server.lock("a", &session).await;
    for (target, status) in [
        ("/health/live", 200),
        ("/health/ready", 200),
        ("/openapi.json", 200),
        ("/v1/locks/a", 200),
        ("/v1/locks/a%20b", 400),
        (&format!("/v1/sessions/{session}/locks"), 200),
        ("/v1/sessions/x/locks", 400),
        ("/v1/nothing", 404),
        ("/v1/sessions", 405),
    ] {
        let head = server.request("HEAD", target).send_as_is().await;
        assert_eq!(head.status, status, "{target}");
        assert!(head.bytes.is_empty(), "{target}");
        assert_eq!(head.header("content-type"), Some("application/json"));
        let length: usize = head.header("content-length").unwrap().parse().unwrap();
        if status == 405 {
            assert!(length > 0);
        } else {
            let get = server.get(target).await;
            assert_eq!(get.status, status);
            assert_eq!(length, get.bytes.len(), "{target}");
        }
    }
}

#[tokio::test]
async fn a_path_that_there_is_not_is_not_found() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let long = format!("/{}", "x".repeat(60_000));
    for target in [
        "/",
        "//",
        "/v1",
        "/v1/",
        "/v2/sessions",
        "/v1/nothing",
        "/v1/sessions/",
        "//v1/sessions",
        "/v1//sessions",
        "/V1/sessions",
        "/v1/Sessions",
        "/v1/%73essions",
        "/v1/sessions%00",
        "/v1/sessions%2f",
        &format!("/v1/sessions/{session}/"),
        &format!("/v1/sessions/{session}/heartbeat/"),
        &format!("/v1/sessions/{session}/nothing"),
        "/v1/locks/a/",
        "/v1/locks/a/b",
        "/v1/locks/a/acquire/",
        "/v1/locks/a/acquire/b",
        "/v1/locks/../sessions",
        "/health",
        "/health/",
        "/health/live/",
        "/health/../v1/sessions",
        "/openapi.json/",
        "/openapi.yaml",
        "/favicon.ico",
        "/%",
        "/%zz",
        "/%ff",
        &long,
    ] {
        for method in ["GET", "POST", "DELETE", "PUT", "OPTIONS", "X"] {
            let answer = server.request(method, target).send_as_is().await;
            let body = answer.is_error(404, "NOT_FOUND");
            assert!(body["message"].as_str().unwrap().len() < 1100);
        }
    }
    // Forms of a target that are not paths.
    for (method, target) in [("OPTIONS", "*"), ("CONNECT", "tenure:80")] {
        let answer = server.request(method, target).send_as_is().await;
        answer.is_error(404, "NOT_FOUND");
    }
}

#[tokio::test]
async fn long_and_many_headers_are_no_harm() {
    let server = Server::start().await;
    let session = server.open("alice").await;
    let long = "x".repeat(60_000);

    let answer = server
        .request("GET", "/v1/locks/a")
        .header("X-Whatever", long.as_str())
        .header("Cookie", long.as_str())
        .send_as_is()
        .await;
    answer.is(200);
    let mut request = server.request("GET", "/v1/locks/a");
    for number in 0..90 {
        request = request.header(&format!("X-{number}"), "x");
    }
    request.send_as_is().await.is(200);
    let target = format!("/v1/sessions/{session}/heartbeat?count={long}");
    let answer = server.request("POST", &target).send_as_is().await;
    answer.blames("query");
    let open = server.request("POST", "/v1/sessions");
    let answer = open.header("X-Owner-Id", long).send_as_is().await;
    answer.blames("ownerId");
}

#[tokio::test]
async fn what_is_no_request_gets_the_envelope_too() {
    let server = Server::start().await;
    let request = |target: &str, headers: &str| {
        format!("GET {target} HTTP/1.1\r\nHost: tenure\r\n{headers}\r\n").into_bytes()
    };
    let endless = "x".repeat(70_000);
    let many: String = (0..101).map(|n| format!("X-{n}: x\r\n")).collect();
    let large: String = (0..50)
        .map(|n| format!("X-{n}: {}\r\n", "x".repeat(10_000)))
        .collect();
    for (bytes, status) in [
        (request(&format!("/{endless}"), ""), 414),
        (request(&format!("/v1/locks/a?{endless}"), ""), 414),
        (request("/v1/locks/a", &many), 431),
        (request("/v1/locks/a", &large), 431),
        (b"nonsense\r\n\r\n".to_vec(), 400),
        (b"GET\r\n\r\n".to_vec(), 400),
        (b"GET /v1/locks/a\r\n\r\n".to_vec(), 400),
        (b"GET /v1/locks/a HTTP/9.9\r\n\r\n".to_vec(), 400),
        (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec(), 400),
        (request("/a b", ""), 400),
        (request("/v1/locks/a", "No colon\r\n"), 400),
        (request("/v1/locks/a", "X Y: z\r\n"), 400),
        (request("/v1/locks/a", "X: a\0b\r\n"), 400),
        (request("/v1/locks/a", "Content-Length: x\r\n"), 400),
        (request("/v1/locks/a", "Content-Length: -1\r\n"), 400),
        (
            request("/v1/locks/a", "Content-Length: 1\r\nContent-Length: 2\r\n"),
            400,
        ),
        (request("/v1/locks/a", "Transfer-Encoding: gzip\r\n"), 400),
    ] {
        let answer = server.send_garbage(&bytes).await;
        answer.is_error(status, "VALIDATION_FAILED");
    }

    // Also on a connection that has served a request before.
    let mut connection = server.connect().await;
    let first = b"GET /health/live HTTP/1.1\r\nHost: tenure\r\n\r\n";
    connection.write_all(first).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"{\"status\":\"ok\"}") {
        assert_ne!(connection.read_buf(&mut answer).await.unwrap(), 0);
    }
    connection.write_all(b"nonsense\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("VALIDATION_FAILED"), "{answer}");
}

#[tokio::test]
async fn the_trace_id_is_the_callers() {
    let server = Server::start().await;
    let ask = async |traceparents: &[&str]| {
        let mut request = server.request("GET", "/v1/nothing");
        for traceparent in traceparents {
            request = request.header("traceparent", *traceparent);
        }
        let answer = request.send_as_is().await;
        let body = answer.is_error(404, "NOT_FOUND");
        body["traceId"].as_str().unwrap().to_owned()
    };

    let good = format!("00-{TRACE}-00f067aa0ba902b7-01");
    assert_eq!(ask(&[&good]).await, TRACE);

    let mut made = std::collections::HashSet::new();
    let zero = "0".repeat(32);
    for odd in [
        &[][..],
        &[""],
        &["nonsense"],
        &[TRACE],
        &[&format!("nonsense-{TRACE}")],
        &[&format!("nonsense-{TRACE}-00f067aa0ba902b7-01")],
        &[&format!("ff-{TRACE}-00f067aa0ba902b7-01")],
        &[&format!("00-{TRACE}-00f067aa0ba902b7-01-x")],
        &[&format!("00-{TRACE}-0000000000000000-01")],
        &[&format!("00-{zero}-00f067aa0ba902b7-01")],
        &[&format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase())],
        &[&"x".repeat(60_000)],
        &[&good, &good],
    ] {
        let id = ask(odd).await;
        assert!(id != TRACE && id != zero, "{odd:?}");
        assert!(made.insert(id), "{odd:?}");
    }

    // Errors of every making have it.
    for (method, target, body) in [
        ("GET", "/v1/sessions", ""),
        ("POST", "/v1/sessions", "{"),
        ("POST", "/v1/sessions/x/heartbeat", ""),
    ] {
        let request = server.request(method, target).text(body);
        let answer = request.header("traceparent", good.as_str()).send().await;
        assert_eq!(answer.body["traceId"], TRACE, "{answer:?}");
    }
}

#[tokio::test]
async fn requests_that_are_sent_ahead_are_answered_in_order_and_no_body_is_one() {
    let server = Server::start().await;
    let last = "GET /health/live HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n\r\n";
    let body = "DELETE /v1/locks/a HTTP/1.1\r\nHost: tenure\r\n\r\n";
    let with_body = |target: &str| {
        let length = body.len();
        format!("POST {target} HTTP/1.1\r\nHost: tenure\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    for (first, status) in [
        (
            "GET /v1/locks/a HTTP/1.1\r\nHost: tenure\r\n\r\n".to_owned(),
            200,
        ),
        (
            "GET /v1/nothing HTTP/1.1\r\nHost: tenure\r\n\r\n".to_owned(),
            404,
        ),
        // Read, and not.
        (with_body("/v1/sessions"), 415),
        (with_body("/v1/nothing"), 404),
        (with_body("/health/live"), 405),
    ] {
        let mut connection = server.connect().await;
        let all = format!("{first}{first}{last}");
        connection.write_all(all.as_bytes()).await.unwrap();
        let mut answers = String::new();
        connection.read_to_string(&mut answers).await.unwrap();
        let statuses: Vec<u16> = answers
            .match_indices("HTTP/1.1 ")
            .map(|(at, found)| answers[at + found.len()..][..3].parse().unwrap())
            .collect();
        assert_eq!(statuses, [status, status, 200], "{all}\n-> {answers}");
    }
}
