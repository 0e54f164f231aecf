//! `cargo xtask release --dry-run`: everything that can be checked before a release, without publishing.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::command::{Run, on_path, root};
use crate::{dist, packages};

/// Files that name the version of the images and charts, and the lines with it.
const VERSIONED: [(&str, &str); 8] = [
    ("deploy/helm/example/Chart.yaml", "version: VERSION\n"),
    (
        "deploy/helm/tenure-provisioner/Chart.yaml",
        "version: VERSION\n",
    ),
    (
        "deploy/helm/tenure-provisioner/Chart.yaml",
        "appVersion: VERSION\n",
    ),
    ("deploy/helm/tenure-server/Chart.yaml", "version: VERSION\n"),
    (
        "deploy/helm/tenure-server/Chart.yaml",
        "appVersion: VERSION\n",
    ),
    (
        "deploy/helm/tenure-sidecar/Chart.yaml",
        "version: VERSION\n",
    ),
    (
        "deploy/helm/tenure-sidecar/Chart.yaml",
        "appVersion: VERSION\n",
    ),
    (
        "deploy/kustomize/sidecar/pods.yaml",
        "image: tenure-sidecar:VERSION\n",
    ),
];

/// Checks versions and the changelog, packs all published crates, and compares their interfaces with the last release.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args != ["--dry-run"] {
        bail!("only --dry-run is supported; it prints the order for `cargo publish`");
    }
    let version = dist::version()?;
    let crates = published()?;
    let mut problems = versions(&crates, &version);
    let changelog = fs::read_to_string(root().join("CHANGELOG.md"))?;
    problems.extend(changes(&changelog, &version));
    for (file, line) in VERSIONED {
        let line = line.replace("VERSION", &version);
        if !fs::read_to_string(root().join(file))?.contains(&line) {
            problems.push(format!("{file}: no line {:?}", line.trim_end()));
        }
    }
    let toolchain = fs::read_to_string(root().join("rust-toolchain.toml"))?;
    problems.extend(msrv(&crates, &toolchain));
    if !problems.is_empty() {
        bail!("{} problems\n  {}", problems.len(), problems.join("\n  "));
    }
    let order = order(&crates)?;
    pack(&order)?;
    interfaces(&order)?;
    println!("version {version}; publish in this order:");
    for name in order {
        println!("  cargo publish --package {name}");
    }
    Ok(())
}

/// Packs all published crates. Cargo resolves their dependencies on each other to the new packages.
pub(crate) fn check_packages() -> Result<()> {
    pack(&order(&published()?)?)
}

/// Returns the published packages of `cargo metadata`.
fn published() -> Result<Vec<Value>> {
    let metadata = Run::cargo(["metadata", "--format-version=1", "--no-deps"]).output()?;
    let mut metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let Value::Array(mut crates) = metadata["packages"].take() else {
        bail!("cargo metadata: no packages");
    };
    crates.retain(packages::is_published);
    Ok(crates)
}

fn pack(order: &[String]) -> Result<()> {
    // The workspace has compiled the same sources with the same dependencies, so cargo neither compiles the packages nor
    // asks crates.io.
    let flags = ["--offline", "--no-verify", "--allow-dirty", "--quiet"].map(str::to_owned);
    let names = order.iter().map(|name| format!("--package={name}"));
    let args: Vec<String> = flags.into_iter().chain(names).collect();
    Run::cargo(["package"]).args(&args).go()
}

/// Compares the interfaces of the libraries with those of the last tag, if there is one.
fn interfaces(order: &[String]) -> Result<()> {
    let tags = Run::new("git", ["tag", "--list", "v*", "--sort=-version:refname"]).output()?;
    let Some(tag) = tags.lines().next() else {
        println!("no tag v*: interfaces not compared");
        return Ok(());
    };
    if !on_path("cargo-semver-checks") {
        bail!("cargo-semver-checks is not installed: `cargo install --locked cargo-semver-checks`");
    }
    let names = order.iter().filter(|name| *name != "tenure-cli");
    let args: Vec<String> = names.map(|name| format!("--package={name}")).collect();
    Run::cargo(["semver-checks", "--baseline-rev", tag])
        .args(&args)
        .go()
}

/// Returns the crates, and the dependencies between them, whose version is not that of the workspace.
fn versions(crates: &[Value], version: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for package in crates {
        let name = package["name"].as_str().unwrap_or_default();
        if package["version"] != version {
            problems.push(format!("{name}: version {}", package["version"]));
        }
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let ours = crates
                .iter()
                .any(|other| other["name"] == dependency["name"]);
            let stays = dependency["kind"].as_str() != Some("dev") || dependency["req"] != "*";
            if ours && stays && dependency["req"] != format!("^{version}") {
                let (to, req) = (&dependency["name"], &dependency["req"]);
                problems.push(format!("{name}: depends on {to} {req}"));
            }
        }
    }
    problems
}

