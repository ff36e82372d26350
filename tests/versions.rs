//! Versions of the contract: what `wit/README.md` says of them.

use std::path::{Path, PathBuf};

use tenure::Policy;
use tenure::policy::LoadError;
use tenure::policy::conformance::{Inspection, Settings, check};
use wit_component::semver_check;
use wit_parser::{PackageId, Resolve};

use crate::support::host::engine;
use crate::support::program::Folder;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|is| is == extension))
        .collect();
    files.sort();
    files
}

#[test]
fn policies_that_were_built_against_older_versions_still_load_and_check_clean() {
    let components = files(&here().join("fixtures/components"), "wasm");
    assert!(!components.is_empty());
    for file in components {
        let component = std::fs::read(&file).unwrap();
        let mut settings = Settings::default();
        settings.operations = 500;

        let report = check(&settings, &component);

        let failures: Vec<_> = report.failures().collect();
        assert!(failures.is_empty(), "{}: {failures:#?}", file.display());
        let stricter: Vec<_> = report.stricter().collect();
        assert!(stricter.is_empty(), "{}: {stricter:#?}", file.display());
        Policy::load(engine(), &component).unwrap();
    }
}

#[test]
fn a_policy_that_wants_what_the_host_lacks_is_told_which_function() {
    let component = wat::parse_str(
        r#"(component
             (import "tenure:registry/statements@0.1.7" (instance
               (export "renew-session" (func (param "session-id" string) (result u32))))))"#,
    )
    .unwrap();

    let misfits = Inspection::of(&component).unwrap().misfits;
    let loaded = Policy::load(engine(), &component);

    assert_eq!(
        misfits[0],
        "it imports the function renew-session of tenure:registry/statements@0.1.7, which this \
         host does not have"
    );
    let Err(LoadError::DoesNotFit(why)) = loaded else {
        panic!("{loaded:?}")
    };
    assert!(why.contains("renew-session"), "{why}");
}

/// Puts the contract into `resolve`, under a version and with a change.
fn contract(resolve: &mut Resolve, version: &str, from: &str, to: &str) -> PackageId {
    let folder = Folder::new();
    let mut found = 0;
    for file in files(&here().join("../wit"), "wit") {
        let text = std::fs::read_to_string(&file).unwrap();
        found += text.matches(from).count();
        let text = text.replace(from, to);
        let text = text.replace(
            "tenure:registry@0.1.0",
            &format!("tenure:registry@{version}"),
        );
        folder.write(file.file_name().unwrap().to_str().unwrap(), &text);
    }
    assert!(found > 0, "there is no {from:?}");
    resolve.push_dir(folder.path()).unwrap().0
}

/// Whether a policy for the contract as it is fits a host of the changed one.
fn is_compatible(from: &str, to: &str) -> bool {
    let mut resolve = Resolve::default();
    let [old, new] = [
        contract(&mut resolve, "0.1.0", from, from),
        contract(&mut resolve, "0.1.1", from, to),
    ]
    .map(|package| {
        resolve
            .select_world(&[package], Some("session-policy"))
            .unwrap()
    });
    semver_check(resolve, old, new).is_ok()
}

#[test]
fn additions_to_what_a_policy_imports_are_compatible_and_no_other_change_is() {
    let statement =
        "    locks-of: func(session-id: session-id) -> result<list<string>, store-error>;";
    let operation =
        "    locks-of: func(session-id: session-id) -> result<list<string>, registry-error>;";
    let more = |function: &str| format!("{function}\n    more: func();");
    let import = "import statements;";
    for (what, from, to, compatible) in [
        ("nothing", import, import.to_owned(), true),
        ("another statement", statement, more(statement), true),
        (
            "another import",
            import,
            "import statements;\n    import more: interface { more: func(); }".to_owned(),
            true,
        ),
        (
            "another type",
            "type session-id = string;",
            "type session-id = string;\n    type more = string;".to_owned(),
            true,
        ),
        ("another operation", operation, more(operation), false),
        (
            "another export",
            import,
            "import statements;\n    export more: interface { more: func(); }".to_owned(),
            false,
        ),
        ("a statement less", statement, String::new(), false),
        (
            "another case of an error",
            "rejected(string),",
            "rejected(string),\n        more(string),".to_owned(),
            false,
        ),
        (
            "another parameter",
            "ttl-ms: u64)",
            "ttl-ms: u64, more: bool)".to_owned(),
            false,
        ),
        (
            "another type of a parameter",
            "ttl-ms: u64)",
            "ttl-ms: u32)".to_owned(),
            false,
        ),
        (
            "another result",
            "result<bool, registry-error>",
            "bool".to_owned(),
            false,
        ),
    ] {
        assert_eq!(is_compatible(from, &to), compatible, "{what}");
    }
}
