//! Kinds that clients define.
#![allow(
    clippy::needless_pass_by_value,
    reason = "tests pass temporary objects by value"
)]

use serde_json::{Value, json};

use crate::support::{Answer, Server};
use crate::{create, is};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/t.example/v1/namespaces/default/widgets";

fn widgets() -> Value {
    let schema = json!({"type": "object", "description": "A widget.", "properties": {
        "spec": {"type": "object", "properties": {
            "replicas": {"type": "integer", "default": 1, "minimum": 0},
            "color": {"type": "string", "enum": ["red", "blue"], "default": "red"},
            "parts": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"], "items": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"},
            "selector": {"type": "string"}}}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage,
            "schema": {"openAPIV3Schema": schema},
            "selectableFields": [{"jsonPath": ".spec.color"}],
            "additionalPrinterColumns": [
                {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}}})
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.t.example"},
        "spec": {"group": "t.example", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [version("v1", true), version("v1beta1", false)]}})
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "t.example/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

async fn with_widgets() -> Server {
    let server = Server::start().await;
    let made = create(&server, DEFINITIONS, widgets()).await.json();
    let conditions = made["status"]["conditions"]
        .as_array()
        .expect("conditions")
        .clone();
    assert!(
        conditions
            .iter()
            .any(|c| c["type"] == "Established" && c["status"] == "True")
    );
    server
}

