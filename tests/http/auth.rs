//! The bearer token.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use uuid::Uuid;

use super::client::{Answer, Server, TOKEN};
use crate::support::server::tell;

/// Each path of the document, with something in the place of its parameters.
fn routes(server: &Server) -> Vec<(String, String)> {
    let id = Uuid::new_v4().to_string();
    let mut routes = Vec::new();
    for (path, item) in server.document()["paths"].as_object().unwrap() {
        let target = path.replace("{id}", &id).replace("{key}", "a");
        for method in item.as_object().unwrap().keys() {
            routes.push((method.to_uppercase(), target.clone()));
        }
    }
    routes
}

#[track_caller]
fn is_unauthorized(answer: &Answer) {
    answer.is_error(401, "UNAUTHORIZED");
    assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
}

#[tokio::test]
async fn every_route_but_health_wants_the_token() {
    let server = Server::with_token().await;
    let routes = routes(&server);
    assert_eq!(routes.len(), 13);
    for (method, target) in routes {
        let request = server.request(&method, &target).without("Authorization");
        let answer = request.send().await;
        if target.starts_with("/health/") {
            answer.is(200);
        } else {
            is_unauthorized(&answer);
        }
    }
    // Nor does anybody learn without it what there is.
    for (method, target) in [
        ("GET", "/v1/nothing"),
        ("PUT", "/v1/locks/a"),
        ("GET", "/"),
        ("GET", "/health"),
        ("OPTIONS", "/v1/sessions"),
    ] {
        let request = server.request(method, target).without("Authorization");
        is_unauthorized(&request.send().await);
    }
    assert_eq!(server.database.sessions().await, 0);

    // With it they work.
    let session = server.open("alice").await;
    let token = server.lock("a", &session).await;
    server.release("a", token).await.is(204);
    server.get("/v1/nothing").await.is_error(404, "NOT_FOUND");
}

#[tokio::test]
async fn the_document_says_which_routes_want_the_token() {
    let server = Server::with_token().await;
    let document = server.document();
    assert_eq!(
        document["components"]["securitySchemes"]["bearer"],
        json!({ "type": "http", "scheme": "bearer" })
    );
    assert_eq!(document["security"], json!([{ "bearer": [] }]));
    for (path, item) in document["paths"].as_object().unwrap() {
        let is_open = path.starts_with("/health/");
        for operation in item.as_object().unwrap().values() {
            for status in ["401", "429"] {
                let has = operation["responses"].get(status).is_some();
                assert_eq!(has, !is_open, "{path}");
            }
            let says_so = operation.get("security") == Some(&json!([{}]));
            assert_eq!(says_so, is_open, "{path}");
        }
    }

    let open = Server::start().await;
    assert!(open.document().get("security").is_none());
}

#[tokio::test]
async fn another_token_is_none() {
    let server = Server::with_token().await;
    let short = &TOKEN[..TOKEN.len() - 1];
    let mut values = vec![
        Vec::new(),
        TOKEN.into(),
        "Bearer".into(),
        format!("Bearer{TOKEN}").into(),
        format!("Bearer\t{TOKEN}").into(),
        format!("Bearer  {TOKEN}").into(),
        format!("Bearer {short}").into(),
        format!("Bearer {short}S").into(),
        format!("Bearer {TOKEN}x").into(),
        format!("Bearer {TOKEN} {TOKEN}").into(),
        format!("Bearer {TOKEN},").into(),
        format!("Bearer \"{TOKEN}\"").into(),
        format!("Bearer {}", TOKEN.to_uppercase()).into(),
        format!("Bearer {}", "x".repeat(20_000)).into(),
        format!("Basic {TOKEN}").into(),
        format!("Token {TOKEN}").into(),
        b"\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
    ];
    values.push([b"Bearer ", TOKEN.as_bytes(), b"\xff"].concat());
    for value in values {
        let answer = server
            .request("GET", "/v1/locks/a")
            .without("Authorization")
            .header("Authorization", value)
            .send_as_is()
            .await;
        is_unauthorized(&answer);
    }
    // Two headers are none, even where one is right.
    for (first, second) in [(TOKEN, "guess"), ("guess", TOKEN)] {
        let answer = server
            .request("GET", "/v1/locks/a")
            .without("Authorization")
            .header("Authorization", format!("Bearer {first}"))
            .header("Authorization", format!("Bearer {second}"))
            .send_as_is()
            .await;
        is_unauthorized(&answer);
    }

    // The scheme's name has no case.
    for scheme in ["Bearer", "bearer", "BEARER"] {
        let answer = server
            .request("GET", "/v1/locks/a")
            .without("Authorization")
            .header("authorization", format!("{scheme} {TOKEN}"))
            .send()
            .await;
        answer.is(200);
    }
}

