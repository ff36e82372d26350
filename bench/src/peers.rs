//! What others do on this machine: `pgbench`, etcd and Redis, each started on loopback with
//! a folder of its own and stopped afterwards.

use std::env;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::postgres::sql;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use uuid::Uuid;

use crate::load::{Client, Measured, Pace};
use crate::stage::ID;

/// Where a program is: on the `PATH`, or where Debian keeps PostgreSQL's.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let debian = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    env::split_paths(&path)
        .chain(debian)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// The same statement, one transaction each, by PostgreSQL's own load generator.
pub fn pgbench(
    program: &Path,
    url: &str,
    clients: usize,
    sessions: usize,
    pace: Pace,
    folder: &Path,
) -> Result<Measured> {
    let statement = sql::HEARTBEAT
        .replace("$1", &ID.replace("n::", ":n::"))
        .replace("$2", "3600000");
    let script = folder.join("heartbeat.sql");
    fs::write(
        &script,
        format!("\\set n random(1, {sessions})\n{statement};\n"),
    )?;
    let run = |duration: Duration, log: bool| -> Result<(f64, u64)> {
        let mut command = Command::new(program);
        command
            .current_dir(folder)
            .env("PGOPTIONS", "-c plan_cache_mode=force_generic_plan")
            .args(["-n", "-M", "prepared", "-c", &clients.to_string()])
            .args(["-j", &clients.min(2).to_string()])
            .args(["-T", &duration.as_secs().max(1).to_string()])
            .arg("-f")
            .arg(&script);
        if log {
            command.args(["-l", "--log-prefix=latency", "--sampling-rate=0.1"]);
        }
        let output = command.arg(url).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let of = |what: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(what));
            line.and_then(|line| line.split_whitespace().next())
                .with_context(|| {
                    let error = String::from_utf8_lossy(&output.stderr);
                    format!("pgbench says nothing of {what:?}: {text}{error}")
                })
        };
        let processed = of("number of transactions actually processed: ")?;
        let processed = processed.split('/').next().unwrap_or_default().parse()?;
        Ok((of("tps = ")?.parse()?, processed))
    };
    let (_, warm_up) = run(pace.warm_up, false)?;
    let (rate, counted) = run(pace.measured, true)?;

    let mut latencies: Vec<u64> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"latency"))
        {
            for line in fs::read_to_string(&path)?.lines() {
                latencies.extend(
                    line.split(' ')
                        .nth(2)
                        .and_then(|time| time.parse::<u64>().ok()),
                );
            }
            fs::remove_file(path)?;
        }
    }
    latencies.sort_unstable();
    let quantile = |share: f64| {
        let at = (latencies.len() as f64 * share) as usize;
        Duration::from_micros(latencies.get(at).copied().unwrap_or(0))
    };
    Ok(Measured {
        rate,
        p50: quantile(0.5),
        p99: quantile(0.99),
        answers: warm_up + counted,
    })
}

/// A server that is killed with this.
pub struct Running {
    child: Child,
    pub address: SocketAddr,
}