async fn gone(server: &Server, path: &str) -> Answer {
    for _ in 0..200 {
        let answer = server.call("GET", path, None).await;
        if answer.status == 404 {
            return answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{path} stays");
}

#[tokio::test]
async fn a_kind_is_served_as_soon_as_it_is_defined() {
    let server = with_widgets().await;
    let made = create(&server, WIDGETS, widget("w", json!({})))
        .await
        .json();
    assert_eq!(made["spec"], json!({"color": "red", "replicas": 1}));
    assert_eq!(made["metadata"]["generation"], 1);
    let other = server
        .call(
            "GET",
            "/apis/t.example/v1beta1/namespaces/default/widgets/w",
            None,
        )
        .await;
    assert_eq!(other.json()["apiVersion"], "t.example/v1beta1");
    let lists = server
        .call("GET", "/apis/t.example/v1/widgets", None)
        .await
        .json();
    assert_eq!(
        (
            lists["kind"].as_str(),
            lists["items"][0]["metadata"]["name"].as_str()
        ),
        (Some("WidgetList"), Some("w"))
    );
    let group = server.call("GET", "/apis/t.example", None).await.json();
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let resources = server.call("GET", "/apis/t.example/v1", None).await.json();
    let names: Vec<&str> = resources["resources"]
        .as_array()
        .expect("list")
        .iter()
        .map(|r| r["name"].as_str().expect("name"))
        .collect();
    assert_eq!(names, ["widgets", "widgets/scale", "widgets/status"]);
    let groups = server.call("GET", "/apis", None).await.json();
    assert!(
        groups["groups"]
            .as_array()
            .expect("list")
            .iter()
            .any(|g| g["name"] == "t.example")
    );
    let document = server
        .call("GET", "/openapi/v3/apis/t.example/v1", None)
        .await
        .json();
    let schema = &document["components"]["schemas"]["example.t.v1.Widget"];
    assert_eq!(schema["description"], "A widget.");
    assert_eq!(
        schema["properties"]["spec"]["properties"]["color"]["default"],
        "red"
    );
    let index = server.call("GET", "/openapi/v3", None).await.json();
    assert!(index["paths"].get("apis/t.example/v1beta1").is_some());
}

#[tokio::test]
async fn lists_select_by_the_fields_of_the_definition() {
    let server = with_widgets().await;
    create(&server, WIDGETS, widget("r", json!({}))).await;
    create(&server, WIDGETS, widget("b", json!({"color": "blue"}))).await;
    let blue = format!("{WIDGETS}?fieldSelector=spec.color%3Dblue");
    let found = server.call("GET", &blue, None).await.json();
    assert_eq!(found["items"].as_array().expect("items").len(), 1);
    is(
        &server
            .call("GET", &format!("{WIDGETS}?fieldSelector=spec.x%3D1"), None)
            .await,
        400,
        "BadRequest",
    );
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.send("GET", WIDGETS, &table, Vec::new()).await.json();
    let names: Vec<&str> = table["columnDefinitions"]
        .as_array()
        .expect("list")
        .iter()
        .map(|c| c["name"].as_str().expect("name"))
        .collect();
    assert_eq!(names, ["Name", "Replicas", "Color", "Age"]);
    assert_eq!(table["rows"][0]["cells"][1], 1);
    assert_eq!(table["rows"][0]["cells"][2], "blue");
}

#[tokio::test]
async fn custom_list_items_have_kind_and_api_version() {
    let server = with_widgets().await;
    create(&server, WIDGETS, widget("a", json!({}))).await;
    let list = server.call("GET", WIDGETS, None).await.json();
    assert_eq!(list["metadata"]["continue"], "");
    let item = &list["items"][0];
    let said = (&item["apiVersion"], &item["kind"]);
    assert_eq!(said, (&json!("t.example/v1"), &json!("Widget")));
    assert_eq!(item["metadata"]["name"], "a");
}

#[tokio::test]
async fn scale_and_status_are_separate_subresources() {
    let server = with_widgets().await;
    create(&server, WIDGETS, widget("w", json!({"replicas": 2}))).await;
    let one = format!("{WIDGETS}/w");
    let scale = server
        .call("GET", &format!("{one}/scale"), None)
        .await
        .json();
    assert_eq!(
        (&scale["kind"], &scale["spec"]),
        (&json!("Scale"), &json!({"replicas": 2}))
    );
    let mut more = scale.clone();
    more["spec"]["replicas"] = json!(5);
    let put = server
        .call("PUT", &format!("{one}/scale"), Some(more.clone()))
        .await;
    assert_eq!(
        (put.status, put.json()["spec"]["replicas"].as_i64()),
        (200, Some(5))
    );
    is(
        &server
            .call("PUT", &format!("{one}/scale"), Some(more))
            .await,
        409,
        "Conflict",
    );
    let patch = json!({"spec": {"replicas": -1}});
    is(
        &server
            .call("PATCH", &format!("{one}/scale"), Some(patch))
            .await,
        422,
        "Invalid",
    );
    let patch = json!({"spec": {"replicas": "5"}});
    let path = format!("{one}/scale");
    is(
        &server.call("PATCH", &path, Some(patch)).await,
        400,
        "BadRequest",
    );
    let status = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 9},
        "status": {"replicas": 4, "selector": "x=y"}});
    let stored = server
        .call("PATCH", &format!("{one}/status"), Some(status))
        .await
        .json();
    assert_eq!(
        (&stored["spec"]["replicas"], &stored["status"]["replicas"]),
        (&json!(5), &json!(4))
    );
    assert_eq!(stored["metadata"].get("labels"), None);
    assert_eq!(stored["metadata"]["generation"], 2);
    let scale = server
        .call("GET", &format!("{one}/scale"), None)
        .await
        .json();
    assert_eq!(scale["status"], json!({"replicas": 4, "selector": "x=y"}));
    let owners: Vec<_> = stored["metadata"]["managedFields"]
        .as_array()
        .expect("owners")
        .iter()
        .map(|o| o["subresource"].as_str().unwrap_or_default())
        .collect();
    assert!(
        owners.contains(&"scale") && owners.contains(&"status"),
        "{owners:?}"
    );
}

#[tokio::test]
async fn custom_lists_merge_by_key_when_applied() {
    let server = with_widgets().await;
    let kind = [("content-type", "application/apply-patch+yaml")];
    let path = format!("{WIDGETS}/w");
    let apply = async |manager: &str, spec: Value| {
        let target = format!("{path}?fieldManager={manager}");
        server
            .send(
                "PATCH",
                &target,
                &kind,
                widget("w", spec).to_string().into_bytes(),
            )
            .await
    };
    let part = |name: &str, size: i64| json!({"name": name, "size": size});
    assert_eq!(
        apply("a", json!({"parts": [part("x", 1)]})).await.status,
        201
    );
    let both = apply("b", json!({"parts": [part("y", 2)]})).await.json();
    assert_eq!(both["spec"]["parts"], json!([part("x", 1), part("y", 2)]));
    let conflict = apply("b", json!({"parts": [part("x", 3)]})).await;
    is(&conflict, 409, "Conflict");
    assert_eq!(
        conflict.json()["details"]["causes"][0]["field"],
        ".spec.parts[name=\"x\"].size"
    );
    assert_eq!(apply("b", json!({"bogus": 1})).await.status, 500);
    let left = apply("a", json!({})).await.json();
    assert_eq!(left["spec"]["parts"], json!([part("y", 2)]));
}

