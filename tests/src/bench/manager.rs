//! The manager: start time of a server's controllers, hand-over time of a group, benefit of a warm standby, memory of
//! an idle manager.

#![allow(clippy::print_stderr, reason = "a benchmark prints its progress")]
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures time, and no election depends on it"
)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher;
use kube::{Api, Client, Config};
use serde_json::json;
use tenure::{Handle, Status};
use tenure_manager::shard::Shards;
use tenure_manager::{Builder, Cause, Manager, Next, Runnable, Warm};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::percentile;
use crate::clock::{self, Nanos};
use crate::embedded::Embedded;
use crate::process::Process;
use crate::tools;

const STARTS: usize = 20;
const HAND_OVERS: usize = 100;
const CONTROLLERS: usize = 5;
const OBJECTS: usize = 10_000;
const SHARDS: u32 = 64;
const WARM_ROUNDS: usize = 10;
const LIMIT: Duration = Duration::from_secs(60);

/// Measures everything on the embedded server; there is no peer for comparison.
///
/// # Errors
///
/// Fails if something did not start, or did not happen in time.
pub fn bench(_real: bool) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    eprintln!("starts of tenure server ...");
    let starts = runtime.block_on(starts())?;
    let server = Embedded::start()?;
    let file = server.kubeconfig();
    eprintln!("hand-overs ...");
    let hand_overs = runtime.block_on(hand_overs(&file))?;
    eprintln!("a warm standby ...");
    let warm = runtime.block_on(warm(&file))?;
    eprintln!("shards ...");
    let shards = runtime.block_on(shards(&file))?;
    eprintln!("an idle manager ...");
    let resident = runtime.block_on(idle())?;
    let rows = [
        (
            "start of `tenure server` on an empty data directory until its controllers have worked, median"
                .to_owned(),
            ms(percentile(&starts, 50)),
            "300 ms",
        ),
        (
            format!(
                "hand-over of a group with {CONTROLLERS} controllers after a graceful stop, median"
            ),
            ms(percentile(&hand_overs, 50)),
            "",
        ),
        (
            "the same, p99".to_owned(),
            ms(percentile(&hand_overs, 99)),
            "150 ms",
        ),
        (
            format!(
                "from the winning write to the first reconciliation, {OBJECTS} objects in the warm cache, longest"
            ),
            ms(percentile(&warm, 100)),
            "100 ms",
        ),
        (
            format!("from 1 to 5 replicas, until {SHARDS} shards are spread evenly, at the default pace"),
            seconds(shards.more),
            "60 s",
        ),
        (
            "the same, from 5 to 3 replicas".to_owned(),
            seconds(shards.fewer),
            "60 s",
        ),
        (
            "resident memory of an idle manager that leads 10 warm controllers"
                .to_owned(),
            format!("{:.1} MB", resident as f64 / 1e6),
            "25 MB",
        ),
    ];
    let mut table = "| | measured | goal |\n|---|---|---|\n".to_owned();
    for (what, measured, wanted) in rows {
        table.push_str(&format!("| {what} | {measured} | {wanted} |\n"));
    }
    Ok(table)
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

async fn config(file: &Path) -> Result<Config> {
    let kubeconfig = Kubeconfig::read_from(file)?;
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    config.default_namespace = "default".into();
    Ok(config)
}

/// Measures the time from the start of the process until a controller has created the first service account.
async fn starts() -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("kubeconfig");
        let began = Instant::now();
        let mut child = Command::new(tools::tenure()?)
            .args(["server", "run", "--listen=127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .spawn()?;
        let worked = async {
            while !file.exists() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let client = Client::try_from(config(&file).await?)?;
            let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
            // The server may not listen yet.
            while !matches!(accounts.get_opt("default").await, Ok(Some(_))) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok::<_, anyhow::Error>(began.elapsed())
        };
        let worked = tokio::time::timeout(LIMIT, worked).await;
        child.kill()?;
        child.wait()?;
        times.push(worked.context("no controller worked in time")??);
    }
    Ok(times)
}

