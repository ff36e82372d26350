//! The server, on a database that is there.

use std::fs;
use std::io::PipeWriter;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::SECRET;
use crate::http::auth::status;
use crate::support::database::TestDatabase;
use crate::support::host::LONG;
use crate::support::program::{Folder, Server, answer, complaint, tenure, until};
use crate::support::server::tell;

/// Runs the three lines of the banner as if they were pasted into a shell; with what they
/// print. Where there is no curl, its part is played here.
pub(super) async fn paste(server: &Server) -> String {
    let banner = server.banner();
    let lines = banner.split_once("Try it:\n").expect(&banner).1;
    assert_eq!(lines.trim().lines().count(), 3, "{banner}");
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if has_curl {
        let pasted = Command::new("sh").arg("-c").arg(lines).output().unwrap();
        assert!(pasted.status.success(), "{pasted:?}");
        return String::from_utf8(pasted.stdout).unwrap();
    }
    tell("there is no curl here: the banner's requests are made without it");
    let mut printed = String::new();
    let mut session = String::new();
    for line in lines.trim().lines() {
        let line = line.replace("$SESSION", &session);
        let start = line.find("http://").unwrap();
        let url = line[start..].split(['\'', '"']).next().unwrap();
        let path = url.strip_prefix(&server.url).unwrap();
        let mut request = server.request("POST", path);
        if let Some((_, body)) = line.split_once("-d ") {
            let body = body.split('|').next().unwrap().trim().replace("\\\"", "\"");
            let body: Value = serde_json::from_str(&body[1..body.len() - 1]).unwrap();
            request = request.json(&body);
        }
        if let Some((_, file)) = line.split_once("$(cat '") {
            let token = fs::read_to_string(file.split_once('\'').unwrap().0).unwrap();
            request = request.bearer_auth(token.trim());
        }
        let (_, body) = answer(request).await;
        if session.is_empty() {
            session = body["sessionId"].as_str().unwrap().to_owned();
            printed.push_str(&format!("{session}\n"));
        } else {
            printed.push_str(&body.to_string());
        }
    }
    printed
}

/// What the three lines have to print.
#[track_caller]
pub(super) fn assert_pasted(printed: &str) {
    let (session, answers) = printed.split_once('\n').unwrap();
    assert_eq!(session.len(), 36, "{printed}");
    let answers: Vec<Value> = serde_json::Deserializer::from_str(answers)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{error}: {printed}"));
    let [grant, beat] = &answers[..] else {
        panic!("{printed}");
    };
    assert_eq!(grant["key"], "demo", "{printed}");
    assert_eq!(grant["sessionId"], session, "{printed}");
    assert_eq!(beat["sessionId"], session, "{printed}");
    assert_eq!(beat["heldLockCount"], 1, "{printed}");
}

#[tokio::test]
async fn two_servers_on_one_database_share_their_sessions() {
    let database = TestDatabase::create_empty().await;
    let one = Server::start(&["--database-url", &database.url()]);
    let other = Server::start(&["--database-url", &database.url()]);
    let session = one.open("me", 60_000).await;
    let token = one.lock("k", &session).await;

    let beat = format!("/v1/sessions/{session}/heartbeat?count=true");
    let (status, beat) = other.post(&beat, json!({})).await;
    assert_eq!((status, &beat["heldLockCount"]), (200, &json!(1)), "{beat}");
    let close = other.request("DELETE", &format!("/v1/sessions/{session}"));
    assert_eq!(answer(close).await.0, 204);

    let (status, lock) = one.get("/v1/locks/k").await;
    assert_eq!((status, &lock["held"]), (200, &json!(false)), "{lock}");
    let session = other.open("you", 60_000).await;
    assert!(other.lock("k", &session).await > token);
    one.stop();
    other.stop();
}

