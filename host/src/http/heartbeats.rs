//! `/v1/heartbeats`: many sessions in one request.

use std::collections::{BTreeMap, BTreeSet};

use axum::Json;
use axum::extract::State;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Shared;
use super::document::{OfBody, OfPolicy};
use super::error::{ApiError, Code, ErrorBody};
use super::json::{self, Body};
use super::sessions::{TTL, of_session};
use super::time::rfc3339;
use crate::Heartbeat;

/// The most sessions in one request.
const MOST: usize = 1000;

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct HeartbeatsRequest {
    /// The sessions, in any order. One that is named twice is kept alive once.
    #[schema(min_items = 1, max_items = 1000)]
    session_ids: Vec<String>,
    /// How long each lives from now; `lock.session.ttl` by default.
    #[schema(minimum = 1000, maximum = 60000)]
    ttl_millis: Option<u64>,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Beats {
    /// One for each session, in the order of the request.
    sessions: Vec<Outcome>,
}

/// What became of one heartbeat.
#[derive(Clone, Serialize, ToSchema)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub(super) enum Outcome {
    /// The session lives on.
    #[serde(rename_all = "camelCase")]
    Alive {
        #[schema(format = DateTime, pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
        expires_at: String,
    },
    /// **Terminal.** The session is gone with its locks, and nothing brings it back. Whether
    /// it was closed or has lapsed is not told.
    Dead,
    /// This one failed; what became of the others stands beside it.
    #[serde(rename_all = "camelCase")]
    Failed {
        /// For programs: what is wrong.
        code: Code,
        /// For people.
        message: String,
        /// Whether it may be sent again.
        retry_safe: bool,
    },
}

/// Keeps many sessions alive, each as a heartbeat of its own: a fault of one costs the others
/// nothing. The answer is 200 whatever became of each.
#[utoipa::path(
    post,
    path = "/v1/heartbeats",
    request_body = HeartbeatsRequest,
    responses(
        (status = 200, body = Beats),
        (status = 400, body = ErrorBody, description = "VALIDATION_FAILED"),
        OfBody,
        OfPolicy,
    )
)]
pub(super) async fn heartbeats(
    State(app): State<Shared>,
    Body(request): Body<HeartbeatsRequest>,
) -> Result<Json<Beats>, ApiError> {
    let ttl = json::millis("ttlMillis", request.ttl_millis, app.session_ttl, TTL)?;
    let ids = request.session_ids;
    if ids.is_empty() || ids.len() > MOST {
        return Err(ApiError::invalid(
            "sessionIds",
            format!("it has {} sessions; it takes 1 to {MOST}", ids.len()),
        ));
    }
    let distinct: BTreeSet<&str> = ids.iter().map(String::as_str).collect();
    let beats = distinct.into_iter().map(async |id| {
        let outcome = match app.registry.heartbeat(id, ttl).await {
            Ok(Heartbeat::Alive(lease)) => Outcome::Alive {
                expires_at: rfc3339(lease.expires_at),
            },
            Ok(Heartbeat::Dead) => Outcome::Dead,
            Err(error) => {
                let (code, message, retry_safe) = of_session(error, "sessionIds").into_parts();
                Outcome::Failed {
                    code,
                    message,
                    retry_safe,
                }
            }
        };
        (id, outcome)
    });
    let outcomes: BTreeMap<&str, Outcome> = join_all(beats).await.into_iter().collect();
    Ok(Json(Beats {
        sessions: ids.iter().map(|id| outcomes[id.as_str()].clone()).collect(),
    }))
}
