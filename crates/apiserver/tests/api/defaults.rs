//! The server fills in the defaults of Kubernetes 1.36. The expected objects are those of the real server.

use serde_json::{Value, json};

use crate::support::Server;
use crate::{create, is};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A pod spec with every struct that has defaults.
fn bare_spec() -> Value {
    json!({
        "serviceAccountName": "web",
        "containers": [{
            "name": "c", "image": "registry.example.com:5000/web",
            "ports": [{"containerPort": 80}],
            "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "100u"}},
            "livenessProbe": {"httpGet": {"port": 80}},
            "readinessProbe": {"grpc": {"port": 90}, "periodSeconds": 5},
            "startupProbe": {"exec": {"command": ["true"]}, "timeoutSeconds": 0},
            "lifecycle": {"preStop": {"httpGet": {"port": "web", "path": "/stop"}}},
        }],
        "initContainers": [{"name": "i", "image": "tools:1.2", "readinessProbe": null}],
        "volumes": [
            {"name": "none"},
            {"name": "host", "hostPath": {"path": "/srv"}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "map", "configMap": {"name": "m", "defaultMode": 256}},
            {"name": "down", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "all", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ]}},
            {"name": "iscsi", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.com.example:a", "lun": 0}},
            {"name": "rbd", "rbd": {"monitors": ["10.0.0.1"], "image": "i"}},
            {"name": "claim", "ephemeral": {"volumeClaimTemplate": {"spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}},
        ],
    })
}

/// The spec that the real server stores for it in templates.
fn template_spec() -> Value {
    json!({
        "serviceAccountName": "web", "serviceAccount": "web",
        "containers": [{
            "name": "c", "image": "registry.example.com:5000/web", "imagePullPolicy": "Always",
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "env": [{"name": "NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1m"}},
            "livenessProbe": {"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "readinessProbe": {"grpc": {"port": 90, "service": ""},
                "timeoutSeconds": 1, "periodSeconds": 5, "successThreshold": 1, "failureThreshold": 3},
            "startupProbe": {"exec": {"command": ["true"]},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
            "lifecycle": {"preStop": {"httpGet": {"port": "web", "path": "/stop", "scheme": "HTTP"}}},
        }],
        "initContainers": [{
            "name": "i", "image": "tools:1.2", "imagePullPolicy": "IfNotPresent", "resources": {},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        }],
        "volumes": [
            {"name": "none", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": "/srv", "type": ""}},
            {"name": "secret", "secret": {"secretName": "s", "defaultMode": 420}},
            {"name": "map", "configMap": {"name": "m", "defaultMode": 256}},
            {"name": "down", "downwardAPI": {"defaultMode": 420,
                "items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}}]}},
            {"name": "all", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]}},
            ]}},
            {"name": "iscsi", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.com.example:a", "lun": 0,
                "iscsiInterface": "default"}},
            {"name": "rbd", "rbd": {"monitors": ["10.0.0.1"], "image": "i", "pool": "rbd", "user": "admin",
                "keyring": "/etc/ceph/keyring"}},
            {"name": "claim", "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "volumeMode": "Filesystem"}}}},
        ],
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler",
        "securityContext": {}, "terminationGracePeriodSeconds": 30,
    })
}

/// The spec that the real server stores for it in pods.
fn pod_spec() -> Value {
    let mut spec = template_spec();
    spec["containers"][0]["resources"]["requests"]["memory"] = json!("1Gi");
    spec["enableServiceLinks"] = json!(true);
    spec["priority"] = json!(0);
    spec["preemptionPolicy"] = json!("PreemptLowerPriority");
    spec["tolerations"] = json!([
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
    ]);
    spec
}

#[tokio::test]
async fn pod_with_probes_and_volumes_gets_defaults() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": bare_spec()});
    let made = create(&server, PODS, pod.clone()).await.json();
    assert_eq!(made["spec"], pod_spec());
    // An update fills in the same defaults, so that the same manifest changes nothing.
    let path = format!("{PODS}/p");
    let put = server.call("PUT", &path, Some(pod)).await;
    assert_eq!((put.status, &put.json()), (200, &made), "{}", put.json());
    let absent = json!({"metadata": {"labels": {"a": "b"}}});
    let patched = server.call("PATCH", &path, Some(absent)).await.json();
    assert_eq!(patched["spec"], made["spec"]);
}

#[tokio::test]
async fn applied_pod_gets_defaults_that_its_manager_does_not_own() {
    let server = Server::start().await;
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": bare_spec()});
    let path = format!("{PODS}/p?fieldManager=m");
    let apply = [("content-type", "application/apply-patch+yaml")];
    for code in [201, 200] {
        let body = pod.to_string().into_bytes();
        let made = server.send("PATCH", &path, &apply, body).await;
        assert_eq!(made.status, code, "{}", made.json());
        let made = made.json();
        assert_eq!(made["spec"], pod_spec());
        let fields = &made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
        let probe = &fields["f:containers"]["k:{\"name\":\"c\"}"]["f:readinessProbe"];
        assert_eq!(
            *probe,
            json!({"f:grpc": {"f:port": {}}, "f:periodSeconds": {}})
        );
    }
}

