//! Builds the default policy, which the library embeds.

use std::env;
use std::path::PathBuf;

use guest_build::Artifact;

fn main() -> anyhow::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("..");
    for input in [
        "guest/arena",
        "guest/lifecycle",
        "guest/rules",
        "wit",
        "Cargo.lock",
        ".cargo/config.toml",
    ] {
        println!("cargo:rerun-if-changed={}", root.join(input).display());
    }
    guest_build::build(
        &root.join("guest/lifecycle"),
        &[Artifact::Library("lifecycle")],
        &env::var("CARGO_PKG_VERSION")?,
        &PathBuf::from(env::var("OUT_DIR")?),
    )
}
