//! Doubling the input costs at most three times the work, for every kind of list that the server accepts.
//!
//! Work is the CPU time of this thread, which runs client and server, so that other load on the machine has no effect.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};

use crate::support::Server;
use crate::{MAPS, create, map};

/// Entries of the shortest list. Quadratic behaviour is visible from a few thousand entries on.
const LEAST: usize = 1_500;

/// Number of times that the list is doubled.
const DOUBLINGS: u32 = 2;

/// Smaller amounts of work are not compared, because they are mostly noise.
const FLOOR: Duration = Duration::from_millis(60);

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("the CPU time of the thread is not negative")
}

type Body = fn(usize) -> Value;

fn texts(n: usize, make: impl Fn(usize) -> String) -> Vec<String> {
    (0..n).map(make).collect()
}

fn list(n: usize, make: impl Fn(usize) -> Value) -> Value {
    (0..n).map(make).collect()
}

fn entries(n: usize, make: impl Fn(usize) -> (String, Value)) -> Value {
    Value::Object((0..n).map(make).collect::<Map<_, _>>())
}

/// Adds metadata to an object.
fn named(mut object: Value) -> Value {
    object["metadata"] = json!({ "name": "x" });
    object
}

fn with_metadata(member: &str, value: Value) -> Value {
    let mut object = map("x", "1");
    object["metadata"][member] = value;
    object
}

fn owner(n: usize) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "name": format!("o{n}"), "uid": format!("u{n}") })
}

fn definition(schema: &Value) -> Value {
    let names = json!({ "plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList" });
    json!({ "metadata": { "name": "things.x.io" }, "spec": { "group": "x.io", "scope": "Namespaced",
        "names": names, "versions": [{ "name": "v1", "served": true, "storage": true,
            "schema": { "openAPIV3Schema": schema } }] } })
}

