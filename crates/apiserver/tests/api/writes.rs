//! Writes: preconditions, names, subresources, patches, dry runs, bodies.

use serde_json::{Value, json};

use crate::support::Server;
use crate::{LEASES, MAPS, create, is, map};

#[tokio::test]
async fn bodies_are_accepted_as_json_yaml_protobuf_or_without_content_type() {
    let server = Server::start().await;
    let yaml = b"metadata:\n  name: plain\ndata:\n  k: v\n".to_vec();
    let answer = server
        .send("POST", MAPS, &[("content-type", "application/yaml")], yaml)
        .await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    assert_eq!(answer.json()["data"]["k"], "v");
    let bare = br#"{"metadata":{"name":"bare"}}"#.to_vec();
    assert_eq!(server.send("POST", MAPS, &[], bare).await.status, 201);
    // Envelope with TypeMeta{v1, ConfigMap} and ConfigMap{metadata{name: "pb"}, data{k: v}}.
    let object = [
        b"\x0a\x04\x0a\x02pb".as_slice(),
        b"\x12\x06\x0a\x01k\x12\x01v",
    ]
    .concat();
    let mut unknown = b"\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12".to_vec();
    unknown.push(u8::try_from(object.len()).expect("short"));
    unknown.extend(object);
    let body = [b"k8s\0".as_slice(), &unknown].concat();
    let kind = [("content-type", "application/vnd.kubernetes.protobuf")];
    let answer = server.send("POST", MAPS, &kind, body).await;
    assert_eq!(answer.status, 201, "{}", answer.json());
    assert_eq!(answer.json()["data"]["k"], "v");
    let cbor = server
        .send(
            "POST",
            MAPS,
            &[("content-type", "application/cbor")],
            vec![1],
        )
        .await;
    is(&cbor, 415, "UnsupportedMediaType");
}

#[tokio::test]
async fn deletions_accept_protobuf_options_and_unusual_content_types() {
    let server = Server::start().await;
    for name in ["a", "b"] {
        create(&server, MAPS, map(name, "1")).await;
    }
    // TypeMeta{v1, DeleteOptions}, DeleteOptions{propagationPolicy: "Background"}.
    let options = b"\x22\x0aBackground".as_slice();
    let mut body = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x0c".to_vec();
    body.extend_from_slice(options);
    let kind = [("content-type", "application/vnd.kubernetes.protobuf")];
    let answer = server
        .send("DELETE", &format!("{MAPS}/a"), &kind, body)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let odd = [("content-type", "text/strange")];
    assert_eq!(
        server
            .send("DELETE", &format!("{MAPS}/b"), &odd, Vec::new())
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn put_without_a_version_depends_on_the_kind() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let put = server
        .call("PUT", &format!("{MAPS}/a"), Some(map("a", "2")))
        .await;
    assert_eq!((put.status, &put.json()["data"]["k"]), (200, &json!("2")));
    create(&server, LEASES, json!({"metadata": {"name": "l"}})).await;
    let body = json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": "x"}});
    is(
        &server.call("PUT", &format!("{LEASES}/l"), Some(body)).await,
        422,
        "Invalid",
    );
    let body = json!({"metadata": {"name": "l", "resourceVersion": "nonsense"}});
    is(
        &server.call("PUT", &format!("{LEASES}/l"), Some(body)).await,
        400,
        "BadRequest",
    );
}

#[tokio::test]
async fn status_and_main_resource_are_written_separately() {
    let server = Server::start().await;
    let nodes = "/api/v1/nodes";
    let body = json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"},
        "status": {"phase": "Running"}});
    let created = create(&server, nodes, body).await.json();
    assert_eq!(
        created["status"]["phase"], "Running",
        "a kubelet may create its node with a status"
    );
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "status": {"phase": "Running"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(
        create(&server, pods, pod).await.json()["status"]["phase"],
        "Pending"
    );
    let change = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"unschedulable": true},
        "status": {"phase": "Terminated"}});
    let status = server
        .call("PATCH", "/api/v1/nodes/n/status", Some(change.clone()))
        .await
        .json();
    assert_eq!(status["status"]["phase"], "Terminated");
    assert_eq!(status["metadata"]["labels"], json!({"a": "b"}));
    assert!(status["spec"].get("unschedulable").is_none());
    let change = json!({"spec": {"unschedulable": true}, "status": {"phase": "Pending"}});
    let main = server
        .call("PATCH", "/api/v1/nodes/n", Some(change))
        .await
        .json();
    assert_eq!(main["spec"]["unschedulable"], true);
    assert_eq!(main["status"]["phase"], "Terminated");
    let query = "/api/v1/nodes?fieldSelector=spec.unschedulable%3Dfalse";
    assert_eq!(
        server.call("GET", query, None).await.json()["items"],
        json!([])
    );
}

