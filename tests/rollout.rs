//! Putting another policy in charge: what passes and what does not, the ways back, and what
//! the calls notice of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base64ct::{Base64, Encoding};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tenure::http::{self, App, BearerToken};
use tenure::policy::LIFECYCLE;
use tenure::rollout::{Candidate, Origin, Rejection, Requirements, Rollout, TrustedKeys, sign};
use tenure::{Error, Heartbeat, LockStore, PinnedStatements, PolicyOptions, SessionRegistry};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::database::TestDatabase;
use crate::support::host::{LONG, patient_engine, patient_pool};
use crate::support::policies;

// From RFC 8032, 7.1: the keys of the first test, and the public one of the second.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
    -----END PRIVATE KEY-----\n";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
    -----END PUBLIC KEY-----\n";
const ANOTHER: &str = "-----BEGIN PUBLIC KEY-----\n\
    MCowBQYDK2VwAyEAPUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=\n\
    -----END PUBLIC KEY-----\n";

fn candidate(component: &[u8]) -> Candidate {
    Candidate {
        component: component.into(),
        signature: None,
        origin: Origin::Request,
    }
}

fn embedded() -> Candidate {
    Candidate {
        origin: Origin::Embedded,
        ..candidate(LIFECYCLE)
    }
}

/// Its digest, by another road than the host's.
fn digest(component: &[u8]) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(component)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// As demanding as the default, and quicker where there are many rounds.
fn undemanding() -> Requirements {
    let mut requirements = Requirements::default();
    requirements.operations = 20;
    requirements
}

/// Keeps every rule, and lets only workers in.
const STRICTER: &[u8] = policies::STRICTER;

async fn start(database: &TestDatabase, requirements: Requirements) -> Rollout {
    start_with(database, requirements, embedded())
        .await
        .unwrap()
}

async fn start_with(
    database: &TestDatabase,
    requirements: Requirements,
    first: Candidate,
) -> Result<Rollout, Rejection> {
    Rollout::start(
        patient_engine().clone(),
        database.pool(),
        requirements,
        PolicyOptions::default(),
        first,
    )
    .await
}

fn registry(database: &TestDatabase, rollout: &Rollout) -> SessionRegistry {
    SessionRegistry::with_slot(
        rollout.slot().clone(),
        Arc::new(PinnedStatements::new(patient_pool(database))),
    )
}

#[tokio::test]
async fn a_policy_that_passes_is_in_charge_of_the_next_call() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, Requirements::default()).await;
    let registry = registry(&database, &rollout);
    let session = registry.open_session("anybody", LONG).await.unwrap().id;

    let revision = rollout.propose(candidate(STRICTER)).await.unwrap();

    assert_eq!(revision.policy.sha256(), digest(STRICTER));
    assert_eq!(revision.origin, Origin::Request);
    assert_eq!(
        registry.open_session("anybody", LONG).await,
        Err(Error::Refused("workers only".to_owned()))
    );
    // The session is the database's, whoever let it in.
    let beat = registry.heartbeat(&session, LONG).await.unwrap();
    assert!(matches!(beat, Heartbeat::Alive(_)));
    let counts = rollout.current().await.policy.counts();
    assert_eq!((counts.calls, counts.refusals), (2, 1));
}

#[tokio::test]
async fn a_call_ends_under_the_policy_that_it_began_with_whose_memory_then_goes() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, Requirements::default()).await;
    let registry = registry(&database, &rollout);
    let session = registry.open_session("anybody", LONG).await.unwrap().id;
    let before = Arc::downgrade(&rollout.slot().load());
    // The call is in the middle of its statement.
    let row = database.hold(&session).await;
    let call = tokio::spawn({
        let (registry, session) = (registry.clone(), session.clone());
        async move { registry.close_session(&session).await }
    });
    database.until_somebody_waits(1).await;

    let revision = rollout.propose(candidate(STRICTER)).await.unwrap();
    assert!(before.upgrade().is_some(), "its call is under way");
    assert_eq!(
        registry.open_session("anybody", LONG).await,
        Err(Error::Refused("workers only".to_owned()))
    );
    row.batch_execute("COMMIT").await.unwrap();

    let closed = call.await.unwrap().unwrap();
    assert!(closed.existed);
    assert!(before.upgrade().is_none(), "nobody needs it any more");
    assert_eq!(revision.policy.counts().calls, 1);
}

