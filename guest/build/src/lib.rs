//! Builds policies from build scripts: a crate becomes core modules by cargo, and each
//! module a component by `wit-component`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

#[cfg(feature = "c")]
pub mod c;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use wasm_metadata::AddMetadata;
use wit_component::ComponentEncoder;

const TARGET: &str = "wasm32-unknown-unknown";

/// Which of a crate's artifacts are policies.
#[derive(Clone, Copy, Debug)]
pub enum Artifact<'a> {
    /// The crate's own library.
    Library(&'a str),
    /// One of the crate's examples.
    Example(&'a str),
}

/// Compiles the crate in `crate_dir` and writes `<name>.wasm`, a component, into
/// `out_dir` for each of `artifacts`. `version` goes into the component's metadata beside
/// the name.
///
/// Needs the target `wasm32-unknown-unknown`; `tasks/setup` installs it.
pub fn build(
    crate_dir: &Path,
    artifacts: &[Artifact<'_>],
    version: &str,
    out_dir: &Path,
) -> Result<()> {
    // A target folder of its own: the outer cargo holds the lock of the usual one.
    let target_dir = out_dir.join("policies-target");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(crate_dir)
        .args(["build", "--quiet", "--locked", "--profile", "guest"])
        .args(["--target", TARGET])
        .arg("--target-dir")
        .arg(&target_dir);
    for artifact in artifacts {
        match artifact {
            Artifact::Library(_) => cargo.arg("--lib"),
            Artifact::Example(name) => cargo.args(["--example", name]),
        };
    }
    // What the outer cargo sets for the host's own build would override the linker
    // arguments in .cargo/config.toml, or run clippy in place of the compiler.
    for variable in [
        "CARGO_ENCODED_RUSTFLAGS",
        "RUSTFLAGS",
        "RUSTC_WRAPPER",
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_TARGET",
    ] {
        cargo.env_remove(variable);
    }
    let status = cargo.status().context("failed to start cargo")?;
    ensure!(
        status.success(),
        "failed to build the policies in {}: {status}; if the target is missing, run \
         `rustup target add {TARGET}`",
        crate_dir.display()
    );

    let built = target_dir.join(TARGET).join("guest");
    for artifact in artifacts {
        let (name, module) = match artifact {
            Artifact::Library(name) => (name, built.join(file_name(name))),
            Artifact::Example(name) => (name, built.join("examples").join(file_name(name))),
        };
        let bytes = fs::read(&module)
            .map_err(Into::into)
            .and_then(|module| component(&module, name, version))
            .with_context(|| format!("failed to make a component of {}", module.display()))?;
        fs::write(out_dir.join(file_name(name)), bytes)?;
    }
    Ok(())
}

fn file_name(name: &str) -> PathBuf {
    PathBuf::from(name).with_extension("wasm")
}

/// Makes a component of a core module that carries the description of its world, and names
/// it.
pub fn component(module: &[u8], name: &str, version: &str) -> Result<Vec<u8>> {
    let component = ComponentEncoder::default()
        .validate(true)
        .module(module)?
        .encode()?;
    let mut metadata = AddMetadata::default();
    metadata.name = wasm_metadata::AddMetadataField::Set(name.to_owned());
    metadata.version = wasm_metadata::AddMetadataField::Set(version.parse()?);
    metadata.to_wasm(&component)
}
