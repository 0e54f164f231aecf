//! `kubectl explain`, validation by kubectl, and the OpenAPI documents behind them, on the embedded server. Tests named
//! `real_*` compare the documents with those of the real kube-apiserver.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure_tests::embedded::Embedded;
use tenure_tests::real::{Peer, build, shared};
use tenure_tests::scenarios::clients;
use tenure_tests::wire::Wire;
use tenure_tests::{Skip, tools};

/// kubectl with an empty cache.
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    home: TempDir,
}

impl Kubectl {
    fn new(program: PathBuf, kubeconfig: PathBuf) -> Self {
        let home = tempfile::tempdir().unwrap();
        Self {
            program,
            kubeconfig,
            home,
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(&self.program);
        command
            .env("HOME", self.home.path())
            .env("KUBECONFIG", &self.kubeconfig);
        command.args(arguments).output().unwrap()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}{error}");
        said
    }

    fn file(&self, object: &Value) -> String {
        let file = self.home.path().join("object.json");
        std::fs::write(&file, object.to_string()).unwrap();
        file.display().to_string()
    }
}

/// Asserts that a text contains all of these, in this order.
fn assert_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let Some(at) = rest.find(part) else {
            panic!("no {part:?} in its place in:\n{text}");
        };
        rest = &rest[at + part.len()..];
    }
}

#[test]
fn kubectl_explains_every_built_in_kind() {
    if !clients::peer(Peer::Kubectl) {
        return;
    }
    let server = Embedded::start().unwrap();
    let kubectl = Kubectl::new(build(Peer::Kubectl).unwrap(), server.kubeconfig());
    let resources = kubectl.ok(&["api-resources", "--no-headers"]);
    let mut explained = 0;
    for line in resources.lines() {
        // NAME SHORTNAMES APIVERSION NAMESPACED KIND; the second is often empty. Two groups have events.
        let words: Vec<&str> = line.split_whitespace().collect();
        let version = format!("--api-version={}", words[words.len() - 3]);
        let said = kubectl.ok(&["explain", words[0], &version]);
        assert!(said.contains(words[words.len() - 1]), "{line}: {said}");
        assert_order(&said, &["KIND:", "VERSION:", "DESCRIPTION:\n", "FIELDS:\n"]);
        assert!(!said.contains("DESCRIPTION:\n    <empty>"), "{said}");
        assert_order(&said, &["  apiVersion\t<string>\n", "  kind\t<string>\n"]);
        explained += 1;
    }
    assert!(explained > 40, "{explained} kinds:\n{resources}");
    let alpha = "--api-version=coordination.k8s.io/v1alpha2";
    let said = kubectl.ok(&["explain", alpha, "leasecandidate.spec.strategy"]);
    assert_order(&said, &["VERSION:    v1alpha2", "FIELD: strategy <string>"]);
}

#[test]
fn kubectl_explains_fields() {
    if !clients::peer(Peer::Kubectl) {
        return;
    }
    let server = Embedded::start().unwrap();
    let kubectl = Kubectl::new(build(Peer::Kubectl).unwrap(), server.kubeconfig());
    let said = kubectl.ok(&["explain", "pod.spec.containers"]);
    let parts = [
        "KIND:       Pod\n",
        "FIELD: containers <[]Container>\n",
        "List of containers belonging to the pod.",
        "A single application container that you want to run within a pod.",
        "  image\t<string>\n    Container image name.",
        "  imagePullPolicy\t<string>\n  enum: Always, IfNotPresent, Never\n",
        "  name\t<string> -required-\n",
        "  resources\t<ResourceRequirements>\n",
    ];
    assert_order(&said, &parts);
    let said = kubectl.ok(&["explain", "lease.spec", "--recursive"]);
    let parts = [
        "GROUP:      coordination.k8s.io\n",
        "FIELD: spec <LeaseSpec>\n",
        "  acquireTime\t<string>\n",
        "  holderIdentity\t<string>\n",
        "  leaseDurationSeconds\t<integer>\n",
        "  renewTime\t<string>\n",
    ];
    assert_order(&said, &parts);
    // Schemas of definitions refer to themselves.
    let said = kubectl.ok(&["explain", "crd.spec.versions.schema", "--recursive"]);
    assert_order(
        &said,
        &[
            "openAPIV3Schema\t<JSONSchemaProps>",
            "properties\t<map[string]JSONSchemaProps>",
        ],
    );
    let missing = kubectl.run(&["explain", "pod.spec.nope"]);
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success());
    assert!(said.contains("field \"nope\" does not exist"), "{said}");
}

