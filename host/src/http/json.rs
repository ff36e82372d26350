//! Reading requests: each refusal names the field.

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::error::{ApiError, Code};
use super::{BODY_TIME, MAX_BODY};

/// A body of JSON. An empty one stands for `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        // Browsers ask before they send this type to a foreign server, so no web page can
        // make a visitor's browser talk to a server on the visitor's own machine.
        let is_json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split(';').next())
            .is_some_and(|mime| mime.trim().eq_ignore_ascii_case("application/json"));
        // Whoever announces too much need not send it first.
        let announced = request.body().size_hint().lower();
        if announced > MAX_BODY as u64 {
            return Err(too_large());
        }
        let bytes = timeout(BODY_TIME, Bytes::from_request(request, state))
            .await
            .map_err(|_| too_slow())?
            .map_err(|rejection| match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => too_large(),
                _ => ApiError::invalid("body", "it broke off"),
            })?;
        if bytes.is_empty() {
            return parse(b"{}");
        }
        if !is_json {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                Code::UnsupportedMediaType,
                "send the body as JSON, with the header `Content-Type: application/json`",
            ));
        }
        parse(&bytes)
    }
}

fn too_large() -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        Code::PayloadTooLarge,
        format!("a body has at most {MAX_BODY} bytes"),
    )
}

fn too_slow() -> ApiError {
    ApiError::new(
        StatusCode::REQUEST_TIMEOUT,
        Code::RequestTimeout,
        format!("the body took longer than {} s", BODY_TIME.as_secs()),
    )
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<Body<T>, ApiError> {
    // A list would be taken for an object without its names.
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return Err(ApiError::invalid("body", "it is a list, not an object"));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let body = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // The root's path is ".".
        let field = if path == "." { "body" } else { &path };
        ApiError::invalid(field, error.inner().to_string())
    })?;
    json.end()
        .map_err(|error| ApiError::invalid("body", error.to_string()))?;
    Ok(Body(body))
}

/// The query.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        Query::from_request_parts(parts, state)
            .await
            .map(|Query(query)| Self(query))
            .map_err(|rejection| ApiError::invalid("query", rejection.body_text()))
    }
}

/// The one parameter of a path.
pub(super) struct Segment(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        axum::extract::Path::<String>::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Path(segment)| Self(segment))
            .map_err(|rejection| ApiError::invalid("path", rejection.body_text()))
    }
}

/// The value of a header, which two headers of one name do not have.
pub(super) fn header<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> Result<Option<&'a HeaderValue>, &'static str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err("there is more than one"),
    }
}

/// A number of milliseconds within bounds, or the default where the request names none.
pub(super) fn millis(
    field: &str,
    given: Option<u64>,
    default: std::time::Duration,
    bounds: std::ops::RangeInclusive<u64>,
) -> Result<std::time::Duration, ApiError> {
    match given {
        None => Ok(default),
        Some(number) if bounds.contains(&number) => Ok(std::time::Duration::from_millis(number)),
        Some(number) => Err(ApiError::invalid(
            field,
            format!(
                "{number} is not from {} to {}",
                bounds.start(),
                bounds.end()
            ),
        )),
    }
}