#[tokio::test]
async fn invalid_objects_and_definitions_are_rejected() {
    let server = with_widgets().await;
    let bad = widget(
        "w",
        json!({"replicas": -1, "color": 5, "parts": [{"size": "x"}]}),
    );
    let refused = server.call("POST", WIDGETS, Some(bad)).await;
    is(&refused, 422, "Invalid");
    let fields: Vec<String> = refused.json()["details"]["causes"]
        .as_array()
        .expect("causes")
        .iter()
        .map(|c| c["field"].as_str().expect("field").to_owned())
        .collect();
    assert_eq!(
        fields,
        [
            "spec.color",
            "spec.parts[0].size",
            "spec.parts[0].name",
            "spec.replicas"
        ]
    );
    let strict = format!("{WIDGETS}?fieldValidation=Strict");
    is(
        &server
            .call("POST", &strict, Some(widget("w", json!({"x": 1}))))
            .await,
        400,
        "BadRequest",
    );
    let wrong = json!({"apiVersion": "t.example/v1", "kind": "Other", "metadata": {"name": "w"}});
    is(
        &server.call("POST", WIDGETS, Some(wrong)).await,
        422,
        "Invalid",
    );
    let one = format!("{DEFINITIONS}/widgets.t.example");
    let fixed = server
        .call("PATCH", &one, Some(json!({"spec": {"scope": "Cluster"}})))
        .await;
    is(&fixed, 422, "Invalid");
    let mut clash = widgets();
    clash["metadata"]["name"] = json!("gadgets.t.example");
    clash["spec"]["names"] = json!({"plural": "gadgets", "kind": "Widget"});
    let clash = create(&server, DEFINITIONS, clash).await.json();
    let accepted = clash["status"]["conditions"]
        .as_array()
        .expect("list")
        .iter()
        .find(|c| c["type"] == "NamesAccepted")
        .expect("there");
    assert_eq!(accepted["status"], "False");
    assert_eq!(
        server
            .call("GET", "/apis/t.example/v1/namespaces/default/gadgets", None)
            .await
            .status,
        404
    );
}

#[tokio::test]
async fn deleting_a_definition_deletes_its_objects() {
    let server = with_widgets().await;
    create(&server, WIDGETS, widget("free", json!({}))).await;
    let mut held = widget("held", json!({}));
    held["metadata"]["finalizers"] = json!(["t.example/hold"]);
    create(&server, WIDGETS, held).await;
    let one = format!("{DEFINITIONS}/widgets.t.example");
    let ending = server.call("DELETE", &one, None).await.json();
    assert_eq!(
        ending["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.k8s.io"])
    );
    gone(&server, &format!("{WIDGETS}/free")).await;
    assert_eq!(server.call("GET", &one, None).await.status, 200);
    is(
        &server
            .call("POST", WIDGETS, Some(widget("new", json!({}))))
            .await,
        405,
        "MethodNotAllowed",
    );
    let release = json!({"metadata": {"finalizers": null}});
    server
        .call("PATCH", &format!("{WIDGETS}/held"), Some(release))
        .await;
    gone(&server, &one).await;
    assert_eq!(server.call("GET", WIDGETS, None).await.status, 404);
    create(&server, DEFINITIONS, widgets()).await;
    let none = server.call("GET", WIDGETS, None).await.json();
    assert_eq!(none["items"], json!([]));
}

#[tokio::test]
async fn definitions_survive_a_restart_and_namespaces_take_their_objects() {
    let server = with_widgets().await;
    create(
        &server,
        "/api/v1/namespaces",
        json!({"metadata": {"name": "n"}}),
    )
    .await;
    let path = "/apis/t.example/v1/namespaces/n/widgets";
    create(&server, path, widget("w", json!({}))).await;
    let again = Server::start_on(server.store.clone()).await;
    assert_eq!(
        again.call("GET", &format!("{path}/w"), None).await.status,
        200
    );
    again.call("DELETE", "/api/v1/namespaces/n", None).await;
    gone(&again, "/api/v1/namespaces/n").await;
    assert_eq!(
        again.call("GET", &format!("{path}/w"), None).await.status,
        404
    );
}

