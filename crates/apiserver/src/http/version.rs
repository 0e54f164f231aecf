//! `/version` and the health paths.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::query::Query;
use super::{Body, respond};
use crate::store::Store;

/// The Kubernetes version this server behaves like.
pub(super) const GIT_VERSION: &str = "v1.37.0+tenure";

/// The version document; clients want every member as text.
pub(super) fn document() -> Value {
    json!({
        "major": "1",
        "minor": "37",
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    })
}

/// Answers `/healthz`, `/livez`, `/readyz` and single checks below them.
pub(super) fn health(path: &str, query: &Query<'_>, store: &dyn Store) -> Option<Response<Body>> {
    let mut segments = path.trim_matches('/').splitn(2, '/');
    let name = segments
        .next()
        .filter(|name| matches!(*name, "healthz" | "livez" | "readyz"))?;
    let failure = store.failure();
    // A server that takes no writes is alive: restarting it would not free its disk.
    let writable = name == "livez" || failure.is_none();
    let checks = [("ping", true), ("store", writable)];
    let only = segments.next().filter(|only| !only.is_empty());
    if only.is_some_and(|only| checks.iter().all(|(check, _)| *check != only)) {
        return Some(respond::text(StatusCode::NOT_FOUND, "404 page not found\n"));
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut report = String::new();
    let mut good = true;
    for (check, passed) in checks {
        if only.is_some_and(|only| only != check) {
            continue;
        }
        if excluded.contains(&check) {
            report.push_str(&format!("[+]{check} excluded: ok\n"));
        } else if passed {
            report.push_str(&format!("[+]{check} ok\n"));
        } else {
            good = false;
            let why = failure.as_deref().unwrap_or("not ready");
            report.push_str(&format!("[-]{check} failed: {why}\n"));
        }
    }
    Some(if !good {
        report.push_str(&format!("{name} check failed\n"));
        respond::text(StatusCode::INTERNAL_SERVER_ERROR, report)
    } else if query.get("verbose").is_some() {
        report.push_str(&format!("{name} check passed\n"));
        respond::text(StatusCode::OK, report)
    } else {
        respond::text(StatusCode::OK, "ok")
    })
}

/// The architecture by its Go name, which clients expect.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
