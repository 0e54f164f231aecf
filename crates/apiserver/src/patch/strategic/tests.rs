//! Strategic merge patches by example.

use serde_json::json;

use super::*;
use crate::schema;

fn apply(kind: &str, target: &Value, patch: &Value) -> Result<Value, Error> {
    let message = match kind {
        "Deployment" => schema::message("apps", "v1", kind),
        _ => schema::message("", "v1", kind),
    };
    strategic(message.unwrap(), target.clone(), patch.clone())
}

fn check(kind: &str, target: &Value, patch: &Value, expected: &Value) {
    assert_eq!(&apply(kind, target, patch).unwrap(), expected, "{patch}");
}

fn code(kind: &str, target: &Value, patch: &Value) -> u16 {
    apply(kind, target, patch).unwrap_err().code()
}

#[test]
fn recorded_strategic_patches_give_the_recorded_results() {
    let mut account = json!({"metadata": {"finalizers": ["x.io/a"]}, "secrets": [{"name": "one"}, {"name": "two"}]});
    for (patch, finalizers, secrets) in [
        (
            json!({"secrets": [{"name": "two", "namespace": "n"}, {"name": "three"}], "metadata": {"finalizers": ["x.io/b"]}}),
            json!(["x.io/b", "x.io/a"]),
            json!([{"name": "one"}, {"name": "two", "namespace": "n"}, {"name": "three"}]),
        ),
        (
            json!({"secrets": [{"$patch": "delete", "name": "one"}]}),
            json!(["x.io/b", "x.io/a"]),
            json!([{"name": "two", "namespace": "n"}, {"name": "three"}]),
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.io/a", "x.io/b"]}}),
            json!([]),
            json!([{"name": "two", "namespace": "n"}, {"name": "three"}]),
        ),
        (
            json!({"secrets": [{"$patch": "replace"}, {"name": "only"}]}),
            json!([]),
            json!([{"name": "only"}]),
        ),
        (
            json!({"$setElementOrder/secrets": [{"name": "z"}, {"name": "only"}], "secrets": [{"name": "z"}]}),
            json!([]),
            json!([{"name": "z"}, {"name": "only"}]),
        ),
    ] {
        account = apply("ServiceAccount", &account, &patch).unwrap();
        assert_eq!(
            account,
            json!({"metadata": {"finalizers": finalizers}, "secrets": secrets}),
            "{patch}"
        );
    }
}

#[test]
fn maps_merge_and_nulls_delete() {
    check(
        "ConfigMap",
        &json!({"data": {"a": "1", "b": "2"}, "immutable": true}),
        &json!({"data": {"a": null, "c": "3", "d": null}, "immutable": null, "metadata": {"labels": {"x": "y", "z": null}}}),
        &json!({"data": {"b": "2", "c": "3"}, "metadata": {"labels": {"x": "y"}}}),
    );
    check(
        "ConfigMap",
        &json!({"data": {"a": "1"}}),
        &json!({"data": {"$patch": "replace", "b": "2"}}),
        &json!({"data": {"b": "2"}}),
    );
    check(
        "ConfigMap",
        &json!({"data": {"a": "1"}}),
        &json!({"data": {"$patch": "delete"}}),
        &json!({"data": {}}),
    );
    check(
        "ConfigMap",
        &json!({}),
        &json!({"data": {"$patch": "delete"}}),
        &json!({}),
    );
}

#[test]
fn nested_lists_merge_by_their_own_keys() {
    let pod = json!({"spec": {"containers": [
        {"name": "a", "image": "x:1", "env": [{"name": "P", "value": "1"}], "args": ["1", "2"]},
        {"name": "b", "image": "y:1"},
    ]}});
    check(
        "Pod",
        &pod,
        &json!({"spec": {"containers": [{"name": "a", "image": "x:2", "env": [{"name": "Q", "value": "2"}], "args": ["3"]}]}}),
        &json!({"spec": {"containers": [
            {"name": "a", "image": "x:2", "env": [{"name": "Q", "value": "2"}, {"name": "P", "value": "1"}], "args": ["3"]},
            {"name": "b", "image": "y:1"},
        ]}}),
    );
    check(
        "Pod",
        &pod,
        &json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
                "containers": [{"name": "c", "image": "z"}]}}),
        &json!({"spec": {"containers": [
            {"name": "b", "image": "y:1"},
            {"name": "c", "image": "z"},
            {"name": "a", "image": "x:1", "env": [{"name": "P", "value": "1"}], "args": ["1", "2"]},
        ]}}),
    );
}