#[tokio::test]
async fn events_are_logged_as_json_with_their_fields() {
    let database = TestDatabase::create_empty().await;
    let server = Server::start(&[
        "--database-url",
        &database.url(),
        "--lock-reaper-interval",
        "50ms",
    ]);
    let session = server.open("me", 60_000).await;
    let token = server.lock("k", &session).await;
    server.logged(
        "session_opened",
        &json!({ "session": session, "owner": "me", "ttl_ms": 60_000 }),
    );
    server.logged(
        "lock_granted",
        &json!({ "session": session, "owner": "me", "key": "k", "token": token }),
    );

    let release = server
        .request("DELETE", "/v1/locks/k")
        .header("X-Fencing-Token", token);
    assert_eq!(answer(release).await.0, 204);
    server.logged("lock_released", &json!({ "key": "k", "token": token }));

    let token = server.lock("k", &session).await;
    let revoke = json!({ "operator": "ann", "reason": "it hangs for ever" });
    let (status, revoked) = server.post("/v1/locks/k/revoke", revoke).await;
    assert_eq!(status, 200, "{revoked}");
    server.logged(
        "lock_revoked",
        &json!({ "key": "k", "owner": "me", "token": token, "operator": "ann",
                 "reason": "it hangs for ever", "revocation": revoked["revocationId"] }),
    );

    // The reaper works in a running server.
    let short = json!({ "sessionId": session, "ttlMillis": 1000 });
    let (status, grant) = server.post("/v1/locks/lapses/acquire", short).await;
    assert_eq!(status, 200, "{grant}");
    server.logged(
        "lease_expired",
        &json!({ "key": "lapses", "owner": "me", "token": grant["fencingToken"] }),
    );
    let dies = server.open("dies", 1000).await;
    let _ = server.lock("goes", &dies).await;
    server.logged(
        "session_expired",
        &json!({ "session": dies, "owner": "dies", "locks": 1 }),
    );
    assert_eq!((database.sessions().await, database.locks().await), (1, 0));

    let _ = server.lock("k", &session).await;
    let close = server.request("DELETE", &format!("/v1/sessions/{session}"));
    assert_eq!(answer(close).await.0, 204);
    server.logged("session_closed", &json!({ "session": session, "locks": 1 }));

    for line in server.log() {
        for field in ["timestamp", "level", "message", "target"] {
            assert!(line[field].is_string(), "{line}");
        }
    }
    server.stop();
}

