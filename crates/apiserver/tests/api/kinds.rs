//! What single kinds do beyond the common rules.

use serde_json::json;

use crate::support::Server;
use crate::{create, is};

#[tokio::test]
async fn reviews_answer_and_store_nothing() {
    let server = Server::start().await;
    let before = server.store.revision();
    let path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
    let rules = create(&server, path, json!({"spec": {"namespace": "default"}}))
        .await
        .json();
    assert!(
        !rules["status"]["resourceRules"]
            .as_array()
            .expect("rules")
            .is_empty()
    );
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let empty = server
        .call("POST", path, Some(json!({"spec": {"user": "bob"}})))
        .await;
    is(&empty, 422, "Invalid");
    let attributes = json!({"verb": "get", "path": "/version"});
    let body = json!({"spec": {"user": "bob", "groups": ["system:authenticated"], "nonResourceAttributes": attributes}});
    assert_eq!(
        create(&server, path, body).await.json()["status"]["allowed"],
        true
    );
    let local = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let body = json!({"spec": {"user": "bob", "resourceAttributes": {"namespace": "other", "verb": "get", "resource": "pods"}}});
    is(
        &server.call("POST", local, Some(body)).await,
        422,
        "Invalid",
    );
    let tokens = "/apis/authentication.k8s.io/v1/tokenreviews";
    is(
        &server.call("POST", tokens, Some(json!({"spec": {}}))).await,
        400,
        "BadRequest",
    );
    assert_eq!(server.store.revision(), before);
}

#[tokio::test]
async fn pods_are_placed_once_and_evicted() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    create(&server, pods, pod).await;
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}});
    create(&server, &format!("{pods}/p/binding"), binding.clone()).await;
    let placed = server.call("GET", &format!("{pods}/p"), None).await.json();
    assert_eq!(placed["spec"]["nodeName"], "n1");
    let again = server
        .call("POST", &format!("{pods}/p/binding"), Some(binding))
        .await;
    is(&again, 409, "Conflict");
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
        "deleteOptions": {"gracePeriodSeconds": 0}});
    create(&server, &format!("{pods}/p/eviction"), eviction).await;
    assert_eq!(
        server.call("GET", &format!("{pods}/p"), None).await.status,
        404
    );
}

#[tokio::test]
async fn lease_candidates_are_the_same_in_both_versions() {
    let server = Server::start().await;
    let path = |version: &str| {
        format!("/apis/coordination.k8s.io/{version}/namespaces/default/leasecandidates")
    };
    let body = json!({"metadata": {"name": "c"}, "spec": {"leaseName": "l", "binaryVersion": "1.37.0",
        "emulationVersion": "1.37.0", "strategy": "OldestEmulationVersion"}});
    create(&server, &path("v1beta1"), body).await;
    let alpha = server
        .call("GET", &format!("{}/c", path("v1alpha2")), None)
        .await
        .json();
    assert_eq!(alpha["apiVersion"], "coordination.k8s.io/v1alpha2");
    assert_eq!(alpha["spec"]["leaseName"], "l");
    is(
        &server.call("GET", &path("v1"), None).await,
        404,
        "NotFound",
    );
}

#[tokio::test]
async fn slices_services_and_secrets_are_checked() {
    let server = Server::start().await;
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"port": 80}]});
    let made = create(&server, slices, slice).await.json();
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(made["ports"][0]["protocol"], "TCP");
    let change = json!({"addressType": "IPv6"});
    is(
        &server
            .call("PATCH", &format!("{slices}/s"), Some(change))
            .await,
        422,
        "Invalid",
    );
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "1bad"}, "spec": {"ports": [{"port": 80}]}});
    is(
        &server.call("POST", services, Some(service)).await,
        422,
        "Invalid",
    );
    let secrets = "/api/v1/namespaces/default/secrets";
    let tls = json!({"metadata": {"name": "t"}, "type": "kubernetes.io/tls", "data": {}});
    let refused = server.call("POST", secrets, Some(tls)).await;
    is(&refused, 422, "Invalid");
    assert_eq!(
        refused.json()["details"]["causes"].as_array().map(Vec::len),
        Some(2)
    );
}
