//! Policies in other languages than Rust: the default policy once more, held to the same
//! scenarios.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure::policy::conformance::{Inspection, Report, Settings, check};
use tenure::{Profile, policy};

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

    let report = check(&settings, component);

    let failures: Vec<_> = report.failures().collect();
    assert!(failures.is_empty(), "seed {}: {failures:#?}", report.seed);
    let stricter: Vec<_> = report.stricter().collect();
    assert!(stricter.is_empty(), "{stricter:#?}");
    report
}

#[test]
fn a_policy_in_c_is_the_default_policy() {
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
}

#[test]
fn a_policy_in_python_is_the_default_policy() {
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
}
