//! `tenure migrate`

use anyhow::Result;
use clap::Command;

use super::log;
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
    if applied.is_empty() {
        println!("the schema is up to date");
    }
    for migration in applied {
        println!("applied {migration}");
    }
    store.close().await
}
