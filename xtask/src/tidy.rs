//! Checks of the source tree: dependencies of crates and modules, metadata of packages, copied code, file sizes, links,
//! forbidden texts, tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{Run, root};
use crate::duplicates::Sources;
use crate::modules::{self, Modules};
use crate::originals;
use crate::pages::Pages;

/// The allowed dependencies between crates, as in ARCHITECTURE.md, and those of tests/ and examples/.
const ARROWS: &[(&str, &[&str])] = &[
    ("tenure-core", &[]),
    ("tenure-lock", &["tenure-core"]),
    ("tenure", &["tenure-core", "tenure-lock"]),
    ("tenure-exposition", &[]),
    ("tenure-host", &[]),
    ("tenure-quantity", &[]),
    ("tenure-kinds", &[]),
    (
        "tenure-manager",
        &[
            "tenure-core",
            "tenure-lock",
            "tenure",
            "tenure-exposition",
            "tenure-host",
        ],
    ),
    (
        "tenure-server",
        &[
            "tenure-lock",
            "tenure",
            "tenure-manager",
            "tenure-apiserver",
            "tenure-kinds",
            "tenure-quantity",
        ],
    ),
    (
        "tenure-apiserver",
        &["tenure-exposition", "tenure-host", "tenure-quantity"],
    ),
    ("tenure-csi", &[]),
    (
        "tenure-provisioner",
        &[
            "tenure",
            "tenure-csi",
            "tenure-exposition",
            "tenure-host",
            "tenure-kinds",
            "tenure-manager",
            "tenure-quantity",
        ],
    ),
    ("tenure-sim", &["tenure-core", "tenure-lock", "tenure"]),
    (
        "tenure-cli",
        &[
            "tenure-core",
            "tenure-lock",
            "tenure",
            "tenure-apiserver",
            "tenure-exposition",
            "tenure-host",
            "tenure-server",
            "tenure-provisioner",
        ],
    ),
    (
        "tenure-examples",
        &[
            "tenure-lock",
            "tenure",
            "tenure-apiserver",
            "tenure-manager",
            "tenure-server",
        ],
    ),
    (
        "tenure-tests",
        &[
            "tenure-core",
            "tenure-lock",
            "tenure",
            "tenure-apiserver",
            "tenure-csi",
            "tenure-manager",
            "tenure-provisioner",
            "tenure-server",
            "tenure-sim",
        ],
    ),
    ("xtask", &[]),
    ("tenure-mutants", &[]),
];

/// Maximum number of crates that the library may add to those of kube's client.
const CRATE_BUDGET: usize = 15;

/// Longer files need a reason in their module doc, with the words "one thing".
const LONG_FILE: usize = 900;

/// Texts that must not be in the repository.
const LEFT_OVERS: &[&str] = &["FIXME", "XXX", "todo!(", "unimplemented!(", "dbg!("];

/// Runs all checks and reports every problem.
pub(crate) fn run() -> Result<()> {
    let mut problems = packages()?;
    let added = added_to_kube()?;
    if added.len() > CRATE_BUDGET {
        let added: Vec<&str> = added.iter().map(String::as_str).collect();
        problems.push(format!(
            "tenure adds {} crates to kube's client, {CRATE_BUDGET} are allowed: {}",
            added.len(),
            added.join(", ")
        ));
    }
    let files = Run::new("git", ["ls-files"])
        .output()
        .context("tidy needs a git checkout")?;
    let mut seen = 0;
    let mut modules = Modules::default();
    let mut sources = Sources::default();
    let mut pages = Pages::default();
    for file in files.lines() {
        let path = root().join(file);
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        seen += 1;
        if file.ends_with(".rs") {
            check_source(file, &text, &mut problems);
            if let Some(below) = file.strip_prefix(modules::FOLDER) {
                modules.add(below, &text);
            }
            check_has_tests(file, &text, &mut problems);
            sources.add(file, &text);
        }
        if file.ends_with(".md") {
            pages.add(file, text.clone());
        }
        if file == originals::PAGE {
            originals::check(&root(), &text, &mut problems);
        }
    }
    modules.check(&mut problems);
    sources.check(&mut problems);
    pages.check(&root(), &mut problems);
    if !problems.is_empty() {
        bail!("{} problems\n  {}", problems.len(), problems.join("\n  "));
    }
    eprintln!(
        "tidy: {seen} files, {} crates, {} added to kube's client by the library, no problem",
        ARROWS.len(),
        added.len()
    );
    Ok(())
}

