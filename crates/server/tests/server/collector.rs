//! Owners and dependents.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{Running, embedded, until};

/// ConfigMaps that own each other.
struct Maps(Api<ConfigMap>);

impl Maps {
    /// Creates one and returns its uid.
    async fn make(&self, name: &str, owners: &[(&str, &str)], finalizers: &[&str]) -> String {
        let owners: Vec<_> = owners
            .iter()
            .map(|(name, uid)| {
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid,
                    "blockOwnerDeletion": true })
            })
            .collect();
        let map = json!({ "metadata": { "name": name, "ownerReferences": owners,
            "finalizers": finalizers } });
        let map = serde_json::from_value(map).unwrap();
        let made = self.0.create(&PostParams::default(), &map).await;
        made.unwrap().uid().unwrap()
    }

    async fn delete(&self, name: &str, policy: PropagationPolicy) {
        let parameters = DeleteParams {
            propagation_policy: Some(policy),
            ..DeleteParams::default()
        };
        self.0.delete(name, &parameters).await.unwrap();
    }

    async fn get(&self, name: &str) -> Option<ConfigMap> {
        self.0.get_opt(name).await.unwrap()
    }

    async fn gone(&self, name: &str) {
        until(&format!("{name} is gone"), async || {
            self.get(name).await.is_none()
        })
        .await;
    }
}

