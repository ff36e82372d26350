//! Any text in the place of an owner, a key or an id: taken or refused with the field named,
//! and never the server's fault.

use std::env;

use fastrand::Rng;
use serde_json::json;

use super::client::Server;
use crate::support::odd::{encoded, text};

const ROUNDS: usize = 300;

#[tokio::test]
async fn any_text_is_taken_or_refused_by_name() {
    let seed = match env::var("TENURE_TEST_SEED") {
        Ok(seed) => seed.parse().expect("TENURE_TEST_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    println!("TENURE_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let server = Server::start().await;
    let session = server.open("alice").await;
    let mut taken = [0; 2];
    for _ in 0..ROUNDS {
        let text = text(&mut rng, &[1, 3, 64, 65, 128, 129, 5000]);

        let opened = server
            .post("/v1/sessions", json!({ "ownerId": text }))
            .await;
        let readable = !text.trim().is_empty()
            && text.chars().count() <= 64
            && !text.chars().any(char::is_control);
        if readable {
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
        let body = json!({ "sessionId": text });
        let acquired = server.post("/v1/locks/k/acquire", body).await;
        acquired.blames("sessionId");
    }
    assert!(taken.iter().all(|taken| *taken > 0), "{taken:?}");
}
