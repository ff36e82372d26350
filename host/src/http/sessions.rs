//! `/v1/sessions`

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Shared;
use super::document::{OfBody, OfPolicy};
use super::error::{ApiError, ErrorBody};
use super::json::{self, Body, Params, Segment};
use super::time::{millis, rfc3339};
use crate::{Heartbeat, SessionId};

/// The TTLs that a session may ask for here, in milliseconds. A policy may allow fewer.
pub(super) const TTL: std::ops::RangeInclusive<u64> = 1000..=60_000;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct OpenRequest {
    /// Who asks, for people to read: 1 to 64 characters. The header `X-Owner-Id` may say it
    /// in its place.
    owner_id: Option<String>,
    /// How long the session lives without a heartbeat; `lock.session.ttl` by default.
    #[schema(minimum = 1000, maximum = 60000)]
    ttl_millis: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct OpenedSession {
    #[schema(format = Uuid)]
    session_id: String,
    owner_id: String,
    /// As granted.
    ttl_millis: u64,
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    expires_at: String,
}

/// Opens a session: the one thing of a client's that has to be kept alive. Locks hang on
/// it, and go with it.
#[utoipa::path(
    post,
    path = "/v1/sessions",
    params(("X-Owner-Id" = Option<String>, Header, description = "In the place of `ownerId`")),
    request_body = Option<OpenRequest>,
    responses(
        (status = 201, body = OpenedSession),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        OfBody,
        OfPolicy,
    )
)]
pub(super) async fn open(
    State(app): State<Shared>,
    headers: HeaderMap,
    Body(request): Body<OpenRequest>,
) -> Result<(StatusCode, Json<OpenedSession>), ApiError> {
    let owner = owner(request.owner_id, &headers)?;
    let ttl = json::millis("ttlMillis", request.ttl_millis, app.session_ttl, TTL)?;
    let session = app
        .registry
        .open_session(&owner, ttl)
        .await
        .map_err(|error| match error {
            crate::Error::InvalidArgument(why) => ApiError::invalid("ownerId", why),
            other => other.into(),
        })?;
    Ok((
        StatusCode::CREATED,
        Json(OpenedSession {
            session_id: session.id.to_string(),
            owner_id: session.owner,
            ttl_millis: millis(session.lease.ttl),
            expires_at: rfc3339(session.lease.expires_at),
        }),
    ))
}

