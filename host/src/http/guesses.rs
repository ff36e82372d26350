//! Wrong tokens, counted by where they come from.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;

use super::wire::Listener;

/// Addresses share these, so that no number of them takes more memory. 128 KiB.
const PLACES: usize = 16 * 1024;

/// How often one address may show a wrong token.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct GuessLimits {
    /// How many may come at once.
    pub at_once: u32,
    /// How long it takes until one more may.
    pub every: Duration,
}

impl Default for GuessLimits {
    fn default() -> Self {
        Self {
            at_once: 10,
            every: Duration::from_secs(6),
        }
    }
}

/// The other side of a connection. A router that is served by
/// `into_make_service_with_connect_info::<Peer>()` tells clients apart by it; without that,
/// all of them count as one.
#[derive(Clone, Debug)]
pub struct Peer {
    address: IpAddr,
    /// Whether the right token has come on this connection.
    known: Arc<AtomicBool>,
}

impl Peer {
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }

    pub(super) fn is_known(&self) -> bool {
        self.known.load(Ordering::Relaxed)
    }

    pub(super) fn is_known_now(&self) {
        self.known.store(true, Ordering::Relaxed);
    }
}

impl Connected<IncomingStream<'_, Listener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        Self {
            address: stream.remote_addr().ip(),
            known: Arc::default(),
        }
    }
}

/// How many wrong tokens have come from where.
pub(super) struct Guesses {
    limits: GuessLimits,
    begun: Instant,
    hasher: RandomState,
    /// When nothing counts any more of what came from there, after `begun`. Each guess puts
    /// it off by `every`.
    clear: Box<[Duration]>,
}

impl Guesses {
    pub(super) fn new(limits: GuessLimits) -> Self {
        Self {
            limits,
            begun: Instant::now(),
            hasher: RandomState::new(),
            clear: vec![Duration::ZERO; PLACES].into(),
        }
    }

    /// How long the address has to wait until it may guess, if it has to.
    pub(super) fn wait(&self, from: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let clear = self.clear[self.place(from)];
        let GuessLimits { at_once, every } = self.limits;
        let full = (now - self.begun).saturating_add(every.saturating_mul(at_once));
        let wait = clear.saturating_add(every).saturating_sub(full);
        (!wait.is_zero()).then_some(wait)
    }

    /// One was wrong.
    pub(super) fn count(&mut self, from: Option<IpAddr>, now: Instant) {
        let clear = &mut self.clear[self.place(from)];
        *clear = (*clear)
            .max(now - self.begun)
            .saturating_add(self.limits.every);
    }

    fn place(&self, from: Option<IpAddr>) -> usize {
        // Whoever has one address of IPv6 has all that begin with the same 64 bits.
        let network = from.map(|address| match address.to_canonical() {
            IpAddr::V4(address) => u64::from(address.to_bits()),
            IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
        });
        self.hasher.hash_one(network) as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(6);

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn guesses() -> (Guesses, Instant) {
        let guesses = Guesses::new(GuessLimits {
            at_once: 3,
            every: EVERY,
        });
        let begun = guesses.begun;
        (guesses, begun)
    }

    #[test]
    fn so_many_come_at_once_and_then_one_every_so_often() {
        let (mut guesses, begun) = guesses();
        let from = address("192.0.2.1");
        for now in [begun, begun + 100 * EVERY] {
            for _ in 0..3 {
                assert_eq!(guesses.wait(from, now), None);
                guesses.count(from, now);
            }
            assert_eq!(guesses.wait(from, now), Some(EVERY));
            assert_eq!(guesses.wait(from, now + EVERY / 3), Some(EVERY * 2 / 3));

            let now = now + EVERY;
            assert_eq!(guesses.wait(from, now), None);
            guesses.count(from, now);
            assert_eq!(guesses.wait(from, now), Some(EVERY));
        }
    }

    #[test]
    fn one_address_does_not_count_for_another() {
        let (mut guesses, now) = guesses();
        let from = address("192.0.2.1");
        for _ in 0..3 {
            guesses.count(from, now);
        }
        assert!(guesses.wait(address("::ffff:192.0.2.1"), now).is_some());
        // They are in the same place once in a while.
        let others = (2..=255).map(|last| address(&format!("192.0.2.{last}")));
        let waits = others
            .chain([None])
            .filter(|other| guesses.wait(*other, now).is_some());
        assert!(waits.count() < 10);

        let from = address("2001:db8:1:2:3:4:5:6");
        for _ in 0..3 {
            guesses.count(from, now);
        }
        assert!(guesses.wait(address("2001:db8:1:2:7:8:9:a"), now).is_some());
        let others = (3..=255).map(|last| address(&format!("2001:db8:1:{last:x}::1")));
        assert!(
            others
                .filter(|other| guesses.wait(*other, now).is_some())
                .count()
                < 10
        );
    }
}
