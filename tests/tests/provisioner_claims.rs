//! The order of work on claims: claims of the same name, classes that are created late, existing volumes, responses
//! that no retry changes, claims that are received late.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_apiserver::server::{Fault, Faults, Requests, Server};
use tenure_csi::mock::{Method, MockConfig, MockDriver, Script};
use tenure_tests::storage::{Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const VOLUMES: &str = "/api/v1/persistentvolumes";

async fn class(rig: &Rig, name: &str) {
    let class = json!({ "metadata": { "name": name }, "provisioner": DRIVER });
    rig.api.create(CLASSES, &class).await.unwrap();
}

async fn claim(rig: &Rig, name: &str, class: &str) -> String {
    let claim = handed_over(name, class, DRIVER);
    let claim = rig.api.create(CLAIMS, &claim).await.unwrap();
    claim["metadata"]["uid"].as_str().unwrap().to_owned()
}

async fn until_volume(rig: &Rig, name: &str) -> Value {
    let path = format!("{VOLUMES}/{name}");
    until(name, async || rig.api.get(&path).await.unwrap()).await
}

/// Returns how often a volume of this name was requested from the driver.
fn asked(driver: &MockDriver, name: &str) -> usize {
    let calls = driver.calls_of(Method::CreateVolume);
    let about = calls.iter().filter(|call| call.request["name"] == name);
    about.count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_of_one_name_are_distinguished_by_uid() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig, "fast").await;
    // The second claim arrives while the driver processes the first claim of the same name.
    let slow = Script {
        times: Some(1),
        delay_ms: 1_500,
        ..Script::default()
    };
    driver.script(Method::CreateVolume, slow);
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let first = claim(&rig, "c", "fast").await;
    until("a request for the first volume", async || {
        (asked(&driver, &format!("pvc-{first}")) == 1).then_some(())
    })
    .await;
    rig.api.remove(&format!("{CLAIMS}/c")).await.unwrap();
    let second = claim(&rig, "c", "fast").await;
    assert_ne!(first, second);
    for uid in [&first, &second] {
        let volume = until_volume(&rig, &format!("pvc-{uid}")).await;
        assert_eq!(volume["spec"]["claimRef"]["uid"], **uid);
    }
    assert_eq!(driver.volumes().len(), 2);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_class_may_be_created_later() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    let flags = ["--retry-interval-max=1s", "--http-endpoint=127.0.0.1:0"];
    let provisioner = rig.provisioner("s", &flags).unwrap();
    // A missing class that is created later; a class of another driver that is replaced by one of this driver.
    let late = claim(&rig, "late", "late").await;
    // The claim has no provisioner annotation at first; then the binder adds it.
    let mut plain = handed_over("plain", "late", DRIVER);
    let annotations = plain["metadata"]["annotations"].take();
    let plain = rig.api.create(CLAIMS, &plain).await.unwrap();
    let plain = plain["metadata"]["uid"].as_str().unwrap().to_owned();
    until("an event that the class is missing", async || {
        let said = provisioner.process.text().join("\n");
        said.contains("not found").then_some(())
    })
    .await;
    class(&rig, "late").await;
    until_volume(&rig, &format!("pvc-{late}")).await;
    assert_eq!(asked(&driver, &format!("pvc-{plain}")), 0);
    let handed = json!({ "metadata": { "annotations": annotations } });
    rig.api
        .merge(&format!("{CLAIMS}/plain"), &handed)
        .await
        .unwrap();
    until_volume(&rig, &format!("pvc-{plain}")).await;
    assert_eq!(driver.volumes().len(), 2);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn existing_volume_is_not_created_again() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig, "fast").await;
    // The same with configured volume names.
    let flags = ["--volume-name-prefix=vol", "--volume-name-uuid-length=8"];
    let uid = claim(&rig, "c", "fast").await;
    let name = format!("vol-{}", &uid.replace('-', "")[..8]);
    let volume = json!({
        "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER } },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": { "storage": "1Gi" },
            "csi": { "driver": DRIVER, "volumeHandle": "there" },
            "claimRef": { "namespace": "default", "name": "c", "uid": uid },
        },
    });
    rig.api.create(VOLUMES, &volume).await.unwrap();
    let provisioner = rig.provisioner("s", &flags).unwrap();
    let other = claim(&rig, "other", "fast").await;
    let volume = until_volume(&rig, &format!("vol-{}", &other.replace('-', "")[..8])).await;
    assert_eq!(volume["spec"]["claimRef"]["uid"], *other);
    assert_eq!(asked(&driver, &name), 0, "the volume existed");
    assert_eq!(driver.volumes().len(), 1);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn infeasible_claim_waits_for_another_class() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig, "wrong").await;
    driver.script(Method::CreateVolume, Script::fail("INVALID_ARGUMENT", 1));
    let provisioner = rig.provisioner("s", &["--retry-interval-max=10m"]).unwrap();
    let uid = claim(&rig, "c", "wrong").await;
    let name = format!("pvc-{uid}");
    until("an event", async || {
        let path = "/api/v1/namespaces/default/events";
        let events = rig.api.get(path).await.unwrap()?;
        events.to_string().contains("infeasible").then_some(())
    })
    .await;
    // The driver would succeed now, but it gets no request for this claim. It gets requests for other claims.
    let other = claim(&rig, "other", "wrong").await;
    until_volume(&rig, &format!("pvc-{other}")).await;
    assert_eq!(asked(&driver, &name), 1);
    // A class that was deleted and created again counts as a different class.
    rig.api.delete(&format!("{CLASSES}/wrong")).await.unwrap();
    class(&rig, "wrong").await;
    until_volume(&rig, &name).await;
    assert_eq!(asked(&driver, &name), 2);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

