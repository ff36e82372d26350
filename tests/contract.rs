//! The contract in `wit/`, and the pinned SQL that stands in it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tenure::postgres::sql;
use wit_parser::{Docs, Resolve, Type, TypeDefKind, World, WorldItem, WorldKey};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn contract() -> Resolve {
    let mut resolve = Resolve::default();
    resolve.push_dir(root().join("wit")).unwrap();
    resolve
}

fn world(resolve: &Resolve) -> &World {
    let mut worlds = resolve.worlds.iter().map(|(_, world)| world);
    let world = worlds.next().unwrap();
    assert!(worlds.next().is_none(), "there is more than one world");
    world
}

fn interfaces<'a>(
    resolve: &'a Resolve,
    items: impl IntoIterator<Item = (&'a WorldKey, &'a WorldItem)>,
) -> Vec<String> {
    items
        .into_iter()
        .map(|(key, _)| resolve.name_world_key(key))
        .collect()
}

#[test]
fn the_world_imports_the_statements_and_exports_the_registry_and_nothing_else() {
    let resolve = contract();
    let world = world(&resolve);

    let package = &resolve.packages[world.package.unwrap()];
    assert_eq!(package.name.to_string(), "tenure:registry@0.1.0");
    assert_eq!(world.name, "session-policy");
    assert_eq!(
        interfaces(&resolve, &world.imports),
        [
            "tenure:registry/types@0.1.0",
            "tenure:registry/statements@0.1.0"
        ]
    );
    assert_eq!(
        interfaces(&resolve, &world.exports),
        ["tenure:registry/session-registry@0.1.0"]
    );
}

#[test]
fn every_item_of_the_contract_is_documented() {
    let resolve = contract();
    let mut documented = 0;
    let mut expect = |docs: &Docs, item: &str| {
        let text = docs.contents.as_deref().unwrap_or_default();
        assert!(!text.trim().is_empty(), "{item} has no documentation");
        documented += 1;
    };

    let world = world(&resolve);
    expect(&world.docs, &world.name);
    for (_, interface) in resolve.interfaces.iter() {
        let name = interface.name.as_deref().unwrap();
        expect(&interface.docs, name);
        for function in interface.functions.values() {
            expect(&function.docs, &format!("{name}.{}", function.name));
        }
    }
    for (_, ty) in resolve.types.iter() {
        let Some(name) = &ty.name else { continue };
        match &ty.kind {
            // What `use` brings in.
            TypeDefKind::Type(Type::Id(_)) => continue,
            TypeDefKind::Variant(variant) => {
                for case in &variant.cases {
                    expect(&case.docs, &format!("{name}.{}", case.name));
                }
            }
            TypeDefKind::Type(_) => {}
            other => panic!(
                "{name} is a {}, which this test does not know",
                other.as_str()
            ),
        }
        expect(&ty.docs, name);
    }

    // A world, three interfaces, eight functions, three types, two and four cases.
    assert_eq!(documented, 21);
}

/// The SQL that stands in the documentation of a function of `statements`, block by block.
fn pinned(function: &str) -> Vec<String> {
    let resolve = contract();
    let (_, statements) = resolve
        .interfaces
        .iter()
        .find(|(_, interface)| interface.name.as_deref() == Some("statements"))
        .unwrap();
    let docs = statements.functions[function].docs.contents.as_deref();
    let mut blocks = Vec::new();
    let mut lines = docs.unwrap().lines();
    while let Some(line) = lines.next() {
        if line.trim() == "```sql" {
            let block: Vec<_> = lines
                .by_ref()
                .take_while(|line| line.trim() != "```")
                .collect();
            blocks.push(block.join("\n"));
        }
    }
    blocks
}

#[test]
fn the_heartbeat_is_the_pinned_one() {
    let statement = "\
UPDATE lock_session
   SET expires_at = now() + $2::bigint * interval '1 millisecond'
 WHERE session_id = $1 AND expires_at > now()
RETURNING expires_at";

    assert_eq!(sql::HEARTBEAT, statement);
    assert_eq!(pinned("heartbeat")[0], statement);
}

