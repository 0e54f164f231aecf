//! Several servers on one API server, and custom controllers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use tenure_apiserver::TestServer;
use tenure_manager::Runnable;
use tenure_server::{GROUP, Server};

use super::{Running, config, embedded, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remote_replicas_elect_one_leader_for_the_built_in_controllers() {
    let api = TestServer::start().await.unwrap();
    let (every, leading) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let start = async || {
        let (every, leading) = (every.clone(), leading.clone());
        let server = Server::remote(config(api.kubeconfig()).await);
        let server = server.with_controllers(move |manager, _| {
            let every = Runnable::new("every", move |scope| {
                every.fetch_add(1, Ordering::SeqCst);
                async move { scope.cancelled().await }
            });
            let leader = Runnable::new("leader", move |scope| {
                let leading = leading.clone();
                async move {
                    assert_eq!(leading.fetch_add(1, Ordering::SeqCst), 0, "two leaders");
                    scope.cancelled().await;
                    leading.fetch_sub(1, Ordering::SeqCst);
                }
            });
            manager.every(every).leader(GROUP, leader)
        });
        Running::start(server).await
    };
    let (first, second) = (start().await, start().await);
    let leases: Api<Lease> = Api::namespaced(api.client().unwrap(), "kube-system");
    let holder = async || {
        let lease = leases.get_opt(GROUP).await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity)
    };
    until("one leads", async || leading.load(Ordering::SeqCst) == 1).await;
    until("both run", async || every.load(Ordering::SeqCst) == 2).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(api.client().unwrap(), "default");
    until("the controllers work", async || {
        accounts.get_opt("default").await.unwrap().is_some()
    })
    .await;
    let before = holder().await.unwrap();
    first.stop().await;
    until("one leads", async || leading.load(Ordering::SeqCst) == 1).await;
    let after = holder().await.unwrap();
    second.stop().await;
    assert!(!before.is_empty() && !after.is_empty());
    assert_eq!(holder().await.as_deref(), Some(""), "released");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_controllers_lead_without_an_election_on_the_embedded_server() {
    let (send, mut heard) = tokio::sync::mpsc::channel(1);
    let server = embedded().with_controllers(move |manager, client| {
        let client = client.clone();
        let work = Runnable::new("mine", move |scope| {
            let (send, client) = (send.clone(), client.clone());
            async move {
                let version = client.apiserver_version().await.unwrap();
                send.send((version.git_version, scope.token().cloned()))
                    .await
                    .unwrap();
                scope.cancelled().await;
            }
        });
        manager.leader("mine", work)
    });
    let server = Running::start(server).await;
    let (version, token) = heard.recv().await.unwrap();
    assert!(version.starts_with("v1."), "{version}");
    assert_eq!(token, None);
    server.stop().await;
}
