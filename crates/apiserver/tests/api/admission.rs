//! New pods and claims depend on classes and limit ranges.

use serde_json::{Value, json};

use crate::networking::cells;
use crate::support::{Answer, Server};
use crate::{create, is};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const LIMITS: &str = "/api/v1/namespaces/default/limitranges";
const PRIORITIES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
const RUNTIMES: &str = "/apis/node.k8s.io/v1/runtimeclasses";

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod =
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (member, value) in spec.as_object().expect("members") {
        pod["spec"][member] = value.clone();
    }
    pod
}

fn priority(name: &str, value: i64, is_default: bool) -> Value {
    json!({"metadata": {"name": name}, "value": value, "globalDefault": is_default})
}

async fn merge(server: &Server, path: &str, patch: Value) -> Answer {
    let kind = [("content-type", "application/merge-patch+json")];
    server
        .send("PATCH", path, &kind, patch.to_string().into_bytes())
        .await
}

#[tokio::test]
async fn system_priority_classes_exist_and_stay() {
    let server = Server::start().await;
    let path = format!("{PRIORITIES}/system-node-critical");
    let class = server.call("GET", &path, None).await.json();
    assert_eq!(class["value"], 2_000_001_000);
    assert_eq!(class["preemptionPolicy"], "PreemptLowerPriority");
    assert_eq!(class["metadata"]["generation"], 1);
    is(&server.call("DELETE", &path, None).await, 403, "Forbidden");
    let changed = merge(&server, &path, json!({"value": 1})).await;
    is(&changed, 422, "Invalid");
    let described = merge(&server, &path, json!({"description": "mine"}))
        .await
        .json();
    assert_eq!(described["metadata"]["generation"], 1);
    let row = cells(&server, PRIORITIES).await;
    assert_eq!(
        row[..3],
        [
            json!("system-cluster-critical"),
            json!(2_000_000_000),
            json!(false)
        ]
    );
    assert_eq!(row[4], "PreemptLowerPriority");
}

#[tokio::test]
async fn pod_gets_the_priority_of_its_class() {
    let server = Server::start().await;
    let plain = create(&server, PODS, pod("a", &json!({}))).await.json();
    assert_eq!(plain["spec"]["priority"], 0);
    assert_eq!(plain["spec"]["preemptionPolicy"], "PreemptLowerPriority");
    let mut high = priority("high", 1000, false);
    high["preemptionPolicy"] = json!("Never");
    create(&server, PRIORITIES, high).await;
    let named = create(
        &server,
        PODS,
        pod("b", &json!({"priorityClassName": "high"})),
    )
    .await
    .json();
    assert_eq!(named["spec"]["priority"], 1000);
    assert_eq!(named["spec"]["preemptionPolicy"], "Never");
    for spec in [
        json!({"priorityClassName": "absent"}),
        json!({"priority": 5}),
    ] {
        is(
            &server.call("POST", PODS, Some(pod("c", &spec))).await,
            403,
            "Forbidden",
        );
    }
    create(&server, PRIORITIES, priority("usual", 7, true)).await;
    let second = server
        .call("POST", PRIORITIES, Some(priority("other", 8, true)))
        .await;
    is(&second, 403, "Forbidden");
    let other = create(&server, PRIORITIES, priority("other", 8, false))
        .await
        .json();
    assert_eq!(other["globalDefault"], Value::Null);
    let path = format!("{PRIORITIES}/other");
    is(
        &merge(&server, &path, json!({"globalDefault": true})).await,
        403,
        "Forbidden",
    );
    let usual = create(&server, PODS, pod("d", &json!({}))).await.json();
    assert_eq!(usual["spec"]["priorityClassName"], "usual");
    assert_eq!(usual["spec"]["priority"], 7);

    // An update that omits the priority preserves it.
    let mut update = pod("d", &json!({"priorityClassName": "usual"}));
    update["metadata"]["labels"] = json!({"a": "b"});
    let updated = server.call("PUT", &format!("{PODS}/d"), Some(update)).await;
    assert_eq!(updated.json()["spec"]["priority"], 7, "{}", updated.json());
}

