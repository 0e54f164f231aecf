//! Fleets of `tenure run` whose commands start trees of hidden processes.
//!
//! Each process of a tree has a file open that the command locked at its start. A command that finds the file locked
//! has detected a process of an earlier term. A check of the pids when the next tree is complete detects the same.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::proxy::{Gate, Proxy};
use super::seed::Seeded;
use super::server::Server;
use crate::clock::poll;
use crate::home::Home;
use crate::process::{Process, is_alive, watchdog_of};

/// Time limit of each wait. On a busy machine a fail-over takes several leases.
const LIMIT: Duration = Duration::from_secs(120);

/// Lease, renew deadline and retry period.
const TIMING: [&str; 3] = ["6s", "3s", "500ms"];

/// Observation time of a fault that ends no term, longer than the lease.
const UNHARMED: Duration = Duration::from_secs(8);

/// Five processes, each a child of the previous one, and each hidden in another way. `$1` is the number of levels
/// below, `$2` the token.
const TREE: &str = r#"
echo $$ >> members.$2
next=$(($1-1))
case $1 in
4) env -i PATH="$PATH" setsid sh tree $next $2 & ;;
3) (setsid sh tree $next $2 &) ;;
2) env -i PATH="$PATH" sh -c "setsid sh tree $next $2 &" ;;
1) perl -e 'use POSIX; exit if fork; POSIX::setsid(); exit if fork; $0 = "x" x 8000;
   open F, ">>$ARGV[0]"; print F "$$\n"; close F; sleep 1000' members.$2 & ;;
esac
sleep 1000 & wait
"#;
const MEMBERS: usize = 5;

const COMMAND: &str = "exec 9>lock; flock -n 9 || echo $TENURE_FENCING_TOKEN >> overlaps; \
     echo $TENURE_LEADER_ID $TENURE_FENCING_TOKEN >> terms; exec sh tree 4 $TENURE_FENCING_TOKEN";

/// A fault of the leading wrapper or its watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeFault {
    /// The wrapper is killed.
    KillWrapper,
    /// The watchdog is killed.
    KillWatchdog,
    /// Both are killed, as simultaneously as possible.
    KillBoth,
    /// The watchdog is stopped, then the wrapper is killed.
    StopWatchdogKillWrapper,
    /// The wrapper is stopped for longer than its lease.
    StopWrapper,
    /// The watchdog is stopped for longer than the lease. The term must survive.
    StopWatchdog,
    /// The watchdog is stopped, and the API server does not respond to the wrapper.
    StopWatchdogBlackHole,
    /// The wrapper is asked to end.
    Terminate,
}

impl TreeFault {
    /// Returns all kinds. Processes that outlive both wrapper and watchdog can be found only in a control group.
    pub fn all(cgroup: bool) -> Vec<Self> {
        let mut all = vec![
            Self::KillWrapper,
            Self::KillWatchdog,
            Self::StopWatchdogKillWrapper,
            Self::StopWrapper,
            Self::StopWatchdog,
            Self::StopWatchdogBlackHole,
            Self::Terminate,
        ];
        all.extend(cgroup.then_some(Self::KillBoth));
        all
    }
}

/// Returns each kind of fault once, in an order that the seed decides, and then `more` random ones.
pub fn schedule(seed: u64, cgroup: bool, more: usize) -> Vec<TreeFault> {
    let mut seeded = Seeded::new(seed);
    let all = TreeFault::all(cgroup);
    let mut left = all.clone();
    let mut faults: Vec<TreeFault> = Vec::new();
    while !left.is_empty() {
        faults.push(left.swap_remove(seeded.below(left.len())));
    }
    faults.extend((0..more).map(|_| *seeded.pick(&all)));
    faults
}

/// A term as reported by its command.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    id: String,
    token: u64,
}

struct Wrapper {
    process: Process,
    proxy: Proxy,
}

/// A fleet of wrappers in one home, on one election.
pub struct Fleet {
    home: Home,
    kubeconfig: PathBuf,
    wrappers: Vec<Wrapper>,
    started: usize,
}

impl Fleet {
    /// Starts this many wrappers.
    ///
    /// # Errors
    ///
    /// Fails if one of them does not start.
    pub fn start(server: &Server, size: usize) -> Result<Self> {
        let home = Home::new();
        fs::write(home.path("tree"), TREE)?;
        let mut fleet = Self {
            home,
            kubeconfig: server.kubeconfig(),
            wrappers: Vec::new(),
            started: 0,
        };
        for _ in 0..size {
            fleet.add()?;
        }
        Ok(fleet)
    }

    fn add(&mut self) -> Result<()> {
        let proxy = Proxy::start(&self.kubeconfig)?;
        let id = format!("w-{}", self.started);
        self.started += 1;
        let [lease, renew, retry] = TIMING;
        let mut command = self.home.command();
        command
            .env("KUBECONFIG", proxy.kubeconfig())
            .args(["run", "--election=trees", "--on-lost=rejoin"])
            .args(["--lease-duration", lease, "--renew-deadline", renew])
            .args(["--retry-period", retry, &format!("--id={id}")])
            .args(["--", "sh", "-c", COMMAND]);
        let process = Process::spawn(id, command)?;
        self.wrappers.push(Wrapper { process, proxy });
        Ok(())
    }

