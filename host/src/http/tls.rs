//! TLS for the clients' listener: its certificate, and the stream of a connection.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::{FallibleAccept, TlsStream};

/// What is spoken inside of TLS, the most wanted first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The certificate that a [`Listener`](super::Listener) shows. Cloning it shares it: what
/// replaces one replaces all.
#[derive(Clone)]
pub struct Tls {
    shown: Arc<ArcSwap<Shown>>,
}

struct Shown {
    config: Arc<ServerConfig>,
    leaf: CertificateDer<'static>,
}

/// Why a certificate and a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate, or one of its chain, cannot be read.
    #[error("{0}")]
    Certificate(String),
    /// The key cannot be read.
    #[error("{0}")]
    Key(String),
    /// Each of them is good, but not for the other.
    #[error("it is not the key of the certificate")]
    Mismatch,
}

impl Tls {
    /// A certificate, followed by those between it and its authority, and its private key
    /// (PKCS#8, PKCS#1 or SEC1), both in PEM.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let shown = Shown::from_pem(certificates, key)?;
        Ok(Self {
            shown: Arc::new(ArcSwap::from_pointee(shown)),
        })
    }

    /// Shows another certificate from now on. Connections that there are stay as they are.
    /// After an error the one before is shown still.
    pub fn replace(&self, certificates: &[u8], key: &[u8]) -> Result<(), TlsError> {
        self.shown
            .store(Arc::new(Shown::from_pem(certificates, key)?));
        Ok(())
    }

    /// The first name that the certificate is for, if it is for any but addresses and
    /// patterns.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let shown = self.shown.load();
        let leaf = webpki::EndEntityCert::try_from(&shown.leaf).ok()?;
        leaf.valid_dns_names()
            .find(|name| !name.contains('*'))
            .map(str::to_owned)
    }

    fn acceptor(&self) -> TlsAcceptor {
        self.shown.load().config.clone().into()
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Shown {
    fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<_, _>>()
            .map_err(|error| TlsError::Certificate(format!("it is no PEM: {error}")))?;
        let Some(leaf) = chain.first().cloned() else {
            let what = "there is no certificate in it; it has to be in PEM";
            return Err(TlsError::Certificate(what.to_owned()));
        };
        // What is wrong with a key is not quoted.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            let what = "there is no private key in it; it has to be in PEM, and not encrypted";
            TlsError::Key(what.to_owned())
        })?;
        let mut config = ServerConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("the provider has what the versions need")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => TlsError::Mismatch,
                rustls::Error::InvalidCertificate(why) => {
                    TlsError::Certificate(format!("its certificate is invalid: {why}"))
                }
                other => TlsError::Key(format!("its key is of no use: {other}")),
            })?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(Self {
            config: Arc::new(config),
            leaf,
        })
    }
}

/// A connection's socket, with TLS on it or without.
pub(super) enum Stream {
    Plain(TcpStream),
    /// The client has yet to agree on TLS.
    Greeting(Box<FallibleAccept<TcpStream>>),
    Encrypted(Box<TlsStream<TcpStream>>),
    /// The client did not agree on TLS.
    Failed,
}

impl Stream {
    pub(super) fn new(socket: TcpStream, tls: Option<&Tls>) -> Self {
        match tls {
            None => Self::Plain(socket),
            Some(tls) => Self::Greeting(Box::new(tls.acceptor().accept(socket).into_fallible())),
        }
    }

    /// Goes on with agreeing on TLS, as part of the connection's own task, so that nobody
    /// else waits for it. Ready once that is done: with whether it was done only now.
    pub(super) fn poll_greeting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Self::Greeting(greeting) = self else {
            return Poll::Ready(Ok(false));
        };
        match ready!(Pin::new(greeting).poll(context)) {
            Ok(stream) => {
                *self = Self::Encrypted(Box::new(stream));
                Poll::Ready(Ok(true))
            }
            Err((error, _)) => {
                *self = Self::Failed;
                tracing::debug!(%error, "a client did not agree on TLS");
                Poll::Ready(Err(error))
            }
        }
    }

    /// Where there is something to read from and to write to.
    fn open(&mut self) -> io::Result<Pin<&mut dyn Duplex>> {
        match self {
            Self::Plain(socket) => Ok(Pin::new(socket)),
            Self::Encrypted(stream) => Ok(Pin::new(&mut **stream)),
            Self::Greeting(_) | Self::Failed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Duplex for T {}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.open()?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.open()?.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.open()?.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.open()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.open() {
            Ok(stream) => stream.poll_shutdown(context),
            // Nothing was said that would have to reach anybody.
            Err(_) => Poll::Ready(Ok(())),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain(_) => "Plain",
            Self::Greeting(_) => "Greeting",
            Self::Encrypted(_) => "Encrypted",
            Self::Failed => "Failed",
        })
    }
}