#[tokio::test]
async fn what_does_not_pass_changes_nothing_and_the_error_says_why() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, Requirements::default()).await;
    for (component, why) in [
        (&b"rubbish"[..], "no component"),
        (&b""[..], "no component"),
        (policies::TRUE_ON_ZERO_ROWS, "called a dead session alive"),
        (policies::FALSE_ON_FAULT, "expected"),
        (policies::TRAPS, "expected"),
        (policies::LOOPS_FOR_EVER, "expected"),
        (policies::EATS_MEMORY, "expected"),
    ] {
        let rejection = rollout.propose(candidate(component)).await.unwrap_err();
        assert!(rejection.to_string().contains(why), "{why}: {rejection}");
        let now = rollout.current().await;
        assert_eq!(now.policy.sha256(), digest(LIFECYCLE));
        assert_eq!(now.origin, Origin::Embedded);
    }
    assert!(matches!(
        rollout.roll_back().await,
        Err(Rejection::NothingBefore)
    ));
}

/// A candidate whose check takes for ever.
#[tokio::test]
async fn a_candidate_that_sleeps_is_in_nobodys_way_back() {
    let database = TestDatabase::create().await;
    let mut requirements = Requirements::default();
    requirements.patience = LONG;
    let rollout = start(&database, requirements).await;
    rollout.propose(candidate(STRICTER)).await.unwrap();
    let sleeper = tokio::spawn({
        let rollout = rollout.clone();
        async move { rollout.propose(candidate(policies::SLEEPS)).await }
    });
    // Long enough for it to have its turn. The first wait of its own is for the check.
    tokio::task::yield_now().await;

    assert_eq!(rollout.current().await.policy.sha256(), digest(STRICTER));
    let back = rollout.roll_back().await.unwrap();
    assert_eq!(back.policy.sha256(), digest(LIFECYCLE));
    assert!(!sleeper.is_finished(), "its check goes on");

    // Nor is it in the way of another, once nobody waits for it.
    sleeper.abort();
    let next = rollout.propose(candidate(STRICTER)).await.unwrap();
    assert_eq!(next.policy.sha256(), digest(STRICTER));
}

#[tokio::test]
async fn a_check_that_does_not_end_is_failed() {
    let database = TestDatabase::create().await;
    let mut requirements = Requirements::default();
    requirements.patience = Duration::from_millis(500);
    let hasty = Rollout::start(
        patient_engine().clone(),
        database.pool(),
        requirements,
        PolicyOptions::default(),
        candidate(policies::SLEEPS),
    )
    .await;
    let Err(Rejection::Nonconforming(why)) = hasty else {
        panic!("{hasty:?}");
    };
    assert!(why.contains("ends in time"), "{why}");
}

#[tokio::test]
async fn the_same_policy_again_changes_nothing() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, Requirements::default()).await;
    let before = rollout.slot().load();

    rollout.propose(candidate(LIFECYCLE)).await.unwrap();

    assert!(Arc::ptr_eq(&before, &rollout.slot().load()));
    assert!(matches!(
        rollout.roll_back().await,
        Err(Rejection::NothingBefore)
    ));
}

#[tokio::test]
async fn there_is_one_way_back() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, Requirements::default()).await;
    rollout.propose(candidate(STRICTER)).await.unwrap();

    let back = rollout.roll_back().await.unwrap();

    assert_eq!(back.policy.sha256(), digest(LIFECYCLE));
    assert!(back.rolled_back);
    assert_eq!(back.origin, Origin::Embedded);
    assert!(matches!(
        rollout.roll_back().await,
        Err(Rejection::NothingBefore)
    ));
    // And the one that was left may come again.
    let again = rollout.propose(candidate(STRICTER)).await.unwrap();
    assert!(!again.rolled_back);
}

#[tokio::test]
async fn other_settings_make_another_policy_and_the_way_back_has_the_old_ones() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, Requirements::default()).await;
    let mut options = PolicyOptions::default();
    options.settings.insert("a".to_owned(), "1".to_owned());
    let before = rollout.slot().load();

    let revision = rollout.configure(None, options.clone()).await.unwrap();
    assert_eq!(revision.policy.settings(), &options.settings);
    assert!(!Arc::ptr_eq(&before, &rollout.slot().load()));
    let again = rollout.configure(None, options).await.unwrap();
    assert!(Arc::ptr_eq(&revision.policy, &again.policy));

    let back = rollout.roll_back().await.unwrap();
    assert!(back.policy.settings().is_empty());
}

