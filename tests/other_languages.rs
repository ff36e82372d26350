//! Policies in other languages than Rust: the default policy once more, held to the same
//! scenarios.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use tenure::policy::conformance::{Inspection, Model, Report, Settings, check};
use tenure::{Error, Policy, PolicyOptions, Profile, SessionRegistry, policy};

use crate::support::database::TestDatabase;
use crate::support::host::{Host, LONG, engine};
use crate::support::program::Folder;
use crate::support::toolchain;

fn guest(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../guest")
        .join(name)
}

/// Checks a policy that is to be as strict as the default one and no stricter.
fn passes(component: &[u8], profile: Profile, operations: usize) -> Report {
    let about = Inspection::of(component).unwrap();
    assert!(!about.needs_wasi, "{:?}", about.imports);
    let mut settings = Settings::default();
    settings.operations = operations;
    settings.options.profile = profile;

    // It has a runtime of its own.
    let report = thread::scope(|scope| scope.spawn(|| check(&settings, component)).join().unwrap());

    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "seed {}: {failures:#?}", report.seed);
    let stricter: Vec<_> = report.stricter().collect();
    assert!(stricter.is_empty(), "{stricter:#?}");
    report
}

#[tokio::test]
async fn a_policy_in_c_is_the_default_policy() {
    let folder = guest("c-lifecycle");
    if !toolchain::is_there(&folder.join("setup")) {
        return;
    }
    let out = Folder::new();
    let wit = folder.join("../../wit");
    let file = guest_build::c::build(&folder, &wit, "c-lifecycle", "0.1.0", out.path()).unwrap();
    let component = std::fs::read(file).unwrap();

    let report = passes(&component, Profile::Strict, 10_000);

    assert!(component.len() < 24 * 1024, "{} bytes", component.len());
    // It never grows its memory.
    assert_eq!(report.memory_used, 64 * 1024);
    // The same functions, and no others.
    let exports = |component| Inspection::of(component).unwrap().exports;
    assert_eq!(exports(&component), exports(policy::LIFECYCLE));
    takes_over(&component, &PolicyOptions::default()).await;
    // All of Unicode's white space and control characters are among these, and the borders of
    // UTF-8's lengths.
    let characters = ('\0'..'\u{3100}').chain(['\u{ffff}', '\u{10000}', '\u{10ffff}']);
    judges_owners(Policy::load(engine(), &component).unwrap(), characters).await;
}

/// Owners of one character are refused where the character is white space or a control
/// character; with another before it, only where it is a control character.
async fn judges_owners(policy: Policy, characters: impl Iterator<Item = char>) {
    let registry = SessionRegistry::new(policy, Arc::new(Model::default()));
    for c in characters {
        let (blank, control) = (c.is_whitespace(), c.is_control());
        for (owner, no) in [
            (format!("{c}"), blank || control),
            (format!("a{c}"), control),
        ] {
            match registry.open_session(&owner, LONG).await {
                Ok(_) => assert!(!no, "{owner:?}"),
                Err(Error::InvalidArgument(_)) => assert!(no, "{owner:?}"),
                Err(error) => panic!("{owner:?}: {error}"),
            }
        }
    }
}

/// Puts a policy in charge of a session that was opened under the default one, on a real
/// database.
async fn takes_over(component: &[u8], options: &PolicyOptions) {
    let database = TestDatabase::create().await;
    let host = Host::new(&database);
    let registry = &host.registry;
    let session = host.open(LONG).await;
    let _ = host.lock("kept", &session).await;

    let policy = Policy::load_with(engine(), component, options).unwrap();
    registry.slot().swap(policy);

    assert!(registry.heartbeat(&session, LONG).await.unwrap().is_alive());
    assert_eq!(registry.locks_of(&session).await.unwrap(), ["kept"]);
    let closed = registry.close_session(&session).await.unwrap();
    assert_eq!(closed.locks_released, 1);
    assert!(!registry.heartbeat(&session, LONG).await.unwrap().is_alive());
    let refused = registry.open_session("\u{2003}", LONG).await;
    assert!(
        matches!(refused, Err(Error::InvalidArgument(_))),
        "{refused:?}"
    );
    let other = host.open(LONG).await;
    assert!(registry.heartbeat(&other, LONG).await.unwrap().is_alive());
    assert_eq!(registry.policy().counts().violations, 0);
}

#[tokio::test]
async fn a_policy_in_python_is_the_default_policy() {
    let folder = guest("python-lifecycle");
    if !toolchain::is_there(&folder.join("setup")) {
        return;
    }
    let out = Folder::new();
    let file = out.at("python-lifecycle.wasm");
    let built = Command::new(folder.join("build"))
        .arg(&file)
        .status()
        .unwrap();
    assert!(built.success(), "{built}");
    let component = std::fs::read(file).unwrap();

    let report = passes(&component, Profile::Interpreted, 100);

    // It would not do where only the smaller profile is allowed.
    assert!(report.memory_used > 2 * 1024 * 1024);
    let mut options = PolicyOptions::default();
    options.profile = Profile::Interpreted;
    takes_over(&component, &options).await;
    let characters = ('\0'..'\u{100}').chain('\u{1680}'..='\u{1681}');
    let characters = characters
        .chain('\u{1fff}'..'\u{2061}')
        .chain('\u{2fff}'..'\u{3002}');
    let policy = Policy::load_with(engine(), &component, &options).unwrap();
    judges_owners(policy, characters).await;
}
