//! Server-side apply, and the owners that every write leaves.

use serde_json::{Value, json};

use crate::support::{Answer, Server};
use crate::{create, is};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn apply(server: &Server, path: &str, query: &str, body: &str) -> Answer {
    let kind = [("content-type", "application/apply-patch+yaml")];
    let target = format!("{path}?{query}");
    server
        .send("PATCH", &target, &kind, body.as_bytes().to_vec())
        .await
}

fn map(data: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data})
        .to_string()
}

fn owners(object: &Value) -> Vec<(String, String, Value)> {
    let list = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |entry: &Value, name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    list.iter()
        .map(|e| {
            (
                text(e, "manager"),
                text(e, "operation"),
                e["fieldsV1"].clone(),
            )
        })
        .collect()
}

#[tokio::test]
async fn mistakes_get_the_answers_of_the_real_server() {
    let server = Server::start().await;
    let path = format!("{MAPS}/m");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut body: Value = serde_json::from_str(&map(&json!({"a": "1"}))).expect("JSON");
        change(&mut body);
        body.to_string()
    };
    let cases = [
        (with(&|b| b["foo"] = json!(1)), 500, ""),
        (with(&|b| b["data"]["a"] = json!(1)), 500, ""),
        (with(&|b| b["apiVersion"] = json!("v2")), 400, "BadRequest"),
        (with(&|b| b["kind"] = json!("Secret")), 400, "BadRequest"),
        (
            with(&|b| b["metadata"]["name"] = json!("other")),
            400,
            "BadRequest",
        ),
        (
            with(&|b| b["metadata"]["managedFields"] = json!([])),
            400,
            "BadRequest",
        ),
        (with(&|b| b["data"] = json!({"a/b": "1"})), 422, "Invalid"),
        ("[1]".to_owned(), 400, "BadRequest"),
        ("{a".to_owned(), 400, "BadRequest"),
    ];
    for (body, code, reason) in cases {
        let answer = apply(&server, &path, "fieldManager=t", &body).await;
        assert_eq!(answer.status, code, "{body}");
        assert_eq!(
            answer.json()["reason"].as_str().unwrap_or_default(),
            reason,
            "{body}"
        );
    }
    let unknown = apply(
        &server,
        &path,
        "fieldManager=t",
        &with(&|b| b["foo"] = json!(1)),
    )
    .await;
    assert_eq!(
        unknown.json()["message"],
        "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .foo: field not declared in \
         schema"
    );
    is(
        &apply(&server, &path, "", &with(&|_| {})).await,
        422,
        "Invalid",
    );
    let twice = r#"{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"1"},"data":{}}"#;
    let strict = apply(
        &server,
        &path,
        "fieldManager=t&fieldValidation=Strict",
        twice,
    )
    .await;
    is(&strict, 400, "BadRequest");
    let forced = server
        .call(
            "PATCH",
            &format!("{path}?force=true"),
            Some(json!({"data": {}})),
        )
        .await;
    is(&forced, 422, "Invalid");
    let absent = "/api/v1/namespaces/absent/configmaps/m";
    is(
        &apply(&server, absent, "fieldManager=t", &map(&json!({}))).await,
        404,
        "NotFound",
    );
    assert_eq!(server.call("GET", &path, None).await.status, 404);
}

#[tokio::test]
async fn yaml_creates_and_the_same_again_writes_nothing() {
    let server = Server::start().await;
    let path = format!("{MAPS}/m");
    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  labels: {a: b}\ndata:\n  x: '1'\n";
    let made = apply(&server, &path, "fieldManager=t", yaml).await;
    assert_eq!(made.status, 201);
    let again = apply(&server, &path, "fieldManager=t", yaml).await;
    assert_eq!((again.status, again.json()), (200, made.json()));
    let dry = apply(
        &server,
        &path,
        "fieldManager=t&dryRun=All",
        &map(&json!({"x": "2"})),
    )
    .await;
    assert_eq!(dry.json()["data"], json!({"x": "2"}));
    assert_eq!(server.call("GET", &path, None).await.json(), made.json());
    let moved = apply(&server, &path, "fieldManager=t", &map(&json!({"y": "2"})))
        .await
        .json();
    assert_eq!(moved["data"], json!({"y": "2"}));
    assert_eq!(moved["metadata"].get("labels"), None);
}

