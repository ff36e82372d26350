//! The scripts of `tasks/`, called from anywhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::support::program::{Folder, run};

#[test]
fn they_build_in_the_project_and_run_where_they_are_called() {
    let folder = Folder::new();
    // The scripts in a project of their own, where nothing is to be set up, and with a cargo
    // that only says where and how it was called.
    let root = folder.path().canonicalize().unwrap();
    let root = root.to_str().unwrap();
    let (project, elsewhere) = (format!("{root}/pro ject"), format!("{root}/else where"));
    for path in [&*project, &*elsewhere, "bin", "trap/tasks"] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    fs::create_dir(format!("{project}/tasks")).unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tasks");
    for name in ["run", "test", "common.sh"] {
        fs::copy(scripts.join(name), format!("{project}/tasks/{name}")).unwrap();
    }
    let program = format!("{root}/bin/a program");
    let says = "pwd; printf '<%s>' \"$@\"; echo";
    for (path, script) in [
        (format!("{project}/tasks/setup"), "exit 0".to_owned()),
        (program.clone(), says.to_owned()),
        (
            format!("{root}/bin/cargo"),
            format!(
                "case $1 in build) exec 4>&1 >&2; printf '%s\\n' '{{\"executable\":null}}' \
                 '{{\"executable\":\"{program}\"}}' >&4;; esac; {says}"
            ),
        ),
    ] {
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    for (called_from, called_as) in [
        (&elsewhere, format!("{project}/tasks")),
        (&elsewhere, "../pro ject/tasks".to_owned()),
        // Where `cd` would look elsewhere first.
        (&project, "tasks".to_owned()),
    ] {
        let call = |script: &str| {
            let mut command = Command::new("bash");
            command
                .arg(format!("{called_as}/{script}"))
                .args(["--data-dir", "a b"])
                .current_dir(called_from)
                .env("PATH", format!("{root}/bin:{path}"))
                .env("CDPATH", format!("{root}/trap"));
            run(&mut command)
        };

        let served = call("run");
        assert_eq!(served.code, Some(0), "{served:?}");
        let expected = format!("{called_from}\n<serve><--data-dir><a b>\n");
        assert_eq!(served.stdout, expected, "{called_as}");
        let built = format!("{project}\n<build><--release><--locked>");
        assert!(served.stderr.starts_with(&built), "{served:?}");

        let tested = call("test");
        assert_eq!(tested.code, Some(0), "{tested:?}");
        let expected = format!("{project}\n<test><--locked><--data-dir><a b>\n");
        assert_eq!(tested.stdout, expected, "{called_as}");
    }
}
