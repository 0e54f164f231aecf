//! Storage and custom kinds: claims from creation to bound, server-side apply, a start with many definitions.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a benchmark measures durations and prints its progress"
)]

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::Method;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tenure_csi::mock::MockConfig;
use tokio::task::JoinSet;

use super::apiserver::client::Server;
use crate::storage::{Served, claim};

const CLAIMS: usize = 1_000;
const CREATORS: usize = 32;
const APPLIERS: usize = 32;
const SPAN: Duration = Duration::from_secs(8);
const DEFINITIONS: usize = 50;
const STARTS: usize = 11;
const LIMIT: Duration = Duration::from_secs(300);
const DEFINED: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Measures everything on the redb engine; there is no peer for comparison.
///
/// # Errors
///
/// Fails if something did not start, or did not happen in time.
pub fn bench(_real: bool) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    eprintln!("claims ...");
    let claims = runtime.block_on(claims())?;
    eprintln!("server-side apply ...");
    let (applied, size) = runtime.block_on(applied())?;
    eprintln!("starts with definitions ...");
    let start = runtime.block_on(starts())?;
    let rows = [
        (
            format!("{CLAIMS} claims, from the first creation until the last is bound"),
            format!("{claims:.0}/s"),
            "300/s",
        ),
        (
            format!("server-side apply that changes an object of {size} bytes, {APPLIERS} clients"),
            format!("{applied:.0}/s"),
            "3,000/s",
        ),
        (
            format!(
                "start with {DEFINITIONS} CustomResourceDefinitions until one of their kinds is served, median"
            ),
            format!("{:.0} ms", start.as_secs_f64() * 1e3),
            "200 ms",
        ),
    ];
    let mut table = "### Storage\n\n| | measured | goal |\n|---|---|---|\n".to_owned();
    for (what, measured, reach) in rows {
        table.push_str(&format!("| {what} | {measured} | {reach} |\n"));
    }
    Ok(table)
}

/// Returns claims per second through our binder, `tenure provision` and a driver that does nothing.
async fn claims() -> Result<f64> {
    let served = Served::start(&[]).await?;
    let _driver = served.driver(MockConfig::default())?;
    let _provisioner = served.provisioner(&[])?;
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": "mock.csi.example" });
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    served.api.create(classes, &class).await?;
    let client = Client::try_from(config(&served).await?)?;
    let objects: Api<PersistentVolumeClaim> = Api::namespaced(client, "default");
    // All programs are running before the measurement: one claim has been processed completely.
    create(&served, "warm").await?;
    let warm = HashSet::from(["warm".to_owned()]);
    bound(objects.clone(), warm).await?;

    let names: Vec<String> = (0..CLAIMS).map(|n| format!("claim-{n}")).collect();
    let waiting = tokio::spawn(bound(objects, names.iter().cloned().collect()));
    let began = Instant::now();
    let made = futures_util::stream::iter(names).map(|name| {
        let served = &served;
        async move { create(served, &name).await }
    });
    made.buffer_unordered(CREATORS).try_collect::<()>().await?;
    let last = waiting.await??;
    Ok(CLAIMS as f64 / (last - began).as_secs_f64())
}

async fn create(served: &Served, name: &str) -> Result<()> {
    let claim = claim(name, "fast");
    let path = "/api/v1/namespaces/default/persistentvolumeclaims";
    served.api.create(path, &claim).await.map(drop)
}

/// Waits until these claims are bound. Returns when the last one was observed as bound.
async fn bound(
    claims: Api<PersistentVolumeClaim>,
    mut missing: HashSet<String>,
) -> Result<Instant> {
    let seen = watcher(claims, watcher::Config::default()).applied_objects();
    let mut seen = std::pin::pin!(seen);
    let all = async {
        while let Some(claim) = seen.next().await {
            let claim = claim?;
            let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref());
            if phase == Some("Bound") && missing.remove(&claim.name_any()) && missing.is_empty() {
                break;
            }
        }
        Ok(Instant::now())
    };
    tokio::time::timeout(LIMIT, all)
        .await
        .context("claims are not bound in time")?
}

async fn config(served: &Served) -> Result<Config> {
    let file = Kubeconfig::read_from(served.kubeconfig())?;
    let options = KubeConfigOptions::default();
    Ok(Config::from_custom_kubeconfig(file, &options).await?)
}

/// Returns applies per second, each changing one value of the client's own object, and the size of the object.
async fn applied() -> Result<(f64, usize)> {
    let served = Served::start(&[]).await?;
    let server = Server::new(&served.kubeconfig()).await?;
    // Requests are prepared text, so that even a small machine measures the server and not the client.
    let value = "x".repeat(80);
    let keys: Vec<String> = (0..40)
        .map(|n| format!("\"key-{n:02}\":\"{value}\""))
        .collect();
    let keys: Arc<str> = keys.join(",").into();
    let body = move |name: &str, round: usize| {
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\"}},\
             \"data\":{{{keys},\"round\":\"{round}\"}}}}"
        )
    };
    let size = body("config-0", 0).len();
    let mut clients = JoinSet::new();
    let began = Instant::now();
    for n in 0..APPLIERS {
        let (server, body) = (server.clone(), body.clone());
        clients.spawn(async move {
            let mut client = server.connect().await?;
            let name = format!("config-{n}");
            let path = format!("/api/v1/namespaces/default/configmaps/{name}?fieldManager=bench");
            let mut done = 0;
            while began.elapsed() < SPAN {
                client.send(Method::PATCH, &path, body(&name, done)).await?;
                done += 1;
            }
            Ok::<_, anyhow::Error>(done)
        });
    }
    let mut done = 0;
    while let Some(ended) = clients.join_next().await {
        done += ended??;
    }
    Ok((done as f64 / began.elapsed().as_secs_f64(), size))
}

/// Measures the time from the start of the process until a kind from a stored definition is served.
async fn starts() -> Result<Duration> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_owned();
    let served = Served::start_on(folder, &[]).await?;
    for n in 0..DEFINITIONS {
        served.api.create(DEFINED, &definition(n)).await?;
    }
    let mut folder = served.stop()?;
    let last = format!("/apis/bench.example/v1/things{}", DEFINITIONS - 1);
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let served = Served::start_on(folder, &[]).await?;
        while served.api.get(&last).await?.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        times.push(began.elapsed());
        folder = served.stop()?;
    }
    anyhow::ensure!(folder.path() == path, "all starts are on the same folder");
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Returns a definition of typical size.
fn definition(n: usize) -> Value {
    let fields: serde_json::Map<String, Value> = (0..30)
        .map(|n| {
            let schema =
                json!({ "type": "string", "description": "What it says.", "maxLength": 200 });
            (format!("field{n}"), schema)
        })
        .collect();
    let schema = json!({
        "type": "object",
        "properties": {
            "spec": { "type": "object", "properties": fields, "required": ["field0"] },
            "status": { "type": "object", "properties": { "phase": { "type": "string" } } },
        },
    });
    let version = json!({
        "name": "v1", "served": true, "storage": true,
        "schema": { "openAPIV3Schema": schema }, "subresources": { "status": {} },
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("things{n}.bench.example") },
        "spec": {
            "group": "bench.example",
            "scope": "Namespaced",
            "names": { "plural": format!("things{n}"), "kind": format!("Thing{n}") },
            "versions": [version],
        },
    })
}
