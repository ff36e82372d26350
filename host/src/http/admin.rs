//! `/v1/policy`: the operator's routes, on a listener of their own.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json, Router, middleware};
use base64ct::{Base64, Encoding};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{self, BearerToken};
use super::document;
use super::error::{self, ApiError, Code, ErrorBody};
use super::json::header;
use super::time::rfc3339;
use crate::rollout::{Candidate, Origin, Rejection, Revision, Rollout};

/// The largest component that is taken, in bytes.
pub const MAX_COMPONENT: usize = 64 * 1024 * 1024;

const SIGNATURE: &str = "X-Policy-Signature";

/// The operator's routes. Whoever reaches them decides which rules hold, so they are not a
/// part of [`router`](super::router), and have a token of their own.
pub fn admin_router(rollout: Rollout, token: Option<BearerToken>) -> Router {
    let (routes, mut document) = OpenApiRouter::with_openapi(document::document())
        .routes(routes!(show, replace))
        .routes(routes!(roll_back))
        .routes(routes!(document::serve))
        .split_for_parts();
    if token.is_some() {
        document::require_token(&mut document);
    }
    let document: Arc<str> = document.to_json().expect("the document is JSON").into();
    routes
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(middleware::from_fn_with_state(token, auth::require_token))
        .layer(Extension(document))
        .layer(DefaultBodyLimit::max(MAX_COMPONENT))
        .layer(middleware::from_fn(error::envelope))
        .with_state(rollout)
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PolicyInCharge {
    /// From the component's metadata.
    name: String,
    /// From the component's metadata, where it has one.
    version: Option<String>,
    /// The component's, in hexadecimal.
    sha256: String,
    /// The component's, in bytes.
    size: usize,
    /// The profile that it was given: `strict` or `interpreted`.
    profile: String,
    /// `embedded`, `request`, or the path of a file.
    origin: String,
    /// The number that it is signed as, where signatures are required.
    revision: Option<u64>,
    /// Since when, by the host's clock.
    #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
    since: String,
    /// Whether it was put in charge by going back to it.
    rolled_back: bool,
    /// How its calls have ended since then.
    calls: Calls,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Calls {
    /// All that have ended.
    ended: u64,
    /// The policy said no.
    refused: u64,
    /// The policy did what no policy may do, or said what the database did not bear out.
    violations: u64,
    /// The policy trapped, or broke a limit.
    traps: u64,
    /// The call was over its deadline, which may be the database's fault.
    time_outs: u64,
}

impl From<Revision> for Json<PolicyInCharge> {
    fn from(revision: Revision) -> Self {
        let policy = &revision.policy;
        let counts = policy.counts();
        Json(PolicyInCharge {
            name: policy.name().to_owned(),
            version: policy.version().map(str::to_owned),
            sha256: policy.sha256().to_owned(),
            size: policy.size(),
            profile: policy.profile().to_string(),
            origin: revision.origin.to_string(),
            revision: revision.number,
            since: rfc3339(revision.since),
            rolled_back: revision.rolled_back,
            calls: Calls {
                ended: counts.calls,
                refused: counts.refusals,
                violations: counts.violations,
                traps: counts.traps,
                time_outs: counts.time_outs,
            },
        })
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let status = match rejection {
            Rejection::NotPinned(_) | Rejection::Unsigned | Rejection::Signature(_) => {
                StatusCode::FORBIDDEN
            }
            Rejection::Superseded { .. } | Rejection::NothingBefore => StatusCode::CONFLICT,
            Rejection::Store(_) => {
                return Self::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    Code::Contention,
                    rejection.to_string(),
                )
                .retry_safe();
            }
            Rejection::Load(_) | Rejection::Nonconforming(_) => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self::new(status, Code::PolicyRejected, rejection.to_string())
    }
}

/// Tells which policy is in charge, and what it has done.
#[utoipa::path(
    get,
    path = "/v1/policy",
    responses((status = 200, body = PolicyInCharge))
)]
async fn show(State(rollout): State<Rollout>) -> Json<PolicyInCharge> {
    rollout.current().await.into()
}

/// Puts another policy in charge, if it passes. Calls that are under way finish on the policy
/// that they began with. The same policy again changes nothing.
///
/// It lasts as long as the server does, which starts with the policy that it is configured
/// with.
#[utoipa::path(
    put,
    path = "/v1/policy",
    params((
        "X-Policy-Signature" = Option<String>, Header,
        description = "The signature's file, in base64, where signatures are required"
    )),
    request_body(content = Vec<u8>, content_type = "application/wasm"),
    responses(
        (status = 200, body = PolicyInCharge),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        (status = 403, body = ErrorBody, description = "POLICY_REJECTED: not pinned, or not \
                                                        signed by a trusted key"),
        (status = 409, body = ErrorBody, description = "POLICY_REJECTED: not the newest revision"),
        (status = 413, body = ErrorBody, description = "PAYLOAD_TOO_LARGE: more than 64 MiB"),
        (status = 422, body = ErrorBody, description = "POLICY_REJECTED: it does not fit or does \
                                                        not conform; the message says why"),
        (status = 503, body = ErrorBody, description = "CONTENTION"),
    )
)]
async fn replace(
    State(rollout): State<Rollout>,
    headers: HeaderMap,
    component: Bytes,
) -> Result<Json<PolicyInCharge>, ApiError> {
    let signature = header(&headers, SIGNATURE)
        .map_err(|why| ApiError::invalid(SIGNATURE, why))?
        .map(|value| {
            Base64::decode_vec(value.to_str().unwrap_or_default())
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok())
                .ok_or_else(|| ApiError::invalid(SIGNATURE, "it is not a text in base64"))
        })
        .transpose()?;
    let revision = rollout
        .propose(Candidate {
            component: component.as_ref().into(),
            signature,
            origin: Origin::Request,
        })
        .await?;
    Ok(revision.into())
}

/// Goes back to the policy before the one in charge, once.
#[utoipa::path(
    post,
    path = "/v1/policy/rollback",
    responses(
        (status = 200, body = PolicyInCharge),
        (status = 409, body = ErrorBody, description = "POLICY_REJECTED: there is none before"),
    )
)]
async fn roll_back(State(rollout): State<Rollout>) -> Result<Json<PolicyInCharge>, ApiError> {
    Ok(rollout.roll_back().await?.into())
}
