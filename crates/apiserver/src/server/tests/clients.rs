//! Clients that nobody here wrote, with nothing but the kubeconfig.

use std::sync::Arc;

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, reflector, watcher};

use crate::TestServer;

async fn client(kubeconfig: &str) -> kube::Client {
    let read = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(read, &options)
        .await
        .unwrap();
    kube::Client::try_from(config).unwrap()
}

#[tokio::test]
async fn kube_connects_with_the_kubeconfig_over_tls_and_without() {
    for server in [
        TestServer::start_tls().await.unwrap(),
        TestServer::start().await.unwrap(),
    ] {
        let client = client(server.kubeconfig()).await;
        assert!(
            client
                .apiserver_version()
                .await
                .unwrap()
                .git_version
                .starts_with('v')
        );
        let maps: Api<ConfigMap> = Api::namespaced(client, "default");
        let map: ConfigMap =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": "m" } })).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
        assert_eq!(maps.list(&Default::default()).await.unwrap().items.len(), 1);
    }
}

#[tokio::test]
async fn a_reflector_follows_over_tls() {
    let server = TestServer::start_tls().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client(server.kubeconfig()).await, "default");
    let (store, writer) = reflector::store();
    let stream = watcher(maps.clone(), watcher::Config::default())
        .reflect(writer)
        .applied_objects();
    let following = tokio::spawn(stream.for_each(async |_| ()));
    store.wait_until_ready().await.unwrap();
    let map: ConfigMap =
        serde_json::from_value(serde_json::json!({ "metadata": { "name": "m" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let name = reflector::ObjectRef::new("m").within("default");
    let found = async {
        loop {
            if let Some(found) = store.get(&name) {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let limit = std::time::Duration::from_secs(20);
    let found: Arc<ConfigMap> = tokio::time::timeout(limit, found).await.unwrap();
    assert_eq!(found.metadata.name.as_deref(), Some("m"));
    following.abort();
}
