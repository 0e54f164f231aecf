//! `cargo xtask image`: builds the binaries for the images like the Dockerfile. Checks that they are static, because
//! `FROM scratch` has no loader and no libraries, and that the kernel can protect their memory.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{Run, on_path};
use crate::elf::Elf;

const MUSL: &str = "x86_64-unknown-linux-musl";
const GNU: &str = "x86_64-unknown-linux-gnu";

/// The binaries: name, profile, and features, as given to the Dockerfile.
const IMAGES: [(&str, &str, &[&str]); 3] = [
    ("tenure", "dist", &[]),
    ("tenure-sidecar", "sidecar", &["--no-default-features"]),
    (
        "tenure-provisioner",
        "dist",
        &["--no-default-features", "--features=provision"],
    ),
];

/// Builds the named binaries, or all, into `target/image`, and checks them. Returns their names and files.
pub(crate) fn run(names: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let known = |name: &String| IMAGES.iter().any(|(image, ..)| image == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!("unknown image {unknown}: expected tenure, tenure-sidecar or tenure-provisioner");
    }
    let mut built = Vec::new();
    for (name, profile, features) in IMAGES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            built.push((name.to_owned(), build(name, profile, features)?));
        }
    }
    Ok(built)
}

fn build(name: &str, profile: &str, features: &[&str]) -> Result<PathBuf> {
    // The C parts of a musl build need its compiler. With glibc everything can be linked statically as well.
    let target = if on_path("musl-gcc") { MUSL } else { GNU };
    let build = ["build", "--locked", "--profile", profile];
    let what = ["--package", "tenure-cli", "--target", target];
    // The default relocation model gives a random address, so that an attacker does not know where code and data are.
    let mut flags = "-C target-feature=+crt-static".to_owned();
    if target == GNU {
        // Rust's own linker, which the glibc target uses, merges identical functions, omits code that only unwinding
        // would need, and packs the table of relocations.
        flags += " -C link-arg=-Wl,--icf=all -C link-arg=-Wl,-T,deploy/no-unwinding.ld";
        flags += " -C link-arg=-Wl,-z,pack-relative-relocs";
    }
    Run::cargo([&build, &what, features].concat())
        .env("RUSTFLAGS", &flags)
        .go()?;
    let target_dir = crate::command::target();
    let binary = target_dir.join("image").join(name);
    std::fs::create_dir_all(target_dir.join("image"))?;
    // Use another name first, because the previous binary may be running.
    let fresh = binary.with_extension("new");
    std::fs::copy(target_dir.join(target).join(profile).join("tenure"), &fresh)?;
    std::fs::rename(&fresh, &binary)?;
    let bytes = std::fs::read(&binary).with_context(|| binary.display().to_string())?;
    let elf = Elf::parse(&bytes);
    let elf = elf.with_context(|| format!("{} is not a 64-bit program", binary.display()))?;
    if elf.needs > 0 {
        bail!(
            "{} needs a loader or libraries at run time",
            binary.display()
        );
    }
    let missing = elf.missing_protection();
    if !missing.is_empty() {
        bail!("{}: {}", binary.display(), missing.join(", "));
    }
    // The environment is also empty, so that no variable names other files.
    let said = Command::new(&binary)
        .env_clear()
        .arg("--version")
        .output()?;
    if !said.status.success() {
        bail!("{} --version ended with {}", binary.display(), said.status);
    }
    // An error must be printed even if backtraces are requested, although the binary has no tables for them.
    let refused = Command::new(&binary)
        .env_clear()
        .env("RUST_BACKTRACE", "1")
        .args(["status", "--kubeconfig=/dev/null"])
        .output()?;
    if refused.status.code() != Some(1) {
        bail!("{} status ended with {}", binary.display(), refused.status);
    }
    println!(
        "{}: static and position-independent, {:.1} MB, {}",
        binary.display(),
        bytes.len() as f64 / 1e6,
        String::from_utf8_lossy(&said.stdout).trim()
    );
    Ok(binary)
}
