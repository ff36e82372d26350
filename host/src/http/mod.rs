//! The registry and the lock store over HTTP.
//!
//! JSON in and out, one file for each resource. Every answer that is no success, whoever
//! made it, has the same form: [`ErrorBody`].

mod admin;
mod auth;
mod document;
mod error;
mod guesses;
mod health;
mod heartbeats;
mod json;
mod locks;
mod sessions;
mod time;
mod tls;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::{Extension, Router, middleware};
use tokio::sync::watch;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::{Database, LockStore, SessionRegistry};

pub use admin::{MAX_COMPONENT, admin_router};
pub use auth::BearerToken;
pub use error::{Code, ErrorBody};
pub use guesses::{GuessLimits, Peer};
pub use tls::{Tls, TlsError};
pub use wire::{Listener, Wire, WireLimits};

/// The largest body of a request, in bytes.
pub const MAX_BODY: usize = 64 * 1024;

/// How long a client may take to send the body of a request whose head has come.
pub const BODY_TIME: Duration = Duration::from_secs(10);

/// What the routes work on.
#[derive(Clone, Debug)]
pub struct App {
    /// Sessions, under the policy in charge.
    pub registry: SessionRegistry,
    /// Locks.
    pub locks: LockStore,
    /// Asked whether it answers, by `/health/ready`.
    pub database: Database,
    /// The TTL of a session or a heartbeat that names none: `lock.session.ttl`.
    pub session_ttl: Duration,
    /// The TTL of a lock that names none: `lock.default.ttl`.
    pub lock_ttl: Duration,
    /// What a request has to show, on every route but `/health`.
    pub token: Option<BearerToken>,
    /// Turns `true` when the server is to stop. A caller who waits for a lock is then told
    /// who has it.
    pub stopping: watch::Receiver<bool>,
}

type Shared = Arc<App>;

/// The routes, to be served on a [`Listener`] with [`Peer`] as the connection's information,
/// and the OpenAPI document that describes them, made from the same code.
pub fn router(app: App) -> Router {
    let shared = Arc::new(app);
    let (routes, mut document) = OpenApiRouter::with_openapi(document::document())
        .routes(routes!(sessions::open))
        .routes(routes!(sessions::close))
        .routes(routes!(sessions::heartbeat))
        .routes(routes!(sessions::locks))
        .routes(routes!(heartbeats::heartbeats))
        .routes(routes!(locks::acquire))
        .routes(routes!(locks::renew))
        .routes(routes!(locks::read, locks::release))
        .routes(routes!(locks::revoke))
        .routes(routes!(health::live))
        .routes(routes!(health::ready))
        .routes(routes!(document::serve))
        .split_for_parts();
    if shared.token.is_some() {
        document::require_token(&mut document);
    }
    let document: Arc<str> = document.to_json().expect("the document is JSON").into();
    routes
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(middleware::from_fn_with_state(
            shared.token.clone(),
            auth::require_token,
        ))
        .layer(Extension(document))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(error::envelope))
        .with_state(shared)
}
