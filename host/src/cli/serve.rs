//! `tenure serve`

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use axum::serve::Listener as _;
use clap::{ArgMatches, Command};
use tenure::http::{self, App, BearerToken, Peer, Tls};
use tenure::postgres::private::PrivateCluster;
use tenure::rollout::Rollout;
use tenure::{LockStore, PinnedStatements, Policy, PolicyEngine, SessionRegistry};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::admin::AdminListener;
use super::handles;
use super::log;
use super::policy_source;
use super::print;
use super::settings::{
    AUTH_TOKEN_FILE, INSECURE, LISTEN, LOCK_TTL, POLICY_CALLS, REAPER_INTERVAL, SESSION_TTL,
    Settings, TLS_CERT, arguments,
};
use super::store::Store;
use super::tls;

/// How long what is in flight may take to finish when the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);

pub fn command() -> Command {
    Command::new("serve")
        .about("Run the server, on a PostgreSQL of its own unless one is named")
        .long_about(
            "Run the server. Without a database URL it starts a PostgreSQL of its own, keeps its \
             data in a folder, and stops it in the end.",
        )
        .after_help(
            "Examples:\n  \
             tenure serve\n  \
             tenure serve --data-dir /srv/tenure --listen 127.0.0.1:9000\n  \
             tenure serve --database-url postgres://tenure@db/lockdb\n  \
             tenure serve --listen 0.0.0.0:7400 --auth-token-file /etc/tenure/token \\\n    \
             --tls-cert /etc/tenure/cert.pem --tls-key /etc/tenure/key.pem\n  \
             tenure serve --policy /etc/tenure/policy.wasm --admin-listen unix:admin.sock",
        )
        .args(arguments())
}

#[tokio::main]
pub async fn run(matches: &ArgMatches) -> Result<()> {
    let settings = &Settings::resolve(matches)?;
    log::start(settings)?;
    // From here on a signal is an orderly stop, however far the start has come.
    let mut signals = Signals::new()?;
    let token = token(settings, AUTH_TOKEN_FILE)?;
    let address: SocketAddr = settings.parse(LISTEN)?;
    ensure!(
        address.ip().is_loopback() || token.is_some() || settings.parse(INSECURE)?,
        "{address} can be reached from other machines: give a token with --auth-token-file, or \
         say --insecure"
    );
    let tls = tls::open(settings)?;
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}; choose another address with --listen")
    })?;
    let mut listener = http::Listener::with_limits(listener, handles::for_clients(settings)?);
    if let Some(tls) = tls.clone() {
        listener = listener.with_tls(tls);
    }

    let admin = AdminListener::bind(settings).await?;
    // Whatever is wrong with these is told before a database is started.
    let requirements = policy_source::requirements(settings)?;
    let candidate = policy_source::candidate(settings)?;

    let store = tokio::select! {
        opened = Store::open(settings) => opened?.0,
        () = signals.stop() => return Ok(()),
    };
    let described = store.describe();
    let Store { database, cluster } = store;
    let served = async {
        let engine = PolicyEngine::new(settings.limits()?)
            .map_err(|error| settings.refuse(POLICY_CALLS, &error.to_string()))?;
        let options = settings.policy_options()?;
        let rollout = Rollout::start(engine, database.clone(), requirements, options, candidate)
            .await
            .context("the policy is rejected")?;
        let watching = tokio::spawn(watch(rollout.clone(), tls, matches.clone()));
        let admin = admin.map(|admin| tokio::spawn(admin.serve(rollout.clone())));
        let served = serve(
            settings,
            listener,
            token,
            &described,
            database,
            &rollout,
            &mut signals,
        );
        let outcome = served.await;
        watching.abort();
        if let Some(admin) = admin {
            admin.abort();
        }
        outcome
    };
    match cluster {
        None => served.await,
        Some(mut cluster) => {
            let outcome = tokio::select! {
                outcome = served => outcome,
                ended = cluster.ended() => Err(lost(&cluster, ended)),
            };
            let stopped = cluster.stop().await.map_err(anyhow::Error::from);
            outcome.and(stopped)
        }
    }
}

