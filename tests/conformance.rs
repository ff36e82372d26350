//! `tenure policy check` and what stands behind it: the default policy passes, every policy
//! that misbehaves fails, and the model that says so agrees with PostgreSQL.

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use serde_json::Value;
use tenure::policy::LIFECYCLE;
use tenure::policy::conformance::{
    Checked, Inspection, Model, Observed, Player, Report, Settings, Surroundings, Verdict, check,
    history, play, scenarios,
};
use tenure::postgres::{Statements, StoreError};
use tenure::{Acquired, Error, LockStore, PinnedStatements};
use uuid::Uuid;

use crate::support::database::TestDatabase;
use crate::support::host::{key, lifecycle};
use crate::support::policies::{self, compose, for_each_policy};
use crate::support::program::{self, Folder};

fn tenure(arguments: &[&str]) -> Output {
    program::tenure(arguments).output().unwrap()
}

/// A policy that misbehaves, the checks that have to find it out, and what they have to say.
type Misbehaving = (
    &'static str,
    &'static [u8],
    &'static [(&'static str, &'static str)],
);

const MISBEHAVING: &[Misbehaving] = &[
    (
        "true_on_zero_rows",
        policies::TRUE_ON_ZERO_ROWS,
        &[
            ("a lapsed session is dead", "called a dead session alive"),
            ("an unknown session is dead", "called a dead session alive"),
            ("a closed session is dead", "called a dead session alive"),
            (
                "a session that is reaped in between is dead",
                "called a dead session alive",
            ),
            (
                "two calls at once: a close overtakes a heartbeat",
                "called a dead session alive",
            ),
        ],
    ),
    (
        "true_on_fault",
        policies::TRUE_ON_FAULT,
        &[("a live session lives on", "called a live session dead")],
    ),
    (
        "false_on_fault",
        policies::FALSE_ON_FAULT,
        &[
            (
                "contention before the statement",
                "although opening it had failed",
            ),
            (
                "a heartbeat that was lost on its way extends nothing",
                "called a session dead although the heartbeat had failed",
            ),
            ("faults upon faults", "although the heartbeat had failed"),
        ],
    ),
    (
        "disguises_faults",
        policies::DISGUISES_FAULTS,
        &[
            (
                "contention after the statement",
                "turned a fault of the database into another",
            ),
            (
                "what the database rejects is an error",
                "turned a fault of the database",
            ),
            (
                "any other fault of the database is an error",
                "turned a fault of the database",
            ),
        ],
    ),
    (
        "false_on_one_row",
        policies::FALSE_ON_ONE_ROW,
        &[("a live session lives on", "called a live session dead")],
    ),
    (
        "answers_without_asking",
        policies::ANSWERS_WITHOUT_ASKING,
        &[
            (
                "a live session lives on",
                "returned a session that it did not open",
            ),
            (
                "an unknown session is dead",
                "judged a session without asking the database",
            ),
        ],
    ),
    (
        "inserts_during_heartbeat",
        policies::INSERTS_DURING_HEARTBEAT,
        &[(
            "an unknown session is dead",
            "ran the statement open-session during heartbeat",
        )],
    ),
    (
        "runs_statement_twice",
        policies::RUNS_STATEMENT_TWICE,
        &[(
            "a live session lives on",
            "ran the statement open-session twice",
        )],
    ),
    (
        "acts_on_another_session",
        policies::ACTS_ON_ANOTHER_SESSION,
        &[(
            "an unknown session is dead",
            "for another than the caller's own session",
        )],
    ),
    (
        "makes_up_session_id",
        policies::MAKES_UP_SESSION_ID,
        &[(
            "a live session lives on",
            "another session than the one it opened",
        )],
    ),
    (
        "refuses_too_late",
        policies::REFUSES_TOO_LATE,
        &[(
            "a live session lives on",
            "after its statement open-session had run",
        )],
    ),
    (
        "invents_lock_count",
        policies::INVENTS_LOCK_COUNT,
        &[
            (
                "a close counts the locks that went",
                "invented a number of released locks",
            ),
            (
                "the locks of a session are its own, in order",
                "invented a list of locks",
            ),
        ],
    ),
    (
        "loops_for_ever",
        policies::LOOPS_FOR_EVER,
        &[(
            "an unknown session is dead",
            "more than 10000000 units of fuel",
        )],
    ),
    (
        "traps",
        policies::TRAPS,
        &[("an unknown session is dead", "it trapped")],
    ),
    (
        "eats_memory",
        policies::EATS_MEMORY,
        &[(
            "an unknown session is dead",
            "more than 2097152 bytes of memory",
        )],
    ),
    (
        "recurses_without_end",
        policies::RECURSES_WITHOUT_END,
        &[(
            "an unknown session is dead",
            "more than 262144 bytes of stack",
        )],
    ),
    (
        "grows_tables",
        policies::GROWS_TABLES,
        &[(
            "an unknown session is dead",
            "a table of more than 1024 elements",
        )],
    ),
    (
        "sends_too_much",
        policies::SENDS_TOO_MUCH,
        &[(
            "an unknown session is dead",
            "more than 262144 bytes to the host",
        )],
    ),
    (
        "asks_for_nonsense",
        policies::ASKS_FOR_NONSENSE,
        &[(
            "a live session lives on",
            "a ttl-ms of 18446744073709551615 is out of range",
        )],
    ),
];

