//! Pods run as a ServiceAccount: a new pod gets the name and the token of its account.

use serde_json::{Value, json};

use super::engine::{Registry, Target, parsed};
use super::rules::{entries, items, text};

/// The annotation of pods that a kubelet reads from files. They have no token.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// Prefix of the volume with the token.
const VOLUME: &str = "kube-api-access-";
/// Where programs look for the token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Lifetime of the token. The kubelet requests another token earlier.
const TOKEN_SECONDS: u32 = 3_607;

/// Sets the account of a new pod, and mounts its token. The pod stays as it is if the account does not exist, because
/// a server without controllers has no accounts.
pub(super) fn admit(registry: &Registry, pod: &mut Value) {
    if entries(pod, "/metadata/annotations").any(|(key, _)| key == MIRROR) {
        return;
    }
    let names = ["/spec/serviceAccountName", "/spec/serviceAccount"];
    let given = names.map(|name| text(pod, name));
    let name = given.into_iter().find(|name| !name.is_empty());
    let name = name.unwrap_or("default").to_owned();
    let Some(account) = account(registry, text(pod, "/metadata/namespace"), &name) else {
        return;
    };
    let flag = |object: &Value, member: &str| object.pointer(member).and_then(Value::as_bool);
    let mounts = flag(pod, "/spec/automountServiceAccountToken")
        .or_else(|| flag(&account, "/automountServiceAccountToken"))
        .unwrap_or(true);
    let spec = &mut pod["spec"];
    if !spec.is_object() {
        return;
    }
    spec["serviceAccountName"] = json!(name);
    if mounts {
        mount_token(spec);
    }
    if items(spec, "/imagePullSecrets").is_empty()
        && !items(&account, "/imagePullSecrets").is_empty()
    {
        spec["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
}

fn account(registry: &Registry, namespace: &str, name: &str) -> Option<Value> {
    let kind = super::find("", "serviceaccounts")?;
    let target = Target {
        kind,
        version: kind.versions().first()?,
        namespace,
        name,
    };
    parsed(&*registry.store.get(&target.key())?).ok()
}

/// Mounts the token in every container that mounts nothing at its path.
fn mount_token(spec: &mut Value) {
    let volumes = items(spec, "/volumes").iter();
    let known = volumes
        .map(|volume| text(volume, "/name"))
        .find(|name| name.starts_with(VOLUME));
    let known = known.map(str::to_owned);
    let volume = known
        .clone()
        .unwrap_or_else(|| VOLUME.to_owned() + &super::meta::random_suffix());
    let mut is_needed = false;
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|it| it.is_object()) {
            let mut mounts = items(container, "/volumeMounts").iter();
            if mounts.any(|mount| mount["mountPath"] == MOUNT_PATH) {
                continue;
            }
            is_needed = true;
            push(
                &mut container["volumeMounts"],
                json!({"name": volume, "readOnly": true, "mountPath": MOUNT_PATH}),
            );
        }
    }
    if is_needed && known.is_none() {
        let token = json!({"expirationSeconds": TOKEN_SECONDS, "path": "token"});
        let authority =
            json!({"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]});
        let namespace = json!({"items": [{"path": "namespace",
            "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]});
        let sources = json!([{"serviceAccountToken": token}, {"configMap": authority}, {"downwardAPI": namespace}]);
        let volume =
            json!({"name": volume, "projected": {"sources": sources, "defaultMode": 0o644}});
        push(&mut spec["volumes"], volume);
    }
}

fn push(list: &mut Value, value: Value) {
    match list.as_array_mut() {
        Some(list) => list.push(value),
        None => *list = json!([value]),
    }
}
