//! A TCP proxy before PostgreSQL, which does to its connections what networks do.

use std::path::PathBuf;
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use super::database::connection_string;

/// What happens to what passes.
#[allow(
    dead_code,
    reason = "what the test programs share is used by each in part"
)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Weather {
    Clear,
    /// Nothing passes and nobody is told. Once it is over, what has waited goes on.
    Silent,
    /// The server hears everything; what it answers is lost, and the connection with it once
    /// this is over.
    HalfOpen,
    /// Everything is late.
    Delay(Duration),
    /// Everything passes byte by byte.
    Drip(Duration),
    /// A connection ends in the midst of what it says or hears next.
    Cut,
    /// A server's answer ends in nonsense.
    Garbage,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToServer,
    ToClient,
}

#[derive(Clone)]
enum Target {
    Tcp(String, u16),
    Unix(PathBuf),
}

/// Ends, with all of its connections, when it is dropped.
pub struct Proxy {
    url: String,
    port: u16,
    weather: watch::Sender<Weather>,
    server: JoinHandle<()>,
}

impl Proxy {
    /// Before the first host of `config`. What is random in it depends on the seed.
    pub async fn before(config: &Config, seed: u64) -> Self {
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let target = match &config.get_hosts()[0] {
            Host::Tcp(host) => Target::Tcp(host.clone(), port),
            Host::Unix(folder) => Target::Unix(folder.join(format!(".s.PGSQL.{port}"))),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let mut reached = Config::new();
        reached.host("127.0.0.1").port(own_port);
        config.get_user().map(|user| reached.user(user));
        config.get_password().map(|word| reached.password(word));
        config.get_dbname().map(|name| reached.dbname(name));
        let (weather, seen) = watch::channel(Weather::Clear);
        Self {
            url: connection_string(&reached),
            port: own_port,
            weather,
            server: tokio::spawn(serve(listener, target, seen, Rng::with_seed(seed))),
        }
    }

    /// A connection string that leads through it.
    pub fn url(&self) -> &str {
        &self.url
    }

    #[allow(
        dead_code,
        reason = "what the test programs share is used by each in part"
    )]
    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn set(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(
    listener: TcpListener,
    target: Target,
    weather: watch::Receiver<Weather>,
    mut rng: Rng,
) {
    // Dropped with this task, and its connections with it.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                let (target, weather, rng) = (target.clone(), weather.clone(), rng.fork());
                connections.spawn(async move {
                    match target {
                        Target::Tcp(host, port) => {
                            if let Ok(server) = TcpStream::connect((host, port)).await {
                                join(client, server, weather, rng).await;
                            }
                        }
                        Target::Unix(path) => {
                            if let Ok(server) = UnixStream::connect(path).await {
                                join(client, server, weather, rng).await;
                            }
                        }
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Until either direction ends, which ends both.
async fn join(
    client: TcpStream,
    server: impl AsyncRead + AsyncWrite,
    weather: watch::Receiver<Weather>,
    mut rng: Rng,
) {
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = tokio::io::split(server);
    let other = (weather.clone(), rng.fork());
    tokio::select! {
        () = pump(from_client, to_server, Direction::ToServer, weather, rng) => {}
        () = pump(from_server, to_client, Direction::ToClient, other.0, other.1) => {}
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    mut weather: watch::Receiver<Weather>,
    mut rng: Rng,
) {
    let mut buffer = vec![0; 16 * 1024];
    let mut lost = false;
    loop {
        let said = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => &buffer[..length],
        };
        if *weather.borrow() == Weather::Silent
            && weather
                .wait_for(|now| *now != Weather::Silent)
                .await
                .is_err()
        {
            return;
        }
        let now = *weather.borrow();
        if lost && now != Weather::HalfOpen {
            return;
        }
        let passed = match now {
            Weather::HalfOpen if direction == Direction::ToClient => {
                lost = true;
                continue;
            }
            Weather::Cut => {
                let _ = to.write_all(&said[..rng.usize(..=said.len())]).await;
                return;
            }
            Weather::Garbage if direction == Direction::ToClient => {
                // No message begins with this byte.
                let nonsense: Vec<u8> = std::iter::once(0xFF)
                    .chain(std::iter::repeat_with(|| rng.u8(..)).take(32))
                    .collect();
                let _ = to.write_all(&nonsense).await;
                sleep(Duration::from_millis(rng.u64(..50))).await;
                return;
            }
            Weather::Drip(pause) => drip(&mut to, said, pause).await,
            Weather::Delay(pause) => {
                sleep(pause).await;
                to.write_all(said).await
            }
            Weather::Clear | Weather::Silent | Weather::HalfOpen | Weather::Garbage => {
                to.write_all(said).await
            }
        };
        if passed.is_err() {
            return;
        }
    }
}

async fn drip(
    to: &mut (impl AsyncWrite + Unpin),
    said: &[u8],
    pause: Duration,
) -> std::io::Result<()> {
    for byte in said {
        to.write_all(&[*byte]).await?;
        sleep(pause).await;
    }
    Ok(())
}
