//! `tenure migrate`

use anyhow::Result;
use clap::Command;

use super::log;
use super::print;
use super::settings::{Settings, arguments};
use super::store::Store;

pub fn command() -> Command {
    Command::new("migrate")
        .about("Bring the database's schema up to date, and end")
        .long_about(
            "Bring the database's schema up to date, and end. `tenure serve` does it too; this is \
             for those who do it beforehand, or as another user of the database. Running it \
             twice, or from two machines at once, is safe.",
        )
        .after_help(
            "Examples:\n  \
             tenure migrate --database-url postgres://tenure@db/lockdb\n  \
             TENURE_DATABASE_URL=postgres://tenure@db/lockdb tenure migrate",
        )
        .args(arguments())
}

#[tokio::main]
pub async fn run(settings: &Settings) -> Result<()> {
    log::start(settings)?;
    let (store, applied) = Store::open(settings).await?;
    // Whoever reads may be gone; the private PostgreSQL has to be stopped all the same.
    let printed = if applied.is_empty() {
        print("the schema is up to date\n")
    } else {
        let lines = applied.iter().map(|name| format!("applied {name}\n"));
        print(&lines.collect::<String>())
    };
    store.close().await?;
    printed
}