/// A policy that passes every check, and fails all the same.
#[tokio::test]
pub(crate) async fn turns_bad() {
    let database = TestDatabase::create().await;
    let mut requirements = Requirements::default();
    requirements.breaker.failures = 3;
    let rollout = start(&database, requirements).await;
    let registry = registry(&database, &rollout);
    rollout
        .propose(candidate(policies::TURNS_BAD))
        .await
        .unwrap();

    for failures in 1..=3 {
        assert_eq!(
            rollout.current().await.policy.sha256(),
            digest(policies::TURNS_BAD)
        );
        let answer = registry.open_session("nemesis", LONG).await;
        assert!(matches!(answer, Err(Error::Policy(_))), "{answer:?}");
        if failures < 3 {
            let counts = rollout.current().await.policy.counts();
            assert_eq!((counts.traps, counts.violations), (failures, 0));
        }
    }
    while rollout.slot().load().sha256() != digest(LIFECYCLE) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }

    assert!(rollout.current().await.rolled_back);
    assert!(registry.open_session("nemesis", LONG).await.is_ok());
    assert_eq!(database.sessions().await, 1);
}

#[tokio::test]
async fn only_what_is_pinned_is_loaded() {
    let database = TestDatabase::create().await;
    let mut requirements = Requirements::default();
    requirements.pins = vec![digest(LIFECYCLE).to_uppercase()];
    let rollout = start(&database, requirements.clone()).await;

    let rejection = rollout.propose(candidate(STRICTER)).await.unwrap_err();
    assert!(matches!(rejection, Rejection::NotPinned(named) if named == digest(STRICTER)));
    let started = start_with(&database, requirements, candidate(STRICTER)).await;
    assert!(matches!(started, Err(Rejection::NotPinned(_))));
}

fn signed(component: &[u8], revision: u64) -> Candidate {
    Candidate {
        signature: Some(sign(PRIVATE, &digest(component), revision).unwrap()),
        ..candidate(component)
    }
}

fn keys(pem: &str) -> Requirements {
    let mut requirements = Requirements::default();
    requirements.keys = Some(TrustedKeys::from_pem(pem).unwrap());
    requirements
}

#[tokio::test]
async fn with_keys_only_what_they_have_signed_is_loaded() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, keys(&format!("{ANOTHER}{PUBLIC}"))).await;
    let good = signed(STRICTER, 1);
    let text = good.signature.clone().unwrap();

    for signature in [
        None,
        Some(String::new()),
        Some("\n".to_owned()),
        // Signed, but another policy.
        signed(LIFECYCLE, 1).signature,
        // Tampered with.
        Some(text.replace("revision: 1", "revision: 2")),
        Some(text[..text.len() - 2].to_owned()),
    ] {
        let unfit = Candidate {
            signature: signature.clone(),
            ..candidate(STRICTER)
        };
        let rejection = rollout.propose(unfit).await.unwrap_err();
        assert!(
            matches!(rejection, Rejection::Unsigned | Rejection::Signature(_)),
            "{signature:?}: {rejection}"
        );
    }
    let mut tampered = STRICTER.to_vec();
    *tampered.last_mut().unwrap() ^= 1;
    let rejection = rollout
        .propose(Candidate {
            component: tampered.into(),
            ..good.clone()
        })
        .await
        .unwrap_err();
    assert!(matches!(rejection, Rejection::Signature(_)));
    let of_others = start(&database, keys(ANOTHER)).await;
    let rejection = of_others.propose(good.clone()).await.unwrap_err();
    assert!(matches!(rejection, Rejection::Signature(_)));

    let revision = rollout.propose(good).await.unwrap();
    assert_eq!(revision.number, Some(1));
}

#[tokio::test]
async fn an_older_revision_is_refused_on_every_host_unless_it_is_named() {
    let database = TestDatabase::create().await;
    let (one, other) = (
        start(&database, keys(PUBLIC)).await,
        start(&database, keys(PUBLIC)).await,
    );
    one.propose(signed(STRICTER, 5)).await.unwrap();

    for (component, revision) in [(policies::TURNS_BAD, 4), (policies::TURNS_BAD, 5)] {
        let rejection = other
            .propose(signed(component, revision))
            .await
            .unwrap_err();
        assert!(
            matches!(&rejection, Rejection::Superseded { newest: 5, sha256, .. }
                if *sha256 == digest(STRICTER)),
            "{rejection}"
        );
    }
    other.propose(signed(STRICTER, 5)).await.unwrap();
    other.propose(signed(policies::TURNS_BAD, 6)).await.unwrap();
    // Going back is to name it, and so is a pin.
    let back = other.roll_back().await.unwrap();
    assert_eq!(back.number, Some(5));
    let mut named = keys(PUBLIC);
    named.pins = vec![digest(STRICTER)];
    let started = start_with(&database, named, signed(STRICTER, 5))
        .await
        .unwrap();
    assert_eq!(started.current().await.number, Some(5));
    let unnamed = start_with(&database, keys(PUBLIC), signed(STRICTER, 5)).await;
    assert!(matches!(unnamed, Err(Rejection::Superseded { .. })));
}

