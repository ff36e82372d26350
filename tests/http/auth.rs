//! The bearer token.

use serde_json::json;
use uuid::Uuid;

use super::client::{Answer, Server, TOKEN};

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
            let has_401 = operation["responses"].get("401").is_some();
            assert_eq!(has_401, !is_open, "{path}");
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
