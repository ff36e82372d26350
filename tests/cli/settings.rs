//! Where settings come from, and what is wrong with them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use super::SECRET;
use crate::support::program::{Folder, complaint, run, tenure};

/// What `tenure config` shows: for each key its value and where that comes from.
#[track_caller]
fn shown(command: &mut Command) -> BTreeMap<String, (String, String)> {
    let config = run(command);
    assert_eq!(config.code, Some(0), "{config:?}");
    assert_eq!(config.stderr, "");
    config
        .stdout
        .lines()
        .map(|line| {
            let mut columns = line.split("  ").filter(|column| !column.is_empty());
            let mut next = || columns.next().unwrap_or_default().trim().to_owned();
            (next(), (next(), next()))
        })
        .collect()
}

fn pair(value: &str, origin: &str) -> (String, String) {
    (value.to_owned(), origin.to_owned())
}

#[test]
fn with_nothing_configured_a_session_lives_for_15_s() {
    let shown = shown(
        tenure(["config"])
            .env("HOME", "/home/x")
            .env_remove("XDG_DATA_HOME"),
    );
    assert_eq!(shown["lock.session.ttl"], pair("15s", "default"));
    assert_eq!(shown["lock.default.ttl"], pair("30s", "default"));
    assert_eq!(shown["lock.backend"], pair("pg", "default"));
    assert_eq!(shown["lock.reaper.interval"], pair("1s", "default"));
    assert_eq!(shown["listen"], pair("127.0.0.1:7400", "default"));
    assert_eq!(shown["database-url"], pair("(none)", ""));
    // SAFETY: it only asks.
    let data_dir = match unsafe { libc::geteuid() } {
        0 => "/var/lib/tenure",
        _ => "/home/x/.local/share/tenure",
    };
    assert_eq!(shown["data-dir"], pair(data_dir, "default"));
}

#[test]
fn a_flag_is_over_the_environment_is_over_the_file_is_over_the_default() {
    let folder = Folder::new();
    let file = folder.write(
        "tenure.toml",
        "lock.session.ttl = '20s'\nlock.default.ttl = '21s'\n[lock.reaper]\ninterval = '2s'\n",
    );
    let given = |command: &mut Command| {
        shown(
            command
                .env("TENURE_LOCK_SESSION_TTL", "30s")
                .env("TENURE_LOCK_DEFAULT_TTL", "31s")
                // Taken back.
                .env("TENURE_POLICY_CALLS", ""),
        )
    };
    let flags = ["config", "--lock-session-ttl", "40s", "--config", &file];
    for shown in [
        given(&mut tenure(flags)),
        given(tenure(&flags[..3]).env("TENURE_CONFIG", &file)),
    ] {
        assert_eq!(shown["lock.session.ttl"], pair("40s", "--lock-session-ttl"));
        assert_eq!(
            shown["lock.default.ttl"],
            pair("31s", "TENURE_LOCK_DEFAULT_TTL")
        );
        assert_eq!(shown["lock.reaper.interval"], pair("2s", &file));
        assert_eq!(shown["policy.calls"], pair("1024", "default"));
    }
}

#[test]
fn a_database_url_is_not_shown_wherever_it_comes_from() {
    let folder = Folder::new();
    let url = format!("postgres://tenure:{SECRET}@db/lockdb");
    let file = folder.write("tenure.toml", &format!("database-url = '{url}'"));
    for (config, origin) in [
        (
            run(&mut tenure(["config", "--database-url", &url])),
            "--database-url",
        ),
        (
            run(tenure(["config"]).env("TENURE_DATABASE_URL", &url)),
            "TENURE_DATABASE_URL",
        ),
        (run(&mut tenure(["config", "--config", &file])), &*file),
    ] {
        assert_eq!(config.code, Some(0), "{config:?}");
        assert!(!format!("{config:?}").contains(SECRET), "{config:?}");
        let line = config
            .stdout
            .lines()
            .find(|line| line.starts_with("database-url"))
            .unwrap();
        assert!(
            line.contains("(hidden)") && line.ends_with(origin),
            "{line}"
        );
        // Then there is no private PostgreSQL, and no folder of it.
        assert!(config.stdout.contains("data-dir              (none)\n"));
    }
}

#[test]
fn a_file_that_is_wrong_is_refused_and_not_repeated() {
    let folder = Folder::new();
    for (text, why) in [
        ("lock.sesion.ttl = '20s'", "no setting lock.sesion.ttl"),
        ("lock.session.ttl = 20", "lock.session.ttl = \"20\""),
        ("lock.session.ttl = 1.5", "lock.session.ttl has to be"),
        ("listen = '127.0.0.1:0'\nlisten = ", "line 2"),
        ("listen = '1'\nlisten = '2'", "line 2: duplicate key"),
        ("database-url = 'postgres://u:SECRET@h/x", "line 1"),
        ("\n\ndatabase-url = postgres://u:SECRET@h/x", "line 3"),
        (
            "database-url = ['postgres://u:SECRET@h/x']",
            "database-url has to be",
        ),
        ("lock = 5", "no setting lock;"),
    ] {
        let file = folder.write("tenure.toml", &text.replace("SECRET", SECRET));
        let error = complaint(&mut tenure(["config", "--config", &file]), 1);
        assert!(
            error.contains(why) && error.contains(&file),
            "{text}: {error}"
        );
        assert!(!error.contains(SECRET), "{error}");
    }
    let missing = folder.at("missing.toml");
    let error = complaint(&mut tenure(["serve", "--config", &missing]), 1);
    assert!(error.contains(&missing), "{error}");
}

#[test]
fn garbage_in_the_environment_is_refused_by_name() {
    for name in [
        "LISTEN",
        "DATABASE_CONNECTIONS",
        "INSECURE",
        "LOCK_SESSION_TTL",
        "LOCK_DEFAULT_TTL",
        "LOCK_BACKEND",
        "LOCK_REAPER_INTERVAL",
        "POLICY_DEADLINE",
        "POLICY_CALLS",
        "CONFIG",
    ] {
        let name = format!("TENURE_{name}");
        let error = complaint(tenure(["config"]).env(&name, "; gar bage"), 1);
        assert!(error.contains("; gar bage"), "{error}");
        if name != "TENURE_CONFIG" {
            assert!(error.contains(&name), "{error}");
        }
        let error = complaint(tenure(["config"]).env(&name, OsStr::from_bytes(b"\xff")), 1);
        assert!(error.contains(&format!("{name} is not UTF-8")), "{error}");
    }
}
