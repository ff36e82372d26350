//! What a call of a policy costs beside the database: heartbeats on statements that answer
//! at once. `cargo bench -p tenure --bench policy_call [-- FILE.wasm]`
//!
//! `CALLS=n valgrind --tool=callgrind PROGRAM` makes so many calls and no more, on fresh
//! instances: the instructions of a call are the difference between two such numbers.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use async_trait::async_trait;
use tenure::policy::LIFECYCLE;
use tenure::postgres::{Statements, StoreError};
use tenure::{Limits, Policy, PolicyEngine, PolicyOptions, Profile, SessionRegistry};
use uuid::Uuid;

struct AtOnce;

#[async_trait]
impl Statements for AtOnce {
    async fn open_session(&self, _: Uuid, _: &str, _: i64) -> Result<SystemTime, StoreError> {
        Ok(SystemTime::UNIX_EPOCH)
    }

    async fn heartbeat(&self, _: Uuid, _: i64) -> Result<Option<SystemTime>, StoreError> {
        Ok(Some(SystemTime::UNIX_EPOCH))
    }

    async fn close_session(&self, _: Uuid) -> Result<Option<u32>, StoreError> {
        Ok(Some(0))
    }

    async fn locks_of(&self, _: Uuid) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }
}

const ROUNDS: usize = 11;
const ROUND: Duration = Duration::from_millis(200);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // cargo passes `--bench`.
    let file = env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let component = match file {
        Some(path) => fs::read(path).unwrap(),
        None => LIFECYCLE.to_vec(),
    };
    if let Ok(calls) = env::var("CALLS") {
        let registry = registry(&component, 1);
        for _ in 0..calls.parse().unwrap() {
            beat(&registry).await;
        }
        return;
    }
    for calls_per_instance in [1, 100] {
        measure(&component, calls_per_instance).await;
    }
}

const SESSION: &str = "b2c5d5d8-7d1e-4c3a-9f5e-0d9a6a1c7e42";

fn registry(component: &[u8], calls_per_instance: u32) -> SessionRegistry {
    let mut limits = Limits::default();
    limits.calls_per_instance = calls_per_instance;
    // There is one at a time; and what runs this under valgrind has little address space.
    limits.calls_in_flight = 2;
    let engine = PolicyEngine::new(limits).unwrap();
    let mut options = PolicyOptions::default();
    options.profile = Profile::Interpreted;
    let policy = Policy::load_with(&engine, component, &options).unwrap();
    SessionRegistry::new(policy, Arc::new(AtOnce))
}

async fn beat(registry: &SessionRegistry) {
    let beat = registry.heartbeat(SESSION, Duration::from_secs(15)).await;
    assert!(beat.unwrap().is_alive());
}

async fn measure(component: &[u8], calls_per_instance: u32) {
    let registry = registry(component, calls_per_instance);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut calls = 0;
        while began.elapsed() < ROUND {
            beat(&registry).await;
            calls += 1;
        }
        rounds.push(began.elapsed() / calls);
    }
    rounds.sort();
    println!(
        "{}, {calls_per_instance} calls an instance: {:?} a call (median of {ROUNDS} rounds; \
         fastest {:?})",
        registry.policy().name(),
        rounds[ROUNDS / 2],
        rounds[0]
    );
}
