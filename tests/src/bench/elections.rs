//! What candidates cost and how fast they hand over, measured from outside, the same way for everyone.

#![allow(clippy::print_stderr, reason = "people watch")]

use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::bench::apiserver::Ours;
use crate::candidate::{self, Election, Fleet};
use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::process::{Process, Silence};
use crate::real::{Cluster, Peer, available};

const HAND_OVERS: usize = 20;
const MANY: usize = 2000;
const LIMIT: Duration = Duration::from_secs(120);

/// Candidates of both makes, on the real kube-apiserver if it can be had, else on ours.
///
/// # Errors
/// A server or a candidate did not start.
pub fn bench(real: bool) -> anyhow::Result<String> {
    let peers = available(&[Peer::Elector]);
    let cluster = if real { Some(Cluster::start()?) } else { None };
    let ours = Ours::start()?;
    let (place, kubeconfig) = match &cluster {
        Some(cluster) => ("kube-apiserver + etcd", cluster.kubeconfig()),
        None => ("tenure server", ours.kubeconfig()),
    };
    let mut reports = Vec::new();
    match peers {
        Ok(()) => {
            eprintln!("client-go on {place} ...");
            reports.push(measure(&kubeconfig, "client-go", Election::client_go, &[])?);
        }
        Err(skip) => eprintln!("without client-go: {skip}"),
    }
    eprintln!("tenure on {place} ...");
    reports.push(measure(
        &kubeconfig,
        "tenure",
        Election::library,
        &[LINGER],
    )?);
    Ok(format!("### Elections on {place}\n\n{}", Table(&reports)))
}

/// A flag of our candidate: it stays when its elections have ended.
const LINGER: &str = "--linger";

/// How candidates of one make are started.
pub type Start = fn(&Election, &str, &[&str]) -> Result<Process, candidate::Error>;

/// The figures of one make of candidate with 15, 10 and 2 seconds.
#[derive(Clone, Debug)]
pub struct Report {
    /// The make.
    pub make: &'static str,
    /// From SIGTERM of the leader to `acquired` of the next, with three replicas.
    pub hand_overs: Vec<Duration>,
    /// Requests per second of a follower, if it counts them.
    pub follower_requests: Option<f64>,
    /// Resident memory of a process with one election, in bytes.
    pub one_resident: u64,
    /// How many of two thousand elections one process leads after two minutes: renewing them all takes a
    /// thousand writes a second, which a busy server may not give.
    pub many_led: usize,
    /// Resident memory of that process, in bytes.
    pub many_resident: u64,
    /// The share of one core that it uses.
    pub many_cpu: f64,
    /// What is left in that process when all its elections have ended; tenure only.
    pub left: Option<Left>,
}