#[test]
fn elements_outside_the_order_keep_their_position() {
    // The server added "sidecar" between the two containers that the client knows.
    check(
        "Pod",
        &json!({"spec": {"containers": [{"name": "a"}, {"name": "sidecar"}, {"name": "b"}]}}),
        &json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}], "containers": [{"name": "b", "image": "i"}]}}),
        &json!({"spec": {"containers": [{"name": "a"}, {"name": "sidecar"}, {"name": "b", "image": "i"}]}}),
    );
    check(
        "ServiceAccount",
        &json!({"metadata": {"finalizers": ["s", "b", "a"]}}),
        &json!({"metadata": {"$setElementOrder/finalizers": ["a", "b", "c"], "finalizers": ["c"], "$deleteFromPrimitiveList/finalizers": ["x"]}}),
        &json!({"metadata": {"finalizers": ["s", "a", "b", "c"]}}),
    );
}

#[test]
fn retain_keys_clears_a_union() {
    check(
        "Pod",
        &json!({"spec": {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}}),
        &json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
        &json!({"spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}]}}),
    );
    check(
        "Deployment",
        &json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
        &json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
        &json!({"spec": {"strategy": {"type": "Recreate"}}}),
    );
    assert_eq!(
        code(
            "Pod",
            &json!({"spec": {}}),
            &json!({"spec": {"$retainKeys": ["a"], "nodeName": "b"}})
        ),
        400
    );
    assert_eq!(
        code(
            "Pod",
            &json!({"spec": {}}),
            &json!({"spec": {"$retainKeys": "a"}})
        ),
        400
    );
}

#[test]
fn owner_references_merge_by_uid() {
    check(
        "ConfigMap",
        &json!({"metadata": {"ownerReferences": [{"uid": "1", "name": "a"}, {"uid": "2", "name": "b"}]}}),
        &json!({"metadata": {"ownerReferences": [{"uid": "1", "$patch": "delete"}, {"uid": "2", "controller": true}]}}),
        &json!({"metadata": {"ownerReferences": [{"uid": "2", "name": "b", "controller": true}]}}),
    );
}

#[test]
fn directives_without_a_target_are_removed() {
    check(
        "Pod",
        &json!({}),
        &json!({"spec": {"containers": [{"name": "a", "$setElementOrder/env": [{"name": "E"}], "env": [{"name": "E"}, {"name": "F", "$patch": "delete"}]}],
                "$setElementOrder/containers": [{"name": "a"}], "$retainKeys": ["containers"]}}),
        &json!({"spec": {"containers": [{"name": "a", "env": [{"name": "E"}]}]}}),
    );
}

#[test]
fn invalid_strategic_patches_are_rejected() {
    let account = json!({"secrets": [{"name": "one"}], "metadata": {"finalizers": ["a"]}});
    assert_eq!(code("ServiceAccount", &account, &json!([])), 400);
    for (patch, expected) in [
        (json!({"$patch": "maybe"}), 422),
        (json!({"secrets": [{"namespace": "no key"}]}), 422),
        (json!({"secrets": [{"name": "x", "$patch": "merge"}]}), 422),
        (json!({"secrets": ["x"]}), 422),
        (json!({"secrets": [["x"]]}), 422),
        (json!({"metadata": {"finalizers": [1]}}), 422),
        (
            json!({"metadata": {"$deleteFromPrimitiveList": ["a"]}}),
            400,
        ),
        (
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [{"a": 1}]}}),
            422,
        ),
        (json!({"$setElementOrder/secrets": "x"}), 400),
        (
            json!({"$setElementOrder/secrets": [{"name": "b"}, {"name": "a"}], "secrets": [{"name": "a"}, {"name": "b"}]}),
            422,
        ),
        (
            json!({"$setElementOrder/secrets": [{}], "secrets": [{"name": "a"}]}),
            422,
        ),
        (json!({"$setElementOrder/nope": [], "nope": [1]}), 422),
        (
            json!({"$setElementOrder/secrets": [], "secrets": {"a": 1}}),
            422,
        ),
    ] {
        assert_eq!(
            code("ServiceAccount", &account, &patch),
            expected,
            "{patch}"
        );
    }
}
