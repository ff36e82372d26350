//! Builds the fixture policies, and lists them in `policies.rs`: a constant for each, and a
//! macro over their names.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

use guest_build::Artifact;

fn main() -> anyhow::Result<()> {
    let fixtures = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("fixtures/policies");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    for input in [
        "tests/fixtures/policies",
        "wit",
        "Cargo.lock",
        ".cargo/config.toml",
    ] {
        println!("cargo:rerun-if-changed=../{input}");
    }

    let mut names = Vec::new();
    for entry in fs::read_dir(fixtures.join("examples"))? {
        let path = entry?.path();
        if let Some(name) = path.file_stem().and_then(|name| name.to_str()) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    let artifacts: Vec<_> = names.iter().map(|name| Artifact::Example(name)).collect();
    guest_build::build(&fixtures, &artifacts, "0.0.0", &out_dir)?;

    let mut list = String::new();
    for name in &names {
        let file = out_dir.join(name).with_extension("wasm");
        writeln!(
            list,
            "pub const {}: &[u8] = include_bytes!({:?});",
            name.to_uppercase(),
            file.display().to_string()
        )?;
    }
    list.push_str("macro_rules! for_each_policy { ($each:ident) => {\n");
    for name in &names {
        writeln!(list, "$each!({name});")?;
    }
    list.push_str("} }\npub(crate) use for_each_policy;\n");
    fs::write(out_dir.join("policies.rs"), list)?;
    Ok(())
}
