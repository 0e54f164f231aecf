//! Specs of pods with the structs whose defaults the server fills in.

use serde_json::{Value, json};

use super::bodies::word;
use crate::nemesis::seed::Seeded;

/// Returns a valid spec with one container, and a random selection of ports, variables, probes and volumes.
pub(super) fn spec(seeded: &mut Seeded) -> Value {
    let tag = *seeded.pick(&["", "", ":latest", ":1.2", "/Bad"]);
    let mut container = json!({"name": "c", "image": word(seeded) + tag});
    if seeded.percent(50) {
        return json!({"containers": [container]});
    }
    for probe in ["livenessProbe", "readinessProbe"] {
        if seeded.percent(40) {
            container[probe] = seeded
                .pick(&[
                    json!({"httpGet": {"port": 80}}),
                    json!({"grpc": {"port": 90}, "periodSeconds": 7}),
                    json!({"exec": {"command": ["true"]}, "timeoutSeconds": 0}),
                    json!({"tcpSocket": {"port": "web"}, "failureThreshold": 5}),
                ])
                .clone();
        }
    }
    let parts = [
        ("ports", json!([{"containerPort": 80, "name": "web"}])),
        (
            "env",
            json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        ),
        (
            "resources",
            json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0.1005"}}),
        ),
        (
            "lifecycle",
            json!({"preStop": {"httpGet": {"port": 80, "scheme": "HTTPS"}}}),
        ),
    ];
    for (member, value) in parts {
        if seeded.percent(40) {
            container[member] = value;
        }
    }
    let volumes: Vec<Value> = VOLUMES
        .iter()
        .filter(|_| seeded.percent(25))
        .map(|text| serde_json::from_str(text).expect("a constant is JSON"))
        .collect();
    let mut spec = json!({"containers": [container], "volumes": volumes});
    if seeded.percent(25) {
        spec["initContainers"] = json!([{"name": "i", "image": word(seeded),
            "resources": {"limits": {"memory": "1536Ki"}}}]);
    }
    if seeded.percent(15) {
        spec["hostNetwork"] = json!(true);
    }
    if seeded.percent(15) {
        spec["serviceAccount"] = json!("builder");
    }
    spec
}

const VOLUMES: [&str; 10] = [
    r#"{"name": "none"}"#,
    r#"{"name": "host", "hostPath": {"path": "/srv"}}"#,
    r#"{"name": "secret", "secret": {"secretName": "s"}}"#,
    r#"{"name": "map", "configMap": {"name": "m", "defaultMode": 256}}"#,
    r#"{"name": "down", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}}"#,
    r#"{"name": "all", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}},
        {"downwardAPI": {"items": [{"path": "q", "fieldRef": {"fieldPath": "metadata.name"}}]}}]}}"#,
    r#"{"name": "iscsi", "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2026-01.com.example:a", "lun": 0}}"#,
    r#"{"name": "rbd", "rbd": {"monitors": ["10.0.0.1"], "image": "i"}}"#,
    r#"{"name": "claim", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}"#,
    r#"{"name": "image", "image": {"reference": "data:v1"}}"#,
];
