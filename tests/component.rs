//! The default policy: what it is made of, and its rules, through the real registry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tenure::policy::LIFECYCLE;
use tenure::postgres::{Statements, StoreError};
use tenure::{Error, PinnedStatements, SessionRegistry};
use uuid::Uuid;
use wasmparser::{Operator, Parser, Payload, TypeRef, Validator};

use crate::support::database::TestDatabase;
use crate::support::host::{LONG, lifecycle};
use crate::support::policies;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[test]
fn it_imports_the_capability_and_exports_the_registry_and_nothing_else() {
    let (mut imports, mut exports, mut depth) = (Vec::new(), Vec::new(), 0);
    for payload in Parser::new(0).parse_all(LIFECYCLE) {
        match payload.unwrap() {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 0 => {
                imports.extend(section.into_iter().map(|item| item.unwrap().name.name));
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                exports.extend(section.into_iter().map(|item| item.unwrap().name.name));
            }
            _ => {}
        }
    }

    let expected_imports = [
        "tenure:registry/types@0.1.0",
        "tenure:registry/statements@0.1.0",
    ];
    let expected_exports = ["tenure:registry/session-registry@0.1.0"];
    assert_eq!(imports, expected_imports);
    assert_eq!(exports, expected_exports);
    assert_eq!(lifecycle().imports(), expected_imports);
    assert_eq!(lifecycle().exports(), expected_exports);
}

#[test]
fn it_is_valid_and_smaller_than_32_kib() {
    Validator::new().validate_all(LIFECYCLE).unwrap();
    assert!(LIFECYCLE.len() < 32 * 1024, "{} bytes", LIFECYCLE.len());
}

#[test]
fn it_tells_its_name_and_version() {
    assert_eq!(lifecycle().name(), "lifecycle");
    assert_eq!(lifecycle().version(), Some("0.1.0"));
    assert_eq!(lifecycle().size(), LIFECYCLE.len());
}

/// Its memory has no maximum of its own, so that it does not grow rests on the code.
#[test]
fn it_has_one_memory_of_one_page_and_no_instruction_that_grows_it() {
    has_one_memory_of_one_page_and_no_instruction_that_grows_it(LIFECYCLE);
}

#[test]
fn neither_has_another_policy_that_comes_with_tenure() {
    for policy in [policies::CLAMP, policies::ADMISSION] {
        has_one_memory_of_one_page_and_no_instruction_that_grows_it(policy);
    }
}

fn has_one_memory_of_one_page_and_no_instruction_that_grows_it(policy: &[u8]) {
    let (mut memories, mut functions) = (Vec::new(), 0);
    for payload in Parser::new(0).parse_all(policy) {
        match payload.unwrap() {
            Payload::MemorySection(section) => {
                memories.extend(section.into_iter().map(|memory| memory.unwrap().initial));
            }
            Payload::CodeSectionEntry(body) => {
                functions += 1;
                for operator in body.get_operators_reader().unwrap() {
                    let operator = operator.unwrap();
                    assert!(
                        !matches!(operator, Operator::MemoryGrow { .. }),
                        "{operator:?}"
                    );
                }
            }
            _ => {}
        }
    }

    assert_eq!(memories, [1]);
    assert!(functions > 4, "{functions} functions were looked at");
}

#[test]
fn its_stack_comes_first_and_has_32_kib() {
    let mut tops = Vec::new();
    for payload in Parser::new(0).parse_all(LIFECYCLE) {
        if let Payload::GlobalSection(section) = payload.unwrap() {
            for global in section {
                let global = global.unwrap();
                if let (true, Operator::I32Const { value }) = (
                    global.ty.mutable,
                    global.init_expr.get_operators_reader().read().unwrap(),
                ) {
                    tops.push(value);
                }
            }
        }
    }

    // The one mutable global is the stack pointer, which starts at the top.
    assert_eq!(tops, [32 * 1024]);
}

#[test]
fn its_modules_import_nothing_of_wasi() {
    for payload in Parser::new(0).parse_all(LIFECYCLE) {
        if let Payload::ImportSection(section) = payload.unwrap() {
            for import in section.into_imports() {
                let import = import.unwrap();
                assert!(!import.module.contains("wasi"), "{import:?}");
                if let (TypeRef::Func(_), true) = (import.ty, import.module.contains(':')) {
                    assert_eq!(import.module, "tenure:registry/statements@0.1.0");
                }
            }
        }
    }
}

/// The real statements, counted.
struct Counted {
    real: PinnedStatements,
    ran: AtomicUsize,
}

