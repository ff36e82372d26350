//! HTTP/2, which a client may begin with on the same port.

use futures_util::future::try_join_all;
use reqwest::{Client, Version};
use serde_json::Value;

use super::client::Server;

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address())
}

#[tokio::test]
async fn heartbeats_of_many_sessions_share_a_connection() {
    let server = Server::start().await;
    // Asked without knowing better, the client would speak HTTP/1.1.
    let client = Client::builder()
        .http2_prior_knowledge()
        .pool_max_idle_per_host(1)
        .build()
        .unwrap();
    let mut sessions = Vec::new();
    for _ in 0..100 {
        sessions.push(server.open("tester").await);
    }

    let beats = sessions.iter().map(|session| {
        let url = url(&server, &format!("/v1/sessions/{session}/heartbeat"));
        client.post(url).send()
    });
    let beats = beats.map(async |beat| {
        let answer = beat.await?;
        assert_eq!(
            (answer.version(), answer.status().as_u16()),
            (Version::HTTP_2, 200)
        );
        answer.json::<Value>().await
    });

    for (session, beat) in sessions.iter().zip(try_join_all(beats).await.unwrap()) {
        assert_eq!(beat["sessionId"], session.to_string());
    }
}

#[tokio::test]
async fn what_is_refused_has_the_same_body() {
    let server = Server::start().await;
    let client = Client::builder().http2_prior_knowledge().build().unwrap();
    for (path, status, code) in [
        ("/nowhere", 404, "NOT_FOUND"),
        ("/v1/sessions/rubbish/heartbeat", 400, "VALIDATION_FAILED"),
    ] {
        let answer = client.post(url(&server, path)).send().await.unwrap();
        assert_eq!(answer.status(), status);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["code"], code, "{body}");
    }
    // More than a request's head may have.
    let answer = client
        .get(url(&server, "/health/live"))
        .header("x-long", "x".repeat(64 * 1024))
        .send()
        .await;
    assert!(answer.is_err() || answer.unwrap().status() == 431);
    let answer = client
        .get(url(&server, "/health/live"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
}