async fn start() -> (Running, Maps) {
    let server = Running::start(embedded()).await;
    let maps = Maps(Api::namespaced(server.client.clone(), "default"));
    (server, maps)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_dependents_of_dependents_follow_their_owner() {
    let (server, maps) = start().await;
    let a = maps.make("a", &[], &[]).await;
    let b = maps.make("b", &[("a", &a)], &[]).await;
    maps.make("c", &[("b", &b)], &[]).await;
    let other = maps.make("other", &[], &[]).await;
    maps.make("shared", &[("a", &a), ("other", &other)], &[])
        .await;
    maps.delete("a", PropagationPolicy::Background).await;
    maps.gone("c").await;
    maps.gone("b").await;
    until("the shared one has one owner", async || {
        let shared = maps.get("shared").await.unwrap();
        shared.owner_references().len() == 1
    })
    .await;
    let shared = maps.get("shared").await.unwrap();
    assert_eq!(shared.owner_references()[0].name, "other");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dependent_of_an_owner_that_never_existed_is_deleted() {
    let (server, maps) = start().await;
    maps.make("a", &[("nobody", "0000")], &[]).await;
    maps.gone("a").await;
    // An object with the same name is not the same object.
    maps.make("owner", &[], &[]).await;
    maps.make("b", &[("owner", "0001")], &[]).await;
    maps.gone("b").await;
    assert!(maps.get("owner").await.is_some());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreground_deletion_deletes_an_owner_after_its_dependents() {
    let (server, maps) = start().await;
    let a = maps.make("a", &[], &[]).await;
    let b = maps.make("b", &[("a", &a)], &[]).await;
    maps.make("c", &[("b", &b)], &["x.io/hold"]).await;
    maps.delete("a", PropagationPolicy::Foreground).await;
    until("c is being deleted", async || {
        let c = maps.get("c").await.unwrap();
        c.metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(maps.get("a").await.is_some(), "it waits for b");
    assert!(maps.get("b").await.is_some(), "it waits for c");
    let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let freed = maps.0.patch("c", &PatchParams::default(), &free).await;
    freed.unwrap();
    maps.gone("c").await;
    maps.gone("b").await;
    maps.gone("a").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphan_deletion_keeps_the_dependents() {
    let (server, maps) = start().await;
    let a = maps.make("a", &[], &[]).await;
    maps.make("b", &[("a", &a)], &[]).await;
    maps.make("c", &[("a", &a)], &[]).await;
    maps.delete("a", PropagationPolicy::Orphan).await;
    maps.gone("a").await;
    for name in ["b", "c"] {
        let map = maps.get(name).await.unwrap();
        assert!(map.owner_references().is_empty(), "{map:?}");
    }
    server.stop().await;
}

/// Leases are not watched, so recently created ones must be listed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recently_created_leases_are_deleted_with_their_owner() {
    let (server, maps) = start().await;
    let leases: Api<Lease> = Api::namespaced(server.client.clone(), "default");
    let make = async |owner: &str, uid: &str| {
        let lease = json!({ "metadata": { "name": owner, "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid,
            "blockOwnerDeletion": true }] } });
        let lease = serde_json::from_value(lease).unwrap();
        leases.create(&PostParams::default(), &lease).await.unwrap();
    };
    // The collector is running and has listed the existing leases.
    maps.make("a", &[("nobody", "0000")], &[]).await;
    maps.gone("a").await;

    let kept = maps.make("kept", &[], &[]).await;
    make("kept", &kept).await;
    maps.delete("kept", PropagationPolicy::Orphan).await;
    maps.gone("kept").await;
    let lease = leases.get("kept").await.unwrap();
    assert!(lease.owner_references().is_empty(), "{lease:?}");

    let taken = maps.make("taken", &[], &[]).await;
    make("taken", &taken).await;
    maps.delete("taken", PropagationPolicy::Foreground).await;
    maps.gone("taken").await;
    let lease = leases.get_opt("taken").await.unwrap();
    assert!(lease.is_none(), "it goes before its owner: {lease:?}");
    server.stop().await;
}

/// Creates objects that own each other in a ring: each blocks the deletion of the previous one.
async fn ring(maps: &Maps, names: &[&str]) {
    let mut uids = Vec::new();
    for name in names {
        uids.push(maps.make(name, &[], &[]).await);
    }
    for (at, name) in names.iter().enumerate() {
        let before = (at + names.len() - 1) % names.len();
        let owners = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": names[before],
            "uid": uids[before], "blockOwnerDeletion": true }]);
        let patch = Patch::Merge(json!({ "metadata": { "ownerReferences": owners } }));
        let parameters = PatchParams::default();
        maps.0.patch(name, &parameters, &patch).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreground_deletion_of_one_object_in_a_ring_deletes_the_ring() {
    let (server, maps) = start().await;
    for names in [&["a"][..], &["b", "c"], &["d", "e", "f"]] {
        ring(&maps, names).await;
        maps.delete(names[0], PropagationPolicy::Foreground).await;
        for name in names {
            maps.gone(name).await;
        }
    }
    server.stop().await;
}

/// All objects of the ring already wait, so no blocking reference is left that could be removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreground_deletion_of_every_object_in_a_ring_deletes_the_ring() {
    let (server, maps) = start().await;
    let names = ["a", "b", "c", "d"];
    // All are marked before the collector receives the event of the last one.
    ring(&maps, &names).await;
    let deletions = names.map(|name| maps.delete(name, PropagationPolicy::Foreground));
    futures_util::future::join_all(deletions).await;
    for name in names {
        maps.gone(name).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ring_with_a_finalizer_goes_when_the_finalizer_is_removed() {
    let (server, maps) = start().await;
    ring(&maps, &["a", "b", "c"]).await;
    let hold = Patch::Merge(json!({ "metadata": { "finalizers": ["x.io/hold"] } }));
    let parameters = PatchParams::default();
    maps.0.patch("b", &parameters, &hold).await.unwrap();
    maps.delete("a", PropagationPolicy::Foreground).await;
    until("b is being deleted", async || {
        let b = maps.get("b").await.unwrap();
        b.metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(
        maps.get("b").await.is_some(),
        "its finalizer is still there"
    );
    let free = Patch::Json::<()>(
        serde_json::from_value(json!([
            { "op": "test", "path": "/metadata/finalizers/0", "value": "x.io/hold" },
            { "op": "remove", "path": "/metadata/finalizers/0" }]))
        .unwrap(),
    );
    until("the finalizer is removed", async || {
        maps.0.patch("b", &parameters, &free).await.is_ok()
    })
    .await;
    for name in ["a", "b", "c"] {
        maps.gone(name).await;
    }
    server.stop().await;
}
