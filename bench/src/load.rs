//! Closed loops: so many clients, each with one request at a time, for so long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// A client of whatever is measured.
pub trait Client: Send + 'static {
    /// One request and its answer. Any answer but the expected one is an error.
    fn beat(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub warm_up: Duration,
    pub measured: Duration,
    /// Requests a second of all clients together; as many as there can be by default.
    pub rate: Option<f64>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Answers a second while it was measured.
    pub rate: f64,
    pub p50: Duration,
    pub p99: Duration,
    /// All answers, those of the warm-up included.
    pub answers: u64,
}

const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// Runs the clients.
pub async fn run<C: Client>(clients: Vec<C>, pace: Pace) -> Result<Measured> {
    let phase = Arc::new(AtomicU8::new(WARM_UP));
    let interval = pace
        .rate
        .map(|rate| Duration::from_secs_f64(clients.len() as f64 / rate));
    let mut running = JoinSet::new();
    for client in clients {
        running.spawn(one(client, phase.clone(), interval));
    }
    sleep(pace.warm_up).await;
    let began = Instant::now();
    phase.store(MEASURED, Ordering::Relaxed);
    sleep(pace.measured).await;
    phase.store(OVER, Ordering::Relaxed);
    let took = began.elapsed();

    let mut all = histogram();
    let mut answers = 0;
    while let Some(ended) = running.join_next().await {
        let (latencies, answered) = ended??;
        all.add(latencies)?;
        answers += answered;
    }
    Ok(Measured {
        rate: all.len() as f64 / took.as_secs_f64(),
        p50: Duration::from_micros(all.value_at_quantile(0.5)),
        p99: Duration::from_micros(all.value_at_quantile(0.99)),
        answers,
    })
}

async fn one<C: Client>(
    mut client: C,
    phase: Arc<AtomicU8>,
    interval: Option<Duration>,
) -> Result<(Histogram<u64>, u64)> {
    let mut latencies = histogram();
    let mut answers = 0;
    let mut next = Instant::now() + interval.unwrap_or_default().mul_f64(fastrand::f64());
    while phase.load(Ordering::Relaxed) != OVER {
        if let Some(interval) = interval {
            sleep_until(next).await;
            next += interval;
        }
        let began = Instant::now();
        client.beat().await?;
        answers += 1;
        if phase.load(Ordering::Relaxed) == MEASURED {
            latencies.saturating_record(began.elapsed().as_micros() as u64);
        }
    }
    Ok((latencies, answers))
}

/// Microseconds up to a minute, to two digits.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 2).expect("these bounds are in order")
}
