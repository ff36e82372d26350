//! `tenure config`

use anyhow::Result;
use clap::Command;

use super::print;
use super::settings::{Settings, arguments};

pub fn command() -> Command {
    Command::new("config")
        .about("Show the settings in force, and where each comes from")
        .after_help(
            "Examples:\n  \
             tenure config\n  \
             tenure config --config tenure.toml --listen 127.0.0.1:9000\n\n\
             A file holds the same keys:\n  \
             listen = \"127.0.0.1:9000\"\n  \
             lock.session.ttl = \"20s\"",
        )
        .args(arguments())
}

pub fn run(settings: &Settings) -> Result<()> {
    let rows: Vec<_> = settings.shown().collect();
    let width = |column: fn(&(&str, String, String)) -> usize| {
        rows.iter().map(column).max().unwrap_or_default()
    };
    let (keys, values) = (width(|row| row.0.len()), width(|row| row.1.len()));
    let mut table = String::new();
    for (key, value, origin) in &rows {
        let line = format!("{key:keys$}  {value:values$}  {origin}");
        table.push_str(line.trim_end());
        table.push('\n');
    }
    print(&table)
}