fn quick_check(policy: &[u8]) -> Report {
    let mut settings = Settings::default();
    settings.operations = 500;
    check(&settings, policy)
}

fn verdict<'a>(report: &'a Report, name: &str) -> &'a Checked {
    let mut checks = report.checks.iter();
    checks
        .find(|checked| checked.name == name)
        .unwrap_or_else(|| panic!("there is no check {name:?}"))
}

#[test]
fn the_default_policy_passes_and_is_no_stricter_than_itself() {
    let mut settings = Settings::default();
    settings.fuel = 40_000;

    let report = check(&settings, LIFECYCLE);

    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "seed {}: {failures:#?}", report.seed);
    assert_eq!(report.stricter().count(), 0);
    assert_eq!(report.operations, 10_000);
    assert_eq!(report.memory_used, 64 * 1024);
}

#[test]
fn what_a_call_uses_is_the_same_in_every_run() {
    let mut settings = Settings::default();
    settings.seed = 3;
    settings.operations = 300;
    let used = |report: Report| (report.fuel_used, report.memory_used);
    assert_eq!(
        used(check(&settings, LIFECYCLE)),
        used(check(&settings, LIFECYCLE))
    );
}

#[test]
fn every_policy_that_misbehaves_is_found_out_by_the_scenario_that_is_about_it() {
    for (name, policy, findings) in MISBEHAVING {
        let report = quick_check(policy);
        assert!(!report.passed(), "{name}");
        for (scenario, says) in *findings {
            let checked = verdict(&report, scenario);
            match &checked.verdict {
                Verdict::Failed(failure) => {
                    assert!(
                        failure.got.contains(says),
                        "{name}, {scenario}: {failure:?}"
                    );
                    assert!(!checked.why.is_empty());
                }
                other => panic!("{name}, {scenario}: {other:?}"),
            }
        }
    }
}

#[test]
fn no_policy_that_misbehaves_is_left_out() {
    let mut all = BTreeSet::new();
    macro_rules! collect {
        ($policy:ident) => {
            all.insert(stringify!($policy));
        };
    }
    for_each_policy!(collect);
    let mut listed: BTreeSet<_> = MISBEHAVING.iter().map(|(name, ..)| *name).collect();
    listed.insert("stricter");
    // Of what a policy may have and the check's model has no part in, of larger profiles, or
    // for a host that reuses instances.
    listed.extend([
        "asks_on_and_on",
        "looks_around_wasi",
        "reads_settings",
        "remembers",
        "says_a_lot",
        "sleeps",
        "takes_much_room",
        "turns_bad",
    ]);
    assert_eq!(all, listed);
}