fn owner(body: Option<String>, headers: &HeaderMap) -> Result<String, ApiError> {
    let header = json::header(headers, "x-owner-id")
        .and_then(|value| {
            value
                .map(|value| std::str::from_utf8(value.as_bytes()).map_err(|_| "it is not UTF-8"))
                .transpose()
        })
        .map_err(|why| ApiError::invalid("X-Owner-Id", why))?;
    match (body, header) {
        (Some(body), Some(header)) if body != header => Err(ApiError::invalid(
            "ownerId",
            "it differs from the header X-Owner-Id",
        )),
        (Some(owner), _) => Ok(owner),
        (None, Some(owner)) => Ok(owner.to_owned()),
        (None, None) => Err(ApiError::invalid(
            "ownerId",
            "it is missing, and so is the header X-Owner-Id",
        )),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct HeartbeatRequest {
    /// How long the session lives from now; `lock.session.ttl` by default.
    #[schema(minimum = 1000, maximum = 60000)]
    ttl_millis: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HeartbeatParams {
    /// Whether to count the session's locks, which is a second, advisory read.
    #[serde(default)]
    count: bool,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Beat {
    #[schema(format = Uuid)]
    session_id: String,
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    expires_at: String,
    /// The database's time at the heartbeat.
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    server_time: String,
    /// With `count=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    held_lock_count: Option<u64>,
}

/// Keeps a session alive. **404 and 410 are terminal**: the session is gone with its locks,
/// and nothing brings it back.
#[utoipa::path(
    post,
    path = "/v1/sessions/{id}/heartbeat",
    params(("id" = String, Path, description = "The session's id"), HeartbeatParams),
    request_body = Option<HeartbeatRequest>,
    responses(
        (status = 200, body = Beat),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        (status = 404, body = ErrorBody, description = "SESSION_UNKNOWN"),
        (status = 410, body = ErrorBody, description = "SESSION_EXPIRED"),
        OfBody,
        OfPolicy,
    )
)]
pub(super) async fn heartbeat(
    State(app): State<Shared>,
    Segment(id): Segment,
    Params(params): Params<HeartbeatParams>,
    Body(request): Body<HeartbeatRequest>,
) -> Result<Json<Beat>, ApiError> {
    let ttl = json::millis("ttlMillis", request.ttl_millis, app.session_ttl, TTL)?;
    let lease = match app
        .registry
        .heartbeat(&id, ttl)
        .await
        .map_err(|error| of_session(error, "id"))?
    {
        Heartbeat::Alive(lease) => lease,
        Heartbeat::Dead => return Err(dead(&app, &id).await),
    };
    let held_lock_count = match (params.count, id.parse::<SessionId>()) {
        (true, Ok(session)) => Some(app.locks.count_of(&session).await?),
        _ => None,
    };
    Ok(Json(Beat {
        session_id: id,
        expires_at: rfc3339(lease.expires_at),
        server_time: rfc3339(lease.granted_at()),
        held_lock_count,
    }))
}

/// Which of the two it is, is for people only: the verdict stands already. So a fault of
/// this second read does not matter.
async fn dead(app: &super::App, id: &str) -> ApiError {
    let stands = match id.parse::<SessionId>() {
        Ok(session) => app.locks.session_stands(&session).await.unwrap_or(false),
        Err(_) => false,
    };
    if stands {
        ApiError::session_expired(id)
    } else {
        ApiError::session_unknown(id)
    }
}

pub(super) fn of_session(error: crate::Error, field: &str) -> ApiError {
    match error {
        crate::Error::InvalidArgument(why) => ApiError::invalid(field, why),
        other => other.into(),
    }
}

/// Ends a session, and all of its locks go with it.
#[utoipa::path(
    delete,
    path = "/v1/sessions/{id}",
    params(("id" = String, Path, description = "The session's id")),
    responses(
        (status = 204, description = "The session is closed, and its locks are released"),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        (status = 404, body = ErrorBody, description = "SESSION_UNKNOWN, or closed already"),
        OfPolicy,
    )
)]
pub(super) async fn close(
    State(app): State<Shared>,
    Segment(id): Segment,
) -> Result<StatusCode, ApiError> {
    let closed = app
        .registry
        .close_session(&id)
        .await
        .map_err(|error| of_session(error, "id"))?;
    if closed.existed {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::session_unknown(&id))
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LocksOfSession {
    #[schema(format = Uuid)]
    session_id: String,
    /// The first 100, in order.
    keys: Vec<String>,
    /// How many there are. `keys` does not list them all where this is more.
    held_lock_count: u64,
}

/// Lists the keys that hang on a session. Advisory: empty for a session that is unknown, and
/// old when it arrives.
#[utoipa::path(
    get,
    path = "/v1/sessions/{id}/locks",
    params(("id" = String, Path, description = "The session's id")),
    responses(
        (status = 200, body = LocksOfSession),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        OfPolicy,
    )
)]
pub(super) async fn locks(
    State(app): State<Shared>,
    Segment(id): Segment,
) -> Result<Json<LocksOfSession>, ApiError> {
    let keys = app
        .registry
        .locks_of(&id)
        .await
        .map_err(|error| of_session(error, "id"))?;
    let held_lock_count = match id.parse::<SessionId>() {
        Ok(session) => app.locks.count_of(&session).await?,
        // Only a policy without rules lets it come to this, and nothing hangs on it.
        Err(_) => 0,
    };
    Ok(Json(LocksOfSession {
        session_id: id,
        keys,
        held_lock_count,
    }))
}
