//! Objects of the compared kinds: valid ones, and changes that make them invalid in one place.

use serde_json::{Value, json};

use super::more_bodies::MORE_KINDS;
use super::pods;
use crate::nemesis::seed::Seeded;

/// A kind.
#[derive(Debug)]
pub struct Kind {
    /// API path: `/api/v1` or `/apis/GROUP/VERSION`.
    pub api: &'static str,
    /// Resource name, as in paths.
    pub resource: &'static str,
    /// Kind, as in objects.
    pub kind: &'static str,
    /// Returns a valid object without metadata that differs a little each time.
    pub(super) good: fn(&mut Seeded) -> Value,
    /// Changes that make it invalid: a JSON pointer and a value.
    pub(super) bad: &'static [(&'static str, &'static str)],
    /// Whether its objects are namespaced.
    pub(super) namespaced: bool,
    /// Whether both servers delete its objects in the same way.
    pub(super) deletable: bool,
}

/// Common properties of most namespaced kinds.
pub(super) const BASE: Kind = Kind {
    api: "/api/v1",
    resource: "",
    kind: "",
    good: |_| Value::Null,
    bad: &[],
    namespaced: true,
    deletable: true,
};

/// Common properties of cluster-scoped kinds.
pub(super) const CLUSTER: Kind = Kind {
    namespaced: false,
    ..BASE
};

/// Returns the compared kinds.
pub fn kinds() -> Vec<&'static Kind> {
    OF_A_NAMESPACE.iter().chain(MORE_KINDS).collect()
}