#[test]
fn a_stricter_policy_passes_and_the_report_says_where_it_is_stricter() {
    let report = quick_check(policies::STRICTER);
    assert!(
        report.passed(),
        "{:#?}",
        report.failures().collect::<Vec<_>>()
    );
    match &verdict(&report, "a live session lives on").verdict {
        Verdict::Stricter(stricter) => {
            assert_eq!(
                (stricter.step, &*stricter.said),
                (1, "refused: workers only")
            );
        }
        other => panic!("{other:?}"),
    }

    let mut settings = Settings::default();
    settings.operations = 500;
    settings.owner = "worker-7".to_owned();
    let report = check(&settings, policies::STRICTER);
    assert!(
        report.passed(),
        "{:#?}",
        report.failures().collect::<Vec<_>>()
    );
    let stricter: Vec<_> = report
        .stricter()
        .map(|(checked, _)| &*checked.name)
        .collect();
    assert_eq!(
        stricter[0], "owners that are for people to read",
        "{stricter:?}"
    );
    assert!(
        stricter[1..].iter().all(|name| name.contains("random")),
        "{stricter:?}"
    );
}

#[test]
fn a_random_history_that_fails_is_shown_with_its_seed_and_in_its_smallest_form() {
    let mut settings = Settings::default();
    settings.seed = 5;
    let report = check(&settings, policies::TRUE_ON_ZERO_ROWS);

    let (checked, failure) = report
        .failures()
        .find(|(checked, _)| checked.name.contains("random"))
        .unwrap();

    assert!(checked.name.ends_with("from seed 5"), "{}", checked.name);
    assert!(
        failure.got.contains("called a dead session alive"),
        "{failure:?}"
    );
    // A session, its end, and a heartbeat; or a heartbeat of one that never was.
    assert!((1..=3).contains(&failure.history.len()), "{failure:#?}");
    assert_eq!(failure.history.last(), Some(&failure.did));
    // The step is that of the whole history, so that it can be run up to there and no
    // further.
    settings.operations = failure.step - 1;
    let before = check(&settings, policies::TRUE_ON_ZERO_ROWS);
    assert!(matches!(
        before.checks.last().unwrap().verdict,
        Verdict::Passed
    ));
}

fn misfits(component: &[u8]) -> String {
    let report = quick_check(component);
    assert_eq!(report.checks.len(), 1, "nothing comes after it");
    match &report.checks[0].verdict {
        Verdict::Failed(failure) => failure.got.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let imports = |import: &str, functions: &str| {
        format!(r#"(component (import "{import}" (instance {functions})))"#)
    };
    for (component, says) in [
        (
            imports("wasi:keyvalue/store@0.2.0", r#"(export "open" (func))"#),
            "imports wasi:keyvalue/store@0.2.0, which a policy does not get",
        ),
        (
            imports("wasi:cli/environment@0.2.6", r#"(export "set" (func))"#),
            "imports wasi:cli/environment@0.2.6, which a policy does not get: component imports \
             instance `wasi:cli/environment@0.2.6`, but a matching implementation was not found \
             in the linker: instance export `set` has the wrong type",
        ),
        (
            imports("tenure:registry/statements@0.2.0", ""),
            "imports tenure:registry/statements@0.2.0, which this host does not have",
        ),
        (
            imports(
                "tenure:registry/statements@0.1.0",
                r#"(export "drop-everything" (func))"#,
            ),
            "imports the function drop-everything of tenure:registry/statements@0.1.0",
        ),
        (
            "(component)".to_owned(),
            "does not export tenure:registry/session-registry@0.1.0; it exports nothing",
        ),
        (
            r#"(component
                 (instance $nothing)
                 (export "tenure:registry/session-registry@0.1.0" (instance $nothing)))"#
                .to_owned(),
            "does not export the function open-session",
        ),
    ] {
        let found = misfits(&wat::parse_str(&component).unwrap());
        assert!(found.contains(says), "{found}");
    }
}

/// The default policy, with some bytes of its description changed.
fn altered(from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = LIFECYCLE.to_vec();
    let mut found = 0;
    for at in 0..bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            found += 1;
        }
    }
    assert!(found > 0);
    bytes
}

#[test]
fn a_later_version_on_the_same_track_fits_and_one_on_another_does_not() {
    let report = quick_check(&altered(b"@0.1.0", b"@0.1.7"));
    assert!(
        report.passed(),
        "{:#?}",
        report.failures().collect::<Vec<_>>()
    );

    let found = misfits(&altered(b"@0.1.0", b"@0.2.0"));
    assert!(
        found.contains("imports tenure:registry/types@0.2.0"),
        "{found}"
    );
    assert!(
        found.contains("does not export tenure:registry/session-registry@0.1.0"),
        "{found}"
    );
}

#[test]
fn a_type_that_differs_is_named() {
    // A case of `store-error`, which every function's answer has.
    let found = misfits(&altered(b"rejected", b"rejekted"));
    assert!(found.contains("rejected"), "{found}");

    let component = wat::parse_str(
        r#"(component
             (import "tenure:registry/statements@0.1.0" (instance
               (export "heartbeat" (func (param "session-id" string) (param "ttl-ms" u32)
                                         (result u32))))))"#,
    )
    .unwrap();
    let found = misfits(&component);
    assert!(
        found.contains(
            "its heartbeat of tenure:registry/statements@0.1.0 is func(session-id: string, \
             ttl-ms: u32) -> u32; the contract has func(session-id: session-id, ttl-ms: u64)"
        ),
        "{found}"
    );
}