#[tokio::test]
async fn pod_gets_the_overhead_of_its_runtime_class() {
    let server = Server::start().await;
    let class = json!({"metadata": {"name": "vm"}, "handler": "kata",
        "overhead": {"podFixed": {"cpu": "100m"}},
        "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}});
    create(&server, RUNTIMES, class).await;
    assert_eq!(cells(&server, RUNTIMES).await[..2], ["vm", "kata"]);
    let made = create(&server, PODS, pod("a", &json!({"runtimeClassName": "vm"})))
        .await
        .json();
    assert_eq!(made["spec"]["overhead"], json!({"cpu": "100m"}));
    assert_eq!(made["spec"]["nodeSelector"], json!({"vm": "yes"}));
    let tolerations = made["spec"]["tolerations"].as_array().expect("list");
    assert!(tolerations.contains(&json!({"key": "vm", "operator": "Exists"})));
    for spec in [
        json!({"runtimeClassName": "absent"}),
        json!({"overhead": {"cpu": "1"}}),
        json!({"runtimeClassName": "vm", "overhead": {"cpu": "1"}}),
        json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}}),
    ] {
        is(
            &server.call("POST", PODS, Some(pod("b", &spec))).await,
            403,
            "Forbidden",
        );
    }
    let path = format!("{RUNTIMES}/vm");
    is(
        &merge(&server, &path, json!({"handler": "runc"})).await,
        422,
        "Invalid",
    );
}

#[tokio::test]
async fn limit_ranges_default_and_bound_containers() {
    let server = Server::start().await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container",
        "max": {"cpu": "2"}, "min": {"cpu": "100m"}, "defaultRequest": {"cpu": "500m"}}]}});
    let range = create(&server, LIMITS, range).await.json();
    assert_eq!(range["spec"]["limits"][0]["default"], json!({"cpu": "2"}));
    let made = create(&server, PODS, pod("a", &json!({}))).await.json();
    let resources = &made["spec"]["containers"][0]["resources"];
    assert_eq!(
        *resources,
        json!({"limits": {"cpu": "2"}, "requests": {"cpu": "500m"}})
    );
    assert_eq!(
        made["metadata"]["annotations"]["kubernetes.io/limit-ranger"],
        "LimitRanger plugin set: cpu request for container c; cpu limit for container c"
    );
    assert_eq!(made["status"]["qosClass"], "Burstable");
    let asks = |cpu: &str| json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": cpu}}}]});
    let refused = server.call("POST", PODS, Some(pod("b", &asks("3")))).await;
    is(&refused, 403, "Forbidden");
    let message = refused.json()["message"].to_string();
    assert!(
        message.contains("forbidden: maximum cpu usage per Container is 2, but limit is 3"),
        "{message}"
    );
    let refused = server
        .call("POST", PODS, Some(pod("b", &asks("50m"))))
        .await;
    is(&refused, 403, "Forbidden");
    create(&server, PODS, pod("b", &asks("1"))).await;
    server.call("DELETE", &format!("{LIMITS}/r"), None).await;
    create(&server, PODS, pod("c", &asks("3"))).await;
}

#[tokio::test]
async fn limit_ranges_bound_pods_and_claims() {
    let server = Server::start().await;
    let range = json!({"metadata": {"name": "r"}, "spec": {"limits": [
        {"type": "Pod", "max": {"memory": "1Gi"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "2Gi"}}]}});
    create(&server, LIMITS, range).await;
    let container = |name: &str| json!({"name": name, "image": "i", "resources": {"limits": {"memory": "600Mi"}}});
    let one = json!({"containers": [container("a")]});
    create(&server, PODS, pod("a", &one)).await;
    let two = json!({"containers": [container("a"), container("b")]});
    is(
        &server.call("POST", PODS, Some(pod("b", &two))).await,
        403,
        "Forbidden",
    );
    let claim = |size: &str| {
        json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": size}}}})
    };
    is(
        &server.call("POST", CLAIMS, Some(claim("3Gi"))).await,
        403,
        "Forbidden",
    );
    create(&server, CLAIMS, claim("2Gi")).await;
}

#[tokio::test]
async fn pods_created_during_changes_of_a_limit_range_follow_one_version() {
    let server = Server::start().await;
    let range = |cpu: &str| {
        json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container",
            "default": {"cpu": cpu}, "defaultRequest": {"cpu": cpu}}]}})
    };
    create(&server, LIMITS, range("1")).await;
    let path = format!("{LIMITS}/r");
    let changes = async {
        for number in 0..20 {
            let cpu = if number % 2 == 0 { "2" } else { "1" };
            let changed = server.call("PUT", &path, Some(range(cpu))).await;
            assert_eq!(changed.status, 200, "{}", changed.json());
        }
    };
    let pods = async {
        for number in 0..20 {
            let name = format!("p{number}");
            let made = create(&server, PODS, pod(&name, &json!({}))).await.json();
            let resources = &made["spec"]["containers"][0]["resources"];
            assert_eq!(resources["limits"], resources["requests"]);
        }
    };
    tokio::join!(changes, pods);
}
