//! The database that a subcommand works on: a given one, or the private one.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use tenure::postgres::private::{DATABASE, MAX_CONNECTIONS, PrivateCluster};
use tenure::postgres::{MigrationError, TrustedAuthorities};
use tenure::{Database, DatabaseOptions};

use super::settings::{
    DATA_DIR, DATABASE_CA, DATABASE_CONNECTIONS, DATABASE_URL, Settings, default_data_dir,
};

pub struct Store {
    pub database: Database,
    /// The private PostgreSQL, if it is one.
    pub cluster: Option<PrivateCluster>,
}

/// The authorities in the file that the settings name.
fn authorities(settings: &Settings) -> Result<Option<TrustedAuthorities>> {
    let Some(path) = settings.get(DATABASE_CA) else {
        return Ok(None);
    };
    if settings.get(DATABASE_URL).is_none() {
        let why = "the private PostgreSQL has no TLS; name another one with database-url";
        return Err(settings.refuse(DATABASE_CA, why));
    }
    let pem = fs::read(path).with_context(|| format!("cannot read {DATABASE_CA} {path}"))?;
    TrustedAuthorities::from_pem(&pem)
        .map(Some)
        .map_err(|error| settings.refuse(DATABASE_CA, &error.to_string()))
}

/// A password that should have been escaped, or quoted, can pass for an option's name, which
/// the error would then repeat.
fn unreadable(settings: &Settings, error: &str) -> anyhow::Error {
    let error = match error.split_once("unknown option") {
        Some((before, _)) => format!("{before}unknown option"),
        None if error.contains("sslmode`") => format!(
            "{error}: it is disable, prefer or require, and what is encrypted is always verified"
        ),
        None => error.to_owned(),
    };
    settings.refuse(
        DATABASE_URL,
        &format!("{error}; write it as postgres://user@host/name"),
    )
}

impl Store {
    /// Finds the database or starts it, and brings its schema up to date; returns what was
    /// applied as well.
    pub async fn open(settings: &Settings) -> Result<(Self, Vec<String>)> {
        let mut options = DatabaseOptions::default();
        options.connections = settings.parse(DATABASE_CONNECTIONS)?;
        options.authorities = authorities(settings)?;
        let store = match settings.get(DATABASE_URL) {
            Some(url) => Self {
                database: Database::new(url, &options)
                    .map_err(|error| unreadable(settings, &error.to_string()))?,
                cluster: None,
            },
            None => {
                let data_dir = match settings.get(DATA_DIR) {
                    Some(folder) => PathBuf::from(folder),
                    None => default_data_dir()?,
                };
                if options.connections > MAX_CONNECTIONS {
                    let why = format!("the private PostgreSQL takes up to {MAX_CONNECTIONS}");
                    return Err(settings.refuse(DATABASE_CONNECTIONS, &why));
                }
                let cluster = PrivateCluster::start(&data_dir).await?;
                Self {
                    database: Database::new(&cluster.url(DATABASE), &options)?,
                    cluster: Some(cluster),
                }
            }
        };
        match store.prepare().await {
            Ok(applied) => Ok((store, applied)),
            Err(error) => {
                // The error counts; a failure to stop would hide it.
                let _ = store.close().await;
                Err(error)
            }
        }
    }

    async fn prepare(&self) -> Result<Vec<String>> {
        match self.database.migrate().await {
            Err(error @ MigrationError::Unreachable(_)) => Err(error.into()),
            migrated => migrated.context("cannot bring the schema up to date"),
        }
    }

    /// For people.
    pub fn describe(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("a private PostgreSQL in {}", cluster.data_dir().display()),
            None => "the PostgreSQL of database-url".to_owned(),
        }
    }

    /// Stops the private PostgreSQL, if it is one.
    pub async fn close(self) -> Result<()> {
        match self.cluster {
            Some(cluster) => Ok(cluster.stop().await?),
            None => Ok(()),
        }
    }
}