#[async_trait]
impl Statements for Counted {
    async fn open_session(
        &self,
        id: Uuid,
        owner: &str,
        ttl_ms: i64,
    ) -> Result<SystemTime, StoreError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        self.real.open_session(id, owner, ttl_ms).await
    }

    async fn heartbeat(&self, id: Uuid, ttl_ms: i64) -> Result<Option<SystemTime>, StoreError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        self.real.heartbeat(id, ttl_ms).await
    }

    async fn close_session(&self, id: Uuid) -> Result<Option<u32>, StoreError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        self.real.close_session(id).await
    }

    async fn locks_of(&self, id: Uuid) -> Result<Vec<String>, StoreError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        self.real.locks_of(id).await
    }
}

impl Counted {
    fn on(database: &TestDatabase) -> (Arc<Self>, SessionRegistry) {
        let counted = Arc::new(Self {
            real: PinnedStatements::new(database.pool()),
            ran: AtomicUsize::new(0),
        });
        (counted.clone(), SessionRegistry::new(lifecycle(), counted))
    }

    fn ran(&self) -> usize {
        self.ran.load(Ordering::SeqCst)
    }
}

fn assert_invalid<T: std::fmt::Debug>(answer: Result<T, Error>, names: &str, case: &str) {
    match answer {
        Err(Error::InvalidArgument(text)) => assert!(text.contains(names), "{case}: {text}"),
        other => panic!("{case}: {other:?}"),
    }
}

/// Every character that Unicode calls white space.
const WHITE_SPACE: &str = "\t\n\u{b}\u{c}\r \u{85}\u{a0}\u{1680}\u{2000}\u{2001}\u{2002}\u{2003}\
    \u{2004}\u{2005}\u{2006}\u{2007}\u{2008}\u{2009}\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}";

const WIDE: &str = "\u{1F512}"; // four bytes

#[tokio::test]
async fn an_owner_that_breaks_a_rule_is_refused_before_any_statement() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);
    let mut owners = vec![
        String::new(),
        WHITE_SPACE.to_owned(),
        "x".repeat(65),
        WIDE.repeat(65),
        " ".repeat(65),
        "x".repeat(4096),
        "x".repeat(4097),
        "x".repeat(100_000),
        "\u{e9}".repeat(50_000),
    ];
    owners.extend(WHITE_SPACE.chars().map(|space| space.to_string().repeat(3)));
    let controls = ('\0'..='\u{1f}').chain('\u{7f}'..='\u{9f}');
    owners.extend(controls.map(|control| format!("a{control}b")));

    for owner in &owners {
        let shown: String = owner.chars().take(8).collect();
        let answer = registry.open_session(owner, LONG).await;
        assert_invalid(answer, "owner", &format!("{shown:?}"));
    }

    assert_eq!(statements.ran(), 0);
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn an_owner_at_the_edge_of_a_rule_is_kept_as_it_is() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);
    let owners = [
        "a".to_owned(),
        "x".repeat(64),
        WIDE.repeat(64),
        " padded ".to_owned(),
        "\u{200b}".to_owned(), // zero-width, and no white space to Unicode
        "'; DROP TABLE lock_session; --".to_owned(),
        "%s \\ \" $1 {}".to_owned(),
    ];

    for owner in &owners {
        let session = registry.open_session(owner, LONG).await.unwrap();
        assert_eq!(session.owner, *owner);
        let stored: String = database
            .scalar(&format!(
                "SELECT owner_id FROM lock_session WHERE session_id = '{}'",
                session.id
            ))
            .await;
        assert_eq!(stored, *owner);
    }

    assert_eq!(statements.ran(), owners.len());
}

const BAD_TTLS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(999_999), // rounds down to 0 ms
    Duration::from_millis(24 * 60 * 60 * 1000 + 1),
    Duration::from_secs(u64::MAX / 1000 + 1), // more milliseconds than 64 bits count
    Duration::MAX,
];

#[tokio::test]
async fn a_ttl_that_breaks_a_rule_is_refused_before_any_statement() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);
    let session = registry.open_session("tester", LONG).await.unwrap();
    let expiry = "SELECT expires_at FROM lock_session";
    let before: SystemTime = database.scalar(expiry).await;

    for ttl in BAD_TTLS {
        let case = format!("{ttl:?}");
        assert_invalid(registry.open_session("tester", ttl).await, "ttl-ms", &case);
        assert_invalid(registry.heartbeat(&session.id, ttl).await, "ttl-ms", &case);
    }

    assert_eq!(statements.ran(), 1);
    assert_eq!(database.sessions().await, 1);
    assert_eq!(database.scalar::<SystemTime>(expiry).await, before);
}

