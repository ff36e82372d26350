//! Policies with settings: what they read, and what the policies that come with Tenure make
//! of theirs.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::http::{self, App};
use tenure::policy::LIFECYCLE;
use tenure::{Error, Heartbeat, Lease, Policy, PolicyOptions, Profile};
use tokio::net::TcpListener;
use tokio::sync::watch;
use wac_graph::types::Package;
use wac_graph::{CompositionGraph, EncodeOptions, plug};

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, engine};
use crate::support::policies;

fn load(component: &[u8], settings: &[(&str, &str)]) -> Policy {
    let mut options = PolicyOptions::default();
    options.settings = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Policy::load_with(engine(), component, &options).unwrap()
}

fn host(database: &TestDatabase, component: &[u8], settings: &[(&str, &str)]) -> Host {
    Host::on(database.pool(), load(component, settings))
}

/// `middleware` in front of `policy`, as `wac plug` does it.
fn compose(middleware: &[u8], policy: &[u8]) -> Vec<u8> {
    let mut graph = CompositionGraph::new();
    let [middleware, policy] =
        [("test:middleware", middleware), ("test:policy", policy)].map(|(name, component)| {
            let package = Package::from_bytes(name, None, component, graph.types_mut()).unwrap();
            graph.register_package(package).unwrap()
        });
    plug(&mut graph, vec![policy], middleware).unwrap();
    graph.encode(EncodeOptions::default()).unwrap()
}

async fn refusal(host: &Host, owner: &str) -> String {
    match host.registry.open_session(owner, LONG).await {
        Err(Error::Refused(reason)) => reason,
        other => panic!("{owner}: {other:?}"),
    }
}

