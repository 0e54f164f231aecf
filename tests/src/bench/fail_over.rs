//! Time from the death of a leader until another candidate leads: with the lease, with a proof, and with a release after
//! the crash. Three replicas, 15/10/2.

#![allow(clippy::print_stderr, reason = "a benchmark prints its progress")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{scope, sleep};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::jiff::{SignedDuration, Timestamp, Unit};
use serde_json::{Value, json};

use super::elections::Start;
use super::percentile;
use crate::bench::apiserver::Ours;
use crate::candidate::{Election, Fleet};
use crate::clock::{self, Nanos};
use crate::process::Process;
use crate::real::{Cluster, Peer, available};
use crate::wire::{Wire, lease_path};

/// Number of leaders that are killed while nobody waits for the lease.
const QUICK: usize = 50;

/// Number of leaders whose lease must expire.
const SLOW: usize = 8;

const LIMIT: Duration = Duration::from_secs(120);

/// Time for a new candidate to observe the leader.
const SETTLE: Duration = Duration::from_millis(700);

/// Measures on the real kube-apiserver if it is available, and on ours.
///
/// # Errors
///
/// Fails if a server or a candidate did not start, or nobody led.
pub fn bench(real: bool) -> Result<String> {
    let mut text = String::from(
        "| killed | server | goal | p50 | p99 | longest | kills |\n|---|---|---|---|---|---|---|\n",
    );
    if real {
        let cluster = Cluster::start()?;
        let server = "kube-apiserver + etcd";
        rows(&mut text, server, &cluster.kubeconfig(), true)?;
    }
    let ours = Ours::start()?;
    rows(&mut text, "tenure server", &ours.kubeconfig(), false)?;
    Ok(text)
}

fn rows(text: &mut String, server: &str, kubeconfig: &Path, client_go: bool) -> Result<()> {
    let mut row = |killed: &str, goal: &str, all: &[Duration]| {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let [p50, p99, longest] = [50, 99, 100].map(|at| millis(percentile(all, at)));
        eprintln!(
            "{killed} on {server}: p50 {p50:.0} ms, p99 {p99:.0} ms, longest {longest:.0} ms"
        );
        let _ = writeln!(
            text,
            "| {killed} | {server} | {goal} | {p50:.0} ms | {p99:.0} ms | {longest:.0} ms | {} |",
            all.len()
        );
    };
    if client_go {
        match available(&[Peer::Elector]) {
            Err(skip) => eprintln!("without client-go: {skip}"),
            Ok(()) => row(
                "client-go",
                "-",
                &expiries(kubeconfig, Election::client_go)?,
            ),
        }
    }
    row(
        "`tenure elect`, without a proof",
        "-",
        &expiries(kubeconfig, Election::sidecar)?,
    );
    row(
        "`tenure elect --confirm-death=host`",
        "p99 50 ms",
        &proved(kubeconfig)?,
    );
    row(
        "`tenure elect --confirm-death=pod`, from the status of the pod",
        "p99 50 ms",
        &terminated(kubeconfig)?,
    );
    row(
        "`tenure run`, released by its watchdog, until the next command runs",
        "p99 300 ms",
        &released(kubeconfig)?,
    );
    Ok(())
}

fn election(kubeconfig: &Path, what: &str) -> Election {
    let name = format!("fail-over-{what}-{}", clock::now().0);
    Election::new(PathBuf::from(kubeconfig), name)
}

/// Each election waits for its lease, so they run at the same time.
fn expiries(kubeconfig: &Path, start: Start) -> Result<Vec<Duration>> {
    let one = |number: usize| -> Result<Duration> {
        let election = election(kubeconfig, &number.to_string());
        let mut fleet = Fleet::default();
        for id in ["a", "b", "c"] {
            fleet.add(start(&election, id, &[])?);
        }
        let (leader, _) = fleet.next_leader(Nanos(0), None, LIMIT)?;
        // Each kill happens at another moment between two renewals.
        let offset = 2000 * u64::try_from(number)? / SLOW as u64;
        sleep(Duration::from_millis(6000 + offset));
        let killed = clock::now();
        fleet.member(&leader).kill();
        let (_, at) = fleet.next_leader(killed, Some(&leader), LIMIT)?;
        Ok(at.since(killed))
    };
    scope(|scope| {
        let one = &one;
        let all: Vec<_> = (0..SLOW)
            .map(|number| scope.spawn(move || one(number)))
            .collect();
        let joined = all.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    })
}

fn proved(kubeconfig: &Path) -> Result<Vec<Duration>> {
    let election = election(kubeconfig, "proved");
    let start = |id: &str| election.sidecar(id, &["--confirm-death=host"]);
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add(start(id)?);
    }
    let (mut leader, _) = fleet.next_leader(Nanos(0), None, LIMIT)?;
    let mut took = Vec::new();
    for round in 0..QUICK {
        sleep(SETTLE);
        let killed = clock::now();
        fleet.member(&leader).kill();
        let (next, at) = fleet.next_leader(killed, Some(&leader), LIMIT)?;
        took.push(at.since(killed));
        fleet.retire(&leader);
        fleet.add(start(&format!("r{round}"))?);
        leader = next;
    }
    Ok(took)
}

