//! The provisioner on the embedded server with the scripted driver: rate of volumes, resource usage, take-over time.
//! Compared with csi-provisioner if `CSI_PROVISIONER` names its binary, and on the real control plane if that is built.

#![allow(clippy::print_stderr, reason = "a benchmark prints its progress")]
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures time, and no election depends on it"
)]

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;
use tenure_apiserver::server::{Fault, Faults, Server};
use tenure_csi::mock::{Method, MockConfig, MockDriver};

use crate::process::Process;
use crate::storage::{Api, Rig, handed_over};
use crate::tools;

pub(super) const DRIVER: &str = "mock.csi.example";
pub(super) const CLAIMS: usize = 1_000;
const MANY: usize = 10_000;
pub(super) const AT_ONCE: usize = 32;
const TAKE_OVERS: usize = 10;
pub(super) const LIMIT: Duration = Duration::from_secs(600);

/// Measures everything. Uses the output of `cargo xtask image tenure-provisioner` if there is one, otherwise this
/// build.
///
/// # Errors
///
/// Fails if something did not start, or did not happen in time.
pub fn bench(real: bool) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let ours = Program::ours()?;
    let mut programs = vec![ours.clone()];
    programs.extend(std::env::var_os("CSI_PROVISIONER").map(Program::upstream));
    let mut table = format!(
        "{}\n\n| {CLAIMS} claims created and deleted | claims/s until all have a PersistentVolume | from claim to PersistentVolume, p50 and p99 | API requests per claim | CPU time | peak memory |\n|---|---|---|---|---|---|\n",
        super::machine()
    );
    for program in &programs {
        eprintln!("{CLAIMS} claims, {} ...", program.name);
        let cost = runtime.block_on(cost(program, CLAIMS))?;
        table.push_str(&format!(
            "| {} | {:.0} | {:.0} ms, {:.0} ms | {:.1} | {:.2} s | {:.1} MB |\n",
            program.name,
            cost.rate,
            cost.median.as_secs_f64() * 1e3,
            cost.slow.as_secs_f64() * 1e3,
            cost.requests,
            cost.cpu.as_secs_f64(),
            cost.peak as f64 / 1e6
        ));
    }
    eprintln!("{MANY} claims ...");
    let many = runtime.block_on(cost(&ours, MANY))?;
    eprintln!("take-overs ...");
    let mut times = runtime.block_on(take_overs(&ours))?;
    times.sort_unstable();
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    table.push_str(&format!(
        "\n| `tenure provision` | measured | goal |\n|---|---|---|\n\
         | claims/s until all have a PersistentVolume, {MANY} claims | {:.0} | at least 500 |\n\
         | peak memory, {MANY} claims created and deleted | {:.1} MB | at most 60 MB |\n\
         | from SIGTERM of the leader to the first CreateVolume of a warm standby, median of {TAKE_OVERS} | {:.0} ms | |\n\
         | the same, longest | {:.0} ms | at most 500 ms |\n",
        many.rate,
        many.peak as f64 / 1e6,
        ms(times.get(times.len() / 2)),
        ms(times.last()),
    ));
    if real {
        table.push_str(&super::provisioner_real::bench(&runtime, &programs)?);
    }
    Ok(table)
}

struct Cost {
    rate: f64,
    median: Duration,
    slow: Duration,
    requests: f64,
    cpu: Duration,
    peak: u64,
}

/// A provisioner program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) name: String,
    path: PathBuf,
    arguments: &'static [&'static str],
}

impl Program {
    fn ours() -> Result<Self> {
        let here = std::env::current_exe()?;
        let builds = here.ancestors().nth(2).context("no folder of builds")?;
        let image = builds.join("image/tenure-provisioner");
        let (name, path) = match image.is_file() {
            true => ("`tenure provision` of the image", image),
            false => ("`tenure provision`", tools::tenure()?),
        };
        Ok(Self {
            name: name.to_owned(),
            path,
            arguments: &["provision"],
        })
    }

    fn upstream(path: OsString) -> Self {
        Self {
            name: "csi-provisioner".to_owned(),
            path: path.into(),
            arguments: &[],
        }
    }

    pub(super) fn start(
        &self,
        kubeconfig: &Path,
        socket: &Path,
        flags: &[&str],
    ) -> Result<Process> {
        let mut command = Command::new(&self.path);
        command
            .args(self.arguments)
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--csi-address")
            .arg(socket)
            .args(["--kube-api-qps=100000", "--kube-api-burst=100000"])
            .args(flags)
            .env_remove("KUBECONFIG");
        Ok(Process::spawn("provisioner", command)?)
    }
}

/// Returns when each volume object was first observed.
pub(super) async fn seen_volumes(
    kubeconfig: &Path,
) -> Result<Arc<Mutex<HashMap<String, Instant>>>> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let volumes: kube::Api<PartialObjectMeta<PersistentVolume>> =
        kube::Api::all(Client::try_from(config)?);
    let seen: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let noted = seen.clone();
    tokio::spawn(async move {
        let config = watcher::Config::default();
        let mut stream = std::pin::pin!(watcher(volumes, config).applied_objects());
        while let Some(object) = stream.next().await {
            if let Ok(object) = object {
                let now = Instant::now();
                let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
                noted.entry(object.name_any()).or_insert(now);
            }
        }
    });
    Ok(seen)
}

