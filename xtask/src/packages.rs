//! Checks what crates.io and docs.rs show of a published crate, and that no crate is published by accident.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// The categories of crates.io that the crates use. crates.io ignores any other text.
const CATEGORIES: &[&str] = &[
    "algorithms",
    "api-bindings",
    "asynchronous",
    "command-line-utilities",
    "concurrency",
    "data-structures",
    "development-tools::profiling",
    "development-tools::testing",
    "filesystem",
    "network-programming",
    "parser-implementations",
    "value-formatting",
    "web-programming",
];

/// Limits of crates.io.
const MOST_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;

/// The crate that cannot be compiled without a feature for a version of Kubernetes.
const VERSIONED: &str = "k8s-openapi";
const VERSION: &str = "latest";

/// Reports the problems of all packages of `cargo metadata`, whose workspace is in `root`.
pub(crate) fn check(root: &Path, packages: &[Value], problems: &mut Vec<String>) {
    let unpublished: Vec<&str> = packages
        .iter()
        .filter(|package| !is_published(package))
        .filter_map(|package| package["name"].as_str())
        .collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let mut report = |problem: String| problems.push(format!("{name}: {problem}"));
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let in_crates = manifest.starts_with(root.join("crates"));
        if !is_published(package) {
            continue;
        }
        if !in_crates {
            report("is not in crates/, so it needs `publish = false`".to_owned());
            continue;
        }
        let readme = manifest.with_file_name("README.md");
        let readme = fs::read_to_string(readme).unwrap_or_default();
        for problem in fields(package, &readme)
            .into_iter()
            .chain(dependencies(package, &unpublished))
        {
            report(problem);
        }
    }
}

/// Returns whether `cargo publish` accepts the package.
pub(crate) fn is_published(package: &Value) -> bool {
    package["publish"].is_null()
}

fn texts(value: &Value) -> Vec<&str> {
    let items = value.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).collect()
}

/// Returns what is wrong with the fields of a published package, given the text of its README.
fn fields(package: &Value, readme: &str) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    let mut problems = Vec::new();
    for field in ["description", "license", "rust_version"] {
        if text(field).is_empty() {
            problems.push(format!("no {field}"));
        }
    }
    if text("documentation") != format!("https://docs.rs/{name}") {
        problems.push(format!("documentation must be https://docs.rs/{name}"));
    }
    if text("readme") != "README.md" || !readme.starts_with(&format!("# {name}\n\n")) {
        problems.push(format!("needs a README.md with the title `# {name}`"));
    }
    let keywords = texts(&package["keywords"]);
    if keywords.is_empty() || keywords.len() > MOST_KEYWORDS {
        problems.push(format!("needs 1 to {MOST_KEYWORDS} keywords"));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_-+".contains(c);
    for keyword in keywords {
        if keyword.len() > LONGEST_KEYWORD || !keyword.chars().all(allowed) {
            problems.push(format!("crates.io rejects the keyword {keyword:?}"));
        }
    }
    let categories = texts(&package["categories"]);
    if categories.is_empty() {
        problems.push("no categories".to_owned());
    }
    for category in categories {
        if !CATEGORIES.contains(&category) {
            problems.push(format!(
                "{category:?} is not in CATEGORIES of xtask/src/packages.rs"
            ));
        }
    }
    let docs = &package["metadata"]["docs"]["rs"];
    if !docs.is_object() {
        problems.push("no [package.metadata.docs.rs]".to_owned());
    }
    if let Some(problem) = docs_version(package, docs) {
        problems.push(problem);
    }
    problems
}

/// Returns a problem if docs.rs would compile the crate without a version of Kubernetes.
fn docs_version(package: &Value, docs: &Value) -> Option<String> {
    let mut dependencies = package["dependencies"].as_array().into_iter().flatten();
    let versioned = dependencies.find(|dependency| {
        dependency["name"] == VERSIONED && dependency["kind"].as_str() != Some("dev")
    })?;
    let feature = format!("{VERSIONED}/{VERSION}");
    let chosen = texts(&versioned["features"]).contains(&VERSION);
    let for_docs = texts(&docs["features"]).contains(&feature.as_str());
    (!chosen && !for_docs)
        .then(|| format!("the features of [package.metadata.docs.rs] lack {feature:?}"))
}

