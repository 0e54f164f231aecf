//! Comparison of API servers: start, memory, durable writes of Leases, watches.
//!
//! Every client has its own connection and its own Lease. The load comes from the same machine; see `client` for its
//! low cost.
#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a benchmark measures durations and prints its progress"
)]

pub(in crate::bench) mod client;
mod fairness;
mod ours;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use http::Method;
use http_body_util::BodyExt as _;
use tenure_apiserver::TestServer;
use tokio::task::JoinSet;

use self::client::{LEASES, Lease, Server};
pub use self::ours::Ours;
use crate::process::resident_bytes;
use crate::real::Cluster;

/// Duration of a measurement of writes.
const SPAN: Duration = Duration::from_secs(8);
/// Number of starts of a server; the median is reported.
const STARTS: usize = 11;
/// Number of Leases in the store for a slow start.
const STORED: usize = 100_000;
/// Number of Leases in a busy server.
const LEASES_HELD: usize = 10_000;
const WATCHES: usize = 1_000;
/// Number of updates whose events are measured.
const EVENTS: usize = 2_000;

/// Measures both API servers under the same load, and then properties that only ours has.
///
/// # Errors
///
/// Fails if a server did not start or rejected a request.
pub fn bench(real: bool) -> Result<String> {
    let mut reports = Vec::new();
    if real {
        eprintln!("kube-apiserver + etcd ...");
        let began = Instant::now();
        let cluster = Cluster::start()?;
        let ready = began.elapsed();
        let kubeconfig = cluster.kubeconfig();
        let pids = cluster.pids();
        reports.push(run("kube-apiserver + etcd", &kubeconfig, &pids, ready)?);
    }
    let name = match crate::bench::shipped()?.1 {
        "image" => "tenure server of the image",
        _ => "tenure server",
    };
    eprintln!("{name} ...");
    let mut starts = Vec::new();
    for _ in 1..STARTS {
        starts.push(Ours::start()?.ready);
    }
    let ours = Ours::start()?;
    starts.push(ours.ready);
    let mut report = run(name, &ours.kubeconfig(), &[ours.pid()], median(starts))?;
    drop(ours);
    report.stored = Some(stored_start()?);
    report.controllers = Some(idle_with_controllers()?);
    report.in_process = Some(in_process()?);
    reports.push(report);
    eprintln!("with and without fair shares ...");
    let fairness = fairness::cost()?;
    let table = Table(&reports);
    Ok(format!("### API servers\n\n{table}\n{fairness}"))
}

/// The figures of one server.
#[derive(Clone, Debug)]
struct Report {
    name: &'static str,
    ready: Duration,
    stored: Option<Duration>,
    in_process: Option<Duration>,
    idle: u64,
    /// Memory when idle, with the built-in controllers.
    controllers: Option<u64>,
    busy: u64,
    one: Rate,
    many: Rate,
    event: Events,
}

/// Measurements with one writer and one watcher.
#[derive(Clone, Copy, Debug)]
struct Events {
    /// Time from the request to its response, which comes after the sync.
    answer: Delay,
    /// Time from the request to the event.
    event: Delay,
    /// Time from the response to the event; zero if the event is first.
    beyond: Delay,
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    delay: Delay,
}

#[derive(Clone, Copy, Debug)]
struct Delay {
    p50: Duration,
    p99: Duration,
}

/// Measures a server with known processes.
fn run(name: &'static str, kubeconfig: &Path, pids: &[u32], ready: Duration) -> Result<Report> {
    let runtime = runtime()?;
    let memory = || {
        pids.iter()
            .map(|pid| resident_bytes(*pid).context("/proc has no entry for the process"))
            .sum::<Result<u64>>()
    };
    let idle = memory()?;
    let server = runtime.block_on(Server::new(kubeconfig))?;
    let one = runtime.block_on(writes(&server, 1))?;
    let many = runtime.block_on(writes(&server, 32))?;
    let event = runtime.block_on(events(&server))?;
    let (watches, busy) = runtime.block_on(async {
        hold(&server).await?;
        let watches = watch(&server).await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        anyhow::Ok((watches, memory()?))
    })?;
    drop(watches);
    Ok(Report {
        name,
        ready,
        stored: None,
        in_process: None,
        idle,
        controllers: None,
        busy,
        one,
        many,
        event,
    })
}

/// Measures writes; each client renews its Lease as fast as possible.
async fn writes(server: &Server, clients: usize) -> Result<Rate> {
    let delays = renewals(server, "load", clients, SPAN).await?;
    Ok(Rate {
        per_second: delays.len() as f64 / SPAN.as_secs_f64(),
        delay: Delay::of(delays),
    })
}

/// Returns Lease PUTs per second of clients with a connection and a Lease each.
///
/// # Errors
///
/// Fails if the server rejected one.
pub(super) async fn lease_puts(
    kubeconfig: &Path,
    name: &str,
    clients: usize,
    span: Duration,
) -> Result<f64> {
    let server = Server::new(kubeconfig).await?;
    let delays = renewals(&server, name, clients, span).await?;
    Ok(delays.len() as f64 / span.as_secs_f64())
}

async fn renewals(
    server: &Server,
    name: &str,
    clients: usize,
    span: Duration,
) -> Result<Vec<Duration>> {
    let mut tasks = JoinSet::new();
    for index in 0..clients {
        let mut client = server.connect().await?;
        let mut lease = Lease::create(&mut client, format!("{name}-{clients}-{index}")).await?;
        tasks.spawn(async move {
            let (began, mut delays) = (Instant::now(), Vec::new());
            while began.elapsed() < span {
                let sent = Instant::now();
                lease.renew(&mut client).await?;
                delays.push(sent.elapsed());
            }
            anyhow::Ok(delays)
        });
    }
    let mut delays = Vec::new();
    while let Some(result) = tasks.join_next().await {
        delays.extend(result??);
    }
    Ok(delays)
}