#[tokio::test]
async fn three_kinds_of_patches_are_applied_and_invalid_ones_rejected() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let path = format!("{MAPS}/a");
    let patch = async |kind: &str, body: &str| {
        let kind = format!("application/{kind}");
        server
            .send(
                "PATCH",
                &path,
                &[("content-type", &kind)],
                body.as_bytes().to_vec(),
            )
            .await
    };
    let done = patch("strategic-merge-patch+json", r#"{"data":{"x":"y"}}"#)
        .await
        .json();
    assert_eq!(done["data"], json!({"k": "1", "x": "y"}));
    let done = patch("json-patch+json", r#"[{"op":"remove","path":"/data/x"}]"#)
        .await
        .json();
    assert_eq!(done["data"], json!({"k": "1"}));
    is(&patch("merge-patch+json", "{").await, 400, "BadRequest");
    is(&patch("json-patch+json", "{}").await, 400, "BadRequest");
    is(
        &patch("json-patch+json", r#"[{"op":"remove","path":"/nope"}]"#).await,
        422,
        "Invalid",
    );
    is(
        &patch("merge-patch+json", r#"{"data":{"k":5}}"#).await,
        422,
        "Invalid",
    );
    is(
        &patch("merge-patch+json", r#"{"kind":"Pod"}"#).await,
        422,
        "Invalid",
    );
    is(
        &patch("merge-patch+json", r#"{"metadata":{"uid":"x"}}"#).await,
        422,
        "Invalid",
    );
    is(
        &patch("merge-patch+json", r#"{"metadata":{"name":"b"}}"#).await,
        400,
        "BadRequest",
    );
    is(
        &patch("apply-patch+cbor", "{}").await,
        415,
        "UnsupportedMediaType",
    );
    let strict = format!("{path}?fieldValidation=Strict");
    let kind = [("content-type", "application/merge-patch+json")];
    let bad = server
        .send("PATCH", &strict, &kind, br#"{"nope":1}"#.to_vec())
        .await;
    is(&bad, 422, "Invalid");
    let warn = patch("merge-patch+json", r#"{"nope":1}"#).await;
    assert_eq!(warn.headers["warning"], r#"299 - "unknown field \"nope\"""#);
    assert_eq!(warn.status, 200);
}

#[tokio::test]
async fn generated_names_differ() {
    let server = Server::start().await;
    let mut seen = std::collections::HashSet::new();
    for _ in 0..20 {
        let body = json!({"metadata": {"generateName": "g-"}});
        let made = create(&server, MAPS, body).await.json();
        assert!(seen.insert(made["metadata"]["name"].to_string()));
    }
}

#[tokio::test]
async fn dry_run_changes_nothing() {
    let server = Server::start().await;
    create(&server, MAPS, map("a", "1")).await;
    let before = server.store.revision();
    let dry = |path: &str| format!("{path}?dryRun=All");
    assert_eq!(
        server
            .call("POST", &dry(MAPS), Some(map("b", "1")))
            .await
            .status,
        201
    );
    let twice = server.call("POST", &dry(MAPS), Some(map("a", "1"))).await;
    is(&twice, 409, "AlreadyExists");
    let path = dry(&format!("{MAPS}/a"));
    assert_eq!(
        server.call("PUT", &path, Some(map("a", "2"))).await.json()["data"]["k"],
        "2"
    );
    let change = json!({"data": {"k": "3"}});
    assert_eq!(
        server.call("PATCH", &path, Some(change)).await.json()["data"]["k"],
        "3"
    );
    let bad = json!({"data": {"bad key": "3"}});
    is(
        &server.call("PATCH", &path, Some(bad)).await,
        422,
        "Invalid",
    );
    assert_eq!(server.call("DELETE", &path, None).await.status, 200);
    assert_eq!(server.store.revision(), before);
}

#[tokio::test]
async fn update_without_change_writes_nothing() {
    let server = Server::start().await;
    for (path, body) in [
        (MAPS, map("a", "1")),
        (
            "/api/v1/namespaces/default/secrets",
            json!({"metadata": {"name": "a"}, "stringData": {"a": "b"}}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "a"}, "spec": {"ports": [{"port": 80}]}}),
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        ),
        (
            "/api/v1/namespaces/default/events",
            json!({"metadata": {"name": "a"}, "involvedObject": {"namespace": "default"}}),
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"metadata": {"name": "a"}, "rules": []}),
        ),
    ] {
        let made = create(&server, path, body.clone()).await.json();
        let one = format!("{path}/a");
        let read = server.call("GET", &one, None).await.json();
        assert_eq!(made, read);
        let put = server.call("PUT", &one, Some(read.clone())).await;
        assert_eq!((put.status, put.json()), (200, read.clone()), "{path}");
        let patch = server.call("PATCH", &one, Some(json!({}))).await.json();
        assert_eq!(patch, read, "{path}");
        let again = server.call("PUT", &one, Some(body)).await.json();
        assert_eq!(again, read, "{path}");
    }
}

#[tokio::test]
async fn field_validation_warns_of_unknown_and_repeated_fields() {
    let server = Server::start().await;
    let body = br#"{"metadata":{"name":"w"},"data":{"a":"1","a":"2"},"bogus":1}"#.to_vec();
    let kind = [("content-type", "application/json")];
    let strict = server
        .send(
            "POST",
            &format!("{MAPS}?fieldValidation=Strict"),
            &kind,
            body.clone(),
        )
        .await;
    is(&strict, 400, "BadRequest");
    let warned = server.send("POST", MAPS, &kind, body).await;
    assert_eq!(warned.status, 201);
    let warnings: Vec<_> = warned.headers.get_all("warning").iter().collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[tokio::test]
async fn event_is_served_in_two_groups() {
    let server = Server::start().await;
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let old = "/api/v1/namespaces/default/events";
    let body = json!({"metadata": {"name": "e"}, "eventTime": "2026-01-02T03:04:05.000006Z",
        "reportingController": "x.io/c", "reportingInstance": "i", "action": "A", "reason": "R",
        "type": "Normal", "note": "hello", "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}});
    create(&server, new, body).await;
    let core = server.call("GET", &format!("{old}/e"), None).await.json();
    assert_eq!(core["apiVersion"], "v1");
    assert_eq!(core["message"], "hello");
    assert_eq!(core["involvedObject"]["name"], "p");
    assert_eq!(core["reportingComponent"], "x.io/c");
    let select = format!("{new}?fieldSelector=regarding.name%3Dp");
    let list = server.call("GET", &select, None).await.json();
    assert_eq!(list["items"][0]["note"], "hello");
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:05:05.000006Z"}});
    let kind = [("content-type", "application/strategic-merge-patch+json")];
    let patched = server
        .send(
            "PATCH",
            &format!("{new}/e"),
            &kind,
            series.to_string().into_bytes(),
        )
        .await;
    assert_eq!(patched.status, 200, "{}", patched.json());
    assert_eq!(patched.json()["series"]["count"], 2);
    let from = patched.version() - 1;
    let mut watch = server
        .watch(&format!("{new}?watch=1&resourceVersion={from}"))
        .await;
    let event: Value = watch.expect().await;
    assert_eq!(event["object"]["apiVersion"], "events.k8s.io/v1");
    assert_eq!(event["object"]["note"], "hello");
}

#[tokio::test]
async fn a_put_that_creates_needs_the_right_to_create() {
    let server = Server::start().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let rules = json!([{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["update"]}]);
    create(
        &server,
        &format!("{roles}/roles"),
        json!({"metadata": {"name": "r"}, "rules": rules}),
    )
    .await;
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "bob"}]});
    create(&server, &format!("{roles}/rolebindings"), binding).await;
    let bob = [
        ("authorization", "Bearer bobtoken"),
        ("content-type", "application/json"),
    ];
    let put = async |name: &str| {
        let body = json!({"metadata": {"name": name}}).to_string().into_bytes();
        let path = format!("{LEASES}/{name}");
        crate::support::request(server.address, "PUT", &path, &bob, body)
            .await
            .status()
            .as_u16()
    };
    assert_eq!(put("absent").await, 403);
    create(&server, LEASES, json!({"metadata": {"name": "present"}})).await;
    assert_eq!(put("present").await, 422);
}
