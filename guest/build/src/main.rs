//! Builds policies of this workspace by name: `cargo run -p guest-build -- clamp` compiles
//! `guest/clamp` and writes `target/policies/clamp.wasm`, a component. A folder of C files
//! needs the feature `c`.
#![forbid(unsafe_code)]

use std::path::Path;
use std::{env, fs};

use anyhow::{Result, ensure};
use guest_build::Artifact;

fn main() -> Result<()> {
    let names: Vec<String> = env::args().skip(1).collect();
    ensure!(!names.is_empty(), "name one or more folders of guest/");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out_dir = root.join("target/policies");
    fs::create_dir_all(&out_dir)?;
    let version = env!("CARGO_PKG_VERSION");
    for name in &names {
        let folder = root.join("guest").join(name);
        #[cfg(feature = "c")]
        if !folder.join("Cargo.toml").exists() {
            guest_build::c::build(&folder, &root.join("wit"), name, version, &out_dir)?;
            println!("target/policies/{name}.wasm");
            continue;
        }
        guest_build::build(&folder, &[Artifact::Library(name)], version, &out_dir)?;
        println!("target/policies/{name}.wasm");
    }
    Ok(())
}
