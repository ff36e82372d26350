//! The certificate of the clients' listener, and its key: two files.

use std::fs;

use anyhow::{Context, Result, bail};
use clap::ArgMatches;
use tenure::http::{Tls, TlsError};

use super::settings::{Settings, TLS_CERT, TLS_KEY};

/// The certificate and the key that the settings name, if they name any.
pub fn open(settings: &Settings) -> Result<Option<Tls>> {
    read(settings)?
        .map(|(certificates, key)| Tls::from_pem(&certificates, &key))
        .transpose()
        .map_err(|error| refused(settings, &error))
}

/// Reads the files again, as the settings name them now. What cannot be used changes nothing,
/// and is logged.
pub fn reload(tls: Option<&Tls>, matches: &ArgMatches) {
    let outcome = Settings::resolve(matches).and_then(|settings| {
        match (tls, read(&settings)?) {
            (None, None) => return Ok(()),
            (Some(tls), Some((certificates, key))) => tls
                .replace(&certificates, &key)
                .map_err(|error| refused(&settings, &error))?,
            _ => bail!("whether {TLS_CERT} is set cannot change while the server runs; restart it"),
        }
        tracing::info!("certificate_replaced");
        Ok(())
    });
    if let Err(error) = outcome {
        tracing::error!(error = format!("{error:#}"), "certificate_rejected");
    }
}

fn read(settings: &Settings) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
    let file =
        |key: &str, path: &str| fs::read(path).with_context(|| format!("cannot read {key} {path}"));
    match (settings.get(TLS_CERT), settings.get(TLS_KEY)) {
        (Some(certificate), Some(key)) => {
            Ok(Some((file(TLS_CERT, certificate)?, file(TLS_KEY, key)?)))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(settings.refuse(TLS_CERT, "it needs its key, in tls.key")),
        (None, Some(_)) => Err(settings.refuse(TLS_KEY, "it needs its certificate, in tls.cert")),
    }
}

fn refused(settings: &Settings, error: &TlsError) -> anyhow::Error {
    let key = match error {
        TlsError::Certificate(_) => TLS_CERT,
        _ => TLS_KEY,
    };
    settings.refuse(key, &error.to_string())
}
