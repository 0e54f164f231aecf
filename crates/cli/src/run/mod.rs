//! `tenure run`: a command that runs only while leading.

mod group;
mod terminal;
mod watchdog;
mod work;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use rustix::process::Signal;
use tenure::deadline::Overrun;
use tenure::{Candidate, Elector, Event, Status, Term};

use crate::connect::Connect;
use crate::election::Election;
use crate::events::{Change, EventLog, What, guard_end};
use crate::signals::Signals;
use crate::values::{duration, signal};
use group::{Spec, adopt_orphans};
use work::{End, Running, Work};

pub(crate) use group::{CHILD, become_child};
pub(crate) use watchdog::{WATCHDOG, watch};

/// How long the release may take after the work has ended.
const RELEASE: Duration = Duration::from_secs(5);

/// Run a command only while leading
#[derive(Args, Debug)]
pub(crate) struct Run {
    #[command(flatten)]
    election: Election,
    /// Do not wait: fail if somebody else leads
    #[arg(short, long, env = "TENURE_NONBLOCK")]
    nonblock: bool,
    /// Wait at most this long to lead; 0 waits for ever
    #[arg(short, long, value_name = "D", env = "TENURE_WAIT", value_parser = duration)]
    wait: Option<Duration>,
    /// Give the lease up after this long
    #[arg(long, value_name = "D", env = "TENURE_MAX_HOLD", value_parser = duration)]
    max_hold: Option<Duration>,
    /// What to do when the command ends
    #[arg(long, value_enum, default_value_t, env = "TENURE_ON_EXIT")]
    on_exit: OnExit,
    /// What to do when the command fails; by default the same
    #[arg(long, value_enum, env = "TENURE_ON_EXIT_FAILURE")]
    on_exit_failure: Option<OnExit>,
    /// Give up after this many restarts
    #[arg(long, value_name = "N", env = "TENURE_MAX_RESTARTS")]
    max_restarts: Option<u32>,
    /// What to do when leadership is lost
    #[arg(long, value_enum, default_value_t, env = "TENURE_ON_LOST")]
    on_lost: OnLost,
    /// Exit code if the lease was not acquired in time
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 75)]
    conflict_exit_code: u8,
    /// Exit code if leadership was lost
    #[arg(long, value_name = "CODE", default_value_t = 76)]
    lost_exit_code: u8,
    /// Signal that asks the command to end; by default the one that tenure got, else TERM
    #[arg(long, value_name = "SIGNAL", env = "TENURE_STOP_SIGNAL", value_parser = signal)]
    stop_signal: Option<Signal>,
    /// Run the arguments as one line of /bin/sh
    #[arg(long)]
    shell: bool,
    /// What the command reads from standard input
    #[arg(long, value_enum, default_value_t)]
    stdin: Stdin,
    /// Do not take part in any election: just become the command
    #[arg(long)]
    without_election: bool,
    /// Prefix of the environment variables that the command gets
    #[arg(long, value_name = "PREFIX", default_value = "TENURE_")]
    env_prefix: String,
    /// Append one JSON line per change to this file
    #[arg(long, value_name = "FILE", env = "TENURE_OUTPUT_EVENTS")]
    output_events: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What to do when the command ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExit {
    /// End with its exit code
    #[default]
    Exit,
    /// Start it again, after 1 s and up to 30 s
    Restart,
    /// Keep the lease and start nothing
    Hold,
}

/// What to do when leadership is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum OnLost {
    /// End
    #[default]
    Exit,
    /// Campaign again
    Rejoin,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Stdin {
    #[default]
    Inherit,
    Null,
}

impl Run {
    pub(crate) async fn run(mut self, connect: &Connect) -> Result<u8> {
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
            use std::os::unix::process::CommandExt;
            let error = std::process::Command::new(&self.command[0])
                .args(&self.command[1..])
                .exec();
            return Err(error).context("cannot become the command");
        }
        let mut signals = Signals::listen()?;
        adopt_orphans()?;
        // Connecting may hang too; ^C must not wait for it.
        let config = tokio::select! {
            config = connect.config() => config?,
            signal = signals.end() => return Ok(code_of(signal)),
        };
        let namespace = self.election.namespace(&config.default_namespace);
        let running = Running::default();
        let at_fence = running.clone();
        let client = tenure::client(config)?;
        let builder = Elector::open(
            client,
            self.election.lock,
            &namespace,
            &self.election.election,
        );
        let builder = self.election.configure(builder).events(true);
        let elector = match builder
            .on_overrun(Overrun::call(move |_| at_fence.kill()))
            .build()
        {
            Ok(elector) => elector,
            Err(error) => {
                eprintln!("tenure: {error}");
                return Ok(64);
            }
        };
        let candidate = elector.start();
        let foreground = terminal::in_foreground() && self.stdin == Stdin::Inherit;
        let mut runner = Runner {
            run: self,
            namespace,
            candidate,
            signals,
            running,
            foreground,
        };
        let code = runner.campaign().await;
        runner.leave().await;
        code
    }
}

/// A campaign under way.
struct Runner {
    run: Run,
    namespace: String,
    candidate: Candidate,
    signals: Signals,
    running: Running,
    foreground: bool,
}