/// Returns the dependencies that do not exist on crates.io. `cargo publish` removes a development dependency only if it
/// has no version.
fn dependencies(package: &Value, unpublished: &[&str]) -> Vec<String> {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies
        .filter_map(|dependency| {
            let to = dependency["name"].as_str()?;
            let stays = dependency["kind"].as_str() != Some("dev") || dependency["req"] != "*";
            (unpublished.contains(&to) && stays).then(|| format!("depends on unpublished {to}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const README: &str = "# a\n\nText.\n";

    fn package() -> Value {
        json!({
            "name": "a", "description": "d", "license": "Apache-2.0", "rust_version": "1.95",
            "documentation": "https://docs.rs/a", "readme": "README.md",
            "keywords": ["kubernetes"], "categories": ["concurrency"], "publish": null,
            "metadata": { "docs": { "rs": { "all-features": true } } }, "dependencies": [],
        })
    }

    #[test]
    fn complete_package_has_no_problem_and_every_missing_field_is_one() {
        assert_eq!(fields(&package(), README), Vec::<String>::new());
        for field in [
            "description",
            "license",
            "rust_version",
            "documentation",
            "readme",
            "keywords",
            "categories",
            "metadata",
        ] {
            let mut package = package();
            package[field] = Value::Null;
            assert_eq!(fields(&package, README).len(), 1, "{field}");
        }
        for readme in ["", "# b\n\nText.\n", "# ab\n\nText.\n"] {
            assert_eq!(fields(&package(), readme).len(), 1, "{readme:?}");
        }
    }

    #[test]
    fn keywords_and_categories_that_crates_io_does_not_accept_are_reported() {
        let cases = [
            ("keywords", json!(["a", "b", "c", "d", "e", "f"])),
            ("keywords", json!(["two words"])),
            ("keywords", json!(["a-very-long-keyword-indeed"])),
            ("categories", json!(["kubernetes"])),
        ];
        for (field, value) in cases {
            let mut package = package();
            package[field] = value;
            assert_eq!(fields(&package, README).len(), 1, "{package}");
        }
    }

    #[test]
    fn documentation_selects_a_version_of_kubernetes() {
        let dependency = |kind: Value, features: Value| {
            let mut package = package();
            package["dependencies"] =
                json!([{ "name": "k8s-openapi", "kind": kind, "features": features }]);
            package
        };
        let mut lacks = dependency(Value::Null, json!([]));
        assert_eq!(fields(&lacks, README).len(), 1);
        lacks["metadata"]["docs"]["rs"]["features"] = json!(["k8s-openapi/latest"]);
        for package in [
            lacks,
            dependency(Value::Null, json!(["latest"])),
            dependency(json!("dev"), json!([])),
        ] {
            assert_eq!(fields(&package, README), Vec::<String>::new());
        }
    }

    #[test]
    fn published_crate_depends_only_on_published_crates() {
        for (kind, req, count) in [
            (Value::Null, "^0.1.0", 1),
            (json!("build"), "^0.1.0", 1),
            (json!("dev"), "^0.1.0", 1),
            (json!("dev"), "*", 0),
        ] {
            let mut package = package();
            package["dependencies"] = json!([
                { "name": "tests", "kind": kind, "req": req },
                { "name": "serde", "kind": null, "req": "^1" },
            ]);
            assert_eq!(dependencies(&package, &["tests"]).len(), count, "{req}");
        }
    }

    #[test]
    fn package_outside_of_crates_must_not_be_published() {
        let mut package = package();
        package["manifest_path"] = "/w/tests/Cargo.toml".into();
        let count = |package: &Value| {
            let mut problems = Vec::new();
            check(
                Path::new("/w"),
                std::slice::from_ref(package),
                &mut problems,
            );
            problems.len()
        };
        assert_eq!(count(&package), 1);
        package["publish"] = json!([]);
        assert_eq!(count(&package), 0);
    }
}
