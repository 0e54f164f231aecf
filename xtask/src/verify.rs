//! Checks that only read, and the fixes for what they find.

use anyhow::Result;

use crate::command::{Run, on_path};
use crate::tidy;

/// Format, lints, documentation, shape of the tree.
pub(crate) fn verify() -> Result<()> {
    Run::cargo(["fmt", "--all", "--check"]).go()?;
    tidy::run()?;
    let everything = ["--workspace", "--all-features"].as_slice();
    // The command of the sidecar image.
    let slim = ["--package=tenure-cli", "--no-default-features"].as_slice();
    for what in [everything, slim] {
        let flags = ["--all-targets", "--", "-D", "warnings"];
        Run::cargo([&["clippy"], what, &flags].concat()).go()?;
    }
    Run::cargo([
        "doc",
        "--workspace",
        "--no-deps",
        "--all-features",
        "--document-private-items",
    ])
    .env("RUSTDOCFLAGS", "-D warnings")
    .go()?;
    if on_path("cargo-deny") {
        Run::cargo(["deny", "check", "licenses", "bans", "sources"]).go()?;
    } else {
        eprintln!("note: cargo-deny is not installed; licences and duplicate crates not checked");
    }
    Ok(())
}

/// Rewrites what can be rewritten.
pub(crate) fn fix() -> Result<()> {
    Run::cargo(["fmt", "--all"]).go()?;
    Run::cargo([
        "clippy",
        "--workspace",
        "--all-targets",
        "--fix",
        "--allow-dirty",
    ])
    .go()
}
