//! `/health`

use tenure::{Database, DatabaseOptions};

use super::client::Server;
use crate::support::database::TestDatabase;
use crate::support::host::{Host, lifecycle};

const CONNECTIONS: &str = "SELECT count(*) FROM pg_stat_activity \
     WHERE datname = current_database() AND application_name = 'tenure'";

/// A port that nobody listens on: the one who had it is gone.
async fn nobody() -> Database {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let url = format!("postgres://tenure@127.0.0.1:{port}/lockdb");
    Database::new(&url, &DatabaseOptions::default()).unwrap()
}

async fn without_a_database() -> Server {
    let host = Host::on(nobody().await, lifecycle());
    Server::of(TestDatabase::create().await, host, |_| {}).await
}

#[tokio::test]
async fn live_does_not_touch_the_database_and_ready_does() {
    let database = TestDatabase::create().await;
    // A pool that has not been used yet.
    let host = Host::new(&database);
    let server = Server::of(database, host, |_| {}).await;
    server.database.until(0, CONNECTIONS).await;

    assert_eq!(server.get("/health/live").await.is(200)["status"], "ok");
    assert_eq!(server.database.scalar::<i64>(CONNECTIONS).await, 0);
    assert_eq!(server.get("/health/ready").await.is(200)["status"], "ok");
    assert_eq!(server.database.scalar::<i64>(CONNECTIONS).await, 1);
}

#[tokio::test]
async fn without_a_database_the_server_is_live_and_not_ready() {
    let server = without_a_database().await;

    server.get("/health/live").await.is(200);
    let answer = server.get("/health/ready").await;
    let body = answer.is_error(503, "NOT_READY");
    let message = body["message"].as_str().unwrap();
    assert!(
        message.starts_with("the database does not answer: "),
        "{message}"
    );
}

#[tokio::test]
async fn without_a_database_everything_else_is_contention() {
    let server = without_a_database().await;
    let session = uuid::Uuid::new_v4().into();

    for answer in [
        server
            .request("POST", "/v1/sessions")
            .header("X-Owner-Id", "a")
            .send()
            .await,
        server.heartbeat(&session).await,
        server.close(&session).await,
        server.get(&format!("/v1/sessions/{session}/locks")).await,
        server.acquire("a", &session).await,
        server.renew("a", 1).await,
        server.release("a", 1).await,
        server.get("/v1/locks/a").await,
    ] {
        answer.is_error(503, "CONTENTION");
    }
}

#[tokio::test]
async fn a_server_whose_connections_were_cut_is_ready_again() {
    let server = Server::start().await;
    server.get("/health/ready").await.is(200);

    server
        .database
        .execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'tenure'",
        )
        .await;

    // The pool may notice only by using one of them.
    let mut answer = server.get("/health/ready").await;
    if answer.status != 200 {
        answer.is_error(503, "NOT_READY");
        answer = server.get("/health/ready").await;
    }
    answer.is(200);
}

#[tokio::test]
async fn a_server_that_is_stopping_is_live_and_not_ready() {
    let server = Server::start().await;
    server.get("/health/ready").await.is(200);

    server.stop();

    server.get("/health/live").await.is(200);
    let answer = server.get("/health/ready").await;
    let body = answer.is_error(503, "NOT_READY");
    assert_eq!(body["message"], "the server is stopping");
}
