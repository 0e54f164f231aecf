//! Take-over from a holder whose pod or node has ended, as the API server shows it.
#![allow(
    clippy::disallowed_methods,
    reason = "compares the wall clock with times in the Lease"
)]

use std::time::Duration;

use jiff::{SignedDuration, Timestamp, Unit};
use serde_json::{Value, json};
use tenure::{
    AccessRule, Builder, Candidate, Container, Elector, Event, Hub, NodeProof, Overrun, PodProof,
    Term,
};
use tenure_apiserver::TestServer;
use tenure_apiserver::server::{Added, Fault};
use tokio::runtime::Runtime;

use crate::server::{client, client_of, get, lead, lease, permit, send, start, until, within};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A lease that no test waits for.
const LONG: Duration = Duration::from_secs(3600);

/// A leader that ends without a release, as if its process was killed.
struct Leader {
    runtime: Runtime,
    leading: (Candidate, Term),
}

impl Leader {
    async fn start(builder: Builder) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let leading = runtime.spawn(async move {
            let elector = builder.on_overrun(Overrun::Log).build().unwrap();
            let mut candidate = elector.start();
            let term = lead(&mut candidate).await;
            (candidate, term)
        });
        let leading = within(leading).await.unwrap();
        Self { runtime, leading }
    }

    async fn kill(self) {
        let Self { runtime, leading } = self;
        let ended = tokio::task::spawn_blocking(|| runtime.shutdown_timeout(LONG));
        within(ended).await.unwrap();
        // Nothing is left that could release the lease.
        drop(leading);
    }
}

fn elector(client: kube::Client, identity: &str, duration: Duration) -> Builder {
    Elector::lease(client, "default", "x")
        .identity(identity)
        .lease_duration(duration)
        .renew_deadline(duration / 2)
        .retry_period(Duration::from_millis(200))
}

fn container(uid: &str) -> Container {
    Container {
        namespace: "default".to_owned(),
        pod: "web-0".to_owned(),
        uid: uid.to_owned(),
        name: "elector".to_owned(),
        id: None,
    }
}

/// Creates the pod of the leader, and returns its uid.
async fn create_pod(client: &kube::Client) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web-0" },
        "spec": { "containers": [{ "name": "elector", "image": "tenure" }], "nodeName": "n1" },
    });
    let pod = send(client, "POST", PODS, &pod).await;
    pod["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// Returns a server, the administrator's client, and the client of a user with the permissions for the Lease and these
/// rules.
async fn with_rules(rules: &[AccessRule]) -> (TestServer, kube::Client, kube::Client) {
    let server = start().await;
    permit(&server, &["x"]).await;
    let admin = client(&server);
    for rule in rules {
        let (scope, prefix) = if rule.cluster {
            ("", "Cluster")
        } else {
            ("/namespaces/default", "")
        };
        let rbac = format!("/apis/rbac.authorization.k8s.io/v1{scope}");
        let (kind, plural) = (format!("{prefix}Role"), prefix.to_lowercase());
        let rules = json!([{
            "apiGroups": [rule.group], "resources": [rule.resource], "verbs": rule.verbs,
        }]);
        let api = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{api}/v1"), "kind": kind, "metadata": { "name": "proof" }, "rules": rules,
        });
        let binding = json!({
            "apiVersion": format!("{api}/v1"), "kind": format!("{kind}Binding"),
            "metadata": { "name": "proof" },
            "roleRef": { "apiGroup": api, "kind": kind, "name": "proof" },
            "subjects": [{ "apiGroup": api, "kind": "User", "name": "elector" }],
        });
        send(&admin, "POST", &format!("{rbac}/{plural}roles"), &role).await;
        send(
            &admin,
            "POST",
            &format!("{rbac}/{plural}rolebindings"),
            &binding,
        )
        .await;
    }
    let user = client_of(&server, "elector-token");
    (server, admin, user)
}

/// Writes the status as the kubelet does.
async fn report(client: &kube::Client, phase: &str, state: Value, last: Value) {
    let status = json!({ "status": {
        "phase": phase,
        "containerStatuses": [{
            "name": "elector", "image": "tenure", "imageID": "", "ready": false, "restartCount": 0,
            "state": state, "lastState": last,
        }],
    } });
    send(client, "PATCH", &format!("{PODS}/web-0/status"), &status).await;
}

