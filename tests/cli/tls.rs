//! TLS: from the files to what clients see.

use std::fs;
use std::net::SocketAddr;

use serde_json::json;

use super::SECRET;
use super::serve::{assert_pasted, paste};
use crate::support::database::TestDatabase;
use crate::support::program::{Folder, Server, complaint, tenure};
use crate::support::tls::{self, Authority, Issued};

const NAME: &str = "tenure.test";

/// The arguments that name a certificate and its key, which are written to files.
fn files(folder: &Folder, issued: &Issued) -> [String; 4] {
    let certificate = folder.write("cert.pem", &issued.certificate);
    let key = folder.write("key.pem", &issued.key);
    ["--tls-cert".into(), certificate, "--tls-key".into(), key]
}

#[tokio::test]
async fn it_speaks_tls_and_takes_another_certificate_on_sighup() {
    let database = TestDatabase::create_empty().await;
    let folder = Folder::new();
    let [old, new] = ["old", "new"].map(Authority::new);
    let arguments = files(&folder, &old.issue(&[NAME]));
    let url = database.url();
    let serve = ["serve", "--listen", "127.0.0.1:0", "--database-url", &url];
    let server = Server::spawn(tenure(serve).args(&arguments));
    let address: SocketAddr = server
        .url
        .strip_prefix("https://")
        .unwrap()
        .parse()
        .unwrap();
    let health = async |authority: &Authority| {
        let mut connection = tls::connect(address, NAME, authority.client()).await?;
        let answer = tls::get(&mut connection, "/health/ready").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        Ok::<_, std::io::Error>(())
    };
    health(&old).await.unwrap();

    // Nothing that cannot be used takes the place of what can.
    let issued = new.issue(&[NAME]);
    for (file, text, why) in [
        (
            "key",
            issued.key.as_str(),
            "it is not the key of the certificate",
        ),
        (
            "cert",
            "",
            "there is no certificate in it; it has to be in PEM",
        ),
    ] {
        let path = folder.write(&format!("{file}.pem"), text);
        server.signal(libc::SIGHUP);
        let error = format!("tls.{file} = {path:?} (from --tls-{file}): {why}");
        let fields = json!({ "level": "ERROR", "error": error });
        server.logged("certificate_rejected", &fields);
        health(&old).await.unwrap();
    }
    folder.write("cert.pem", &issued.certificate);
    server.signal(libc::SIGHUP);
    server.logged("certificate_replaced", &json!({}));
    health(&old).await.unwrap_err();
    health(&new).await.unwrap();
    server.stop();
}

/// Whether the certificate has a name, or only an address.
#[tokio::test]
async fn its_lines_can_be_pasted() {
    let database = TestDatabase::create_empty().await;
    let folder = Folder::new();
    let token = folder.write("token", SECRET);
    let url = database.url();
    for names in [[NAME, "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]] {
        let authority = Authority::new("one");
        let arguments = files(&folder, &authority.issue(&names));
        let serve = ["serve", "--listen", "0.0.0.0:0", "--database-url", &url];
        let server = Server::spawn(
            tenure(serve)
                .args(["--auth-token-file", &token])
                .args(&arguments),
        );
        let banner = server.banner();
        assert!(
            banner.contains("listening on  https://0.0.0.0:"),
            "{banner}"
        );
        assert!(!banner.contains("http:"), "{banner}");
        assert_pasted(&paste(&server).await);
        database.execute("DELETE FROM lock_session").await;
        server.stop();
    }
}

#[test]
fn a_certificate_that_cannot_be_used_is_refused_at_the_start() {
    let folder = Folder::new();
    let authority = Authority::new("one");
    let arguments = files(&folder, &authority.issue(&[NAME]));
    let [_, certificate, _, key] = &arguments;
    let missing = folder.at("missing.pem");
    let empty = folder.write("empty.pem", "");
    let other = folder.write("other.pem", &authority.issue(&[NAME]).key);
    for (certificate, key, blamed, why) in [
        (
            Some(certificate),
            None,
            "tls.cert",
            "needs its key, in tls.key",
        ),
        (
            None,
            Some(key),
            "tls.key",
            "needs its certificate, in tls.cert",
        ),
        (Some(&missing), Some(key), "tls.cert", "cannot read"),
        (Some(certificate), Some(&missing), "tls.key", "cannot read"),
        (Some(&empty), Some(key), "tls.cert", "no certificate in it"),
        (
            Some(certificate),
            Some(&empty),
            "tls.key",
            "no private key in it",
        ),
        (
            Some(certificate),
            Some(&other),
            "tls.key",
            "not the key of the certificate",
        ),
    ] {
        let mut command = tenure(["serve", "--listen", "127.0.0.1:0"]);
        for (flag, file) in [("--tls-cert", certificate), ("--tls-key", key)] {
            command.args(file.iter().flat_map(|file| [flag, file]));
        }
        let error = complaint(&mut command, 1);
        assert!(error.contains(blamed) && error.contains(why), "{error}");
        let secret = fs::read_to_string(folder.at("key.pem")).unwrap();
        assert!(!error.contains(secret.lines().nth(1).unwrap()), "{error}");
    }

    // It does not stand for a token.
    let serve = ["serve", "--listen", "0.0.0.0:0"];
    let error = complaint(tenure(serve).args(&arguments), 1);
    assert!(error.contains("--auth-token-file"), "{error}");
}