/// The document of OpenAPI v2, in protobuf.
#[test]
fn kubectl_explains_fields_from_openapi_v2() {
    if !clients::peer(Peer::Kubectl) {
        return;
    }
    let server = Embedded::start().unwrap();
    let kubectl = Kubectl::new(build(Peer::Kubectl).unwrap(), server.kubeconfig());
    let v2 = "--output=plaintext-openapiv2";
    let said = kubectl.ok(&["explain", v2, "pod.spec.containers"]);
    let parts = [
        "RESOURCE: containers <[]Object>",
        "   image\t<string>",
        "   name\t<string> -required-",
    ];
    assert_order(&said, &parts);
    let said = kubectl.ok(&["explain", v2, "lease.spec.holderIdentity"]);
    assert_order(&said, &["holderIdentity contains the identity"]);
}

/// A kubectl that knows only OpenAPI v2, and validates with it.
#[test]
fn kubectl_of_the_distribution_explains_and_validates() {
    let Some(program) = Skip::unless(tools::distribution_kubectl()) else {
        return;
    };
    let server = Embedded::start().unwrap();
    let kubectl = Kubectl::new(program, server.kubeconfig());
    let said = kubectl.ok(&["explain", "pod.spec.containers"]);
    assert_order(
        &said,
        &[
            "List of containers belonging to the pod.",
            "name\t<string> -required-",
        ],
    );
    validates(&kubectl);
}

#[test]
fn kubectl_validates_strictly() {
    if !clients::peer(Peer::Kubectl) {
        return;
    }
    let server = Embedded::start().unwrap();
    let kubectl = Kubectl::new(build(Peer::Kubectl).unwrap(), server.kubeconfig());
    validates(&kubectl);
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "strict"}, "spec": {"holderIdentity": "a"}});
    kubectl.ok(&["create", "--validate=strict", "-f", &kubectl.file(&lease)]);
}

/// Asserts that kubectl rejects an unknown field, and accepts the same object without it.
fn validates(kubectl: &Kubectl) {
    let deployment = |extra: Value| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "i", "ports": [
                    {"containerPort": 80}, {"containerPort": 81, "protocol": "UDP"}],
                    "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                    "livenessProbe": {"httpGet": {"port": "http"}}}], "extra": extra}}}})
    };
    let wrong = kubectl.file(&deployment(json!("x")));
    let refused = kubectl.run(&["create", "--validate=true", "-f", &wrong]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "an unknown field was accepted");
    assert!(said.contains("unknown field"), "{said}");
    let mut right = deployment(Value::Null);
    let pod = right.pointer_mut("/spec/template/spec").unwrap();
    pod.as_object_mut().unwrap().remove("extra");
    let file = kubectl.file(&right);
    kubectl.ok(&["create", "--validate=true", "-f", &file]);
    kubectl.ok(&["apply", "-f", &file]);
}

/// Differences between the schemas of Kubernetes 1.37, which the embedded server has, and 1.36, the version of the built
/// kube-apiserver. Each entry is the start of a line.
const CHANGED_IN_1_37: &[&str] = &[
    "io.k8s.api.apps.v1.ControllerRevision required",
    "io.k8s.api.apps.v1.DaemonSet required",
    "io.k8s.api.apps.v1.DaemonSetCondition required",
    "io.k8s.api.apps.v1.Deployment required",
    "io.k8s.api.apps.v1.DeploymentCondition required",
    "io.k8s.api.apps.v1.ReplicaSet required",
    "io.k8s.api.apps.v1.ReplicaSetCondition required",
    "io.k8s.api.apps.v1.StatefulSet required",
    "io.k8s.api.apps.v1.StatefulSetCondition required",
    "io.k8s.api.apps.v1.StatefulSetUpdateStrategy type enum: ",
    "io.k8s.api.core.v1.NodeAllocatableResourceClaimStatus ",
    "io.k8s.api.core.v1.PodStatus nodeAllocatableResourceClaimStatuses ",
];