pub(super) async fn class(api: &Api) -> Result<()> {
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER });
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class)
        .await?;
    Ok(())
}

/// Creates a claim in the form that the binder produces. Returns the name of its volume.
async fn claim(api: &Api, name: &str) -> Result<String> {
    let path = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = api.create(path, &handed_over(name, "fast", DRIVER)).await?;
    let uid = claim["metadata"]["uid"].as_str().context("a uid")?;
    Ok(format!("pvc-{uid}"))
}

/// Creates claims, waits for their volumes, and deletes the claims. Releases the volumes as a binder would.
async fn cost(program: &Program, claims: usize) -> Result<Cost> {
    let faults = Arc::new(Faults::default());
    let rig = Rig::start_with(Server::builder().faults(faults.clone())).await?;
    let driver = rig.driver("s", MockConfig::default())?;
    class(&rig.api).await?;
    let seen = seen_volumes(&rig.server.kubeconfig()).await?;
    let process = program.start(&rig.server.kubeconfig(), &rig.socket("s"), &[])?;
    wait(|| {
        !driver
            .calls_of(Method::ControllerGetCapabilities)
            .is_empty()
    })
    .await?;
    // Wait for the informers too.
    tokio::time::sleep(Duration::from_secs(2)).await;

    // A fault without effect counts requests.
    let asked = faults.add(Fault::latency(Duration::ZERO));
    let began = Instant::now();
    let made = futures_util::stream::iter(0..claims).map(|number| {
        let api = rig.api.clone();
        async move {
            let name = claim(&api, &format!("claim-{number}")).await?;
            Ok((name, Instant::now()))
        }
    });
    let made: Vec<Result<(String, Instant)>> = made.buffer_unordered(AT_ONCE).collect().await;
    let made = made.into_iter().collect::<Result<Vec<_>>>()?;
    let lock = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    wait(|| lock().len() == claims).await?;
    let seen = std::mem::take(&mut *lock());
    let last = seen.values().max().copied().unwrap_or(began);
    let mut times: Vec<Duration> = made
        .iter()
        .filter_map(|(name, at)| Some(seen.get(name)?.saturating_duration_since(*at)))
        .collect();
    times.sort_unstable();

    let released = futures_util::stream::iter(made).map(|(volume, _)| {
        let api = rig.api.clone();
        async move {
            let path = format!("/api/v1/persistentvolumes/{volume}/status");
            api.merge(&path, &json!({ "status": { "phase": "Released" } }))
                .await
        }
    });
    let released: Vec<Result<()>> = released.buffer_unordered(AT_ONCE).collect().await;
    released.into_iter().collect::<Result<()>>()?;
    wait(|| driver.volumes().is_empty()).await?;
    // Objects and Events are deleted after the storage.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let at = |percent: usize| times.get(times.len() * percent / 100).copied();
    Ok(Cost {
        rate: claims as f64 / (last - began).as_secs_f64(),
        median: at(50).unwrap_or_default(),
        slow: at(99).unwrap_or_default(),
        // Two of these requests are ours.
        requests: f64::from(asked.hits()) / claims as f64 - 2.0,
        cpu: process.cpu_time().context("it has ended")?,
        peak: peak_bytes(process.pid()).context("it has ended")?,
    })
}

/// Measures the time from the signal to the leader until its successor calls the driver for a volume.
async fn take_overs(program: &Program) -> Result<Vec<Duration>> {
    let rig = Rig::start().await?;
    let driver = rig.driver("s", MockConfig::default())?;
    class(&rig.api).await?;
    let flags = [
        "--leader-election",
        "--leader-election-namespace=default",
        "--warm-standby",
    ];
    let replica = || program.start(&rig.server.kubeconfig(), &rig.socket("s"), &flags);
    let mut leader = replica()?;
    claim(&rig.api, "first").await?;
    wait(|| called_by(&driver, leader.pid())).await?;
    let mut times = Vec::new();
    for round in 0..TAKE_OVERS {
        let standby = replica()?;
        // By then its cache is warm, and it has observed the leader.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let told = Instant::now();
        leader.terminate();
        // A leader that stops starts nothing new, so this call comes from the successor.
        let api = rig.api.clone();
        let name = format!("claim-{round}");
        let asked = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            claim(&api, &name).await
        });
        wait(|| called_by(&driver, standby.pid())).await?;
        times.push(told.elapsed());
        asked.await??;
        leader.wait(LIMIT)?;
        leader = standby;
    }
    Ok(times)
}

fn called_by(driver: &MockDriver, pid: u32) -> bool {
    let pid = i32::try_from(pid).ok();
    let calls = driver.calls_of(Method::CreateVolume);
    calls.iter().any(|call| call.pid == pid)
}

pub(super) async fn wait(mut done: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > LIMIT {
            bail!("nothing for {LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// Returns the peak memory of a process, if /proc shows it.
pub(super) fn peak_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
