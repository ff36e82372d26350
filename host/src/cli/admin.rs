//! The operators' listener, apart from the clients'.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use tenure::http::{self, BearerToken, Peer};
use tenure::rollout::Rollout;
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::serve::token;
use super::settings::{ADMIN_LISTEN, ADMIN_TOKEN_FILE, Settings};

/// Where operators come in, and what they have to show.
pub struct AdminListener {
    place: Place,
    token: Option<BearerToken>,
}

enum Place {
    Tcp(TcpListener),
    Unix(UnixListener, RemovedAtEnd),
}

impl AdminListener {
    /// Binds it, where the settings name one.
    pub async fn bind(settings: &Settings) -> Result<Option<Self>> {
        let token = token(settings, ADMIN_TOKEN_FILE)?;
        let Some(address) = settings.get(ADMIN_LISTEN) else {
            ensure!(
                token.is_none(),
                "{ADMIN_TOKEN_FILE} is set, but there is no {ADMIN_LISTEN} to ask for it"
            );
            return Ok(None);
        };
        let place = match address.strip_prefix("unix:") {
            Some(path) => unix(PathBuf::from(path)).await,
            None => tcp(address, token.is_some()).await,
        }
        .map_err(|error| settings.refuse(ADMIN_LISTEN, &format!("{error:#}")))?;
        Ok(Some(Self { place, token }))
    }

    /// Serves the operators' routes, until it is dropped.
    pub async fn serve(self, rollout: Rollout) {
        let router = http::admin_router(rollout, self.token);
        let served = match self.place {
            Place::Tcp(listener) => {
                let service = router.into_make_service_with_connect_info::<Peer>();
                axum::serve(http::Listener::new(listener), service).await
            }
            Place::Unix(listener, _removed) => axum::serve(listener, router).await,
        };
        if let Err(error) = served {
            tracing::error!(%error, "the operators' listener has ended");
        }
    }
}

async fn tcp(address: &str, has_token: bool) -> Result<Place> {
    let address: SocketAddr = address
        .parse()
        .context("it has to be unix:PATH, or an address such as 127.0.0.1:7401")?;
    ensure!(
        address.ip().is_loopback(),
        "other machines could reach it; choose a loopback address or unix:PATH"
    );
    ensure!(
        has_token,
        "every user of this machine can reach it: give a token with admin.token-file, or use \
         unix:PATH"
    );
    Ok(Place::Tcp(TcpListener::bind(address).await?))
}

async fn unix(path: PathBuf) -> Result<Place> {
    // One that was left behind stands in the way; one that answers is somebody else's.
    if fs::symlink_metadata(&path).is_ok_and(|data| data.file_type().is_socket()) {
        if UnixStream::connect(&path).await.is_ok() {
            bail!("another program listens there");
        }
        fs::remove_file(&path)?;
    }
    let listener = UnixListener::bind(&path)?;
    let removed = RemovedAtEnd(path.clone());
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(Place::Unix(listener, removed))
}

struct RemovedAtEnd(PathBuf);

impl Drop for RemovedAtEnd {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