#[tokio::test]
async fn created_pod_defaults_are_owned_but_admission_values_are_not() {
    let server = Server::start().await;
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    let pod = json!({"metadata": {"name": "p"}, "spec": spec});
    let made = create(&server, &format!("{PODS}?fieldManager=m"), pod)
        .await
        .json();
    let owned = made["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].as_object();
    let owned: Vec<&String> = owned.unwrap().keys().collect();
    let expected = [
        "f:containers",
        "f:dnsPolicy",
        "f:enableServiceLinks",
        "f:restartPolicy",
        "f:schedulerName",
        "f:securityContext",
        "f:terminationGracePeriodSeconds",
    ];
    assert_eq!(owned, expected);
}

#[tokio::test]
async fn every_template_gets_defaults_of_templates() {
    let server = Server::start().await;
    let with = |restart: &str| {
        let mut spec = bare_spec();
        spec["restartPolicy"] = json!(restart);
        json!({"metadata": {"labels": {"app": "a"}}, "spec": spec})
    };
    let selector = json!({"matchLabels": {"app": "a"}});
    let at = |group: &str, plural: &str| format!("/{group}/namespaces/default/{plural}");
    let always = json!({"selector": selector, "template": with("")});
    let cases = [
        (at("apis/apps/v1", "deployments"), always.clone()),
        (at("apis/apps/v1", "replicasets"), always.clone()),
        (at("apis/apps/v1", "daemonsets"), always.clone()),
        (at("apis/apps/v1", "statefulsets"), always),
        (
            at("api/v1", "replicationcontrollers"),
            json!({"template": with("")}),
        ),
        (
            at("apis/batch/v1", "jobs"),
            json!({"template": with("Never")}),
        ),
        (
            at("apis/batch/v1", "cronjobs"),
            json!({"schedule": "@daily", "jobTemplate": {"spec": {"template": with("Never")}}}),
        ),
    ];
    for (path, spec) in cases {
        let body = json!({"metadata": {"name": "x"}, "spec": spec});
        let mut made = create(&server, &path, body).await.json();
        let job = made.pointer_mut("/spec/jobTemplate").map(Value::take);
        let mut spec = job.unwrap_or(made)["spec"]["template"]["spec"].take();
        spec["restartPolicy"] = json!("Always");
        assert_eq!(spec, template_spec(), "{path}");
    }
}

#[tokio::test]
async fn ports_of_host_network_pods_are_ports_of_the_host() {
    let server = Server::start().await;
    let container = json!({"name": "c", "image": "i", "ports": [{"containerPort": 80},
        {"containerPort": 81, "hostPort": 81}]});
    let spec = json!({"hostNetwork": true, "containers": [container]});
    let pod = json!({"metadata": {"name": "p"}, "spec": spec});
    let made = create(&server, PODS, pod).await.json();
    let ports = &made["spec"]["containers"][0]["ports"];
    assert_eq!(
        (&ports[0]["hostPort"], &ports[1]["hostPort"]),
        (&json!(80), &json!(81))
    );
}

#[tokio::test]
async fn ephemeral_containers_get_defaults() {
    let server = Server::start().await;
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    create(
        &server,
        PODS,
        json!({"metadata": {"name": "p"}, "spec": spec}),
    )
    .await;
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "busybox:1"}]}});
    let path = format!("{PODS}/p/ephemeralcontainers");
    let made = server.call("PATCH", &path, Some(debug)).await.json();
    let expected = json!([{"name": "d", "image": "busybox:1", "imagePullPolicy": "IfNotPresent", "resources": {},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}]);
    assert_eq!(made["spec"]["ephemeralContainers"], expected);
}

#[tokio::test]
async fn sticky_services_get_a_duration() {
    let server = Server::start().await;
    let services = "/api/v1/namespaces/default/services";
    let service = |name: &str, spec: Value| json!({"metadata": {"name": name}, "spec": spec});
    let ports = json!([{"port": 80}]);
    let sticky =
        json!({"ports": ports, "sessionAffinity": "ClientIP", "externalIPs": ["192.0.2.1"]});
    let made = create(&server, services, service("a", sticky)).await.json();
    let config = json!({"clientIP": {"timeoutSeconds": 10800}});
    assert_eq!(made["spec"]["sessionAffinityConfig"], config);
    assert_eq!(made["spec"]["externalTrafficPolicy"], "Cluster");
    let change = json!({"spec": {"sessionAffinity": "None"}});
    let changed = server
        .call("PATCH", &format!("{services}/a"), Some(change))
        .await
        .json();
    assert_eq!(changed["spec"].get("sessionAffinityConfig"), None);
    let balanced = json!({"ports": ports, "type": "LoadBalancer"});
    create(&server, services, service("b", balanced)).await;
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}});
    let written = server
        .call("PATCH", &format!("{services}/b/status"), Some(status))
        .await;
    let ingress = json!([{"ip": "192.0.2.2", "ipMode": "VIP"}]);
    assert_eq!(written.json()["status"]["loadBalancer"]["ingress"], ingress);
}

#[tokio::test]
async fn volumes_get_the_defaults_of_their_sources() {
    let server = Server::start().await;
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.com.example:a", "lun": 0}});
    let volume = json!({"metadata": {"name": "v"}, "spec": spec});
    let made = create(&server, "/api/v1/persistentvolumes", volume)
        .await
        .json();
    assert_eq!(made["spec"]["iscsi"]["iscsiInterface"], "default");
    assert_eq!(made["spec"]["volumeMode"], "Filesystem");
    assert_eq!(made["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test]
async fn pod_update_with_another_probe_is_rejected() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": bare_spec()});
    create(&server, PODS, pod).await;
    let mut spec = bare_spec();
    spec["containers"][0]["livenessProbe"]["periodSeconds"] = json!(11);
    let pod = json!({"metadata": {"name": "p"}, "spec": spec});
    is(
        &server.call("PUT", &format!("{PODS}/p"), Some(pod)).await,
        422,
        "Invalid",
    );
}
