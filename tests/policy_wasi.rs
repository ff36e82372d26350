//! What a policy finds of the world outside: a WASI that denies everything, and a log.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tenure::{Error, Limits, Policy, PolicyEngine, PolicyFault};
use tracing_subscriber::EnvFilter;

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG};
use crate::support::policies;

/// What the fixture says that it sees.
async fn seen(host: &Host, what: &str) -> String {
    match host.registry.open_session(what, LONG).await {
        Err(Error::Refused(seen)) => seen,
        other => panic!("{what}: {other:?}"),
    }
}

#[tokio::test]
pub(crate) async fn looks_around_wasi() {
    let database = TestDatabase::create().await;
    let host = Host::with_policy(&database, policies::LOOKS_AROUND_WASI);
    let policy = host.registry.policy();
    let imports = policy.imports();
    assert!(imports.iter().any(|import| import.starts_with("wasi:cli/")));

    for (what, sees) in [
        ("environment", "[] [] None"),
        ("stdin", "Err(StreamError::Closed)"),
        ("files", "0 folders"),
        (
            "network",
            "Some(ErrorCode { code: 1, name: \"access-denied\", message: \"\" }) \
             Some(ErrorCode { code: 20, name: \"permanent-resolver-failure\", message: \"\" })",
        ),
        ("time", "Datetime { seconds: 0, nanoseconds: 0 } 0 1"),
        ("chance", "283686952306183 [11, 15, 19, 23]"),
    ] {
        // Every call sees the same.
        for _ in 0..2 {
            assert_eq!(seen(&host, what).await, sees, "{what}");
        }
    }
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn a_policy_that_breaks_wasis_rules_costs_its_call() {
    let database = TestDatabase::create().await;
    let host = Host::with_policy(&database, policies::LOOKS_AROUND_WASI);

    for (what, says) in [
        ("exit", "exit"),
        ("much chance", "exceeds limit"),
        ("handles", "no free keys"),
    ] {
        match host.registry.open_session(what, LONG).await {
            Err(Error::Policy(PolicyFault::Trap(text))) => {
                assert!(text.to_lowercase().contains(says), "{what}: {text}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
    assert_eq!(seen(&host, "files").await, "0 folders");
}

#[tokio::test]
pub(crate) async fn sleeps() {
    let database = TestDatabase::create().await;
    let mut limits = Limits::default();
    limits.deadline = Duration::from_millis(200);
    limits.calls_in_flight = 1;
    let engine = PolicyEngine::new(limits).unwrap();
    let host = Host::on(
        database.pool(),
        Policy::load(&engine, policies::SLEEPS).unwrap(),
    );

    // The second would wait in vain if the first kept its slot.
    for _ in 0..2 {
        let answer = host.registry.open_session("tester", LONG).await;
        assert_eq!(
            answer.unwrap_err(),
            Error::DeadlineExceeded(engine.limits().deadline)
        );
    }
    assert_eq!(database.sessions().await, 0);
}

/// What is logged on this thread from here on, as JSON lines.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new("trace"))
            .with_writer(move || writer.clone())
            .json()
            .flatten_event(true)
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    /// The events of the policy.
    fn said(&self) -> Vec<Value> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&log)
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|event| event["message"] == "policy_says")
            .collect()
    }
}

/// A host whose policy has said nothing yet, so that its rate is its own.
async fn talkative() -> (TestDatabase, Host) {
    let database = TestDatabase::create().await;
    let host = Host::with_policy(&database, policies::SAYS_A_LOT);
    (database, host)
}

#[tokio::test]
pub(crate) async fn says_a_lot() {
    let (_database, host) = talkative().await;
    let (log, _guard) = Log::start();

    for calls in 1..=6 {
        let _ = host.registry.open_session("much", LONG).await.unwrap();
        assert_eq!(log.said().len(), 16 * calls);
    }
    // 96 of the 100 lines of a second have gone; unless the second has.
    let _ = host.registry.open_session("much", LONG).await.unwrap();

    let said = log.said();
    assert!(
        said.len() == 100 || said.len() == 112,
        "{} lines",
        said.len()
    );
    for (n, event) in said[..16].iter().enumerate() {
        assert_eq!(event["said"], format!("\"line {n}\""));
        assert_eq!(event["policy"], "says_a_lot");
        assert_eq!(event["operation"], "open-session");
        assert_eq!(event["dropped"], Value::Null);
    }
    // The rest of the first call's 100 lines.
    assert_eq!(said[16]["dropped"], 84);
    assert_eq!(said[17]["dropped"], Value::Null);
}

#[tokio::test]
async fn each_level_is_that_level() {
    let (_database, host) = talkative().await;
    let (log, _guard) = Log::start();

    let _ = host.registry.open_session("levels", LONG).await.unwrap();

    let said: Vec<_> = log
        .said()
        .iter()
        .map(|event| {
            let text = |field: &str| event[field].as_str().unwrap_or("").to_owned();
            (text("level"), text("context"), text("said"))
        })
        .collect();
    let expected = [
        ("TRACE", "", "\"at trace\""),
        ("DEBUG", "", "\"at debug\""),
        ("INFO", "\"place\"", "\"at info\""),
        ("WARN", "", "\"at warn\""),
        ("ERROR", "", "\"at error\""),
        ("ERROR", "", "\"at critical\""),
    ];
    assert_eq!(
        said,
        expected.map(|(level, context, said)| (level.into(), context.into(), said.into()))
    );
}

#[tokio::test]
async fn the_lines_of_a_stream_are_lines_of_the_log() {
    let (_database, host) = talkative().await;
    let (log, _guard) = Log::start();

    let _ = host.registry.open_session("streams", LONG).await.unwrap();

    let mut said: Vec<_> = log
        .said()
        .iter()
        .map(|event| format!("{} {} {}", event["level"], event["context"], event["said"]))
        .collect();
    said.sort();
    assert_eq!(
        said,
        [
            r#""INFO" "\"stdout\"" "\"in two pieces\"""#,
            r#""INFO" "\"stdout\"" "\"no end\"""#,
            r#""WARN" "\"stderr\"" "\"one\"""#,
            r#""WARN" "\"stderr\"" "\"two\"""#,
        ]
    );
}

#[tokio::test]
async fn a_line_is_cut_and_cannot_pass_for_two() {
    let (_database, host) = talkative().await;
    let (log, _guard) = Log::start();

    let _ = host.registry.open_session("length", LONG).await.unwrap();
    let _ = host.registry.open_session("forgery", LONG).await.unwrap();

    let said: Vec<_> = log
        .said()
        .iter()
        .map(|event| event["said"].as_str().unwrap().to_owned())
        .collect();
    let quoted = |text: &str, times| format!("\"{}\"", text.repeat(times));
    assert_eq!(
        said,
        [
            quoted("\u{e9}", 512),
            quoted("x", 1024),
            r#""a\nERROR b\u{1b}[2J""#.to_owned(),
        ]
    );
}
