//! The bearer token.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::error::{ApiError, Code};
use super::guesses::{GuessLimits, Guesses, Peer};
use super::json;

/// The secret that every request has to show. Never printed. Cloning it shares the count of
/// wrong ones.
#[derive(Clone)]
pub struct BearerToken {
    secret: Box<[u8]>,
    guesses: Arc<Mutex<Guesses>>,
}

/// What is to be said of what a request shows.
enum Verdict {
    Right,
    Wrong,
    /// It was not looked at, and will not be for so long.
    TooMany(Duration),
}

impl BearerToken {
    /// The shortest token, in characters. A shorter one is too easily guessed.
    pub const MIN_LEN: usize = 16;

    /// A token of visible ASCII characters; `None` where `text` has others, or too few. Wrong
    /// ones have the usual limits.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let fits = text.len() >= Self::MIN_LEN && text.bytes().all(|b| b.is_ascii_graphic());
        fits.then(|| Self {
            secret: text.as_bytes().into(),
            guesses: Arc::new(Mutex::new(Guesses::new(GuessLimits::default()))),
        })
    }

    /// The same, with these limits on wrong ones.
    #[must_use]
    pub fn with_limits(self, limits: GuessLimits) -> Self {
        Self {
            guesses: Arc::new(Mutex::new(Guesses::new(limits))),
            ..self
        }
    }

    /// Takes as long for a wrong guess as for a right one; only the length shows.
    fn is(&self, guess: &[u8]) -> bool {
        self.secret.ct_eq(guess).into()
    }

    /// Looks at a guess, if as many may still come from there. A connection that has shown the
    /// token is not held to that: those who work are not to suffer from who guesses beside
    /// them.
    fn judge(&self, guess: &[u8], peer: Option<&Peer>) -> Verdict {
        let known = peer.is_some_and(Peer::is_known);
        if known && self.is(guess) {
            return Verdict::Right;
        }
        let (address, now) = (peer.map(Peer::address), Instant::now());
        // Held meanwhile, so that no more come through at once. What is counted is never half
        // done.
        let mut guesses = self.guesses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wait) = guesses.wait(address, now) {
            return Verdict::TooMany(wait);
        }
        if self.is(guess) {
            if let Some(peer) = peer {
                peer.is_known_now();
            }
            return Verdict::Right;
        }
        guesses.count(address, now);
        tracing::warn!(
            address = address.map(tracing::field::display),
            "token_rejected"
        );
        Verdict::Wrong
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
    let peer = request.extensions().get::<ConnectInfo<Peer>>();
    // Who shows none guesses nothing.
    match shown.map(|guess| token.judge(guess, peer.map(|ConnectInfo(peer)| peer))) {
        Some(Verdict::Right) => next.run(request).await,
        Some(Verdict::TooMany(wait)) => ApiError::new(
            StatusCode::TOO_MANY_REQUESTS,
            Code::TooManyAttempts,
            "too many wrong tokens came from this address; wait, and check the token",
        )
        .retry_after(wait)
        .into_response(),
        Some(Verdict::Wrong) | None => unauthorized(),
    }
}

fn unauthorized() -> Response {
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