    /// Injects one fault into the leader. Returns when the next tree is complete.
    ///
    /// # Errors
    ///
    /// Fails if a process of the old tree is alive when the new one is complete, if the fault ended a term that it must
    /// not end, or if no candidate leads afterwards.
    pub fn strike(&mut self, fault: TreeFault) -> Result<()> {
        let (term, members) = self.settled()?;
        let at = self
            .wrappers
            .iter()
            .position(|w| w.process.name() == term.id);
        let at = at.with_context(|| format!("{term:?} belongs to no wrapper"))?;
        let wrapper = &mut self.wrappers[at];
        let watchdog = watchdog_of(wrapper.process.pid()).context("the command has no watchdog")?;
        match fault {
            TreeFault::KillWrapper => {
                wrapper.process.kill();
            }
            TreeFault::KillWatchdog => signal(watchdog, Signal::KILL),
            TreeFault::KillBoth => {
                // Neither can react to the death of the other.
                wrapper.process.stop();
                signal(watchdog, Signal::KILL);
                wrapper.process.kill();
            }
            TreeFault::StopWatchdogKillWrapper => {
                signal(watchdog, Signal::STOP);
                wrapper.process.kill();
            }
            TreeFault::StopWrapper => wrapper.process.stop(),
            TreeFault::StopWatchdog => {
                signal(watchdog, Signal::STOP);
                std::thread::sleep(UNHARMED);
                let alive = members.iter().all(|pid| is_alive(*pid));
                signal(watchdog, Signal::CONT);
                ensure!(alive, "{term:?} ended with its watchdog stopped");
                return Ok(());
            }
            TreeFault::StopWatchdogBlackHole => {
                signal(watchdog, Signal::STOP);
                wrapper.proxy.set(Gate::Held, Gate::Held);
            }
            TreeFault::Terminate => wrapper.process.terminate(),
        }
        let next = self.next(term.token)?;
        let left: Vec<i32> = members.into_iter().filter(|pid| is_alive(*pid)).collect();
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        ensure!(left.is_empty(), "{left:?} of {term:?} live in {next:?}");
        self.repair(at)
    }

    /// Returns whether a command ever found a process of an earlier term.
    pub fn overlapped(&self) -> bool {
        self.home.path("overlaps").exists()
    }

    /// Returns the number of terms, and checks that their tokens increase.
    ///
    /// # Errors
    ///
    /// Fails if a token is not above the previous one.
    pub fn terms(&self) -> Result<usize> {
        let terms = self.read_terms();
        for pair in terms.windows(2) {
            ensure!(pair[0].token < pair[1].token, "{pair:?}");
        }
        Ok(terms.len())
    }

    /// Ends everything, and returns how many processes of all trees are left.
    pub fn end(mut self) -> usize {
        for wrapper in &self.wrappers {
            wrapper.process.terminate();
        }
        for wrapper in &mut self.wrappers {
            _ = wrapper.process.wait(LIMIT);
        }
        let terms = self.read_terms();
        let members = terms.iter().flat_map(|term| self.members(term.token));
        let left: Vec<i32> = members.filter(|pid| is_alive(*pid)).collect();
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        left.len()
    }

    fn repair(&mut self, at: usize) -> Result<()> {
        let wrapper = &mut self.wrappers[at];
        wrapper.process.resume();
        wrapper.proxy.heal();
        // Wrappers that were killed or asked to end, and those whose command was killed.
        if poll(Duration::from_secs(2), || {
            wrapper.process.has_ended().then_some(())
        })
        .is_some()
        {
            self.wrappers.remove(at);
            self.add()?;
        }
        Ok(())
    }

    /// Waits for a term whose tree is complete and stays for a moment.
    fn settled(&self) -> Result<(Term, Vec<i32>)> {
        let found = poll(LIMIT, || {
            let term = self.read_terms().pop()?;
            let members = self.members(term.token);
            let complete = members.len() == MEMBERS && members.iter().all(|pid| is_alive(*pid));
            complete.then_some((term, members))
        });
        found.with_context(|| format!("no complete tree: {}", self.transcripts()))
    }

    /// Waits for the first process of a tree after this token.
    fn next(&self, token: u64) -> Result<Term> {
        let next = poll(LIMIT, || {
            let term = self.read_terms().pop()?;
            (term.token > token && !self.members(term.token).is_empty()).then_some(term)
        });
        match next {
            Some(term) => Ok(term),
            None => bail!("nobody leads: {}", self.transcripts()),
        }
    }

    fn read_terms(&self) -> Vec<Term> {
        let text = fs::read_to_string(self.home.path("terms")).unwrap_or_default();
        let term = |line: &str| {
            let (id, token) = line.split_once(' ')?;
            Some(Term {
                id: id.to_owned(),
                token: token.parse().ok()?,
            })
        };
        text.lines().filter_map(term).collect()
    }

    fn members(&self, token: u64) -> Vec<i32> {
        let path = self.home.path(format!("members.{token}"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn transcripts(&self) -> String {
        let said = self.wrappers.iter().map(|w| w.process.transcript());
        said.collect::<Vec<_>>().join("\n")
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} wrappers", self.wrappers.len())
    }
}

fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may already have ended.
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedule_has_every_fault_and_depends_on_the_seed() {
        for cgroup in [false, true] {
            let faults = schedule(7, cgroup, 3);
            let all = TreeFault::all(cgroup);
            assert_eq!(faults.len(), all.len() + 3);
            assert!(all.iter().all(|fault| faults.contains(fault)));
            assert_eq!(faults, schedule(7, cgroup, 3));
        }
        assert_ne!(schedule(7, true, 30), schedule(8, true, 30));
    }
}
