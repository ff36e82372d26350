//! `/health`: for whoever watches over the server. Needs no token.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::Shared;
use super::error::{ApiError, Code, ErrorBody};

/// A database that takes longer to answer is not ready for sessions either.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// Always the same.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Health {
    /// `ok`
    status: &'static str,
}

/// Whether the server runs. Does not touch the database.
#[utoipa::path(
    get,
    path = "/health/live",
    responses((status = 200, body = Health)),
    security(())
)]
pub(super) async fn live() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Whether the server can do its work: whether the database answers.
#[utoipa::path(
    get,
    path = "/health/ready",
    responses(
        (status = 200, body = Health),
        (status = 503, body = ErrorBody, description = "NOT_READY")
    ),
    security(())
)]
pub(super) async fn ready(State(app): State<Shared>) -> Result<Json<Health>, ApiError> {
    let why = match tokio::time::timeout(READY_WITHIN, app.database.ping()).await {
        Ok(Ok(())) if *app.stopping.borrow() => "the server is stopping".to_owned(),
        Ok(Ok(())) => return Ok(Json(Health { status: "ok" })),
        Ok(Err(error)) => format!("the database does not answer: {error}"),
        Err(_) => format!(
            "the database did not answer within {} s",
            READY_WITHIN.as_secs()
        ),
    };
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, Code::NotReady, why).retry_safe())
}