#[tokio::test]
async fn a_policy_that_does_not_pass_supersedes_nothing() {
    let database = TestDatabase::create().await;
    let rollout = start(&database, keys(PUBLIC)).await;

    let rejection = rollout.propose(signed(policies::TRAPS, 9)).await;
    assert!(matches!(rejection, Err(Rejection::Nonconforming(_))));
    rollout.propose(signed(STRICTER, 8)).await.unwrap();
}

const TOKEN: &str = "the-operators-own-token";

/// A server for clients and one for operators, on loopback ports.
struct Servers {
    database: TestDatabase,
    rollout: Rollout,
    clients: String,
    operators: String,
    client: reqwest::Client,
    _stop: watch::Sender<bool>,
}

impl Servers {
    async fn start(requirements: Requirements) -> Self {
        let database = TestDatabase::create().await;
        let rollout = start(&database, requirements).await;
        let pool = database.pool();
        let (stop, stopping) = watch::channel(false);
        let router = http::router(App {
            registry: registry(&database, &rollout),
            locks: LockStore::new(pool.clone()),
            database: pool,
            session_ttl: Duration::from_secs(15),
            lock_ttl: Duration::from_secs(30),
            token: None,
            stopping,
        });
        let admin = http::admin_router(rollout.clone(), BearerToken::new(TOKEN));
        let clients = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let operators = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (clients_url, operators_url) = (url(&clients), url(&operators));
        tokio::spawn(async { axum::serve(http::Listener::new(clients), router).await });
        tokio::spawn(async { axum::serve(http::Listener::new(operators), admin).await });
        Self {
            database,
            rollout,
            clients: clients_url,
            operators: operators_url,
            client: reqwest::Client::new(),
            _stop: stop,
        }
    }

    async fn operate(&self, request: reqwest::RequestBuilder) -> (StatusCode, Value) {
        let answer = request.bearer_auth(TOKEN).send().await.unwrap();
        let status = answer.status();
        (status, answer.json().await.unwrap())
    }

    async fn put(&self, component: &[u8]) -> (StatusCode, Value) {
        let url = format!("{}/v1/policy", self.operators);
        let request = self.client.put(url).body(component.to_vec());
        self.operate(request.header("content-type", "application/wasm"))
            .await
    }

    async fn get(&self) -> Value {
        let url = format!("{}/v1/policy", self.operators);
        let (status, policy) = self.operate(self.client.get(url)).await;
        assert_eq!(status, StatusCode::OK);
        policy
    }
}

#[tokio::test]
async fn operators_have_routes_and_a_token_of_their_own() {
    let servers = Servers::start(Requirements::default()).await;
    let client = &servers.client;
    let policy = format!("{}/v1/policy", servers.operators);

    let nobody = client.get(&policy).send().await.unwrap();
    assert_eq!(nobody.status(), StatusCode::UNAUTHORIZED);
    let public = format!("{}/v1/policy", servers.clients);
    let public = client.put(public).body("x").send().await.unwrap();
    assert_eq!(public.status(), StatusCode::NOT_FOUND);

    let first = servers.get().await;
    assert_eq!(first["name"], "lifecycle");
    assert_eq!(first["sha256"], digest(LIFECYCLE));
    assert_eq!(first["size"], LIFECYCLE.len());
    assert_eq!(first["origin"], "embedded");
    assert_eq!(first["rolledBack"], false);
    assert_eq!(
        first["calls"],
        json!({ "ended": 0, "refused": 0, "violations": 0, "traps": 0, "timeOuts": 0 })
    );

    let (status, second) = servers.put(STRICTER).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(second["sha256"], digest(STRICTER));
    assert_eq!(second["origin"], "request");

    let (status, rejected) = servers.put(policies::TRAPS).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(rejected["code"], "POLICY_REJECTED");
    assert_eq!(servers.get().await["sha256"], digest(STRICTER));

    let back = client.post(format!("{policy}/rollback"));
    let (status, back) = servers.operate(back).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        (&back["sha256"], &back["rolledBack"]),
        (&first["sha256"], &json!(true))
    );
    let again = client.post(format!("{policy}/rollback"));
    let (status, error) = servers.operate(again).await;
    assert_eq!(
        (status, &error["code"]),
        (StatusCode::CONFLICT, &json!("POLICY_REJECTED"))
    );
}

