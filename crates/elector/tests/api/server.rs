//! A server, and elections with short durations for tests.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{Builder, Candidate, Elector, Event, Term};
use tenure_apiserver::TestServer;
use tenure_apiserver::auth::User;
use tenure_apiserver::server::{Added, Fault, Server};

/// Time limit of every wait in tests.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts a server with a user "elector" without permissions.
pub(crate) async fn start() -> TestServer {
    let user = User::new("elector", ["electors".to_owned()]);
    let builder = Server::builder().no_tls().token("elector-token", user);
    TestServer::start_with(builder).await.unwrap()
}

/// Returns the administrator's client, configured as for elections.
pub(crate) fn client(server: &TestServer) -> kube::Client {
    client_of(server, server.token())
}

/// Returns the client of the user with this token.
pub(crate) fn client_of(server: &TestServer, token: &str) -> kube::Client {
    let mut config = kube::Config::new(server.url().parse().unwrap());
    config.auth_info.token = Some(token.to_owned().into());
    tenure::client(config).unwrap()
}

/// Configures an election with a Lease and the shortest allowed durations.
pub(crate) fn quick(client: kube::Client, name: &str, identity: &str) -> Builder {
    Elector::lease(client, "default", name)
        .identity(identity)
        .lease_duration(Duration::from_secs(1))
        .renew_deadline(Duration::from_millis(500))
        .retry_period(Duration::from_millis(100))
}

/// Counts requests with a verb from now on.
pub(crate) fn count(server: &TestServer, verb: &str) -> Added {
    let fault = Fault::latency(Duration::ZERO).verb(verb);
    server.faults().add(fault.path("/apis/coordination.k8s.io"))
}

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

/// Waits until the candidate leads.
pub(crate) async fn lead(candidate: &mut Candidate) -> Term {
    within(async {
        loop {
            match candidate.next().await {
                Some(Event::Lead(term)) => return term,
                Some(_) => {}
                None => panic!("it will never lead"),
            }
        }
    })
    .await
}

/// Repeats the check until it returns true.
pub(crate) async fn until<F: Future<Output = bool>>(mut ask: impl FnMut() -> F) {
    within(async {
        while !ask().await {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

pub(crate) async fn get(client: &kube::Client, path: &str) -> Option<Value> {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    client.request(request).await.ok()
}

pub(crate) async fn send(client: &kube::Client, method: &str, path: &str, body: &Value) -> Value {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header(
            "content-type",
            if method == "PATCH" {
                "application/merge-patch+json"
            } else {
                "application/json"
            },
        )
        .body(body.to_string().into_bytes())
        .unwrap();
    client.request(request).await.unwrap()
}

pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

pub(crate) async fn lease(client: &kube::Client, name: &str) -> Option<Value> {
    get(client, &format!("{LEASES}/{name}")).await
}

/// Grants the user "elector" access to the leases with these names only.
pub(crate) async fn permit(server: &TestServer, names: &[&str]) {
    let client = client(server);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "elector" },
        "rules": [
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
            {
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "verbs": ["get", "list", "watch", "update"], "resourceNames": names,
            },
        ],
    });
    send(&client, "POST", &format!("{rbac}/roles"), &role).await;
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "elector" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "elector" },
        "subjects": [
            { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "elector" },
        ],
    });
    send(&client, "POST", &format!("{rbac}/rolebindings"), &binding).await;
}