/// A manager that runs until it is stopped.
struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), tenure_manager::Error>>,
}

impl Running {
    fn start(manager: Manager) -> Self {
        let (stop, asked) = oneshot::channel();
        let task = tokio::spawn(manager.run(asked));
        Self { stop, task }
    }

    async fn stop(self) -> Result<()> {
        drop(self.stop);
        Ok(self.task.await??)
    }
}

/// Measures the time from the signal to the leader until the last controller of the group has started in another
/// process.
async fn hand_overs(file: &Path) -> Result<Vec<Duration>> {
    let (started, mut starts) = mpsc::channel(64);
    let replica = async || -> Result<(Running, Handle)> {
        let mut manager: Builder = Manager::builder(config(file).await?);
        for n in 0..CONTROLLERS {
            let started = started.clone();
            let work = Runnable::new(&format!("controller-{n}"), move |scope| {
                let started = started.clone();
                async move {
                    // The receiver outlives all senders.
                    let _ = started.send(Instant::now()).await;
                    scope.cancelled().await;
                }
            });
            manager = manager.leader("bench-group", work);
        }
        let manager = manager.build()?;
        let group = manager.group("bench-group").context("its group")?;
        let election = group.election().context("its election")?.clone();
        Ok((Running::start(manager), election))
    };
    let mut all_started = async || -> Result<Instant> {
        let mut last = Instant::now();
        for _ in 0..CONTROLLERS {
            let next = tokio::time::timeout(LIMIT, starts.recv()).await?;
            last = next.context("controllers have ended")?;
        }
        Ok(last)
    };
    let (mut leader, _) = replica().await?;
    all_started().await?;
    let mut times = Vec::new();
    for _ in 0..HAND_OVERS {
        let (standby, election) = replica().await?;
        follows(&election).await?;
        let asked = Instant::now();
        let stopping = tokio::spawn(leader.stop());
        times.push(all_started().await? - asked);
        stopping.await??;
        leader = standby;
    }
    leader.stop().await?;
    Ok(times)
}

/// Waits until a candidate has observed the leader.
async fn follows(election: &Handle) -> Result<()> {
    let mut status = election.watch();
    let follows = |status: &Status| matches!(status, Status::Follower { .. });
    tokio::time::timeout(LIMIT, status.wait_for(follows)).await??;
    Ok(())
}

