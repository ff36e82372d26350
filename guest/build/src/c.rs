//! Policies in C: bindings by `wit-bindgen`, a core module by clang.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

/// Warnings are errors, size counts, and 32 KiB of stack are as many as Rust's policies have.
/// A reactor is a module without a `main`.
const FLAGS: &[&str] = &[
    "--target=wasm32-wasi",
    "-mexec-model=reactor",
    "-Oz",
    "-flto",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,--strip-all,--gc-sections,-zstack-size=32768",
];

/// Compiles the C files in `folder` against the world in `wit`, and writes `<name>.wasm`, a
/// component, into `out_dir`; the bindings are left in `out_dir/<name>-bindings`. `version`
/// goes into the component's metadata beside the name.
///
/// Needs clang, lld, and wasi-libc with the compiler's runtime for it:
/// `guest/c-lifecycle/setup` installs them. `CLANG` names another clang.
pub fn build(
    folder: &Path,
    wit: &Path,
    name: &str,
    version: &str,
    out_dir: &Path,
) -> Result<PathBuf> {
    let bindings = out_dir.join(format!("{name}-bindings"));
    let mut files = bind(wit, &bindings)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|is| is == "c") {
            files.push(path);
        }
    }
    let module = bindings.join("module.wasm");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    let status = Command::new(&clang)
        .args(FLAGS)
        .arg("-I")
        .arg(&bindings)
        .args(files)
        .arg("-o")
        .arg(&module)
        .status()
        .with_context(|| format!("failed to start {}", clang.display()))?;
    ensure!(
        status.success(),
        "failed to build {}: {status}",
        folder.display()
    );
    let component = crate::component(&fs::read(&module)?, name, version)?;
    let file = out_dir.join(name).with_extension("wasm");
    fs::write(&file, component)?;
    Ok(file)
}

/// Writes the bindings into a folder. What has to be compiled and linked of them: the
/// source, and an object that describes the world.
fn bind(wit: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(wit)?;
    let world = resolve.select_world(&[package], None)?;
    let mut files = Files::default();
    let options = wit_bindgen_c::Opts::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    fs::create_dir_all(folder)?;
    let mut sources = Vec::new();
    for (name, contents) in files.iter() {
        let path = folder.join(name);
        fs::write(&path, contents)?;
        if !name.ends_with(".h") {
            sources.push(path);
        }
    }
    Ok(sources)
}