#[tokio::test]
async fn definitions_of_snapshots_and_gateways_are_accepted() {
    let server = Server::start().await;
    let yaml = [("content-type", "application/yaml")];
    for text in [
        include_str!("../fixtures/crds/volumesnapshots.yaml"),
        include_str!("../fixtures/crds/referencegrants.yaml"),
    ] {
        let made = server
            .send("POST", DEFINITIONS, &yaml, text.as_bytes().to_vec())
            .await;
        assert_eq!(made.status, 201, "{}", made.json());
    }
    let snapshots = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
    let of = |source: Value| {
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s"}, "spec": {"source": source}})
    };
    let both = json!({"persistentVolumeClaimName": "c", "volumeSnapshotContentName": "d"});
    is(
        &server.call("POST", snapshots, Some(of(both))).await,
        422,
        "Invalid",
    );
    is(
        &server.call("POST", snapshots, Some(of(json!({})))).await,
        422,
        "Invalid",
    );
    create(
        &server,
        snapshots,
        of(json!({"persistentVolumeClaimName": "c"})),
    )
    .await;
    let status = json!({"status": {"readyToUse": true, "restoreSize": "1Gi"}});
    let done = server
        .call("PATCH", &format!("{snapshots}/s/status"), Some(status))
        .await;
    assert_eq!(done.status, 200, "{}", done.json());
    let bad = json!({"status": {"restoreSize": "much"}});
    is(
        &server
            .call("PATCH", &format!("{snapshots}/s/status"), Some(bad))
            .await,
        422,
        "Invalid",
    );
    let grants = "/apis/gateway.networking.k8s.io/v1alpha2/namespaces/default/referencegrants";
    let grant = json!({"apiVersion": "gateway.networking.k8s.io/v1alpha2", "kind": "ReferenceGrant",
        "metadata": {"name": "g"}, "spec": {
        "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": "other"}],
        "to": [{"group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot"}]}});
    let made = create(&server, grants, grant).await;
    assert_eq!(made.headers["warning"], "299 - \"use v1beta1\"");
    let empty = json!({"apiVersion": "gateway.networking.k8s.io/v1alpha2", "kind": "ReferenceGrant",
        "metadata": {"name": "e"}, "spec": {"from": [], "to": []}});
    let refused = server.call("POST", grants, Some(empty)).await;
    assert_eq!(
        refused.json()["details"]["causes"].as_array().map(Vec::len),
        Some(2)
    );
}

/// Deleting a definition that was never served deletes no objects, even if it has the names of another kind.
#[tokio::test]
async fn deleting_an_unserved_definition_keeps_objects_of_the_kind_with_its_names() {
    let server = Server::start().await;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let lease =
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}});
    create(&server, leases, lease).await;
    let mut imitation = widgets();
    imitation["metadata"] = json!({"name": "leases.coordination.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}});
    imitation["spec"]["group"] = json!("coordination.k8s.io");
    imitation["spec"]["names"] = json!({"plural": "leases", "kind": "Lease"});
    create(&server, DEFINITIONS, imitation).await;
    let one = format!("{DEFINITIONS}/leases.coordination.k8s.io");
    assert_eq!(server.call("DELETE", &one, None).await.status, 200);
    let gone = async {
        while server.call("GET", &one, None).await.status != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(20), gone).await;
    waited.expect("the definition was not deleted");
    let kept = server.call("GET", &format!("{leases}/l"), None).await;
    assert_eq!(kept.status, 200);
}

/// Every stored object can be parsed again, including its managed fields.
#[tokio::test]
async fn objects_that_nest_too_deeply_are_refused() {
    let server = Server::start().await;
    let mut open = widgets();
    open["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] =
        json!(true);
    create(&server, DEFINITIONS, open).await;
    let deep = (0..118).fold(json!(1), |inner, _| json!({ "a": inner }));
    let mut object = widget("w", json!({}));
    object["deep"] = deep;
    is(
        &server.call("POST", WIDGETS, Some(object)).await,
        400,
        "BadRequest",
    );
}

/// Returns a definition of a kind with these versions.
fn definition(plural: &str, kind: &str, versions: &[Value]) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"color": {"type": "string"}, "size": {"type": "string"}}}}});
    let versions = versions.iter().enumerate().map(|(index, more)| {
        let mut version = json!({"name": format!("v{}", index + 1), "served": true,
            "storage": index == 0, "schema": {"openAPIV3Schema": schema}});
        for (member, value) in more.as_object().expect("members") {
            version[member] = value.clone();
        }
        version
    });
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.t.example")},
        "spec": {"group": "t.example", "scope": "Namespaced",
            "names": {"plural": plural, "kind": kind}, "versions": versions.collect::<Vec<_>>()}})
}

