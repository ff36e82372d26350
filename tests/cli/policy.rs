//! The server's policy: from a file, swapped by replacing it, by SIGHUP and by an operator,
//! signed and pinned; and the operators' listener.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};
use tenure::policy::LIFECYCLE;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::database::TestDatabase;
use crate::support::policies;
use crate::support::program::{Folder, Server, answer, complaint, run, tenure, until};

/// Replaces a file as an editor or a deployment does: whole, by a rename.
fn replace(path: &str, bytes: &[u8]) {
    let aside = format!("{path}.new");
    fs::write(&aside, bytes).unwrap();
    fs::rename(aside, path).unwrap();
}

/// Asks the operators' socket, with curl's own words.
async fn operate(socket: &str, request: &str, body: &[u8]) -> (u16, Value) {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let head = format!(
        "{request} HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    (status, serde_json::from_str(body).unwrap())
}

/// Whether the server's policy lets anybody in, as the default one does.
async fn lets_in(server: &Server, owner: &str) -> bool {
    let body = json!({ "ownerId": owner });
    let (status, body) = answer(server.request("POST", "/v1/sessions").json(&body)).await;
    assert!([201, 403].contains(&status), "{body}");
    status == 201
}

async fn until_it_lets_in(server: &Server, owner: &str, expected: bool) {
    // Long enough for a machine that has much else to do.
    for _ in 0..6000 {
        if lets_in(server, owner).await == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }
    panic!("{owner}: still not {expected}: {}", server.stderr());
}

#[tokio::test]
async fn replacing_the_file_swaps_the_policy_and_what_does_not_pass_changes_nothing() {
    let (database, folder) = (TestDatabase::create_empty().await, Folder::new());
    let policy = folder.at("policy.wasm");
    fs::write(&policy, LIFECYCLE).unwrap();
    let server = Server::start(&["--database-url", &database.url(), "--policy", &policy]);
    assert!(server.banner().contains("lifecycle 0.1.0"));
    assert!(lets_in(&server, "anybody").await);

    replace(&policy, policies::STRICTER);
    until_it_lets_in(&server, "anybody", false).await;
    assert!(lets_in(&server, "worker-1").await);

    replace(&policy, policies::TRAPS);
    let rejected = until("the rejection", || {
        server
            .log()
            .into_iter()
            .find(|line| line["message"] == "policy_rejected")
    });
    assert!(
        rejected["error"].as_str().unwrap().contains("conform"),
        "{rejected}"
    );
    assert!(!lets_in(&server, "anybody").await);

    // In place, in two pieces: the first alone is no component.
    fs::write(&policy, &LIFECYCLE[..1000]).unwrap();
    fs::write(&policy, LIFECYCLE).unwrap();
    until_it_lets_in(&server, "anybody", true).await;
    server.stop();
}

#[tokio::test]
async fn settings_in_the_file_swap_the_policy_too_at_once_or_by_sighup() {
    let (database, folder) = (TestDatabase::create_empty().await, Folder::new());
    let (policy, config) = (folder.at("policy.wasm"), folder.at("tenure.toml"));
    fs::write(&policy, policies::CLAMP).unwrap();
    fs::write(&config, "[policy.setting]\nmax-ttl-ms = 2000\n").unwrap();
    let url = database.url();
    let arguments = [
        "--database-url",
        &url,
        "--policy",
        &policy,
        "--config",
        &config,
    ];
    let server = Server::start(&arguments);
    let granted = async || {
        let body = json!({ "ownerId": "worker-1", "ttlMillis": 60_000 });
        let (_, body) = answer(server.request("POST", "/v1/sessions").json(&body)).await;
        body["ttlMillis"].as_u64().unwrap()
    };
    assert_eq!(granted().await, 2000);

    replace(&config, b"[policy.setting]\nmax-ttl-ms = 3000\n");
    while granted().await != 3000 {
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
    }

    // What cannot be read changes nothing.
    replace(&config, b"[policy.setting\n");
    server.signal(libc::SIGHUP);
    until("the complaint", || {
        let log = server.log();
        log.iter()
            .any(|line| line["message"] == "policy_rejected")
            .then_some(())
    });
    assert_eq!(granted().await, 3000);
    server.stop();
}

#[tokio::test]
async fn operators_look_swap_and_go_back_through_a_socket_of_their_own() {
    let (database, folder) = (TestDatabase::create_empty().await, Folder::new());
    let socket = folder.at("admin.sock");
    let listen = format!("unix:{socket}");
    let url = database.url();
    let server = Server::start(&["--database-url", &url, "--admin-listen", &listen]);
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );

    let (status, first) = operate(&socket, "GET /v1/policy", b"").await;
    assert_eq!((status, &first["name"]), (200, &json!("lifecycle")));
    let (status, _) = operate(&socket, "PUT /v1/policy", policies::STRICTER).await;
    assert_eq!(status, 200);
    assert!(!lets_in(&server, "anybody").await);
    let (status, error) = operate(&socket, "PUT /v1/policy", b"rubbish").await;
    assert_eq!((status, &error["code"]), (422, &json!("POLICY_REJECTED")));
    let (status, _) = operate(&socket, "POST /v1/policy/rollback", b"").await;
    assert_eq!(status, 200);
    assert!(lets_in(&server, "anybody").await);
    // Not on the clients' listener.
    let (status, _) = answer(server.request("GET", "/v1/policy")).await;
    assert_eq!(status, 404);

    let second = ["serve", "--database-url", &url, "--listen", "127.0.0.1:0"];
    let complaint = complaint(tenure(second).args(["--admin-listen", &listen]), 1);
    assert!(
        complaint.contains("another program listens there"),
        "{complaint}"
    );
    server.stop();
    assert!(!Path::new(&socket).exists());
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_taken_over() {
    let (database, folder) = (TestDatabase::create_empty().await, Folder::new());
    let socket = folder.at("admin.sock");
    let listen = format!("unix:{socket}");
    let url = database.url();
    let arguments = ["--database-url", &url, "--admin-listen", &listen];
    Server::start(&arguments).kill();
    assert!(Path::new(&socket).exists());

    let server = Server::start(&arguments);
    let (status, _) = operate(&socket, "GET /v1/policy", b"").await;
    assert_eq!(status, 200);
    server.stop();
}

#[test]
fn an_operators_listener_that_others_reach_is_refused() {
    let folder = Folder::new();
    let serve = |arguments: &[&str]| {
        let mut command = tenure(["serve", "--database-url", "host=/nowhere"]);
        complaint(command.args(arguments), 1)
    };
    for (address, why) in [
        ("0.0.0.0:0", "other machines"),
        ("[::]:0", "other machines"),
        ("127.0.0.1:0", "admin.token-file"),
        ("admin", "unix:PATH"),
    ] {
        let complaint = serve(&["--admin-listen", address]);
        assert!(complaint.contains(why), "{address}: {complaint}");
        assert!(complaint.contains("admin.listen"), "{complaint}");
    }
    let token = folder.write("token", "0123456789abcdef\n");
    let complaint = serve(&["--admin-token-file", &token]);
    assert!(complaint.contains("admin.listen"), "{complaint}");
}

#[test]
fn what_is_wrong_with_a_policy_is_said_at_the_start() {
    let folder = Folder::new();
    let policy = folder.at("policy.wasm");
    fs::write(&policy, LIFECYCLE).unwrap();
    let keys = folder.write("keys.pem", "no key");
    for (arguments, why) in [
        (
            &["--policy", "/nowhere/policy.wasm"][..],
            "/nowhere/policy.wasm",
        ),
        (
            &["--policy", &policy, "--policy-key", &keys],
            "no Ed25519 public key",
        ),
        (
            &["--policy", &policy, "--policy-key", "/nowhere"],
            "/nowhere",
        ),
        (&["--policy-sha256", "abc"], "64 hexadecimal digits"),
    ] {
        let mut command = tenure(["serve", "--database-url", "host=/nowhere"]);
        let complaint = complaint(command.args(arguments), 1);
        assert!(complaint.contains(why), "{arguments:?}: {complaint}");
    }
}

#[tokio::test]
async fn a_policy_is_signed_and_a_server_asks_for_it() {
    let (database, folder) = (TestDatabase::create_empty().await, Folder::new());
    let policy = folder.at("policy.wasm");
    fs::write(&policy, LIFECYCLE).unwrap();
    // RFC 8032, 7.1, test 1.
    let private = folder.write(
        "private.pem",
        "-----BEGIN PRIVATE KEY-----\n\
         MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n\
         -----END PRIVATE KEY-----\n",
    );
    let public = folder.write(
        "public.pem",
        "-----BEGIN PUBLIC KEY-----\n\
         MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n\
         -----END PUBLIC KEY-----\n",
    );
    let url = database.url();
    let arguments = [
        "--database-url",
        &url,
        "--policy",
        &policy,
        "--policy-key",
        &public,
    ];
    let refused = |why: &str| {
        let mut command = tenure(["serve", "--listen", "127.0.0.1:0"]);
        let complaint = complaint(command.args(arguments), 1);
        assert!(complaint.contains(why), "{complaint}");
    };
    let sign = |revision: &str| {
        let sign = [
            "policy",
            "sign",
            &policy,
            "--key",
            &private,
            "--revision",
            revision,
        ];
        assert_eq!(run(&mut tenure(sign)).code, Some(0));
    };

    refused("not signed");
    sign("2");
    Server::start(&arguments).stop();
    fs::write(&policy, policies::STRICTER).unwrap();
    refused("the signature is that of another policy");
    sign("1");
    refused("revision 1 is not the newest");
    sign("3");
    let server = Server::start(&arguments);
    assert!(!lets_in(&server, "anybody").await);
    server.stop();
}
