//! What candidates cost and how fast they hand over, measured from outside, the same way for everyone.

use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use crate::candidate::{self, Election, Fleet};
use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::process::{Process, Silence};

const HAND_OVERS: usize = 20;
const MANY: &str = "2000";
const LIMIT: Duration = Duration::from_secs(120);

/// The figures of one kind of candidate with 15, 10 and 2 seconds.
#[derive(Clone, Debug)]
pub struct Report {
    /// From SIGTERM of the leader to `acquired` of the next, with three replicas.
    pub hand_overs: Vec<Duration>,
    /// Requests per second of a follower.
    pub follower_requests: f64,
    /// Resident memory of a process with one election, in bytes.
    pub one_resident: u64,
    /// Resident memory of a process that leads two thousand elections, in bytes.
    pub many_resident: u64,
    /// The share of one core that it uses.
    pub many_cpu: f64,
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

/// Measures client-go's elector.
///
/// # Errors
/// A candidate does not start or does not lead.
pub fn client_go(kubeconfig: &Path) -> Result<Report, Error> {
    let name = |what: &str| format!("measure-{what}-{}", clock::now().0);
    let election = Election::new(kubeconfig.to_owned(), name("client-go"));
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add(election.client_go(id, &[])?);
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
        fleet.add(election.client_go(&format!("r{round}"), &[])?);
        // Followers poll at random times; the pause lets the new one spread like the others.
        sleep(Duration::from_secs(3));
        leader = next;
    }

    let mut follower = election.client_go("follower", &[])?;
    sleep(Duration::from_secs(60));
    follower.terminate();
    follower.wait(LIMIT)?;
    let stats = follower.wait_for(Kind::Stats, Nanos(0), LIMIT)?;
    let number = |name: &str| {
        stats
            .rest
            .get(name)
            .and_then(serde_json::Value::as_f64)
            .unwrap_or(f64::NAN)
    };
    let follower_requests = (number("reads") + number("writes")) / number("seconds");

    let many = Election {
        name: name("many"),
        ..election
    };
    let many = many.client_go("many", &["--elections", MANY])?;
    let leading = || {
        many.events()
            .iter()
            .filter(|event| event.event == Kind::Acquired)
            .count()
    };
    clock::poll(LIMIT, || (leading().to_string() == MANY).then_some(()));
    sleep(Duration::from_secs(10));
    let (began, before) = (clock::now(), cpu(&many)?);
    sleep(Duration::from_secs(20));
    let many_cpu = (cpu(&many)? - before).as_secs_f64() / clock::now().since(began).as_secs_f64();
    Ok(Report {
        hand_overs,
        follower_requests,
        one_resident,
        many_resident: resident(&many)?,
        many_cpu,
    })
}

fn resident(process: &Process) -> Result<u64, Error> {
    process.resident_bytes().ok_or(Error::Proc(process.pid()))
}

fn cpu(process: &Process) -> Result<Duration, Error> {
    process.cpu_time().ok_or(Error::Proc(process.pid()))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = u32::try_from(self.hand_overs.len())
            .unwrap_or(u32::MAX)
            .max(1);
        let mean = self.hand_overs.iter().sum::<Duration>() / count;
        let max = self.hand_overs.iter().max().copied().unwrap_or_default();
        writeln!(f, "| 15/10/2 | measured |\n|---|---|")?;
        writeln!(
            f,
            "| hand-over after SIGTERM, 3 replicas, {count} times | mean {mean:.2?}, max {max:.2?} |"
        )?;
        writeln!(
            f,
            "| requests of a follower | {:.2}/s |",
            self.follower_requests
        )?;
        writeln!(
            f,
            "| memory of one elector process | {} MiB |",
            self.one_resident >> 20
        )?;
        writeln!(
            f,
            "| memory of {MANY} elections in one process | {} MiB |",
            self.many_resident >> 20
        )?;
        write!(
            f,
            "| CPU of {MANY} elections in one process | {:.0} % of a core |",
            self.many_cpu * 100.0
        )
    }
}
