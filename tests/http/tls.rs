//! TLS on the clients' listener.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tenure::http::{Listener, Tls, TlsError, WireLimits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::support::host::LONG;
use crate::support::tls::{self, Authority, Issued};

const NAME: &str = "tenure.test";

fn shown(issued: &Issued) -> Result<Tls, TlsError> {
    Tls::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes())
}

/// For up to `connections`, which have this long to agree on TLS.
async fn serve(tls: Tls, connections: usize, greeting: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut limits = WireLimits::default();
    limits.connections = connections;
    limits.greeting = greeting;
    limits.unanswered = 10 * LONG;
    let long = "x".repeat(1 << 20);
    let router = Router::new()
        .route("/", get(|| async { "here" }))
        .route("/long", get(|| async { long }));
    let listener = Listener::with_limits(listener, limits).with_tls(tls);
    tokio::spawn(axum::serve(listener, router).into_future());
    address
}

#[tokio::test]
async fn whoever_trusts_its_authority_is_answered() {
    let authority = Authority::new("one");
    let address = serve(shown(&authority.issue(&[NAME])).unwrap(), 8, LONG).await;
    for versions in [&[&rustls::version::TLS12], &[&rustls::version::TLS13]] {
        let mut config = authority.client_of(versions);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut connection = tls::connect(address, NAME, config).await.unwrap();
        let (_, session) = connection.get_ref();
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(session.protocol_version(), Some(versions[0].version));
        let answer = tls::get(&mut connection, "/").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("here"),
            "{answer}"
        );
    }

    let mut config = authority.client();
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    let connection = tls::connect(address, NAME, config).await.unwrap();
    assert_eq!(connection.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));

    // More than goes into any buffer on the way.
    let mut connection = tls::connect(address, NAME, authority.client())
        .await
        .unwrap();
    let answer = tls::get(&mut connection, "/long").await;
    assert!(answer.len() > 1 << 20);
    // What the framework answers by itself has a body here too.
    let mut connection = tls::connect(address, NAME, authority.client())
        .await
        .unwrap();
    connection.write_all(b"NONSENSE\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.contains("VALIDATION_FAILED"), "{answer}");

    for (name, config) in [
        ("another.test", authority.client()),
        (NAME, Authority::new("another").client()),
    ] {
        let error = tls::connect(address, name, config).await.unwrap_err();
        assert!(
            error.to_string().contains("invalid peer certificate"),
            "{error}"
        );
    }
}

/// Where there is no authority, clients can be given the certificate itself.
#[tokio::test]
async fn a_certificate_that_nobody_signed_is_its_own_authority() {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let issued = Issued {
        certificate: made.cert.pem(),
        key: made.signing_key.serialize_pem(),
    };
    let address = serve(shown(&issued).unwrap(), 8, LONG).await;
    let config = tls::trusting(&issued.certificate, rustls::ALL_VERSIONS);
    let mut connection = tls::connect(address, NAME, config).await.unwrap();
    let answer = tls::get(&mut connection, "/").await;
    assert!(answer.ends_with("here"), "{answer}");
}

/// Garbage, HTTP without TLS, a greeting that breaks off, and silence: each costs its own
/// connection alone, and that not for long.
#[tokio::test]
async fn clients_that_do_not_agree_harm_nobody() {
    let authority = Authority::new("one");
    let soon = Duration::from_millis(300);
    let address = serve(shown(&authority.issue(&[NAME])).unwrap(), 4, soon).await;
    for said in [
        &b"GET / HTTP/1.1\r\nHost: tenure\r\n\r\n"[..],
        &[0; 100],
        &[0xff; 100_000],
        // The head of a greeting.
        &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3],
        b"",
    ] {
        let mut clients = Vec::new();
        for _ in 0..8 {
            let mut client = TcpStream::connect(address).await.unwrap();
            // It may have hung up already.
            let _ = client.write_all(said).await;
            clients.push(client);
        }
        // Behind twice as many as there may be.
        let mut good = tls::connect(address, NAME, authority.client())
            .await
            .unwrap();
        let answer = tls::get(&mut good, "/").await;
        assert!(answer.ends_with("here"), "{answer}");
        for mut client in clients {
            let mut heard = Vec::new();
            let _ = client.read_to_end(&mut heard).await;
            assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
        }
    }
}

