//! Cluster-scoped objects, and kinds related to them: storage, devices, events.

use serde_json::json;

use super::bodies::{BASE, CLUSTER, Kind, word};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const STORAGE: &str = "/apis/storage.k8s.io/v1";
const DEVICES: &str = "/apis/resource.k8s.io/v1";

/// The kinds.
pub(super) const MORE_KINDS: &[Kind] = &[
    Kind {
        resource: "events",
        kind: "Event",
        good: |seeded| {
            json!({"involvedObject": {"kind": "Pod", "name": "a", "namespace": "@namespace"},
                "reason": word(seeded), "message": word(seeded), "type": "Normal",
                "count": seeded.below(9) + 1})
        },
        bad: &[
            ("/involvedObject/namespace", r#""elsewhere""#),
            ("/involvedObject", "null"),
            ("/count", r#""many""#),
            ("/eventTime", r#""yesterday""#),
            ("/type", r#""Odd""#),
        ],
        ..BASE
    },
    Kind {
        api: "/apis/events.k8s.io/v1",
        resource: "events",
        kind: "Event",
        good: |seeded| {
            json!({"regarding": {"kind": "Pod", "name": "a", "namespace": "@namespace"},
                "reason": "Why", "note": word(seeded), "type": "Normal", "action": "Doing",
                "eventTime": "2026-01-02T03:04:05.000006Z",
                "reportingController": "example.com/c", "reportingInstance": "c-0"})
        },
        bad: &[
            ("/regarding/namespace", r#""elsewhere""#),
            ("/eventTime", "null"),
            ("/reportingController", r#""""#),
            ("/reportingController", r#""not a name""#),
            ("/reportingInstance", r#""""#),
            ("/action", r#""""#),
            ("/reason", r#""""#),
            ("/type", r#""Odd""#),
            ("/series", r#"{"count": 1}"#),
        ],
        ..BASE
    },
    Kind {
        resource: "persistentvolumeclaims",
        kind: "PersistentVolumeClaim",
        good: |seeded| {
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": word(seeded),
                "resources": {"requests": {"storage": "1Gi"}}}})
        },
        bad: &[
            ("/spec/accessModes", "[]"),
            ("/spec/accessModes", r#"["Sometimes"]"#),
            ("/spec/resources", "null"),
            ("/spec/resources/requests/storage", r#""-1Gi""#),
            ("/spec/resources/requests/storage", r#""much""#),
            ("/spec/volumeMode", r#""Odd""#),
            ("/spec/storageClassName", r#""Bad Name""#),
            ("/spec/selector", r#"{"matchLabels": {"-x": "y"}}"#),
        ],
        ..BASE
    },
    Kind {
        api: STORAGE,
        resource: "csistoragecapacities",
        kind: "CSIStorageCapacity",
        good: |seeded| {
            json!({"storageClassName": "slow", "nodeTopology": {"matchLabels": {"zone": "a"}},
                "capacity": format!("{}Gi", seeded.below(9) + 1)})
        },
        bad: &[
            ("/storageClassName", r#""""#),
            ("/storageClassName", r#""other""#),
            ("/capacity", r#""-1""#),
            ("/capacity", r#""much""#),
            ("/maximumVolumeSize", r#""-5""#),
            ("/nodeTopology", r#"{"matchLabels": {"zone": "b"}}"#),
        ],
        ..BASE
    },
    Kind {
        api: DEVICES,
        resource: "resourceclaimtemplates",
        kind: "ResourceClaimTemplate",
        good: |_| {
            json!({"spec": {"spec": {"devices": {"requests": [
                {"name": "r", "exactly": {"deviceClassName": "one.example.com"}}]}}}})
        },
        bad: &[
            ("/spec/spec/devices/requests/0/name", r#""Bad Name""#),
            ("/spec/spec/devices/requests/0/name", r#""other""#),
            ("/spec/spec/devices/requests/0/exactly", "null"),
            (
                "/spec/spec/devices/requests/0/exactly/deviceClassName",
                r#""""#,
            ),
        ],
        ..BASE
    },
    Kind {
        resource: "namespaces",
        kind: "Namespace",
        // Deletion is handled by controllers on the real server, and by the server itself here.
        deletable: false,
        good: |_| json!({}),
        bad: &[
            ("/spec/finalizers", r#"["nodomain"]"#),
            ("/spec/finalizers", r#"["example.com/f"]"#),
            ("/spec", "7"),
        ],
        ..CLUSTER
    },
    Kind {
        resource: "nodes",
        kind: "Node",
        good: |seeded| json!({"spec": {"unschedulable": seeded.percent(50)}}),
        bad: &[
            ("/spec/taints", r#"[{"key": "a", "effect": "Odd"}]"#),
            (
                "/spec/taints",
                r#"[{"key": "not a key", "effect": "NoSchedule"}]"#,
            ),
            ("/spec/podCIDRs", r#"["here"]"#),
            ("/spec/unschedulable", r#""yes""#),
        ],
        ..CLUSTER
    },
    Kind {
        api: RBAC,
        resource: "clusterroles",
        kind: "ClusterRole",
        good: |seeded| {
            json!({"rules": [{"apiGroups": [""], "resources": ["pods"],
                "verbs": [*seeded.pick(&["get", "list"])]}]})
        },
        bad: &[
            ("/rules/0/verbs", "[]"),
            ("/rules/0/resources", "[]"),
            ("/rules/0/nonResourceURLs", r#"["/x"]"#),
            (
                "/rules",
                r#"[{"verbs": ["get"], "nonResourceURLs": ["/x"]}]"#,
            ),
            ("/aggregationRule", r#"{"clusterRoleSelectors": []}"#),
            (
                "/aggregationRule",
                r#"{"clusterRoleSelectors": [{"matchLabels": {"-x": "y"}}]}"#,
            ),
        ],
        ..CLUSTER
    },
    Kind {
        api: RBAC,
        resource: "clusterrolebindings",
        kind: "ClusterRoleBinding",
        good: |seeded| {
            json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "name": word(seeded)}]})
        },
        bad: &[
            ("/roleRef/name", r#""""#),
            ("/roleRef/kind", r#""Role""#),
            ("/roleRef/name", r#""edit""#),
            ("/subjects/0/kind", r#""Robot""#),
            ("/subjects/0/kind", r#""ServiceAccount""#),
        ],
        ..CLUSTER
    },
    Kind {
        resource: "persistentvolumes",
        kind: "PersistentVolume",
        good: |seeded| {
            json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "storageClassName": word(seeded), "hostPath": {"path": "/data"}}})
        },
        bad: &[
            ("/spec/capacity", "null"),
            ("/spec/capacity/storage", r#""-1Gi""#),
            ("/spec/accessModes", "[]"),
            ("/spec/accessModes", r#"["Sometimes"]"#),
            ("/spec/hostPath", "null"),
            ("/spec/hostPath/path", r#""../up""#),
            ("/spec/persistentVolumeReclaimPolicy", r#""Odd""#),
            ("/spec/volumeMode", r#""Odd""#),
        ],
        ..CLUSTER
    },
    Kind {
        api: STORAGE,
        resource: "storageclasses",
        kind: "StorageClass",
        good: |seeded| json!({"provisioner": "example.com/p", "allowVolumeExpansion": seeded.percent(50)}),
        bad: &[
            ("/provisioner", r#""""#),
            ("/provisioner", r#""not a name""#),
            ("/provisioner", r#""example.com/other""#),
            ("/reclaimPolicy", r#""Odd""#),
            ("/volumeBindingMode", r#""Odd""#),
            ("/parameters", r#"{"": "x"}"#),
            ("/mountOptions", r#""x""#),
        ],
        ..CLUSTER
    },
    Kind {
        api: STORAGE,
        resource: "csidrivers",
        kind: "CSIDriver",
        good: |seeded| json!({"spec": {"podInfoOnMount": seeded.percent(50)}}),
        bad: &[
            ("/spec/volumeLifecycleModes", r#"["Odd"]"#),
            ("/spec/fsGroupPolicy", r#""Odd""#),
            ("/spec/attachRequired", "false"),
            (
                "/spec/tokenRequests",
                r#"[{"audience": "a"}, {"audience": "a"}]"#,
            ),
        ],
        ..CLUSTER
    },
    Kind {
        api: STORAGE,
        resource: "csinodes",
        kind: "CSINode",
        good: |_| json!({"spec": {"drivers": [{"name": "d.example.com", "nodeID": "n"}]}}),
        bad: &[
            ("/spec/drivers/0/nodeID", r#""""#),
            ("/spec/drivers/0/nodeID", r#""other""#),
            ("/spec/drivers/0/name", r#""""#),
            ("/spec/drivers/0/topologyKeys", r#"["not a key"]"#),
            ("/spec/drivers/0/allocatable", r#"{"count": -1}"#),
        ],
        ..CLUSTER
    },
    Kind {
        api: STORAGE,
        resource: "volumeattachments",
        kind: "VolumeAttachment",
        good: |_| {
            json!({"spec": {"attacher": "d.example.com", "nodeName": "n",
                "source": {"persistentVolumeName": "v"}}})
        },
        bad: &[
            ("/spec/attacher", r#""""#),
            ("/spec/nodeName", r#""""#),
            ("/spec/nodeName", r#""other""#),
            ("/spec/source", "{}"),
        ],
        ..CLUSTER
    },
    Kind {
        api: DEVICES,
        resource: "deviceclasses",
        kind: "DeviceClass",
        good: |seeded| {
            json!({"spec": {"config": [{"opaque": {"driver": "d.example.com",
                "parameters": {"size": word(seeded)}}}]}})
        },
        bad: &[
            ("/spec/config/0/opaque/driver", r#""Bad Name""#),
            ("/spec/config/0/opaque", "null"),
            ("/spec/config/0/opaque/parameters", "null"),
        ],
        ..CLUSTER
    },
    Kind {
        api: DEVICES,
        resource: "resourceslices",
        kind: "ResourceSlice",
        good: |seeded| {
            json!({"spec": {"driver": "d.example.com", "nodeName": "n",
                "pool": {"name": "p", "generation": seeded.below(9) + 1, "resourceSliceCount": 1},
                "devices": [{"name": "d"}]}})
        },
        bad: &[
            ("/spec/driver", r#""""#),
            ("/spec/pool/name", r#""""#),
            ("/spec/pool/resourceSliceCount", "0"),
            ("/spec/nodeName", r#""other""#),
            ("/spec/allNodes", "true"),
            ("/spec/devices/0/name", r#""Bad Name""#),
        ],
        ..CLUSTER
    },
];
