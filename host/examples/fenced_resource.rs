//! Why a lock needs a fencing token: a holder that is stopped for longer than its lease wakes
//! up, does not know that another has the lock by now, and writes.
//!
//! ```text
//! cargo run --example fenced_resource -- 'postgres://user@host/lockdb'
//! ```

use std::env;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tenure::policy::LIFECYCLE;
use tenure::{
    Acquired, Database, DatabaseOptions, FencingToken, Grant, Limits, LockKey, LockStore,
    PinnedStatements, Policy, PolicyEngine, SessionRegistry,
};

/// Something that a lock guards. It remembers the greatest token that it has seen, and that
/// is all that fencing takes.
#[derive(Default)]
struct Ledger {
    greatest: Option<FencingToken>,
    lines: Vec<String>,
}

impl Ledger {
    /// Refuses a token that is lower than one before; returns that one.
    fn write(&mut self, token: FencingToken, line: &str) -> Result<(), FencingToken> {
        match self.greatest {
            Some(greatest) if token < greatest => Err(greatest),
            _ => {
                self.greatest = Some(token);
                self.lines.push(line.to_owned());
                Ok(())
            }
        }
    }
}

/// What happened, to the end.
pub struct Told {
    /// The token of the holder that is stopped, and of the next one.
    pub tokens: [FencingToken; 2],
    /// What the ledger said to the late write.
    pub late: Result<(), FencingToken>,
    /// What is in the ledger.
    pub lines: Vec<String>,
}

/// Stops a holder for longer than its lease, and lets another one write meanwhile.
pub async fn run(database_url: &str, ttl: Duration) -> Result<Told, Box<dyn Error>> {
    let database = Database::new(database_url, &DatabaseOptions::default())?;
    database.migrate().await?;
    let policy = Policy::load(&PolicyEngine::new(Limits::default())?, LIFECYCLE)?;
    let registry = SessionRegistry::new(policy, Arc::new(PinnedStatements::new(database.clone())));
    let locks = LockStore::new(database);
    let key: LockKey = "ledger".parse()?;
    let mut ledger = Ledger::default();

    let first = registry.open_session("first", ttl).await?;
    let stopped = granted(locks.try_insert(&key, &first.id, ttl).await?)?;
    ledger.write(stopped.token, "first: 1").map_err(refused)?;

    // Here the first holder is stopped: SIGSTOP, a virtual machine that moves, a long garbage
    // collection. It sends no heartbeat and its lease ends, but nobody has told it so.

    let patience = ttl * 10;
    let second = registry.open_session("second", patience).await?;
    let taken = locks.acquire(&key, &second.id, ttl, patience).await?;
    let taken = granted(taken)?;
    ledger.write(taken.token, "second: 1").map_err(refused)?;

    // It wakes up in the middle of what it was doing, and does the next thing.
    let late = ledger.write(stopped.token, "first: 2");

    ledger.write(taken.token, "second: 2").map_err(refused)?;
    let _ = registry.close_session(&second.id).await?;
    Ok(Told {
        tokens: [stopped.token, taken.token],
        late,
        lines: ledger.lines,
    })
}

fn granted(acquired: Acquired) -> Result<Grant, String> {
    match acquired {
        Acquired::Granted(grant) => Ok(grant),
        Acquired::Held(holder) => Err(format!("{} has the lock", holder.owner)),
    }
}

fn refused(greatest: FencingToken) -> String {
    format!("refused: the ledger has seen token {greatest}")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::args()
        .nth(1)
        .ok_or("usage: fenced_resource DATABASE-URL")?;
    let told = run(&url, Duration::from_secs(1)).await?;
    let [stopped, taken] = told.tokens;
    println!("the first holder has token {stopped}, is stopped, and loses the lock");
    println!("the second holder has token {taken}");
    match told.late {
        Ok(()) => println!("the late write of the first holder went through"),
        Err(greatest) => println!("the late write was {}", refused(greatest)),
    }
    println!("the ledger: {}", told.lines.join(", "));
    Ok(())
}