/// Returns a time of the election's Lease.
async fn time(client: &kube::Client, field: &str) -> Timestamp {
    let lease = lease(client, "x").await.unwrap();
    lease["spec"][field].as_str().unwrap().parse().unwrap()
}

/// Returns a time some seconds after the acquisition, as the kubelet writes it.
async fn after_acquisition(client: &kube::Client, seconds: i64) -> String {
    let at = time(client, "acquireTime").await + SignedDuration::from_secs(seconds);
    at.round(Unit::Second).unwrap().to_string()
}

/// Returns the state of the run in which the lease was acquired.
async fn terminated(client: &kube::Client) -> Value {
    json!({ "terminated": {
        "containerID": "containerd://1", "exitCode": 137, "reason": "OOMKilled",
        "startedAt": after_acquisition(client, -60).await,
        "finishedAt": after_acquisition(client, 2).await,
    } })
}

fn count_pods(server: &TestServer, verb: &str) -> Added {
    let fault = Fault::latency(Duration::ZERO).verb(verb).path(PODS);
    server.faults().add(fault)
}

/// Starts a follower and waits until it has observed the leader.
async fn follow(builder: Builder) -> Candidate {
    let mut candidate = builder.build().unwrap().start();
    let seen = async {
        while !matches!(candidate.next().await, Some(Event::NewLeader(holder)) if holder == "a") {}
    };
    within(seen).await;
    candidate
}

#[tokio::test]
async fn follower_leads_when_the_kubelet_reports_the_end_of_the_leaders_container() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let uid = create_pod(&client).await;
    let failed = Fault::answer(500).verb("list").path(PODS).times(1);
    let failed = server.faults().add(failed);
    let proof = PodProof::new(client.clone(), container(&uid));
    let leader = elector(client.clone(), "a", LONG).confirm_death(proof);
    let leader = Leader::start(leader).await;
    let started = after_acquisition(&client, -60).await;
    let running = json!({ "running": { "startedAt": started } });
    report(&client, "Running", running, json!({})).await;

    let watches = count_pods(&server, "watch");
    let proof = PodProof::new(client.clone(), container("of the follower"));
    let mut follower = follow(elector(client.clone(), "b", LONG).confirm_death(proof)).await;
    until(|| async { watches.hits() == 1 }).await;
    assert_eq!(failed.hits(), 1, "the first list is repeated");
    leader.kill().await;
    let lost = json!({ "terminated": { "exitCode": 137, "reason": "ContainerStatusUnknown" } });
    report(&client, "Failed", lost, json!({})).await;
    let before = Timestamp::now();
    let state = terminated(&client).await;
    report(&client, "Running", state, json!({})).await;
    let term = lead(&mut follower).await;
    assert_eq!(
        (term.tenure().identity(), term.tenure().transitions()),
        ("b", 1)
    );
    assert!(
        time(&client, "acquireTime").await >= before,
        "not by the lost container"
    );
}

#[tokio::test]
async fn container_that_starts_again_leads_after_its_predecessor() {
    let (_server, client, user) = with_rules(PodProof::rules()).await;
    let uid = create_pod(&client).await;
    let proof = || PodProof::new(user.clone(), container(&uid));
    let leader = elector(user.clone(), "a", LONG).confirm_death(proof());
    Leader::start(leader).await.kill().await;
    let mut again = follow(elector(user.clone(), "a2", LONG).confirm_death(proof())).await;
    let running = json!({ "running": { "startedAt": after_acquisition(&client, 3).await } });
    let last = terminated(&client).await;
    report(&client, "Running", running, last).await;
    let term = lead(&mut again).await;
    assert_eq!(
        (term.tenure().identity(), term.tenure().transitions()),
        ("a2", 1)
    );
}

