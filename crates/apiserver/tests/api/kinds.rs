//! Behaviour of single kinds beyond the common rules.

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
async fn pod_is_bound_once_and_can_be_evicted() {
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
async fn endpoints_are_served_with_a_warning() {
    let server = Server::start().await;
    let endpoints = "/api/v1/namespaces/default/endpoints";
    let made = create(&server, endpoints, json!({"metadata": {"name": "e"}})).await;
    let listed = server.call("GET", endpoints, None).await;
    let warning =
        r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#;
    for answer in [made, listed] {
        assert_eq!(answer.headers["warning"], warning);
    }
    let other = server.call("GET", crate::MAPS, None).await;
    assert_eq!(other.headers.get("warning"), None);
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
    let service = json!({"metadata": {"name": "bad-"}, "spec": {"ports": [{"port": 80}]}});
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

#[tokio::test]
async fn workloads_are_stored_scaled_and_deleted() {
    let server = Server::start().await;
    let template = |restart: &str| {
        json!({"metadata": {"labels": {"app": "a"}}, "spec": {"restartPolicy": restart,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    let controllers = "/api/v1/namespaces/default/replicationcontrollers";
    let body =
        json!({"metadata": {"name": "x"}, "spec": {"replicas": 2, "template": template("Always")}});
    let made = create(&server, controllers, body).await.json();
    assert_eq!(made["spec"]["selector"], json!({"app": "a"}));
    assert_eq!(made["status"], json!({"replicas": 0}));
    let scale = format!("{controllers}/x/scale");
    let scale = server.call("GET", &scale, None).await.json();
    assert_eq!(scale["status"]["selector"], "app=a");
    assert_eq!(scale["spec"]["replicas"], 2);

    let jobs = "/apis/batch/v1/namespaces/default/jobs";
    let body = json!({"metadata": {"name": "x"}, "spec": {"template": template("Never")}});
    let made = create(&server, jobs, body).await.json();
    let label = "batch.kubernetes.io/controller-uid";
    let selector = &made["spec"]["selector"]["matchLabels"];
    assert_eq!(selector[label], made["metadata"]["uid"]);
    let change = json!({"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}});
    is(
        &server
            .call("PATCH", &format!("{jobs}/x"), Some(change))
            .await,
        422,
        "Invalid",
    );

    // By default, deleting either kind orphans its pods.
    for path in [controllers, jobs] {
        let path = format!("{path}/x");
        server.call("DELETE", &path, None).await;
        let left = server.call("GET", &path, None).await.json();
        assert_eq!(left["metadata"]["finalizers"], json!(["orphan"]), "{path}");
        let told = json!({"propagationPolicy": "Background"});
        server.call("DELETE", &path, Some(told)).await;
        assert_eq!(server.call("GET", &path, None).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn device_claim_spec_is_immutable() {
    let server = Server::start().await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let request = json!({"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}});
    let body = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [request]}}});
    let made = create(&server, claims, body).await.json();
    let exactly = &made["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(
        (&exactly["allocationMode"], &exactly["count"]),
        (&json!("ExactCount"), &json!(1))
    );
    let change = json!({"spec": {"devices": {"requests": []}}});
    let refused = server
        .call("PATCH", &format!("{claims}/c"), Some(change))
        .await;
    is(&refused, 422, "Invalid");
    let status =
        json!({"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}});
    let path = format!("{claims}/c/status");
    let written = server.call("PATCH", &path, Some(status)).await.json();
    assert_eq!(written["status"]["reservedFor"][0]["name"], "p");
}
