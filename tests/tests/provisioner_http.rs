//! HTTP endpoints of a provisioner: metrics under the names of csi-provisioner, and the probe of the election.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};

use serde_json::json;
use tenure_csi::mock::{Method, MockConfig, Script};
use tenure_tests::storage::{Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const VOLUMES: &str = "/api/v1/persistentvolumes";

/// Returns an address on which nothing listens.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Returns status and body, if there is a response.
fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split_whitespace().nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

/// Returns the value of the sample of this name with all these labels.
fn sample(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let mut lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        let whole = rest.is_some_and(|rest| rest.starts_with(['{', ' ']));
        let has = |(key, value): &(&str, &str)| line.contains(&format!("{key}=\"{value}\""));
        whole && labels.iter().all(has)
    });
    lines.next()?.rsplit_once(' ')?.1.parse().ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_have_the_names_of_csi_provisioner() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    for (name, script) in [("good", json!({})), ("bad", json!({ "code": "INTERNAL" }))] {
        let class = json!({
            "metadata": { "name": name }, "provisioner": DRIVER,
            "parameters": { "script": script.to_string() },
        });
        rig.api.create(CLASSES, &class).await.unwrap();
    }
    let address = free();
    let http = format!("--http-endpoint={address}");
    let flags = [
        &http,
        "--metrics-path=/m",
        "--leader-election",
        "--leader-election-namespace=default",
    ];
    let provisioner = rig.provisioner("s", &flags).unwrap();
    let mut uids = Vec::new();
    for class in ["good", "bad"] {
        let claim = handed_over(class, class, DRIVER);
        let claim = rig.api.create(CLAIMS, &claim).await.unwrap();
        uids.push(claim["metadata"]["uid"].as_str().unwrap().to_owned());
    }
    let volume = format!("{VOLUMES}/pvc-{}", uids[0]);
    until("a volume", async || rig.api.get(&volume).await.unwrap()).await;
    // The deletion fails once, then succeeds.
    driver.script(Method::DeleteVolume, Script::fail("UNAVAILABLE", 1));
    let released = json!({ "status": { "phase": "Released" } });
    let status = format!("{volume}/status");
    rig.api.merge(&status, &released).await.unwrap();

    let claims = "controller_persistentvolumeclaim_provision";
    let volumes = "controller_persistentvolume_delete";
    let of = |class| [("class", class)];
    let claim_of = |class| [("class", class), ("source", "")];
    let call = |method, code| {
        [
            ("driver_name", DRIVER),
            ("method_name", method),
            ("grpc_status_code", code),
        ]
    };
    let (create, delete) = (
        "/csi.v1.Controller/CreateVolume",
        "/csi.v1.Controller/DeleteVolume",
    );
    let mut last = String::new();
    until("all of it counted", async || {
        last = get(address, "/m")?.1;
        let at_least = |name: &str, labels: &[(&str, &str)], least: f64| {
            sample(&last, name, labels).is_some_and(|value| value >= least)
        };
        let seconds = "csi_sidecar_operations_seconds_count";
        let counted = [
            at_least(&format!("{claims}_total"), &claim_of("good"), 1.0),
            at_least(&format!("{claims}_failed_total"), &claim_of("bad"), 1.0),
            at_least(
                &format!("{claims}_duration_seconds_count"),
                &of("good"),
                1.0,
            ),
            at_least(&format!("{volumes}_total"), &of("good"), 1.0),
            at_least(&format!("{volumes}_failed_total"), &of("good"), 1.0),
            at_least(
                &format!("{volumes}_duration_seconds_count"),
                &of("good"),
                1.0,
            ),
            at_least(seconds, &call(create, "OK"), 1.0),
            at_least(seconds, &call(create, "Internal"), 1.0),
            at_least(seconds, &call(delete, "Unavailable"), 1.0),
            at_least(seconds, &call(delete, "OK"), 1.0),
            at_least("workqueue_adds_total", &[("name", "claims")], 2.0),
            at_least("workqueue_retries_total", &[("name", "claims")], 1.0),
            at_least("workqueue_adds_total", &[("name", "volumes")], 1.0),
            at_least(
                "leader_election_master_status",
                &[("name", "mock-csi-example")],
                1.0,
            ),
        ];
        counted.iter().all(|counted| *counted).then_some(())
    })
    .await;
    // Failed operations count only as failed, and successful ones only as successful.
    let failed = sample(&last, &format!("{claims}_failed_total"), &of("good"));
    assert_eq!(failed.unwrap_or_default(), 0.0, "{last}");
    let made = sample(&last, &format!("{claims}_total"), &of("bad"));
    assert_eq!(made.unwrap_or_default(), 0.0, "{last}");
    // This call was made before the driver had reported its name.
    let before = [
        ("driver_name", "unknown-driver"),
        ("grpc_status_code", "OK"),
    ];
    assert!(sample(&last, "csi_sidecar_operations_seconds_count", &before).is_some());
    // The label is for drivers that replaced an in-tree plugin.
    assert!(!last.contains("migrated="), "{last}");
    assert_eq!(get(address, "/metrics").map(|answer| answer.0), Some(404));
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_for_in_tree_objects_have_the_label_migrated() {
    let driver = "ebs.csi.aws.com";
    let rig = Rig::start().await.unwrap();
    let config = MockConfig {
        name: driver.to_owned(),
        ..MockConfig::default()
    };
    let _driver = rig.driver("s", config).unwrap();
    let address = free();
    let http = format!("--http-endpoint={address}");
    let provisioner = rig.provisioner("s", &[&http]).unwrap();
    for (class, by) in [("old", "kubernetes.io/aws-ebs"), ("new", driver)] {
        let object = json!({ "metadata": { "name": class }, "provisioner": by });
        rig.api.create(CLASSES, &object).await.unwrap();
        let mut claim = handed_over(class, class, driver);
        claim["metadata"]["annotations"]["pv.kubernetes.io/migrated-to"] = json!(driver);
        let claim = rig.api.create(CLAIMS, &claim).await.unwrap();
        let uid = claim["metadata"]["uid"].as_str().unwrap();
        let volume = format!("{VOLUMES}/pvc-{uid}");
        until("a volume", async || rig.api.get(&volume).await.unwrap()).await;
        let released = json!({ "status": { "phase": "Released" } });
        let status = format!("{volume}/status");
        rig.api.merge(&status, &released).await.unwrap();
    }
    let seconds = "csi_sidecar_operations_seconds_count";
    until("calls counted with the label", async || {
        let text = get(address, "/metrics")?.1;
        let counted = |method: &str, migrated: &str| {
            let method = format!("/csi.v1.Controller/{method}");
            let labels = [
                ("driver_name", driver),
                ("method_name", method.as_str()),
                ("grpc_status_code", "OK"),
                ("migrated", migrated),
            ];
            sample(&text, seconds, &labels) == Some(1.0)
        };
        ["CreateVolume", "DeleteVolume"]
            .into_iter()
            .all(|method| counted(method, "true") && counted(method, "false"))
            .then_some(())
    })
    .await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_replica_answers_the_probe_of_the_election() {
    let rig = Rig::start().await.unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let probe = "/healthz/leader-election";
    let elected = [
        "--leader-election",
        "--leader-election-namespace=default",
        "--leader-election-labels=team:storage,tier:gold",
    ];
    let start = |address: SocketAddr, flag: &str, flags: &[&str]| {
        let http = format!("--{flag}={address}");
        let flags = [&[http.as_str()], flags].concat();
        rig.provisioner("s", &flags).unwrap()
    };
    let answers = async |address, path: &str| {
        until(path, async || get(address, path).map(|answer| answer.0)).await
    };
    let (leader, follower, old, alone) = (free(), free(), free(), free());
    let replicas = [
        start(leader, "http-endpoint", &elected),
        start(follower, "http-endpoint", &elected),
        // The older flag serves only metrics.
        start(old, "metrics-address", &elected),
        start(alone, "http-endpoint", &[]),
    ];
    for (address, code) in [(leader, 200), (follower, 200), (old, 404), (alone, 404)] {
        assert_eq!(answers(address, probe).await, code, "{address}");
        assert_eq!(answers(address, "/metrics").await, 200, "{address}");
        assert_eq!(answers(address, "/healthz").await, 404, "{address}");
        assert_eq!(answers(address, "/debug/pprof/").await, 404, "{address}");
    }
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";
    until("labels on the lease", async || {
        let lease = rig.api.get(lease).await.unwrap()?;
        let labels = json!({ "team": "storage", "tier": "gold" });
        (lease["metadata"]["labels"] == labels).then_some(())
    })
    .await;
    for replica in replicas {
        assert_eq!(replica.stop().unwrap(), Some(0));
    }
}