#[tokio::test]
async fn every_version_has_its_own_subresources_and_selectors() {
    let server = Server::start().await;
    let with_status = json!({"subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".spec.color"}]});
    let with_scale = json!({"selectableFields": [{"jsonPath": ".spec.size"}],
        "subresources": {"scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas"}}});
    let made = definition("gears", "Gear", &[with_status, with_scale]);
    create(&server, DEFINITIONS, made).await;
    let (one, two) = (
        "/apis/t.example/v1/namespaces/default/gears",
        "/apis/t.example/v2/namespaces/default/gears",
    );
    let gear = |version: &str| {
        json!({"apiVersion": format!("t.example/{version}"), "kind": "Gear",
            "metadata": {"name": version}, "spec": {"color": "red", "size": "big", "replicas": 2},
            "status": {"replicas": 1}})
    };
    let first = create(&server, one, gear("v1")).await.json();
    assert_eq!(
        first.get("status"),
        None,
        "the status is a separate subresource"
    );
    let second = create(&server, two, gear("v2")).await.json();
    assert_eq!(second["status"], json!({"replicas": 1}));

    let status = async |path: String| server.call("GET", &path, None).await.status;
    assert_eq!(status(format!("{one}/v1/status")).await, 200);
    assert_eq!(status(format!("{one}/v1/scale")).await, 404);
    assert_eq!(status(format!("{two}/v1/status")).await, 404);
    assert_eq!(status(format!("{two}/v1/scale")).await, 200);
    let select = |field: &str| format!("fieldSelector=spec.{field}%3Dx");
    assert_eq!(status(format!("{one}?{}", select("color"))).await, 200);
    assert_eq!(status(format!("{one}?{}", select("size"))).await, 400);
    assert_eq!(status(format!("{two}?{}", select("color"))).await, 400);
    let big = format!("{two}?fieldSelector=spec.size%3Dbig");
    let big = server.call("GET", &big, None).await.json();
    assert_eq!(big["items"].as_array().map(Vec::len), Some(2));

    for (version, names) in [
        ("v1", ["gears", "gears/status"]),
        ("v2", ["gears", "gears/scale"]),
    ] {
        let path = format!("/apis/t.example/{version}");
        let list = server.call("GET", &path, None).await.json();
        let found: Vec<&str> = list["resources"]
            .as_array()
            .expect("list")
            .iter()
            .map(|resource| resource["name"].as_str().expect("name"))
            .collect();
        assert_eq!(found, names);
    }
}

#[tokio::test]
async fn status_without_subresource_counts_as_content() {
    let server = Server::start().await;
    let path = "/apis/t.example/v1/namespaces/default";
    for (plural, kind, more, counted) in [
        ("plains", "Plain", json!({}), 2),
        ("fulls", "Full", json!({"subresources": {"status": {}}}), 1),
    ] {
        create(&server, DEFINITIONS, definition(plural, kind, &[more])).await;
        let object = json!({"apiVersion": "t.example/v1", "kind": kind, "metadata": {"name": "x"}});
        create(&server, &format!("{path}/{plural}"), object).await;
        let one = format!("{path}/{plural}/x");
        let change = async |change: Value| {
            let changed = server.call("PATCH", &one, Some(change)).await.json();
            changed["metadata"]["generation"].clone()
        };
        let status = json!({"status": {"phase": "Done"}});
        assert_eq!(change(status).await, counted, "{plural}");
        let labels = json!({"metadata": {"labels": {"a": "b"}}});
        assert_eq!(change(labels).await, counted, "{plural}");
        let spec = json!({"spec": {"color": "red"}});
        assert_eq!(change(spec).await, counted + 1, "{plural}");
    }
}

#[tokio::test]
async fn name_belongs_to_first_definition_until_it_is_deleted() {
    let server = Server::start().await;
    let condition = async |name: &str, kind: &str| {
        let path = format!("{DEFINITIONS}/{name}.t.example");
        let definition = server.call("GET", &path, None).await.json();
        let conditions = definition["status"]["conditions"].as_array().cloned();
        let found = conditions.into_iter().flatten().find(|c| c["type"] == kind);
        found.map_or(Value::Null, |condition| condition["status"].clone())
    };
    let named = |plural: &str, kind: &str, short: &str| {
        let mut definition = definition(plural, kind, &[json!({})]);
        definition["spec"]["names"]["shortNames"] = json!([short]);
        definition
    };
    create(&server, DEFINITIONS, named("firsts", "First", "f")).await;
    create(&server, DEFINITIONS, named("seconds", "Second", "f")).await;
    assert_eq!(condition("seconds", "NamesAccepted").await, "False");
    assert_eq!(condition("seconds", "Established").await, "False");
    let seconds = "/apis/t.example/v1/namespaces/default/seconds";
    assert_eq!(server.call("GET", seconds, None).await.status, 404);

    // An update of the names is evaluated again: a free name is accepted, a taken one is refused.
    let ask = async |name: &str, short: &str| {
        let path = format!("{DEFINITIONS}/{name}.t.example");
        let names = json!({"spec": {"names": {"shortNames": [short]}}});
        let answer = server.call("PATCH", &path, Some(names)).await;
        assert_eq!(answer.status, 200, "{}", answer.json());
        answer.json()["status"]["acceptedNames"]["shortNames"].clone()
    };
    assert_eq!(ask("seconds", "s").await, json!(["s"]));
    assert_eq!(condition("seconds", "Established").await, "True");
    assert_eq!(server.call("GET", seconds, None).await.status, 200);
    assert_eq!(
        ask("seconds", "f").await,
        json!(["s"]),
        "the accepted names must not change"
    );
    assert_eq!(condition("seconds", "NamesAccepted").await, "False");
    assert_eq!(condition("seconds", "Established").await, "True");
    let list = server.call("GET", "/apis/t.example/v1", None).await.json();
    let second = list["resources"].as_array().expect("list").iter();
    let mut second = second.filter(|resource| resource["name"] == "seconds");
    assert_eq!(second.next().expect("served")["shortNames"], json!(["s"]));

    let first = format!("{DEFINITIONS}/firsts.t.example");
    server.call("DELETE", &first, None).await;
    let accepted = async {
        while condition("seconds", "NamesAccepted").await != "True" {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(std::time::Duration::from_secs(120), accepted).await;
    waited.expect("the name was not released");
    let path = format!("{DEFINITIONS}/seconds.t.example");
    let second = server.call("GET", &path, None).await.json();
    assert_eq!(
        second["status"]["acceptedNames"]["shortNames"],
        json!(["f"])
    );
}

#[tokio::test]
async fn objects_from_before_a_rule_can_still_be_changed() {
    let server = Server::start().await;
    create(
        &server,
        DEFINITIONS,
        definition("olds", "Old", &[json!({})]),
    )
    .await;
    let path = "/apis/t.example/v1/namespaces/default/olds";
    let old = json!({"apiVersion": "t.example/v1", "kind": "Old",
        "metadata": {"name": "o", "finalizers": ["t.example/f"]},
        "spec": {"color": "purple", "size": "huge"}});
    create(&server, path, old).await;
    let rules = json!([
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color/enum",
            "value": ["red", "blue"]},
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/size/maxLength",
            "value": 3}]);
    let kind = [("content-type", "application/json-patch+json")];
    let definition = format!("{DEFINITIONS}/olds.t.example");
    let ruled = server
        .send("PATCH", &definition, &kind, rules.to_string().into_bytes())
        .await;
    assert_eq!(ruled.status, 200, "{}", ruled.json());
    let one = format!("{path}/o");
    let change = async |change: Value| server.call("PATCH", &one, Some(change)).await;
    let answer = change(json!({"spec": {"size": "big"}})).await;
    assert_eq!(answer.status, 200, "the color must not change");
    let refused = change(json!({"spec": {"color": "green"}})).await;
    is(&refused, 422, "Invalid");
    assert_eq!(
        refused.json()["details"]["causes"][0]["field"],
        "spec.color"
    );
    server.call("DELETE", &one, None).await;
    let answer = change(json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    assert_eq!(server.call("GET", &one, None).await.status, 404);
}

#[tokio::test]
async fn unqualified_finalizer_of_custom_resource_is_accepted_with_a_warning() {
    let server = with_widgets().await;
    let mut body = widget("w", json!({}));
    body["metadata"]["finalizers"] = json!(["mine", "example.com", "example.com/done", "orphan"]);
    let made = create(&server, WIDGETS, body).await;
    let warnings = |answer: &Answer| -> Vec<String> {
        let all = answer.headers.get_all("warning").into_iter();
        all.map(|value| value.to_str().unwrap().to_owned())
            .collect()
    };
    let end = "to avoid accidental conflicts with other finalizer writers\"";
    let start = "299 - \"metadata.finalizers:";
    let expected = [
        format!(
            "{start} \\\"example.com\\\": prefer a domain-qualified finalizer name including a path (/) {end}"
        ),
        format!("{start} \\\"mine\\\": prefer a domain-qualified finalizer name {end}"),
    ];
    assert_eq!(warnings(&made), expected);
    // A later write warns only about the finalizers that it adds.
    let path = format!("{WIDGETS}/w");
    let change = json!({"metadata": {"finalizers": ["mine", "other"]}});
    let changed = server.call("PATCH", &path, Some(change)).await;
    assert_eq!(changed.status, 200);
    let other = format!("{start} \\\"other\\\": prefer a domain-qualified finalizer name {end}");
    assert_eq!(warnings(&changed), [other]);
    let bad = json!({"metadata": {"finalizers": ["not a name"]}});
    is(
        &server.call("PATCH", &path, Some(bad)).await,
        422,
        "Invalid",
    );
}

#[tokio::test]
async fn schema_may_have_properties_and_any_additional_ones() {
    let server = Server::start().await;
    let mut definition = widgets();
    for version in 0..2 {
        let schema = &mut definition["spec"]["versions"][version]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["additionalProperties"] = json!(true);
    }
    create(&server, DEFINITIONS, definition.clone()).await;
    let spec = json!({"size": 7, "list": [1, {"a": 1}], "map": {"a": 1}});
    let made = create(&server, WIDGETS, widget("w", spec)).await.json();
    let spec = json!({"size": 7, "list": [1, {}], "map": {}, "color": "red", "replicas": 1});
    assert_eq!(made["spec"], spec);
    for refused in [json!(false), json!({"type": "string"})] {
        definition["metadata"]["name"] = json!("gadgets.t.example");
        definition["spec"]["names"] = json!({"plural": "gadgets", "kind": "Gadget"});
        let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["additionalProperties"] = refused;
        let answer = server
            .call("POST", DEFINITIONS, Some(definition.clone()))
            .await;
        is(&answer, 422, "Invalid");
    }
}

#[tokio::test]
async fn new_default_of_a_schema_is_in_the_responses_of_reads() {
    let server = with_widgets().await;
    create(&server, WIDGETS, widget("w", json!({}))).await;
    let path = format!("{DEFINITIONS}/widgets.t.example");
    let mut definition = server.call("GET", &path, None).await.json();
    for version in 0..2 {
        let schema = &mut definition["spec"]["versions"][version]["schema"]["openAPIV3Schema"];
        schema["properties"]["spec"]["properties"]["shape"] =
            json!({"type": "string", "default": "round"});
    }
    assert_eq!(
        server.call("PUT", &path, Some(definition)).await.status,
        200
    );
    let got = server
        .call("GET", &format!("{WIDGETS}/w"), None)
        .await
        .json();
    assert_eq!(got["spec"]["shape"], "round");
    let listed = server.call("GET", WIDGETS, None).await.json();
    assert_eq!(listed["items"][0], got);
    let mut watch = server
        .watch(&format!("{WIDGETS}?watch=true&resourceVersion=0"))
        .await;
    assert_eq!(watch.expect().await["object"], got);
    // A write that changes nothing else leaves the stored object as it is.
    let version = &got["metadata"]["resourceVersion"];
    let put = server
        .call("PUT", &format!("{WIDGETS}/w"), Some(got.clone()))
        .await
        .json();
    assert_eq!(put["metadata"]["resourceVersion"], *version);
    assert_eq!(put["spec"]["shape"], "round");
}