#[tokio::test]
pub(crate) async fn reads_settings() {
    let database = TestDatabase::create().await;
    let some = host(
        &database,
        policies::READS_SETTINGS,
        &[("a", "1"), ("b", "")],
    );
    let others = host(&database, policies::READS_SETTINGS, &[("a", "2")]);
    let none = Host::with_policy(&database, policies::READS_SETTINGS);

    for (host, key, sees) in [
        (&some, "a", r#"Some("1") of [("a", "1"), ("b", "")]"#),
        (&others, "a", r#"Some("2") of [("a", "2")]"#),
        (&some, "b", r#"Some("") of [("a", "1"), ("b", "")]"#),
        (&some, "c", r#"None of [("a", "1"), ("b", "")]"#),
        (&none, "a", "None of []"),
    ] {
        assert_eq!(refusal(host, key).await, sees);
    }
    assert_eq!(some.registry.policy().settings()["a"], "1");
}

#[tokio::test]
async fn clamp_grants_the_nearest_ttl_within_its_bounds() {
    let database = TestDatabase::create().await;
    let host = host(
        &database,
        policies::CLAMP,
        &[
            ("min-ttl-ms", "5000"),
            ("max-ttl-ms", "30000"),
            ("max-ttl-ms.batch-", "600000"),
        ],
    );
    let day = Duration::from_secs(24 * 60 * 60);
    for (owner, asked_ms, granted_ms) in [
        ("worker", 1, 5_000),
        ("worker", 20_000, 20_000),
        ("worker", 60_000, 30_000),
        ("batch-1", 60_000, 60_000),
        ("batch-1", 86_400_000, 600_000),
    ] {
        let asked = Duration::from_millis(asked_ms);
        let session = host.registry.open_session(owner, asked).await.unwrap();
        assert_eq!(
            session.lease.ttl,
            Duration::from_millis(granted_ms),
            "{owner}"
        );
        let stored: i64 = database
            .scalar(&format!(
                "SELECT round(extract(epoch FROM expires_at - created_at) * 1000)::bigint
                   FROM lock_session WHERE session_id = '{}'",
                session.id
            ))
            .await;
        assert_eq!(stored, i64::try_from(granted_ms).unwrap());
    }
    let session = host.registry.open_session("batch-1", day).await.unwrap();

    // It does not say whose session it is, and has the bounds for everybody.
    let beat = host.registry.heartbeat(&session.id, day).await.unwrap();

    let Heartbeat::Alive(Lease { ttl, .. }) = beat else {
        panic!("{beat:?}")
    };
    assert_eq!(ttl, Duration::from_secs(30));
}

#[tokio::test]
async fn clamp_has_the_default_policys_rules_for_all_else() {
    let database = TestDatabase::create().await;
    let host = host(&database, policies::CLAMP, &[]);
    let registry = &host.registry;

    let blank = registry.open_session(" ", LONG).await;
    let no_id = registry.heartbeat("no id", LONG).await;
    let session = host.open(LONG).await;
    let _ = host.lock("a", &session).await;
    let locks = registry.locks_of(&session).await.unwrap();
    let closed = registry.close_session(&session).await.unwrap();

    assert!(matches!(blank, Err(Error::InvalidArgument(_))), "{blank:?}");
    assert!(matches!(no_id, Err(Error::InvalidArgument(_))), "{no_id:?}");
    assert_eq!(locks, ["a"]);
    assert_eq!(closed.locks_released, 1);
    assert_eq!(registry.policy().counts().violations, 0);
}

#[tokio::test]
async fn settings_that_make_no_sense_let_nobody_in_and_are_named() {
    let database = TestDatabase::create().await;
    let clamp = host(&database, policies::CLAMP, &[("max-ttl-ms", "soon")]);
    let session = Host::new(&database).open(LONG).await;

    let opened = refusal(&clamp, "tester").await;
    let beat = clamp.registry.heartbeat(&session, LONG).await;

    assert!(opened.contains("max-ttl-ms has to be"), "{opened}");
    assert_eq!(beat, Err(Error::Refused(opened)));
    assert_eq!(database.sessions().await, 1);
}

const ADMISSION: &[(&str, &str)] = &[
    ("naming.characters", "a-z0-9-"),
    ("naming.max-length", "70"),
    ("deny", "*-test"),
    ("allow", "worker-*, batch-?"),
];

#[tokio::test]
async fn admission_stands_in_front_of_a_policy() {
    let database = TestDatabase::create().await;
    let composed = compose(policies::ADMISSION, LIFECYCLE);
    let host = host(&database, &composed, ADMISSION);
    let policy = host.registry.policy();
    assert_eq!(policy.profile(), Profile::Strict);
    assert_eq!(policy.exports(), ["tenure:registry/session-registry@0.1.0"]);
    let mut imports = policy.imports().to_vec();
    imports.sort();
    assert_eq!(
        imports,
        [
            "tenure:registry/statements@0.1.0",
            "tenure:registry/types@0.1.0",
            "wasi:config/store@0.2.0-rc.1",
        ]
    );

    for (owner, reason) in [
        (
            "Worker-1",
            "owner-id must have no other characters than a-z0-9-",
        ),
        ("worker-test", "owner-id must not match *-test"),
        ("tester", "owner-id must match one of worker-*, batch-?"),
    ] {
        assert_eq!(refusal(&host, owner).await, reason);
    }
    // Admitted, and refused by the policy behind.
    let too_long = format!("worker-{}", "x".repeat(60));
    let answer = host.registry.open_session(&too_long, LONG).await;
    assert!(
        matches!(answer, Err(Error::InvalidArgument(_))),
        "{answer:?}"
    );
    assert_eq!(database.sessions().await, 0);

    let registry = &host.registry;
    let session = registry.open_session("worker-1", LONG).await.unwrap().id;
    let _ = host.lock("a", &session).await;
    assert!(registry.heartbeat(&session, LONG).await.unwrap().is_alive());
    assert_eq!(registry.locks_of(&session).await.unwrap(), ["a"]);
    assert_eq!(
        registry
            .close_session(&session)
            .await
            .unwrap()
            .locks_released,
        1
    );
    assert!(!registry.heartbeat(&session, LONG).await.unwrap().is_alive());
    assert_eq!(registry.policy().counts().violations, 0);
}

#[tokio::test]
async fn middleware_stands_in_front_of_a_composition_too() {
    let database = TestDatabase::create().await;
    let twice = compose(
        policies::ADMISSION,
        &compose(policies::ADMISSION, policies::CLAMP),
    );
    let settings = [("allow", "worker-*"), ("max-ttl-ms", "2000")];
    let host = host(&database, &twice, &settings);

    let session = host.registry.open_session("worker-1", LONG).await.unwrap();

    assert_eq!(host.registry.policy().profile(), Profile::Strict);
    assert_eq!(session.lease.ttl, Duration::from_secs(2));
    assert!(refusal(&host, "tester").await.contains("worker-*"));
}

#[tokio::test]
async fn clients_are_told_the_reason_of_a_refusal_and_the_ttl_that_is_granted() {
    let database = TestDatabase::create().await;
    let composed = compose(policies::ADMISSION, policies::CLAMP);
    let mut settings = ADMISSION.to_vec();
    settings.push(("max-ttl-ms", "5000"));
    let Host {
        pool,
        registry,
        locks,
    } = host(&database, &composed, &settings);
    let (_stop, stopping) = watch::channel(false);
    let router = http::router(App {
        registry,
        locks,
        database: pool,
        session_ttl: Duration::from_secs(15),
        lock_ttl: Duration::from_secs(30),
        token: None,
        stopping,
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/sessions", listener.local_addr().unwrap());
    tokio::spawn(axum::serve(listener, router).into_future());
    let open = async |owner: &str| {
        let request = reqwest::Client::new()
            .post(&url)
            .json(&json!({ "ownerId": owner }));
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        (status, response.json::<Value>().await.unwrap())
    };

    let (refused, why) = open("tester").await;
    let (created, session) = open("worker-1").await;

    assert_eq!(refused, 403);
    assert_eq!(why["code"], "REFUSED");
    assert_eq!(
        why["message"],
        "owner-id must match one of worker-*, batch-?"
    );
    assert_eq!(created, 201);
    assert_eq!(session["ttlMillis"], 5000);
}