#[tokio::test]
async fn pod_deleted_by_force_is_waited_for() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let uid = create_pod(&client).await;
    let proof = || PodProof::new(client.clone(), container(&uid));
    let short = Duration::from_secs(3);
    let leader = elector(client.clone(), "a", short).confirm_death(proof());
    let leader = Leader::start(leader).await;
    let started = after_acquisition(&client, -60).await;
    let running = json!({ "running": { "startedAt": started } });
    report(&client, "Running", running, json!({})).await;
    let watches = count_pods(&server, "watch");
    let mut follower = follow(elector(client.clone(), "b", short).confirm_death(proof())).await;
    until(|| async { watches.hits() == 1 }).await;
    leader.kill().await;
    let options = json!({ "gracePeriodSeconds": 0 });
    send(&client, "DELETE", &format!("{PODS}/web-0"), &options).await;
    assert!(get(&client, &format!("{PODS}/web-0")).await.is_none());
    let renewed = time(&client, "renewTime").await;
    drop(lead(&mut follower).await);
    let waited = time(&client, "acquireTime").await.duration_since(renewed);
    assert!(waited.as_millis() >= 3000, "{waited}");
}

#[tokio::test]
async fn missing_permission_ends_the_source_and_not_the_election() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let uid = create_pod(&client).await;
    let forbidden = Fault::answer(403).verb("list").path(PODS);
    let forbidden = server.faults().add(forbidden);
    let proof = || PodProof::new(client.clone(), container(&uid));
    let short = Duration::from_secs(3);
    let leader = elector(client.clone(), "a", short).confirm_death(proof());
    let leader = Leader::start(leader).await;
    let mut follower = follow(elector(client.clone(), "b", short).confirm_death(proof())).await;
    until(|| async { forbidden.hits() == 1 }).await;
    leader.kill().await;
    drop(lead(&mut follower).await);
    assert_eq!(forbidden.hits(), 1, "it is not asked again");
}

#[tokio::test]
async fn elections_with_one_source_share_one_watch() {
    let server = TestServer::start().await.unwrap();
    let client = client(&server);
    let uid = create_pod(&client).await;
    let hub = Hub::new(client.clone());
    let proof = PodProof::new(client.clone(), container(&uid));
    let mut leaders = Vec::new();
    let own = |name: &str, id: &str| {
        let elector = Elector::lease(client.clone(), "default", name).identity(id);
        elector.lease_duration(LONG).confirm_death(proof.clone())
    };
    for name in ["x", "y", "z"] {
        leaders.push(Leader::start(own(name, "a")).await);
    }
    for leader in leaders {
        leader.kill().await;
    }
    let (lists, watches) = (count_pods(&server, "list"), count_pods(&server, "watch"));
    let mut followers = Vec::new();
    for name in ["x", "y", "z"] {
        followers.push(follow(own(name, "b").hub(&hub)).await);
    }
    until(|| async { watches.hits() == 1 }).await;
    // The three terms began within the same seconds, and this run ended after all of them.
    let mut state = terminated(&client).await;
    let end = after_acquisition(&client, 90).await;
    state["terminated"]["finishedAt"] = end.into();
    report(&client, "Running", state, json!({})).await;
    for follower in &mut followers {
        drop(lead(follower).await);
    }
    assert_eq!((lists.hits(), watches.hits()), (1, 1));
}

#[tokio::test]
async fn follower_leads_when_the_node_is_out_of_service_and_not_ready() {
    let (server, client, user) = with_rules(NodeProof::rules()).await;
    let nodes = "/api/v1/nodes";
    let taint = json!({ "key": "node.kubernetes.io/out-of-service", "effect": "NoExecute" });
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" },
        "spec": { "taints": [taint] },
    });
    send(&client, "POST", nodes, &node).await;
    let ready = |status: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } });
    let path = format!("{nodes}/n1/status");
    send(&client, "PATCH", &path, &ready("True")).await;
    let proof = |node: &str| NodeProof::new(user.clone(), node);
    let leader = elector(user.clone(), "a", LONG).confirm_death(proof("n1"));
    Leader::start(leader).await.kill().await;
    let fault = Fault::latency(Duration::ZERO).verb("watch").path(nodes);
    let watches = server.faults().add(fault);
    let follower = elector(user.clone(), "b", LONG).confirm_death(proof("n2"));
    let mut follower = follow(follower).await;
    until(|| async { watches.hits() == 1 }).await;
    let before = Timestamp::now();
    send(&client, "PATCH", &path, &ready("Unknown")).await;
    let term = lead(&mut follower).await;
    assert_eq!(
        (term.tenure().identity(), term.tenure().transitions()),
        ("b", 1)
    );
    assert!(
        time(&client, "acquireTime").await >= before,
        "not while it was ready"
    );
}
