//! Load on an API server: durable writes of Leases, each client on its own connection and its own Lease.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "durations are what is measured here, and people watch"
)]

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::real::Cluster;
use crate::tools;

const SPAN: Duration = Duration::from_secs(8);

/// Both API servers under the same load.
///
/// # Errors
/// A server did not start or refused a request.
pub fn bench(real: bool) -> Result<String> {
    let mut reports = Vec::new();
    if real {
        eprintln!("kube-apiserver + etcd ...");
        let began = Instant::now();
        let cluster = Cluster::start()?;
        let ready = began.elapsed();
        let kubeconfig = cluster.kubeconfig();
        reports.push(run(
            "kube-apiserver + etcd",
            &kubeconfig,
            &cluster.pids(),
            ready,
        )?);
    }
    eprintln!("tenure server ...");
    let ours = Ours::start()?;
    reports.push(run(
        "tenure server",
        &ours.kubeconfig(),
        &[ours.pid()],
        ours.ready,
    )?);
    Ok(format!("### API servers\n\n{}", Table(&reports)))
}

/// `tenure server` as a process of its own, with the durable store.
#[derive(Debug)]
pub struct Ours {
    child: Child,
    folder: TempDir,
    /// From the start of the process to the first answer.
    pub ready: Duration,
}

impl Ours {
    /// Starts it on an empty folder.
    ///
    /// # Errors
    /// It is not built or does not answer.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let began = Instant::now();
        let child = Command::new(tools::tenure()?)
            .args(["server", "run", "--listen=127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .spawn()?;
        let mut ours = Self {
            child,
            folder,
            ready: Duration::ZERO,
        };
        let runtime = runtime()?;
        while began.elapsed() < Duration::from_secs(30) {
            if ours.kubeconfig().exists() && runtime.block_on(is_ready(&ours.kubeconfig())) {
                ours.ready = began.elapsed();
                return Ok(ours);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("tenure server is not ready after 30 s");
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The figures of one server.
#[derive(Clone, Debug)]
pub struct Report {
    name: &'static str,
    ready: Duration,
    idle: u64,
    one: Rate,
    many: Rate,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    p50: Duration,
    p99: Duration,
}

/// Measures a server whose processes are known.
///
/// # Errors
/// A request fails.
pub fn run(name: &'static str, kubeconfig: &Path, pids: &[u32], ready: Duration) -> Result<Report> {
    let runtime = runtime()?;
    let idle = pids.iter().map(|pid| resident(*pid)).sum::<Result<u64>>()?;
    let one = runtime.block_on(writes(kubeconfig, 1))?;
    let many = runtime.block_on(writes(kubeconfig, 32))?;
    Ok(Report {
        name,
        ready,
        idle,
        one,
        many,
    })
}

async fn writes(kubeconfig: &Path, clients: usize) -> Result<Rate> {
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..clients {
        let client = connect(kubeconfig).await?;
        tasks.spawn(renew(client, format!("load-{clients}-{index}")));
    }
    let mut latencies = Vec::new();
    while let Some(result) = tasks.join_next().await {
        latencies.extend(result??);
    }
    latencies.sort_unstable();
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 100];
    Ok(Rate {
        per_second: latencies.len() as f64 / SPAN.as_secs_f64(),
        p50: at(50),
        p99: at(99),
    })
}

/// Creates a Lease and replaces it as fast as it goes, as a leader would.
async fn renew(client: Client, name: String) -> Result<Vec<Duration>> {
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "holderIdentity": "load", "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:05.000006Z" },
    });
    let send = async |method: &str, path: &str, lease: &Value| -> Result<Value> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .body(serde_json::to_vec(lease)?)?;
        client
            .request(request)
            .await
            .with_context(|| format!("{method} {path}"))
    };
    lease = send("POST", path, &lease).await?;
    let path = format!("{path}/{name}");
    let (began, mut latencies) = (Instant::now(), Vec::new());
    while began.elapsed() < SPAN {
        let micros = latencies.len() % 1_000_000;
        lease["spec"]["renewTime"] = json!(format!("2026-01-02T03:04:05.{micros:06}Z"));
        let sent = Instant::now();
        lease = send("PUT", &path, &lease).await?;
        latencies.push(sent.elapsed());
    }
    Ok(latencies)
}

async fn is_ready(kubeconfig: &Path) -> bool {
    let Ok(client) = connect(kubeconfig).await else {
        return false;
    };
    let request = Request::get("/readyz").body(Vec::new());
    match request {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}

async fn connect(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}

/// A Markdown table with a column for each server.
pub struct Table<'a>(pub &'a [Report]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |title: &str, cell: &dyn Fn(&Report) -> String| {
            let cells: Vec<String> = self.0.iter().map(cell).collect();
            writeln!(f, "| {title} | {} |", cells.join(" | "))
        };
        let rate = |rate: Rate| {
            format!(
                "{:.0}/s, p50 {:.2?}, p99 {:.2?}",
                rate.per_second, rate.p50, rate.p99
            )
        };
        row("", &|report| report.name.to_owned())?;
        row("---", &|_| "---".to_owned())?;
        row("start to first answer", &|report| {
            format!("{:.0?}", report.ready)
        })?;
        row("memory idle", &|report| {
            format!("{:.0} MiB", report.idle as f64 / 1048576.0)
        })?;
        row("durable Lease PUT, TLS, 1 client", &|report| {
            rate(report.one)
        })?;
        row("durable Lease PUT, TLS, 32 clients", &|report| {
            rate(report.many)
        })
    }
}
