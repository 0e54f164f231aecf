//! `/version` and the health paths.

use std::sync::Arc;

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{Body, respond};
use crate::request::Query;
use crate::store::Store;

/// A check of `/readyz`: returns the reason if it fails.
pub type ReadyCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The Kubernetes version whose behaviour this server implements.
pub(super) const GIT_VERSION: &str = "v1.37.0";

/// Returns the version document. Clients require every member to be a string.
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

/// Checks of kube-apiserver that always pass here, because the server answers only after its parts have started.
const STARTED: &[&str] = &[
    "poststarthook/start-apiserver-admission-initializer",
    "poststarthook/generic-apiserver-start-informers",
    "poststarthook/start-apiextensions-informers",
    "poststarthook/start-apiextensions-controllers",
    "poststarthook/crd-informer-synced",
    "poststarthook/start-system-namespaces-controller",
    "poststarthook/start-cluster-authentication-info-controller",
    "poststarthook/start-legacy-token-tracking-controller",
    "poststarthook/start-service-ip-repair-controllers",
    "poststarthook/rbac/bootstrap-roles",
    "poststarthook/scheduling/bootstrap-system-priority-classes",
    "poststarthook/priority-and-fairness-config-producer",
    "poststarthook/priority-and-fairness-config-consumer",
    "poststarthook/priority-and-fairness-filter",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/bootstrap-controller",
    "poststarthook/start-kube-aggregator-informers",
    "poststarthook/apiservice-registration-controller",
    "poststarthook/apiservice-status-local-available-controller",
    "poststarthook/apiservice-status-remote-available-controller",
    "poststarthook/apiservice-discovery-controller",
    "poststarthook/kube-apiserver-autoregistration",
    "autoregister-completion",
    "poststarthook/apiservice-openapi-controller",
    "poststarthook/apiservice-openapiv3-controller",
];

/// Answers `/healthz`, `/livez`, `/readyz` and single checks below them.
///
/// The additional checks belong to `/readyz` only. They state whether clients should wait, not whether the server
/// works.
pub(super) fn health(
    path: &str,
    query: &Query<'_>,
    store: &dyn Store,
    further: &[(String, ReadyCheck)],
) -> Option<Response<Body>> {
    let mut segments = path.trim_matches('/').splitn(2, '/');
    let name = segments
        .next()
        .filter(|name| matches!(*name, "healthz" | "livez" | "readyz"))?;
    // A server that rejects writes is alive, because a restart would not free its disk.
    let failure = store.failure().filter(|_| name != "livez");
    let mut checks = vec![("ping", None), ("log", None), ("etcd", failure.clone())];
    if name == "readyz" {
        checks.extend([("etcd-readiness", failure), ("informer-sync", None)]);
    }
    checks.extend(STARTED.iter().map(|check| (*check, None)));
    if name == "readyz" {
        checks.push(("shutdown", None));
        let further = further.iter();
        checks.extend(further.map(|(name, check)| (name.as_str(), check().err())));
    }
    let only = segments.next().filter(|only| !only.is_empty());
    if only.is_some_and(|only| checks.iter().all(|(check, _)| *check != only)) {
        return Some(respond::text(StatusCode::NOT_FOUND, "404 page not found\n"));
    }
    let excluded: Vec<&str> = query.all("exclude").collect();
    let mut report = String::new();
    let mut good = true;
    for (check, failure) in checks {
        if only.is_some_and(|only| only != check) {
            continue;
        }
        if excluded.contains(&check) {
            report.push_str(&format!("[+]{check} excluded: ok\n"));
        } else if let Some(why) = failure {
            good = false;
            report.push_str(&format!("[-]{check} failed: {why}\n"));
        } else {
            report.push_str(&format!("[+]{check} ok\n"));
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

/// Returns the Go name of the architecture, which clients expect.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
