//! What the server adds to pods besides defaults.

use serde_json::{Value, json};

use crate::support::{Answer, Server};
use crate::create;

const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

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