/// Paths, and bodies by size. Lists that are checked for duplicates or values have valid and invalid bodies, and others
/// have valid ones only.
const CREATIONS: &[(&str, &str, Body)] = &[
    ("labels", MAPS, |n| {
        with_metadata("labels", entries(n, |i| (format!("l{i}"), json!("v"))))
    }),
    ("bad labels", MAPS, |n| {
        with_metadata("labels", entries(n, |i| (format!("-{i}"), json!("-"))))
    }),
    ("annotations", MAPS, |n| {
        with_metadata("annotations", entries(n, |i| (format!("a{i}"), json!("v"))))
    }),
    ("finalizers", MAPS, |n| {
        with_metadata("finalizers", json!(texts(n, |i| format!("x.io/f{i}"))))
    }),
    ("owners", MAPS, |n| {
        with_metadata("ownerReferences", list(n, owner))
    }),
    ("equal owners", MAPS, |n| {
        with_metadata("ownerReferences", list(n, |_| owner(0)))
    }),
    ("bad owners", MAPS, |n| {
        with_metadata("ownerReferences", list(n, |_| json!({})))
    }),
    ("data", MAPS, |n| {
        json!({ "metadata": { "name": "x" },
        "data": entries(n, |i| (format!("k{i}"), json!("v"))) })
    }),
    ("containers", "/api/v1/namespaces/default/pods", |n| {
        named(json!({ "spec": {
        "containers": list(n, |i| json!({ "name": format!("c{i}"), "image": "i" })) } }))
    }),
    ("equal containers", "/api/v1/namespaces/default/pods", |n| {
        named(json!({ "spec": {
        "containers": list(n, |_| json!({ "name": "c", "image": "i" })) } }))
    }),
    ("environment", "/api/v1/namespaces/default/pods", |n| {
        let env = list(n, |i| json!({ "name": format!("E{i}"), "value": "v" }));
        named(json!({ "spec": { "containers": [{ "name": "c", "image": "i", "env": env }] } }))
    }),
    ("container ports", "/api/v1/namespaces/default/pods", |n| {
        let ports = list(n, |i| json!({ "containerPort": 1 + i % 60_000 }));
        named(json!({ "spec": { "containers": [{ "name": "c", "image": "i", "ports": ports }] } }))
    }),
    (
        "service ports",
        "/api/v1/namespaces/default/services",
        |n| {
            named(json!({ "spec": {
        "ports": list(n, |i| json!({ "name": format!("p{i}"), "port": 1 + i % 60_000 })) } }))
        },
    ),
    (
        "endpoint ports",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        |n| {
            named(json!({ "addressType": "IPv4", "endpoints": [],
            "ports": list(n, |i| json!({ "name": format!("p{i}"), "port": 1 + i % 60_000 })) }))
        },
    ),
    (
        "rules",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
        |n| {
            named(json!({
        "rules": list(n, |i| json!({ "verbs": ["get"], "apiGroups": [""], "resources": [format!("r{i}")] })) }))
        },
    ),
    (
        "bad rules",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
        |n| {
            named(json!({
        "rules": list(n, |_| json!({})) }))
        },
    ),
    (
        "rule names",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
        |n| {
            named(json!({
        "rules": [{ "verbs": texts(n, |i| format!("v{i}")), "apiGroups": [""],
            "resources": texts(n, |i| format!("r{i}")) }] }))
        },
    ),
    (
        "subjects",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        |n| {
            named(json!({
        "roleRef": { "kind": "ClusterRole", "name": "view" },
        "subjects": list(n, |i| json!({ "kind": "User", "name": format!("u{i}") })) }))
        },
    ),
    (
        "topologies",
        "/apis/storage.k8s.io/v1/storageclasses",
        |n| {
            named(json!({ "provisioner": "x.io",
        "allowedTopologies": [{ "matchLabelExpressions": [{ "key": "k",
            "values": texts(n, |i| format!("v{i}")) }] }] }))
        },
    ),
    ("drivers", "/apis/storage.k8s.io/v1/csinodes", |n| {
        named(json!({ "spec": {
        "drivers": list(n, |i| json!({ "name": format!("d{i}.x.io"), "nodeID": "n" })) } }))
    }),
    (
        "properties",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        |n| {
            let properties = entries(n, |i| {
                (
                    format!("p{i}"),
                    json!({ "type": "string", "pattern": "^a+$" }),
                )
            });
            definition(&json!({ "type": "object", "properties": properties }))
        },
    ),
    (
        "selectable fields",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        |n| {
            let properties = entries(n, |i| (format!("p{i}"), json!({ "type": "string" })));
            let mut body = definition(&json!({ "type": "object", "properties": properties }));
            let fields = list(n, |i| json!({ "jsonPath": format!(".p{i}") }));
            body["spec"]["versions"][0]["selectableFields"] = fields;
            body
        },
    ),
    (
        "defaults of an enum",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        |n| {
            let items = json!({ "type": "string", "enum": texts(4 * n, |i| format!("e{i}")) });
            let last = texts(n, |_| format!("e{}", 4 * n - 1));
            definition(&json!({ "type": "object", "properties": {
            "l": { "type": "array", "items": items, "default": last } } }))
        },
    ),
    (
        "map keys",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        |n| {
            let keys = texts(n, |i| format!("k{i}"));
            let items = json!({ "type": "object", "required": keys });
            definition(
                &json!({ "type": "object", "properties": { "l": { "type": "array", "items": items,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys } } }),
            )
        },
    ),
];

/// Patches of a ConfigMap, by content type.
const PATCHES: &[(&str, &str, Body)] = &[
    ("JSON patch", "application/json-patch+json", |n| {
        list(
            n,
            |i| json!({ "op": "add", "path": format!("/data/p{i}"), "value": "v" }),
        )
    }),
    (
        "merge patch",
        "application/merge-patch+json",
        |n| json!({ "data": entries(n, |i| (format!("p{i}"), json!("v"))) }),
    ),
    (
        "owners by strategic merge",
        "application/strategic-merge-patch+json",
        |n| json!({ "metadata": { "ownerReferences": list(n, owner) } }),
    ),
    (
        "finalizers by strategic merge",
        "application/strategic-merge-patch+json",
        |n| json!({ "metadata": { "finalizers": texts(n, |i| format!("x.io/f{i}")) } }),
    ),
    ("apply", "application/apply-patch+yaml", |n| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "x", "ownerReferences": list(n, owner) },
            "data": entries(n, |i| (format!("p{i}"), json!("v"))) })
    }),
];

