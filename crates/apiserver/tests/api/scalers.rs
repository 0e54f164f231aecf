//! Autoscalers in both of their versions.

use serde_json::{Value, json};

use crate::networking::cells;
use crate::support::{Answer, Server};
use crate::{create, is};

const V1: &str = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
const V2: &str = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";

fn scaler(spec: &Value) -> Value {
    let mut scaler = json!({"metadata": {"name": "web"}, "spec": {"maxReplicas": 3,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    for (member, value) in spec.as_object().expect("members") {
        scaler["spec"][member] = value.clone();
    }
    scaler
}

async fn patch(server: &Server, path: &str, patch: Value) -> Answer {
    let kind = [("content-type", "application/merge-patch+json")];
    server
        .send("PATCH", path, &kind, patch.to_string().into_bytes())
        .await
}

#[tokio::test]
async fn scaler_of_the_old_version_has_metrics_in_the_new_one() {
    let server = Server::start().await;
    let old = json!({"targetCPUUtilizationPercentage": 70});
    let made = create(&server, V1, scaler(&old)).await.json();
    assert_eq!(made["apiVersion"], "autoscaling/v1");
    assert_eq!(made["spec"]["targetCPUUtilizationPercentage"], 70);
    assert_eq!(made["spec"]["minReplicas"], 1);
    assert_eq!(
        made["status"],
        json!({"currentReplicas": 0, "desiredReplicas": 0})
    );
    let new = server.call("GET", &format!("{V2}/web"), None).await.json();
    assert_eq!(new["apiVersion"], "autoscaling/v2");
    assert_eq!(
        new["spec"]["metrics"],
        json!([{"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": 70}}}])
    );
    let row = cells(&server, V2).await;
    let texts = ["web", "Deployment/web", "cpu: <unknown>/70%", "1"];
    assert_eq!(row[..4], texts);
    assert_eq!(row[4..6], [3, 0]);
    let changed = patch(
        &server,
        &format!("{V1}/web"),
        json!({"spec": {"targetCPUUtilizationPercentage": 50}}),
    )
    .await;
    assert_eq!(changed.status, 200, "{}", changed.json());
    let new = server.call("GET", &format!("{V2}/web"), None).await.json();
    assert_eq!(
        new["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        50
    );
}

#[tokio::test]
async fn content_of_the_new_version_survives_a_write_of_the_old_one() {
    let server = Server::start().await;
    let metrics = json!([{"type": "Pods", "pods": {"metric": {"name": "m"},
        "target": {"type": "AverageValue", "averageValue": "5"}}}]);
    let behavior = json!({"scaleDown": {"stabilizationWindowSeconds": 60}});
    let made = create(
        &server,
        V2,
        scaler(&json!({"metrics": metrics, "behavior": behavior})),
    )
    .await
    .json();
    assert_eq!(
        made["status"],
        json!({"currentMetrics": null, "desiredReplicas": 0})
    );
    let old = server.call("GET", &format!("{V1}/web"), None).await.json();
    let annotations = old["metadata"]["annotations"]
        .as_object()
        .expect("annotations");
    assert_eq!(annotations.len(), 2, "{old}");
    let mut write = old.clone();
    write["spec"]["maxReplicas"] = json!(9);
    let written = server.call("PUT", &format!("{V1}/web"), Some(write)).await;
    assert_eq!(written.status, 200, "{}", written.json());
    let new = server.call("GET", &format!("{V2}/web"), None).await.json();
    assert_eq!(new["spec"]["maxReplicas"], 9);
    assert_eq!(new["spec"]["metrics"], made["spec"]["metrics"]);
    assert_eq!(new["spec"]["behavior"], made["spec"]["behavior"]);
    assert_eq!(new["metadata"].get("annotations"), None);
}

#[tokio::test]
async fn status_of_a_scaler_is_separate() {
    let server = Server::start().await;
    create(&server, V2, scaler(&json!({}))).await;
    let path = format!("{V2}/web/status");
    let status =
        json!({"status": {"currentReplicas": 2, "desiredReplicas": 3}, "spec": {"maxReplicas": 7}});
    let written = patch(&server, &path, status).await.json();
    assert_eq!(written["status"]["currentReplicas"], 2);
    assert_eq!(written["spec"]["maxReplicas"], 3);
    is(
        &patch(&server, &path, json!({"status": {"desiredReplicas": -1}})).await,
        422,
        "Invalid",
    );
    let target = json!({"scaleTargetRef": {"kind": "Deployment", "name": "web"}});
    let mut bare = scaler(&target);
    bare["metadata"]["name"] = json!("bare");
    is(&server.call("POST", V2, Some(bare)).await, 422, "Invalid");
}
