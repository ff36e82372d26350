//! Builds the fixture policies, and lists them in `policies.rs`: a constant for each, and a
//! macro over their names.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use guest_build::Artifact;
use wit_component::StringEncoding;
use wit_parser::Resolve;

fn main() -> anyhow::Result<()> {
    let fixtures = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("fixtures/policies");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    for input in [
        "guest",
        "tests/fixtures/policies",
        "wit",
        "Cargo.lock",
        ".cargo/config.toml",
    ] {
        println!("cargo:rerun-if-changed=../{input}");
    }

    let mut names = files(&fixtures.join("examples"), "rs")?;
    let artifacts: Vec<_> = names.iter().map(|name| Artifact::Example(name)).collect();
    guest_build::build(&fixtures, &artifacts, "0.0.0", &out_dir)?;
    for name in files(&fixtures, "wat")? {
        let mut module = wat::parse_file(fixtures.join(&name).with_extension("wat"))?;
        describe(&mut module)?;
        let component = guest_build::component(&module, &name, "0.0.0")?;
        fs::write(out_dir.join(&name).with_extension("wasm"), component)?;
        names.push(name);
    }

    let mut list = String::new();
    for name in ["admission", "clamp"] {
        let guest = Path::new("../guest").join(name);
        guest_build::build(&guest, &[Artifact::Library(name)], "0.1.0", &out_dir)?;
    }
    for name in names
        .iter()
        .map(String::as_str)
        .chain(["admission", "clamp"])
    {
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

fn files(folder: &Path, extension: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|is| is == extension)
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// What `wit-bindgen` does for a module in Rust.
fn describe(module: &mut Vec<u8>) -> anyhow::Result<()> {
    let mut contract = Resolve::default();
    let (package, _) = contract.push_dir("../wit")?;
    let world = contract.select_world(&[package], None)?;
    wit_component::embed_component_metadata(module, &contract, world, StringEncoding::UTF8)
}
