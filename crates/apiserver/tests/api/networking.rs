//! Ingresses, their classes, network policies, and the data that controllers of pods keep.

use serde_json::{Value, json};

use crate::support::Server;
use crate::{create, is};

const CLASSES: &str = "/apis/networking.k8s.io/v1/ingressclasses";
const INGRESSES: &str = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
const REVISIONS: &str = "/apis/apps/v1/namespaces/default/controllerrevisions";
const TEMPLATES: &str = "/api/v1/namespaces/default/podtemplates";

/// Returns the cells of the first row of a Table, without the last one, which is an age for most kinds.
pub(crate) async fn cells(server: &Server, path: &str) -> Vec<Value> {
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    let table = server.send("GET", path, &accept, Vec::new()).await.json();
    let cells = table["rows"][0]["cells"].as_array().expect("a row");
    let columns = table["columnDefinitions"].as_array().expect("columns");
    assert_eq!(cells.len(), columns.len(), "{table}");
    for column in columns {
        assert_ne!(column["description"], "", "{column}");
    }
    cells.clone()
}

fn ingress(name: &str) -> Value {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    json!({"metadata": {"name": name}, "spec": {"rules": [{"host": "a.example", "http": {"paths": [
        {"path": "/", "pathType": "Prefix", "backend": backend}]}}]}})
}

#[tokio::test]
async fn ingress_without_class_gets_the_default_class() {
    let server = Server::start().await;
    let plain = create(&server, INGRESSES, ingress("a")).await.json();
    assert_eq!(plain["spec"].get("ingressClassName"), None);
    assert_eq!(plain["metadata"]["generation"], 1);
    let class = json!({"metadata": {"name": "edge", "annotations":
            {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": "example.com/c", "parameters": {"apiGroup": "x.example",
            "kind": "Settings", "name": "s"}}});
    let class = create(&server, CLASSES, class).await.json();
    assert_eq!(class["spec"]["parameters"]["scope"], "Cluster");
    let row = cells(&server, CLASSES).await;
    assert_eq!(
        row[..3],
        ["edge (default)", "example.com/c", "Settings.x.example/s"]
    );
    let second = create(&server, INGRESSES, ingress("b")).await.json();
    assert_eq!(second["spec"]["ingressClassName"], "edge");
    let annotated = json!({"kubernetes.io/ingress.class": "old"});
    let mut third = ingress("c");
    third["metadata"]["annotations"] = annotated;
    let third = create(&server, INGRESSES, third).await.json();
    assert_eq!(third["spec"].get("ingressClassName"), None);
    let path = format!("{CLASSES}/edge");
    let other = json!({"spec": {"controller": "example.com/other"}});
    let merge = [("content-type", "application/merge-patch+json")];
    let changed = server
        .send("PATCH", &path, &merge, other.to_string().into_bytes())
        .await;
    is(&changed, 422, "Invalid");
}

#[tokio::test]
async fn ingress_status_is_separate_and_printed() {
    let server = Server::start().await;
    let mut body = ingress("a");
    body["status"] = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}});
    body["spec"]["tls"] = json!([{"hosts": ["a.example"], "secretName": "s"}]);
    let made = create(&server, INGRESSES, body).await.json();
    assert_eq!(made["status"], json!({"loadBalancer": {}}));
    let merge = [("content-type", "application/merge-patch+json")];
    let path = format!("{INGRESSES}/a/status");
    let write = async |points: Value| {
        let status = json!({"status": {"loadBalancer": {"ingress": points}}});
        server
            .send("PATCH", &path, &merge, status.to_string().into_bytes())
            .await
    };
    is(&write(json!([{"ip": "nowhere"}])).await, 422, "Invalid");
    let written = write(json!([{"ip": "10.0.0.2"}, {"hostname": "lb.example"}]))
        .await
        .json();
    assert_eq!(written["metadata"]["generation"], 1);
    let row = cells(&server, INGRESSES).await;
    assert_eq!(
        row[..5],
        ["a", "<none>", "a.example", "10.0.0.2,lb.example", "80, 443"]
    );
}