#[tokio::test]
async fn what_others_can_reach_needs_a_token_or_a_word() {
    let database = TestDatabase::create_empty().await;
    let url = database.url();
    let folder = Folder::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let arguments = ["serve", "--database-url", &url, "--listen", address];
        let error = complaint(&mut tenure(arguments), 1);
        for word in [address, "--auth-token-file", "--insecure"] {
            assert!(error.contains(word), "{error}");
        }
    }
    let serve = ["serve", "--database-url", &url, "--listen", "0.0.0.0:0"];

    let insecure = Server::spawn(tenure(serve).arg("--insecure"));
    assert_pasted(&paste_by_loopback(insecure).await);
    database.execute("DELETE FROM lock_session").await;

    // With the newline that every editor leaves, and a quote in the file's name.
    let file = folder.write("it's a token", &format!("{SECRET}\n"));
    let server = Server::spawn(tenure(serve).args(["--auth-token-file", &file]));
    let port = server.url.rsplit_once(':').unwrap().1.to_owned();
    let loopback = format!("http://127.0.0.1:{port}");
    let printed = paste_with(&server, &loopback).await;
    assert_pasted(&printed);
    let client = reqwest::Client::new();
    for (token, expected) in [(None, 401), (Some("wrong"), 401), (Some(SECRET), 404)] {
        let mut request = client.get(format!("{loopback}/v1/nothing"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        let (status, body) = answer(request).await;
        assert_eq!(status, expected, "{token:?}: {body}");
        assert!(!body.to_string().contains(SECRET), "{body}");
    }
    assert!(!server.banner().contains(SECRET), "{}", server.banner());
    server.signal(libc::SIGTERM);
    let (status, log) = server.wait();
    assert!(status.success(), "{log}");
    assert!(!log.contains(SECRET), "{log}");
}

#[tokio::test]
async fn who_guesses_at_the_token_harms_nobody_who_has_shown_it() {
    let database = TestDatabase::create_empty().await;
    let folder = Folder::new();
    let file = folder.write("token", SECRET);
    let server = Server::start(&[
        "--database-url",
        &database.url(),
        "--auth-token-file",
        &file,
    ]);
    let address = server.url.strip_prefix("http://").unwrap();
    let mut works = TcpStream::connect(address).await.unwrap();
    assert_eq!(status(&mut works, SECRET).await, 200);
    let mut guesses = TcpStream::connect(address).await.unwrap();
    let mut wrong = 0;
    while status(&mut guesses, "a-guess-of-the-tests").await == 401 {
        wrong += 1;
        assert!(wrong < 1000, "it listens to all of them");
    }
    assert!(wrong >= 10, "{wrong}");
    assert_eq!(status(&mut works, SECRET).await, 200);
    server.logged("token_rejected", &json!({ "address": "127.0.0.1" }));
    server.stop();
}

async fn paste_by_loopback(server: Server) -> String {
    let port = server.url.rsplit_once(':').unwrap().1.to_owned();
    let printed = paste_with(&server, &format!("http://127.0.0.1:{port}")).await;
    server.stop();
    printed
}

/// For a server that listens on every address: its lines name this one.
async fn paste_with(server: &Server, reached: &str) -> String {
    let banner = server.banner();
    assert_eq!(
        banner.matches(&format!("{reached}/v1/")).count(),
        3,
        "{banner}"
    );
    paste(server).await
}

#[test]
fn a_file_without_a_good_token_is_refused_and_not_repeated() {
    let folder = Folder::new();
    let short = &SECRET[..15];
    for (name, text) in [
        ("empty", ""),
        ("blank", " \n"),
        ("short", short),
        ("two", &format!("{SECRET}\n{SECRET}\n")),
        ("spaced", &format!("{SECRET} {SECRET}")),
        ("umlaut", &format!("{SECRET}\u{e4}")),
    ] {
        let file = folder.write(name, text);
        let error = complaint(&mut tenure(["serve", "--auth-token-file", &file]), 1);
        assert!(error.contains(&file) && error.contains("16"), "{error}");
        assert!(!error.contains(short), "{error}");
    }
    fs::write(folder.at("bytes"), [0xff; 32]).unwrap();
    for name in ["missing", "bytes", ""] {
        let file = folder.at(name);
        let error = complaint(&mut tenure(["serve", "--auth-token-file", &file]), 1);
        assert!(
            error.contains("cannot read") && error.contains(&file),
            "{error}"
        );
    }
}

#[tokio::test]
async fn it_listens_on_ipv6_and_its_lines_can_be_pasted() {
    if let Err(error) = TcpListener::bind("[::1]:0") {
        tell(&format!(
            "no test of IPv6, which this machine has not: {error}"
        ));
        return;
    }
    let database = TestDatabase::create_empty().await;
    let url = database.url();
    let serve = ["serve", "--database-url", &url, "--listen", "[::1]:0"];
    let server = Server::spawn(&mut tenure(serve));
    assert!(server.url.starts_with("http://[::1]:"), "{}", server.url);
    assert_pasted(&paste(&server).await);
    server.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_lets_what_is_in_flight_finish() {
    let database = TestDatabase::create().await;
    database
        .execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM pg_sleep(2); RETURN NEW; END $$;
             CREATE TRIGGER dawdle BEFORE INSERT ON lock_session
                 FOR EACH ROW WHEN (NEW.owner_id = 'slow') EXECUTE FUNCTION dawdle()",
        )
        .await;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let server = Server::start(&["--database-url", &database.url()]);
        let session = server.open("me", 60_000).await;
        let key = format!("k{signal}");
        let _ = server.lock(&key, &session).await;
        let other = server.open("you", 60_000).await;
        // One that waits for a lock, and one in the middle of its statement.
        let waits = server
            .request("POST", &format!("/v1/locks/{key}/acquire"))
            .json(&json!({ "sessionId": other, "waitMillis": 30_000 }));
        let waits = tokio::spawn(answer(waits));
        let slow = server
            .request("POST", "/v1/sessions")
            .json(&json!({ "ownerId": "slow", "ttlMillis": 60_000 }));
        let slow = tokio::spawn(answer(slow));
        database
            .until(
                2,
                "SELECT least(1, count(*) FILTER (WHERE query LIKE '%AS holder_live%'))
                      + least(1, count(*) FILTER (WHERE wait_event = 'PgSleep'))
                   FROM pg_stat_activity
                  WHERE datname = current_database() AND pid <> pg_backend_pid()",
            )
            .await;

        server.signal(signal);
        // Twice is no reason to be less orderly.
        server.signal(signal);

        let (status, held) = waits.await.unwrap();
        assert_eq!((status, &held["code"]), (409, &json!("LOCK_CONTENDED")));
        let (status, opened) = slow.await.unwrap();
        assert_eq!(status, 201, "{opened}");
        let (status, log) = server.wait();
        assert!(status.success(), "{status}: {log}");
    }
}

fn pipe_without_reader() -> PipeWriter {
    std::io::pipe().unwrap().1
}

