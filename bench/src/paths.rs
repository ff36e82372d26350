//! The ways to a heartbeat: through the policy, under the same rules called natively, and
//! over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::http::{App, Listener, router};
use tenure::postgres::Statements;
use tenure::{LockStore, PinnedStatements, SessionRegistry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::load::Client;
use crate::stage::Stage;

/// Longer than any run.
pub const TTL: Duration = Duration::from_secs(3600);

fn any(sessions: &[Uuid]) -> Uuid {
    sessions[fastrand::usize(..sessions.len())]
}

/// Through the policy: a fresh instance for each heartbeat.
pub struct Component {
    pub registry: SessionRegistry,
    pub sessions: Arc<[Uuid]>,
}

impl Client for Component {
    async fn beat(&mut self) -> Result<()> {
        let session = any(&self.sessions).to_string();
        let alive = self.registry.heartbeat(&session, TTL).await?.is_alive();
        ensure!(alive, "{session} is dead");
        Ok(())
    }
}

/// The same rules as plain Rust. Only to be measured: nothing keeps these rules apart from
/// the host.
pub struct Native {
    pub statements: Arc<PinnedStatements>,
    pub sessions: Arc<[Uuid]>,
    pub deadline: Duration,
}

impl Native {
    async fn heartbeat(&self, session: &str, ttl: Duration) -> Result<bool> {
        let ttl_ms = ttl.as_millis() as u64;
        rules::check_session_id(session)
            .and_then(|()| rules::check_ttl(ttl_ms))
            .map_err(anyhow::Error::msg)?;
        let id = Uuid::try_parse(session)?;
        let beat = self.statements.heartbeat(id, i64::try_from(ttl_ms)?);
        let lease = timeout(self.deadline, beat).await??;
        rules::is_alive(lease.iter().count() as u32).map_err(anyhow::Error::msg)
    }
}

impl Client for Native {
    async fn beat(&mut self) -> Result<()> {
        let session = any(&self.sessions).to_string();
        ensure!(self.heartbeat(&session, TTL).await?, "{session} is dead");
        Ok(())
    }
}

/// Tenure's routes, served in this process.
pub struct Server {
    pub address: SocketAddr,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub async fn start(stage: &Stage, registry: SessionRegistry) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (_, stopping) = watch::channel(false);
        let app = App {
            registry,
            locks: LockStore::new(stage.database.clone()),
            database: stage.database.clone(),
            session_ttl: Duration::from_secs(60),
            lock_ttl: Duration::from_secs(30),
            token: None,
            stopping,
        };
        let serving =
            tokio::spawn(async move { axum::serve(Listener::new(listener), router(app)).await });
        Ok(Self { address, serving })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// One connection, kept alive, with as little of a client on it as there can be.
pub struct Http {
    stream: TcpStream,
    answer: Vec<u8>,
    sessions: Arc<[Uuid]>,
}

impl Http {
    pub async fn connect(address: SocketAddr, sessions: Arc<[Uuid]>) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            answer: Vec::with_capacity(1024),
            sessions,
        })
    }

    /// Reads one answer, whose body has a length.
    async fn answer(&mut self) -> Result<&str> {
        self.answer.clear();
        loop {
            ensure!(
                self.stream.read_buf(&mut self.answer).await? > 0,
                "the server hung up"
            );
            let text = std::str::from_utf8(&self.answer)?;
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))
                .context("an answer without a length")?
                .parse()?;
            if body.len() == length {
                break;
            }
        }
        Ok(std::str::from_utf8(&self.answer)?)
    }
}

impl Client for Http {
    async fn beat(&mut self) -> Result<()> {
        let session = any(&self.sessions);
        let request = format!(
            "POST /v1/sessions/{session}/heartbeat HTTP/1.1\r\nhost: bench\r\ncontent-length: 0\r\n\r\n"
        );
        self.stream.write_all(request.as_bytes()).await?;
        let answer = self.answer().await?;
        if !answer.starts_with("HTTP/1.1 200 ") {
            bail!("{session}: {answer}");
        }
        Ok(())
    }
}
