//! More calls than a host can carry: it answers what it can, sheds the rest as contention,
//! and keeps alive the sessions that live.

use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::json;
use tenure::policy::LIFECYCLE;
use tenure::{Acquired, DatabaseOptions, Error, Limits, Policy, PolicyEngine, SessionId};
use tokio::task::JoinSet;

use crate::support::database::{Gate, TestDatabase};
use crate::support::host::{Host, LONG, key};
use crate::support::program::{Server, answer};

/// Connections of each host here, of which one is kept for heartbeats.
const CONNECTIONS: usize = 4;

/// Calls that run, and that may wait to.
const CARRIED: usize = 3 + 3 * 64;

/// About three times of that.
const FLOOD: usize = 600;

/// Where the flood waits, so that it holds all that it has been given.
const AT_OPENING: &str = "BEFORE INSERT ON lock_session FOR EACH ROW WHEN (NEW.owner_id = 'flood')";
const AT_ACQUIRING: &str = "BEFORE INSERT ON lock_entry FOR EACH ROW";

/// Whose calls wait as long as there is.
fn host(database: &TestDatabase, calls_in_flight: u32) -> Arc<Host> {
    let mut limits = Limits::default();
    limits.calls_in_flight = calls_in_flight;
    limits.deadline = LONG;
    let policy = Policy::load(&PolicyEngine::new(limits).unwrap(), LIFECYCLE).unwrap();
    let mut options = DatabaseOptions::default();
    options.connections = CONNECTIONS;
    options.queue_timeout = LONG;
    options.lock_timeout = LONG;
    options.statement_timeout = LONG;
    Arc::new(Host::on(database.pool_with(&options), policy))
}

async fn open_some(host: &Host) -> Vec<SessionId> {
    join_all((0..20).map(|_| host.open(LONG))).await
}

/// All of them at once, and each alone.
async fn all_live_on(host: &Host, sessions: &[SessionId]) {
    let beats = sessions.iter().map(|id| host.registry.heartbeat(id, LONG));
    let mut answers = join_all(beats).await;
    for session in sessions {
        answers.push(host.registry.heartbeat(session, LONG).await);
    }
    for answer in answers {
        assert!(
            answer.as_ref().is_ok_and(|beat| beat.is_alive()),
            "{answer:?}"
        );
    }
}

/// Calls of a flood, by number.
fn flood<C>(host: &Arc<Host>, call: impl Fn(Arc<Host>, usize) -> C) -> JoinSet<Result<(), Error>>
where
    C: Future<Output = Result<(), Error>> + Send + 'static,
{
    (0..FLOOD).map(|nth| call(Arc::clone(host), nth)).collect()
}

async fn open(host: Arc<Host>, _: usize) -> Result<(), Error> {
    host.registry.open_session("flood", LONG).await.map(drop)
}

/// While the gate is shut, `shed` of the flood end, as contention, and no session that lives
/// notices; once it is open, all others do what they are to do.
async fn is_weathered(
    mut flood: JoinSet<Result<(), Error>>,
    shed: usize,
    database: &TestDatabase,
    host: &Host,
    sessions: &[SessionId],
    gate: Gate,
) {
    for _ in 0..shed {
        let answer = flood.join_next().await.unwrap().unwrap();
        assert!(matches!(answer, Err(Error::Contention(_))), "{answer:?}");
    }
    database.until_somebody_waits(3).await;

    all_live_on(host, sessions).await;
    host.pool.ping().await.unwrap();
    gate.open().await;

    while let Some(answer) = flood.join_next().await {
        answer.unwrap().unwrap();
    }
    // There is room again.
    host.open(LONG).await;
}

#[tokio::test]
async fn opens_that_want_every_connection_leave_heartbeats_theirs() {
    let database = TestDatabase::create().await;
    let host = host(&database, 1024);
    let sessions = open_some(&host).await;
    let gate = Gate::shut(&database, AT_OPENING).await;

    let flood = flood(&host, open);

    is_weathered(flood, FLOOD - CARRIED, &database, &host, &sessions, gate).await;
}

#[tokio::test]
async fn acquires_that_want_every_connection_leave_heartbeats_theirs() {
    let database = TestDatabase::create().await;
    let host = host(&database, 1024);
    let sessions = open_some(&host).await;
    let gate = Gate::shut(&database, AT_ACQUIRING).await;

    let session = sessions[0].clone();
    let flood = flood(&host, |host, nth| {
        let session = session.clone();
        async move {
            let key = key(&format!("k{nth}"));
            match host.locks.try_insert(&key, &session, LONG).await? {
                Acquired::Granted(_) => Ok(()),
                held => panic!("{held:?}"),
            }
        }
    });

    is_weathered(flood, FLOOD - CARRIED, &database, &host, &sessions, gate).await;
}

/// Fewer than may wait for a connection.
#[tokio::test]
async fn opens_that_want_every_slot_leave_heartbeats_theirs() {
    let database = TestDatabase::create().await;
    let host = host(&database, 40);
    let sessions = open_some(&host).await;
    let gate = Gate::shut(&database, AT_OPENING).await;

    let flood = flood(&host, open);

    // All but a quarter of the slots, and as many who wait.
    is_weathered(flood, FLOOD - 60, &database, &host, &sessions, gate).await;
}

/// The usual limits, so that what waits gives up by itself.
#[tokio::test]
async fn whoever_is_shed_is_told_when_to_try_again() {
    let database = TestDatabase::create_empty().await;
    let connections = CONNECTIONS.to_string();
    let server = Server::start(&[
        "--database-url",
        &database.url(),
        "--database-connections",
        &connections,
    ]);
    let session = server.open("lives", 60_000).await;
    let gate = Gate::shut(&database, AT_OPENING).await;
    let open = || {
        let request = server.request("POST", "/v1/sessions");
        answer(request.json(&json!({ "ownerId": "flood" })))
    };

    let mut flood = JoinSet::new();
    for _ in 0..FLOOD {
        flood.spawn(open());
    }
    let mut shed = 0;
    while let Some(answer) = flood.join_next().await {
        let (status, body) = answer.unwrap();
        assert_eq!(
            (status, &body["code"]),
            (503, &json!("CONTENTION")),
            "{body}"
        );
        assert_eq!(body["retrySafe"], true, "{body}");
        let after = body["retryAfterMillis"].as_u64();
        assert!(
            after.is_some_and(|after| (50..250).contains(&after)),
            "{body}"
        );
        shed += 1;
        // Some of them wait, and heartbeats go before these.
        if shed % 20 == 0 {
            let beat = format!("/v1/sessions/{session}/heartbeat");
            let (status, beat) = server.post(&beat, json!({})).await;
            assert_eq!(status, 200, "{beat}");
            let (status, ready) = server.get("/health/ready").await;
            assert_eq!(status, 200, "{ready}");
        }
    }
    assert_eq!(shed, FLOOD);
    gate.open().await;

    let (status, opened) = open().await;
    assert_eq!(status, 201, "{opened}");
    let _ = server.lock("k", &session).await;
    server.stop();
}