/// The time for agreeing on TLS ends with it.
#[tokio::test]
async fn who_has_agreed_may_take_its_time() {
    let authority = Authority::new("one");
    let soon = Duration::from_millis(300);
    let address = serve(shown(&authority.issue(&[NAME])).unwrap(), 4, soon).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let mut agreed = tls::connect(address, NAME, authority.client())
        .await
        .unwrap();
    // For as long as another, which began before, is borne with; and that once more.
    let _ = idle.read_to_end(&mut Vec::new()).await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    let _ = idle.read_to_end(&mut Vec::new()).await;
    let answer = tls::get(&mut agreed, "/").await;
    assert!(answer.ends_with("here"), "{answer}");
}

#[tokio::test]
async fn another_certificate_is_shown_to_new_clients_and_a_bad_one_to_none() {
    let [old, new] = ["old", "new"].map(Authority::new);
    let certificate = shown(&old.issue(&[NAME])).unwrap();
    let address = serve(certificate.clone(), 8, LONG).await;
    let mut before = tls::connect(address, NAME, old.client()).await.unwrap();

    let issued = new.issue(&[NAME]);
    for (certificates, key) in bad(&issued, &new.issue(&[NAME])) {
        certificate.replace(&certificates, &key).unwrap_err();
        tls::connect(address, NAME, old.client()).await.unwrap();
    }
    certificate
        .replace(issued.certificate.as_bytes(), issued.key.as_bytes())
        .unwrap();

    tls::connect(address, NAME, old.client()).await.unwrap_err();
    let mut after = tls::connect(address, NAME, new.client()).await.unwrap();
    for connection in [&mut before, &mut after] {
        let answer = tls::get(connection, "/").await;
        assert!(answer.ends_with("here"), "{answer}");
    }
}

/// Certificates and keys of which none can be shown.
fn bad(one: &Issued, other: &Issued) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = |text: &str| text.as_bytes().to_vec();
    let broken = one.certificate.replace("-----END", "-----AND");
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let unusable = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    vec![
        (Vec::new(), bytes(&one.key)),
        (bytes(&one.certificate), Vec::new()),
        (bytes(&one.key), bytes(&one.certificate)),
        (bytes(&one.certificate), bytes(&other.key)),
        (bytes(&broken), bytes(&one.key)),
        (bytes(nonsense), bytes(&one.key)),
        (bytes(&one.certificate), bytes(unusable)),
        (vec![0xff; 100], vec![0xff; 100]),
    ]
}

#[test]
fn what_is_wrong_with_a_certificate_or_a_key_is_said_of_the_right_one() {
    let authority = Authority::new("one");
    let (one, other) = (authority.issue(&[NAME]), authority.issue(&[NAME]));
    let of = |error: &TlsError| match error {
        TlsError::Certificate(_) => "certificate",
        TlsError::Key(_) => "key",
        _ => "both",
    };
    let blamed: Vec<_> = bad(&one, &other)
        .iter()
        .map(|(certificates, key)| of(&Tls::from_pem(certificates, key).unwrap_err()))
        .collect();
    assert_eq!(
        blamed,
        [
            "certificate",
            "key",
            "certificate",
            "both",
            "certificate",
            "certificate",
            "key",
            "certificate"
        ]
    );
    let names = |names: &[&str]| shown(&authority.issue(names)).unwrap().name();
    assert_eq!(names(&["127.0.0.1", "*.test", NAME]).as_deref(), Some(NAME));
    assert_eq!(names(&["127.0.0.1", "*.test"]), None);
}
