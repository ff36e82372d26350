//! WASI 0.2 for policies whose toolchain imports it whether or not they use it: a context
//! that denies everything.
//!
//! There are no files, no sockets, no names to look up, no environment, no arguments, and
//! standard input is empty. Standard output and standard error go to the host's log.
//!
//! A verdict may depend on the caller's arguments, the policy's settings and what the
//! database answered, and on nothing else: only then do two hosts agree, and does a check
//! before a policy is put in charge say anything about it afterwards. So there is no time
//! and no chance here either. The wall clock stands at the beginning of 1970, so that nobody
//! takes it for the time, which is the database's to tell. The monotonic clock counts how
//! often it was looked at, in nanoseconds, so that it does rise. Random numbers are the same
//! in every call. Policies have no use for secret ones, since they keep nothing; and one
//! whose hash tables a client can fill with collisions has its processor time limited like
//! any other.
//!
//! A sleep is real and holds the call up, within its deadline.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};
use wasmtime_wasi::{
    Deterministic, HostMonotonicClock, HostWallClock, ResourceTable, WasiCtx, WasiCtxView,
};

use super::log::{CallLog, Level, MAX_LINE};

/// Handles of streams, pollables and the like that a call may hold at once.
pub(super) const MAX_HANDLES: usize = 256;

/// Random bytes that a policy gets at once. WASI's own bound is 64 MiB.
const MAX_RANDOM: u64 = 4096;

/// The context of one call.
pub(super) struct Wasi {
    ctx: WasiCtx,
    table: ResourceTable,
}

impl Wasi {
    pub(super) fn new(log: &Arc<CallLog>) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_HANDLES);
        // The same bytes for each of the three sources of randomness.
        let ctx = WasiCtx::builder()
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .wall_clock(StoppedClock)
            .monotonic_clock(Looks(AtomicU64::new(0)))
            .secure_random(not_random())
            .insecure_random(not_random())
            .insecure_random_seed(0)
            .max_random_size(MAX_RANDOM)
            .stdout(Lines::new(log.clone(), Level::Info, "stdout"))
            .stderr(Lines::new(log.clone(), Level::Warn, "stderr"))
            .build();
        Self { ctx, table }
    }

    pub(super) fn view(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.ctx,
            table: &mut self.table,
        }
    }
}

/// Bytes 0 to 255, over and over: evenly spread, and plainly not random.
fn not_random() -> Deterministic {
    Deterministic::new((0..=u8::MAX).collect())
}

struct StoppedClock;

impl HostWallClock for StoppedClock {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

struct Looks(AtomicU64);

impl HostMonotonicClock for Looks {
    fn resolution(&self) -> u64 {
        1
    }

    fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A stream whose lines go to the log. All handles of one stream share it; what has no line
/// break at its end is a line when the call ends.
#[derive(Clone)]
struct Lines(Arc<Mutex<Line>>);

struct Line {
    log: Arc<CallLog>,
    level: Level,
    stream: &'static str,
    /// The line so far. It holds no more than is logged of it.
    so_far: Vec<u8>,
}

impl Lines {
    fn new(log: Arc<CallLog>, level: Level, stream: &'static str) -> Self {
        Self(Arc::new(Mutex::new(Line {
            log,
            level,
            stream,
            so_far: Vec::new(),
        })))
    }

    fn add(&self, bytes: &[u8]) {
        let mut line = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for part in bytes.split_inclusive(|&byte| byte == b'\n') {
            let text = part.strip_suffix(b"\n");
            line.add(text.unwrap_or(part));
            if text.is_some() {
                line.end();
            }
        }
    }
}

impl Line {
    fn add(&mut self, bytes: &[u8]) {
        let room = MAX_LINE.saturating_sub(self.so_far.len());
        self.so_far
            .extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn end(&mut self) {
        let text = String::from_utf8_lossy(&self.so_far);
        self.log.line(self.level, self.stream, &text);
        self.so_far.clear();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.so_far.is_empty() {
            self.end();
        }
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }

    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Lines {
    async fn ready(&mut self) {}
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Lines {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.add(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 * 1024)
    }
}

impl AsyncWrite for Lines {
    fn poll_write(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.add(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
