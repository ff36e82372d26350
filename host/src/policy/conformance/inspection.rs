//! What can be told of a component without running it.

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::fit::{Declared, misfits};
use crate::policy::{hex, metadata};

/// What a component is, and what it wants.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// From its metadata.
    pub name: Option<String>,
    /// From its metadata.
    pub version: Option<String>,
    /// In bytes.
    pub size: usize,
    /// The SHA-256 of the bytes, in hexadecimal.
    pub sha256: String,
    /// What it imports.
    pub imports: Vec<String>,
    /// What it exports.
    pub exports: Vec<String>,
    /// Whether it cannot run without WASI.
    pub needs_wasi: bool,
    /// What does not fit the world of policies; empty if it fits.
    pub misfits: Vec<String>,
    /// Its imports and exports as WIT.
    pub wit: String,
}

/// The bytes are no component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no WebAssembly component: {0}")]
pub struct NotAComponent(String);

impl Inspection {
    /// Of these bytes, none of which is run or compiled.
    pub fn of(component: &[u8]) -> Result<Self, NotAComponent> {
        let declared = Declared::read(component).map_err(NotAComponent)?;
        let (name, version) = metadata::read(component);
        let imports = declared.imports();
        Ok(Self {
            name,
            version,
            size: component.len(),
            sha256: hex(&Sha256::digest(component)),
            needs_wasi: imports.iter().any(|import| import.starts_with("wasi:")),
            misfits: misfits(&declared),
            wit: declared.wit().map_err(NotAComponent)?,
            exports: declared.exports(),
            imports,
        })
    }
}
