//! TLS to the database: verified, or not at all.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::fault::StoreError;

/// Whom to believe who the database is.
#[derive(Clone, Debug)]
pub struct TrustedAuthorities(Arc<RootCertStore>);

/// Why authorities cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAuthorities(String);

impl TrustedAuthorities {
    /// One or more certificates in PEM.
    pub fn from_pem(pem: &[u8]) -> Result<Self, InvalidAuthorities> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate
                .map_err(|error| InvalidAuthorities(format!("it is no PEM: {error}")))?;
            roots.add(certificate).map_err(|error| {
                InvalidAuthorities(format!("a certificate in it is of no use: {error}"))
            })?;
        }
        if roots.is_empty() {
            let what = "there is no certificate in it; it has to be in PEM";
            return Err(InvalidAuthorities(what.to_owned()));
        }
        Ok(Self(Arc::new(roots)))
    }

    /// Those of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`. Read once.
    fn of_the_system() -> Self {
        static ROOTS: OnceLock<TrustedAuthorities> = OnceLock::new();
        let read = || {
            let found = rustls_native_certs::load_native_certs();
            for error in found.errors {
                tracing::debug!(%error, "some of the system's authorities cannot be read");
            }
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(found.certs);
            Self(Arc::new(roots))
        };
        ROOTS.get_or_init(read).clone()
    }
}

/// Makes connections encrypted, where the configuration says so.
#[derive(Clone)]
pub(super) struct Connector(pub(super) MakeRustlsConnect);

impl Connector {
    /// Settles whether there will be TLS: whoever names authorities wants it.
    pub(super) fn settle(
        config: &mut Config,
        authorities: Option<&TrustedAuthorities>,
    ) -> Result<Self, StoreError> {
        let roots = match (authorities, config.get_ssl_mode()) {
            (Some(_), SslMode::Disable) => {
                let what = "sslmode=disable contradicts database.ca";
                return Err(StoreError::Other(what.to_owned()));
            }
            (Some(given), _) => {
                config.ssl_mode(SslMode::Require);
                given.clone()
            }
            (None, SslMode::Prefer) if is_local(config) => {
                // There is none on these, and asking takes a round trip.
                config.ssl_mode(SslMode::Disable);
                TrustedAuthorities(Arc::new(RootCertStore::empty()))
            }
            (None, _) => TrustedAuthorities::of_the_system(),
        };
        let mut tls = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("the provider has what the versions need")
            .with_root_certificates(roots.0)
            .with_no_client_auth();
        // sslnegotiation=direct asks for it.
        tls.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Self(MakeRustlsConnect::new(tls)))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector(..)")
    }
}

/// Whether there are Unix sockets only.
fn is_local(config: &Config) -> bool {
    let hosts = config.get_hosts();
    !hosts.is_empty() && hosts.iter().all(|host| matches!(host, Host::Unix(_)))
}
