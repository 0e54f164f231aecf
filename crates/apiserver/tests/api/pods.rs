//! What the server adds to pods and Services besides defaults, and evictions.

use serde_json::{Value, json};

use crate::support::{Answer, Server};
use crate::{create, failure, is};

const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

fn pod(name: &str, mut spec: Value) -> Value {
    spec["containers"] = json!([{"name": "c", "image": "i"}]);
    json!({"metadata": {"name": name, "labels": {"app": "a"}}, "spec": spec})
}

fn warnings(answer: &Answer) -> Vec<String> {
    let all = answer.headers.get_all("warning").into_iter();
    let texts = all.map(|value| value.to_str().unwrap().to_owned());
    texts
        .map(|text| {
            text.trim_start_matches("299 - ")
                .trim_matches('"')
                .to_owned()
        })
        .collect()
}

#[tokio::test]
async fn pod_gets_the_account_of_its_namespace_and_its_token() {
    let server = Server::start().await;
    let none = create(&server, PODS, pod("none", json!({}))).await.json();
    assert_eq!(none["spec"].get("serviceAccountName"), None);
    let secrets = json!([{"name": "registry"}]);
    let account = json!({"metadata": {"name": "default"}, "imagePullSecrets": secrets});
    create(&server, ACCOUNTS, account).await;
    let made = create(&server, PODS, pod("p", json!({}))).await.json();
    let spec = &made["spec"];
    assert_eq!(
        (&spec["serviceAccountName"], &spec["serviceAccount"]),
        (&json!("default"), &json!("default"))
    );
    assert_eq!(spec["imagePullSecrets"], secrets);
    let volume = &spec["volumes"][0];
    let name = volume["name"].as_str().unwrap();
    assert!(
        name.starts_with("kube-api-access-") && name.len() == 21,
        "{name}"
    );
    let sources = json!([
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]);
    assert_eq!(
        volume["projected"],
        json!({"defaultMode": 420, "sources": sources})
    );
    let mount = json!({"name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    assert_eq!(spec["containers"][0]["volumeMounts"], json!([mount]));
    // The manager of the pod owns none of this.
    let owned = made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].to_string();
    assert!(
        !owned.contains("volume") && !owned.contains("serviceAccount"),
        "{owned}"
    );

    let without = pod("without", json!({"automountServiceAccountToken": false}));
    let made = create(&server, PODS, without).await.json();
    assert_eq!(made["spec"]["serviceAccountName"], "default");
    assert_eq!(made["spec"].get("volumes"), None);
    let quiet = json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false});
    create(&server, ACCOUNTS, quiet).await;
    let made = create(
        &server,
        PODS,
        pod("q", json!({"serviceAccountName": "quiet"})),
    )
    .await
    .json();
    assert_eq!(made["spec"].get("volumes"), None);
}

#[tokio::test]
async fn deprecated_volumes_and_misleading_members_cause_warnings() {
    let server = Server::start().await;
    let rbd = json!([{"name": "v", "rbd": {"monitors": ["10.0.0.1"], "image": "i"}}]);
    let made = create(&server, PODS, pod("p", json!({"volumes": rbd}))).await;
    let why = "spec.volumes[0].rbd: deprecated in v1.28, non-functional in v1.31+";
    assert_eq!(warnings(&made), [why]);
    let env = json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]);
    let spec = json!({"containers": [{"name": "c", "image": "i", "env": env}], "volumes": rbd});
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": spec});
    let body = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"app": "a"}},
        "template": template}});
    let path = "/apis/apps/v1/namespaces/default/deployments";
    let made = create(&server, path, body).await;
    let expected = [
        format!("spec.template.{why}"),
        "spec.template.spec.containers[0].env[1]: hides previous definition of \\\"A\\\", which may be dropped when \
         using apply"
            .to_owned(),
    ];
    assert_eq!(warnings(&made), expected);
    // A write that leaves the spec unchanged repeats no warning.
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    let labelled = server
        .call("PATCH", &format!("{path}/d"), Some(label))
        .await;
    assert_eq!((labelled.status, warnings(&labelled)), (200, Vec::new()));
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Recycle", "nfs": {"server": "s", "path": "/p"}}});
    let made = create(&server, "/api/v1/persistentvolumes", volume).await;
    let why = "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the recommended \
               approach is to use dynamic provisioning.";
    assert_eq!(warnings(&made), [why]);
}