fn lost(
    cluster: &PrivateCluster,
    ended: std::io::Result<std::process::ExitStatus>,
) -> anyhow::Error {
    let how = match ended {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    anyhow!(
        "the private PostgreSQL ended by itself ({how}); see {}, then start again: its data are \
         kept",
        cluster.data_dir().join("postgres.log").display()
    )
}

/// Serves until a signal comes.
async fn serve(
    settings: &Settings,
    listener: http::Listener,
    token: Option<BearerToken>,
    described: &str,
    database: tenure::Database,
    rollout: &Rollout,
    signals: &mut Signals,
) -> Result<()> {
    let locks = LockStore::new(database.clone());
    let reaper = tokio::spawn(
        locks
            .clone()
            .reap_every(settings.duration(REAPER_INTERVAL)?),
    );
    let (stop, stopping) = watch::channel(false);
    let address = listener.local_addr()?;
    print_banner(
        address,
        listener.tls(),
        settings,
        described,
        &rollout.slot().load(),
    );
    let router = http::router(App {
        registry: SessionRegistry::with_slot(
            rollout.slot().clone(),
            Arc::new(PinnedStatements::new(database.clone())),
        ),
        locks,
        database,
        session_ttl: settings.duration(SESSION_TTL)?,
        lock_ttl: settings.duration(LOCK_TTL)?,
        token,
        stopping: stopping.clone(),
    });
    tracing::info!(%address, "serving");

    let mut stopping = stopping;
    let service = router.into_make_service_with_connect_info::<Peer>();
    let server = axum::serve(listener, service).with_graceful_shutdown(async move {
        let _ = stopping.wait_for(|stopping| *stopping).await;
    });
    let mut server = std::pin::pin!(server.into_future());
    tokio::select! {
        ended = &mut server => ended?,
        () = signals.stop() => {
            tracing::info!("stopping: finishing what is in flight");
            let _ = stop.send(true);
            if timeout(GRACE, server).await.is_err() {
                tracing::warn!("requests that took longer than {} s were cut", GRACE.as_secs());
            }
        }
    }
    reaper.abort();
    tracing::info!("stopped");
    Ok(())
}

/// Keeps the policy up to date with its file and with the settings: when they change, and on
/// SIGHUP; and on SIGHUP the certificate.
async fn watch(rollout: Rollout, tls: Option<Tls>, matches: ArgMatches) {
    let hung_up = async {
        let mut signals = signal(SignalKind::hangup())?;
        while signals.recv().await.is_some() {
            tls::reload(tls.as_ref(), &matches);
            policy_source::reload(&rollout, &matches).await;
        }
        Ok(())
    };
    let changed = async {
        let settings = Settings::resolve(&matches)?;
        policy_source::watch(rollout.clone(), matches.clone(), &settings).await
    };
    let log = |outcome: Result<()>| {
        if let Err(error) = outcome {
            let error = format!("{error:#}");
            tracing::error!(error, "changes of the policy will not be noticed");
        }
    };
    tokio::join!(async { log(hung_up.await) }, async { log(changed.await) });
}

/// The token in the file that a setting names.
pub(super) fn token(settings: &Settings, key: &str) -> Result<Option<BearerToken>> {
    let Some(path) = settings.get(key) else {
        return Ok(None);
    };
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {key} {path}"))?;
    match BearerToken::new(text.trim()) {
        Some(token) => Ok(Some(token)),
        None => bail!(
            "{key} {path}: a token is one line of {} or more visible ASCII characters; \
             make one with `openssl rand -hex 32`",
            BearerToken::MIN_LEN
        ),
    }
}

fn print_banner(
    address: SocketAddr,
    tls: Option<&Tls>,
    settings: &Settings,
    described: &str,
    policy: &Policy,
) {
    // What listens on every address is reached here through the loopback one.
    let reached = match address {
        SocketAddr::V4(a) if a.ip().is_unspecified() => (Ipv4Addr::LOCALHOST, a.port()).into(),
        SocketAddr::V6(a) if a.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, a.port()).into(),
        other => other,
    };
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    let mut options = String::new();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut host = reached.to_string();
    if let Some(certificate) = settings.get(TLS_CERT) {
        options.push_str(&format!(" --cacert {}", quoted(certificate)));
    }
    if let Some(name) = tls.and_then(Tls::name) {
        let (address, port) = (reached.ip(), reached.port());
        options.push_str(&format!(" --resolve '{name}:{port}:{address}'"));
        host = format!("{name}:{port}");
    }
    if let Some(path) = settings.get(AUTH_TOKEN_FILE) {
        options.push_str(&format!(
            " -H \"Authorization: Bearer $(cat {})\"",
            quoted(path)
        ));
    }
    let url = format!("{scheme}://{host}/v1");
    let json = "-H 'Content-Type: application/json'";
    // Quoted, as a shell may take `[::1]` and `?` for patterns.
    let banner = format!(
        "tenure {version}: session leases and fenced locks on PostgreSQL\n  \
           listening on  {scheme}://{address}\n  \
           database      {described}\n  \
           policy        {name} {policy_version} (sha256 {digest})\n\n\
         Try it:\n\
         SESSION=$(curl -s{options} '{url}/sessions' {json} -d '{{\"ownerId\":\"me\",\"ttlMillis\":60000}}' \
           | sed 's/.*\"sessionId\":\"\\([^\"]*\\)\".*/\\1/'); echo $SESSION\n\
         curl -s{options} '{url}/locks/demo/acquire' {json} -d \"{{\\\"sessionId\\\":\\\"$SESSION\\\"}}\"\n\
         curl -s{options} -X POST \"{url}/sessions/$SESSION/heartbeat?count=true\"\n\n",
        version = env!("CARGO_PKG_VERSION"),
        name = policy.name(),
        policy_version = policy.version().unwrap_or(""),
        digest = &policy.sha256()[..12],
    );
    // It serves whether or not anybody reads this.
    if let Err(error) = print(&banner) {
        tracing::warn!("{error:#}");
    }
}

/// SIGTERM and Ctrl-C.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
