//! Valid and invalid definitions and applied configurations, sent to two API servers.
//!
//! Variants of a definition are first sent as dry runs, to compare the reported problems. Then one definition is
//! created on both servers, and the responses to the same requests for its objects are compared, as in the random
//! comparison.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::bodies::set;
use super::{Difference, Op, Side};
use crate::clock;

const LIMIT: Duration = Duration::from_secs(120);
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// Changes that make a definition invalid, or keep it valid: JSON pointers and values.
const CHANGES: &[&[(&str, &str)]] = &[
    &[],
    &[("/metadata/name", r#""other.example.com""#)],
    &[("/spec/group", r#""nodot""#)],
    &[("/spec/group", r#""Bad Group.com""#)],
    &[("/spec/scope", r#""Everywhere""#)],
    &[("/spec/scope", r#""""#)],
    &[("/spec/preserveUnknownFields", "true")],
    &[("/spec/names/plural", r#""Bad""#)],
    &[("/spec/names/kind", r#""""#)],
    &[("/spec/names/kind", r#""bad kind""#)],
    &[("/spec/names/singular", r#""Bad Name""#)],
    &[("/spec/names/shortNames", r#"["Bad Name"]"#)],
    &[("/spec/names/categories", r#"["Bad Name"]"#)],
    &[("/spec/versions", "[]")],
    &[("/spec/versions/0/name", r#""V 1""#)],
    &[("/spec/versions/0/storage", "false")],
    &[("/spec/versions/0/schema", "null")],
    &[("/spec/conversion", r#"{"strategy": "Sometimes"}"#)],
    &[("/spec/conversion", r#"{"strategy": "Webhook"}"#)],
    &[(
        "/spec/versions/0/subresources",
        r#"{"scale": {"specReplicasPath": ".spec.size"}}"#,
    )],
    &[(
        "/spec/versions/0/subresources",
        r#"{"scale": {"specReplicasPath": "spec", "statusReplicasPath": ".status.r"}}"#,
    )],
    &[(
        "/spec/versions/0/additionalPrinterColumns",
        r#"[{"name": "", "type": "string", "jsonPath": ".a"}]"#,
    )],
    &[(
        "/spec/versions/0/additionalPrinterColumns",
        r#"[{"name": "A", "type": "text", "jsonPath": ".a"}]"#,
    )],
    &[(
        "/spec/versions/0/additionalPrinterColumns",
        r#"[{"name": "A", "type": "string", "jsonPath": ""}]"#,
    )],
    &[(
        "/spec/versions/0/selectableFields",
        r#"[{"jsonPath": ".spec.nothing"}]"#,
    )],
    &[(
        "/spec/versions/0/selectableFields",
        r#"[{"jsonPath": ".spec.list"}]"#,
    )],
    // Schemas that are not structural.
    &[("@/type", r#""array""#)],
    &[("@/type", r#""""#)],
    &[("@/properties/spec/properties/color/type", r#""""#)],
    &[("@/properties/spec/properties/color/type", r#""colour""#)],
    &[("@/properties/spec/properties/list/items", "null")],
    &[(
        "@/properties/spec/properties/list/items",
        r#"{"properties": {"a": {"type": "string"}}}"#,
    )],
    &[("@/properties/spec/properties/list/uniqueItems", "true")],
    &[(
        "@/properties/spec/additionalProperties",
        r#"{"type": "string"}"#,
    )],
    &[("@/properties/spec/properties/color/pattern", r#""(""#)],
    &[("@/properties/spec/anyOf", r#"[{"type": "object"}]"#)],
    &[(
        "@/properties/spec/oneOf",
        r#"[{"properties": {"color": {"default": "x"}}}]"#,
    )],
    &[("@/properties/spec/not", r#"{"description": "nothing"}"#)],
    &[("@/properties/spec/$ref", r##""#/x""##)],
    &[("@/properties/spec/x-kubernetes-embedded-resource", "true")],
    &[(
        "@/properties/metadata",
        r#"{"type": "object", "properties": {"labels": {"type": "object"}}}"#,
    )],
    &[(
        "@/properties/spec/properties/list/x-kubernetes-list-type",
        r#""bag""#,
    )],
    &[(
        "@/properties/spec/properties/list/x-kubernetes-list-map-keys",
        r#"["key"]"#,
    )],
    &[(
        "@/properties/spec/properties/map/x-kubernetes-list-map-keys",
        r#"["nothing"]"#,
    )],
    &[(
        "@/properties/spec/properties/color/x-kubernetes-list-type",
        r#""set""#,
    )],
    &[("@/properties/spec/x-kubernetes-map-type", r#""loose""#)],
    // Rules, without their expressions.
    &[(
        "@/properties/spec/x-kubernetes-validations",
        r#"[{"rule": "self.size > 0", "message": "size"}]"#,
    )],
    &[(
        "@/properties/spec/x-kubernetes-validations",
        r#"[{"rule": " "}]"#,
    )],
    &[(
        "@/properties/spec/x-kubernetes-validations",
        r#"[{"rule": "true", "message": " "}]"#,
    )],
    &[(
        "@/properties/spec/x-kubernetes-validations",
        r#"[{"rule": "true", "reason": "Why"}]"#,
    )],
    &[("@/properties/spec/properties/color/default", r#""purple""#)],
    &[("@/properties/spec/default", r#"{"nothing": 1}"#)],
];

/// Returns a valid definition; `@` stands for its schema in [`CHANGES`].
fn definition(group: &str) -> Value {
    let spec = json!({"type": "object", "required": ["color"], "properties": {
        "color": {"type": "string", "enum": ["red", "green"], "maxLength": 10},
        "size": {"type": "integer", "minimum": 1, "default": 3},
        "note": {"type": "string", "pattern": "^[a-z]*$"},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "list": {"type": "array", "maxItems": 3, "items": {"type": "string"}},
        "map": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"],
            "items": {"type": "object", "required": ["key"], "properties": {
                "key": {"type": "string"}, "value": {"type": "string"}}}}}});
    let status = json!({"type": "object", "properties": {"ready": {"type": "boolean"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]},
    })
}

/// Requests about objects: method, name and query, type of the body, body. `@K` is the kind and version.
const OBJECTS: &[(&str, &str, &str, &str)] = &[
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "a"}, "spec": {"color": "red", "unknown": 1, "free": {"x": {"y": 1}}, "labels": {"k": "v"}}}"#,
    ),
    ("GET", "/a", JSON, ""),
    (
        "POST",
        "?fieldValidation=Strict",
        JSON,
        r#"{@K, "metadata": {"name": "b"}, "spec": {"color": "red", "unknown": 1}}"#,
    ),
    (
        "POST",
        "?fieldValidation=Ignore",
        JSON,
        r#"{@K, "metadata": {"name": "b"}, "spec": {"color": "red", "list": ["x"], "deep": {"a": 1}}}"#,
    ),
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "c"}, "spec": {}}"#,
    ),
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "c"}, "spec": {"color": "blue"}}"#,
    ),
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "c"}, "spec": {"color": "red", "size": 0, "note": "ABC"}}"#,
    ),
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "c"}, "spec": {"color": "red", "list": ["1", "2", "3", "4"]}}"#,
    ),
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "c"}, "spec": {"color": "red", "map": [{"key": "x"}, {"key": "x"}]}}"#,
    ),
    (
        "POST",
        "",
        JSON,
        r#"{@K, "metadata": {"name": "c"}, "spec": {"color": "red", "map": [{"value": "x"}]}}"#,
    ),
    (
        "PATCH",
        "/a",
        MERGE,
        r#"{"spec": {"size": null, "unknown": 2}}"#,
    ),
    ("PATCH", "/a", MERGE, r#"{"spec": {"color": null}}"#),
    ("PATCH", "/a", MERGE, r#"{"status": {"ready": true}}"#),
    (
        "PATCH",
        "/a/status",
        MERGE,
        r#"{"status": {"ready": true, "unknown": 1}, "spec": {"color": "green"}}"#,
    ),
    (
        "PATCH",
        "/a",
        MERGE,
        r#"{"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}}"#,
    ),
    (
        "PATCH",
        "/a",
        "application/strategic-merge-patch+json",
        r#"{"spec": {"color": "green"}}"#,
    ),
    (
        "PUT",
        "/a",
        JSON,
        r#"{@K, "metadata": {"name": "a"}, "spec": {"color": "green"}}"#,
    ),
    // Apply: without a manager, with two managers, forced, and with fields of several owners.
    (
        "PATCH",
        "/d",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "red"}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=one",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "red", "map": [{"key": "x", "value": "1"}]}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=one",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "red", "map": [{"key": "x", "value": "1"}]}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "green", "map": [{"key": "x", "value": "2"}, {"key": "y"}]}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two&force=true",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "green", "map": [{"key": "y", "value": "2"}]}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=one",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"size": 7}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "blue"}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two",
        APPLY,
        r#"{@K, "metadata": {"name": "other"}, "spec": {"color": "red"}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two",
        APPLY,
        r#"{"metadata": {"name": "d"}, "spec": {"color": "red"}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two",
        APPLY,
        r#"{@K, "metadata": {"name": "d", "managedFields": [{"manager": "x"}]}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two&fieldValidation=Strict",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "green", "unknown": 1}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "spec": {"color": "green", "unknown": 1}}"#,
    ),
    ("PATCH", "/d?fieldManager=two", APPLY, "not: [yaml"),
    (
        "PATCH",
        "/d/status?fieldManager=three",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}, "status": {"ready": true}}"#,
    ),
    (
        "PATCH",
        "/d?fieldManager=two&force=perhaps",
        APPLY,
        r#"{@K, "metadata": {"name": "d"}}"#,
    ),
    (
        "PATCH",
        "/d?force=true",
        MERGE,
        r#"{"spec": {"color": "red"}}"#,
    ),
    ("GET", "/d", JSON, ""),
    ("GET", "", JSON, ""),
];

/// Changes of an existing definition.
const UPDATES: &[(&str, &str)] = &[
    ("/spec/scope", r#""Cluster""#),
    ("/spec/group", r#""other.example.com""#),
    ("/spec/names/plural", r#""others""#),
    ("/spec/names/kind", r#""Other""#),
    ("/spec/versions/0/storage", "false"),
    ("/spec/versions/0/name", r#""v2""#),
];

/// Sends the requests to both servers, and returns the differences.
///
/// # Errors
///
/// Fails if a server does not respond, or rejects a valid request.
pub fn compare(left: &mut Side, right: &mut Side) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    let group = format!("d{}.example.com", clock::now().0);
    let path = format!("{DEFINITIONS}/things.{group}");
    let good = definition(&group);
    for changes in CHANGES {
        let mut body = good.clone();
        for (pointer, value) in *changes {
            let pointer = pointer.replace('@', "/spec/versions/0/schema/openAPIV3Schema");
            set(&mut body, (&pointer, value));
        }
        let op = op(
            Method::POST,
            format!("{DEFINITIONS}?dryRun=All"),
            JSON,
            body.to_string(),
        );
        found.extend(verdicts(left, right, &op)?);
    }

    let namespace = format!("differential-{}", clock::now().0);
    let things = format!("/apis/{group}/v1/namespaces/{namespace}/things");
    for side in [&mut *left, &mut *right] {
        let made = side.create_namespace(&namespace)?;
        ensure!(made.status.is_success(), "{namespace}: {made:?}");
        let made = side.wire.send(&Method::POST, DEFINITIONS, Some(&good))?;
        ensure!(made.status.is_success(), "{made:?}");
        // On the real server, creation becomes possible slightly after listing.
        let body = json!({"apiVersion": format!("{group}/v1"), "kind": "Thing",
            "metadata": {"name": "first"}, "spec": {"color": "red"}});
        let served = clock::poll(LIMIT, || {
            let made = side.wire.send(&Method::POST, &things, Some(&body)).ok()?;
            made.status.is_success().then_some(())
        });
        served.context("the definition is not served")?;
    }
    let kind = format!(r#""apiVersion": "{group}/v1", "kind": "Thing""#);
    for (method, rest, content, body) in OBJECTS {
        let method = method.parse().context("a method")?;
        let op = op(
            method,
            format!("{things}{rest}"),
            content,
            body.replace("@K", &kind),
        );
        found.extend(answers(left, right, &op, &namespace)?);
    }
    for (pointer, value) in UPDATES {
        let mut change = json!({});
        set(&mut change, (pointer, value));
        if pointer.contains("/0/") {
            // A merge replaces lists, so the version is sent as a whole.
            let mut version = good["spec"]["versions"].clone();
            let member = pointer.rsplit('/').next().unwrap_or_default();
            version[0][member] = serde_json::from_str(value)?;
            change = json!({"spec": {"versions": version}});
        }
        let op = op(
            Method::PATCH,
            format!("{path}?dryRun=All"),
            MERGE,
            change.to_string(),
        );
        found.extend(verdicts(left, right, &op)?);
    }
    for side in [left, right] {
        _ = side.wire.send(&Method::DELETE, &path, None);
        let namespace = format!("/api/v1/namespaces/{namespace}");
        _ = side.wire.send(&Method::DELETE, &namespace, None);
    }
    Ok(found)
}

fn op(method: Method, path: String, content: &'static str, body: String) -> Op {
    Op {
        method,
        path,
        content,
        body,
        resource: "things",
    }
}

/// Returns the difference if the responses are not equal.
fn answers(
    left: &mut Side,
    right: &mut Side,
    op: &Op,
    namespace: &str,
) -> Result<Option<Difference>> {
    let (left, right) = (left.play(op, namespace)?, right.play(op, namespace)?);
    Ok(difference(op, left, right))
}

/// Returns the difference if the servers do not reject for the same reasons. Accepted objects have a server-specific
/// status.
fn verdicts(left: &mut Side, right: &mut Side, op: &Op) -> Result<Option<Difference>> {
    let verdict = |answer: Value| {
        let body = &answer["body"];
        let refused = (body["kind"] == "Status").then_some(body);
        json!({"code": answer["code"], "refused": refused})
    };
    let (left, right) = (verdict(left.play(op, "")?), verdict(right.play(op, "")?));
    Ok(difference(op, left, right))
}

fn difference(op: &Op, left: Value, right: Value) -> Option<Difference> {
    (left != right).then(|| Difference {
        seed: 0,
        history: vec![op.to_string()],
        left,
        right,
    })
}
