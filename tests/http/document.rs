//! The document itself, and each of its routes once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::client::Server;

#[tokio::test]
async fn every_route_of_the_document_answers() {
    let server = Server::start().await;
    let session = server.open("alice").await;

    let token = server.lock("a", &session).await;
    server.renew("a", token).await.is(200);
    server.get("/v1/locks/a").await.is(200);
    server.release("a", token).await.is(204);
    let _ = server.lock("a", &session).await;
    let reason = json!({ "operator": "bob", "reason": "it is stuck" });
    server.post("/v1/locks/a/revoke", reason).await.is(200);
    server.heartbeat(&session).await.is(200);
    let ids = json!({ "sessionIds": [session.to_string()] });
    server.post("/v1/heartbeats", ids).await.is(200);
    server
        .get(&format!("/v1/sessions/{session}/locks"))
        .await
        .is(200);
    server.close(&session).await.is(204);
    server.get("/health/live").await.is(200);
    server.get("/health/ready").await.is(200);
    let document = server.get("/openapi.json").await;

    let answered: BTreeSet<_> = server.answered().into_iter().collect();
    assert_eq!(answered, routes(document.is(200)));
    assert_eq!(answered.len(), 13);
}

fn routes(document: &Value) -> BTreeSet<(String, String)> {
    let mut routes = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            routes.insert((method.to_uppercase(), path.clone()));
        }
    }
    routes
}

/// What is called a reference in the document is in it, and every name is that of the
/// contract's style.
#[tokio::test]
async fn the_document_holds_together() {
    let server = Server::start().await;
    let document = server.document();

    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut references = 0;
    let mut left = vec![document];
    while let Some(value) = left.pop() {
        match value {
            Value::Array(values) => left.extend(values),
            Value::Object(members) => {
                if let Some(Value::String(to)) = members.get("$ref") {
                    let target = document.pointer(to.strip_prefix('#').unwrap());
                    assert!(target.is_some(), "{to}");
                    references += 1;
                }
                left.extend(members.values());
            }
            _ => {}
        }
    }
    assert!(references > 20, "{references}");
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let is_error = status.as_str() >= "400";
                let schema = &response["content"]["application/json"]["schema"]["$ref"];
                assert_eq!(
                    schema == "#/components/schemas/ErrorBody",
                    is_error,
                    "{method} {path} {status}"
                );
            }
        }
    }
}
