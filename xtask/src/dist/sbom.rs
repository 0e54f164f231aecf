//! The software bill of materials: every crate in the shipped command, as CycloneDX 1.5.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Dist;
use crate::command::{Run, root};

/// The package whose dependencies are listed.
const ROOT: &str = "tenure-cli";

/// Writes `tenure-VERSION.cdx.json`.
pub(super) fn write(dist: &Dist) -> Result<()> {
    let metadata = Run::cargo([
        "metadata",
        "--format-version=1",
        "--locked",
        "--filter-platform=x86_64-unknown-linux-gnu",
    ])
    .output()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let lock = fs::read_to_string(root().join("Cargo.lock"))?;
    let bill = bill(&metadata, &checksums(&lock)).context("cargo metadata: unexpected format")?;
    let file = dist.out.join(format!("tenure-{}.cdx.json", dist.version));
    Ok(fs::write(
        file,
        serde_json::to_string_pretty(&bill)? + "\n",
    )?)
}

/// Returns the bill for the packages that the root package links, in the order of their identifiers.
fn bill(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let edges: BTreeMap<&str, Vec<&str>> = metadata["resolve"]["nodes"]
        .as_array()?
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, linked(node))))
        .collect();
    let (root, _) = packages
        .iter()
        .find(|(_, package)| package["name"] == ROOT)?;
    let mut reached = BTreeSet::from([*root]);
    let mut next = vec![*root];
    while let Some(id) = next.pop() {
        for to in edges.get(id).into_iter().flatten() {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &reached {
        let component = component(packages.get(id)?, checksums)?;
        let to = edges.get(id).into_iter().flatten();
        let to: BTreeSet<String> = to.filter_map(|to| url(packages.get(to)?)).collect();
        dependencies.push(json!({ "ref": component["bom-ref"], "dependsOn": to }));
        if id != root {
            components.push(component);
        }
    }
    let mut whole = component(packages.get(root)?, checksums)?;
    whole["type"] = "application".into();
    Some(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": whole },
        "components": components,
        "dependencies": dependencies,
    }))
}

/// Returns the dependencies of a package that are part of the program: not those of tests and build scripts.
fn linked(node: &Value) -> Vec<&str> {
    let dependencies = node["deps"].as_array().into_iter().flatten();
    let normal = dependencies.filter(|dependency| {
        let mut kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
        kinds.any(|kind| kind["kind"].is_null())
    });
    normal
        .filter_map(|dependency| dependency["pkg"].as_str())
        .collect()
}

/// Returns the package URL, which identifies a package in databases of vulnerabilities.
fn url(package: &Value) -> Option<String> {
    let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
    Some(format!("pkg:cargo/{name}@{version}"))
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Option<Value> {
    let (name, version) = (package["name"].as_str()?, package["version"].as_str()?);
    let url = url(package)?;
    let mut component = json!({
        "type": "library", "bom-ref": url, "name": name, "version": version, "purl": url,
    });
    if let Some(licence) = package["license"].as_str() {
        // Old packages separate alternatives with a slash.
        let licence = licence.replace('/', " OR ");
        let expression = licence.split_whitespace().collect::<Vec<_>>().join(" ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    Some(component)
}

/// Returns the checksums of a Cargo.lock by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]\n").skip(1) {
        let field = |name: &str| {
            let start = format!("{name} = \"");
            let mut lines = package.lines();
            let value = lines.find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'));
            value.map(str::to_owned)
        };
        if let (Some(name), Some(version), Some(sum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), sum);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_lists_linked_packages_only() {
        let package = |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT / Apache-2.0" });
        let to = |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let metadata = json!({
            "packages": [package(ROOT), package("a"), package("b"), package("tests"), package("build")],
            "resolve": { "nodes": [
                { "id": ROOT, "deps": [to("a", Value::Null), to("tests", json!("dev")), to("build", json!("build"))] },
                { "id": "a", "deps": [to("b", Value::Null)] },
                { "id": "b", "deps": [to("a", Value::Null)] },
                { "id": "tests", "deps": [] },
                { "id": "build", "deps": [] },
            ] },
        });
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"12ab\"\n";
        let bill = bill(&metadata, &checksums(lock)).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: Vec<_> = components
            .iter()
            .map(|c| c["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(components[0]["hashes"][0]["content"], "12ab");
        assert_eq!(
            components[1]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
        assert_eq!(bill["metadata"]["component"]["name"], ROOT);
        assert_eq!(bill["dependencies"].as_array().unwrap().len(), 3);
    }
}
