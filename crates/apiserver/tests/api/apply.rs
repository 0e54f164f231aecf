//! Server-side apply, and the managed fields that every write records.

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
async fn invalid_applies_get_the_responses_of_the_real_server() {
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
async fn every_write_records_its_manager() {
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
async fn status_has_separate_owners() {
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
async fn values_set_by_the_server_have_no_owner() {
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
async fn event_has_owners_in_two_api_versions() {
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
async fn conflicts_are_reported_by_manager() {
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
    // A configuration with a uid is rejected if the object does not exist.
    let absent = "/api/v1/namespaces/default/configmaps/n";
    let body =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n", "uid": "u"}});
    let refused = apply(&server, absent, "fieldManager=t", &body.to_string()).await;
    is(&refused, 409, "Conflict");
}

/// Creates a deployment with two replicas by POST.
async fn with_deployment(server: &Server) -> String {
    let pod = json!({"metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": pod}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    create(server, &format!("{path}?fieldManager=maker"), deployment).await;
    format!("{path}/d")
}

#[tokio::test]
async fn scale_supports_server_side_apply() {
    let server = Server::start().await;
    let one = with_deployment(&server).await;
    let scale = format!("{one}/scale");
    let of = |replicas: i64| {
        format!(
            "apiVersion: autoscaling/v1\nkind: Scale\nmetadata:\n  name: d\nspec:\n  replicas: {replicas}\n"
        )
    };
    is(&apply(&server, &scale, "", &of(3)).await, 422, "Invalid");
    let odd = [("content-type", "application/yaml")];
    let odd = server.send("PATCH", &scale, &odd, of(3).into_bytes()).await;
    is(&odd, 415, "UnsupportedMediaType");
    let other = of(3).replace("Scale", "Deployment");
    let other = apply(&server, &scale, "fieldManager=s", &other).await;
    is(&other, 400, "BadRequest");
    let unknown = of(3) + "  foo: 1\n";
    let unknown = apply(&server, &scale, "fieldManager=s", &unknown).await;
    assert_eq!(unknown.status, 500, "{}", unknown.json());
    is(
        &apply(&server, &scale, "fieldManager=s", &of(-1)).await,
        422,
        "Invalid",
    );
    let absent = one.replace("deployments/d", "deployments/e/scale");
    let absent = apply(&server, &absent, "fieldManager=s", &of(1)).await;
    is(&absent, 404, "NotFound");

    let refused = apply(&server, &scale, "fieldManager=s", &of(3)).await;
    is(&refused, 409, "Conflict");
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!(cause["field"], ".spec.replicas");
    assert_eq!(
        cause["message"],
        "conflict with \"maker\" using autoscaling/v1"
    );
    let forced = apply(&server, &scale, "fieldManager=s&force=true", &of(3)).await;
    assert_eq!(
        (forced.status, &forced.json()["kind"]),
        (200, &json!("Scale"))
    );
    assert_eq!(forced.json()["spec"]["replicas"], 3);
    let deployment = server.call("GET", &one, None).await.json();
    let entries = deployment["metadata"]["managedFields"].as_array();
    let entries = entries.expect("owners").clone();
    let own = entries.iter().find(|entry| entry["manager"] == "s");
    let own = own.expect("expected an entry");
    assert_eq!(own["operation"], "Apply");
    assert_eq!(own["subresource"], "scale");
    assert_eq!(own["apiVersion"], "apps/v1");
    assert_eq!(own["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    let maker = entries.iter().find(|entry| entry["manager"] == "maker");
    let maker = maker.expect("the other fields belong to the manager");
    assert_eq!(maker["fieldsV1"]["f:spec"].get("f:replicas"), None);
    assert_eq!(deployment["metadata"]["generation"], 2);

    let again = apply(&server, &scale, "fieldManager=s", &of(4)).await;
    assert_eq!(
        again.json()["spec"]["replicas"],
        4,
        "the manager owns the field now"
    );
    let version = deployment["metadata"]["resourceVersion"].as_str();
    let old = format!("name: d\n  resourceVersion: {:?}", version.expect("one"));
    let old = of(5).replace("name: d", &old);
    let old = apply(&server, &scale, "fieldManager=s", &old).await;
    is(&old, 409, "Conflict");
}

#[tokio::test]
async fn fields_of_kubectl_client_side_apply_belong_to_kubectl() {
    let server = Server::start().await;
    let by_client = |data: Value| {
        let mut object: Value = serde_json::from_str(&map(&data)).expect("JSON");
        let last = object.to_string();
        object["metadata"]["annotations"] =
            json!({"kubectl.kubernetes.io/last-applied-configuration": last});
        object
    };
    let first = by_client(json!({"a": "1", "b": "1"}));
    let path = format!("{MAPS}?fieldManager=kubectl-client-side-apply");
    create(&server, &path, first).await;
    let path = format!("{MAPS}/m");
    let taken = json!({"data": {"b": "2"}});
    let by_other = format!("{path}?fieldManager=other");
    server.call("PATCH", &by_other, Some(taken)).await;

    // Another manager cannot take over the fields. Nobody can take over a field that was changed since.
    let next = map(&json!({"a": "3"}));
    let answer = apply(&server, &path, "fieldManager=else", &next).await;
    is(&answer, 409, "Conflict");
    let both = map(&json!({"a": "3", "b": "3"}));
    let answer = apply(&server, &path, "fieldManager=kubectl", &both).await;
    is(&answer, 409, "Conflict");
    let causes = answer.json()["details"]["causes"].clone();
    assert_eq!(causes.as_array().map(Vec::len), Some(1), "{causes}");
    assert_eq!(causes[0]["field"], ".data.b");

    let answer = apply(&server, &path, "fieldManager=kubectl", &next).await;
    assert_eq!(answer.status, 200, "{}", answer.json());
    let new = answer.json();
    assert_eq!(new["data"], json!({"a": "3", "b": "2"}));
    // The client's next apply compares with this annotation.
    let annotations = &new["metadata"]["annotations"];
    let last = annotations["kubectl.kubernetes.io/last-applied-configuration"].as_str();
    let last: Value = serde_json::from_str(last.expect("a text")).expect("JSON");
    assert_eq!(last, serde_json::from_str::<Value>(&next).expect("JSON"));
}