/// Members that are not compared. Defaults that refer to Go constants are not in the table of fields, and a document names
/// only the kinds of its group.
const LEFT_OUT: &[&str] = &[
    "io.k8s.api.core.v1.AzureDiskVolumeSource ",
    "io.k8s.api.core.v1.PersistentVolumeClaim kind",
];

/// Returns the documents of both servers, as (embedded, real).
fn documents(embedded: &Path, real: &Path, path: &str) -> [Value; 2] {
    [embedded, real].map(|kubeconfig| {
        let wire = Wire::connect(kubeconfig).unwrap();
        let answer = wire.get(&format!("/openapi/v3/{path}")).unwrap();
        assert_eq!(answer.status, 200, "{path}");
        answer.body["components"]["schemas"].clone()
    })
}

/// Compares a schema that both servers have. The versions of the servers differ, so members that only one of them has
/// are not compared, and neither are the texts.
fn differences(name: &str, ours: &Value, real: &Value, out: &mut BTreeSet<String>) {
    let required = |schema: &Value| -> BTreeSet<String> {
        let names = schema["required"].as_array().into_iter().flatten();
        names.map(ToString::to_string).collect()
    };
    if required(ours) != required(real) {
        out.insert(format!("{name} required"));
    }
    if ours["x-kubernetes-group-version-kind"].is_null()
        != real["x-kubernetes-group-version-kind"].is_null()
    {
        out.insert(format!("{name} kind"));
    }
    for (field, real) in real["properties"].as_object().into_iter().flatten() {
        let Some(ours) = ours["properties"].get(field) else {
            out.insert(format!("{name} {field} missing"));
            continue;
        };
        let names = [ours, real].map(|schema| schema.as_object().into_iter().flatten());
        let names: BTreeSet<&str> = names.into_iter().flatten().map(|(k, _)| &**k).collect();
        for member in names {
            let same = match member {
                "description" => ours[member].is_string() == real[member].is_string(),
                // Kubernetes 1.37 has no defaults of elements.
                "items" | "additionalProperties" => {
                    reference(&ours[member]) == reference(&real[member])
                        && ours[member]["type"] == real[member]["type"]
                        && ours[member]["enum"] == real[member]["enum"]
                }
                _ => ours[member] == real[member],
            };
            if !same {
                out.insert(format!(
                    "{name} {field} {member}: {} instead of {}",
                    ours[member], real[member]
                ));
            }
        }
    }
}

/// Returns the schema that another one refers to, directly or as the only element of `allOf`.
fn reference(schema: &Value) -> &Value {
    match &schema["allOf"][0]["$ref"] {
        Value::Null => &schema["$ref"],
        found => found,
    }
}

#[test]
fn real_openapi_schemas_are_those_of_kube_apiserver() {
    let Some(cluster) = Skip::unless(shared()) else {
        return;
    };
    let server = Embedded::start().unwrap();
    let mut found = BTreeSet::new();
    let mut compared = 0;
    for path in [
        "api/v1",
        "apis/apps/v1",
        "apis/apiextensions.k8s.io/v1",
        "apis/coordination.k8s.io/v1",
        "apis/rbac.authorization.k8s.io/v1",
        "apis/storage.k8s.io/v1",
    ] {
        let [ours, real] = documents(&server.kubeconfig(), &cluster.kubeconfig(), path);
        for (name, schema) in ours.as_object().unwrap() {
            // The schema may be new.
            let Some(real) = real.get(name) else {
                continue;
            };
            compared += 1;
            differences(name, schema, real, &mut found);
        }
    }
    assert!(compared > 200, "{compared}");
    let known = |line: &&str| {
        let mut starts = CHANGED_IN_1_37.iter().chain(LEFT_OUT);
        starts.any(|start| line.starts_with(start))
    };
    let lines: Vec<&str> = found
        .iter()
        .map(String::as_str)
        .filter(|line| !known(line))
        .collect();
    assert!(
        lines.is_empty(),
        "{compared} schemas:\n{}",
        lines.join("\n")
    );
}
