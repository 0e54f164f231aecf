//! `tenure provision` in deployments of old releases: `--master`, another lock kind, klog's flags.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_csi::mock::MockConfig;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::storage::{Provisioner, Rig, until};
use tenure_tests::tools;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";

/// A server that is not an API server and records the requests.
struct Stranger {
    url: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Stranger {
    fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let all = heard.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = vec![0; 8192];
                let length = stream.read(&mut head).unwrap_or_default();
                // A connection that was opened in advance carries no request.
                if length == 0 {
                    continue;
                }
                head.truncate(length);
                all.lock()
                    .unwrap()
                    .push(String::from_utf8_lossy(&head).to_lowercase());
                _ = stream.write_all(
                    b"HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\nConnection: close\r\n\r\n404 page not found\n",
                );
            }
        });
        Self { url, heard }
    }

    async fn hears_several(&self) -> Vec<String> {
        until("requests", async || {
            let heard = self.heard.lock().unwrap().clone();
            (heard.len() > 5).then_some(heard)
        })
        .await
    }
}

/// Returns a kubeconfig of another cluster, with a token.
fn with_token(server: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "x", "cluster": { "server": server } }],
        "users": [{ "name": "x", "user": { "token": "secret" } }],
        "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
    })
    .to_string()
}

fn provision(home: &Home, rig: &Rig, flags: &[&str]) -> Command {
    let mut command = home.command();
    command
        .arg("provision")
        .arg("--csi-address")
        .arg(rig.socket("s"));
    command
        .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
        .args(flags);
    command
}

async fn says(provisioner: &Provisioner, text: &str) {
    until(text, async || {
        let said = provisioner.process.transcript();
        said.contains(text).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioner_master_without_a_kubeconfig_gets_no_credentials() {
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let (home, stranger) = (Home::new(), Stranger::listen());
    std::fs::create_dir(home.path(".kube")).unwrap();
    std::fs::write(home.path(".kube/config"), with_token("https://127.0.0.1:1")).unwrap();
    let flags = ["--master", &stranger.url, "--leader-election"];
    let process = Process::spawn("provision", provision(&home, &rig, &flags)).unwrap();
    for request in stranger.hears_several().await {
        assert!(!request.contains("\nauthorization:"), "{request}");
        assert!(!request.contains("secret"), "{request}");
    }
    // A body that is not a Status is described, not printed in full.
    let said = process.transcript();
    assert!(!said.contains("Failed to parse error data"), "{said}");
    drop(process);

    // With a kubeconfig, its credentials are sent to the other server, because the user gave both.
    let stranger = Stranger::listen();
    std::fs::write(home.path("given"), with_token("https://127.0.0.1:1")).unwrap();
    let flags = ["--kubeconfig=given", "--master", &stranger.url];
    let _process = Process::spawn("provision", provision(&home, &rig, &flags)).unwrap();
    for request in stranger.hears_several().await {
        assert!(
            request.contains("authorization: bearer secret"),
            "{request}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioner_without_a_configuration_fails_and_starts_no_server() {
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let home = Home::new();
    std::fs::create_dir(home.path(".kube")).unwrap();
    std::fs::copy(rig.server.kubeconfig(), home.path(".kube/config")).unwrap();
    let output = provision(&home, &rig, &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no API server: give --kubeconfig or --master"),
        "{said}"
    );
    assert!(!home.path(".local").exists(), "{said}");
}

fn replica(rig: &Rig, flags: &[&str]) -> Provisioner {
    let mut all = vec!["--leader-election-namespace=default"];
    all.extend(flags);
    rig.provisioner("s", &all).unwrap()
}

/// A fleet on Endpoints moves to Leases. Two lock kinds at the same time elect two leaders, so a warning is printed. A
/// replica that uses both kinds waits for either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioner_upgrade_from_endpoints_warns_or_waits() {
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let mut old = Command::new(tools::tenure().unwrap());
    old.args([
        "elect",
        "--election=mock-csi-example",
        "--lock=endpoints",
        "--id=old-pod",
    ]);
    old.args([
        "--election-namespace=default",
        "--events=json",
        "--kubeconfig",
    ]);
    let mut old = Process::spawn("old", {
        old.arg(rig.server.kubeconfig());
        old
    })
    .unwrap();
    let acquired = tenure_tests::event::Kind::Acquired;
    let limit = Duration::from_secs(90);
    old.wait_for(acquired, tenure_tests::clock::Nanos(0), limit)
        .unwrap();

    let flags = [
        "--enable-leader-election",
        "--leader-election-type=endpointsleases",
    ];
    let both = replica(&rig, &flags);
    says(&both, "lock is held by old-pod and has not yet expired").await;
    let new = replica(&rig, &["--enable-leader-election"]);
    says(&new, "another lock of this election is in use").await;
    says(&new, "old-pod").await;
    says(&new, "--leader-election-type=endpointsleases").await;
    assert_eq!(new.stop().unwrap(), Some(0));
    let said = both.process.transcript();
    assert!(!said.contains("another lock"), "{said}");
    assert!(!said.contains("provisioning"), "{said}");
    old.terminate();
    old.wait(limit).unwrap();
    says(&both, "provisioning").await;
    assert_eq!(both.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn provisioner_accepts_old_flags_and_warns_once_for_each() {
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let flags = [
        "--enable-leader-election",
        "--leader-election-type=leases",
        "--logtostderr",
        "-alsologtostderr=false",
        "--stderrthreshold=ERROR",
        "--log_dir=/tmp",
    ];
    let provisioner = replica(&rig, &flags);
    says(&provisioner, "provisioning").await;
    let said = provisioner.process.transcript();
    let times = |text: &str| said.matches(text).count();
    assert_eq!(times("--leader-election-type is deprecated"), 1, "{said}");
    assert_eq!(times("--log_dir has no effect"), 1, "{said}");
    assert_eq!(times("--logtostderr"), 0, "{said}");

    // The source of Events is `LOCK/IDENTITY`, as in csi-lib-utils.
    let lease = rig.api.get(LEASE).await.unwrap().unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap();
    let component = format!("mock-csi-example/{holder}");
    until("an Event", async || {
        let events = rig
            .api
            .get("/api/v1/namespaces/default/events")
            .await
            .ok()??;
        let of = |event: &Value| event["source"]["component"] == component.as_str();
        events["items"].as_array()?.iter().any(of).then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
