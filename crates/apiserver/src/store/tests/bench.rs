//! Measurements of throughput, start time and memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::super::testing::{key, put};
use super::super::{Encryption, Expected, Key, MemoryStore, Range, RedbStore, Scope, Store};

/// Returns an object of the size of a Lease with its managed fields.
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

/// Renews leases for some seconds and prints the rate. Every writer renews its own leases.
async fn rate(store: Arc<dyn Store>, writers: u64, objects: u64) {
    let length: u64 = std::env::var("TENURE_BENCH_SECONDS").map_or(3, |s| s.parse().unwrap());
    let (before, used) = (Instant::now(), Used::now());
    let tasks = (0..writers).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut times = Vec::new();
            while before.elapsed() < Duration::from_secs(length) {
                let n = times.len() as u64;
                let key = key(
                    "kube-system",
                    &format!("lease-{}", (writer + n * writers) % objects),
                );
                let expected = store
                    .get(&key)
                    .map_or(Expected::Absent, |o| Expected::Revision(o.revision));
                let start = Instant::now();
                store.write(put(&key, expected, lease(n))).await.unwrap();
                times.push(start.elapsed());
            }
            times
        })
    });
    let mut times = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        times.extend(task.await.unwrap());
    }
    times.sort_unstable();
    let (count, seconds) = (times.len() as f64, before.elapsed().as_secs_f64());
    let percentile = |p: usize| times[times.len() * p / 100];
    println!(
        "{writers:4} writers, {objects:6} leases: {:8.0} writes/s, p50 {:?}, p99 {:?}, {}",
        count / seconds,
        percentile(50),
        percentile(99),
        used.per(count),
    );
}

/// Processor time and written bytes of the process so far.
struct Used {
    ticks: f64,
    written: f64,
}

impl Used {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<_> = stat
            .rsplit_once(')')
            .unwrap()
            .1
            .split_whitespace()
            .collect();
        let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        let io = std::fs::read_to_string("/proc/self/io").unwrap();
        let written = io
            .lines()
            .find_map(|line| line.strip_prefix("wchar: "))
            .unwrap();
        Self {
            ticks,
            written: written.parse().unwrap(),
        }
    }

    fn per(&self, count: f64) -> String {
        let now = Self::now();
        let micros = (now.ticks - self.ticks) * 10_000.0 / count;
        format!(
            "{micros:.1} us of processor and {:.0} bytes each",
            (now.written - self.written) / count
        )
    }
}

fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(std::env::var_os("TENURE_BENCH_DIR").unwrap_or_else(|| ".".into()))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement: cargo test --release -p tenure-apiserver --lib bench -- --ignored --nocapture"]
async fn memory() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for writers in [1, 32] {
        rate(store.clone(), writers, 10_000).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, as above"]
async fn durable() {
    let dir = place();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
    for writers in [1, 32, 128] {
        rate(store.clone(), writers, 10_000).await;
    }
}

/// With the scope `Secrets`, Leases must cost the same as without keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, as above"]
async fn encrypted() {
    for (name, encryption) in [
        ("no keys", Encryption::OFF),
        ("secrets", Encryption::of(&[1], Scope::Secrets)),
        ("all", Encryption::of(&[1], Scope::All)),
    ] {
        let dir = place();
        let store = RedbStore::encrypted(dir.path(), encryption).unwrap();
        println!("{name}:");
        rate(Arc::new(store), 32, 10_000).await;
    }
    let keys = Encryption::of(&[1], Scope::Secrets);
    for size in [1 << 10, 1 << 20] {
        let (value, rounds) = (vec![b'x'; size], (64 << 20) / size);
        let start = Instant::now();
        let mut sealed = Vec::new();
        for _ in 0..rounds {
            sealed = keys.seal("/secrets", b"key", &value).unwrap().unwrap();
        }
        let sealing = start.elapsed();
        let start = Instant::now();
        for _ in 0..rounds {
            keys.open(b"key", &sealed).unwrap();
        }
        let rounds = u32::try_from(rounds).unwrap();
        let (sealing, opening) = (sealing / rounds, start.elapsed() / rounds);
        println!("{size} bytes: encrypted in {sealing:?}, decrypted in {opening:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, as above"]
async fn start_with_100k_leases() {
    let dir = place();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
    let filling = (Instant::now(), Used::now());
    let tasks = (0..500_u64).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for n in 0..200_u64 {
                let key = key("kube-system", &format!("lease-{}", n * 500 + writer));
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
    println!(
        "100k creations by 500 writers: {:?}, {}",
        filling.0.elapsed(),
        filling.1.per(100_000.0)
    );
    rate(store.clone(), 32, 100_000).await;
    let crashed = tempfile::tempdir_in(dir.path()).unwrap();
    std::fs::copy(
        dir.path().join("store.redb"),
        crashed.path().join("store.redb"),
    )
    .unwrap();
    drop(store);
    for (how, path) in [("in order", dir.path()), ("crash", crashed.path())] {
        let start = (Instant::now(), Used::now());
        let store = RedbStore::open(path).unwrap();
        println!(
            "start after {how}: {:?}, {} per lease, {}",
            start.0.elapsed(),
            start.1.per(100_000.0),
            resident()
        );
        drop(store);
    }
}

#[tokio::test]
#[ignore = "a measurement, as above"]
async fn memory_of_10k_leases_and_1k_watches() {
    let dir = place();
    let store: Arc<dyn Store> = Arc::new(RedbStore::open(dir.path()).unwrap());
    println!("empty: {}", resident());
    let name = |n: u64| key("kube-system", &format!("lease-{n}"));
    let creations = (0..10_000).map(|n| store.write(put(&name(n), Expected::Absent, lease(n))));
    join_all(creations)
        .await
        .into_iter()
        .for_each(|result| assert!(result.is_ok()));
    println!("10k leases: {}", resident());
    let after = store.revision();
    let watch = |n: u64| {
        let Key {
            resource,
            namespace,
            name,
        } = name(n);
        let range = Range {
            resource,
            namespace: Some(namespace),
            name: Some(name),
        };
        store.watch(range, after).unwrap()
    };
    let mut watches: Vec<_> = (0..1000).map(watch).collect();
    println!("and 1k watches: {}", resident());
    for round in 0..10 {
        let renewals = (0..10_000).map(|n| {
            let expected = Expected::Revision(store.get(&name(n)).unwrap().revision);
            store.write(put(&name(n), expected, lease(round)))
        });
        join_all(renewals)
            .await
            .into_iter()
            .for_each(|result| assert!(result.is_ok()));
        for watch in &mut watches {
            watch.next().await.unwrap();
        }
    }
    println!("after 100k renewals: {}", resident());
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap_or("unknown")
        .to_owned()
}