/// Returns the crates that the library adds to a program with kube's client, including itself.
fn added_to_kube() -> Result<BTreeSet<String>> {
    let tree = Run::cargo([
        "tree",
        "--package=tenure",
        "--edges=normal",
        "--no-dedupe",
        "--prefix=depth",
        "--format= {p}",
    ])
    .output()?;
    let (mut all, mut of_kube) = (BTreeSet::new(), BTreeSet::new());
    // Depth of the line of kube or k8s-openapi. The deeper lines that follow are its dependencies.
    let mut inside = None;
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        let depth: usize = depth.parse().context("cargo tree: depth")?;
        if inside.is_some_and(|start| depth <= start) {
            inside = None;
        }
        if inside.is_none() && matches!(name, "kube" | "k8s-openapi") {
            inside = Some(depth);
        }
        if inside.is_some() {
            of_kube.insert(name.to_owned());
        }
        all.insert(name.to_owned());
    }
    Ok(&all - &of_kube)
}

/// Returns the forbidden dependencies between crates, and what is wrong with the metadata of the packages.
fn packages() -> Result<Vec<String>> {
    let metadata = Run::cargo(["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata: packages")?;
    let ours: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
    let allowed: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let mut problems = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some(allowed) = allowed.get(name) else {
            problems.push(format!(
                "{name}: a new crate needs an entry in ARROWS of xtask/src/tidy.rs"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = dependency["name"].as_str().unwrap_or_default();
            // Tests may depend on anything, because they are not shipped.
            let ships = dependency["kind"].as_str() != Some("dev");
            if ships && ours.contains(to) && !allowed.contains(&to) {
                problems.push(format!(
                    "{name} -> {to}: ARCHITECTURE.md does not allow this dependency"
                ));
            }
        }
    }
    crate::packages::check(&root(), packages, &mut problems);
    Ok(problems)
}

fn check_source(file: &str, text: &str, problems: &mut Vec<String>) {
    let lines = text.lines().count();
    let doc: String = text
        .lines()
        .take_while(|line| line.starts_with("//!"))
        .collect();
    if lines > LONG_FILE && !doc.contains("one thing") {
        problems.push(format!(
            "{file}: {lines} lines; split it, or state in its module doc why it is one thing"
        ));
    }
    if doc.is_empty() && !text.is_empty() {
        problems.push(format!("{file}: no module doc"));
    }
    if file == "xtask/src/tidy.rs" {
        return;
    }
    for (number, line) in text.lines().enumerate() {
        for left_over in LEFT_OVERS {
            if line.contains(left_over) {
                problems.push(format!("{file}:{}: {left_over}", number + 1));
            }
        }
        if line.trim() == "#[ignore]" {
            problems.push(format!("{file}:{}: #[ignore] without a reason", number + 1));
        }
    }
}

/// Checks that every file among the tests contains a test. Shared code is in `tests/src` or in a folder.
fn check_has_tests(file: &str, text: &str, problems: &mut Vec<String>) {
    let place = Path::new(file).parent().unwrap_or(Path::new(""));
    let is_test = |line: &str| {
        let line = line.trim_start();
        line.starts_with("#[test]") || line.starts_with("#[tokio::test")
    };
    if place.ends_with("tests")
        && !place.iter().any(|part| part == "src")
        && !text.lines().any(is_test)
    {
        problems.push(format!(
            "{file}: no test; move what tests share to tests/src, or to a folder"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_a_test_is_reported_among_tests_only() {
        let found = |file: &str, text: &str| {
            let mut problems = Vec::new();
            check_has_tests(file, text, &mut problems);
            problems.len()
        };
        assert_eq!(found("tests/tests/shared.rs", "pub fn body() {}\n"), 1);
        assert_eq!(found("tests/tests/a.rs", "#[test]\nfn works() {}\n"), 0);
        assert_eq!(found("crates/a/tests/a.rs", "#[tokio::test]\n"), 0);
        for shared in [
            "tests/src/a.rs",
            "crates/a/tests/support/mod.rs",
            "crates/a/src/tests/b.rs",
        ] {
            assert_eq!(found(shared, ""), 0, "{shared}");
        }
    }
}
