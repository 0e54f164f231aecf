//! Requests that are small for the client and expensive for a server that handles them carelessly.

use serde_json::{Map, Value, json};

/// Returns a merge patch of a ConfigMap with this many values.
pub fn merge_patch(values: usize, bytes: usize) -> Value {
    let value = "x".repeat(bytes);
    let entry = |number| (format!("key-{number}"), json!(value));
    json!({ "data": (0..values).map(entry).collect::<Map<_, _>>() })
}

/// Returns a JSON patch that repeatedly inserts at the start of a list.
pub fn json_patch(operations: usize) -> Value {
    let start = json!({ "op": "add", "path": "/metadata/finalizers", "value": [] });
    let insert = |number| {
        let name = format!("x.io/f{number}");
        json!({ "op": "add", "path": "/metadata/finalizers/0", "value": name })
    };
    // The object keeps no finalizer, so that it can be deleted.
    let end = json!({ "op": "remove", "path": "/metadata/finalizers" });
    let inserts = (0..operations).map(insert);
    Value::Array([start].into_iter().chain(inserts).chain([end]).collect())
}

/// Returns a role whose rules combine to billions of single permissions.
pub fn wide_role(name: &str, width: usize) -> Value {
    let list = |prefix: &str| -> Vec<String> {
        (0..width)
            .map(|number| format!("{prefix}{number}"))
            .collect()
    };
    json!({ "metadata": { "name": name }, "rules": [{ "verbs": list("v"), "apiGroups": list("g"),
        "resources": list("r"), "resourceNames": list("n") }] })
}

/// Returns a ClusterRole of many different rules, all covered by `get pods`, with a label that adds them to the
/// aggregated ClusterRole `view`.
pub fn aggregated_role(name: &str, rules: usize) -> Value {
    let rule = |number| {
        json!({ "verbs": ["get"], "apiGroups": [""], "resources": ["pods"],
            "resourceNames": [format!("{name}-{number}")] })
    };
    let label = "rbac.authorization.k8s.io/aggregate-to-view";
    json!({ "metadata": { "name": name, "labels": { label: "true" } },
        "rules": (0..rules).map(rule).collect::<Value>() })
}

/// Returns a binding of a ClusterRole to users, for all namespaces.
pub fn binding(name: &str, role: &str, users: &[String]) -> Value {
    let group = "rbac.authorization.k8s.io";
    let subject = |user: &String| json!({ "apiGroup": group, "kind": "User", "name": user });
    json!({ "metadata": { "name": name },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": role },
        "subjects": users.iter().map(subject).collect::<Value>() })
}

/// Maximum number of patterns of a valid definition. The server allows 16 MiB and counts at least 64 KiB for each.
pub const PATTERNS: usize = 250;

/// Returns a valid definition of a custom kind with this many properties. As many of them as possible have a pattern,
/// which takes much memory when it is compiled.
pub fn definition(number: usize, properties: usize) -> Value {
    let property = |n: usize| {
        let mut schema = json!({ "type": "string", "description": "x".repeat(100) });
        if n < PATTERNS {
            let pattern = format!("^[a-z]{{1,{}}}-{number}-{n}$", 40 + n % 40);
            schema["pattern"] = json!(pattern);
        }
        (format!("p{n}"), schema)
    };
    let schema = json!({ "type": "object",
        "properties": (0..properties).map(property).collect::<Map<_, _>>() });
    let plural = format!("bombs{number}");
    let names = json!({ "plural": plural, "singular": format!("bomb{number}"),
        "kind": format!("Bomb{number}"), "listKind": format!("Bomb{number}List") });
    json!({ "metadata": { "name": format!("{plural}.x.io") },
        "spec": { "group": "x.io", "scope": "Namespaced", "names": names,
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": schema } }] } })
}

/// Returns a ConfigMap with this many labels or owners.
pub fn metadata(name: &str, member: &str, entries: usize) -> Value {
    let value: Value = match member {
        "ownerReferences" => (0..entries)
            .map(|n| {
                json!({ "apiVersion": "v1", "kind": "Pod", "name": format!("o{n}"),
                    "uid": format!("u{n}") })
            })
            .collect(),
        _ => {
            let entry = |n| (format!("l{n}"), json!("v"));
            Value::Object((0..entries).map(entry).collect())
        }
    };
    json!({ "metadata": { "name": name, member: value } })
}