/// What ended elections leave behind.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Tasks alive.
    pub tasks: u64,
    /// Resident memory, in bytes.
    pub resident: u64,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A candidate could not be started.
    #[error(transparent)]
    Candidate(#[from] candidate::Error),
    /// A candidate did not do what was waited for.
    #[error(transparent)]
    Silence(#[from] Silence),
    /// The machine does not tell what a process uses.
    #[error("/proc says nothing about process {0}")]
    Proc(u32),
}

/// Measures one make of candidate.
///
/// # Errors
/// A candidate does not start or does not lead.
pub fn measure(
    kubeconfig: &Path,
    make: &'static str,
    start: Start,
    extra: &[&str],
) -> Result<Report, Error> {
    let name = |what: &str| format!("measure-{what}-{}", clock::now().0);
    let election = Election::new(kubeconfig.to_owned(), name("one"));
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add(start(&election, id, &[])?);
    }
    let (mut leader, _) = fleet.next_leader(Nanos(0), None, LIMIT)?;
    sleep(Duration::from_secs(10));
    let one_resident = resident(fleet.member(&leader))?;

    let mut hand_overs = Vec::new();
    for round in 0..HAND_OVERS {
        let since = clock::now();
        fleet.member(&leader).terminate();
        let (next, at) = fleet.next_leader(since, Some(&leader), LIMIT)?;
        hand_overs.push(at.since(since));
        fleet.add(start(&election, &format!("r{round}"), &[])?);
        // Followers poll at random times; the pause lets the new one spread like the others.
        sleep(Duration::from_secs(3));
        leader = next;
    }

    let mut follower = start(&election, "follower", &[])?;
    sleep(Duration::from_secs(60));
    follower.terminate();
    follower.wait(LIMIT)?;
    let counted = follower
        .events()
        .into_iter()
        .find(|event| event.event == Kind::Stats);
    let follower_requests = counted.and_then(|stats| {
        let number = |name: &str| stats.rest.get(name).and_then(serde_json::Value::as_f64);
        Some((number("reads")? + number("writes")?) / number("seconds")?)
    });

    let many = Election {
        name: name("many"),
        ..election
    };
    let count = MANY.to_string();
    let mut many = start(&many, "many", &[&["--elections", &count], extra].concat())?;
    let leading = || {
        let events = many.events();
        events
            .iter()
            .filter(|event| event.event == Kind::Acquired)
            .count()
    };
    clock::poll(LIMIT, || (leading() >= MANY).then_some(()));
    sleep(Duration::from_secs(10));
    let (began, before) = (clock::now(), cpu(&many)?);
    sleep(Duration::from_secs(20));
    let many_cpu = (cpu(&many)? - before).as_secs_f64() / clock::now().since(began).as_secs_f64();
    let (many_led, many_resident) = (leading().min(MANY), resident(&many)?);
    many.terminate();
    let left = if extra.contains(&LINGER) {
        let stats = many.wait_for(Kind::Stats, Nanos(0), LIMIT)?;
        let tasks = stats.rest.get("tasks").and_then(serde_json::Value::as_u64);
        let left = Left {
            tasks: tasks.unwrap_or_default(),
            resident: resident(&many)?,
        };
        many.terminate();
        Some(left)
    } else {
        None
    };
    many.wait(LIMIT)?;
    Ok(Report {
        make,
        hand_overs,
        follower_requests,
        one_resident,
        many_led,
        many_resident,
        many_cpu,
        left,
    })
}

fn resident(process: &Process) -> Result<u64, Error> {
    process.resident_bytes().ok_or(Error::Proc(process.pid()))
}

fn cpu(process: &Process) -> Result<Duration, Error> {
    process.cpu_time().ok_or(Error::Proc(process.pid()))
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// A Markdown table with a column for each make.
pub struct Table<'a>(pub &'a [Report]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |title: &str, cell: &dyn Fn(&Report) -> String| {
            let cells: Vec<String> = self.0.iter().map(cell).collect();
            writeln!(f, "| {title} | {} |", cells.join(" | "))
        };
        row("15/10/2", &|report| report.make.to_owned())?;
        row("---", &|_| "---".to_owned())?;
        row(
            &format!("hand-over after SIGTERM, 3 replicas, {HAND_OVERS} times"),
            &|report| {
                let count = u32::try_from(report.hand_overs.len())
                    .unwrap_or(u32::MAX)
                    .max(1);
                let mean = report.hand_overs.iter().sum::<Duration>() / count;
                let max = report.hand_overs.iter().max().copied().unwrap_or_default();
                format!("mean {mean:.2?}, max {max:.2?}")
            },
        )?;
        row("requests of a follower", &|report| {
            let requests = report.follower_requests;
            requests.map_or_else(
                || "not counted".to_owned(),
                |per_second| format!("{per_second:.2}/s"),
            )
        })?;
        row("memory of one elector process", &|report| {
            megabytes(report.one_resident)
        })?;
        row(
            &format!("of {MANY} elections, one process leads"),
            &|report| report.many_led.to_string(),
        )?;
        row(
            &format!("memory of {MANY} elections in one process"),
            &|report| megabytes(report.many_resident),
        )?;
        row(
            &format!("CPU of {MANY} elections in one process"),
            &|report| format!("{:.0} % of a core", report.many_cpu * 100.0),
        )?;
        row("what is left when they have ended", &|report| {
            report.left.map_or_else(
                || "not measured".to_owned(),
                |left| format!("{} tasks, {}", left.tasks, megabytes(left.resident)),
            )
        })
    }
}
