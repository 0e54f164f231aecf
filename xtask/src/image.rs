//! `cargo xtask image`: builds the binaries for the images like the Dockerfile, and checks that they need nothing at
//! run time, because `FROM scratch` has no loader and no libraries.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::{Run, on_path};

const MUSL: &str = "x86_64-unknown-linux-musl";
const GNU: &str = "x86_64-unknown-linux-gnu";

/// Program headers and dynamic entries that mean that another file is needed.
const INTERPRETER: u32 = 3;
const DYNAMIC: u32 = 2;
const NEEDED: u64 = 1;

/// The binaries: name, and the arguments of cargo in the Dockerfile.
const IMAGES: [(&str, &[&str]); 3] = [
    ("tenure", &[]),
    ("tenure-sidecar", &["--no-default-features"]),
    (
        "tenure-provisioner",
        &["--no-default-features", "--features=provision"],
    ),
];

const PROFILE: &str = "dist";

/// Builds the named binaries, or all, into `target/image`, and checks them.
pub(crate) fn run(names: &[String]) -> Result<()> {
    let known = |name: &String| IMAGES.iter().any(|(image, ..)| image == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!("there is no image {unknown}: say tenure, tenure-sidecar or tenure-provisioner");
    }
    for (name, features) in IMAGES {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            build(name, features)?;
        }
    }
    Ok(())
}

fn build(name: &str, features: &[&str]) -> Result<()> {
    // The C parts of a musl build need its compiler. With glibc everything can be linked statically as well.
    let target = if on_path("musl-gcc") { MUSL } else { GNU };
    let build = ["build", "--locked", "--profile", PROFILE];
    let what = ["--package", "tenure-cli", "--target", target];
    // At a fixed address, like Go's programs. This avoids a relocation table of half a megabyte that is processed at
    // each start, and the private memory pages that result from it.
    let mut flags = "-C target-feature=+crt-static -C relocation-model=static".to_owned();
    if target == GNU {
        // Rust's own linker, which the glibc target uses, merges identical functions, and omits code that only
        // unwinding would need.
        flags += " -C link-arg=-Wl,--icf=all -C link-arg=-Wl,-T,deploy/no-unwinding.ld";
    }
    Run::cargo([&build, &what, features].concat())
        .env("RUSTFLAGS", &flags)
        .go()?;
    let target_dir = crate::command::target();
    let binary = target_dir.join("image").join(name);
    std::fs::create_dir_all(target_dir.join("image"))?;
    // Use another name first, because the previous binary may be running.
    let fresh = binary.with_extension("new");
    std::fs::copy(target_dir.join(target).join(PROFILE).join("tenure"), &fresh)?;
    std::fs::rename(&fresh, &binary)?;
    let bytes = std::fs::read(&binary).with_context(|| binary.display().to_string())?;
    let needs = needs(&bytes).with_context(|| format!("{} is no program", binary.display()))?;
    if needs > 0 {
        bail!(
            "{} needs a loader or libraries at run time",
            binary.display()
        );
    }
    // The environment is empty too, so it cannot lead to other files.
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
        "{}: static, {:.1} MB, {}",
        binary.display(),
        bytes.len() as f64 / 1e6,
        String::from_utf8_lossy(&said.stdout).trim()
    );
    Ok(())
}

/// Returns how many loaders and libraries a 64-bit ELF program names; `None` if it is not one.
fn needs(elf: &[u8]) -> Option<usize> {
    let half = |at: usize| Some(u16::from_le_bytes(elf.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(elf.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(elf.get(at..at + 8)?.try_into().ok()?));
    let place = |at: usize| usize::try_from(long(at)?).ok();
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count) = (place(0x20)?, usize::from(half(0x36)?), half(0x38)?);
    let mut found = 0;
    for n in 0..usize::from(count) {
        let header = table + n * size;
        match word(header)? {
            INTERPRETER => found += 1,
            DYNAMIC => {
                let (start, length) = (place(header + 0x08)?, place(header + 0x20)?);
                let entries = (start..start + length).step_by(16);
                for entry in entries {
                    found += usize::from(long(entry)? == NEEDED);
                }
            }
            _ => {}
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::needs;

    #[test]
    fn a_program_with_a_loader_is_told_from_text() {
        // Tests are linked in the ordinary way: with at least a loader and libc.
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(needs(&own).unwrap() >= 2);
        assert_eq!(needs(b"#!/bin/sh\n"), None);
        assert_eq!(needs(&own[..100]), None, "cut off");
    }
}