/// A claim whose cached copy is older than the deletion of its volume must not get a second volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_from_a_stale_cache_gets_no_second_volume() {
    let faults = Arc::new(Faults::default());
    let server = Server::builder().faults(faults.clone());
    let rig = Rig::start_with(server).await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    class(&rig, "fast").await;
    let provisioner = rig.provisioner("s", &[]).unwrap();
    let refused = faults.add(Fault::answer(500).path(VOLUMES).verb("create"));
    let uid = claim(&rig, "c", "fast").await;
    let name = format!("pvc-{uid}");
    until("storage without an object", async || {
        (refused.hits() > 1).then_some(())
    })
    .await;
    // From here on the provisioner receives no events of claims. It processes this claim again soon after its volume
    // was finally created. By then claim and volume are deleted.
    let all = "/api/v1/persistentvolumeclaims";
    let deaf = ["watch", "list"].map(|verb| faults.add(Fault::answer(500).path(all).verb(verb)));
    faults.cut_watches(&Requests {
        path: all.to_owned(),
        ..Requests::default()
    });
    rig.api.remove(&format!("{CLAIMS}/c")).await.unwrap();
    refused.remove();
    until_volume(&rig, &name).await;
    let path = format!("{VOLUMES}/{name}");
    let released = json!({ "status": { "phase": "Released" } });
    let status = format!("{path}/status");
    rig.api.merge(&status, &released).await.unwrap();
    until("storage gone", async || {
        driver.volumes().is_empty().then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    for fault in deaf {
        fault.remove();
    }
    // Later claims are processed.
    let other = claim(&rig, "other", "fast").await;
    until_volume(&rig, &format!("pvc-{other}")).await;
    assert_eq!(asked(&driver, &name), 1);
    assert_eq!(driver.volumes().len(), 1);
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn called_by_its_old_name_it_logs_no_secrets() {
    let rig = Rig::start().await.unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "key": "open-sesame" } });
    rig.api
        .create("/api/v1/namespaces/default/secrets", &secret)
        .await
        .unwrap();
    let prefixed = |key: &str| format!("csi.storage.k8s.io/provisioner-secret-{key}");
    let class = json!({
        "metadata": { "name": "fast" }, "provisioner": DRIVER,
        "parameters": { prefixed("name"): "s", prefixed("namespace"): "default" },
    });
    rig.api.create(CLASSES, &class).await.unwrap();
    // Called under the name of csi-provisioner, as in its image. The environment variable takes precedence over the
    // flag.
    let folder = tempfile::tempdir().unwrap();
    let named = folder.path().join("csi-provisioner");
    std::os::unix::fs::symlink(tenure_tests::tools::tenure().unwrap(), &named).unwrap();
    let mut command = Command::new(&named);
    command
        .arg("--kubeconfig=/no/such/file")
        .arg(format!(
            "--csi-address=unix://{}",
            rig.socket("s").display()
        ))
        .args(["--v=5", "--logging-format=json", "--leader-election"])
        .args([
            "--leader-election-namespace=default",
            "--fencing-token-annotation",
        ])
        .env("KUBECONFIG", rig.server.kubeconfig());
    let provisioner = Rig::spawn("s", command).unwrap();
    let uid = claim(&rig, "c", "fast").await;
    let volume = until_volume(&rig, &format!("pvc-{uid}")).await;
    let token = &volume["metadata"]["annotations"]["tenure.dev/fencing-token"];
    assert!(
        token.as_str().is_some_and(|token| !token.is_empty()),
        "{volume}"
    );
    let calls = driver.calls_of(Method::CreateVolume);
    assert_eq!(calls[0].request["secrets"], json!({ "key": "open-sesame" }));
    let said = provisioner.process.text().join("\n");
    assert!(said.contains("***stripped***"), "{said}");
    assert!(!said.contains("open-sesame"), "{said}");
    assert!(
        said.contains(token.as_str().unwrap()),
        "the token is not in the log"
    );
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
