//! `/v1/locks`

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use super::Shared;
use super::document::{OfBody, OfStore};
use super::error::{ApiError, Code, ErrorBody};
use super::json::{self, Body, Segment};
use super::time::rfc3339;
use crate::{Acquired, Error, FencingToken, Grant, LockKey, Renewed, Revoked, SessionId};

/// The TTLs that a lock may ask for here, in milliseconds. A lock ends with its session
/// anyhow, so a long one does no harm.
const TTL: std::ops::RangeInclusive<u64> = 1000..=86_400_000;

/// How long a caller may wait for a lock, in milliseconds.
const WAIT: std::ops::RangeInclusive<u64> = 0..=30_000;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct AcquireRequest {
    /// The session that the lock is to hang on.
    #[schema(format = Uuid)]
    session_id: String,
    /// How long the lock's own lease is; `lock.default.ttl` by default.
    #[schema(minimum = 1000, maximum = 86400000)]
    ttl_millis: Option<u64>,
    /// How long to wait for a lock that is held; 0 by default.
    #[schema(minimum = 0, maximum = 30000)]
    wait_millis: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct GrantedLock {
    key: String,
    #[schema(format = Uuid)]
    session_id: String,
    owner_id: String,
    /// To be shown to every resource that the lock protects.
    #[schema(minimum = 1)]
    fencing_token: i64,
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    acquired_at: String,
    /// When the lock's own lease ends. The lock ends with its session, if that is sooner.
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    expires_at: String,
}

impl From<Grant> for GrantedLock {
    fn from(grant: Grant) -> Self {
        Self {
            key: grant.key.to_string(),
            session_id: grant.session.to_string(),
            owner_id: grant.owner,
            fencing_token: grant.token.get(),
            acquired_at: rfc3339(grant.acquired_at),
            expires_at: rfc3339(grant.expires_at),
        }
    }
}

/// Takes a lock for a session: one that is free, that has lapsed, or that the session has
/// already; each time under a new, greater fencing token.
#[utoipa::path(
    post,
    path = "/v1/locks/{key}/acquire",
    params(("key" = String, Path, description = "1 to 128 of `a-zA-Z0-9:._-`")),
    request_body = AcquireRequest,
    responses(
        (status = 200, body = GrantedLock),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        (status = 404, body = ErrorBody, description = "SESSION_UNKNOWN"),
        (status = 409, body = ErrorBody, description = "LOCK_CONTENDED, with the holder"),
        (status = 410, body = ErrorBody, description = "SESSION_EXPIRED"),
        OfBody,
        OfStore,
    )
)]
pub(super) async fn acquire(
    State(app): State<Shared>,
    Segment(key): Segment,
    Body(request): Body<AcquireRequest>,
) -> Result<Json<GrantedLock>, ApiError> {
    let key = parse_key(&key)?;
    let session: SessionId = request
        .session_id
        .parse()
        .map_err(|_| ApiError::invalid("sessionId", "it is not a UUID of 36 characters"))?;
    let ttl = json::millis("ttlMillis", request.ttl_millis, app.lock_ttl, TTL)?;
    let wait = json::millis("waitMillis", request.wait_millis, Duration::ZERO, WAIT)?;
    let mut stopping = app.stopping.clone();
    let give_up = async move {
        if wait.is_zero() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    };
    match app
        .locks
        .acquire_until(&key, &session, ttl, give_up)
        .await?
    {
        Acquired::Granted(grant) => Ok(Json(grant.into())),
        Acquired::Held(holder) => Err(ApiError::new(
            StatusCode::CONFLICT,
            Code::LockContended,
            format!("lock {key} is held by {}", holder.owner),
        )
        .with(json!({
            "holder": {
                "ownerId": holder.owner,
                "acquiredAt": rfc3339(holder.acquired_at),
                "expiresAt": rfc3339(holder.expires_at),
            }
        }))),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RenewRequest {
    /// How long the lock's lease is from now; `lock.default.ttl` by default.
    #[schema(minimum = 1000, maximum = 86400000)]
    ttl_millis: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RenewedLock {
    key: String,
    /// The same as before.
    #[schema(minimum = 1)]
    fencing_token: i64,
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    expires_at: String,
}

/// Renews a lock's own lease. LOCK_LOST means that the holder has to stop.
#[utoipa::path(
    post,
    path = "/v1/locks/{key}/renew",
    params(
        ("key" = String, Path, description = "The lock's key"),
        ("X-Fencing-Token" = i64, Header, description = "The token of the grant"),
    ),
    request_body = Option<RenewRequest>,
    responses(
        (status = 200, body = RenewedLock),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED, INVALID_TOKEN"),
        (status = 409, body = ErrorBody, description = "LOCK_LOST"),
        OfBody,
        OfStore,
    )
)]
pub(super) async fn renew(
    State(app): State<Shared>,
    Segment(key): Segment,
    headers: HeaderMap,
    Body(request): Body<RenewRequest>,
) -> Result<Json<RenewedLock>, ApiError> {
    let key = parse_key(&key)?;
    let token = parse_token(&headers)?;
    let ttl = json::millis("ttlMillis", request.ttl_millis, app.lock_ttl, TTL)?;
    match app.locks.extend(&key, token, ttl).await? {
        Renewed::Until(expires_at) => Ok(Json(RenewedLock {
            key: key.to_string(),
            fencing_token: token.get(),
            expires_at: rfc3339(expires_at),
        })),
        Renewed::Lost => Err(lost(&key, token)),
    }
}

/// Gives a lock back. LOCK_LOST is benign here: the lock was lost before, and is not held
/// now.
#[utoipa::path(
    delete,
    path = "/v1/locks/{key}",
    params(
        ("key" = String, Path, description = "The lock's key"),
        ("X-Fencing-Token" = i64, Header, description = "The token of the grant"),
    ),
    responses(
        (status = 204, description = "The lock is released"),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED, INVALID_TOKEN"),
        (status = 409, body = ErrorBody, description = "LOCK_LOST"),
        OfStore,
    )
)]
pub(super) async fn release(
    State(app): State<Shared>,
    Segment(key): Segment,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let key = parse_key(&key)?;
    let token = parse_token(&headers)?;
    if app.locks.delete_if_owner(&key, token).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(lost(&key, token))
    }
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LockState {
    key: String,
    held: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    owner_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    fencing_token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    acquired_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    expires_at: Option<String>,
}

