//! The roles and bindings of a new server, under their Kubernetes names.
//!
//! They are written only if absent, so changes by users are preserved.

use std::sync::Arc;

use futures_util::future::join_all;
use jiff::{Timestamp, Unit};
use serde_json::{Value, json};

use super::rbac::GROUP;
use super::{AUTHENTICATED, MASTERS, UNAUTHENTICATED};
use crate::store::{Change, Expected, Key, Store, Write, WriteError};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const ALL: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
const PUBLIC: &[&str] = &["/healthz", "/livez", "/readyz", "/version", "/version/"];
const DISCOVERY: &[&str] = &[
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
];
const MONITORING: &[&str] = &[
    "/healthz",
    "/healthz/*",
    "/livez",
    "/livez/*",
    "/metrics",
    "/metrics/slis",
    "/readyz",
    "/readyz/*",
];
const ISSUER: &[&str] = &[
    "/.well-known/openid-configuration",
    "/.well-known/openid-configuration/",
    "/openid/v1/jwks",
    "/openid/v1/jwks/",
];
const WORKLOADS: &[&str] = &[
    "daemonsets",
    "deployments",
    "deployments/scale",
    "replicasets",
    "replicasets/scale",
    "statefulsets",
    "statefulsets/scale",
];

/// Writes the absent roles and bindings.
///
/// # Errors
/// Returns an error if the store rejects the write.
pub async fn run(store: &Arc<dyn Store>) -> Result<(), WriteError> {
    let now = Timestamp::now()
        .round(Unit::Second)
        .unwrap_or_default()
        .to_string();
    let writes = objects()
        .into_iter()
        .filter_map(|(resource, name, mut object)| {
            let key = Key {
                resource: format!("{GROUP}/{resource}").into(),
                namespace: String::new(),
                name: name.to_owned(),
            };
            if store.get(&key).is_some() {
                return None;
            }
            let metadata = &mut object["metadata"];
            metadata["name"] = name.into();
            metadata["uid"] = uuid::Uuid::new_v4().to_string().into();
            metadata["creationTimestamp"] = now.clone().into();
            metadata["labels"]["kubernetes.io/bootstrapping"] = "rbac-defaults".into();
            metadata["annotations"] =
                json!({ "rbac.authorization.kubernetes.io/autoupdate": "true" });
            let change = Change::Put(object.into());
            Some(Write::new(key, Expected::Absent, change))
        });
    for written in join_all(writes.map(|write| store.write(write))).await {
        match written {
            Ok(_) | Err(WriteError::Conflict(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether every authenticated user may read this path.
pub(super) fn is_discovery(path: &str) -> bool {
    DISCOVERY.iter().any(|known| match known.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => *known == path,
    })
}

type Named = (&'static str, &'static str, Value);

fn objects() -> Vec<Named> {
    let (to_admin, to_edit, to_view) = (admin_rules(), edit_rules(), view_rules());
    let edit = [to_edit.clone(), to_view.clone()].concat();
    let admin = [to_admin.clone(), edit.clone()].concat();
    vec![
        role(
            "cluster-admin",
            &[on(&["*"], &["*"], &["*"]), paths(&["*"], &["*"])],
        ),
        aggregated("admin", "admin", None, &admin),
        aggregated("edit", "edit", Some("admin"), &edit),
        aggregated("view", "view", Some("edit"), &to_view),
        part("system:aggregate-to-admin", "admin", &to_admin),
        part("system:aggregate-to-edit", "edit", &to_edit),
        part("system:aggregate-to-view", "view", &to_view),
        role("system:discovery", &[paths(DISCOVERY, &["get"])]),
        role("system:public-info-viewer", &[paths(PUBLIC, &["get"])]),
        role("system:monitoring", &[paths(MONITORING, &["get"])]),
        role(
            "system:service-account-issuer-discovery",
            &[paths(ISSUER, &["get"])],
        ),
        role(
            "system:basic-user",
            &[
                on(
                    &["authorization.k8s.io"],
                    &["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
                    &["create"],
                ),
                on(
                    &["authentication.k8s.io"],
                    &["selfsubjectreviews"],
                    &["create"],
                ),
            ],
        ),
        role(
            "system:auth-delegator",
            &[
                on(&["authentication.k8s.io"], &["tokenreviews"], &["create"]),
                on(
                    &["authorization.k8s.io"],
                    &["subjectaccessreviews"],
                    &["create"],
                ),
            ],
        ),
        binding("cluster-admin", &[MASTERS]),
        binding("system:discovery", &[AUTHENTICATED]),
        binding("system:basic-user", &[AUTHENTICATED]),
        binding(
            "system:public-info-viewer",
            &[AUTHENTICATED, UNAUTHENTICATED],
        ),
        binding("system:monitoring", &["system:monitoring"]),
        binding(
            "system:service-account-issuer-discovery",
            &["system:serviceaccounts"],
        ),
    ]
}

fn view_rules() -> Vec<Value> {
    vec![
        on(
            &[""],
            &[
                "bindings",
                "configmaps",
                "endpoints",
                "events",
                "limitranges",
                "namespaces",
                "namespaces/status",
                "persistentvolumeclaims",
                "persistentvolumeclaims/status",
                "pods",
                "pods/log",
                "pods/status",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "replicationcontrollers/status",
                "resourcequotas",
                "resourcequotas/status",
                "serviceaccounts",
                "services",
                "services/status",
            ],
            READ,
        ),
        on(&["discovery.k8s.io"], &["endpointslices"], READ),
        on(&["events.k8s.io"], &["events"], READ),
        on(&["coordination.k8s.io"], &["leases"], READ),
        on(&["apps"], WORKLOADS, READ),
        on(
            &["apps"],
            &[
                "controllerrevisions",
                "daemonsets/status",
                "deployments/status",
                "replicasets/status",
                "statefulsets/status",
            ],
            READ,
        ),
        on(
            &["autoscaling"],
            &[
                "horizontalpodautoscalers",
                "horizontalpodautoscalers/status",
            ],
            READ,
        ),
        on(
            &["batch"],
            &["cronjobs", "cronjobs/status", "jobs", "jobs/status"],
            READ,
        ),
        on(
            &["policy"],
            &["poddisruptionbudgets", "poddisruptionbudgets/status"],
            READ,
        ),
        on(
            &["networking.k8s.io"],
            &["ingresses", "ingresses/status", "networkpolicies"],
            READ,
        ),
    ]
}

fn edit_rules() -> Vec<Value> {
    vec![
        on(
            &[""],
            &[
                "pods/attach",
                "pods/exec",
                "pods/portforward",
                "pods/proxy",
                "secrets",
                "services/proxy",
            ],
            READ,
        ),
        on(&[""], &["serviceaccounts"], &["impersonate"]),
        on(&[""], &["serviceaccounts/token"], &["create"]),
        on(&[""], &["pods/eviction"], &["create"]),
        on(
            &[""],
            &[
                "configmaps",
                "events",
                "persistentvolumeclaims",
                "pods",
                "pods/attach",
                "pods/exec",
                "pods/portforward",
                "pods/proxy",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
                "services/proxy",
            ],
            WRITE,
        ),
        on(&["apps"], WORKLOADS, WRITE),
        on(&["autoscaling"], &["horizontalpodautoscalers"], WRITE),
        on(&["batch"], &["cronjobs", "jobs"], WRITE),
        on(&["policy"], &["poddisruptionbudgets"], WRITE),
        on(
            &["networking.k8s.io"],
            &["ingresses", "networkpolicies"],
            WRITE,
        ),
        on(&["coordination.k8s.io"], &["leases"], ALL),
    ]
}

fn admin_rules() -> Vec<Value> {
    vec![
        on(
            &["authorization.k8s.io"],
            &["localsubjectaccessreviews"],
            &["create"],
        ),
        on(&[GROUP], &["rolebindings", "roles"], ALL),
    ]
}

fn on(groups: &[&str], resources: &[&str], verbs: &[&str]) -> Value {
    json!({ "apiGroups": groups, "resources": resources, "verbs": verbs })
}

fn paths(paths: &[&str], verbs: &[&str]) -> Value {
    json!({ "nonResourceURLs": paths, "verbs": verbs })
}

fn label(into: &str) -> String {
    format!("{GROUP}/aggregate-to-{into}")
}

fn role(name: &'static str, rules: &[Value]) -> Named {
    (
        "clusterroles",
        name,
        json!({ "metadata": { "labels": {} }, "rules": rules }),
    )
}

/// A role whose rules are aggregated into another role.
fn part(name: &'static str, into: &str, rules: &[Value]) -> Named {
    let labels = json!({ label(into): "true" });
    (
        "clusterroles",
        name,
        json!({ "metadata": { "labels": labels }, "rules": rules }),
    )
}

/// A role that aggregates other roles, and may be aggregated into another role itself.
fn aggregated(name: &'static str, from: &str, into: Option<&str>, rules: &[Value]) -> Named {
    let labels = into.map_or_else(|| json!({}), |into| json!({ label(into): "true" }));
    let selectors = json!([{ "matchLabels": { label(from): "true" } }]);
    let object = json!({
        "metadata": { "labels": labels },
        "aggregationRule": { "clusterRoleSelectors": selectors },
        "rules": rules,
    });
    ("clusterroles", name, object)
}

/// A binding of the role of the same name to groups.
fn binding(name: &'static str, groups: &[&str]) -> Named {
    let subjects: Vec<Value> = groups
        .iter()
        .map(|group| json!({ "kind": "Group", "apiGroup": GROUP, "name": group }))
        .collect();
    let role = json!({ "apiGroup": GROUP, "kind": "ClusterRole", "name": name });
    let object = json!({ "metadata": { "labels": {} }, "roleRef": role, "subjects": subjects });
    ("clusterrolebindings", name, object)
}
