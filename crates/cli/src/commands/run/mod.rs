//! `tenure run`: runs a command only while leading.

mod args;
mod cgroup;
mod containment;
mod crash_release;
mod fence_file;
mod finish;
mod group;
mod kin;
mod obstacle;
mod runner;
#[cfg(test)]
mod simulation;
mod slots;
mod terminal;
mod watchdog;
mod work;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::Client;
use rustix::process::Signal;
use tenure_lock::duration::format as span;

use crate::api;
use crate::connect::Connect;
use crate::election;
use crate::events::EventLog;
use crate::log::Log;
use crate::rbac::{self, Needs, Rule};
use crate::signals::Signals;
use crate::waiting::{self, Limit};
pub(crate) use args::Run;
use args::{Foreground, Stdin};
pub(crate) use cgroup::Cgroup;
use group::adopt_orphans;
use runner::Runner;

#[cfg(feature = "server")]
pub(crate) use group::close_inherited;
pub(crate) use group::{CHILD, Exit, become_child};
pub(crate) use watchdog::{WATCHDOG, watch};

/// Exit code of a wrong command line, as in flock(1).
const USAGE: u8 = 64;

/// Exit code of a failure of Tenure itself, as in timeout(1).
const FAILED: u8 = 125;

impl Run {
    pub(crate) async fn run(mut self, connect: &Connect, log_flags: Log) -> Result<u8> {
        if self.print_rbac {
            let needs = self.needs(&self.election.namespace("default"));
            print!("{}", rbac::roles(&self.election.election, &needs));
            return Ok(0);
        }
        if self.shell {
            let line: Vec<_> = self
                .command
                .iter()
                .map(|arg| arg.to_string_lossy())
                .collect();
            self.command = ["/bin/sh".into(), "-c".into(), line.join(" ").into()].into();
        }
        if let Err(code) = runnable(&self.command[0]) {
            return Ok(code);
        }
        if self.without_election {
            let error = std::process::Command::new(&self.command[0])
                .args(&self.command[1..])
                .exec();
            return Err(error).context("cannot run the command");
        }
        let log = EventLog::open(self.output_events.as_deref(), &self.election.election);
        let (timing, log) = match (self.election.check(), log) {
            (Ok(timing), Ok(log)) => (timing, log),
            (Err(error), _) | (_, Err(error)) => {
                eprintln!("tenure: {}", api::plain(&error));
                return Ok(USAGE);
            }
        };
        if let Some(least) = self.min_validity.filter(|least| *least >= timing.guard()) {
            let most = timing.guard();
            let (least, most) = (span(least), span(most));
            eprintln!("tenure: --min-validity {least} can never be met: use less than {most}");
            return Ok(USAGE);
        }
        let began = jiff::Timestamp::now();
        let wait = Limit::begin(self.wait.filter(|wait| !wait.is_zero()));
        let mut signals = Signals::listen()?;
        let connected = wait.of(election::connect(connect, &mut signals)).await;
        let Some(connected) = connected.transpose()? else {
            return Ok(self.unanswered("cannot find an API server and get credentials for it"));
        };
        let connected = match connected {
            Ok(connected) => connected,
            Err(signal) => return Ok(code_of(signal)),
        };
        // Orphans are adopted only now, so that a local server that was just started is not a descendant.
        adopt_orphans()?;
        let namespace = self.election.namespace(&connected.namespace);
        let limit = if self.nonblock || self.slots.is_none() {
            let request = timing.request_timeout();
            Limit::begin(Some(wait.left().map_or(request, |left| left.min(request))))
        } else {
            wait
        };
        let server = &connected.server;
        let agreed = self.agree_on_slots(&connected.client, &namespace, timing.lease());
        let agreed = tokio::select! {
            agreed = limit.of(waiting::on(server, agreed)) => agreed.transpose()?,
            signal = signals.end() => return Ok(code_of(signal)),
        };
        match agreed {
            Some(Ok(())) => {}
            Some(Err(why)) => {
                eprintln!("tenure: {why}");
                return Ok(USAGE);
            }
            None if self.slots.is_some() => {
                return Ok(self.unanswered(&format!("no answer from {server}")));
            }
            // An election without slots starts while the API server is away, and waits for it.
            None => {}
        }
        if self.foreground == Foreground::Never && terminal::is_there() {
            // As for `&` in a script, a process without access to the terminal cannot read input.
            self.stdin = Stdin::Null;
        }
        let foreground = match self.foreground {
            Foreground::Auto => terminal::in_foreground() && self.stdin == Stdin::Inherit,
            Foreground::Always => terminal::in_foreground(),
            Foreground::Never => false,
        };
        let mut runner = Runner::new(
            self, connected, log_flags, namespace, signals, foreground, began,
        );
        if let Err(error) = runner.enter(None) {
            eprintln!("tenure: {}", api::plain(&error));
            return Ok(USAGE);
        }
        runner.announce(&timing);
        let code = runner.campaign(wait, log).await;
        runner.leave().await;
        code
    }
}