#[tokio::test]
async fn it_serves_whether_or_not_anybody_reads_what_it_prints() {
    let database = TestDatabase::create().await;
    let folder = Folder::new();
    let url = database.url();
    for (nobody_reads, name) in ["read-stderr", "read-stdout"].iter().enumerate() {
        let file = fs::File::create(folder.at(name)).unwrap();
        let mut command = tenure(["serve", "--listen", "127.0.0.1:0", "--database-url", &url]);
        let streams: [Stdio; 2] = match nobody_reads {
            0 => [pipe_without_reader().into(), file.into()],
            _ => [file.into(), pipe_without_reader().into()],
        };
        let [stdout, stderr] = streams;
        let mut child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        drop(command);
        let address = until("the address", || {
            assert_eq!(child.try_wait().unwrap(), None, "it ended");
            let printed = fs::read_to_string(folder.at(name)).unwrap();
            let (_, address) = printed
                .split_once("\"serving\",\"address\":\"")
                .or(printed.split_once("http://"))?;
            let (address, _) = address.split_once(['"', '\n'])?;
            Some(address.to_owned())
        });
        // Each logs a line.
        let client = reqwest::Client::new();
        for _ in 0..3 {
            let request = client
                .post(format!("http://{address}/v1/sessions"))
                .json(&json!({ "ownerId": "me" }));
            assert_eq!(answer(request).await.0, 201);
        }
        // SAFETY: no memory is involved, and the child has not been waited for.
        let sent = unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGTERM) };
        assert_eq!(sent, 0);
        let status = until("its end", || child.try_wait().unwrap());
        assert!(status.success(), "{status}");
    }
}

/// A server that is to begin with these limits of file handles, the soft one and the hard one.
fn with_handles(database: &TestDatabase, soft: u64, hard: u64) -> Command {
    let mut command = tenure(["serve", "--listen", "127.0.0.1:0"]);
    command.args(["--database-url", &database.url()]);
    // SAFETY: the call between fork and exec is one that may be made there.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit {
                rlim_cur: soft,
                rlim_max: hard,
            };
            match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command
}

/// So many connections that ask for nothing.
async fn idle(server: &Server, connections: usize) -> Vec<TcpStream> {
    let address = server.url.strip_prefix("http://").unwrap();
    let mut idle = Vec::new();
    for _ in 0..connections {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    idle
}

#[tokio::test]
async fn thousands_of_idle_connections_harm_nobody() {
    const IDLE: usize = 2000;
    // They take as many handles here, besides those of the tests beside this one.
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both look at no other memory than the limit.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(10_000);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    let database = TestDatabase::create_empty().await;
    let server = Server::spawn(&mut with_handles(&database, 256, limit.rlim_max));
    server.logged("file_handles_raised", &json!({ "from": 256 }));

    let others = idle(&server, IDLE).await;

    let session = server.open("me", 60_000).await;
    server.lock("k", &session).await;
    drop(others);
    server.stop();
}

#[tokio::test]
async fn with_few_file_handles_there_are_few_connections_and_the_database_has_its_own() {
    let database = TestDatabase::create_empty().await;
    let server = Server::spawn(&mut with_handles(&database, 200, 200));
    let text = "connections_limited: further ones wait; raise the hard limit of file handles \
                (ulimit -Hn)";
    let logged = server.logged(text, &json!({ "handles": 200 }));
    let connections = usize::try_from(logged["connections"].as_u64().unwrap()).unwrap();

    // All but one, on which statements run, and that needs connections to the database.
    let mut others = idle(&server, connections - 1).await;
    let opened = timeout(LONG, server.open("me", 60_000)).await;
    let session = opened.expect("there is a connection, before the others are given up");
    let beats = (0..20).map(|_| {
        let beat = format!("/v1/sessions/{session}/heartbeat?count=true");
        let server = &server;
        async move { server.post(&beat, json!({})).await }
    });
    // More than there may be wait, until the others end.
    others.extend(idle(&server, connections).await);
    let beats = futures_util::future::join_all(beats);
    let (beats, ()) = tokio::join!(beats, async { drop(others) });
    for (status, beat) in beats {
        assert_eq!(status, 200, "{beat}");
    }
    server.stop();
}

#[tokio::test]
async fn too_few_file_handles_are_refused_with_their_number() {
    let database = TestDatabase::create_empty().await;
    let error = complaint(&mut with_handles(&database, 90, 90), 1);
    assert!(error.contains("90 file handles are too few"), "{error}");
}