#[tokio::test]
async fn every_way_of_writing_leaves_its_owner() {
    let server = Server::start().await;
    let of = |name: &str| json!({"metadata": {"name": "m"}, "data": {name: "1"}});
    let agent = [
        ("user-agent", "prog/v1.2 (x)"),
        ("content-type", "application/json"),
    ];
    let body = of("a").to_string().into_bytes();
    let made = server.send("POST", MAPS, &agent, body).await.json();
    assert_eq!(
        owners(&made),
        [(
            "prog".to_owned(),
            "Update".to_owned(),
            json!({"f:data": {".": {}, "f:a": {}}})
        )]
    );
    let path = format!("{MAPS}/m");
    let put = server
        .call("PUT", &format!("{path}?fieldManager=p"), Some(of("b")))
        .await
        .json();
    assert_eq!(
        owners(&put),
        [
            (
                "p".to_owned(),
                "Update".to_owned(),
                json!({"f:data": {"f:b": {}}})
            ),
            (
                "prog".to_owned(),
                "Update".to_owned(),
                json!({"f:data": {}})
            ),
        ]
    );
    let patch = server
        .call(
            "PATCH",
            &format!("{path}?fieldManager=q"),
            Some(json!({"data": {"b": "1"}})),
        )
        .await
        .json();
    assert_eq!(patch, put, "nothing changed, so nothing was written");
    let mut reset = put.clone();
    reset["metadata"]["managedFields"] = json!([{}]);
    let reset = server.call("PUT", &path, Some(reset)).await.json();
    assert_eq!(owners(&reset), []);
    let first = apply(&server, &path, "fieldManager=s", &map(&json!({"b": "2"}))).await;
    is(&first, 409, "Conflict");
    assert_eq!(
        first.json()["details"]["causes"],
        json!([{"reason": "FieldManagerConflict", "field": ".data.b",
            "message": "conflict with \"before-first-apply\" using v1"}])
    );
}

#[tokio::test]
async fn a_status_has_owners_apart() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let body =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    create(&server, pods, body).await;
    let status = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"status":{"phase":"Running",
        "conditions":[{"type":"Ready","status":"True"}]}}"#;
    let path = format!("{pods}/p/status");
    let applied = apply(&server, &path, "fieldManager=kubelet&force=true", status).await;
    assert_eq!(applied.status, 200);
    let pod = applied.json();
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["metadata"]["managedFields"][0]["subresource"], "status");
    assert_eq!(
        pod["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:status": {"f:phase": {}, "f:conditions": {"k:{\"type\":\"Ready\"}":
            {".": {}, "f:status": {}, "f:type": {}}}}})
    );
    let spec = owners(&pod)[1].2.clone();
    assert_eq!(spec.get("f:status"), None);
    assert!(
        spec["f:spec"]["f:containers"]["k:{\"name\":\"c\"}"]
            .get("f:image")
            .is_some()
    );
}

#[tokio::test]
async fn what_the_server_gives_is_nobodys() {
    let server = Server::start().await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let body = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = create(&server, claims, body).await.json();
    assert_eq!(
        claim["metadata"]["finalizers"],
        json!(["kubernetes.io/pvc-protection"])
    );
    assert_eq!(
        owners(&claim)[0].2,
        json!({"f:spec": {"f:accessModes": {}, "f:volumeMode": {},
            "f:resources": {"f:requests": {".": {}, "f:storage": {}}}}})
    );
    let services = "/api/v1/namespaces/default/services";
    let body = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let service = create(&server, services, body).await.json();
    assert_eq!(
        owners(&service)[0].2,
        json!({"f:spec": {"f:internalTrafficPolicy": {}, "f:sessionAffinity": {}, "f:type": {},
            "f:ports": {".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}":
                {".": {}, "f:port": {}, "f:protocol": {}, "f:targetPort": {}}}}})
    );
}

#[tokio::test]
async fn one_event_has_owners_in_two_versions() {
    let server = Server::start().await;
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let body = json!({"metadata": {"name": "e"}, "regarding": {"namespace": "default"}, "note": "one",
        "reason": "R", "action": "A", "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "c/d", "reportingInstance": "i"});
    create(&server, new, body).await;
    let core = "/api/v1/namespaces/default/events/e?fieldManager=n";
    let changed = server
        .call("PATCH", core, Some(json!({"message": "two"})))
        .await;
    assert_eq!(changed.status, 200, "{}", changed.json());
    let mut found = owners(&changed.json());
    found.sort_by_key(|(manager, ..)| manager.clone());
    assert_eq!(found[0].2, json!({"f:message": {}}));
    assert_eq!(found[1].2.get("f:note"), None, "{found:?}");
    assert!(found[1].2.get("f:reason").is_some());
}

#[tokio::test]
async fn conflicts_are_told_manager_by_manager() {
    let server = Server::start().await;
    let path = "/api/v1/namespaces/default/configmaps/m";
    apply(&server, path, "fieldManager=one", &map(&json!({"x": "1"}))).await;
    apply(&server, path, "fieldManager=two", &map(&json!({"y": "1"}))).await;
    let single = apply(&server, path, "fieldManager=t", &map(&json!({"x": "2"}))).await;
    let message = "Apply failed with 1 conflict: conflict with \"one\": .data.x";
    assert_eq!(single.json()["message"], message);
    let both = apply(
        &server,
        path,
        "fieldManager=t",
        &map(&json!({"x": "2", "y": "2"})),
    )
    .await;
    let message = "Apply failed with 2 conflicts: conflicts with \"one\":\n- .data.x\n\
                   conflicts with \"two\":\n- .data.y";
    assert_eq!(both.json()["message"], message);
    // A uid is that of an object that is there.
    let absent = "/api/v1/namespaces/default/configmaps/n";
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "uid": "u"}});
    let refused = apply(&server, absent, "fieldManager=t", &body.to_string()).await;
    is(&refused, 409, "Conflict");
}
