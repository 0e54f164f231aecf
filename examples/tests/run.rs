//! Runs every example against the API server of this project.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests with real processes"
)]

use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use tempfile::NamedTempFile;
use tenure_apiserver::TestServer;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};

/// Maximum time until the next line of an example.
const LIMIT: Duration = Duration::from_secs(60);

struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Example {
    fn start(program: &str, arguments: &[&str], kubeconfig: &NamedTempFile) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", kubeconfig.path())
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads lines until one contains the text, and returns it.
    async fn line(&mut self, text: &str) -> String {
        let found = async {
            while let Some(line) = self.lines.next_line().await.unwrap() {
                if line.contains(text) {
                    return line;
                }
            }
            panic!("the example ended before it printed {text:?}");
        };
        let found = tokio::time::timeout(LIMIT, found).await;
        found.unwrap_or_else(|_| panic!("no {text:?} in time"))
    }

    /// Sends SIGINT, like Ctrl-C, and returns the remaining lines.
    async fn interrupt(mut self) -> Vec<String> {
        let id = self.child.id().unwrap().to_string();
        let kill = Command::new("kill").args(["-INT", &id]).status();
        assert!(kill.await.unwrap().success());
        self.rest().await
    }

    async fn rest(&mut self) -> Vec<String> {
        let mut rest = Vec::new();
        while let Some(line) = self.lines.next_line().await.unwrap() {
            rest.push(line);
        }
        assert!(self.child.wait().await.unwrap().success());
        rest
    }
}

async fn server() -> (TestServer, NamedTempFile) {
    let server = TestServer::start().await.unwrap();
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), server.kubeconfig()).unwrap();
    (server, file)
}

#[tokio::test]
async fn embedded_three_processes_and_another_takes_over() {
    let (server, config) = server().await;
    let start = || Example::start(env!("CARGO_BIN_EXE_embedded"), &[], &config);
    let mut first = start();
    first.line("started leading").await;
    let (mut second, mut third) = (start(), start());
    second.line("new leader").await;
    third.line("new leader").await;
    let rest = first.interrupt().await;
    assert!(
        rest.contains(&"stopped leading: shutdown".to_owned()),
        "{rest:?}"
    );
    let next = tokio::select! {
        line = second.line("started leading") => line,
        line = third.line("started leading") => line,
    };
    assert!(next.contains("token"), "{next}");
    let leases: kube::Api<Lease> = kube::Api::namespaced(server.client().unwrap(), "default");
    let spec = leases.get("my-lease").await.unwrap().spec.unwrap();
    assert_eq!(spec.lease_transitions, Some(1));
    assert_eq!(spec.lease_duration_seconds, Some(15));
    assert!(
        spec.holder_identity
            .is_some_and(|holder| !holder.is_empty())
    );
}

#[tokio::test]
async fn callbacks_come_in_order() {
    let (_server, config) = server().await;
    let mut example = Example::start(env!("CARGO_BIN_EXE_callbacks"), &[], &config);
    example.line("started leading").await;
    let rest = example.interrupt().await;
    let place = |text: &str| rest.iter().position(|line| line.contains(text)).unwrap();
    assert!(place("winding down") < place("stopped leading: shutdown"));
    assert!(
        rest.contains(&"leaderElection: Ok(())".to_owned()),
        "{rest:?}"
    );
}

#[tokio::test]
async fn campaign_leads_loses_and_leads_again() {
    let (server, config) = server().await;
    let mut example = Example::start(env!("CARGO_BIN_EXE_campaign"), &[], &config);
    let first = example.line("begins").await;
    let leases: kube::Api<Lease> = kube::Api::namespaced(server.client().unwrap(), "default");
    let lock = tenure_lock::LockKind::Leases.open(
        server.client().unwrap(),
        "default",
        "campaign-example",
        &std::collections::BTreeMap::new(),
    );
    let seen = lock.unwrap().read().await.unwrap().unwrap();
    let record = &seen.observation().record;
    let order = tenure_lock::orders::step_down_patch(record, None, Some(Duration::from_secs(1)));
    let order = kube::api::Patch::Merge(order);
    let named = kube::api::PatchParams::default();
    leases
        .patch("campaign-example", &named, &order)
        .await
        .unwrap();
    example.line("ends").await;
    let second = example.line("begins").await;
    assert_ne!(first, second, "another token");
    let rest = example.interrupt().await;
    assert!(rest.contains(&"2 terms".to_owned()), "{rest:?}");
}