/// Measures the time from the winning write until a standby with a full cache reconciles the first object. The record
/// of that write contains its time.
async fn warm(file: &Path) -> Result<Vec<Duration>> {
    let client = Client::try_from(config(file).await?)?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let leases: Api<Lease> = Api::namespaced(client, "default");
    let made = futures_util::stream::iter(0..OBJECTS).map(|n| {
        let maps = maps.clone();
        async move {
            let map = json!({ "metadata": { "name": format!("object-{n}") } });
            let map = serde_json::from_value(map)?;
            maps.create(&PostParams::default(), &map).await?;
            Ok::<_, anyhow::Error>(())
        }
    });
    let made: Vec<Result<()>> = made.buffer_unordered(64).collect().await;
    made.into_iter().collect::<Result<()>>()?;

    let replica = async || -> Result<Standby> {
        // Each has its own channel. Only the leader reconciles, so the first message belongs to its first term.
        let (reconciled, first) = mpsc::channel(1);
        let warm = Warm::new(
            "maps",
            maps.clone(),
            watcher::Config::default(),
            move |_| {
                let _ = reconciled.try_send(clock::now());
                async { Ok::<_, Cause>(Next::Change) }
            },
        );
        let reader = warm.reader();
        let manager = Manager::builder(config(file).await?).warm("bench-warm", warm);
        let manager = manager.build()?;
        let group = manager.group("bench-warm").context("its group")?;
        let running = Running::start(manager);
        let full = async {
            while reader.len() < OBJECTS {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        if tokio::time::timeout(LIMIT, full).await.is_err() {
            bail!("the cache has {} objects", reader.len());
        }
        Ok(Standby {
            running,
            group,
            first,
        })
    };
    let mut leader = replica().await?;
    leader.group.running().await;
    let mut times = Vec::new();
    for _ in 0..WARM_ROUNDS {
        let mut standby = replica().await?;
        follows(standby.group.election().context("its election")?).await?;
        let stopping = tokio::spawn(leader.running.stop());
        let at = tokio::time::timeout(LIMIT, standby.first.recv()).await?;
        let at = at.context("nobody reconciles")?;
        let spec = leases.get("bench-warm").await?.spec;
        let won = spec.and_then(|spec| spec.acquire_time);
        let won = won.context("a lease that is held")?.0.as_nanosecond();
        let won = Nanos(i64::try_from(won)?);
        if at < won {
            bail!("reconciled at {at:?}, before the lease was taken at {won:?}");
        }
        times.push(at.since(won));
        stopping.await??;
        leader = standby;
    }
    leader.running.stop().await?;
    Ok(times)
}

/// A replica with a full cache, and the instant of its first reconciliation.
struct Standby {
    running: Running,
    group: tenure_manager::GroupHandle,
    first: mpsc::Receiver<Nanos>,
}

/// Times until shards are evenly distributed.
struct Spread {
    more: Duration,
    fewer: Duration,
}

async fn shards(file: &Path) -> Result<Spread> {
    let replica = async |name: &str| -> Result<(Running, Shards)> {
        let work = Runnable::new("work", |scope| async move { scope.cancelled().await });
        let manager = Manager::builder(config(file).await?).identity(name);
        let manager = manager.shard("bench-shards", SHARDS, work).build()?;
        let shards = manager.shards("bench-shards").context("its shards")?;
        Ok((Running::start(manager), shards))
    };
    let (first, shards) = replica("a").await?;
    let mut all = vec![shards];
    even(&all).await?;
    let began = Instant::now();
    let mut others = Vec::new();
    for name in ["b", "c", "d", "e"] {
        let (running, shards) = replica(name).await?;
        others.push(running);
        all.push(shards);
    }
    even(&all).await?;
    let more = began.elapsed();
    let began = Instant::now();
    all.truncate(3);
    let leaving = others.split_off(2).into_iter().map(Running::stop);
    futures_util::future::try_join_all(leaving).await?;
    even(&all).await?;
    let fewer = began.elapsed();
    others.push(first);
    futures_util::future::try_join_all(others.into_iter().map(Running::stop)).await?;
    Ok(Spread { more, fewer })
}

/// Waits until every shard has an owner and the shards are evenly distributed.
async fn even(replicas: &[Shards]) -> Result<()> {
    let counts = || -> Vec<usize> { replicas.iter().map(|r| r.owned().len()).collect() };
    let even = async {
        loop {
            let counts = counts();
            let most = counts.iter().max().copied().unwrap_or_default();
            let least = counts.iter().min().copied().unwrap_or_default();
            if most - least <= 1 && counts.iter().sum::<usize>() == SHARDS as usize {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    if tokio::time::timeout(3 * LIMIT, even).await.is_err() {
        bail!("shards are not spread evenly: {:?}", counts());
    }
    Ok(())
}

/// Returns the memory of an idle program that leads ten controllers, each with cache, watch and queue.
async fn idle() -> Result<u64> {
    let server = Embedded::start()?;
    let file = server.kubeconfig();
    let client = Client::try_from(config(&file).await?)?;
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let map = serde_json::from_value(json!({ "metadata": { "name": "object" } }))?;
    maps.create(&PostParams::default(), &map).await?;
    let mut command = Command::new(tools::managed()?);
    command.arg(file).arg("idle");
    let process = Process::spawn("idle", command)?;
    let all_work = || {
        let said = process.text();
        (0..10).all(|n| said.contains(&format!("controller-{n} reconciles object")))
    };
    let began = Instant::now();
    while !all_work() {
        if began.elapsed() > LIMIT {
            bail!("not all of them work: {}", process.transcript());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Wait for some renewals.
    tokio::time::sleep(Duration::from_secs(3)).await;
    process.resident_bytes().context("it has ended")
}
