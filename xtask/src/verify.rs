//! Checks that only read, and the fixes for their findings.

use anyhow::Result;

use crate::command::Run;
use crate::{book, release, setup, tidy};

/// Checks format, lints, documentation, the book, the packages of all published crates and the source tree.
pub(crate) fn verify() -> Result<()> {
    Run::cargo(["fmt", "--all", "--check"]).go()?;
    tidy::run()?;
    let everything = ["--workspace", "--all-features"].as_slice();
    // Cargo flags that build the command of the sidecar image.
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
    book::check()?;
    release::check_packages()?;
    dependencies()
}

/// Checks licences, sources and known vulnerabilities of the dependencies.
fn dependencies() -> Result<()> {
    let deny = setup::cargo_deny()?;
    // Shows only errors. Warnings are about crates with two versions in the tree, which are allowed.
    let quiet = ["--log-level", "error"];
    let deny = |args: &[&str]| Run::new(&deny, quiet.iter().chain(args));
    deny(&["check", "licenses", "bans", "sources"]).go()?;
    if deny(&["fetch", "db"]).go().is_err() {
        eprintln!("note: advisories not checked: the advisory database is not reachable");
        return Ok(());
    }
    deny(&["--offline", "check", "advisories"]).go()
}

/// Applies all automatic fixes.
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