#[test]
fn the_contract_and_the_host_have_the_same_sql_letter_for_letter() {
    for (function, host) in [
        ("heartbeat", &[sql::HEARTBEAT, sql::HEARTBEAT_MANY][..]),
        ("open-session", &[sql::OPEN_SESSION]),
        (
            "close-session",
            &[
                sql::CLOSE_SESSION_LOCK,
                sql::CLOSE_SESSION_COUNT,
                sql::CLOSE_SESSION_DELETE,
            ],
        ),
        ("locks-of", &[sql::LOCKS_OF]),
    ] {
        assert_eq!(pinned(function), host, "{function}");
    }
}

#[test]
fn every_function_of_statements_has_its_sql() {
    let resolve = contract();
    let (_, statements) = resolve
        .interfaces
        .iter()
        .find(|(_, interface)| interface.name.as_deref() == Some("statements"))
        .unwrap();

    let functions: Vec<_> = statements.functions.keys().map(String::as_str).collect();

    assert_eq!(
        functions,
        ["open-session", "heartbeat", "close-session", "locks-of"]
    );
    for function in functions {
        assert!(!pinned(function).is_empty(), "{function} has no SQL");
    }
}

/// In upper case, with single spaces, without what stands in quotes.
fn normal(statement: &str) -> String {
    let unquoted: String = statement.split('\'').step_by(2).collect();
    unquoted
        .to_uppercase()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The files whose statement matches.
fn files(matches: impl Fn(&str) -> bool) -> Vec<&'static str> {
    sql::ALL
        .iter()
        .filter(|(_, statement)| matches(&normal(statement)))
        .map(|(file, _)| *file)
        .collect()
}

const SESSION_STATEMENTS: [&str; 9] = [
    "open_session.sql",
    "heartbeat.sql",
    "heartbeat_many.sql",
    "close_session_lock.sql",
    "close_session_count.sql",
    "close_session_delete.sql",
    "locks_of.sql",
    "seal_session.sql",
    "session_state.sql",
];

#[test]
fn one_statement_inserts_a_session_and_none_resurrects_one() {
    assert_eq!(
        files(|sql| sql.contains("INSERT INTO LOCK_SESSION")),
        ["open_session.sql"]
    );

    let mut inserting = Vec::new();
    for (file, statement) in sql::ALL {
        if SESSION_STATEMENTS.contains(file) {
            let statement = normal(statement);
            assert!(!statement.contains("ON CONFLICT"), "{file}");
            assert!(!statement.contains("MERGE"), "{file}");
            if statement.contains("INSERT") {
                inserting.push(*file);
            }
        }
    }
    assert_eq!(inserting, ["open_session.sql"]);
}

#[test]
fn only_release_revoke_and_the_reaper_delete_locks() {
    assert_eq!(
        files(|sql| sql.contains("DELETE FROM LOCK_ENTRY")),
        ["release.sql", "revoke.sql", "reap_entries.sql"]
    );
    assert_eq!(files(|sql| sql.contains("TRUNCATE")), [] as [&str; 0]);
}

#[test]
fn only_close_and_the_reaper_delete_sessions_and_they_leave_the_locks_to_the_cascade() {
    assert_eq!(
        files(|sql| sql.contains("DELETE FROM LOCK_SESSION")),
        ["close_session_delete.sql", "reap_sessions.sql"]
    );
}

#[test]
fn every_statement_is_one_statement_of_parameters_and_known_texts() {
    let known = [
        "1 millisecond",
        "1 microsecond",
        "fencing_token_seq",
        "lock_session",
        "block_size",
    ];
    for (file, statement) in sql::ALL {
        assert!(
            statement.contains("$1") || ["highest_revision.sql", "reap_extent.sql"].contains(file),
            "{file} takes no parameter"
        );
        assert!(!statement.contains(';'), "{file} is more than a statement");
        assert!(!statement.contains(['{', '}', '%', '|', '"']), "{file}");
        for text in statement.split('\'').skip(1).step_by(2) {
            assert!(known.contains(&text), "{file} has the text {text:?}");
        }
    }
}

#[test]
fn every_sql_file_is_one_of_the_hosts_statements() {
    let on_disk: BTreeSet<String> = std::fs::read_dir(root().join("host/src/postgres/sql"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let listed: BTreeSet<String> = sql::ALL
        .iter()
        .map(|(file, _)| (*file).to_owned())
        .collect();

    assert_eq!(on_disk, listed);
    assert_eq!(listed.len(), sql::ALL.len(), "a file is listed twice");
}
