//! The bearer token.

use std::fmt;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::error::{ApiError, Code};
use super::json;

/// The secret that every request has to show. Never printed.
#[derive(Clone)]
pub struct BearerToken(Box<[u8]>);

impl BearerToken {
    /// The shortest token, in characters. A shorter one is too easily guessed.
    pub const MIN_LEN: usize = 16;

    /// A token of visible ASCII characters; `None` where `text` has others, or too few.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = text.len() >= Self::MIN_LEN && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self(text.as_bytes().into()))
    }

    /// Takes as long for a wrong guess as for a right one; only the length shows.
    fn is(&self, guess: &[u8]) -> bool {
        self.0.ct_eq(guess).into()
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

/// Lets a request pass that shows the token, where one is required.
pub(super) async fn require_token(
    State(token): State<Option<BearerToken>>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = token else {
        return next.run(request).await;
    };
    // Whoever watches over the server need not be trusted with its locks.
    if request.uri().path().starts_with("/health/") {
        return next.run(request).await;
    }
    let shown = json::header(request.headers(), header::AUTHORIZATION.as_str())
        .unwrap_or_default()
        .and_then(|value| value.as_bytes().split_at_checked("Bearer ".len()))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "))
        .map(|(_, guess)| guess);
    if shown.is_some_and(|guess| token.is(guess)) {
        return next.run(request).await;
    }
    let mut response = ApiError::new(
        StatusCode::UNAUTHORIZED,
        Code::Unauthorized,
        "send the server's token in the header `Authorization: Bearer ...`",
    )
    .into_response();
    response
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::BearerToken;

    #[test]
    fn tokens() {
        for (text, ok) in [
            ("0123456789abcdef", true),
            ("0123456789abcde", false),
            ("0123456789 abcdef", false),
            ("0123456789abcde\u{e9}", false),
            ("", false),
        ] {
            assert_eq!(BearerToken::new(text).is_some(), ok, "{text:?}");
        }
        let token = BearerToken::new("0123456789abcdef").unwrap();
        assert!(token.is(b"0123456789abcdef"));
        assert!(!token.is(b"0123456789abcdeg"));
        assert!(!token.is(b"0123456789abcdef0"));
        assert!(!token.is(b""));
        assert_eq!(format!("{token:?}"), "BearerToken(..)");
    }
}
