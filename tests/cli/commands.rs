//! The subcommands that end by themselves, and the command line as such.

use std::io::Read as _;

use sha2::{Digest as _, Sha256};
use tenure::policy::LIFECYCLE;

use super::SECRET;
use crate::support::database::TestDatabase;
use crate::support::program::{complaint, run, tenure};

#[test]
fn every_help_has_examples() {
    for command in ["serve", "migrate", "config", "fence raise", "policy show"] {
        let words = command.split(' ').chain(["--help"]);
        let help = run(&mut tenure(words));
        assert_eq!(help.code, Some(0), "{help:?}");
        let examples = help.stdout.split_once("Example").expect(command).1;
        assert!(
            examples.contains(&format!("tenure {command}")),
            "{examples}"
        );
    }
    let help = run(&mut tenure(["--help"]));
    assert_eq!(help.code, Some(0));
    for word in ["serve", "migrate", "config", "fence", "policy"] {
        assert!(help.stdout.contains(&format!("\n  {word} ")), "{help:?}");
    }
}

#[test]
fn the_version_is_that_of_the_project() {
    let version = run(&mut tenure(["--version"]));
    assert_eq!(version.code, Some(0));
    assert_eq!(
        version.stdout,
        format!("tenure {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn a_wrong_command_line_is_status_2_and_says_what_is_wrong() {
    for (arguments, wrong) in [
        (&["serve", "--nope"][..], "--nope"),
        (&["serve", "extra"], "extra"),
        (&["serve", "--listen"], "--listen"),
        (&["config", "--insecure=yes"], "--insecure"),
        (&["sever"], "sever"),
        (&["policy"], "Usage: tenure policy"),
        (&[], "Usage: tenure"),
    ] {
        let error = complaint(&mut tenure(arguments), 2);
        assert!(error.contains(wrong), "{arguments:?}: {error}");
    }
}

#[test]
fn policy_show_shows_the_component_that_is_in_use() {
    let shown = run(&mut tenure(["policy", "show"]));
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let values = |name: &str| {
        shown
            .stdout
            .lines()
            .filter_map(|line| line.strip_prefix(name))
            .map(str::trim)
            .collect::<Vec<_>>()
    };
    assert_eq!(values("name"), ["lifecycle"]);
    assert_eq!(values("version"), [env!("CARGO_PKG_VERSION")]);
    assert_eq!(values("size"), [format!("{} bytes", LIFECYCLE.len())]);
    let digest = Sha256::digest(LIFECYCLE);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(values("sha256"), [digest]);
    assert_eq!(
        values("import"),
        [
            "tenure:registry/types@0.1.0",
            "tenure:registry/statements@0.1.0"
        ]
    );
    assert_eq!(values("export"), ["tenure:registry/session-registry@0.1.0"]);
}

#[test]
fn a_reader_who_has_gone_is_no_error() {
    for command in [&["config"][..], &["policy", "show"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (mut errors, stderr) = std::io::pipe().unwrap();
        let mut child = tenure(command)
            .stdout(writer)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let status = child.wait().unwrap();
        let mut complaints = String::new();
        errors.read_to_string(&mut complaints).unwrap();
        assert!(status.success(), "{command:?}: {status} {complaints}");
        assert_eq!(complaints, "");
    }
}

#[tokio::test]
async fn migrate_makes_the_schema_once() {
    let database = TestDatabase::create_empty().await;

    let first = run(&mut tenure(["migrate", "--database-url", &database.url()]));
    let second = run(tenure(["migrate"]).env("TENURE_DATABASE_URL", database.url()));

    assert_eq!(first.code, Some(0), "{first:?}");
    assert_eq!(
        first.stdout,
        "applied V1__create_lock_session_and_lock_entry\n\
         applied V2__create_lock_revocation\n\
         applied V3__create_policy_revision\n\
         applied V4__make_room_for_heartbeats\n"
    );
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_eq!(second.stdout, "the schema is up to date\n");
    assert_eq!(database.sessions().await, 0);
}

#[tokio::test]
async fn migrate_takes_the_url_from_the_environment() {
    let database = TestDatabase::create_empty().await;

    let migrated = run(tenure(["migrate"]).env("TENURE_DATABASE_URL", database.url()));

    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    assert!(migrated.stdout.starts_with("applied V1"), "{migrated:?}");
    assert_eq!(database.locks().await, 0);
}

#[test]
fn a_database_that_cannot_be_used_is_an_error_without_its_password() {
    for (url, why) in [
        ("mysql://u:SECRET@h/x", "database-url (from --database-url)"),
        (
            "postgres://u:SECRET@h:port/x",
            "invalid value for option `port`",
        ),
        // What comes after the space passes for the name of an option.
        ("host=h password=a SECRET=b", "unknown option"),
        ("postgres://u@h/x?SECRET=1", "unknown option"),
        ("host='h password=SECRET", "unterminated"),
        (
            "postgres://u:SECRET@127.0.0.1:1/x",
            "cannot reach the database",
        ),
        (
            "host=/nonexistent password=SECRET",
            "cannot reach the database",
        ),
        ("user=u password=SECRET", "cannot reach the database"),
    ] {
        let url = url.replace("SECRET", SECRET);
        for command in ["migrate", "serve"] {
            let arguments = [command, "--listen", "127.0.0.1:0", "--database-url", &url];
            let ended = run(&mut tenure(arguments));
            assert_eq!(ended.code, Some(1), "{ended:?}");
            assert!(ended.stderr.contains(why), "{url}: {ended:?}");
            assert!(!format!("{ended:?}").contains(SECRET), "{url}: {ended:?}");
        }
    }
}