#[tokio::test]
async fn controller_runs_on_the_leader() {
    let (server, config) = server().await;
    let mut example = Example::start(env!("CARGO_BIN_EXE_controller"), &[], &config);
    example.line("the controller starts").await;
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(server.client().unwrap(), "default");
    let mut map = k8s_openapi::api::core::v1::ConfigMap::default();
    map.metadata.name = Some("m".to_owned());
    let labels = map.metadata.labels.get_or_insert_default();
    labels.insert("example".to_owned(), "seen".to_owned());
    maps.create(&kube::api::PostParams::default(), &map)
        .await
        .unwrap();
    example.line("saw m").await;
    let rest = example.interrupt().await;
    assert!(
        rest.contains(&"the controller has stopped".to_owned()),
        "{rest:?}"
    );
}

#[tokio::test]
async fn many_hands_over_all_shards_on_shutdown() {
    let (_server, config) = server().await;
    let start = || Example::start(env!("CARGO_BIN_EXE_many"), &["50"], &config);
    let mut first = start();
    first.line("leading 50 shards").await;
    let mut second = start();
    let rest = first.interrupt().await;
    assert_eq!(rest, ["releasing 50 shards"]);
    second.line("leading 50 shards").await;
}

#[tokio::test]
async fn fenced_refuses_the_former_leader() {
    let (_server, config) = server().await;
    let mut example = Example::start(env!("CARGO_BIN_EXE_fenced"), &[], &config);
    let rest = example.rest().await;
    let last = rest.last().unwrap();
    assert!(last.contains("is rejected"), "{rest:?}");
}

#[tokio::test]
async fn operator_two_groups_and_a_warm_standby() {
    let (server, config) = server().await;
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(server.client().unwrap(), "default");
    let mut map = k8s_openapi::api::core::v1::ConfigMap::default();
    map.metadata.name = Some("m".to_owned());
    let labels = map.metadata.labels.get_or_insert_default();
    labels.insert("example".to_owned(), "seen".to_owned());
    let made = maps.create(&kube::api::PostParams::default(), &map).await;
    made.unwrap();
    let mut first = Example::start(env!("CARGO_BIN_EXE_operator"), &[], &config);
    // The two groups start in any order.
    let mut lines = Vec::new();
    while lines.len() < 3 {
        lines.push(first.line("").await);
    }
    assert!(lines.contains(&"m is there".to_owned()), "{lines:?}");
    assert!(
        lines.iter().any(|line| line.contains("auditing")),
        "{lines:?}"
    );
    let mut second = Example::start(env!("CARGO_BIN_EXE_operator"), &[], &config);
    second.line("this replica runs").await;
    let rest = first.interrupt().await;
    assert_eq!(rest, ["the audit has stopped", "everything has stopped"]);
    let mut lines = [second.line("").await, second.line("").await];
    lines.sort();
    assert_eq!(lines[1], "m is there");
    second.interrupt().await;
}

#[tokio::test]
async fn own_server_runs_its_own_controllers() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, config) = server().await;
    let path = folder.path().to_str().unwrap();
    let mut example = Example::start(env!("CARGO_BIN_EXE_own_server"), &[path], &config);
    example.line("export KUBECONFIG=").await;
    example.line("manifests applied").await;
    let mut open = false;
    let mut greeted = false;
    while !(open && greeted) {
        let line = example.line("").await;
        open |= line == "the tunnel is open";
        greeted |= line == "hello, namespace default";
    }
    let rest = example.interrupt().await;
    assert_eq!(rest.last().unwrap(), "the tunnel is closed");
}

/// Requests a path of an example that prints its address, and returns the whole response.
async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

/// Starts an example, and returns it with the address that it prints.
async fn listening(program: &str, config: &NamedTempFile) -> (Example, String) {
    let mut example = Example::start(program, &[], config);
    let line = example.line("listening on ").await;
    let (_, address) = line.split_once("listening on ").unwrap();
    (example, address.to_owned())
}

