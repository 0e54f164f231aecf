//! wrangler's API. Exit codes are tested with processes.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tenure::LockKind;
use tenure_apiserver::TestServer;
use tenure_manager::wrangler::{Ending, LeaderElection};
use tokio::sync::oneshot;

#[tokio::test]
async fn the_lease_is_in_kube_system_with_wranglers_durations() {
    let server = TestServer::start().await.unwrap();
    let (stop, asked) = oneshot::channel::<()>();
    let leases: Api<Lease> = Api::namespaced(server.client().unwrap(), "kube-system");
    let ending = LeaderElection::new(server.client().unwrap(), "w")
        .namespace("")
        .hostname_identity()
        .run(asked, |tenure| async move {
            let spec = leases.get("w").await.unwrap().spec.unwrap();
            assert_eq!(spec.lease_duration_seconds, Some(45));
            let host = tenure::identity::hostname();
            assert_eq!(spec.holder_identity, Some(host));
            drop(stop);
            tenure.cancelled().await;
        })
        .await;
    assert_eq!(ending.unwrap(), Ending::Requested);
}

#[tokio::test]
async fn config_map_lock_of_old_wrangler_is_used_and_its_loss_is_reported() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "kube-system");
    let ending = LeaderElection::new(server.client().unwrap(), "w")
        .lock_kind(LockKind::ConfigMaps)
        .run(std::future::pending::<()>(), |_| async move {
            let map = maps.get("w").await.unwrap();
            let record = &map.metadata.annotations.unwrap()[tenure_lock::LEADER_ANNOTATION];
            let mut record: serde_json::Value = serde_json::from_str(record).unwrap();
            record["holderIdentity"] = json!("thief");
            let annotation = json!({ tenure_lock::LEADER_ANNOTATION: record.to_string() });
            let patch = Patch::Merge(json!({ "metadata": { "annotations": annotation } }));
            let stolen = maps.patch("w", &PatchParams::default(), &patch).await;
            stolen.unwrap();
        })
        .await;
    assert_eq!(ending.unwrap(), Ending::Lost("foreign-holder".to_owned()));
}