impl Run {
    /// Reports that there was no response in time, and returns the exit code.
    fn unanswered(&self, why: &str) -> u8 {
        let election = &self.election.election;
        if self.nonblock {
            eprintln!("tenure: cannot tell who leads {election}: {why}");
            return FAILED;
        }
        let waited = self.wait.unwrap_or_default();
        let waited = span(waited);
        eprintln!("tenure: not elected in {election} within {waited}: {why}");
        self.conflict_exit_code
    }

    /// Makes sure that all candidates of this election use it with the same number of slots, or all without slots. The
    /// inner error is for the user.
    async fn agree_on_slots(
        &self,
        client: &Client,
        namespace: &str,
        lease: Duration,
    ) -> Result<Result<(), String>> {
        match self.slots {
            Some(slots) => slots::agree(client, self, namespace, slots, lease).await,
            None => {
                let place = slots::Place::new(client.clone(), namespace, &self.election.election);
                let refusal = place.refuse_without_slots().await;
                Ok(refusal.map_or(Ok(()), Err))
            }
        }
    }

    /// Whether the lease of this slot stores the number of slots, which other candidates need even after its holder has
    /// ended.
    fn keeps_slots(&self, slot: usize) -> bool {
        self.slots.is_some() && slot == 0
    }

    /// Returns the exact set of permissions that this command line needs, given the namespace of the lock.
    fn needs(&self, namespace: &str) -> Needs {
        let mut needs = vec![(namespace.to_owned(), self.lock_rules())];
        rbac::extend(&mut needs, self.election.needs_of_proofs(namespace));
        needs
    }

    fn lock_rules(&self) -> Vec<Rule> {
        let (kind, election) = (self.election.lock, &self.election.election);
        let names: Vec<String> = match self.slots {
            None => [election.clone()].into(),
            Some(slots) => (0..slots)
                .map(|slot| slots::name_of(election, slot))
                .collect(),
        };
        let mut rules = Vec::new();
        for (slot, name) in names.iter().enumerate() {
            // The number of slots is stored on the first lease, and completed work of `--once` on its lock.
            let notes = self.once.is_some() || self.keeps_slots(slot);
            let delete = self.delete_on_exit && !self.keeps_slots(slot);
            let more = [("delete", delete), ("patch", notes)];
            let more: Vec<_> = more
                .iter()
                .filter(|more| more.1)
                .map(|more| more.0)
                .collect();
            for rule in rbac::taking_part(kind, name, &more) {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        // An election is used with slots or without, so each kind of candidate reads the lease of the other kind.
        rules.push(rbac::reading_lease(&match self.slots {
            None => slots::name_of(election, 0),
            Some(_) => election.clone(),
        }));
        self.announce.add_rules(rules)
    }
}

/// Fails before campaigning if the command cannot be run: 127 if it does not exist, 126 if it is not executable.
fn runnable(program: &OsString) -> Result<(), u8> {
    let executable = |path: &Path| {
        path.metadata()
            .is_ok_and(|m| m.permissions().mode() & 0o111 != 0)
    };
    let shown = program.to_string_lossy();
    let found: Vec<PathBuf> = if shown.contains('/') {
        [PathBuf::from(program)].into()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|folder| folder.join(program))
            .collect()
    };
    let found: Vec<_> = found.into_iter().filter(|path| path.is_file()).collect();
    if found.iter().any(|path| executable(path)) {
        Ok(())
    } else if found.is_empty() {
        eprintln!("tenure: command not found: {shown}");
        Err(127)
    } else {
        eprintln!("tenure: not executable: {shown}");
        Err(126)
    }
}

fn code_of(signal: Signal) -> u8 {
    128u8.saturating_add(u8::try_from(signal.as_raw()).unwrap_or(0))
}