/// Who has a lock. Advisory: for people, and old when it arrives. The session's id is left
/// out, since whoever knows it may close the session.
#[utoipa::path(
    get,
    path = "/v1/locks/{key}",
    params(("key" = String, Path, description = "The lock's key")),
    responses(
        (status = 200, body = LockState),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        OfStore,
    )
)]
pub(super) async fn read(
    State(app): State<Shared>,
    Segment(key): Segment,
) -> Result<Json<LockState>, ApiError> {
    let key = parse_key(&key)?;
    let grant = app.locks.read(&key).await?;
    Ok(Json(LockState {
        key: key.to_string(),
        held: grant.is_some(),
        fencing_token: grant.as_ref().map(|grant| grant.token.get()),
        acquired_at: grant.as_ref().map(|grant| rfc3339(grant.acquired_at)),
        expires_at: grant.as_ref().map(|grant| rfc3339(grant.expires_at)),
        owner_id: grant.map(|grant| grant.owner),
    }))
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RevokeRequest {
    /// Who does it: 1 to 64 characters.
    operator: String,
    /// Why: 8 to 1024 characters.
    #[schema(min_length = 8)]
    reason: String,
    /// Revoke only a grant under this token.
    #[schema(minimum = 1)]
    expected_token: Option<i64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RevokedLock {
    key: String,
    owner_id: String,
    /// Worth nothing any more.
    #[schema(minimum = 1)]
    revoked_token: i64,
    /// Every later grant of the key has a greater token than this.
    #[schema(minimum = 1)]
    new_token_floor: i64,
    /// The number of the record.
    revocation_id: i64,
}

/// Breaks the glass: takes a lock away from its holder, and records who did it and why. The
/// holder's session lives on.
#[utoipa::path(
    post,
    path = "/v1/locks/{key}/revoke",
    params(("key" = String, Path, description = "The lock's key")),
    request_body = RevokeRequest,
    responses(
        (status = 200, body = RevokedLock),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        (status = 404, body = ErrorBody, description = "LOCK_NOT_HELD"),
        (status = 409, body = ErrorBody, description = "TOKEN_MISMATCH"),
        OfBody,
        OfStore,
    )
)]
pub(super) async fn revoke(
    State(app): State<Shared>,
    Segment(key): Segment,
    Body(request): Body<RevokeRequest>,
) -> Result<Json<RevokedLock>, ApiError> {
    let key = parse_key(&key)?;
    let expected = request
        .expected_token
        .map(FencingToken::try_from)
        .transpose()
        .map_err(|error| ApiError::invalid("expectedToken", error.to_string()))?;
    let revoked = app
        .locks
        .revoke(&key, &request.operator, &request.reason, expected)
        .await
        .map_err(|error| match error {
            // The store's message begins with the name of the field.
            Error::InvalidArgument(why) if why.starts_with("operator") => {
                ApiError::invalid("operator", why)
            }
            Error::InvalidArgument(why) => ApiError::invalid("reason", why),
            other => other.into(),
        })?;
    match revoked {
        Revoked::Done(revocation) => Ok(Json(RevokedLock {
            key: key.to_string(),
            owner_id: revocation.owner,
            revoked_token: revocation.token.get(),
            new_token_floor: revocation.token_floor.get(),
            revocation_id: revocation.id,
        })),
        Revoked::NotHeld => Err(ApiError::new(
            StatusCode::NOT_FOUND,
            Code::LockNotHeld,
            format!("nobody has lock {key}"),
        )),
        Revoked::OtherToken(token) => Err(ApiError::new(
            StatusCode::CONFLICT,
            Code::TokenMismatch,
            format!("lock {key} is held under token {token}; it was left alone"),
        )
        .with(json!({ "fencingToken": token.get() }))),
    }
}

fn parse_key(text: &str) -> Result<LockKey, ApiError> {
    text.parse()
        .map_err(|error: crate::InvalidKey| ApiError::invalid("key", error.to_string()))
}

fn parse_token(headers: &HeaderMap) -> Result<FencingToken, ApiError> {
    let invalid = |why: &str| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            Code::InvalidToken,
            format!("X-Fencing-Token: {why}"),
        )
        .with(json!({ "field": "X-Fencing-Token" }))
    };
    let value = json::header(headers, "x-fencing-token")
        .and_then(|value| value.ok_or("it is missing"))
        .map_err(&invalid)?;
    value
        .to_str()
        .unwrap_or_default()
        .parse()
        .map_err(|error: crate::InvalidToken| invalid(&error.to_string()))
}

fn lost(key: &LockKey, token: FencingToken) -> ApiError {
    ApiError::new(
        StatusCode::CONFLICT,
        Code::LockLost,
        format!("lock {key} is not held under token {token}"),
    )
}