/// Pods of candidates, whose status is written here as the kubelet writes it.
struct Pods {
    wire: Wire,
    election: Election,
}

impl Pods {
    const PATH: &str = "/api/v1/namespaces/default/pods";

    /// Starts a candidate in a new pod.
    fn start(&self, id: &str) -> Result<Process> {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": self.name(id) },
            "spec": { "containers": [{ "name": "elector", "image": "tenure" }], "nodeName": "n" },
        });
        let pod = self.send(&Method::POST, Self::PATH, &pod)?;
        let uid = pod["metadata"]["uid"]
            .as_str()
            .context("a pod without uid")?;
        let mut election = self.election.clone();
        election.environment = vec![
            ("POD_NAME", self.name(id).into()),
            ("POD_NAMESPACE", "default".into()),
            ("POD_UID", uid.into()),
            ("CONTAINER_NAME", "elector".into()),
        ];
        Ok(election.sidecar(id, &["--confirm-death=pod"])?)
    }

    fn name(&self, id: &str) -> String {
        format!("{}-{id}", self.election.name)
    }

    /// Reports the end of the container in which the lease was acquired.
    fn end(&self, id: &str) -> Result<()> {
        let lease = self.wire.get(&lease_path("default", &self.election.name))?;
        let acquired = lease.body["spec"]["acquireTime"].as_str();
        let acquired: Timestamp = acquired.context("no acquireTime")?.parse()?;
        let at = |seconds: i64| -> Result<String> {
            let time = acquired + SignedDuration::from_secs(seconds);
            Ok(time.round(Unit::Second)?.to_string())
        };
        let status = json!({ "status": { "phase": "Running", "containerStatuses": [{
            "name": "elector", "image": "tenure", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "terminated": {
                "containerID": "containerd://1", "exitCode": 137, "reason": "OOMKilled",
                "startedAt": at(-60)?, "finishedAt": at(2)?,
            } },
        }] } });
        let path = format!("{}/{}/status", Self::PATH, self.name(id));
        self.send(&Method::PATCH, &path, &status).map(drop)
    }

    fn send(&self, method: &Method, path: &str, body: &Value) -> Result<Value> {
        let answer = self.wire.send(method, path, Some(body))?;
        ensure!(answer.status.is_success(), "{path}: {}", answer.body);
        Ok(answer.body)
    }
}

/// The time counts from the moment at which the status is sent.
fn terminated(kubeconfig: &Path) -> Result<Vec<Duration>> {
    let pods = Pods {
        wire: Wire::connect(kubeconfig)?,
        election: election(kubeconfig, "pod"),
    };
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add(pods.start(id)?);
    }
    let (mut leader, _) = fleet.next_leader(Nanos(0), None, LIMIT)?;
    let mut took = Vec::new();
    for round in 0..QUICK {
        sleep(SETTLE);
        fleet.member(&leader).kill();
        let reported = clock::now();
        pods.end(&leader)?;
        let (next, at) = fleet.next_leader(reported, Some(&leader), LIMIT)?;
        took.push(at.since(reported));
        fleet.retire(&leader);
        fleet.add(pods.start(&format!("r{round}"))?);
        leader = next;
    }
    Ok(took)
}

/// The command writes the id of its candidate and the time at which it starts.
fn released(kubeconfig: &Path) -> Result<Vec<Duration>> {
    let election = election(kubeconfig, "released");
    let folder = tempfile::tempdir()?;
    let (program, _) = super::shipped()?;
    let script = "echo $TENURE_LEADER_ID $(date +%s%N) >> started; exec sleep 1000";
    let start = |id: usize| -> Result<Process> {
        let mut command = Command::new(&program);
        command
            .args(["run", "--election", &election.name, "--id", &id.to_string()])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(["--", "sh", "-c", script])
            .current_dir(folder.path());
        Ok(Process::spawn(id.to_string(), command)?)
    };
    let started = folder.path().join("started");
    let nth = |at: usize| -> Result<(String, Nanos)> {
        let lines = || std::fs::read_to_string(&started).unwrap_or_default();
        let line = clock::poll(LIMIT, || Some(lines().lines().nth(at)?.to_owned()));
        let line = line.context("nobody leads")?;
        let (id, time) = line.split_once(' ').context("incomplete line")?;
        Ok((id.to_owned(), Nanos(time.parse()?)))
    };
    let mut fleet = Fleet::default();
    for id in 0..3 {
        fleet.add(start(id)?);
    }
    let mut took = Vec::new();
    for at in 0..QUICK {
        let (leader, _) = nth(at)?;
        sleep(SETTLE);
        let killed = clock::now();
        fleet.member(&leader).kill();
        let (_, next) = nth(at + 1)?;
        took.push(next.since(killed));
        fleet.retire(&leader);
        fleet.add(start(at + 3)?);
    }
    Ok(took)
}
