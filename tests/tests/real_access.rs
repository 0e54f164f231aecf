//! Permission to bind roles: the real kube-apiserver and the embedded one return the same code, reason and message.

use std::path::{Path, PathBuf};

use http::Method;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_apiserver::server::Server;
use tenure_tests::Skip;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::write_secret;
use tenure_tests::real::{Cluster, shared};
use tenure_tests::wire::Wire;

const NAMESPACE: &str = "/api/v1/namespaces";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn binding(name: &str, kind: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    })
}

/// Runs the same requests on any server. Returns the response to each.
fn story(admin: &Path, user: &Path, namespace: &str) -> Vec<String> {
    let (admin, user) = (Wire::connect(admin).unwrap(), Wire::connect(user).unwrap());
    let made = json!({ "metadata": { "name": namespace } });
    let made = admin.send(&Method::POST, NAMESPACE, Some(&made)).unwrap();
    assert!(made.status.is_success(), "{}", made.body);
    let roles = format!("{RBAC}/namespaces/{namespace}/roles");
    let bindings = format!("{RBAC}/namespaces/{namespace}/rolebindings");
    let role = |name: &str, verbs: &[&str], resource: &str, group: &str| {
        json!({ "metadata": { "name": name }, "rules": [{
            "apiGroups": [group], "resources": [resource], "verbs": verbs }] })
    };
    let group = "rbac.authorization.k8s.io";
    for (path, object) in [
        (
            &roles,
            role("binder", &["create", "get"], "rolebindings", group),
        ),
        (&roles, role("reader", &["get"], "secrets", "")),
        (&bindings, binding("binder", "Role", "binder", "user")),
    ] {
        let made = admin.send(&Method::POST, path, Some(&object)).unwrap();
        assert!(made.status.is_success(), "{}", made.body);
    }
    let mut told = Vec::new();
    let mut tell = |who: &Wire, object: Value| {
        let answer = who.send(&Method::POST, &bindings, Some(&object)).unwrap();
        let body = &answer.body;
        let message = body["message"].as_str().unwrap_or_default();
        told.push(format!(
            "{} {} {} {} {}",
            answer.status,
            body["reason"],
            body["details"]["kind"],
            body["details"]["name"],
            // The rules in the message have no defined order.
            message.split(":\n").next().unwrap_or_default()
        ));
    };
    // The caches of a real server receive new roles with a delay.
    let known = tenure_tests::clock::poll(std::time::Duration::from_secs(60), || {
        let path = format!("{bindings}/binder");
        user.get(&path).unwrap().status.is_success().then_some(())
    });
    assert!(known.is_some());
    tell(&user, binding("to-absent", "Role", "absent", "eve"));
    tell(
        &user,
        binding("to-absent-c", "ClusterRole", "absent", "eve"),
    );
    tell(&user, binding("to-more", "Role", "reader", "eve"));
    tell(
        &user,
        binding("to-all", "ClusterRole", "cluster-admin", "eve"),
    );
    tell(&user, binding("to-own", "Role", "binder", "eve"));
    tell(&admin, binding("by-admin", "Role", "absent", "eve"));
    tell(
        &admin,
        binding("by-admin-c", "ClusterRole", "absent", "eve"),
    );
    told
}

/// Starts the embedded server with a user who has no permissions.
fn ours() -> (tempfile::TempDir, Embedded, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    write_secret(&tokens, "usertoken,user,user\n");
    let server = Embedded::start_with(Server::builder().token_file(tokens)).unwrap();
    let file = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let mut config = serde_json::to_value(file).unwrap();
    config["users"][0]["user"] = json!({ "token": "usertoken" });
    let user = folder.path().join("user");
    std::fs::write(&user, config.to_string()).unwrap();
    (folder, server, user)
}

#[test]
fn real_access_bindings_to_absent_and_greater_roles_get_equal_responses() {
    let user_of = |cluster: &'static Cluster| Ok((cluster, cluster.user_kubeconfig()?));
    let Some((cluster, real_user)) = Skip::unless(shared().and_then(user_of)) else {
        return;
    };
    let (_folder, server, user) = ours();
    let real = story(&cluster.kubeconfig(), &real_user, "bindings");
    let ours = story(&server.kubeconfig(), &user, "bindings");
    assert_eq!(ours, real);
    // The expected codes, so that a change of both servers is noticed.
    let codes: Vec<&str> = real.iter().map(|line| &line[..3]).collect();
    assert_eq!(codes, ["404", "404", "403", "403", "201", "201", "201"]);
}
