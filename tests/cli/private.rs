//! The server's private PostgreSQL: its folder, its end, and what becomes of it when
//! something is killed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use super::serve::{assert_pasted, paste};
use crate::support::program::{
    Folder, Server, answer, complaint, processes_with, program, run, tenure, until,
};
use crate::support::server::tell;

/// As Linux and macOS number it.
const NOBODY: u32 = 65_534;

fn start(data_dir: &str) -> Server {
    Server::start(&["--data-dir", data_dir])
}

fn refused(data_dir: &str) -> String {
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir];
    complaint(&mut tenure(arguments), 1)
}

/// The process at the head of a private PostgreSQL.
fn postmaster(data_dir: &str) -> i32 {
    let file = fs::read_to_string(Path::new(data_dir).join("postgres/postmaster.pid")).unwrap();
    file.lines().next().unwrap().parse().unwrap()
}

fn kill(process: i32, signal: i32) {
    // SAFETY: no memory is involved. The process is one that this test has caused, and lives.
    assert_eq!(unsafe { libc::kill(process, signal) }, 0);
}

fn is_root() -> bool {
    // SAFETY: it only asks.
    unsafe { libc::geteuid() == 0 }
}

#[tokio::test]
async fn it_says_what_it_is_and_survives_kill_9_with_its_data() {
    let folder = Folder::new();
    // A path that a shell, a connection string or PostgreSQL might take apart.
    let data = folder.at(r#"it's "a" \ folder"#);
    let server = start(&data);
    let shown = run(&mut tenure(["policy", "show"])).stdout;
    let digest = shown.split_once("sha256").unwrap().1.trim();
    let banner = server.banner();
    for line in [
        format!("tenure {}: session leases", env!("CARGO_PKG_VERSION")),
        format!("listening on  {}\n", server.url),
        format!("database      a private PostgreSQL in {data}\n"),
        format!("policy        lifecycle {}", env!("CARGO_PKG_VERSION")),
        format!("(sha256 {})", &digest[..12]),
    ] {
        assert!(banner.contains(&line), "{line} is missing: {banner}");
    }
    assert_pasted(&paste(&server).await);
    let session = server.open("me", 60_000).await;
    let token = server.lock("k", &session).await;
    let first = postmaster(&data);

    server.kill();
    // At once, while the first PostgreSQL may still be on its way out.
    let server = start(&data);

    let second = postmaster(&data);
    assert_ne!(second, first);
    // A child of the postmaster's has its command line for a moment.
    until("the first PostgreSQL's end", || {
        let clusters: Vec<_> = processes_with(&format!("-D {data}/postgres"))
            .into_iter()
            .filter(|(_, line)| !line.contains("/bin/sh"))
            .map(|(id, _)| id)
            .collect();
        (clusters == [second]).then_some(())
    });
    let (_, lock) = server.get("/v1/locks/k").await;
    assert_eq!(
        (&lock["held"], &lock["fencingToken"]),
        (&json!(true), &json!(token))
    );
    let beat = format!("/v1/sessions/{session}/heartbeat?count=true");
    let (status, beat) = server.post(&beat, json!({ "ttlMillis": 60_000 })).await;
    assert_eq!((status, &beat["heldLockCount"]), (200, &json!(1)), "{beat}");
    assert!(server.lock("k", &session).await > token);
    server.stop();
    folder.until_unused();
}

#[tokio::test]
async fn a_second_server_on_the_folder_is_refused_and_the_first_unharmed() {
    let folder = Folder::new();
    let data = folder.at("data");
    let server = start(&data);
    let session = server.open("me", 60_000).await;

    let error = refused(&data);
    let migrate = complaint(&mut tenure(["migrate", "--data-dir", &data]), 1);

    for error in [error, migrate] {
        assert!(
            error.contains(&format!("another tenure uses {data}")) && error.contains("--data-dir"),
            "{error}"
        );
    }
    let _ = server.lock("k", &session).await;
    server.stop();
}

#[test]
fn a_port_that_is_taken_is_refused_before_anything_is_started() {
    let folder = Folder::new();
    let data = folder.at("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();

    let arguments = ["serve", "--listen", &address, "--data-dir", &data];
    let error = complaint(&mut tenure(arguments), 1);

    assert!(
        error.contains(&format!("cannot listen on {address}")) && error.contains("--listen"),
        "{error}"
    );
    assert!(!Path::new(&data).exists());
    folder.until_unused();
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_and_left_alone() {
    let folder = Folder::new();
    let theirs = folder.write("theirs", "precious");
    fs::create_dir(folder.at("home")).unwrap();
    let precious = folder.write("home/precious", "precious");
    for (data, why) in [
        (&*theirs, "File exists"),
        (&*folder.at("theirs/data"), "Not a directory"),
        (&*folder.at("home"), "was not made by tenure"),
        ("/proc/tenure", "cannot use the folder /proc/tenure"),
        ("", "it has to name a folder"),
    ] {
        let error = refused(data);
        assert!(
            error.contains(data) && error.contains(why),
            "{data}: {error}"
        );
    }
    for file in [theirs, precious] {
        assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    }
    assert_eq!(fs::read_dir(folder.at("home")).unwrap().count(), 1);

    fs::create_dir(folder.at("locked")).unwrap();
    fs::set_permissions(folder.at("locked"), fs::Permissions::from_mode(0o500)).unwrap();
    let data = folder.at("locked/data");
    if is_root() {
        // Who may write everywhere; but not the user that PostgreSQL then runs as.
        fs::set_permissions(folder.at("locked"), fs::Permissions::from_mode(0o700)).unwrap();
        let error = refused(&data);
        assert!(
            error.contains("Permission denied") && error.contains("outside of a home folder"),
            "{error}"
        );
    } else {
        let error = refused(&data);
        assert!(
            error.contains(&data) && error.contains("Permission denied"),
            "{error}"
        );
    }
}

#[test]
fn root_is_not_led_elsewhere_by_what_is_in_the_folder() {
    let folder = Folder::new();
    let elsewhere = folder.write("elsewhere", "precious");
    for name in ["run", "tenure.lock", "guard.lock", "postgres.log"] {
        let data = folder.at(&format!("data-{name}"));
        fs::create_dir(&data).unwrap();
        fs::write(format!("{data}/tenure.lock"), "").unwrap();
        let _ = fs::remove_file(format!("{data}/{name}"));
        symlink(&elsewhere, format!("{data}/{name}")).unwrap();
        let error = refused(&data);
        assert!(
            error.contains(name) && error.contains("symbolic link"),
            "{name}: {error}"
        );
        folder.until_unused();
    }
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "precious");
}

#[test]
fn programs_of_the_wrong_version_or_none_are_an_error_that_names_the_package() {
    let folder = Folder::new();
    let data = folder.at("old");
    fs::create_dir_all(format!("{data}/postgres")).unwrap();
    fs::write(format!("{data}/tenure.lock"), "").unwrap();
    fs::write(format!("{data}/postgres/PG_VERSION"), "9\n").unwrap();
    let error = refused(&data);
    for word in [
        "is of PostgreSQL 9",
        "apt-get install postgresql-9",
        "--database-url",
    ] {
        assert!(error.contains(word), "{error}");
    }

    // Where they are looked for off the PATH, they are hidden by a mount of this process's
    // own.
    let hidden = "/usr/lib/postgresql";
    let mut command = Command::new(program());
    if Path::new(hidden).exists() {
        let unshare = |arguments: &[&str]| {
            let mut command = Command::new("unshare");
            command.arg("--mount").args(arguments);
            command
        };
        let mount = format!("mount -t tmpfs none {hidden}");
        let can = unshare(&["sh", "-c", &mount])
            .stderr(Stdio::null())
            .status();
        if !can.is_ok_and(|status| status.success()) {
            tell("no test of missing programs: they cannot be hidden here");
            return;
        }
        let script = format!("{mount} && PATH=/nonexistent exec \"$@\"");
        command = unshare(&["sh", "-c", &script, "sh"]);
        command.arg(program());
    }
    command
        .args(["serve", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.at("new"))
        .env_remove("TENURE_DATABASE_URL");
    if !Path::new(hidden).exists() {
        command.env("PATH", "/nonexistent");
    }
    let error = complaint(&mut command, 1);
    for word in [
        "were not found",
        "apt-get install postgresql;",
        "--database-url",
    ] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn an_interrupted_first_start_is_made_good_by_the_next() {
    let folder = Folder::new();
    for signal in [libc::SIGKILL, libc::SIGTERM] {
        let data = folder.at(&format!("data-{signal}"));
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", &data];
        let mut child = tenure(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("initdb", || {
            let made = Path::new(&data).join("postgres.unfinished/global").exists();
            made.then_some(())
        });
        kill(i32::try_from(child.id()).unwrap(), signal);
        let status = child.wait().unwrap();
        let orderly = signal == libc::SIGTERM;
        assert_eq!(status.success(), orderly, "{status}");

        // At once, while the interrupted initdb may still be on its way out.
        start(&data).stop();
        assert!(!Path::new(&data).join("postgres.unfinished").exists());
    }
    folder.until_unused();
}

#[tokio::test]
async fn a_hang_up_does_not_end_the_server() {
    let folder = Folder::new();
    let server = start(&folder.at("data"));
    let session = server.open("me", 60_000).await;

    server.signal(libc::SIGHUP);

    let _ = server.lock("k", &session).await;
    server.stop();
}

#[tokio::test]
async fn a_postgresql_that_dies_ends_the_server_which_says_so() {
    let folder = Folder::new();
    let data = folder.at("data");
    let server = start(&data);
    let session = server.open("me", 60_000).await;

    kill(postmaster(&data), libc::SIGKILL);
    let (status, log) = server.wait();

    assert_eq!(status.code(), Some(1), "{log}");
    assert!(
        log.contains("the private PostgreSQL ended by itself")
            && log.contains(&format!("{data}/postgres.log")),
        "{log}"
    );
    let server = start(&data);
    let _ = server.lock("k", &session).await;

    // Without its guard PostgreSQL is not left alone either.
    let (guard, _) = processes_with(&data)
        .into_iter()
        .filter(|(_, line)| line.contains("/bin/sh"))
        // The guard is older than its lifeline.
        .min()
        .unwrap();
    kill(guard, libc::SIGKILL);
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log}");
    let server = start(&data);
    let _ = server.lock("l", &session).await;
    server.stop();
}

/// A process that serves a connection of the server's, where there is /proc.
fn backend(data_dir: &str) -> Option<i32> {
    let children = format!("/proc/{0}/task/{0}/children", postmaster(data_dir));
    let children = fs::read_to_string(children).ok()?;
    children.split_whitespace().find_map(|child| {
        let line = fs::read_to_string(format!("/proc/{child}/cmdline")).ok()?;
        line.contains("tenure lockdb").then(|| child.parse().ok())?
    })
}

#[tokio::test]
async fn a_stop_amid_the_recovery_leaves_no_postgresql_behind() {
    let folder = Folder::new();
    let data = folder.at("data");
    let server = start(&data);
    let session = server.open("me", 60_000).await;
    let Some(backend) = backend(&data) else {
        tell("no test of a stop amid the recovery: no backend can be found here");
        return server.stop();
    };

    kill(backend, libc::SIGKILL);
    until("the recovery", || {
        let log = fs::read_to_string(format!("{data}/postgres.log")).unwrap();
        log.contains("reinitializing").then_some(())
    });
    server.signal(libc::SIGTERM);
    // Its status is PostgreSQL's, which may have to be told twice.
    let _ = server.wait();

    folder.until_unused();
    let server = start(&data);
    let close = server.request("DELETE", &format!("/v1/sessions/{session}"));
    let (status, _) = answer(close).await;
    assert!([204, 404].contains(&status), "{status}");
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_connection_that_dies_is_contention_until_postgresql_has_recovered() {
    let folder = Folder::new();
    let data = folder.at("data");
    let server = start(&data);
    let session = server.open("me", 60_000).await;
    let _ = server.lock("k", &session).await;
    let Some(backend) = backend(&data) else {
        tell("no test of a backend that dies: it cannot be found here");
        return server.stop();
    };

    kill(backend, libc::SIGKILL);
    // Until then another connection may still answer.
    until("the recovery's begin", || {
        let log = fs::read_to_string(format!("{data}/postgres.log")).unwrap();
        log.contains("reinitializing").then_some(())
    });

    let mut statuses = Vec::new();
    let beat = format!("/v1/sessions/{session}/heartbeat");
    until("the recovery", || {
        let (status, body) = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(server.post(&beat, json!({})))
        });
        statuses.push(status);
        if status == 503 {
            assert_eq!(body["retrySafe"], true, "{body}");
        }
        (status != 503).then_some(())
    });
    assert_eq!(statuses.last(), Some(&200), "{statuses:?}");
    server.stop();
}

#[tokio::test]
async fn a_path_too_long_for_a_socket_is_no_obstacle() {
    let folder = Folder::new();
    let data = folder.at(&"long".repeat(30));
    let sockets = || {
        let found = processes_with(&data);
        let (_, line) = found.iter().find(|(_, line)| line.contains(" -k "))?;
        let (_, rest) = line.split_once(" -k ")?;
        rest.split_once(" -c ")
            .map(|(sockets, _)| Path::new(sockets).to_owned())
    };
    let server = start(&data);
    let killed = sockets().unwrap();
    assert!(killed.exists() && !killed.starts_with(&data));
    server.kill();
    until("the removal of the sockets", || {
        (!killed.exists()).then_some(())
    });

    let server = start(&data);
    let stopped = sockets().unwrap();
    server.stop();
    assert_ne!(killed, stopped);
    assert!(!stopped.exists());
}

#[tokio::test]
async fn variables_that_are_meant_for_other_postgresqls_do_no_harm() {
    let folder = Folder::new();
    let data = folder.at("data");
    // Relative to where it is called.
    let mut command = tenure(["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"]);
    command
        .current_dir(folder.path())
        .env("PGPORT", "6000")
        .env("PGDATA", "/nonexistent")
        .env("PGDATABASE", "other")
        .env("PGHOST", "db.example")
        .env("PGUSER", "other")
        .env("PGOPTIONS", "-c nonsense=1")
        .env("PGTZ", "nonsense")
        .env("LC_ALL", "xx_YY.nonsense");
    let server = Server::spawn(&mut command);
    assert!(server.banner().contains(&data), "{}", server.banner());
    let _ = server.open("me", 1000).await;
    server.stop();
}

#[test]
fn more_connections_than_it_takes_are_refused() {
    let folder = Folder::new();
    let data = folder.at("data");
    let arguments = ["migrate", "--data-dir", &data, "--database-connections"];
    let error = complaint(tenure(arguments).arg("91"), 1);
    assert!(error.contains("takes up to 90"), "{error}");
    assert!(!Path::new(&data).exists());

    let migrated = run(tenure(arguments).arg("90"));
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    assert!(migrated.stdout.starts_with("applied V1"), "{migrated:?}");
    folder.until_unused();
}

#[tokio::test]
async fn an_ordinary_user_runs_it_too() {
    if !is_root() {
        // Then every other test is of this.
        return;
    }
    let folder = Folder::new();
    // Where that user can reach them.
    let copy = folder.at("tenure");
    fs::copy(program(), &copy).unwrap();
    let data = folder.at("data");
    fs::create_dir(&data).unwrap();
    chown(&data, Some(NOBODY), Some(NOBODY)).unwrap();
    let as_nobody = || {
        let mut command = Command::new(&copy);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data-dir", &data])
            .env_clear()
            .stdin(Stdio::null())
            .current_dir("/")
            .uid(NOBODY)
            .gid(NOBODY);
        command
    };
    let server = Server::spawn(&mut as_nobody());
    let session = server.open("me", 60_000).await;
    let _ = server.lock("k", &session).await;
    let close = server.request("DELETE", &format!("/v1/sessions/{session}"));
    assert_eq!(answer(close).await.0, 204);
    server.stop();

    // A folder that root's server has used is not for others.
    chown(&data, Some(0), Some(0)).unwrap();
    let error = complaint(&mut as_nobody(), 1);
    assert!(error.contains("Permission denied"), "{error}");
}
