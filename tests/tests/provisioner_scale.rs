//! Many concurrent claims: each is processed once, with few requests, and nothing is left behind.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::{Value, json};
use tenure_apiserver::server::{Fault, Faults, Server};
use tenure_csi::mock::{Method, MockConfig};
use tenure_tests::storage::{Rig, handed_over, until};

const DRIVER: &str = "mock.csi.example";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const MANY: u32 = 1_000;
const AT_ONCE: usize = 16;

/// Returns the names of all volume objects.
async fn objects(rig: &Rig) -> BTreeSet<String> {
    let list = rig.api.get(VOLUMES).await.unwrap().unwrap_or_default();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    items.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_claims_are_served_once_each() {
    let faults = Arc::new(Faults::default());
    let rig = Rig::start_with(Server::builder().faults(faults.clone()))
        .await
        .unwrap();
    let driver = rig.driver("s", MockConfig::default()).unwrap();
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER });
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    rig.api.create(classes, &class).await.unwrap();
    // Faults without effect count requests.
    let count = |verb: &str| faults.add(Fault::latency(Duration::ZERO).path(VOLUMES).verb(verb));
    let (posted, read, patched, deleted) = (
        count("create"),
        count("get"),
        count("patch"),
        count("delete"),
    );
    let events = Fault::latency(Duration::ZERO).path("/api/v1/namespaces/default/events");
    let events = faults.add(events);
    let provisioner = rig.provisioner("s", &["-v=0"]).unwrap();
    let made = futures_util::stream::iter(0..MANY).map(|number| {
        let rig = &rig;
        async move {
            let claim = handed_over(&format!("c{number}"), "fast", DRIVER);
            rig.api.create(CLAIMS, &claim).await
        }
    });
    let made: Vec<Value> = made.buffer_unordered(AT_ONCE).try_collect().await.unwrap();
    let uid = |claim: &Value| claim["metadata"]["uid"].as_str().unwrap().to_owned();
    let wanted: BTreeSet<String> = made.iter().map(|c| format!("pvc-{}", uid(c))).collect();
    until("a volume object for each", async || {
        (objects(&rig).await == wanted).then_some(())
    })
    .await;
    assert_eq!(driver.calls_of(Method::CreateVolume).len(), MANY as usize);
    assert_eq!(posted.hits(), MANY, "one request each");
    assert_eq!((read.hits(), patched.hits()), (0, 0), "and no other");
    assert!(events.hits() <= 2 * MANY, "{} events", events.hits());
    let ids: BTreeSet<String> = wanted.iter().map(|name| format!("vol-{name}")).collect();
    assert_eq!(driver.volumes().into_keys().collect::<BTreeSet<_>>(), ids);

    // The binder releases them like this; our own patches are not counted.
    let released = futures_util::stream::iter(&wanted).map(|name| {
        let path = format!("{VOLUMES}/{name}/status");
        let rig = &rig;
        async move {
            let released = json!({ "status": { "phase": "Released" } });
            rig.api.merge(&path, &released).await
        }
    });
    released
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
        .unwrap();
    until("no storage and no object of ours", async || {
        let done = driver.volumes().is_empty() && deleted.hits() >= MANY;
        (done && patched.hits() >= 2 * MANY).then_some(())
    })
    .await;
    assert_eq!(driver.calls_of(Method::DeleteVolume).len(), MANY as usize);
    // Per volume: one delete, one patch that removes the finalizer, and one read, or two if the watch was faster than
    // the last of these.
    assert_eq!((deleted.hits(), patched.hits()), (MANY, 2 * MANY));
    assert!(read.hits() <= 2 * MANY, "{} reads", read.hits());
    assert_eq!(provisioner.stop().unwrap(), Some(0));
}
