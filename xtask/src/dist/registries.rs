//! The packages of other registries that carry the command: a Python wheel and an npm package.

use std::fs;

use anyhow::{Result, bail};

use super::Dist;
use crate::command::{Run, root};

/// The tags of a wheel whose program runs with every C library, and of one that needs the libraries of this machine.
const ANY_LIBC: &str = "manylinux_2_17_x86_64.musllinux_1_1_x86_64";
const THIS_LIBC: &str = "linux_x86_64";

/// The version in packages/npm/package.json.
const NPM_VERSION: &str = "\"version\": \"0.0.0\"";

/// Writes `tenure-VERSION-py3-none-PLATFORM.whl`.
pub(super) fn wheel(dist: &Dist) -> Result<()> {
    let platform = if dist.is_static { ANY_LIBC } else { THIS_LIBC };
    let build = "import backend, sys; print(backend.build_wheel(sys.argv[1]))";
    // Without compiled modules in the source tree.
    Run::new("python3", ["-B", "-c", build])
        .args(&[dist.out.display().to_string()])
        .inside(&root().join("packages/python"))
        .env("TENURE_BINARY", &dist.binary)
        .env("TENURE_VERSION", &dist.version)
        .env("TENURE_PLATFORM", platform)
        .output()
        .map(drop)
}

/// Writes `tenure-VERSION.tgz`.
pub(super) fn npm(dist: &Dist) -> Result<()> {
    let sources = root().join("packages/npm");
    let stage = dist.stage.join("npm");
    fs::create_dir_all(stage.join("bin"))?;
    for file in ["index.js", "index.d.ts", "README.md"] {
        fs::copy(sources.join(file), stage.join(file))?;
    }
    fs::copy(root().join("LICENSE"), stage.join("LICENSE"))?;
    fs::copy(&dist.binary, stage.join("bin/tenure"))?;
    let manifest = fs::read_to_string(sources.join("package.json"))?;
    if !manifest.contains(NPM_VERSION) {
        bail!("packages/npm/package.json does not contain {NPM_VERSION}");
    }
    let version = format!("\"version\": \"{}\"", dist.version);
    fs::write(
        stage.join("package.json"),
        manifest.replace(NPM_VERSION, &version),
    )?;
    Run::new(
        "npm",
        ["pack", "--silent", "--offline", "--pack-destination"],
    )
    .args(&[dist.out.display().to_string()])
    .inside(&stage)
    .go()
}
