//! Measurements, not checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::testing::{key, put};
use super::super::{Expected, MemoryStore, RedbStore, Store};

/// As large as a Lease with its managed fields.
fn lease(n: u64) -> Value {
    json!({
        "metadata": {
            "name": "some-controller-lock", "namespace": "kube-system",
            "uid": "0b8d3c5e-8f60-4b9a-9f39-0c1f6f1f7f11",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{
                "manager": "controller", "operation": "Update", "apiVersion": "coordination.k8s.io/v1",
                "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:spec": {"f:acquireTime": {}, "f:holderIdentity": {},
                    "f:leaseDurationSeconds": {}, "f:leaseTransitions": {}, "f:renewTime": {}}},
            }],
        },
        "spec": {"holderIdentity": "controller-7c9d8f-abcde_1b2c3d4e", "leaseDurationSeconds": 15,
            "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": format!("2026-{n:020}Z"),
            "leaseTransitions": 3},
    })
}

async fn rate(store: Arc<dyn Store>, writers: u64, objects: u64) {
    let before = Instant::now();
    let tasks = (0..writers).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let (mut n, mut slowest) = (0, Duration::ZERO);
            while before.elapsed() < Duration::from_secs(3) {
                n += 1;
                let key = key(
                    "kube-system",
                    &format!("lease-{}", (writer + n * writers) % objects),
                );
                let expected = store
                    .get(&key)
                    .map_or(Expected::Absent, |o| Expected::Revision(o.revision));
                let start = Instant::now();
                store.write(put(&key, expected, lease(n))).await.unwrap();
                slowest = slowest.max(start.elapsed());
            }
            (n, slowest)
        })
    });
    let (mut total, mut slowest) = (0, Duration::ZERO);
    for task in tasks.collect::<Vec<_>>() {
        let (n, slow) = task.await.unwrap();
        total += n;
        slowest = slowest.max(slow);
    }
    let seconds = before.elapsed().as_secs_f64();
    println!(
        "{writers:4} writers, {objects:6} leases: {:8.0} writes/s, slowest {slowest:?}",
        total as f64 / seconds
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: cargo test --release -p tenure-apiserver --lib store::tests::bench -- --ignored --nocapture"]
async fn writes_per_second_and_start_time() {
    println!("memory:");
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for writers in [1, 32] {
        rate(memory.clone(), writers, 10_000).await;
    }
    drop(memory);
    let base = std::env::var_os("TENURE_BENCH_DIR").unwrap_or_else(|| ".".into());
    let dir = tempfile::tempdir_in(base).unwrap();
    println!("durable:");
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
    for (writers, objects) in [(1, 32), (32, 32), (1, 10_000), (32, 10_000), (128, 10_000)] {
        rate(store.clone(), writers, objects).await;
    }
    let filling = Instant::now();
    let tasks = (0..500_u64).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..200_u64 {
                let key = key("kube-system", &format!("full-{writer}-{n}"));
                store
                    .write(put(&key, Expected::Absent, lease(n)))
                    .await
                    .unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    println!("100k creations by 500 writers: {:?}", filling.elapsed());
    rate(store.clone(), 32, 10_000).await;
    println!("memory in use: {}", resident());
    let crashed = tempfile::tempdir_in(dir.path()).unwrap();
    std::fs::copy(
        dir.path().join("store.redb"),
        crashed.path().join("store.redb"),
    )
    .unwrap();
    drop(store);
    for (how, path) in [("in order", dir.path()), ("crash", crashed.path())] {
        let start = Instant::now();
        let store = RedbStore::open(path).unwrap();
        println!(
            "start of 110k leases after {how}: {:?}, {}",
            start.elapsed(),
            resident()
        );
        drop(store);
    }
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap_or("unknown")
        .to_owned()
}
