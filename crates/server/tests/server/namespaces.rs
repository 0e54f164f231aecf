//! Default content of every namespace.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{Running, embedded, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_namespace_gets_an_account_and_the_certificate_and_gets_them_back() {
    let server = Running::start(embedded()).await;
    let client = server.client.clone();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let new = serde_json::from_value(json!({ "metadata": { "name": "new" } })).unwrap();
    namespaces
        .create(&PostParams::default(), &new)
        .await
        .unwrap();
    let accounts = |ns: &str| Api::<ServiceAccount>::namespaced(client.clone(), ns);
    let maps = |ns: &str| Api::<ConfigMap>::namespaced(client.clone(), ns);
    for ns in ["default", "kube-system", "new"] {
        until("the account", async || {
            accounts(ns).get_opt("default").await.unwrap().is_some()
        })
        .await;
        until("the certificate", async || {
            maps(ns)
                .get_opt("kube-root-ca.crt")
                .await
                .unwrap()
                .is_some()
        })
        .await;
        let map = maps(ns).get("kube-root-ca.crt").await.unwrap();
        let ca = map.data.unwrap()["ca.crt"].clone();
        assert!(ca.starts_with("-----BEGIN CERTIFICATE-----\n"), "{ca}");
    }

    let first = accounts("new").get("default").await.unwrap().uid();
    let delete = DeleteParams::default();
    accounts("new").delete("default", &delete).await.unwrap();
    until("the account is back", async || {
        let account = accounts("new").get_opt("default").await.unwrap();
        account.is_some_and(|account| account.uid() != first)
    })
    .await;
    let wrong = Patch::Merge(json!({ "data": { "ca.crt": "wrong", "more": "x" } }));
    let parameters = PatchParams::default();
    let maps_of_new = maps("new");
    let patched = maps_of_new.patch("kube-root-ca.crt", &parameters, &wrong);
    patched.await.unwrap();
    until("the certificate is right again", async || {
        let map = maps("new").get("kube-root-ca.crt").await.unwrap();
        let data = map.data.unwrap();
        data.len() == 1 && data["ca.crt"].starts_with("-----BEGIN")
    })
    .await;

    // A namespace that is being deleted is not filled again.
    namespaces.delete("new", &delete).await.unwrap();
    until("the namespace is gone", async || {
        namespaces.get_opt("new").await.unwrap().is_none()
    })
    .await;

    // A single writer needs no election.
    let leases: Api<Lease> = Api::all(client.clone());
    let leases = leases.list(&Default::default()).await.unwrap().items;
    assert!(leases.is_empty(), "{leases:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_controller_that_does_not_exist_cannot_be_left_out() {
    let error = embedded().disable("gc").start().await.unwrap_err();
    assert!(
        error.to_string().starts_with(
            "controller \"gc\" does not exist; the controllers are default-service-account, "
        ),
        "{error}"
    );
}