/// Returns the CPU time of one request and the size of its response.
async fn cost(
    server: &Server,
    method: &str,
    path: &str,
    kind: &str,
    body: &Value,
) -> (Duration, usize) {
    let bytes = body.to_string().into_bytes();
    let before = cpu_time();
    let answer = server
        .send(method, path, &[("content-type", kind)], bytes)
        .await;
    assert_ne!(answer.status, 500, "{path}");
    assert_ne!(answer.status, 404, "{path}");
    (cpu_time() - before, answer.bytes.len())
}

/// Checks the costs of one case and adds the problems.
fn check(name: &str, costs: &[(Duration, usize)], problems: &mut Vec<String>) {
    let growth = 3_u32.pow(DOUBLINGS);
    let (first, last) = (costs[0], costs[costs.len() - 1]);
    if last.0 > growth * first.0.max(FLOOR) {
        problems.push(format!("{name}: {costs:?}"));
    }
    if last.1 > growth as usize * first.1.max(4_096) {
        problems.push(format!("{name}: the answer grows: {costs:?}"));
    }
}

#[tokio::test]
async fn twice_the_input_is_at_most_three_times_the_work() {
    let server = Server::start().await;
    create(&server, MAPS, map("warm", "1")).await;
    let mut problems = Vec::new();
    for (name, path, body) in CREATIONS {
        let path = format!("{path}?dryRun=All");
        let mut costs = Vec::new();
        for doubling in 0..=DOUBLINGS {
            let body = body(LEAST << doubling);
            costs.push(cost(&server, "POST", &path, "application/json", &body).await);
        }
        check(name, &costs, &mut problems);
    }
    for (name, kind, body) in PATCHES {
        let mut costs = Vec::new();
        for doubling in 0..=DOUBLINGS {
            create(&server, MAPS, map("x", "1")).await;
            let path = format!("{MAPS}/x?fieldManager=t");
            let body = body(LEAST << doubling);
            costs.push(cost(&server, "PATCH", &path, kind, &body).await);
            // The second patch changes an object that already contains everything.
            costs[doubling as usize].0 += cost(&server, "PATCH", &path, kind, &body).await.0;
            let free = json!([{ "op": "add", "path": "/metadata/finalizers", "value": [] }]);
            cost(
                &server,
                "PATCH",
                &path,
                "application/json-patch+json",
                &free,
            )
            .await;
            let gone = server.call("DELETE", &format!("{MAPS}/x"), None).await;
            assert_eq!(gone.status, 200, "{name}: {}", gone.json());
        }
        check(name, &costs, &mut problems);
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/x.io/v1/namespaces/default/things";

/// The schema of a member, and two values of it by size. The second value replaces the first.
type Custom = (&'static str, fn() -> Value, Body, Body);

const CUSTOM: &[Custom] = &[
    (
        "elements with keys",
        || {
            let keys = ["a", "b", "c"];
            let text = json!({ "type": "string" });
            let items = json!({ "type": "object", "required": keys,
                "properties": { "a": text, "b": text, "c": text } });
            json!({ "type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": keys, "items": items })
        },
        |n| list(n, |i| json!({ "a": format!("a{i}"), "b": "b", "c": "c" })),
        |n| list(n, |i| json!({ "a": format!("n{i}"), "b": "b", "c": "c" })),
    ),
    (
        "values that an enum does not contain",
        || {
            let values = texts(3_000, |i| format!("value-{i}"));
            json!({ "type": "array", "items": { "type": "string", "enum": values } })
        },
        |_| json!([]),
        |n| json!(texts(n, |_| "x".to_owned())),
    ),
    (
        "wrong elements below a long name",
        || {
            json!({ "type": "object", "additionalProperties": {
                "type": "array", "items": { "type": "integer" } } })
        },
        |_| json!({}),
        |n| json!({ "K".repeat(20 * n): list(n, |_| json!("x")) }),
    ),
    (
        "unknown fields below a long name",
        || {
            json!({ "type": "object", "additionalProperties": {
                "type": "object", "properties": { "a": { "type": "integer" } } } })
        },
        |_| json!({}),
        |n| json!({ "K".repeat(20 * n): entries(n, |i| (format!("u{i}"), json!(1))) }),
    ),
];

#[tokio::test]
async fn twice_the_custom_object_is_at_most_three_times_the_work() {
    let server = Server::start().await;
    let mut problems = Vec::new();
    for (name, schema, first, second) in CUSTOM {
        let schema = json!({ "type": "object", "properties": { "l": schema() } });
        create(&server, DEFINITIONS, definition(&schema)).await;
        let mut costs = Vec::new();
        for doubling in 0..=DOUBLINGS {
            let n = LEAST << doubling;
            let mut object = json!({ "apiVersion": "x.io/v1", "kind": "Thing",
                "metadata": { "name": format!("t{n}") }, "l": first(n) });
            create(&server, THINGS, object.clone()).await;
            object["l"] = second(n);
            let path = format!("{THINGS}/t{n}?fieldManager=t");
            costs.push(cost(&server, "PUT", &path, "application/json", &object).await);
        }
        check(name, &costs, &mut problems);
        let path = format!("{DEFINITIONS}/things.x.io");
        assert_eq!(server.call("DELETE", &path, None).await.status, 200);
        while server.call("GET", &path, None).await.status != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

/// A definition whose names belong to another definition.
fn refused_definition(number: usize) -> Value {
    let names = json!({ "plural": format!("things{number}"), "singular": format!("thing{number}"),
        "kind": "Thing", "listKind": format!("Thing{number}List") });
    let mut refused = definition(&json!({ "type": "object" }));
    refused["metadata"]["name"] = json!(format!("things{number}.x.io"));
    refused["spec"]["names"] = names;
    refused
}

/// The server compares refused definitions with all others after each write of a definition.
#[tokio::test]
async fn twice_the_refused_definitions_are_at_most_three_times_the_work() {
    const LEAST: usize = 40;
    let server = Server::start().await;
    create(
        &server,
        DEFINITIONS,
        definition(&json!({ "type": "object" })),
    )
    .await;
    let (mut costs, mut stored) = (Vec::new(), 0);
    for doubling in 0..=DOUBLINGS {
        while stored < LEAST << doubling {
            create(&server, DEFINITIONS, refused_definition(stored)).await;
            stored += 1;
        }
        let path = format!("{DEFINITIONS}/things.x.io");
        let before = cpu_time();
        for number in 0..4 {
            let change = json!({ "metadata": { "annotations": { "n": number.to_string() } } });
            let changed = server.call("PATCH", &path, Some(change)).await;
            assert_eq!(changed.status, 200, "{}", changed.json());
            // The comparison follows the response.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        costs.push((cpu_time() - before, 0));
    }
    let mut problems = Vec::new();
    check("refused definitions", &costs, &mut problems);
    assert!(problems.is_empty(), "{problems:#?}");
    // A released name is accepted.
    let path = format!("{DEFINITIONS}/things.x.io");
    assert_eq!(server.call("DELETE", &path, None).await.status, 200);
    let path = format!("{DEFINITIONS}/things0.x.io");
    for _ in 0..1_000 {
        let found = server.call("GET", &path, None).await.json();
        let conditions = found["status"]["conditions"].as_array().unwrap().iter();
        if conditions
            .clone()
            .any(|c| c["type"] == "Established" && c["status"] == "True")
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no refused definition was accepted");
}