#[tokio::test]
async fn job_without_labels_carries_those_of_its_pods() {
    let server = Server::start().await;
    let template =
        json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"metadata": {"name": "j"}, "spec": {"template": template}});
    let made = create(&server, "/apis/batch/v1/namespaces/default/jobs", job)
        .await
        .json();
    let labels = made["metadata"]["labels"].as_object().unwrap();
    let names: Vec<&str> = labels.keys().map(String::as_str).collect();
    let expected = [
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-name",
        "controller-uid",
        "job-name",
    ];
    assert_eq!(names, expected);
    assert_eq!(
        made["spec"]["template"]["metadata"]["labels"],
        made["metadata"]["labels"]
    );
}

#[tokio::test]
async fn endpoints_are_deleted_with_their_service() {
    let server = Server::start().await;
    let (services, endpoints) = (
        "/api/v1/namespaces/default/services",
        "/api/v1/namespaces/default/endpoints",
    );
    for name in ["s", "other"] {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        create(&server, services, service).await;
        create(&server, endpoints, json!({"metadata": {"name": name}})).await;
    }
    let dry = format!("{services}/s?dryRun=All");
    assert_eq!(server.call("DELETE", &dry, None).await.status, 200);
    assert_eq!(
        server
            .call("GET", &format!("{endpoints}/s"), None)
            .await
            .status,
        200
    );
    assert_eq!(
        server
            .call("DELETE", &format!("{services}/s"), None)
            .await
            .status,
        200
    );
    assert_eq!(
        server
            .call("GET", &format!("{endpoints}/s"), None)
            .await
            .status,
        404
    );
    assert_eq!(
        server
            .call("GET", &format!("{endpoints}/other"), None)
            .await
            .status,
        200
    );
}

/// Creates a running pod on a node.
async fn running(server: &Server, name: &str, ready: bool) {
    create(server, PODS, pod(name, json!({"nodeName": "n"}))).await;
    let ready = if ready { "True" } else { "False" };
    let status =
        json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}});
    let path = format!("{PODS}/{name}/status");
    assert_eq!(server.call("PATCH", &path, Some(status)).await.status, 200);
}

async fn evict(server: &Server, name: &str) -> Answer {
    let eviction =
        json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let path = format!("{PODS}/{name}/eviction");
    server.call("POST", &path, Some(eviction)).await
}

async fn budget_status(server: &Server, name: &str, status: Value) {
    let path = format!("{BUDGETS}/{name}/status");
    let set = server
        .call("PATCH", &path, Some(json!({"status": status})))
        .await;
    assert_eq!(set.status, 200, "{}", set.json());
}

fn cause(answer: &Answer) -> String {
    let cause = &answer.json()["details"]["causes"][0];
    assert_eq!(cause["reason"], "DisruptionBudget");
    cause["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn eviction_needs_a_disruption_that_its_budget_allows() {
    let server = Server::start().await;
    running(&server, "a", true).await;
    let budget = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"minAvailable": 1,
        "selector": {"matchLabels": {"app": "a"}}}})
    };
    create(&server, BUDGETS, budget("b")).await;
    let early = evict(&server, "a").await;
    assert_eq!(failure(&early), (429, "TooManyRequests".to_owned()));
    assert_eq!(early.headers["retry-after"], "10");
    assert_eq!(
        cause(&early),
        "The disruption budget b is still being processed by the server."
    );
    let status = |allowed: i64| {
        json!({"observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1,
        "desiredHealthy": 1, "expectedPods": 1})
    };
    budget_status(&server, "b", status(0)).await;
    let refused = evict(&server, "a").await;
    is(&refused, 429, "TooManyRequests");
    assert_eq!(refused.headers.get("retry-after"), None);
    assert_eq!(
        cause(&refused),
        "The disruption budget b needs 1 healthy pods and has 1 currently"
    );
    let stays = server.call("GET", &format!("{PODS}/a"), None).await.json();
    assert_eq!(stays["metadata"].get("deletionTimestamp"), None);

    budget_status(&server, "b", status(1)).await;
    let dry = format!("{PODS}/a/eviction?dryRun=All");
    let body = json!({"metadata": {"name": "a"}});
    assert_eq!(server.call("POST", &dry, Some(body)).await.status, 201);
    assert_eq!(evict(&server, "a").await.status, 201);
    let spent = server
        .call("GET", &format!("{BUDGETS}/b"), None)
        .await
        .json();
    assert_eq!(spent["status"]["disruptionsAllowed"], 0);
    assert!(spent["status"]["disruptedPods"]["a"].is_string(), "{spent}");
    let condition = &spent["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("DisruptionAllowed"), &json!("InsufficientPods"))
    );
    let ending = server.call("GET", &format!("{PODS}/a"), None).await.json();
    assert!(ending["metadata"]["deletionTimestamp"].is_string());
    let conditions = ending["status"]["conditions"].as_array().unwrap();
    let target = conditions
        .iter()
        .find(|it| it["type"] == "DisruptionTarget")
        .unwrap();
    assert_eq!(target["reason"], "EvictionByEvictionAPI");

    // Evicting a pod that is not ready, or that is pending, disrupts nothing.
    running(&server, "unready", false).await;
    assert_eq!(evict(&server, "unready").await.status, 201);
    create(&server, PODS, pod("pending", json!({}))).await;
    assert_eq!(evict(&server, "pending").await.status, 201);

    running(&server, "c", true).await;
    create(&server, BUDGETS, budget("second")).await;
    let both = evict(&server, "c").await;
    let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!((both.status, &both.json()["message"]), (500, &json!(why)));
    let other = json!({"metadata": {"name": "other"}});
    let path = format!("{PODS}/c/eviction");
    is(
        &server.call("POST", &path, Some(other)).await,
        400,
        "BadRequest",
    );
}

