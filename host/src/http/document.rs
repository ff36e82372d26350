//! `/openapi.json`: the document, and what many of its routes have in common.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::Response;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, OpenApi as _};

use super::error::ErrorBody;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tenure",
        description = "Session leases and fenced locks on PostgreSQL. Times are RFC 3339, UTC, \
                       in milliseconds, by the database's clock.\n\nEvery answer that is no \
                       success has the body `ErrorBody`, also that to a path (404, NOT_FOUND) or \
                       a method (405, METHOD_NOT_ALLOWED) that is not in here. A route with GET \
                       answers HEAD as well."
    ),
    components(schemas(ErrorBody))
)]
struct Document;

pub(super) fn document() -> OpenApi {
    Document::openapi()
}

/// Says that every route takes a bearer token, but for those that say otherwise.
pub(super) fn require_token(document: &mut OpenApi) {
    document
        .components
        .get_or_insert_default()
        .add_security_scheme(
            "bearer",
            SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build()),
        );
    document.security = Some(vec![SecurityRequirement::new("bearer", [""; 0])]);
    for item in document.paths.paths.values_mut() {
        let operations = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.delete,
        ];
        for operation in operations.into_iter().flatten() {
            if is_protected(operation) {
                operation.responses.responses.extend([
                    error(401, "UNAUTHORIZED"),
                    error(
                        429,
                        "TOO_MANY_ATTEMPTS: too many wrong tokens came from this address; try \
                         again later",
                    ),
                ]);
            }
        }
    }
}

fn is_protected(operation: &Operation) -> bool {
    operation.security.is_none()
}

/// This document.
#[utoipa::path(
    get,
    path = "/openapi.json",
    responses((status = 200, body = Object, content_type = "application/json"))
)]
pub(super) async fn serve(Extension(document): Extension<Arc<str>>) -> impl IntoResponse {
    (
        [(header::CONTENT_TYPE, "application/json")],
        document.to_string(),
    )
}

/// What comes of a body that is not even looked into.
pub(super) struct OfBody;

impl IntoResponses for OfBody {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        BTreeMap::from([
            error(408, "REQUEST_TIMEOUT: the body takes longer than 10 s"),
            error(413, "PAYLOAD_TOO_LARGE: more than 64 KiB"),
            error(415, "UNSUPPORTED_MEDIA_TYPE: a body that is not JSON"),
        ])
    }
}

/// What any route can answer that asks the database.
pub(super) struct OfStore;

impl IntoResponses for OfStore {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        BTreeMap::from([
            error(500, "STORE_FAILED, INTERNAL"),
            error(503, "CONTENTION: try again"),
        ])
    }
}

/// What any route can answer that asks the policy, and through it the database.
pub(super) struct OfPolicy;

impl IntoResponses for OfPolicy {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        BTreeMap::from([
            error(403, "REFUSED: the policy says no"),
            error(500, "STORE_FAILED, POLICY_FAILED, INTERNAL"),
            error(503, "CONTENTION: try again"),
        ])
    }
}

fn error(status: u16, description: &str) -> (String, RefOr<Response>) {
    let body = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("ErrorBody")))
        .build();
    let response = ResponseBuilder::new()
        .description(description)
        .content("application/json", body)
        .build();
    (status.to_string(), response.into())
}