#[tokio::test]
async fn who_guesses_at_the_operators_token_is_soon_not_listened_to() {
    let servers = Servers::start(Requirements::default()).await;
    let policy = format!("{}/v1/policy", servers.operators);
    let mut guesses = 0;
    let refused = loop {
        let guess = servers.client.put(&policy).bearer_auth("a-guess-of-tests");
        let answer = guess.send().await.unwrap();
        if answer.status() != StatusCode::UNAUTHORIZED {
            break answer;
        }
        guesses += 1;
        assert!(guesses < 1000, "it listens to all of them");
    };
    assert!(guesses >= 10, "{guesses}");
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["code"], "TOO_MANY_ATTEMPTS");
}

#[tokio::test]
async fn a_signature_is_sent_in_a_header() {
    let servers = Servers::start(keys(PUBLIC)).await;
    let policy = format!("{}/v1/policy", servers.operators);
    let put = |signature: Option<&str>| {
        let request = servers.client.put(&policy).body(STRICTER.to_vec());
        match signature {
            Some(signature) => request.header("x-policy-signature", signature),
            None => request,
        }
    };
    let text = sign(PRIVATE, &digest(STRICTER), 3).unwrap();

    for (signature, expected) in [
        (None, StatusCode::FORBIDDEN),
        (Some(""), StatusCode::FORBIDDEN),
        (Some("?"), StatusCode::BAD_REQUEST),
        (
            Some(&*Base64::encode_string(b"signature: ")),
            StatusCode::FORBIDDEN,
        ),
        (
            Some(&*Base64::encode_string(text.as_bytes())),
            StatusCode::OK,
        ),
    ] {
        let (status, body) = servers.operate(put(signature)).await;
        assert_eq!(status, expected, "{signature:?}: {body}");
    }
    assert_eq!(servers.get().await["revision"], 3);
}

const CLIENTS: usize = 200;
const SWAPS: usize = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_clients_notice_nothing_of_fifty_swaps() {
    let servers = Servers::start(undemanding()).await;
    let stop = Arc::new(AtomicBool::new(false));
    let beats = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (url, client) = (servers.clients.clone(), servers.client.clone());
            let (stop, beats) = (stop.clone(), beats.clone());
            tokio::spawn(async move {
                let body = json!({ "ownerId": format!("worker-{number}"), "ttlMillis": 60_000 });
                let opened = client.post(format!("{url}/v1/sessions")).json(&body);
                let opened: Value = opened.send().await.unwrap().json().await.unwrap();
                let session = opened["sessionId"].as_str().unwrap().to_owned();
                while !stop.load(Ordering::Relaxed) {
                    let beat = client.post(format!("{url}/v1/sessions/{session}/heartbeat"));
                    let answer = beat.send().await.unwrap();
                    let (status, body) = (answer.status(), answer.text().await.unwrap());
                    assert_eq!(status, StatusCode::OK, "{body}");
                    beats.fetch_add(1, Ordering::Relaxed);
                }
                session
            })
        })
        .collect();
    // One that is dead, and that no policy may bring back.
    let dead = registry(&servers.database, &servers.rollout)
        .open_session("dead", LONG)
        .await
        .unwrap()
        .id;
    servers.database.expire(&dead).await;

    let good = [LIFECYCLE, STRICTER, policies::TURNS_BAD];
    let bad = [
        policies::TRUE_ON_ZERO_ROWS,
        policies::TRUE_ON_FAULT,
        policies::TRAPS,
        policies::INSERTS_DURING_HEARTBEAT,
        b"no policy at all",
    ];
    let mut in_charge = digest(LIFECYCLE);
    for swap in 0..SWAPS {
        let before = beats.load(Ordering::Relaxed);
        let (candidate, passes) = match swap % 2 {
            0 => (good[(swap / 2 + 1) % good.len()], true),
            _ => (bad[(swap / 2) % bad.len()], false),
        };
        let (status, body) = servers.put(candidate).await;
        assert_eq!(status.is_success(), passes, "{swap}: {body}");
        if passes {
            in_charge = digest(candidate);
        }
        assert_eq!(servers.get().await["sha256"], in_charge);
        let url = format!("{}/v1/sessions/{dead}/heartbeat", servers.clients);
        let answer = servers.client.post(url).send().await.unwrap();
        assert!([StatusCode::GONE, StatusCode::NOT_FOUND].contains(&answer.status()));
        // Every policy serves for a while.
        while beats.load(Ordering::Relaxed) < before + 100 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(servers.database.sessions().await as usize, CLIENTS + 1);
}