impl Running {
    async fn start(
        program: &Path,
        folder: &Path,
        address: SocketAddr,
        arguments: &[&str],
    ) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let child = Command::new(program)
            .current_dir(folder)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log"))?)
            .spawn()?;
        let mut running = Self { child, address };
        for _ in 0..200 {
            if TcpStream::connect(address).await.is_ok() {
                return Ok(running);
            }
            if let Some(status) = running.child.try_wait()? {
                let log = fs::read_to_string(folder.join("log"))?;
                anyhow::bail!("{} ended with {status}: {log}", program.display());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("{} takes no connections", program.display())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One that nobody has at the moment.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

pub async fn redis(program: &Path, folder: &Path, appendfsync: &str) -> Result<Running> {
    let address = free_address()?;
    let port = address.port().to_string();
    let arguments = ["--port", &port, "--bind", "127.0.0.1", "--save", ""];
    let appending = ["--appendonly", "yes", "--appendfsync", appendfsync];
    Running::start(
        program,
        folder,
        address,
        &[&arguments[..], &appending].concat(),
    )
    .await
}

/// A connection with `PEXPIRE`s on it.
pub struct Redis {
    stream: TcpStream,
    sessions: Arc<[Uuid]>,
}

impl Redis {
    pub async fn connect(server: &Running, sessions: Arc<[Uuid]>) -> Result<Self> {
        let stream = TcpStream::connect(server.address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, sessions })
    }

    /// Makes the keys.
    pub async fn fill(&mut self) -> Result<()> {
        const OK: &[u8] = b"+OK\r\n";
        for some in self.sessions.chunks(1000) {
            let mut commands = String::new();
            for session in some {
                commands += &format!("*3\r\n$3\r\nSET\r\n$36\r\n{session}\r\n$1\r\n1\r\n");
            }
            self.stream.write_all(commands.as_bytes()).await?;
            let mut answers = vec![0; some.len() * OK.len()];
            self.stream.read_exact(&mut answers).await?;
            ensure!(answers.chunks(OK.len()).all(|answer| answer == OK));
        }
        Ok(())
    }
}

impl Client for Redis {
    async fn beat(&mut self) -> Result<()> {
        let session = self.sessions[fastrand::usize(..self.sessions.len())];
        let command = format!("*3\r\n$7\r\nPEXPIRE\r\n$36\r\n{session}\r\n$7\r\n3600000\r\n");
        self.stream.write_all(command.as_bytes()).await?;
        let mut answer = [0; 4];
        self.stream.read_exact(&mut answer).await?;
        ensure!(answer == *b":1\r\n", "Redis answers {answer:?}");
        Ok(())
    }
}

pub async fn etcd(program: &Path, folder: &Path) -> Result<Running> {
    let address = free_address()?;
    let url = format!("http://{address}");
    let peers = format!("http://{}", free_address()?);
    let data = folder.join("data");
    let arguments = [
        "--data-dir",
        data.to_str().context("a folder that is not UTF-8")?,
        "--listen-client-urls",
        &url,
        "--advertise-client-urls",
        &url,
        "--listen-peer-urls",
        &peers,
        "--initial-advertise-peer-urls",
        &peers,
        "--initial-cluster",
        &format!("default={peers}"),
        "--log-level",
        "error",
    ];
    Running::start(program, folder, address, &arguments).await
}

/// The two calls of etcd's `Lease` service that are needed (`etcdserverpb`, rpc.proto).
/// Written by hand, since the crate `etcd-client` needs protoc to be built.
mod lease {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct GrantRequest {
        #[prost(int64, tag = "1")]
        pub ttl: i64,
        #[prost(int64, tag = "2")]
        pub id: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct KeepAliveRequest {
        #[prost(int64, tag = "1")]
        pub id: i64,
    }

    /// Of both. A TTL of 0 is a lease that is gone.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Response {
        #[prost(int64, tag = "2")]
        pub id: i64,
        #[prost(int64, tag = "3")]
        pub ttl: i64,
    }
}

pub async fn etcd_channel(server: &Running) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address))?;
    Ok(endpoint.tcp_nodelay(true).connect().await?)
}

pub async fn etcd_grant(channel: Channel, ttl: i64) -> Result<i64> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await?;
    let response: tonic::Response<lease::Response> = grpc
        .unary(
            tonic::Request::new(lease::GrantRequest { ttl, id: 0 }),
            PathAndQuery::from_static("/etcdserverpb.Lease/LeaseGrant"),
            ProstCodec::default(),
        )
        .await?;
    Ok(response.into_inner().id)
}

/// A stream of keep-alives.
pub struct Etcd {
    requests: mpsc::Sender<lease::KeepAliveRequest>,
    responses: tonic::Streaming<lease::Response>,
    leases: Arc<[i64]>,
}

impl Etcd {
    pub async fn connect(channel: Channel, leases: Arc<[i64]>) -> Result<Self> {
        let (requests, sent) = mpsc::channel(1);
        // etcd answers the call itself only with the first response.
        requests
            .send(lease::KeepAliveRequest { id: leases[0] })
            .await?;
        let mut grpc = Grpc::new(channel);
        grpc.ready().await?;
        let response = grpc
            .streaming(
                tonic::Request::new(ReceiverStream::new(sent)),
                PathAndQuery::from_static("/etcdserverpb.Lease/LeaseKeepAlive"),
                ProstCodec::default(),
            )
            .await?;
        let mut etcd = Self {
            requests,
            responses: response.into_inner(),
            leases,
        };
        etcd.response().await?;
        Ok(etcd)
    }

    async fn response(&mut self) -> Result<()> {
        let response = self.responses.message().await?;
        let response = response.context("etcd ended the stream")?;
        ensure!(response.ttl > 0, "lease {} is gone", response.id);
        Ok(())
    }
}

impl Client for Etcd {
    async fn beat(&mut self) -> Result<()> {
        let id = self.leases[fastrand::usize(..self.leases.len())];
        self.requests.send(lease::KeepAliveRequest { id }).await?;
        self.response().await
    }
}