#[tokio::test]
async fn services_get_node_ports_and_keep_them() {
    let server = Server::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, kind: &str, ports: Value| json!({"metadata": {"name": name}, "spec": {"type": kind, "ports": ports}});
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 80, "protocol": "UDP"}, {"name": "c", "port": 81}]);
    let made = create(&server, services, service("s", "NodePort", ports.clone()))
        .await
        .json();
    let node_ports = |service: &Value| -> Vec<u64> {
        let ports = service["spec"]["ports"].as_array().unwrap().iter();
        ports
            .map(|port| port["nodePort"].as_u64().unwrap_or(0))
            .collect()
    };
    let assigned = node_ports(&made);
    assert!(
        assigned.iter().all(|port| (30_000..=32_767).contains(port)),
        "{assigned:?}"
    );
    // Ports of one number share a node port.
    assert!(
        assigned[0] == assigned[1] && assigned[1] != assigned[2],
        "{assigned:?}"
    );
    let path = format!("{services}/s");
    let put = server
        .call("PUT", &path, Some(service("s", "NodePort", ports.clone())))
        .await
        .json();
    assert_eq!(
        put["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
    let taken = json!([{"port": 1, "nodePort": assigned[0]}]);
    let refused = server
        .call("POST", services, Some(service("t", "NodePort", taken)))
        .await;
    is(&refused, 422, "Invalid");
    let why = format!(
        "Invalid value: {}: provided port is already allocated",
        assigned[0]
    );
    assert_eq!(refused.json()["details"]["causes"][0]["message"], why);
    let far = json!([{"port": 1, "nodePort": 80}]);
    is(
        &server
            .call("POST", services, Some(service("t", "NodePort", far)))
            .await,
        422,
        "Invalid",
    );
    let wrong = json!([{"port": 1, "nodePort": 30001}]);
    is(
        &server
            .call("POST", services, Some(service("t", "ClusterIP", wrong)))
            .await,
        422,
        "Invalid",
    );
    // A Service without node ports frees them.
    let change = json!({"spec": {"type": "ClusterIP"}});
    let changed = server.call("PATCH", &path, Some(change)).await;
    assert_eq!(
        (changed.status, node_ports(&changed.json())),
        (200, vec![0, 0, 0]),
        "{}",
        changed.json()
    );
    let again = json!([{"port": 1, "nodePort": assigned[0]}]);
    create(&server, services, service("t", "NodePort", again)).await;
    let mut balanced = service("u", "LoadBalancer", json!([{"port": 1}]));
    balanced["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    assert_eq!(
        node_ports(&create(&server, services, balanced.clone()).await.json()),
        [0]
    );
    balanced["metadata"]["name"] = json!("v");
    balanced["spec"]["externalTrafficPolicy"] = json!("Local");
    let made = create(&server, services, balanced).await.json();
    assert!(
        made["spec"]["healthCheckNodePort"].as_u64() >= Some(30_000),
        "{made}"
    );
}

#[tokio::test]
async fn name_of_a_service_can_begin_with_a_digit() {
    let server = Server::start().await;
    let service = json!({"metadata": {"name": "1s"}, "spec": {"ports": [{"port": 80}]}});
    create(&server, "/api/v1/namespaces/default/services", service).await;
}