/// What a request that shows a token is answered, on a connection that goes on.
pub async fn status(connection: &mut TcpStream, token: &str) -> u16 {
    let request = format!(
        "GET /v1/locks/a HTTP/1.1\r\nHost: tenure\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    loop {
        assert_ne!(connection.read_buf(&mut answer).await.unwrap(), 0);
        let text = std::str::from_utf8(&answer).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.split_once("content-length: ").unwrap().1;
        let length: usize = length.lines().next().unwrap().parse().unwrap();
        if body.len() == length {
            return head["HTTP/1.1 ".len()..][..3].parse().unwrap();
        }
    }
}

#[tokio::test]
async fn who_shows_wrong_tokens_is_soon_not_listened_to() {
    let server = Server::with_limited_token(3).await;
    let shows = async |token: &str| {
        let request = server.request("GET", "/v1/locks/a");
        let request = request.without("Authorization");
        let request = request.header("Authorization", format!("Bearer {token}"));
        request.send_as_is().await
    };
    let mut works = server.connect().await;
    assert_eq!(status(&mut works, TOKEN).await, 200);
    // The right one does not count, nor does none.
    for _ in 0..5 {
        shows(TOKEN).await.is(200);
        let none = server
            .request("GET", "/v1/locks/a")
            .without("Authorization");
        is_unauthorized(&none.send_as_is().await);
    }
    for _ in 0..3 {
        is_unauthorized(&shows("a-guess-of-the-tests").await);
    }

    // From here on the right one sounds like any other: it would be found out otherwise.
    for token in ["a-guess-of-the-tests", TOKEN] {
        let answer = shows(token).await;
        let body = answer.is_error(429, "TOO_MANY_ATTEMPTS");
        let millis = body["retryAfterMillis"].as_u64().unwrap();
        assert!((1..=3_600_001).contains(&millis), "{body}");
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!(seconds * 1000 >= millis - 1, "{seconds} s: {body}");
    }
    // Whoever watches over the server is answered, and so is who has shown it before; but
    // it cannot guess there either.
    let health = server
        .request("GET", "/health/live")
        .without("Authorization");
    health.send_as_is().await.is(200);
    assert_eq!(status(&mut works, TOKEN).await, 200);
    assert_eq!(status(&mut works, "a-guess-of-the-tests").await, 429);
    assert_eq!(status(&mut works, TOKEN).await, 200);
}

#[tokio::test]
async fn who_comes_from_elsewhere_is_not_held_responsible() {
    let server = Server::with_limited_token(1).await;
    let mut guesses = server.connect().await;
    assert_eq!(status(&mut guesses, "a-guess-of-the-tests").await, 401);
    assert_eq!(status(&mut guesses, TOKEN).await, 429);

    // One of them might be counted with the first.
    let mut answered = 0;
    for last in 2..6 {
        let socket = TcpSocket::new_v4().unwrap();
        if let Err(error) = socket.bind(SocketAddr::from(([127, 0, 0, last], 0))) {
            tell(&format!(
                "this machine has one loopback address only: {error}"
            ));
            return;
        }
        let mut other = socket.connect(server.address()).await.unwrap();
        answered += i32::from(status(&mut other, TOKEN).await == 200);
    }
    assert!(answered >= 3, "{answered}");
}
