//! The provisioner on the embedded server with the scripted driver: how fast claims become volumes, what that
//! costs, how fast a replica takes over. Next to csi-provisioner, if `CSI_PROVISIONER` names its binary.

#![allow(clippy::print_stderr, reason = "people watch")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures time, and decides no election by it"
)]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::StreamExt as _;
use serde_json::json;
use tenure_csi::mock::{Method, MockConfig, MockDriver};

use crate::process::Process;
use crate::storage::{Api, Rig};
use crate::tools;

const DRIVER: &str = "mock.csi.example";
const CLAIMS: usize = 1_000;
const MANY: usize = 10_000;
const AT_ONCE: usize = 32;
const TAKE_OVERS: usize = 10;
const LIMIT: Duration = Duration::from_secs(600);

/// All figures.
///
/// # Errors
/// Something did not start, or did not happen in time.
pub fn bench(_real: bool) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let upstream = std::env::var_os("CSI_PROVISIONER").map(PathBuf::from);
    let mut table = format!(
        "{}\n\n| {CLAIMS} claims created and deleted | claims/s to a volume object | CPU | peak memory |\n|---|---|---|---|\n",
        super::machine()
    );
    let makes = [("tenure provision", None), ("csi-provisioner", upstream)];
    for (name, binary) in makes {
        if name == "csi-provisioner" && binary.is_none() {
            continue;
        }
        eprintln!("{CLAIMS} claims, {name} ...");
        let cost = runtime.block_on(cost(binary, CLAIMS))?;
        table.push_str(&format!(
            "| {name} | {:.0} | {:.2} s | {:.1} MB |\n",
            cost.rate,
            cost.cpu.as_secs_f64(),
            cost.peak as f64 / 1e6
        ));
    }
    eprintln!("{MANY} claims ...");
    let many = runtime.block_on(cost(None, MANY))?;
    eprintln!("take-overs ...");
    let mut times = runtime.block_on(take_overs())?;
    times.sort_unstable();
    let ms = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    table.push_str(&format!(
        "\n| `tenure provision` | measured | wanted |\n|---|---|---|\n\
         | claims/s to a volume object | {:.0} | at least 500 |\n\
         | peak memory, {MANY} claims created and deleted | {:.1} MB | at most 60 MB |\n\
         | SIGTERM of the leader to the first CreateVolume of a warm replica, median of {TAKE_OVERS} | {:.0} ms | |\n\
         | the same, longest | {:.0} ms | at most 500 ms |\n",
        many.rate,
        many.peak as f64 / 1e6,
        ms(times.get(times.len() / 2)),
        ms(times.last()),
    ));
    Ok(table)
}

struct Cost {
    rate: f64,
    cpu: Duration,
    peak: u64,
}

fn command(rig: &Rig, binary: Option<PathBuf>, flags: &[&str]) -> Result<Command> {
    let mut command = match binary {
        Some(binary) => Command::new(binary),
        None => {
            let mut command = Command::new(tools::tenure()?);
            command.arg("provision");
            command
        }
    };
    command
        .arg("--kubeconfig")
        .arg(rig.server.kubeconfig())
        .arg("--csi-address")
        .arg(rig.socket("s"))
        .args(["--kube-api-qps=100000", "--kube-api-burst=100000"])
        .args(flags)
        .env_remove("KUBECONFIG");
    Ok(command)
}

async fn class(api: &Api) -> Result<()> {
    let class = json!({ "metadata": { "name": "fast" }, "provisioner": DRIVER });
    api.create("/apis/storage.k8s.io/v1/storageclasses", &class)
        .await?;
    Ok(())
}

/// A claim as the binder hands it over; the name of its volume.
async fn claim(api: &Api, name: &str) -> Result<String> {
    let claim = json!({
        "metadata": {
            "name": name,
            "annotations": {
                "volume.kubernetes.io/storage-provisioner": DRIVER,
                "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
            },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "fast",
        },
    });
    let path = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = api.create(path, &claim).await?;
    let uid = claim["metadata"]["uid"].as_str().context("a uid")?;
    Ok(format!("pvc-{uid}"))
}

/// Claims are made, get their volumes, and go again; their volumes are released as a binder does it.
async fn cost(binary: Option<PathBuf>, claims: usize) -> Result<Cost> {
    let rig = Rig::start().await?;
    let driver = rig.driver("s", MockConfig::default())?;
    class(&rig.api).await?;
    let process = Process::spawn("provisioner", command(&rig, binary, &[])?)?;
    wait(|| {
        !driver
            .calls_of(Method::ControllerGetCapabilities)
            .is_empty()
    })
    .await?;
    // The informers too.
    tokio::time::sleep(Duration::from_secs(2)).await;

    let began = Instant::now();
    let made = futures_util::stream::iter(0..claims).map(|number| {
        let api = rig.api.clone();
        async move { claim(&api, &format!("claim-{number}")).await }
    });
    let made: Vec<Result<String>> = made.buffer_unordered(AT_ONCE).collect().await;
    let volumes = made.into_iter().collect::<Result<Vec<_>>>()?;
    wait(|| driver.volumes().len() == claims).await?;
    let mut last = Instant::now();
    for volume in &volumes {
        let path = format!("/api/v1/persistentvolumes/{volume}");
        while rig.api.get(&path).await?.is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            last = Instant::now();
        }
    }
    let took = last - began;

    let released = futures_util::stream::iter(volumes).map(|volume| {
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
    // Objects and events go after the storage.
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(Cost {
        rate: claims as f64 / took.as_secs_f64(),
        cpu: process.cpu_time().context("it has ended")?,
        peak: peak_bytes(process.pid()).context("it has ended")?,
    })
}

/// From the signal to the leader until its successor asks the driver for a volume.
async fn take_overs() -> Result<Vec<Duration>> {
    let rig = Rig::start().await?;
    let driver = rig.driver("s", MockConfig::default())?;
    class(&rig.api).await?;
    let flags = [
        "--leader-election",
        "--leader-election-namespace=default",
        "--warm-standby",
    ];
    let replica =
        || -> Result<Process> { Ok(Process::spawn("replica", command(&rig, None, &flags)?)?) };
    let mut leader = replica()?;
    claim(&rig.api, "first").await?;
    wait(|| called_by(&driver, leader.pid())).await?;
    let mut times = Vec::new();
    for round in 0..TAKE_OVERS {
        let standby = replica()?;
        // Its cache is warm by then, and it knows who leads.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let told = Instant::now();
        leader.terminate();
        // A leader that stops begins nothing new, so this one is the successor's.
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

async fn wait(mut done: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !done() {
        if began.elapsed() > LIMIT {
            bail!("nothing for {LIMIT:?}");
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// The most memory that a process ever had, where /proc tells.
fn peak_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
