//! Cost of candidates and the time of their hand-overs, measured from outside and in the same way for all.

#![allow(clippy::print_stderr, reason = "a benchmark prints its progress")]

use std::path::{Path, PathBuf};
use std::thread::{scope, sleep};
use std::time::Duration;

use serde_json::Value;

use super::elections_table::{Column, Figures, Left};
use super::{elections_table, svg};
use crate::bench::apiserver::Ours;
use crate::candidate::{self, Election, Fleet};
use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::process::{Process, Silence};
use crate::real::{Cluster, Peer, available};
use crate::wire::{Wire, lease_path};

const HAND_OVERS: usize = 20;
const KILLS: usize = 20;
const MANY: usize = 2000;
const LIMIT: Duration = Duration::from_secs(120);

/// A kind of candidate: its name and how it is started.
#[derive(Clone, Copy)]
struct Make {
    name: &'static str,
    start: Start,
    /// Flags that make it count its requests.
    count: &'static [&'static str],
    /// Flag that makes it stay after its elections have ended, if it has one.
    linger: Option<&'static str>,
    /// How a process with one election is usually started, if that was built. Its memory is measured in that form.
    lean: Option<(Start, &'static str)>,
    /// Whether one process can run many elections.
    many: bool,
    /// How a process with many elections is started in its shipped form, if that was built.
    shipped: Option<(Start, &'static str)>,
    /// Number of hand-overs, because some are slow.
    hand_overs: usize,
}

const CLIENT_GO: Make = Make {
    name: "client-go",
    start: Election::client_go,
    count: &[],
    linger: None,
    lean: None,
    many: true,
    shipped: None,
    hand_overs: HAND_OVERS,
};

const TENURE: Make = Make {
    name: "tenure",
    start: Election::library,
    count: &["--count"],
    linger: Some("--linger"),
    lean: Some((Election::sidecar, "`tenure-sidecar elect`")),
    many: true,
    shipped: Some((Election::shipped_library, "profile `dist`")),
    hand_overs: HAND_OVERS,
};

const KUBE_LEASE_MANAGER: Make = Make {
    name: "kube-lease-manager",
    start: Election::kube_lease_manager,
    count: &[],
    linger: None,
    lean: None,
    many: false,
    shipped: None,
    hand_overs: 6,
};

const K8S_CONTROLLER: Make = Make {
    name: "k8s-controller",
    start: Election::k8s_controller,
    count: &[],
    linger: None,
    lean: None,
    many: false,
    shipped: None,
    hand_overs: HAND_OVERS,
};

/// Measures every kind on the real kube-apiserver if it is available, and tenure on ours.
///
/// # Errors
///
/// Fails if a server or a candidate did not start.
pub fn bench(real: bool) -> anyhow::Result<String> {
    let mut columns = Vec::new();
    if real {
        let cluster = Cluster::start()?;
        let kubeconfig = cluster.kubeconfig();
        if let Err(skip) = available(&[Peer::Elector]) {
            eprintln!("without client-go: {skip}");
        } else {
            columns.push(column(CLIENT_GO, "kube-apiserver + etcd", &kubeconfig)?);
        }
        columns.push(column(TENURE, "kube-apiserver + etcd", &kubeconfig)?);
        for (make, peer) in [
            (KUBE_LEASE_MANAGER, "rust-kube-lease-manager"),
            (K8S_CONTROLLER, "rust-k8s-controller"),
        ] {
            match crate::real::build_rust_peer(peer) {
                Ok(_) => columns.push(column(make, "kube-apiserver + etcd", &kubeconfig)?),
                Err(error) => eprintln!("without {}: {error}", make.name),
            }
        }
    }
    let ours = Ours::start()?;
    columns.push(column(TENURE, "tenure server", &ours.kubeconfig())?);
    let mut section = elections_table::section(&columns);
    if let Some(images) = super::images() {
        std::fs::create_dir_all(&images)?;
        for (file, title, samples) in [
            (
                "hand-over-sigterm.svg",
                "Hand-over after SIGTERM of the leader, 15/10/2, three replicas",
                (|figures: &Figures| figures.hand_overs.clone()) as fn(&Figures) -> Vec<Duration>,
            ),
            (
                "hand-over-kill.svg",
                "Take-over after kill -9, from the end of the lease, 15/10/2, three replicas",
                |figures| figures.take_overs.clone(),
            ),
        ] {
            let rows: Vec<(String, Vec<Duration>)> = columns
                .iter()
                .map(|column| (column.title(), samples(&column.figures)))
                .collect();
            std::fs::write(images.join(file), svg::strips(title, &rows))?;
            section += &format!("\n![{title}](images/{file})\n");
        }
    }
    Ok(section)
}

/// How candidates of one kind are started.
pub type Start = fn(&Election, &str, &[&str]) -> Result<Process, candidate::Error>;

/// Reason why there is no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A candidate could not be started.
    #[error(transparent)]
    Candidate(#[from] candidate::Error),
    /// A candidate did not do what was expected.
    #[error(transparent)]
    Silence(#[from] Silence),
    /// The API server did not respond.
    #[error(transparent)]
    Wire(#[from] crate::wire::Error),
    /// The lock contains no time.
    #[error("no renewTime in {0}")]
    Record(String),
    /// The resource usage of a process cannot be read.
    #[error("/proc has no entry for process {0}")]
    Proc(u32),
}

fn column(make: Make, server: &'static str, kubeconfig: &Path) -> Result<Column, Error> {
    eprintln!("{} on {server} ...", make.name);
    let figures = measure(make, kubeconfig)?;
    Ok(Column {
        make: make.name,
        server,
        figures,
    })
}

fn measure(make: Make, kubeconfig: &Path) -> Result<Figures, Error> {
    // Hand-overs, kills and idle pairs run concurrently: they mostly wait, and use different locks.
    let mut figures = scope(|scope| -> Result<Figures, Error> {
        let quiet = scope.spawn(|| quiet_pair(make, kubeconfig));
        let kills: Vec<_> = (0..KILLS)
            .map(|number| scope.spawn(move || take_over(make, kubeconfig, number)))
            .collect();
        let mut figures = hand_overs(make, kubeconfig)?;
        for kill in kills {
            figures.take_overs.push(joined(kill)?);
        }
        let quiet = joined(quiet)?;
        figures.follower_requests = quiet.follower_requests;
        figures.leader_requests = quiet.leader_requests;
        figures.leader_cpu = quiet.leader_cpu;
        figures.follower_cpu = quiet.follower_cpu;
        Ok(figures)
    })?;
    if let Some((start, program)) = make.lean {
        match start(&election(kubeconfig, "lean"), "lean", &[]) {
            Ok(lean) => {
                lean.wait_for(Kind::Acquired, Nanos(0), LIMIT)?;
                sleep(Duration::from_secs(10));
                figures.one_resident = resident(&lean)?;
                figures.one_program = Some(program);
            }
            Err(missing) => eprintln!("memory of one election as in this build: {missing}"),
        }
    }
    if make.many {
        many(make, kubeconfig, &mut figures)?;
    }
    Ok(figures)
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn election(kubeconfig: &Path, what: &str) -> Election {
    let name = format!("measure-{what}-{}", clock::now().0);
    Election::new(PathBuf::from(kubeconfig), name)
}

/// Measures the time from SIGTERM of the leader to `acquired` of the next one, with three replicas, and the memory of
/// one process.
fn hand_overs(make: Make, kubeconfig: &Path) -> Result<Figures, Error> {
    let election = election(kubeconfig, "hand-over");
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add((make.start)(&election, id, &[])?);
    }
    let (mut leader, _) = fleet.next_leader(Nanos(0), None, LIMIT)?;
    sleep(Duration::from_secs(10));
    let mut figures = Figures {
        one_resident: resident(fleet.member(&leader))?,
        ..Figures::default()
    };
    for round in 0..make.hand_overs {
        let since = clock::now();
        fleet.member(&leader).terminate();
        let (next, at) = fleet.next_leader(since, Some(&leader), LIMIT)?;
        figures.hand_overs.push(at.since(since));
        fleet.add((make.start)(&election, &format!("r{round}"), &[])?);
        // Followers poll at random times. After the pause, the new follower also polls at a random time.
        sleep(Duration::from_secs(3));
        leader = next;
    }
    Ok(figures)
}

/// Measures the time from the end of the lease of a killed leader to `acquired` of the next one.
fn take_over(make: Make, kubeconfig: &Path, number: usize) -> Result<Duration, Error> {
    let election = election(kubeconfig, &format!("kill-{number}"));
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add((make.start)(&election, id, &[])?);
    }
    let (leader, _) = fleet.next_leader(Nanos(0), None, LIMIT)?;
    // Each kill happens at another moment between two renewals.
    sleep(Duration::from_millis(
        8000 + 2000 * u64::try_from(number).unwrap_or(0) / KILLS as u64,
    ));
    let killed = fleet.member(&leader).kill();
    let wire = Wire::connect(kubeconfig)?;
    let lease = wire.get(&lease_path(&election.namespace, &election.name))?;
    let renewed = lease.body["spec"]["renewTime"].as_str().unwrap_or_default();
    let renewed = wall_nanos(renewed).ok_or_else(|| Error::Record(lease.body.to_string()))?;
    let (_, at) = fleet.next_leader(killed, Some(&leader), LIMIT)?;
    Ok(at.since(renewed + election.lease_duration))
}

/// Resources of an idle leader and an idle follower.
struct Quiet {
    follower_requests: Option<f64>,
    leader_requests: Option<f64>,
    follower_cpu: f64,
    leader_cpu: f64,
}

fn quiet_pair(make: Make, kubeconfig: &Path) -> Result<Quiet, Error> {
    let election = election(kubeconfig, "quiet");
    let mut leader = (make.start)(&election, "leader", make.count)?;
    leader.wait_for(Kind::Acquired, Nanos(0), LIMIT)?;
    let mut follower = (make.start)(&election, "follower", make.count)?;
    // The start of a process costs more than a minute of an election.
    sleep(Duration::from_secs(10));
    let (began, leader_before) = (clock::now(), run_time(&leader)?);
    let follower_before = run_time(&follower)?;
    sleep(Duration::from_secs(60));
    let time = clock::now().since(began).as_secs_f64();
    let share = |process: &Process, before: Duration| -> Result<f64, Error> {
        Ok(run_time(process)?.saturating_sub(before).as_secs_f64() / time)
    };
    let leader_cpu = share(&leader, leader_before)?;
    let follower_cpu = share(&follower, follower_before)?;
    let rate = |process: &mut Process| -> Result<Option<f64>, Error> {
        process.terminate();
        process.wait(LIMIT)?;
        let stats = process.last_of(&[Kind::Stats]);
        Ok(stats.and_then(|stats| {
            let number = |name: &str| stats.rest.get(name).and_then(Value::as_f64);
            Some((number("reads")? + number("writes")?) / number("seconds")?)
        }))
    };
    Ok(Quiet {
        follower_requests: rate(&mut follower)?,
        leader_requests: rate(&mut leader)?,
        follower_cpu,
        leader_cpu,
    })
}

/// Measures two thousand elections in one process. Their renewals need a thousand writes per second.
fn many(make: Make, kubeconfig: &Path, figures: &mut Figures) -> Result<(), Error> {
    let election = election(kubeconfig, "many");
    let count = MANY.to_string();
    let mut flags = vec!["--elections", &count];
    flags.extend(make.linger);
    let shipped = make.shipped.map(|(start, program)| {
        let process = start(&election, "many", &flags)?;
        Ok::<_, candidate::Error>((process, program))
    });
    let mut many = match shipped {
        Some(Ok((process, program))) => {
            figures.many_program = Some(program);
            process
        }
        shipped => {
            if let Some(Err(missing)) = shipped {
                eprintln!("many elections as in this build: {missing}");
            }
            (make.start)(&election, "many", &flags)?
        }
    };
    let leading = || {
        let events = many.events();
        let won = events.iter().filter(|event| event.event == Kind::Acquired);
        won.count().min(MANY)
    };
    clock::poll(LIMIT, || (leading() >= MANY).then_some(()));
    sleep(Duration::from_secs(10));
    let (began, before) = (clock::now(), cpu(&many)?);
    sleep(Duration::from_secs(20));
    let share = (cpu(&many)? - before).as_secs_f64() / clock::now().since(began).as_secs_f64();
    figures.many_cpu = Some(share);
    figures.many_led = Some(leading());
    figures.many_resident = Some(resident(&many)?);
    many.terminate();
    if make.linger.is_some() {
        let stats = many.wait_for(Kind::Stats, Nanos(0), LIMIT)?;
        let tasks = stats.rest.get("tasks").and_then(Value::as_u64);
        figures.left = Some(Left {
            tasks: tasks.unwrap_or_default(),
            resident: resident(&many)?,
        });
        many.terminate();
    }
    many.wait(LIMIT)?;
    Ok(())
}

/// Parses the time of a record.
fn wall_nanos(text: &str) -> Option<Nanos> {
    let time: k8s_openapi::jiff::Timestamp = text.parse().ok()?;
    i64::try_from(time.as_nanosecond()).ok().map(Nanos)
}

fn resident(process: &Process) -> Result<u64, Error> {
    process.resident_bytes().ok_or(Error::Proc(process.pid()))
}

fn run_time(process: &Process) -> Result<Duration, Error> {
    process.run_time().ok_or(Error::Proc(process.pid()))
}

fn cpu(process: &Process) -> Result<Duration, Error> {
    process.cpu_time().ok_or(Error::Proc(process.pid()))
}