/// A real database as the store of scenarios: it cannot move its clock, so the sessions'
/// time stamps move instead.
struct Postgres {
    database: TestDatabase,
    client: tokio_postgres::Client,
    statements: PinnedStatements,
    locks: LockStore,
}

impl Postgres {
    async fn create() -> Self {
        let database = TestDatabase::create().await;
        let pool = database.pool();
        Self {
            client: database.connect().await,
            statements: PinnedStatements::new(pool.clone()),
            locks: LockStore::new(pool),
            database,
        }
    }
}

#[async_trait]
impl Statements for Postgres {
    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError> {
        self.statements.open_session(id, owner, ttl_ms).await
    }

    async fn heartbeat(&self, id: Uuid, ttl_ms: i64) -> Result<Option<SystemTime>, StoreError> {
        self.statements.heartbeat(id, ttl_ms).await
    }

    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError> {
        self.statements.close_session(id).await
    }

    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError> {
        self.statements.locks_of(id).await
    }
}

#[async_trait]
impl Surroundings for Postgres {
    async fn lock(&self, session: Uuid, name: &str) -> bool {
        let day = Duration::from_secs(24 * 60 * 60);
        match self
            .locks
            .try_insert(&key(name), &session.into(), day)
            .await
        {
            Ok(Acquired::Granted(_)) => true,
            Ok(_) | Err(Error::SessionUnknown(_) | Error::SessionExpired(_)) => false,
            Err(error) => panic!("{name}: {error}"),
        }
    }

    async fn advance(&self, by: Duration) {
        let micros = i64::try_from(by.as_micros()).unwrap();
        self.client
            .execute(
                "UPDATE lock_session
                    SET created_at = created_at - $1::bigint * interval '1 microsecond',
                        expires_at = expires_at - $1::bigint * interval '1 microsecond'",
                &[&micros],
            )
            .await
            .unwrap();
    }

