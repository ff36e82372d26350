//! Errors as the clients see them, in one place.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::http::header::{self, HeaderMap};
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::json;
use crate::Error;

/// How long to wait before trying again, in milliseconds: a few of the database's commits,
/// and apart from others who were told the same.
const RETRY_AFTER_MS: std::ops::Range<u64> = 50..250;

/// The longest message of an answer, in bytes. The logs have it whole.
const MAX_MESSAGE: usize = 1000;

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
    /// Too many wrong bearer tokens came from the client's address. This one was not looked
    /// at; try again later.
    TooManyAttempts,
    /// The policy says no.
    Refused,
    /// No such route.
    NotFound,
    /// The route has no such method.
    MethodNotAllowed,
    /// The body did not come in time. Nothing has happened.
    RequestTimeout,
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
    /// A policy that was to be put in charge did not pass. The one before stays.
    PolicyRejected,
    /// The server has a bug.
    Internal,
}

/// An error on its way out. The outermost layer makes its body, since that needs the trace
/// id.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: Code,
    message: String,
    retry_safe: bool,
    /// When, where it is no matter of a few commits.
    retry_after: Option<Duration>,
    details: Option<Value>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_safe: false,
            retry_after: None,
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

    pub(super) fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self.retry_safe()
    }

    /// For an answer that has more than this error in it. What its message quotes may be of
    /// any length.
    pub(super) fn into_parts(self) -> (Code, String, bool) {
        (self.code, shortened(self.message), self.retry_safe)
    }

    fn into_body(self, trace_id: String) -> ErrorBody {
        ErrorBody {
            code: self.code,
            message: shortened(self.message),
            retry_safe: self.retry_safe,
            retry_after_millis: self.retry_safe.then(|| match self.retry_after {
                Some(wait) => wait.as_millis() as u64 + 1,
                None => fastrand::u64(RETRY_AFTER_MS),
            }),
            details: self.details,
            trace_id,
        }
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
    let trace_id = trace_id(request.headers());
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        // What it says is in the logs, by the panic hook.
        Err(_) => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            Code::Internal,
            "the server has a bug; its logs say more",
        )
        .into_response(),
    };
    let status = response.status();
    if !status.is_client_error() && !status.is_server_error() {
        return response;
    }
    let error = response
        .extensions_mut()
        .remove::<ApiError>()
        .unwrap_or_else(|| foreign(status));
    if status.is_server_error() {
        tracing::warn!(trace_id, code = ?error.code, status = status.as_u16(), error.message);
    } else {
        tracing::debug!(trace_id, code = ?error.code, status = status.as_u16(), error.message);
    }
    let seconds = error.retry_after.map_or(1, |wait| wait.as_secs() + 1);
    let retry_safe = error.retry_safe;
    let body = error.into_body(trace_id);
    let mut headers = HeaderMap::new();
    if retry_safe {
        headers.insert(header::RETRY_AFTER, seconds.into());
    }
    // Of the framework's own headers, the ones that belong to the status.
    for name in [header::ALLOW, header::WWW_AUTHENTICATE] {
        if let Some(value) = response.headers_mut().remove(&name) {
            headers.insert(name, value);
        }
    }
    (status, headers, Json(body)).into_response()
}

/// The body of an error whose request no route has seen, as JSON.
pub(super) fn of_wire(status: StatusCode) -> String {
    let error = foreign(status);
    let trace_id = trace_id(&HeaderMap::new());
    tracing::debug!(trace_id, code = ?error.code, status = status.as_u16(), error.message);
    serde_json::to_string(&error.into_body(trace_id)).expect("the body is JSON")
}

/// An error that the framework made.
fn foreign(status: StatusCode) -> ApiError {
    let code = match status {
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::METHOD_NOT_ALLOWED => Code::MethodNotAllowed,
        StatusCode::PAYLOAD_TOO_LARGE => Code::PayloadTooLarge,
        StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
        _ if status.is_server_error() => Code::Internal,
        _ => Code::ValidationFailed,
    };
    let reason = status
        .canonical_reason()
        .unwrap_or("the request is refused");
    ApiError::new(status, code, reason)
}