impl Runner {
    async fn campaign(&mut self) -> Result<u8> {
        let mut log = EventLog::open(
            self.run.output_events.as_deref(),
            &self.run.election.election,
        )?;
        let mut patience = self.run.wait.filter(|wait| !wait.is_zero());
        loop {
            let term = match self.wait_for_term(patience, &mut log).await {
                Waited::Lead(term) => term,
                Waited::Code(code) => return Ok(code),
            };
            let mut change = Change::of(&self.candidate.handle(), Some(&term));
            log.write(What::Acquired, &change);
            let end = self.work(&term).run(&term, &mut self.signals).await;
            change.until = Some(guard_end(&term));
            log.write(What::Lost, &change);
            // Only now may the lease be given back: the group is empty.
            drop(term);
            match end {
                End::Exited(exit) | End::Asked(_, Some(exit)) => return Ok(exit.code()),
                End::Asked(signal, None) => return Ok(code_of(signal)),
                End::NotStarted(error) => return Err(error).context("cannot start the command"),
                End::HeldLongEnough | End::Lost if self.run.on_lost == OnLost::Rejoin => {}
                End::HeldLongEnough => return Ok(0),
                End::Lost => {
                    eprintln!("tenure: lost the election {}", self.run.election.election);
                    return Ok(self.run.lost_exit_code);
                }
            }
            patience = None;
        }
    }

    async fn wait_for_term(&mut self, patience: Option<Duration>, log: &mut EventLog) -> Waited {
        let timeout = tokio::time::sleep(patience.unwrap_or(Duration::MAX));
        tokio::pin!(timeout);
        loop {
            tokio::select! {
                event = self.candidate.next() => match event {
                    Some(Event::Lead(term)) => return Waited::Lead(term),
                    Some(Event::NewLeader(holder)) => {
                        let leader = holder.clone();
                        let seen = Change { leader, ..Change::of(&self.candidate.handle(), None) };
                        log.write(What::Observed, &seen);
                        if self.run.nonblock && !holder.is_empty() {
                            eprintln!(
                                "tenure: {holder} holds the election {}",
                                self.run.election.election
                            );
                            return Waited::Code(self.run.conflict_exit_code);
                        }
                    }
                    Some(_) => {}
                    None => return Waited::Code(125),
                },
                signal = self.signals.end() => return Waited::Code(code_of(signal)),
                () = &mut timeout, if patience.is_some() => {
                    self.explain(patience.unwrap_or_default());
                    return Waited::Code(self.run.conflict_exit_code);
                }
            }
        }
    }

    /// Why the wait was in vain: somebody else leads, or the API server is out of reach.
    fn explain(&self, waited: Duration) {
        let handle = self.candidate.handle();
        let why = match (handle.health().trouble(), handle.status()) {
            (Some(trouble), _) => trouble.to_string(),
            (None, Status::Follower { leader }) => format!("{leader} leads"),
            (None, _) => "nobody leads yet".to_owned(),
        };
        let election = &self.run.election.election;
        eprintln!("tenure: not elected in {election} within {waited:?}: {why}");
    }

    fn work(&self, term: &Term) -> Work {
        let run = &self.run;
        Work {
            spec: Spec {
                argv: run.command.clone(),
                env: self.environment(term),
                stdin: run.stdin == Stdin::Inherit,
            },
            on_exit: run.on_exit,
            on_failure: run.on_exit_failure.unwrap_or(run.on_exit),
            max_restarts: run.max_restarts,
            stop_signal: run.stop_signal,
            max_hold: run.max_hold,
            foreground: self.foreground,
            running: self.running.clone(),
        }
    }

    /// What the command learns about its term.
    fn environment(&self, term: &Term) -> Vec<(String, String)> {
        let election = &self.run.election;
        let mut env: Vec<(String, String)> = [
            ("LOCK_HELD", "true".to_owned()),
            ("ELECTION", election.election.clone()),
            ("NAMESPACE", self.namespace.clone()),
            ("LOCK_KIND", election.lock.to_string()),
            ("LEADER_ID", term.identity().to_owned()),
            ("TERM", term.transitions().to_string()),
            ("FENCING_TOKEN", term.token().to_string()),
            ("FENCING_TOKEN_SORTABLE", term.token().sortable()),
        ]
        .into_iter()
        .map(|(name, value)| (format!("{}{name}", self.run.env_prefix), value))
        .collect();
        if self.foreground {
            env.push((terminal::FOREGROUND.to_owned(), "1".to_owned()));
        }
        env
    }

    /// Gives the lease back, but not for ever: a hanging request or another signal ends the wait.
    async fn leave(&mut self) {
        self.candidate.shutdown();
        let finished = async {
            while let Some(event) = self.candidate.next().await {
                if matches!(event, Event::Finished) {
                    break;
                }
            }
        };
        tokio::select! {
            () = finished => {}
            () = tokio::time::sleep(RELEASE) => {}
            _ = self.signals.end() => {}
        }
    }
}

enum Waited {
    Lead(Term),
    Code(u8),
}

/// Fails before campaigning if the command cannot be run: 127 if it does not exist, 126 if it is not
/// executable.
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
