//! Roles, bindings and tokens over HTTP.

use serde_json::{Value, json};

use crate::create;
use crate::support::{Server, Stream, request};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";

async fn as_alice(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let headers = [
        ("authorization", "Bearer alicetoken"),
        ("content-type", "application/json"),
    ];
    let body = body.to_string().into_bytes();
    let mut answer = Stream::of(request(server.address, "POST", path, &headers, body).await);
    let text = answer.next().await;
    (answer.status, text.unwrap_or_default())
}

#[tokio::test]
async fn binding_to_missing_role_is_404_and_to_larger_role_is_403() {
    let server = Server::start().await;
    let rules = json!([{"apiGroups": ["rbac.authorization.k8s.io"],
        "resources": ["rolebindings"], "verbs": ["create"]}]);
    let role = json!({"metadata": {"name": "binder"}, "rules": rules});
    create(&server, &format!("{RBAC}/roles"), role).await;
    let binding = |name: &str, kind: &str, role: &str| {
        json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}]})
    };
    let bindings = format!("{RBAC}/rolebindings");
    create(&server, &bindings, binding("alice", "Role", "binder")).await;
    let (code, status) = as_alice(&server, &bindings, &binding("b", "Role", "absent")).await;
    assert_eq!(
        (code, &status["reason"]),
        (404, &json!("NotFound")),
        "{status}"
    );
    assert_eq!(status["details"]["kind"], "rolebindings");
    let more = binding("c", "ClusterRole", "cluster-admin");
    let (code, status) = as_alice(&server, &bindings, &more).await;
    assert_eq!(
        (code, &status["reason"]),
        (403, &json!("Forbidden")),
        "{status}"
    );
    let (code, status) = as_alice(&server, &bindings, &binding("d", "Role", "binder")).await;
    assert_eq!(code, 201, "a user may grant its own permissions: {status}");
}

#[tokio::test]
async fn the_keys_of_tokens_are_published() {
    let server = Server::start().await;
    let keys = server.call("GET", "/openid/v1/jwks", None).await;
    assert_eq!(keys.headers["content-type"], "application/jwk-set+json");
    assert_eq!(keys.json()["keys"][0]["kty"], "EC");
    let path = "/.well-known/openid-configuration";
    let about = server.call("GET", path, None).await.json();
    let uri = about["jwks_uri"].as_str().unwrap_or_default();
    assert!(uri.ends_with("/openid/v1/jwks"), "{about}");
    assert_eq!(about["issuer"], "https://kubernetes.default.svc");
}

#[tokio::test]
async fn a_token_bound_to_a_pod_ends_with_it() {
    let server = Server::start().await;
    let core = "/api/v1/namespaces/default";
    let account = json!({"metadata": {"name": "sa"}});
    create(&server, &format!("{core}/serviceaccounts"), account).await;
    let pod = |name: &str, account: &str| {
        json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account,
            "containers": [{"name": "c", "image": "i"}]}})
    };
    create(&server, &format!("{core}/pods"), pod("p", "sa")).await;
    create(&server, &format!("{core}/pods"), pod("other", "other")).await;
    let ask = async |bound: Value| {
        let path = format!("{core}/serviceaccounts/sa/token");
        let body = json!({"spec": {"boundObjectRef": bound}});
        server.call("POST", &path, Some(body)).await
    };
    let refused = [
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "p"}),
            400,
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "name": "none"}),
            404,
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "name": "other"}),
            400,
        ),
        (
            json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "x"}),
            409,
        ),
    ];
    for (bound, code) in refused {
        let answer = ask(bound.clone()).await;
        assert_eq!(answer.status, code, "{bound}: {}", answer.json());
    }
    let issued = ask(json!({"apiVersion": "v1", "kind": "Pod", "name": "p"})).await;
    assert_eq!(issued.status, 201, "{}", issued.json());
    let token = issued.json()["status"]["token"].clone();
    let review = async || {
        let body = json!({"spec": {"token": token}});
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer = server.call("POST", path, Some(body)).await.json();
        answer["status"].clone()
    };
    let status = review().await;
    assert_eq!(status["authenticated"], true, "{status}");
    let extra = &status["user"]["extra"]["authentication.kubernetes.io/pod-name"];
    assert_eq!(extra, &json!(["p"]), "{status}");
    let path = format!("{core}/pods/p?gracePeriodSeconds=0");
    assert_eq!(server.call("DELETE", &path, None).await.status, 200);
    assert_ne!(review().await["authenticated"], true);
}