/// Measures how long a watcher waits for the event of a write, and the writer for its response.
async fn events(server: &Server) -> Result<Events> {
    let mut writer = server.connect().await?;
    let mut lease = Lease::create(&mut writer, "watched".to_owned()).await?;
    let path = format!(
        "{LEASES}?watch=true&fieldSelector=metadata.name%3Dwatched&resourceVersion={}",
        lease.version()
    );
    let mut watcher = server.connect().await?;
    let mut stream = watcher.open(Method::GET, &path, String::new()).await?;
    let (sender, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        let _watcher = watcher;
        while let Some(Ok(frame)) = stream.frame().await {
            let at = Instant::now();
            let events = frame.into_data().unwrap_or_default();
            for _ in events.iter().filter(|byte| **byte == b'\n') {
                let _ = sender.send(at);
            }
        }
    });
    let (mut answers, mut events, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..EVENTS {
        let sent = Instant::now();
        lease.renew(&mut writer).await?;
        let answered = Instant::now();
        let at = seen.recv().await.context("the watch ended")?;
        answers.push(answered - sent);
        events.push(at.saturating_duration_since(sent));
        beyond.push(at.saturating_duration_since(answered));
    }
    reader.abort();
    Ok(Events {
        answer: Delay::of(answers),
        event: Delay::of(events),
        beyond: Delay::of(beyond),
    })
}

/// Returns the resident memory of `tenure server` with default flags, after its controllers have settled.
fn idle_with_controllers() -> Result<u64> {
    let ours = Ours::start_whole()?;
    std::thread::sleep(Duration::from_secs(5));
    resident_bytes(ours.pid()).context("/proc has no entry for the process")
}

async fn hold(server: &Server) -> Result<()> {
    let mut tasks = JoinSet::new();
    for part in 0..32 {
        let mut client = server.connect().await?;
        tasks.spawn(async move {
            for index in (part..LEASES_HELD).step_by(32) {
                Lease::create(&mut client, format!("held-{index}")).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

/// Opens watches of one object each, on a connection each, like that many followers.
async fn watch(server: &Server) -> Result<Vec<(client::Client, hyper::body::Incoming)>> {
    let mut watches = Vec::with_capacity(WATCHES);
    for index in 0..WATCHES {
        let mut client = server.connect().await?;
        let path = format!("{LEASES}?watch=true&fieldSelector=metadata.name%3Dheld-{index}");
        let mut stream = client.open(Method::GET, &path, String::new()).await?;
        // The first event is the current object. From here on the watch is complete.
        stream.frame().await.context("the watch ended")??;
        watches.push((client, stream));
    }
    Ok(watches)
}

/// Returns the median time of a start with a filled store.
fn stored_start() -> Result<Duration> {
    let mut folder = Ours::start()?.stop()?;
    runtime()?.block_on(ours::fill(folder.path(), STORED))?;
    let mut starts = Vec::new();
    for _ in 0..5 {
        let ours = Ours::start_on(folder)?;
        starts.push(ours.ready);
        folder = ours.stop()?;
    }
    Ok(median(starts))
}

/// Returns the time of a start inside a test process.
fn in_process() -> Result<Duration> {
    let runtime = runtime()?;
    let mut starts = Vec::new();
    for _ in 0..STARTS {
        let began = Instant::now();
        let server = runtime.block_on(TestServer::start())?;
        starts.push(began.elapsed());
        drop(server);
    }
    Ok(median(starts))
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

impl Delay {
    fn of(mut delays: Vec<Duration>) -> Self {
        delays.sort_unstable();
        let at = |share: usize| delays[(delays.len() - 1) * share / 100];
        Self {
            p50: at(50),
            p99: at(99),
        }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.2?}, p99 {:.2?}", self.p50, self.p99)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.0}/s, {}", self.per_second, self.delay)
    }
}

/// A Markdown table with a column for each server.
struct Table<'a>(&'a [Report]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |title: &str, cell: &dyn Fn(&Report) -> String| {
            let cells: Vec<String> = self.0.iter().map(cell).collect();
            writeln!(f, "| {title} | {} |", cells.join(" | "))
        };
        let span = |span: Option<Duration>| span.map_or("-".to_owned(), |s| format!("{s:.1?}"));
        let memory = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
        row("", &|report| report.name.to_owned())?;
        row("---", &|_| "---".to_owned())?;
        row("durable Lease PUT, TLS, 1 client", &|report| {
            report.one.to_string()
        })?;
        row("durable Lease PUT, TLS, 32 clients", &|report| {
            report.many.to_string()
        })?;
        row("cold start to readyz, empty", &|report| {
            span(Some(report.ready))
        })?;
        row("cold start to readyz, 100k leases", &|report| {
            span(report.stored)
        })?;
        row("resident memory, idle", &|report| memory(report.idle))?;
        row(
            "resident memory, idle, with the built-in controllers",
            &|report| report.controllers.map_or("-".to_owned(), memory),
        )?;
        row(
            "resident memory, 10k leases and 1k single-object watches",
            &|report| memory(report.busy),
        )?;
        row(
            "from the response of a write to its watch event",
            &|report| report.event.beyond.to_string(),
        )?;
        row(
            "from the request of a write to its watch event",
            &|report| report.event.event.to_string(),
        )?;
        row(
            "from the request of a write to its response, with that watch open",
            &|report| report.event.answer.to_string(),
        )?;
        row("TestServer start, in process", &|report| {
            span(report.in_process)
        })
    }
}
