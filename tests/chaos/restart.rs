//! Servers that are replaced under load: none that is told to stop cuts off a call or forgets an
//! answer, and the next works meanwhile.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::block_in_place;
use tokio::time::sleep;

use crate::checker::{Acquired, Call, check};
use crate::client;
use crate::support::database::TestDatabase;
use crate::support::program::Server;
use crate::support::server::tell;
use crate::witness::{Recorder, history, watch_deletions};
use crate::workload::Workload;

const SERVERS: usize = 5;

/// Lets the database write down every session and every grant, so that one that nobody was
/// told of is found: its call was cut off. Each takes a while, so that a signal finds some
/// under way.
async fn watch_grants(database: &TestDatabase) {
    database
        .execute(
            "CREATE TABLE granted (session_id uuid, token bigint);
             CREATE FUNCTION note_grant() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 PERFORM pg_sleep(0.03);
                 IF TG_TABLE_NAME = 'lock_session' THEN
                     INSERT INTO granted VALUES (NEW.session_id, NULL);
                 ELSE
                     INSERT INTO granted VALUES (NULL, NEW.fencing_token);
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER note_grant AFTER INSERT ON lock_session
                FOR EACH ROW EXECUTE FUNCTION note_grant();
             CREATE TRIGGER note_grant AFTER INSERT OR UPDATE OF fencing_token ON lock_entry
                FOR EACH ROW EXECUTE FUNCTION note_grant()",
        )
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_replaced_under_load_cut_nothing_off() {
    let database = TestDatabase::create().await;
    watch_deletions(&database.connect().await).await;
    watch_grants(&database).await;
    let database_url = database.url();
    let start = || {
        let arguments = [
            "--database-url",
            &database_url,
            "--policy-deadline",
            "60s",
            "--lock-reaper-interval",
            "50ms",
        ];
        block_in_place(|| Server::start(&arguments))
    };
    let mut server = start();
    let url = Arc::new(Mutex::new(server.url.clone()));
    let recorder = Arc::new(Recorder::new());

    let workload = Workload::over_http(&url, &recorder, &mut Rng::new());
    for _ in 1..SERVERS {
        sleep(Duration::from_millis(500)).await;
        let next = start();
        url.lock().unwrap().clone_from(&next.url);
        let before = std::mem::replace(&mut server, next);
        before.signal(libc::SIGTERM);
        let (status, log) = block_in_place(|| before.wait());
        assert!(status.success(), "{status}: {log}");
        assert!(!log.contains("were cut"), "{log}");
    }
    sleep(Duration::from_millis(500)).await;
    workload.stop().await;
    block_in_place(|| server.stop());

    let client = database.connect().await;
    let mut history = history(&client, &recorder).await;
    client::fill_in_closes(&mut history).unwrap();
    let violations = check(&history);
    assert!(violations.is_empty(), "{violations:#?}");
    let mut told = BTreeSet::new();
    for event in &history.events {
        match &event.call {
            Call::Open { session, .. } => told.insert((Some(session.uuid()), None)),
            Call::Acquire {
                answer: Some(Acquired::Granted { token, .. }),
                ..
            } => told.insert((None, Some(*token))),
            _ => false,
        };
    }
    let rows = client
        .query("SELECT session_id, token FROM granted", &[])
        .await;
    let granted: BTreeSet<(Option<uuid::Uuid>, Option<i64>)> = rows
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let (untold, lost) = (granted.difference(&told), told.difference(&granted));
    assert_eq!(
        untold.collect::<Vec<_>>(),
        [] as [&_; 0],
        "nobody was told of"
    );
    assert_eq!(
        lost.collect::<Vec<_>>(),
        [] as [&_; 0],
        "the database has lost"
    );
    tell(&format!(
        "{SERVERS} servers one after the other: {} calls, {} of them grants",
        history.events.len(),
        granted.len()
    ));
}