/// Returns the crates whose minimum version of Rust is not the one that all checks use.
fn msrv(crates: &[Value], toolchain: &str) -> Vec<String> {
    let tested = |version: &str| toolchain.contains(&format!("channel = \"{version}.0\"\n"));
    let untested = crates
        .iter()
        .filter(|package| !package["rust_version"].as_str().is_some_and(tested));
    untested
        .map(|package| {
            let (name, version) = (&package["name"], &package["rust_version"]);
            format!("{name}: rust-version {version} is not the version of rust-toolchain.toml")
        })
        .collect()
}

/// Returns a problem if no section of the changelog describes this version.
fn changes(changelog: &str, version: &str) -> Option<String> {
    let described = changelog.split("\n## ").skip(1).any(|section| {
        let (title, text) = section.split_once('\n').unwrap_or_default();
        let title = title.trim_matches(['[', ']']);
        let named = title == "Unreleased" || title.split([' ', ']']).next() == Some(version);
        named && text.lines().any(|line| line.starts_with("- "))
    });
    let missing = || format!("CHANGELOG.md: no changes under `Unreleased` or `{version}`");
    (!described).then(missing)
}

/// Returns the names of the crates. Each follows its dependencies, except those of tests.
fn order(crates: &[Value]) -> Result<Vec<String>> {
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let mut waiting: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in crates {
        let dependencies = package["dependencies"].as_array().into_iter().flatten();
        let needed = dependencies.filter(|dependency| dependency["kind"].as_str() != Some("dev"));
        let ours = needed
            .map(name)
            .filter(|to| crates.iter().any(|other| other["name"] == **to));
        waiting.insert(name(package), ours.collect());
    }
    let mut order: Vec<String> = Vec::new();
    while !waiting.is_empty() {
        let ready = waiting
            .iter()
            .find(|(_, needs)| needs.iter().all(|to| order.contains(to)));
        let next = ready
            .context("crates depend on each other in a cycle")?
            .0
            .clone();
        waiting.remove(&next);
        order.push(next);
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>, &str)]) -> Value {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind, req)| json!({ "name": name, "kind": kind, "req": req }));
        json!({ "name": name, "version": "0.2.0", "dependencies": dependencies.collect::<Vec<_>>() })
    }

    #[test]
    fn order_puts_dependencies_first_and_ignores_those_of_tests() {
        let a = package("a", &[("b", None, "^0.2.0"), ("serde", None, "^1")]);
        let b = package(
            "b",
            &[("c", Some("build"), "^0.2.0"), ("a", Some("dev"), "*")],
        );
        let c = package("c", &[]);
        assert_eq!(order(&[a.clone(), b.clone(), c]).unwrap(), ["c", "b", "a"]);
        let cycle = package("c", &[("a", None, "^0.2.0")]);
        order(&[a, b, cycle]).unwrap_err();
    }

    #[test]
    fn versions_of_crates_and_of_dependencies_between_them_are_compared() {
        let a = package("a", &[("b", None, "^0.1.0"), ("serde", None, "^1")]);
        let b = package("b", &[("a", Some("dev"), "*")]);
        assert_eq!(versions(&[a, b.clone()], "0.2.0").len(), 1);
        assert_eq!(versions(std::slice::from_ref(&b), "0.2.0").len(), 0);
        assert_eq!(versions(&[b], "0.3.0").len(), 1);
    }

    #[test]
    fn minimum_version_of_rust_is_the_tested_one() {
        let toolchain = "[toolchain]\nchannel = \"1.95.0\"\n";
        for (version, untested) in [("1.95", 0), ("1.94", 1), ("1.9", 1)] {
            let package = json!({ "name": "a", "rust_version": version });
            assert_eq!(msrv(&[package], toolchain).len(), untested, "{version}");
        }
        assert_eq!(msrv(&[json!({ "name": "a" })], toolchain).len(), 1);
    }

    #[test]
    fn changelog_needs_changes_of_the_version() {
        for (text, complete) in [
            ("# C\n\n## Unreleased\n\n### Added\n\n- Add a.\n", true),
            ("# C\n\n## Unreleased\n\n## 0.1.0\n\n- Add a.\n", false),
            ("# C\n\n## 0.2.0 - 2026-01-01\n\n- Add a.\n", true),
            ("# C\n\n## [0.2.0] - 2026-01-01\n\n- Add a.\n", true),
            ("# C\n", false),
        ] {
            assert_eq!(changes(text, "0.2.0").is_none(), complete, "{text:?}");
        }
    }
}
