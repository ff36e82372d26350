//! What reaches no route: requests that are not HTTP, or too much of it. The framework
//! answers them by itself, and with an empty body. Here they get the one that all errors have.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::error;

/// A TCP listener for `axum::serve`, on whose connections every error has its body.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens where `listener` does.
    #[must_use]
    pub fn new(listener: TcpListener) -> Self {
        Self(listener)
    }
}

impl axum::serve::Listener for Listener {
    type Io = Wire;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Wire, SocketAddr) {
        // The trait's own, which outlives what goes wrong with a single connection.
        let (stream, address) = axum::serve::Listener::accept(&mut self.0).await;
        let wire = Wire {
            stream,
            instead: None,
        };
        (wire, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    /// What is being written in the place of an answer without a body, and how much of it
    /// has been.
    instead: Option<(Vec<u8>, usize)>,
}

impl Wire {
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(length) = ready!(self.poll_instead(context, bytes))? {
            return Poll::Ready(Ok(length));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = slices.first().map_or(&[][..], |slice| slice);
        if let Some(length) = ready!(self.poll_instead(context, first))? {
            return Poll::Ready(Ok(length));
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
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
