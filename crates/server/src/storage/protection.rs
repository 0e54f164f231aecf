//! Protection: a claim is kept while a pod uses it, and a volume is kept while it is bound.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use tenure_kinds::meta::has_finalizer;
use tenure_kinds::names::{CLAIM_PROTECTION, VOLUME_PROTECTION};
use tenure_kinds::{PersistentVolume, PersistentVolumeClaim};

use super::Storage;
use super::matching::phase;
use super::objects::Pod;
use super::world::{IndexKey, Name};

/// Required change of an object.
#[derive(Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    /// The object needs protection and has none yet.
    Protect,
    /// The object is being deleted, and only the protection blocks the deletion.
    Release,
}

impl Storage {
    pub(super) async fn protect_claim(&self, name: &Name) -> Result<(), kube::Error> {
        let Some(claim) = self.world.lock().claims.get(name) else {
            return Ok(());
        };
        let patch = match need(&claim.metadata, CLAIM_PROTECTION) {
            Need::Nothing => return Ok(()),
            Need::Protect => with(&claim.metadata, CLAIM_PROTECTION),
            // The claim is examined again when the pod changes or is deleted.
            Need::Release if self.is_used(name, &claim).await? => return Ok(()),
            Need::Release => without(&claim.metadata, CLAIM_PROTECTION),
        };
        self.write.claim(&claim, patch).await.map(drop)
    }

    pub(super) async fn protect_volume(&self, name: &Name) -> Result<(), kube::Error> {
        let Some(volume) = self.world.lock().volumes.get(name) else {
            return Ok(());
        };
        let patch = match need(&volume.metadata, VOLUME_PROTECTION) {
            Need::Nothing => return Ok(()),
            Need::Protect => with(&volume.metadata, VOLUME_PROTECTION),
            Need::Release if is_bound(&volume) => return Ok(()),
            Need::Release => without(&volume.metadata, VOLUME_PROTECTION),
        };
        self.write.volume(&volume, patch).await.map(drop)
    }

    /// Returns whether a pod uses the claim. A cached pod is sufficient proof of use. Only the API server can prove
    /// that there is none.
    async fn is_used(
        &self,
        name: &Name,
        claim: &PersistentVolumeClaim,
    ) -> Result<bool, kube::Error> {
        let key = IndexKey::Uses(name.clone());
        let known = self
            .world
            .lock()
            .pods
            .find(&key)
            .any(|pod| uses(pod, claim));
        if known {
            return Ok(true);
        }
        let pods: Api<Pod> = Api::namespaced(self.write.client.clone(), &name.namespace);
        let pods = pods.list(&ListParams::default()).await?;
        Ok(pods.items.iter().any(|pod| uses(pod, claim)))
    }
}

/// Returns whether a pod uses a claim. A pod without a node does not, because no kubelet starts it with a claim that is
/// being deleted.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let has_node = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    let name = claim.name();
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owned =
        owners.any(|o| Some(&o.uid) == pod.metadata.uid.as_ref() && o.controller == Some(true));
    let meta = &pod.metadata;
    let shut_down =
        meta.deletion_timestamp.is_some() && meta.deletion_grace_period_seconds == Some(0);
    let pod_name = meta.name.as_deref().unwrap_or_default();
    has_node
        && spec.volumes.iter().flatten().any(|volume| {
            let named = volume.persistent_volume_claim.as_ref();
            let made_for_it = volume.ephemeral.is_some() && owned && !shut_down;
            named.is_some_and(|claim| claim.claim_name == name)
                || (made_for_it && name == format!("{pod_name}-{}", volume.name))
        })
}

fn is_bound(volume: &PersistentVolume) -> bool {
    phase(volume) == "Bound"
}

fn need(meta: &ObjectMeta, finalizer: &str) -> Need {
    let has = has_finalizer(meta, finalizer);
    match (meta.deletion_timestamp.is_some(), has) {
        (true, true) => Need::Release,
        (false, false) => Need::Protect,
        _ => Need::Nothing,
    }
}

fn with(meta: &ObjectMeta, finalizer: &str) -> Value {
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    finalizers.push(finalizer.to_owned());
    json!({ "metadata": { "finalizers": finalizers } })
}

fn without(meta: &ObjectMeta, finalizer: &str) -> Value {
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    finalizers.retain(|known| known != finalizer);
    json!({ "metadata": { "finalizers": finalizers } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str, volume: Value) -> Pod {
        pod_with(node, volume, &json!({ "name": "p", "uid": "1" }))
    }

    fn pod_with(node: &str, mut volume: Value, meta: &Value) -> Pod {
        volume["name"] = json!("data");
        let spec = json!({ "nodeName": node, "containers": [], "volumes": [volume] });
        serde_json::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    fn claim(name: &str, owner: &str) -> PersistentVolumeClaim {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true });
        let meta = json!({ "name": name, "ownerReferences": [owner] });
        serde_json::from_value(json!({ "metadata": meta })).unwrap()
    }

    #[test]
    fn pod_uses_its_named_claims_once_it_has_a_node() {
        let named = json!({ "persistentVolumeClaim": { "claimName": "c" } });
        assert!(uses(&pod("n", named.clone()), &claim("c", "")));
        assert!(!uses(&pod("n", named.clone()), &claim("d", "")));
        assert!(!uses(&pod("", named), &claim("c", "")));
    }

    #[test]
    fn pod_uses_its_ephemeral_claims_until_it_has_ended() {
        let made = json!({ "ephemeral": {} });
        assert!(uses(&pod("n", made.clone()), &claim("p-data", "1")));
        let other = claim("p-data", "2");
        assert!(
            !uses(&pod("n", made.clone()), &other),
            "of another pod of that name"
        );
        let meta = json!({
            "name": "p",
            "uid": "1",
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "deletionGracePeriodSeconds": 0,
        });
        let down = pod_with("n", made, &meta);
        assert!(!uses(&down, &claim("p-data", "1")));
    }
}