/// Waits until a path responds with the text.
async fn until(address: &str, path: &str, text: &str) -> String {
    let responds = async {
        loop {
            let response = get(address, path).await;
            if response.contains(text) {
                return response;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let responds = tokio::time::timeout(LIMIT, responds).await;
    responds.unwrap_or_else(|_| panic!("{path} does not respond with {text:?}"))
}

#[tokio::test]
async fn routes_name_the_leader_on_every_replica() {
    let (_server, config) = server().await;
    let program = env!("CARGO_BIN_EXE_routes");
    let (mut first, at_first) = listening(program, &config).await;
    first.line("leading").await;
    let leader = get(&at_first, "/leader").await;
    assert!(leader.starts_with("HTTP/1.1 200"), "{leader}");
    let (_, name) = leader.split_once("\r\n\r\n").unwrap();
    let (_second, at_second) = listening(program, &config).await;
    let follower = until(&at_second, "/leader", name).await;
    assert!(follower.starts_with("HTTP/1.1 503"), "{follower}");
    for address in [&at_first, &at_second] {
        let health = get(address, "/healthz").await;
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    }
    first.interrupt().await;
    until(&at_second, "/leader", "HTTP/1.1 200").await;
}

#[tokio::test]
async fn leader_only_passes_requests_with_the_token_of_the_term() {
    let (_server, config) = server().await;
    let program = env!("CARGO_BIN_EXE_leader_only");
    let (first, at_first) = listening(program, &config).await;
    let written = until(&at_first, "/", "HTTP/1.1 200").await;
    assert!(written.contains("written with token"), "{written}");
    assert!(!written.contains("token -"), "{written}");
    let (_second, at_second) = listening(program, &config).await;
    let rejected = get(&at_second, "/").await;
    assert!(rejected.starts_with("HTTP/1.1 503"), "{rejected}");
    assert!(rejected.contains("retry-after: 1"), "{rejected}");
    first.interrupt().await;
    until(&at_second, "/", "HTTP/1.1 200").await;
}

#[tokio::test]
async fn cron_repeats_no_job_after_a_hand_over() {
    let (_server, config) = server().await;
    let start = || Example::start(env!("CARGO_BIN_EXE_cron"), &["1"], &config);
    let number = |line: &str| -> Option<u64> {
        let (number, _) = line.strip_prefix("job ")?.split_once(' ')?;
        number.parse().ok()
    };
    let mut first = start();
    let mut jobs = vec![number(&first.line("job ").await)];
    let mut second = start();
    jobs.push(number(&first.line("job ").await));
    let rest = first.interrupt().await;
    jobs.extend(rest.iter().map(|line| number(line)).filter(Option::is_some));
    for _ in 0..2 {
        jobs.push(number(&second.line("job ").await));
    }
    second.interrupt().await;
    assert!(jobs.iter().all(Option::is_some), "{jobs:?}");
    assert!(jobs.windows(2).all(|pair| pair[0] < pair[1]), "{jobs:?}");
}

#[tokio::test]
async fn hand_over_completes_the_reconciliation_first() {
    let (server, config) = server().await;
    let start = || Example::start(env!("CARGO_BIN_EXE_hand_over"), &[], &config);
    let mut first = start();
    first.line("leading").await;
    let mut second = start();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> =
        kube::Api::namespaced(server.client().unwrap(), "default");
    let mut map = k8s_openapi::api::core::v1::ConfigMap::default();
    map.metadata.name = Some("m".to_owned());
    let labels = map.metadata.labels.get_or_insert_default();
    labels.insert("example".to_owned(), "steps".to_owned());
    let made = maps.create(&kube::api::PostParams::default(), &map).await;
    made.unwrap();
    first.line("step 1 of m").await;
    let rest = first.interrupt().await;
    let expected = [
        "step 2 of m",
        "step 3 of m",
        "the controller has stopped",
        "released",
    ];
    assert_eq!(rest, expected);
    second.line("leading").await;
    second.line("step 3 of m").await;
    second.interrupt().await;
}

#[tokio::test]
async fn primary_is_the_only_pod_with_the_label() {
    let (server, config) = server().await;
    let pods: kube::Api<Pod> = kube::Api::namespaced(server.client().unwrap(), "default");
    for name in ["db-0", "db-1", "db-2"] {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": { "app": "db" } },
            "spec": { "containers": [{ "name": "db", "image": "db" }] },
        }))
        .unwrap();
        let made = pods.create(&kube::api::PostParams::default(), &pod).await;
        made.unwrap();
    }
    // A primary that crashed.
    let stale = kube::api::Patch::Merge(serde_json::json!({
        "metadata": { "labels": { "role": "primary" } },
    }));
    let named = kube::api::PatchParams::default();
    pods.patch("db-2", &named, &stale).await.unwrap();
    let primaries = async || {
        let list = kube::api::ListParams::default().labels("role=primary");
        let names = pods.list(&list).await.unwrap().items.into_iter();
        names
            .filter_map(|pod| pod.metadata.name)
            .collect::<Vec<_>>()
    };

    let start = |pod| Example::start(env!("CARGO_BIN_EXE_primary"), &[pod], &config);
    let mut first = start("db-0");
    first.line("db-0 is the primary").await;
    assert_eq!(primaries().await, ["db-0"]);
    let mut second = start("db-1");
    let rest = first.interrupt().await;
    assert_eq!(rest, ["db-0 is a replica"]);
    second.line("db-1 is the primary").await;
    assert_eq!(primaries().await, ["db-1"]);
    second.interrupt().await;
}
