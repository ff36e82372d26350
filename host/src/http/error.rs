//! Errors as the clients see them, in one place.

use axum::Json;
use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::Error;

/// How long to wait before trying again, in milliseconds: a few of the database's commits,
/// and apart from others who were told the same.
const RETRY_AFTER_MS: std::ops::Range<u64> = 50..250;

/// The body of every answer that is no success.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorBody {
    /// For programs: what is wrong.
    pub code: Code,
    /// For people: what happened, to what, and what to do.
    pub message: String,
    /// Whether the same request may be sent again without harm and with a chance of success.
    pub retry_safe: bool,
    /// When, in milliseconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry_after_millis: Option<u64>,
    /// What more there is to know, such as the field that is wrong or the lock's holder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub details: Option<Value>,
    /// Names this request in the logs: the trace id of its `traceparent`, or else one made
    /// for it.
    pub trace_id: String,
}

/// What is wrong with a request, or became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// A part of the request is missing or breaks a rule; `details.field` names it.
    ValidationFailed,
    /// The header `X-Fencing-Token` is missing or no token.
    InvalidToken,
    /// The bearer token is missing or wrong.
    Unauthorized,
    /// The policy says no.
    Refused,
    /// No such route.
    NotFound,
    /// The route has no such method.
    MethodNotAllowed,
    /// The body is too large.
    PayloadTooLarge,
    /// The body is not `application/json`.
    UnsupportedMediaType,
    /// There is no such session: it was closed, has been reaped, or never was. Final.
    SessionUnknown,
    /// The session's lease is over. Final.
    SessionExpired,
    /// Another session has the lock; `details.holder` says whose.
    LockContended,
    /// The lock is not held under this token. Benign at a release.
    LockLost,
    /// Nobody has the lock.
    LockNotHeld,
    /// The lock is held under another token than the one that was expected;
    /// `details.fencingToken` says which.
    TokenMismatch,
    /// A conflict, a time-out or too much load. The outcome is unknown; try again.
    Contention,
    /// The server is not ready.
    NotReady,
    /// The database failed in a way that a retry does not mend.
    StoreFailed,
    /// The policy misbehaved.
    PolicyFailed,
}

/// An error on its way out. The outermost layer makes its body, since that needs the trace
/// id.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: Code,
    message: String,
    retry_safe: bool,
    details: Option<Value>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_safe: false,
            details: None,
        }
    }

    /// A field of the body, of the path or of the query that breaks a rule.
    pub(super) fn invalid(field: &str, message: impl Into<String>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            Code::ValidationFailed,
            format!("{field}: {}", message.into()),
        )
        .with(serde_json::json!({ "field": field }))
    }

    pub(super) fn with(mut self, details: Value) -> Self {
        self.details = Some(details);
        self
    }

    pub(super) fn retry_safe(mut self) -> Self {
        self.retry_safe = true;
        self
    }

    pub(super) fn session_unknown(session: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            Code::SessionUnknown,
            format!(
                "session {session} is unknown: it was closed, has been reaped, or never was; open \
                 a new one"
            ),
        )
    }

    pub(super) fn session_expired(session: &str) -> Self {
        Self::new(
            StatusCode::GONE,
            Code::SessionExpired,
            format!("session {session} has expired; open a new one"),
        )
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        let (status, code) = match error {
            Error::InvalidArgument(_) => (StatusCode::BAD_REQUEST, Code::ValidationFailed),
            Error::Refused(reason) => {
                return Self::new(StatusCode::FORBIDDEN, Code::Refused, reason);
            }
            Error::SessionUnknown(session) => return Self::session_unknown(&session),
            Error::SessionExpired(session) => return Self::session_expired(&session),
            Error::Contention(_) | Error::DeadlineExceeded(_) => {
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Contention, message)
                    .retry_safe();
            }
            Error::Rejected(_) | Error::Store(_) => {
                (StatusCode::INTERNAL_SERVER_ERROR, Code::StoreFailed)
            }
            Error::Policy(_) => (StatusCode::INTERNAL_SERVER_ERROR, Code::PolicyFailed),
        };
        Self::new(status, code, message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

pub(super) async fn no_such_route(uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        Code::NotFound,
        format!("there is no {}; see /openapi.json", uri.path()),
    )
}

pub(super) async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        Code::MethodNotAllowed,
        format!("{} has no method {method}; see /openapi.json", uri.path()),
    )
}

/// Gives every error its body, those of the framework included.
pub(super) async fn envelope(request: Request, next: Next) -> Response {
    let traceparent = request.headers().get("traceparent").cloned();
    let mut response = next.run(request).await;
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let error = response
        .extensions_mut()
        .remove::<ApiError>()
        .unwrap_or_else(|| foreign(status));
    let trace_id = trace_id(traceparent.as_ref());
    if status.is_server_error() {
        tracing::warn!(trace_id, code = ?error.code, status = status.as_u16(), error.message);
    } else {
        tracing::debug!(trace_id, code = ?error.code, status = status.as_u16(), error.message);
    }
    let retry_after = error.retry_safe.then(|| fastrand::u64(RETRY_AFTER_MS));
    let body = ErrorBody {
        code: error.code,
        message: error.message,
        retry_safe: error.retry_safe,
        retry_after_millis: retry_after,
        details: error.details,
        trace_id,
    };
    let mut headers = HeaderMap::new();
    if error.retry_safe {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    // Of the framework's own headers, the ones that belong to the status.
    for name in [header::ALLOW, header::WWW_AUTHENTICATE] {
        if let Some(value) = response.headers_mut().remove(&name) {
            headers.insert(name, value);
        }
    }
    (status, headers, Json(body)).into_response()
}

/// An error that the framework made.
fn foreign(status: StatusCode) -> ApiError {
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        _ => Code::ValidationFailed,
    };
    let reason = status
        .canonical_reason()
        .unwrap_or("the request is refused");
    ApiError::new(status, code, reason)
}

/// The trace id of a W3C `traceparent`, where there is a well-formed one.
fn trace_id(traceparent: Option<&HeaderValue>) -> String {
    traceparent
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.split('-').nth(1))
        .filter(|id| {
            id.len() == 32
                && id
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
                && id.bytes().any(|b| b != b'0')
        })
        .map_or_else(|| format!("{:032x}", fastrand::u128(1..)), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_ids() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(
            trace_id(Some(&HeaderValue::from_static(given))),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
        for odd in [
            "",
            "00",
            "00-xyz-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        ] {
            let made = trace_id(Some(&HeaderValue::from_str(odd).unwrap()));
            assert_eq!(made.len(), 32, "{odd}");
            assert!(!odd.contains(&made));
        }
    }
}