    async fn left(&self, session: Uuid) -> Duration {
        let row = self
            .client
            .query_opt(
                "SELECT (extract(epoch FROM expires_at - now()) * 1000000)::bigint
                   FROM lock_session WHERE session_id = $1",
                &[&session],
            )
            .await
            .unwrap();
        let micros: i64 = row.map_or(0, |row| row.get(0));
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    async fn reap(&self) -> usize {
        self.locks.reap_expired().await.unwrap().sessions
    }
}

/// Random histories on the model and on PostgreSQL, through the same registry under the same
/// policy: every step has the same outcome.
#[tokio::test]
async fn the_model_agrees_with_postgresql() {
    let store = Arc::new(Postgres::create().await);
    let seed = fastrand::u64(..);
    for seed in seed..seed + 4 {
        store.database.execute("DELETE FROM lock_session").await;
        let mut on_model = Player::new(lifecycle(), Arc::new(Model::default()), "tester");
        let mut on_postgres = Player::new(lifecycle(), store.clone(), "tester");
        let mut answered = 0;
        for (at, step) in history(seed, 500).iter().enumerate() {
            let model = on_model.perform(step).await;
            let postgres = on_postgres.perform(step).await;
            match (&model, &postgres) {
                (Observed::Answered(model, _), Observed::Answered(postgres, _)) => {
                    assert_eq!(model, postgres, "seed {seed}, step {at}: {step}");
                    answered += 1;
                }
                (Observed::Nothing, Observed::Nothing) => {}
                _ => panic!("seed {seed}, step {at}: {step}: {model:?} and {postgres:?}"),
            }
        }
        assert!(answered > 250, "{answered} outcomes are few");
    }
}

/// What the file says of the default policy is true on PostgreSQL too.
#[tokio::test]
async fn every_scenario_passes_on_postgresql() {
    let store = Arc::new(Postgres::create().await);
    for scenario in scenarios() {
        store.database.execute("DELETE FROM lock_session").await;
        let verdict = play(&lifecycle(), store.clone(), "tester", &scenario).await;
        assert!(
            matches!(verdict, Verdict::Passed),
            "{}: {verdict:#?}",
            scenario.name
        );
    }
}

/// What PostgreSQL refuses, which no scenario can reach as the contract's bounds are narrower.
#[tokio::test]
async fn the_model_refuses_what_postgresql_refuses() {
    let (postgres, model) = (Postgres::create().await, Model::default());
    for (owner, ttl_ms) in [
        ("tester", 0),
        ("tester", 1),
        ("tester", i64::MAX),
        ("tester", 9_223_000_000_000_000),
        ("a\0b", 1000),
    ] {
        let kind = |outcome: Result<SystemTime, StoreError>| match outcome {
            Ok(_) => "a row",
            Err(StoreError::Contention(_)) => "contention",
            Err(StoreError::Rejected(_)) => "rejected",
            Err(StoreError::Other(_)) => "other",
        };
        let id = Uuid::new_v4();
        assert_eq!(
            kind(model.open_session(id, owner, ttl_ms).await),
            kind(postgres.open_session(id, owner, ttl_ms).await),
            "{owner:?} {ttl_ms}"
        );
    }
}

/// A file with these bytes, in a folder that goes with it.
struct File(std::path::PathBuf);

impl File {
    fn with(bytes: &[u8]) -> Self {
        let folder = std::env::temp_dir().join(format!("tenure-test-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("policy.wasm");
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn text(output: &Output) -> (Option<i32>, String) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), format!("{stdout}{stderr}"))
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn policy_check_prints_a_table_and_ends_with_0_or_1() {
    let (good, bad) = (
        File::with(LIFECYCLE),
        File::with(policies::TRUE_ON_ZERO_ROWS),
    );
    let few = ["--operations", "200", "--seed", "11"];

    let passed = tenure(&[&["policy", "check", good.path()], &few[..]].concat());
    let failed = tenure(&[&["policy", "check", bad.path()], &few[..]].concat());

    let (status, shown) = text(&passed);
    assert_eq!(status, Some(0), "{shown}");
    assert!(shown.starts_with("lifecycle 0.1.0, "), "{shown}");
    assert!(
        shown.contains("ok        a lapsed session is dead\n"),
        "{shown}"
    );
    assert!(
        shown.contains(", 0 failed; seed 11, 200 operations\n"),
        "{shown}"
    );
    assert!(
        shown.contains(" of 10000000 units of fuel, 65536 bytes"),
        "{shown}"
    );
    let (status, shown) = text(&failed);
    assert_eq!(status, Some(1), "{shown}");
    assert!(
        shown.contains(
            "FAILED    a lapsed session is dead
            step 4: heartbeat of $s with a TTL of 900000 ms
            expected  false
            got       violation: it called a dead session alive
            matters   its locks may be another's by now"
        ),
        "{shown}"
    );
}

#[test]
fn the_policies_that_come_with_tenure_pass_with_settings_that_make_sense() {
    let clamp = File::with(policies::CLAMP);
    let bounds = ["min-ttl-ms=1000", "max-ttl-ms=7200000"];
    let guarded = File::with(&compose(policies::ADMISSION, LIFECYCLE));
    let names = ["allow=worker-*, batch-?", "naming.max-length=64"];
    for (file, settings, more) in [
        (&clamp, bounds, &[][..]),
        (&guarded, names, &["--owner", "worker-1"][..]),
    ] {
        let mut arguments = vec!["policy", "check", file.path(), "--operations", "500"];
        arguments.extend(settings.iter().flat_map(|setting| ["--setting", setting]));
        arguments.extend(more);

        let (status, shown) = text(&tenure(&arguments));

        assert_eq!(status, Some(0), "{shown}");
        assert!(
            shown.contains("ok        a live session lives on\n"),
            "{shown}"
        );
        assert!(!shown.contains("FAILED"), "{shown}");
    }

    // They get what was given: others are let in, and settings without sense let nobody in.
    let (status, shown) = text(&tenure(&[
        "policy",
        "check",
        guarded.path(),
        "--setting",
        "deny=*",
    ]));
    assert_eq!(status, Some(0), "{shown}");
    assert!(
        shown.contains("said      refused: owner-id must not match *\n"),
        "{shown}"
    );
    let (status, shown) = text(&tenure(&[
        "policy",
        "bench",
        clamp.path(),
        "--calls=1",
        "--setting=max-ttl-ms=soon",
    ]));
    assert_eq!(status, Some(1), "{shown}");
    assert!(shown.contains("max-ttl-ms has to be"), "{shown}");
}

#[test]
fn what_is_no_setting_and_no_profile_is_refused() {
    for (argument, says) in [
        ("--setting=max-ttl-ms", "key=value"),
        ("--setting==5", "key=value"),
        ("--profile=roomy", "strict and interpreted"),
    ] {
        let (status, shown) = text(&tenure(&["policy", "check", "none.wasm", argument]));
        assert_eq!(status, Some(2), "{shown}");
        assert!(shown.contains(says), "{shown}");
    }
}

#[test]
fn a_policy_that_imports_wasi_and_a_log_fits() {
    for policy in [policies::LOOKS_AROUND_WASI, policies::SAYS_A_LOT] {
        let about = Inspection::of(policy).unwrap();
        assert_eq!(about.misfits, [""; 0]);
        assert!(about.needs_wasi);
    }
}

#[test]
fn policy_check_prints_json_for_programs() {
    let (good, bad) = (File::with(LIFECYCLE), File::with(policies::TRAPS));
    let few = ["--json", "--operations", "50", "--seed", "12"];

    let good = tenure(&[&["policy", "check", good.path()], &few[..]].concat());
    let bad = tenure(&[&["policy", "check", bad.path()], &few[..]].concat());

    let report = json(&good);
    assert_eq!(report["passed"], true);
    assert_eq!(report["policy"]["name"], "lifecycle");
    assert_eq!(
        (&report["seed"], &report["operations"]),
        (&12.into(), &50.into())
    );
    let report = json(&bad);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(report["passed"], false);
    let checks = report["checks"].as_array().unwrap();
    let failed = checks.iter().find(|checked| checked["verdict"] == "failed");
    let failed = failed.unwrap();
    for part in ["name", "why", "did", "expected", "got"] {
        assert!(failed[part].is_string(), "{part}: {failed}");
    }
}

#[test]
fn a_file_that_is_no_policy_ends_every_subcommand_with_2() {
    let module = File::with(&wat::parse_str("(module)").unwrap());
    let nonsense = File::with(b"this is no WebAssembly");
    for subcommand in ["check", "inspect", "bench"] {
        for (file, says) in [
            ("/no/such/file.wasm", "cannot read /no/such/file.wasm"),
            (module.path(), "no WebAssembly component"),
            (nonsense.path(), "no WebAssembly component"),
        ] {
            let (status, shown) = text(&tenure(&["policy", subcommand, file]));
            assert_eq!(status, Some(2), "{subcommand} {file}: {shown}");
            assert!(shown.contains(says), "{subcommand} {file}: {shown}");
        }
    }
}

#[test]
fn policy_inspect_tells_what_a_component_is_and_wants() {
    let (good, wasi) = (
        File::with(LIFECYCLE),
        File::with(
            &wat::parse_str(
                r#"(component
                     (import "wasi:keyvalue/store@0.2.0" (instance (export "open" (func)))))"#,
            )
            .unwrap(),
        ),
    );

    let (status, shown) = text(&tenure(&["policy", "inspect", good.path()]));
    let about = json(&tenure(&["policy", "inspect", "--json", good.path()]));
    let wasi = tenure(&["policy", "inspect", wasi.path()]);

    assert_eq!(status, Some(0), "{shown}");
    for line in [
        "name     lifecycle\n",
        "version  0.1.0\n",
        "wasi     not needed\n",
        "import   tenure:registry/statements@0.1.0\n",
        "export   tenure:registry/session-registry@0.1.0\n",
        "fits     the world tenure:registry/session-policy\n",
        "heartbeat: func(session-id: session-id, ttl-ms: u64) -> result<bool, registry-error>;",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert_eq!(about["sha256"], lifecycle().sha256());
    assert_eq!(about["size"], LIFECYCLE.len());
    let (status, shown) = text(&wasi);
    assert_eq!(status, Some(0), "{shown}");
    assert!(shown.contains("wasi     needed\n"), "{shown}");
    assert!(
        shown.contains("misfit   it imports wasi:keyvalue/store@0.2.0"),
        "{shown}"
    );
}

#[test]
fn policy_new_makes_components_of_core_modules_only() {
    let out = Folder::new();
    let output = out.at("policy.wasm");
    let component = File::with(LIFECYCLE);
    let new = |module: &str| {
        text(&tenure(&[
            "policy",
            "new",
            module,
            "--name",
            "p",
            "--version",
            "1.2.3",
            "-o",
            &output,
        ]))
    };
    // A module that says nothing of its world becomes a component without any exports.
    let module = File::with(b"\0asm\x01\0\0\0");
    let made = new(module.path());
    assert_eq!(made, (Some(0), String::new()));
    let about = Inspection::of(&std::fs::read(&output).unwrap()).unwrap();
    assert_eq!(about.name.as_deref(), Some("p"));
    assert_eq!(about.version.as_deref(), Some("1.2.3"));
    assert!(!about.misfits.is_empty());

    for (module, says) in [
        (component.path(), "cannot make a component of"),
        ("/nowhere.wasm", "cannot read /nowhere.wasm"),
    ] {
        let (status, shown) = new(module);
        assert_eq!(status, Some(2), "{shown}");
        assert!(shown.contains(says), "{shown}");
    }
}

#[test]
fn policy_bench_measures_every_operation() {
    let file = File::with(LIFECYCLE);
    let bench = ["policy", "bench", file.path(), "--calls", "20"];

    let (status, shown) = text(&tenure(&bench));
    let measured = json(&tenure(&[&bench[..], &["--json"]].concat()));

    assert_eq!(status, Some(0), "{shown}");
    for operation in ["open-session", "heartbeat", "locks-of", "close-session"] {
        assert!(shown.contains(operation), "{shown}");
    }
    for cost in measured["operations"].as_array().unwrap() {
        assert_eq!(cost["memory"], 64 * 1024, "{cost}");
        assert!(cost["fuel"].as_u64().unwrap() > 0, "{cost}");
        assert!(cost["p50_us"].as_f64() <= cost["p99_us"].as_f64(), "{cost}");
    }
}