#[tokio::test]
async fn a_ttl_at_the_edge_of_a_rule_is_granted() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);

    for ttl in [Duration::from_millis(1), DAY] {
        let session = registry.open_session("tester", ttl).await.unwrap();
        assert_eq!(session.lease.ttl, ttl);
    }
    let session = registry.open_session("tester", LONG).await.unwrap();
    for ttl in [DAY, Duration::from_millis(1)] {
        assert!(
            registry
                .heartbeat(&session.id, ttl)
                .await
                .unwrap()
                .is_alive()
        );
    }

    assert_eq!(statements.ran(), 5);
}

#[tokio::test]
async fn an_id_that_is_no_uuid_is_refused_before_any_statement() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);
    let ids = [
        "",
        " ",
        "no-such-session",
        "6f9619ff8b86d011b42d00cf4fc964ff",
        "{6f9619ff-8b86-d011-b42d-00cf4fc964ff}",
        "urn:uuid:6f9619ff-8b86-d011-b42d-00cf4fc964ff",
        " 6f9619ff-8b86-d011-b42d-00cf4fc964f",
        "6f9619ff-8b86-d011-b42d-00cf4fc964f",
        "6f9619ff-8b86-d011-b42d-00cf4fc964ff0",
        "6f9619ff-8b86-d011-b42d_00cf4fc964ff",
        "6f9619ff-8b86-d011-b42d-00cf4fc964fg",
        "6f9619f-f8b86-d011-b42d-00cf4fc964ff",
        "6f9619ff-8b86-d011-b42d-00cf4fc964\u{e9}",
        "6f9619ff-8b86-d011-b42d-00cf4fc964f\0",
        &"f".repeat(4096),
        &"f".repeat(100_000),
    ];

    for id in ids {
        let case: String = id.chars().take(40).collect();
        assert_invalid(registry.heartbeat(id, LONG).await, "session", &case);
        assert_invalid(registry.close_session(id).await, "session", &case);
        assert_invalid(registry.locks_of(id).await, "session", &case);
    }

    assert_eq!(statements.ran(), 0);
}

#[tokio::test]
async fn an_id_in_upper_case_names_the_same_session() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);
    let session = registry.open_session("tester", LONG).await.unwrap();
    let shouted = session.id.to_uppercase();

    assert!(registry.heartbeat(&shouted, LONG).await.unwrap().is_alive());
    assert!(registry.close_session(&shouted).await.unwrap().existed);
    assert_eq!(statements.ran(), 3);
}

#[tokio::test]
async fn every_open_is_a_session_of_its_own_whoever_the_owner_is() {
    let database = TestDatabase::create().await;
    let (_, registry) = Counted::on(&database);

    let first = registry.open_session("tester", LONG).await.unwrap();
    let second = registry.open_session("tester", LONG).await.unwrap();

    assert_ne!(first.id, second.id);
    assert_eq!(database.sessions().await, 2);
}

#[tokio::test]
async fn every_call_runs_its_statement_once() {
    let database = TestDatabase::create().await;
    let (statements, registry) = Counted::on(&database);
    let session = registry.open_session("tester", LONG).await.unwrap();

    for calls in 2..10 {
        let _ = registry.heartbeat(&session.id, LONG).await.unwrap();
        assert_eq!(statements.ran(), calls);
    }
    let _ = registry.locks_of(&session.id).await.unwrap();
    let _ = registry.close_session(&session.id).await.unwrap();
    let _ = registry.heartbeat(&session.id, LONG).await.unwrap();
    assert_eq!(statements.ran(), 12);
}

#[tokio::test]
async fn locks_of_lists_the_first_hundred_keys_however_long_they_are() {
    let database = TestDatabase::create().await;
    let (_, registry) = Counted::on(&database);
    let session = registry.open_session("tester", LONG).await.unwrap();
    database
        .execute(&format!(
            "INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, expires_at)
             SELECT lpad(n::text, 128, '0'), 'tester', '{}', n, now() + interval '1 minute'
               FROM generate_series(1, 101) n",
            session.id
        ))
        .await;

    let keys = registry.locks_of(&session.id).await.unwrap();

    let expected: Vec<_> = (1..=100).map(|n| format!("{n:0>128}")).collect();
    assert!(keys == expected, "{} keys", keys.len());
}
