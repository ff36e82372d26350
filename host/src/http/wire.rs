//! What reaches no route: requests that are not HTTP, or too much of it. The framework
//! answers them by itself, and with an empty body. Here they get the one that all errors have.
//! And connections that ask for nothing, or never come to an end of it: here they end.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

use super::error;
use super::tls::{Stream, Tls};

/// How much of clients there may be at once, and for how long.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WireLimits {
    /// The most connections. More wait in the kernel until one of these ends.
    pub connections: usize,
    /// How long a connection may be idle between two requests; and, from the first byte of
    /// one, how long it may be without an answer, slow to send the request, or slow to read
    /// what it is answered. Longer than the longest wait for a lock, 30 s, and the time that two
    /// attempts at it may take on a database that falls silent; and longer than most clients
    /// keep an idle connection (90 s is common), so that it is they who close it, between two
    /// requests.
    pub unanswered: Duration,
    /// How long a client may take to agree on TLS.
    pub greeting: Duration,
}

impl Default for WireLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            unanswered: Duration::from_secs(120),
            greeting: Duration::from_secs(10),
        }
    }
}

/// A TCP listener for `axum::serve`, on whose connections every error has its body, and which
/// holds them to [`WireLimits`].
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    limits: WireLimits,
    free: Arc<Semaphore>,
    tls: Option<Tls>,
}

impl Listener {
    /// Listens where `listener` does, with the usual limits.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self::with_limits(listener, WireLimits::default())
    }

    /// Listens where `listener` does.
    #[must_use]
    pub fn with_limits(listener: TcpListener, limits: WireLimits) -> Self {
        Self {
            listener,
            limits,
            free: Arc::new(Semaphore::new(limits.connections)),
            tls: None,
        }
    }

    /// Speaks TLS, and nothing else.
    #[must_use]
    pub fn with_tls(self, tls: Tls) -> Self {
        Self {
            tls: Some(tls),
            ..self
        }
    }

    /// The certificate that it shows, if it speaks TLS.
    #[must_use]
    pub fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }
}

impl axum::serve::Listener for Listener {
    type Io = Wire;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Wire, SocketAddr) {
        // The trait's own, which outlives what goes wrong with a single connection.
        let permit = Arc::clone(&self.free).acquire_owned().await;
        let permit = permit.expect("nobody closes the semaphore");
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        let until_answered = match self.tls {
            Some(_) => self.limits.greeting,
            None => self.limits.unanswered,
        };
        let wire = Wire {
            stream: Stream::new(stream, self.tls.as_ref()),
            instead: None,
            unanswered: self.limits.unanswered,
            asked: false,
            end: Box::pin(sleep(until_answered)),
            _permit: permit,
        };
        (wire, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    /// What is being written in the place of an answer without a body, and how much of it
    /// has been.
    instead: Option<(Vec<u8>, usize)>,
    unanswered: Duration,
    /// Whether something has been read since the last answer.
    asked: bool,
    /// When it has been without an answer for that long.
    end: Pin<Box<Sleep>>,
    /// One of so many connections.
    _permit: OwnedSemaphorePermit,
}

impl Wire {
    /// What comes of something on the socket, which has until the end.
    fn until_the_end<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if polled.is_pending() && self.end.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }

    /// Agrees on TLS first, where that has not been done.
    fn poll_greeting(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let greeting = self.stream.poll_greeting(context);
        let done = ready!(self.until_the_end(context, greeting))?;
        if done {
            self.answered();
        }
        Poll::Ready(Ok(()))
    }

    /// Something of an answer has been written.
    fn answered(&mut self) {
        self.asked = false;
        self.begin_anew();
    }

    fn begin_anew(&mut self) {
        let end = Instant::now() + self.unanswered;
        self.end.as_mut().reset(end);
    }

    /// Writes what takes the place of `given`, if anything does.
    fn poll_instead(
        &mut self,
        context: &mut Context<'_>,
        given: &[u8],
    ) -> Poll<io::Result<Option<usize>>> {
        if self.instead.is_none() {
            self.instead = with_body(given).map(|answer| (answer, 0));
        }
        let Some((answer, written)) = &mut self.instead else {
            return Poll::Ready(Ok(None));
        };
        while *written < answer.len() {
            let stream = Pin::new(&mut self.stream);
            match ready!(stream.poll_write(context, &answer[*written..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => *written += more,
            }
        }
        self.instead = None;
        Poll::Ready(Ok(Some(given.len())))
    }
}

/// The answer with a body, if this is the head of an error without one. None of ours is: a
/// body of JSON has no such line in it, since it has no line breaks, and an error of ours has
/// a body.
fn with_body(given: &[u8]) -> Option<Vec<u8>> {
    let status = given.strip_prefix(b"HTTP/1.1 ")?.first_chunk::<3>()?;
    let status = StatusCode::from_bytes(status).ok()?;
    if !status.is_client_error() {
        return None;
    }
    let head = std::str::from_utf8(given).ok()?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let line = lines.next()?;
    let headers: Vec<_> = lines.collect();
    let empty = |line: &&str| line.eq_ignore_ascii_case("content-length: 0");
    if !headers.iter().any(empty) {
        return None;
    }
    let body = error::of_wire(status);
    let mut answer = format!("{line}\r\n");
    for header in headers.iter().filter(|line| !empty(line)) {
        answer.push_str(header);
        answer.push_str("\r\n");
    }
    answer.push_str(&format!(
        "content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    Some(answer.into_bytes())
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_greeting(context))?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        // What follows the first byte does not count: it may drip.
        if buffer.filled().len() > before && !self.asked {
            self.asked = true;
            self.begin_anew();
        }
        self.until_the_end(context, read)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_greeting(context))?;
        let instead = self.poll_instead(context, bytes);
        let written = match ready!(self.until_the_end(context, instead))? {
            Some(length) => Poll::Ready(Ok(length)),
            None => {
                let written = Pin::new(&mut self.stream).poll_write(context, bytes);
                self.until_the_end(context, written)
            }
        };
        if let Poll::Ready(Ok(_)) = written {
            self.answered();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_greeting(context))?;
        let first = slices.first().map_or(&[][..], |slice| slice);
        let instead = self.poll_instead(context, first);
        let written = match ready!(self.until_the_end(context, instead))? {
            Some(length) => Poll::Ready(Ok(length)),
            None => {
                let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
                self.until_the_end(context, written)
            }
        };
        if let Poll::Ready(Ok(_)) = written {
            self.answered();
        }
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_greeting(context))?;
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.until_the_end(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(context);
        self.until_the_end(context, shut_down)
    }
}

#[cfg(test)]
mod tests {
    use super::with_body;

    #[test]
    fn only_an_error_without_a_body_gets_one() {
        let answer = with_body(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\
              connection: close\r\n\r\n",
        );
        let answer = String::from_utf8(answer.unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let length = format!("content-length: {}", body.len());
        assert_eq!(
            head.split("\r\n").collect::<Vec<_>>(),
            [
                "HTTP/1.1 431 Request Header Fields Too Large",
                "connection: close",
                "content-type: application/json",
                &length
            ]
        );
        assert!(body.starts_with('{') && body.contains("VALIDATION_FAILED"));

        for other in [
            &b""[..],
            b"HTTP/1.1 4",
            b"HTTP/1.1 204 No Content\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 20\r\n\r\n",
            b"{\"message\":\"HTTP/1.1 404 Not Found\"}",
        ] {
            assert!(with_body(other).is_none());
        }
    }
}
