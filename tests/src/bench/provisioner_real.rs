//! The provisioner on kube-apiserver and etcd, with the binder of kube-controller-manager. Measures its share of a
//! chain of components whose speed the others limit.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a benchmark measures durations and prints its progress"
)]

use std::process::Command;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tenure_csi::mock::{MockConfig, MockDriver};
use tokio::runtime::Runtime;

use super::provisioner::{AT_ONCE, CLAIMS, LIMIT, Program, class, peak_bytes, seen_volumes, wait};
use crate::process::Process;
use crate::real::{Cluster, Peer, available, build};
use crate::storage::{Api, claim};

const OBJECTS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

/// Returns a table, or the reason why there is none.
pub(super) fn bench(runtime: &Runtime, programs: &[Program]) -> Result<String> {
    let peers = [Peer::Etcd, Peer::KubeApiserver, Peer::KubeControllerManager];
    if let Err(missing) = available(&peers) {
        eprintln!("without the real control plane: {missing}");
        return Ok(String::new());
    }
    let mut table = format!(
        "\n| {CLAIMS} claims created, bound and deleted on kube-apiserver with kube-controller-manager | claims/s until all have a PersistentVolume | CPU time | peak memory |\n|---|---|---|---|\n"
    );
    for program in programs {
        eprintln!(
            "{CLAIMS} claims on the real control plane, {} ...",
            program.name
        );
        let (rate, cpu, peak) = cost(runtime, program)?;
        table.push_str(&format!(
            "| {} | {rate:.0} | {:.2} s | {:.1} MB |\n",
            program.name,
            cpu.as_secs_f64(),
            peak as f64 / 1e6
        ));
    }
    table.push_str(
        "| csi-provisioner 6.3, measured on another machine with the hostpath driver | 28 | 8.8 s | 94 MB |\n",
    );
    Ok(table)
}

fn cost(runtime: &Runtime, program: &Program) -> Result<(f64, Duration, u64)> {
    let cluster = Cluster::start()?;
    let file = cluster.kubeconfig();
    let mut command = Command::new(build(Peer::KubeControllerManager)?);
    command
        .arg(format!("--kubeconfig={}", file.display()))
        .args(["--secure-port=0", "--leader-elect=false"])
        .args(["--kube-api-qps=100000", "--kube-api-burst=100000"])
        .arg(
            "--controllers=persistentvolume-binder-controller,\
             persistentvolumeclaim-protection-controller,persistentvolume-protection-controller",
        );
    let _manager = Process::spawn(Peer::KubeControllerManager.name(), command)?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("s");
    runtime.block_on(async {
        let driver = MockDriver::start(MockConfig::default(), &socket)?;
        let api = Api::open(&file).await?;
        class(&api).await?;
        let seen = seen_volumes(&file).await?;
        let count = || seen.lock().unwrap_or_else(PoisonError::into_inner).len();
        let process = program.start(&file, &socket, &[])?;
        // All programs are running before the measurement: one claim has been processed completely.
        create(&api, "warm").await?;
        wait(|| count() == 1).await?;

        let began = Instant::now();
        let names: Vec<String> = (0..CLAIMS)
            .map(|number| format!("claim-{number}"))
            .collect();
        let made = futures_util::stream::iter(&names).map(|name| create(&api, name));
        made.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        wait(|| count() == CLAIMS + 1).await?;
        let took = began.elapsed();
        for name in &names {
            let path = format!("{OBJECTS}/{name}");
            until_phase(&api, &path).await?;
        }
        let gone = futures_util::stream::iter(names).map(|name| {
            let api = &api;
            async move { api.delete(&format!("{OBJECTS}/{name}")).await }
        });
        gone.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        wait(|| driver.volumes().len() == 1).await?;
        // Objects are deleted after the storage.
        tokio::time::sleep(Duration::from_secs(3)).await;
        Ok((
            CLAIMS as f64 / took.as_secs_f64(),
            process.cpu_time().context("it has ended")?,
            peak_bytes(process.pid()).context("it has ended")?,
        ))
    })
}

async fn until_phase(api: &Api, path: &str) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        let claim = api.get(path).await?.context("the claim is gone")?;
        if claim["status"]["phase"] == "Bound" {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bail!("{path} is not bound after {LIMIT:?}")
}

async fn create(api: &Api, name: &str) -> Result<()> {
    api.create(OBJECTS, &claim(name, "fast")).await.map(drop)
}
