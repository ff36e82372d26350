//! How the statements run on the table: by which plans, and what a heartbeat leaves behind.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::postgres::private::PrivateCluster;
use tenure::postgres::{Statements, sql};
use tenure::{Database, DatabaseOptions, PinnedStatements};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::pool::{settings, watched_database};
use crate::support::database::TestDatabase;

/// The plan of each statement, without what it is thought to cost.
async fn plans(client: &Client) -> BTreeMap<&'static str, String> {
    let mut plans = BTreeMap::new();
    for (file, statement) in sql::ALL {
        let parameters = (1..)
            .take_while(|number| statement.contains(&format!("${number}")))
            .map(|_| "NULL")
            .collect::<Vec<_>>()
            .join(", ");
        let execute = match parameters.as_str() {
            "" => "EXECUTE pinned".to_owned(),
            some => format!("EXECUTE pinned({some})"),
        };
        client
            .batch_execute(&format!("PREPARE pinned AS {statement}"))
            .await
            .unwrap();
        let rows = client
            .query(&format!("EXPLAIN (COSTS OFF) {execute}"), &[])
            .await
            .unwrap();
        let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        plans.insert(*file, lines.join("\n"));
        client.batch_execute("DEALLOCATE pinned").await.unwrap();
    }
    plans
}

/// Adds sessions, each with a lock, up to so many.
async fn fill(client: &Client, sessions: i64) {
    client
        .batch_execute(&format!(
            "SET session_replication_role = replica;
             INSERT INTO lock_session (session_id, owner_id, expires_at)
             SELECT gen_random_uuid(), 'tester', now() + interval '1 day'
               FROM generate_series(1, {sessions} - (SELECT count(*) FROM lock_session));
             INSERT INTO lock_entry
             SELECT session_id::text, owner_id, session_id, 1, now(), expires_at
               FROM lock_session LIMIT 100000
                 ON CONFLICT DO NOTHING;
             SET session_replication_role = origin;"
        ))
        .await
        .unwrap();
    client
        .batch_execute("VACUUM ANALYZE lock_session, lock_entry")
        .await
        .unwrap();
}

#[tokio::test]
async fn no_plan_depends_on_how_large_the_tables_are() {
    let watched = watched_database().await;
    let of_the_host = settings(&watched, watched.pool()).await;
    let database = TestDatabase::create().await;
    let client = database.connect().await;
    for (name, value) in &of_the_host {
        if name.starts_with("enable_") || name == "jit" || name == "plan_cache_mode" {
            client
                .batch_execute(&format!("SET {name} = '{value}'"))
                .await
                .unwrap();
        }
    }

    let empty = plans(&client).await;
    fill(&client, 10).await;
    let small = plans(&client).await;
    fill(&client, 1_000_000).await;
    let large = plans(&client).await;

    assert_eq!(small, empty);
    assert_eq!(large, empty);
    for (file, plan) in large {
        // A sequence is one row, which is scanned.
        let plan = plan.replace("Seq Scan on fencing_token_seq", "");
        assert!(!plan.contains("Seq Scan"), "{file}:\n{plan}");
        // There is no index by which to find the dead: it would make every heartbeat change
        // it. The reaper looks through a slice of the table.
        assert_eq!(
            plan.contains("Tid Range Scan"),
            file == "reap_find.sql",
            "{file}:\n{plan}"
        );
    }
}

#[tokio::test]
async fn every_heartbeat_is_a_heap_only_update() {
    const SESSIONS: usize = 1000;
    // A server of its own: what an update leaves is pruned only when no transaction is open
    // that began before, be it in another database.
    let cluster = PrivateCluster::start_temporary().await.unwrap();
    let database = Database::new(&cluster.url("postgres"), &DatabaseOptions::default()).unwrap();
    database.migrate().await.unwrap();
    let statements = PinnedStatements::new(database);
    let mut ids = Vec::new();
    for _ in 0..SESSIONS {
        let id = Uuid::new_v4();
        statements.open_session(id, "tester", 60_000).await.unwrap();
        ids.push(id);
    }

    const ROUNDS: usize = 20;
    for _ in 0..ROUNDS {
        fastrand::shuffle(&mut ids);
        let beats = ids.iter().map(|id| statements.heartbeat(*id, 60_000));
        for answer in join_all(beats).await {
            assert!(answer.unwrap().is_some());
        }
    }

    let count = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
                  WHERE relname = 'lock_session'";
    // A backend that ends has told all that it has counted.
    drop(statements);
    let (client, connection) = tokio_postgres::connect(&cluster.url("postgres"), NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let all = (ROUNDS * SESSIONS) as i64;
    let hot = loop {
        let row = client.query_one(count, &[]).await.unwrap();
        if row.get::<_, i64>(0) == all {
            break row.get::<_, i64>(1);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(hot, all);
    cluster.stop().await.unwrap();
}
