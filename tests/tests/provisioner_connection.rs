//! Behaviour of the process when the driver starts late, is not ready, describes itself incorrectly, or exits.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::time::Duration;

use tenure_apiserver::server::{Fault, Faults, Server};
use tenure_csi::mock::{Method, MockConfig, Script};
use tenure_tests::storage::{Provisioner, Rig, until};

const PATIENCE: Duration = Duration::from_secs(90);

/// Asserts that the process exits with a failure and prints this text.
async fn fails(mut provisioner: Provisioner, text: &str) {
    let status = provisioner.process.wait(PATIENCE).unwrap();
    says(&provisioner, text).await;
    let said = provisioner.process.transcript();
    assert_eq!(status.code(), Some(1), "{said}");
}

async fn says(provisioner: &Provisioner, text: &str) {
    until(text, async || {
        let said = provisioner.process.transcript();
        said.contains(text).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_unready_driver_is_waited_for() {
    let rig = Rig::start().await.unwrap();
    let provisioner = rig.provisioner("s", &["--timeout=500ms"]).unwrap();
    // Nothing listens on the socket yet.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    driver.set_ready(false);
    // A response that does not arrive in time also means "not yet", like a negative one.
    let slow = Script {
        times: Some(1),
        delay_ms: 5_000,
        ..Script::default()
    };
    driver.script(Method::Probe, slow);
    until("three probes", async || {
        (driver.calls_of(Method::Probe).len() >= 3).then_some(())
    })
    .await;
    says(&provisioner, "does not respond to the probe").await;
    says(&provisioner, "not ready yet").await;
    let asked = driver.calls_of(Method::GetPluginInfo);
    assert!(
        asked.is_empty(),
        "a driver that is not ready gets only probes"
    );
    driver.set_ready(true);
    says(&provisioner, "connected").await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_cannot_be_used_ends_the_process() {
    let rig = Rig::start().await.unwrap();
    for (socket, method) in [
        ("p", Method::Probe),
        ("i", Method::GetPluginInfo),
        ("c", Method::GetPluginCapabilities),
        ("k", Method::ControllerGetCapabilities),
    ] {
        let driver = rig.driver(socket, MockConfig::default()).unwrap();
        driver.script(method, Script::fail("INTERNAL", 1));
        let provisioner = rig.provisioner(socket, &[]).unwrap();
        fails(provisioner, &format!("/{method:?}")).await;
        assert_eq!(driver.calls_of(method).len(), 1, "no retry");
    }
    let nameless = MockConfig {
        name: String::new(),
        ..MockConfig::default()
    };
    let _driver = rig.driver("n", nameless).unwrap();
    fails(rig.provisioner("n", &[]).unwrap(), "name").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_driver_ends_leaders_and_followers() {
    let rig = Rig::start().await.unwrap();
    let elected = ["--leader-election", "--leader-election-namespace=default"];
    let start = |socket: &str, flags: &[&str]| {
        let driver = rig.driver(socket, MockConfig::default()).unwrap();
        (driver, rig.provisioner(socket, flags).unwrap())
    };
    let lost = "lost connection to CSI driver";
    let (driver, alone) = start("alone", &[]);
    says(&alone, "provisioning").await;
    drop(driver);
    fails(alone, lost).await;
    // `kubectl describe` shows this text. Only root can write there.
    if let Ok(note) = std::fs::read_to_string("/dev/termination-log") {
        assert_eq!(note, "Lost connection to CSI driver, exiting");
    }
    let (driver, leader) = start("leads", &elected);
    says(&leader, "provisioning").await;
    let (other, follower) = start("follows", &elected);
    says(&follower, "connected").await;
    drop(other);
    fails(follower, lost).await;
    drop(driver);
    fails(leader, lost).await;
    // The lease was released, so the next candidate does not wait.
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/mock-csi-example";
    let lease = rig.api.get(path).await.unwrap().unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str();
    assert_eq!(holder.unwrap_or_default(), "", "{lease}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_api_version_and_flag_are_reported() {
    // An API server that supports only CSIStorageCapacity v1beta1.
    let faults = std::sync::Arc::new(Faults::default());
    let path = "/apis/storage.k8s.io/v1/namespaces/default/csistoragecapacities";
    faults.add(Fault::answer(404).path(path).verb("create"));
    let rig = Rig::start_with(Server::builder().faults(faults))
        .await
        .unwrap();
    let _driver = rig.driver("s", MockConfig::default()).unwrap();
    let flags = ["--enable-capacity", "--capacity-ownerref-level=-1"];
    let mut command = rig.command("s", &flags).unwrap();
    command.env("NAMESPACE", "default");
    fails(Rig::spawn("s", command).unwrap(), "those of v1beta1").await;

    let _driver = rig.driver("other", MockConfig::default()).unwrap();
    let provisioner = rig
        .provisioner("other", &["--http-endpoint=127.0.0.1:0", "--enable-pprof"])
        .unwrap();
    says(&provisioner, "GET /debug/pprof lists alternatives").await;
    says(&provisioner, "connected").await;
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
