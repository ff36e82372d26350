//! The default policy in another runtime: Node, with the host in `tests/edge/`, plays the
//! scenarios of `tenure policy check` on a real PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure::policy::LIFECYCLE;
use tenure::policy::conformance::scenarios;

use crate::support::database::TestDatabase;
use crate::support::policies;
use crate::support::program::{Ended, Folder, run};
use crate::support::toolchain;

fn edge() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("edge")
}

/// Plays the scenarios under a policy. Blocks; the server has a thread of its own.
fn play(database: &TestDatabase, policy: &[u8]) -> Ended {
    let folder = Folder::new();
    let file = folder.at("policy.wasm");
    std::fs::write(&file, policy).unwrap();
    let mut node = Command::new("node");
    node.arg(edge().join("play.js"))
        .arg(file)
        .env_remove("DATABASE_URL")
        .envs(database.environment());
    run(&mut node)
}

#[tokio::test]
async fn the_default_policy_passes_every_scenario_in_node() {
    if !toolchain::is_there(&edge().join("setup")) {
        return;
    }
    let database = TestDatabase::create().await;

    let played = play(&database, LIFECYCLE);

    let all = format!("{} passed, 0 failed\n", scenarios().len());
    assert!(played.stdout.ends_with(&all), "{played:?}");
    assert_eq!(played.code, Some(0), "{played:?}");
}

#[tokio::test]
async fn a_policy_that_misbehaves_is_found_out_in_node_too() {
    if !toolchain::is_there(&edge().join("setup")) {
        return;
    }
    let database = TestDatabase::create().await;
    for (policy, says) in [
        (
            policies::TRUE_ON_ZERO_ROWS,
            "violation: it called a dead session alive",
        ),
        (
            policies::FALSE_ON_FAULT,
            "violation: it hid a fault of the database",
        ),
        (
            policies::INSERTS_DURING_HEARTBEAT,
            "violation: it ran the statement open-session during heartbeat",
        ),
        (
            policies::TRAPS,
            "violation: it trapped: wasm trap: wasm `unreachable` instruction executed",
        ),
    ] {
        let played = play(&database, policy);

        assert_eq!(played.code, Some(1), "{played:?}");
        assert!(played.stdout.contains(says), "{played:?}");
    }
}