#[tokio::test]
async fn network_policy_is_defaulted_and_printed() {
    let server = Server::start().await;
    let policy = json!({"metadata": {"name": "p"}, "spec": {
        "podSelector": {"matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "tier", "operator": "In", "values": ["b", "a"]}]},
        "ingress": [{"ports": [{"port": 80}], "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]}});
    let made = create(&server, POLICIES, policy.clone()).await.json();
    assert_eq!(made["spec"]["policyTypes"], json!(["Ingress"]));
    assert_eq!(made["spec"]["ingress"][0]["ports"][0]["protocol"], "TCP");
    let row = cells(&server, POLICIES).await;
    assert_eq!(row[..2], ["p", "app=web,tier in (a,b)"]);
    let mut broken = policy;
    broken["metadata"]["name"] = json!("q");
    broken["spec"]["ingress"][0]["from"][0]["ipBlock"]["cidr"] = json!("10.0.0.1/8");
    let refused = server.call("POST", POLICIES, Some(broken)).await;
    is(&refused, 422, "Invalid");
    let message = refused.json()["message"].to_string();
    assert!(
        message.contains("must not have bits set beyond the prefix length"),
        "{message}"
    );
}

#[tokio::test]
async fn revisions_keep_their_data() {
    let server = Server::start().await;
    let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "uid": "u",
        "controller": true});
    let revision = json!({"metadata": {"name": "r", "ownerReferences": [owner]}, "revision": 3,
        "data": {"spec": {"replicas": 1}}});
    create(&server, REVISIONS, revision).await;
    assert_eq!(
        cells(&server, REVISIONS).await[..3],
        [json!("r"), json!("statefulset.apps/web"), json!(3)]
    );
    let merge = [("content-type", "application/merge-patch+json")];
    let path = format!("{REVISIONS}/r");
    let patch = async |patch: Value| {
        server
            .send("PATCH", &path, &merge, patch.to_string().into_bytes())
            .await
    };
    is(
        &patch(json!({"data": {"spec": {"replicas": 2}}})).await,
        422,
        "Invalid",
    );
    assert_eq!(patch(json!({"revision": 4})).await.json()["revision"], 4);
    let none = json!({"metadata": {"name": "s"}, "revision": 1});
    is(
        &server.call("POST", REVISIONS, Some(none)).await,
        422,
        "Invalid",
    );
}

#[tokio::test]
async fn pod_templates_are_defaulted_and_counted() {
    let server = Server::start().await;
    let template = json!({"metadata": {"name": "t"}, "template": {"metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}});
    let made = create(&server, TEMPLATES, template).await.json();
    assert_eq!(made["template"]["spec"]["restartPolicy"], "Always");
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(cells(&server, TEMPLATES).await, ["t", "c", "i", "a=b"]);
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    let patch = json!({"template": {"spec": {"containers": [{"name": "c", "image": "j"}]}}});
    let path = format!("{TEMPLATES}/t");
    let patched = server
        .send("PATCH", &path, &strategic, patch.to_string().into_bytes())
        .await;
    assert_eq!(
        patched.json()["template"]["spec"]["containers"]
            .as_array()
            .expect("list")
            .len(),
        1
    );
    assert_eq!(patched.json()["metadata"]["generation"], 2);
    let deleted = server.call("DELETE", &path, None).await.json();
    assert_eq!(deleted["kind"], "PodTemplate");
}

#[tokio::test]
async fn new_kinds_are_explained() {
    let server = Server::start().await;
    let document = server
        .call("GET", "/openapi/v3/apis/networking.k8s.io/v1", None)
        .await
        .json();
    let schemas = document["components"]["schemas"]
        .as_object()
        .expect("schemas");
    for kind in ["Ingress", "IngressClass", "NetworkPolicy"] {
        let name = format!("io.k8s.api.networking.v1.{kind}");
        assert!(schemas.contains_key(&name), "{name}");
    }
}