/// A message may quote what somebody sent, or the database said, at any length.
fn shortened(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE));
        message.push('\u{2026}');
    }
    message
}

/// The trace id of the W3C `traceparent`, where there is a well-formed one.
fn trace_id(headers: &HeaderMap) -> String {
    json::header(headers, "traceparent")
        .ok()
        .flatten()
        .and_then(|value| value.to_str().ok())
        .and_then(given_trace_id)
        .map_or_else(|| format!("{:032x}", fastrand::u128(1..)), str::to_owned)
}

/// `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`, in lower case; a later version than
/// 00 may say more behind that.
fn given_trace_id(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.splitn(5, '-');
    let mut part = |length: usize| {
        parts.next().filter(|part| {
            part.len() == length
                && part
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        })
    };
    let zero = |id: &str| id.bytes().all(|b| b == b'0');
    let (version, trace, parent) = (part(2)?, part(32)?, part(16)?);
    let _flags = part(2)?;
    let ends = version != "00" || parts.next().is_none();
    (version != "ff" && ends && !zero(trace) && !zero(parent)).then_some(trace)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn trace_ids() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let (parent, zero) = ("00f067aa0ba902b7", "0".repeat(32));
        for (traceparent, is_good) in [
            (format!("00-{id}-{parent}-01"), true),
            (format!("00-{id}-{parent}-00"), true),
            (format!("01-{id}-{parent}-01-more"), true),
            (format!("00-{id}-{parent}-01-more"), false),
            (format!("00-{id}-{parent}-01-"), false),
            (format!("00-{id}-{parent}-"), false),
            (format!("00-{id}-{parent}"), false),
            (format!("00-{id}-{}-01", &zero[..16]), false),
            (format!("00-{zero}-{parent}-01"), false),
            (format!("00-{}-{parent}-01", id.to_uppercase()), false),
            (format!("00-{}-{parent}-01", &id[1..]), false),
            (format!("ff-{id}-{parent}-01"), false),
            (format!("xx-{id}-{parent}-01"), false),
            (format!("0-{id}-{parent}-01"), false),
            (format!("-{id}-"), false),
            (id.to_owned(), false),
            ("00".to_owned(), false),
            (String::new(), false),
        ] {
            let found = given_trace_id(&traceparent);
            assert_eq!(found, is_good.then_some(id), "{traceparent:?}");
        }
    }

    #[test]
    fn a_trace_id_is_made_where_none_is_given() {
        let mut headers = HeaderMap::new();
        let made = trace_id(&headers);
        assert_eq!(made.len(), 32);
        assert_ne!(trace_id(&headers), made);
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        headers.append("traceparent", HeaderValue::from_static(given));
        assert_eq!(trace_id(&headers), given[3..35]);
        headers.append("traceparent", HeaderValue::from_static(given));
        assert_ne!(trace_id(&headers), given[3..35]);
    }

    /// A panic costs the request that met it, which is told so.
    #[tokio::test]
    async fn a_panic_is_an_internal_error() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        async fn broken() -> &'static str {
            panic!("on purpose")
        }
        let router: axum::Router = axum::Router::new()
            .route("/", axum::routing::get(broken))
            .layer(axum::middleware::from_fn(envelope));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(axum::serve(listener, router).into_future());

        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: tenure\r\nConnection: close\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();

        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
        assert!(answer.contains("\"code\":\"INTERNAL\""), "{answer}");
        assert!(!answer.contains("on purpose"), "{answer}");
    }

    #[test]
    fn long_messages_are_cut() {
        let long = "\u{1F512}".repeat(MAX_MESSAGE);
        let cut = shortened(long.clone());
        assert!(cut.len() < MAX_MESSAGE + 4 && cut.ends_with('\u{2026}'));
        assert!(long.starts_with(cut.trim_end_matches('\u{2026}')));
        assert_eq!(shortened("short".to_owned()), "short");
    }
}
