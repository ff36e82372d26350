//! "Write a policy in ten minutes" of `guest/README.md`, followed to the letter in a folder of
//! its own.

use std::env;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::support::program::{Folder, program};

/// The section's blocks as one script: what is no shell is the file that the text before it
/// names.
fn script(readme: &str) -> String {
    let section = readme
        .split_once("## Write a policy in ten minutes\n")
        .unwrap()
        .1;
    let section = section.split_once("\n## ").unwrap().0;
    let mut script = String::new();
    for part in section.split("\n```").collect::<Vec<_>>().chunks(2) {
        let [_, block] = part else { break };
        let (language, text) = block.split_once('\n').unwrap();
        let file = match language {
            "sh" => {
                writeln!(script, "{text}").unwrap();
                continue;
            }
            "toml" => "Cargo.toml",
            "rust" => "src/lib.rs",
            other => panic!("a block of {other}"),
        };
        writeln!(script, "cat >{file} <<'END OF FILE'\n{text}\nEND OF FILE").unwrap();
    }
    script
}

#[test]
fn the_policy_of_ten_minutes_builds_and_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let script = script(&std::fs::read_to_string(root.join("guest/README.md")).unwrap());
    let folder = Folder::new();
    let path = env::var("PATH").unwrap();
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script])
        .current_dir(folder.path())
        .env("TENURE", root.canonicalize().unwrap())
        .env(
            "PATH",
            format!("{}:{path}", program().parent().unwrap().display()),
        );
    // It is not this build's: what cargo sets for the tests is none of its business.
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_") && name != "CARGO_HOME" || name == "RUSTFLAGS" {
            bash.env_remove(name);
        }
    }

    // No time limit: it compiles all that it depends on.
    let followed = bash.output().unwrap();

    assert!(followed.status.success(), "{followed:?}");
    let shown = String::from_utf8_lossy(&followed.stdout);
    assert!(shown.starts_with("team-names 1.0.0, "), "{shown}");
    assert!(
        shown.contains("ok        a live session lives on\n"),
        "{shown}"
    );
    assert!(
        shown.contains("said      refused: an owner-id is team/worker\n"),
        "{shown}"
    );
    assert!(shown.contains(" 0 failed; "), "{shown}");
}