const OF_A_NAMESPACE: &[Kind] = &[
    Kind {
        resource: "configmaps",
        kind: "ConfigMap",
        good: |seeded| json!({"data": {*seeded.pick(&["a", "b.c", "d-e"]): word(seeded)}}),
        bad: &[
            ("/data", r#"{"bad key!": "x"}"#),
            ("/data", r#"{"a": 7}"#),
            ("/data", r#"["a"]"#),
            ("/binaryData", r#"{"a": "!!!"}"#),
            ("/immutable", r#""yes""#),
            ("/immutable", "true"),
        ],
        ..BASE
    },
    Kind {
        resource: "secrets",
        kind: "Secret",
        good: |seeded| json!({"type": "Opaque", "stringData": {"a": word(seeded)}}),
        bad: &[
            ("/data", r#"{"a": "not base64"}"#),
            ("/data", r#"{"bad key!": "eA=="}"#),
            ("/type", r#""kubernetes.io/tls""#),
            ("/type", r#""kubernetes.io/dockerconfigjson""#),
            ("/immutable", "true"),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/coordination.k8s.io/v1",
        resource: "leases",
        kind: "Lease",
        good: |seeded| {
            json!({"spec": {"holderIdentity": word(seeded), "leaseDurationSeconds": 15,
                "leaseTransitions": seeded.below(9),
                "renewTime": format!("2026-01-02T03:04:05.{:06}Z", seeded.below(1_000_000))}})
        },
        bad: &[
            ("/spec/leaseDurationSeconds", "0"),
            ("/spec/leaseDurationSeconds", r#""15""#),
            ("/spec/leaseTransitions", "-1"),
            ("/spec/renewTime", r#""yesterday""#),
            ("/spec", "null"),
        ],
        ..BASE
    },
    Kind {
        resource: "serviceaccounts",
        kind: "ServiceAccount",
        good: |seeded| json!({"automountServiceAccountToken": seeded.percent(50)}),
        bad: &[
            ("/secrets", r#""x""#),
            ("/automountServiceAccountToken", "1"),
        ],
        ..BASE
    },
    Kind {
        resource: "endpoints",
        kind: "Endpoints",
        good: |seeded| {
            json!({"subsets": [{"addresses": [{"ip": format!("10.1.2.{}", seeded.below(200) + 1)}],
                "ports": [{"port": seeded.below(1000) + 1}]}]})
        },
        bad: &[
            ("/subsets/0/addresses/0/ip", r#""not an ip""#),
            ("/subsets/0/ports/0/port", "70000"),
            ("/subsets/0/ports/0/protocol", r#""XYZ""#),
            ("/subsets/0/addresses", "[]"),
        ],
        ..BASE
    },
    Kind {
        resource: "services",
        kind: "Service",
        good: |seeded| json!({"spec": {"selector": {"app": word(seeded)}, "ports": [{"port": seeded.below(1000) + 1}]}}),
        bad: &[
            ("/spec/ports", "[]"),
            ("/spec/ports/0/port", "0"),
            ("/spec/type", r#""Sometimes""#),
            ("/spec/sessionAffinity", r#""Never""#),
            ("/spec/clusterIP", r#""None""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/rbac.authorization.k8s.io/v1",
        resource: "roles",
        kind: "Role",
        good: |seeded| json!({"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": [*seeded.pick(&["get", "list"])]}]}),
        bad: &[
            ("/rules/0/verbs", "[]"),
            ("/rules/0/resources", "[]"),
            ("/rules/0/nonResourceURLs", r#"["/x"]"#),
            ("/rules", r#"{"a": 1}"#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/rbac.authorization.k8s.io/v1",
        resource: "rolebindings",
        kind: "RoleBinding",
        good: |seeded| {
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
                "subjects": [{"kind": "User", "name": word(seeded)}]})
        },
        bad: &[
            ("/roleRef/name", r#""""#),
            ("/roleRef/kind", r#""Pod""#),
            ("/roleRef/name", r#""other""#),
            ("/subjects/0/kind", r#""Robot""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/discovery.k8s.io/v1",
        resource: "endpointslices",
        kind: "EndpointSlice",
        good: |seeded| {
            json!({"addressType": "IPv4", "ports": [{"name": "p", "port": seeded.below(1000) + 1}],
                "endpoints": [{"addresses": [format!("10.1.2.{}", seeded.below(200) + 1)]}]})
        },
        bad: &[
            ("/addressType", r#""IPv5""#),
            ("/endpoints/0/addresses", "[]"),
            ("/addressType", r#""FQDN""#),
        ],
        ..BASE
    },
    Kind {
        resource: "pods",
        kind: "Pod",
        good: |seeded| json!({"spec": pods::spec(seeded)}),
        bad: &[
            ("/spec/containers", "[]"),
            ("/spec/containers/0/name", r#""Bad Name""#),
            ("/spec/containers/0/image", r#""""#),
            ("/spec/restartPolicy", r#""Perhaps""#),
            ("/spec/nodeName", r#""n""#),
        ],
        ..BASE
    },
    Kind {
        resource: "replicationcontrollers",
        kind: "ReplicationController",
        good: |seeded| json!({"spec": {"replicas": seeded.below(3), "template": template(seeded, "Always")}}),
        bad: &[
            ("/spec/replicas", "-1"),
            ("/spec/minReadySeconds", "-2"),
            ("/spec/template", "null"),
            ("/spec/selector", r#"{"app": "other"}"#),
            ("/spec/template/spec/restartPolicy", r#""Never""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/apps/v1",
        resource: "deployments",
        kind: "Deployment",
        good: workload,
        bad: &[
            ("/spec/replicas", "-1"),
            ("/spec/selector", "null"),
            ("/spec/selector", r#"{"matchLabels": {"app": "other"}}"#),
            ("/spec/template/spec/containers", "[]"),
            ("/spec/template/spec/restartPolicy", r#""Never""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/apps/v1",
        resource: "replicasets",
        kind: "ReplicaSet",
        good: workload,
        bad: &[
            ("/spec/replicas", "-1"),
            ("/spec/minReadySeconds", "-1"),
            ("/spec/selector", "{}"),
            ("/spec/selector", r#"{"matchLabels": {"app": "other"}}"#),
            ("/spec/template/spec/activeDeadlineSeconds", "5"),
            ("/spec/template/spec/containers/0/image", r#""""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/apps/v1",
        resource: "statefulsets",
        kind: "StatefulSet",
        good: |seeded| {
            let mut set = workload(seeded);
            set["spec"]["serviceName"] = json!("svc");
            set["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]);
            set
        },
        bad: &[
            ("/spec/podManagementPolicy", r#""Sometimes""#),
            (
                "/spec/persistentVolumeClaimRetentionPolicy",
                r#"{"whenScaled": "Perhaps"}"#,
            ),
            ("/spec/serviceName", r#""other""#),
            ("/spec/serviceName", r#""Bad Name""#),
            ("/spec/ordinals", r#"{"start": -1}"#),
            ("/spec/template/spec/restartPolicy", r#""OnFailure""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/batch/v1",
        resource: "jobs",
        kind: "Job",
        good: |seeded| json!({"spec": {"parallelism": seeded.below(3), "template": template(seeded, "Never")}}),
        bad: &[
            ("/spec/parallelism", "-1"),
            ("/spec/completionMode", r#""Indexed""#),
            ("/spec/backoffLimitPerIndex", "1"),
            ("/spec/template/spec/restartPolicy", r#""Always""#),
            ("/spec/template/spec/containers", "[]"),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/batch/v1",
        resource: "cronjobs",
        kind: "CronJob",
        good: |seeded| {
            let hour = seeded.below(24);
            json!({"spec": {"schedule": format!("*/5 {hour} * * MON-FRI"),
                "jobTemplate": {"spec": {"template": template(seeded, "OnFailure")}}}})
        },
        bad: &[
            ("/spec/schedule", r#""""#),
            ("/spec/schedule", r#""* * * *""#),
            ("/spec/schedule", r#""61 * * * *""#),
            ("/spec/schedule", r#""TZ=UTC 1 * * * *""#),
            ("/spec/concurrencyPolicy", r#""Maybe""#),
            ("/spec/failedJobsHistoryLimit", "-1"),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/policy/v1",
        resource: "poddisruptionbudgets",
        kind: "PodDisruptionBudget",
        good: |seeded| json!({"spec": {"minAvailable": seeded.below(3), "selector": {"matchLabels": {"app": word(seeded)}}}}),
        bad: &[
            ("/spec/minAvailable", "-1"),
            ("/spec/minAvailable", r#""150%""#),
            ("/spec/minAvailable", r#""half""#),
            ("/spec/unhealthyPodEvictionPolicy", r#""Never""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/resource.k8s.io/v1",
        resource: "resourceclaims",
        kind: "ResourceClaim",
        good: |seeded| {
            let class = format!("{}.example.com", word(seeded));
            json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}}})
        },
        bad: &[
            ("/spec/devices/requests/0/name", r#""Bad Name""#),
            ("/spec/devices/requests/0/exactly", "null"),
            ("/spec/devices/requests/0/exactly/deviceClassName", r#""""#),
            ("/spec/devices/requests/0/exactly/count", "-1"),
        ],
        ..BASE
    },
];

/// Returns a pod template with one label and this restart policy.
fn template(seeded: &mut Seeded, restart: &str) -> Value {
    let mut spec = pods::spec(seeded);
    spec["restartPolicy"] = json!(restart);
    json!({"metadata": {"labels": {"app": "a"}}, "spec": spec})
}

/// Returns an object with the structure that most workload kinds have.
fn workload(seeded: &mut Seeded) -> Value {
    json!({"spec": {"replicas": seeded.below(3), "selector": {"matchLabels": {"app": "a"}},
        "template": template(seeded, "Always")}})
}

const LABELS: [&str; 3] = ["red", "green", "blue"];

/// Returns a random word from a small set.
pub(super) fn word(seeded: &mut Seeded) -> String {
    (*seeded.pick(&["one", "two", "three", "four"])).to_owned()
}

impl Kind {
    /// Returns the path of the collection.
    pub(super) fn path(&self) -> String {
        match self.namespaced {
            true => format!("{}/namespaces/@namespace/{}", self.api, self.resource),
            false => format!("{}/{}", self.api, self.resource),
        }
    }

    /// Returns the name of an object. Outside namespaces each sequence has its own names.
    pub(super) fn name(&self, short: &str) -> String {
        match self.namespaced {
            true => short.to_owned(),
            false => format!("@namespace-{short}"),
        }
    }

    /// Returns a query for the objects of this sequence only. Outside namespaces they have a label.
    pub(super) fn query(&self, query: &str) -> String {
        const OWN: &str = "labelSelector=sequence%3D@namespace";
        if self.namespaced {
            return query.to_owned();
        }
        let query = query.replace("name%3Da", "name%3D@namespace-a");
        let query = query.replace("name!%3Da", "name!%3D@namespace-a");
        match query.split_once("labelSelector=") {
            Some((before, rest)) => format!("{before}{OWN},{rest}"),
            None if query.is_empty() => format!("?{OWN}"),
            None => format!("{query}&{OWN}"),
        }
    }

    /// Returns a whole object of this name; sometimes with a mistake.
    pub(super) fn object(&self, seeded: &mut Seeded, name: &str) -> Value {
        let mut object = (self.good)(seeded);
        let version = self
            .api
            .trim_start_matches("/apis/")
            .trim_start_matches("/api/");
        object["apiVersion"] = json!(version);
        object["kind"] = json!(self.kind);
        object["metadata"] = json!({"name": name, "labels": {"color": seeded.pick(&LABELS)}});
        if !self.namespaced {
            object["metadata"]["labels"]["sequence"] = json!("@namespace");
        }
        match seeded.below(20) {
            0..3 => set(&mut object, *seeded.pick(self.bad)),
            3 => set(&mut object, *seeded.pick(&BAD_METADATA)),
            4 => object["metadata"]["annotations"] = json!({"note": word(seeded)}),
            5 => object["metadata"]["finalizers"] = json!(["example.com/f"]),
            6 => object["unknown"] = json!(1),
            _ => {}
        }
        object
    }

    /// Returns a part of an object, for a merge.
    pub(super) fn change(&self, seeded: &mut Seeded) -> Value {
        match seeded.below(8) {
            0 => json!({"metadata": {"labels": {"color": seeded.pick(&LABELS)}}}),
            1 => json!({"metadata": {"labels": {"color": null}}}),
            2 => json!({"metadata": {"annotations": {"note": word(seeded)}}}),
            3 => json!({"metadata": {"finalizers": null}}),
            4 => {
                let mut change = json!({});
                set(&mut change, *seeded.pick(self.bad));
                change
            }
            _ => (self.good)(seeded),
        }
    }
}

const BAD_METADATA: [(&str, &str); 8] = [
    ("/metadata/name", r#""Bad_Name""#),
    ("/metadata/labels", r#"{"color": "no spaces"}"#),
    ("/metadata/labels", r#"{"-x": "y"}"#),
    ("/metadata/namespace", r#""elsewhere""#),
    ("/metadata/resourceVersion", r#""12345""#),
    ("/metadata/uid", r#""00000000-0000-0000-0000-000000000000""#),
    ("/metadata/ownerReferences", r#"[{"kind": "x"}]"#),
    ("/metadata/finalizers", r#"["nodomain"]"#),
];

/// Sets the value at a JSON pointer, and creates missing parents.
pub(super) fn set(object: &mut Value, (pointer, value): (&str, &str)) {
    let mut place = object;
    for part in pointer.split('/').skip(1) {
        place = match part.parse::<usize>() {
            Ok(index) if place.is_array() => &mut place[index],
            _ => {
                if !place.is_object() {
                    *place = json!({});
                }
                &mut place[part]
            }
        };
    }
    *place = serde_json::from_str(value).unwrap_or_else(|_| json!(value));
}
