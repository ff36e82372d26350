//! Clients that hold connections and ask for nothing, or never come to an end of it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tenure::http::{Listener, WireLimits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::support::host::LONG;

const SOON: Duration = Duration::from_millis(300);

async fn serve(connections: usize) -> SocketAddr {
    let here = Router::new().route("/", get(|| async { "here" }));
    serve_with(connections, SOON, here).await
}

async fn serve_with(connections: usize, unanswered: Duration, router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut limits = WireLimits::default();
    limits.connections = connections;
    limits.unanswered = unanswered;
    let listener = Listener::with_limits(listener, limits);
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

async fn is_answered(connection: &mut TcpStream) {
    let request = b"GET / HTTP/1.1\r\nHost: tenure\r\n\r\n";
    connection.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"here") {
        assert_ne!(connection.read_buf(&mut answer).await.unwrap(), 0);
    }
}

/// Reads until the server hangs up.
async fn until_it_ends(connection: &mut TcpStream) {
    // It may also reset the connection.
    let _ = connection.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn a_connection_that_asks_for_nothing_is_closed() {
    let address = serve(8).await;
    let begun = Instant::now();
    let mut idle = TcpStream::connect(address).await.unwrap();
    until_it_ends(&mut idle).await;
    assert!(begun.elapsed() >= SOON);

    // So is one that was answered, as long after that.
    let mut once = TcpStream::connect(address).await.unwrap();
    sleep(SOON / 2).await;
    let begun = Instant::now();
    is_answered(&mut once).await;
    until_it_ends(&mut once).await;
    assert!(begun.elapsed() >= SOON);
}

#[tokio::test]
async fn an_answer_has_its_time_from_when_it_was_asked_for() {
    // Two such parts are more than the limit, and each is far below it.
    const LIMIT: Duration = Duration::from_secs(4);
    const PART: Duration = Duration::from_millis(2500);
    let slow = get(|| async {
        sleep(PART).await;
        "here"
    });
    let address = serve_with(8, LIMIT, Router::new().route("/", slow)).await;
    let mut connection = TcpStream::connect(address).await.unwrap();
    sleep(PART).await;
    is_answered(&mut connection).await;
}

#[tokio::test]
async fn headers_that_never_end_are_given_up_however_they_drip() {
    let address = serve(8).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    let begun = Instant::now();
    slow.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    // A write fails once the server has hung up.
    while slow.write_all(b"X-More: and more\r\n").await.is_ok() {
        assert!(begun.elapsed() < 100 * SOON, "it goes on for ever");
        sleep(SOON / 10).await;
    }
}

#[tokio::test]
async fn more_connections_than_there_may_be_wait_until_others_end() {
    let address = serve(50).await;
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }

    // Behind all of them, and served when they have had their time.
    let mut last = TcpStream::connect(address).await.unwrap();
    is_answered(&mut last).await;
}

#[tokio::test]
async fn whoever_asks_on_and_on_and_reads_no_answer_is_cut_off() {
    // More than the kernel holds for both sides, and far less than a server's memory.
    const TOO_MUCH: usize = 256 << 20;
    let address = serve(8).await;
    let mut greedy = TcpStream::connect(address).await.unwrap();
    let requests = b"GET / HTTP/1.1\r\nHost: tenure\r\n\r\n".repeat(1000);
    let mut sent = 0;
    let mut send = async || {
        let written = timeout(LONG, greedy.write_all(&requests)).await;
        written.expect("it may go on")
    };
    while send().await.is_ok() {
        sent += requests.len();
        assert!(sent < TOO_MUCH, "what it asks is read on and on");
    }

    let mut other = TcpStream::connect(address).await.unwrap();
    is_answered(&mut other).await;
}
