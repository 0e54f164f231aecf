//! Cost of the `tenure` command: size, memory, start, hand-over. Uses its own local server, as a user would.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a benchmark measures durations and prints its progress"
)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use super::percentile;
use crate::clock::{self, Nanos};
use crate::event::Kind;
use crate::process::Process;

const LIMIT: Duration = Duration::from_secs(60);
const COLD_STARTS: usize = 7;
const STARTS: usize = 30;
const HAND_OVERS: usize = 100;

/// Measures the output of `cargo xtask image` if there is one, otherwise the profile `dist`, otherwise this build.
///
/// # Errors
///
/// Fails if the command is not built, or did not do what was expected.
pub fn bench(_real: bool) -> Result<String> {
    let (program, build) = super::shipped()?;
    let sidecar = program.with_file_name("tenure-sidecar");
    let sidecar = if sidecar.is_file() {
        &sidecar
    } else {
        &program
    };
    let mut text = format!(
        "### The command, as in `target/{build}`\n\n| | goal | measured |\n|---|---|---|\n"
    );
    let mut row = |what: &str, limit: &str, measured: String| {
        eprintln!("{what}: {measured}");
        let _ = writeln!(text, "| {what} | {limit} | {measured} |");
    };
    for (what, file) in [
        ("size of the binary", &program),
        ("size of the sidecar binary", sidecar),
    ] {
        let bytes = std::fs::metadata(file)?.len();
        row(what, "18 MB", format!("{:.1} MB", megabytes(bytes)));
    }
    let cold = cold_starts(&program)?;
    row(
        "`tenure run -- true`, which first starts the local server",
        "500 ms",
        spread(&cold),
    );
    let home = Home::new(&program)?;
    row(
        "from the start of `tenure elect` until it leads",
        "100 ms",
        spread(&starts(&home)?),
    );
    let (leading, following) = resident(&home, sidecar)?;
    row(
        "resident memory of a leading sidecar",
        "8 MB",
        format!("{:.1} MB", megabytes(leading)),
    );
    row(
        "resident memory of a following sidecar",
        "8 MB",
        format!("{:.1} MB", megabytes(following)),
    );
    row(
        "from SIGTERM of the leader until the command of the next leader runs",
        "p99 100 ms",
        spread(&hand_overs(&home)?),
    );
    Ok(text)
}

/// A separate home directory. Its local server ends with it.
struct Home {
    folder: tempfile::TempDir,
    program: PathBuf,
}

impl Home {
    fn new(program: &Path) -> Result<Self> {
        Ok(Self {
            folder: tempfile::tempdir()?,
            program: program.to_owned(),
        })
    }

    fn command(&self) -> Command {
        self.command_of(&self.program)
    }

    fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("TENURE_ALLOW_LOCAL", "1")
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Result<Duration> {
        let began = Instant::now();
        let status = self.command().args(args).status()?;
        if !status.success() {
            bail!("tenure {args:?}: {status}");
        }
        Ok(began.elapsed())
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        _ = self.command().args(["server", "stop"]).status();
    }
}

fn cold_starts(program: &Path) -> Result<Vec<Duration>> {
    let one = |_| Home::new(program)?.run(&["run", "--election=a", "--", "true"]);
    (0..COLD_STARTS).map(one).collect()
}

fn elect(home: &Home, election: &str, id: &str) -> Result<Process> {
    let mut command = home.command();
    command.args(["elect", "--events=json", "--election", election, "--id", id]);
    Ok(Process::spawn(id, command)?)
}

fn starts(home: &Home) -> Result<Vec<Duration>> {
    home.run(&["run", "--election=warm", "--", "true"])?;
    let one = |at: usize| {
        let began = clock::now();
        let process = elect(home, &format!("start-{at}"), "a")?;
        let acquired = process.wait_for(Kind::Acquired, Nanos(0), LIMIT)?;
        Ok(acquired.t.since(began))
    };
    (0..STARTS).map(one).collect()
}

/// Measures the memory of a leading and of a following sidecar. The sidecar's build contains no server, so it gets the
/// address of the local one.
fn resident(home: &Home, sidecar: &Path) -> Result<(u64, u64)> {
    let start = |id: &str| -> Result<Process> {
        let mut command = home.command_of(sidecar);
        let kubeconfig = home.folder.path().join(".local/state/tenure/kubeconfig");
        command.arg("--kubeconfig").arg(kubeconfig);
        command.args(["elect", "--events=json", "--election=resident", "--id", id]);
        Ok(Process::spawn(id, command)?)
    };
    let leader = start("a")?;
    leader.wait_for(Kind::Acquired, Nanos(0), LIMIT)?;
    let follower = start("b")?;
    follower.wait_for(Kind::Observed, Nanos(0), LIMIT)?;
    sleep(Duration::from_secs(12));
    let bytes = |process: &Process| {
        process
            .resident_bytes()
            .context("/proc has no entry for the process")
    };
    Ok((bytes(&leader)?, bytes(&follower)?))
}

/// Runs three wrappers. The leader is asked to end, and is started again as the last one.
fn hand_overs(home: &Home) -> Result<Vec<Duration>> {
    let started = home.folder.path().join("started");
    let script = "echo $TENURE_LEADER_ID $(date +%s%N) >> started; exec sleep 1000";
    let start = |id: usize| -> Result<(usize, Child)> {
        let mut command = home.command();
        command
            .args(["run", "--election=hand-over", "--id", &id.to_string(), "--"])
            .args(["sh", "-c", script]);
        Ok((id, command.spawn()?))
    };
    let lines = || std::fs::read_to_string(&started).unwrap_or_default();
    let nth = |at: usize| -> Result<(usize, i64)> {
        let line = clock::poll(LIMIT, || Some(lines().lines().nth(at)?.to_owned()));
        let line = line.context("nobody leads")?;
        let (id, at) = line.split_once(' ').context("incomplete line")?;
        Ok((id.parse()?, at.parse()?))
    };
    let mut fleet: Vec<(usize, Child)> = (0..3).map(start).collect::<Result<_>>()?;
    let mut took = Vec::new();
    for at in 0..HAND_OVERS {
        let (leader, _) = nth(at)?;
        // Long enough for the process that was started last to become a follower.
        sleep(Duration::from_millis(300));
        let place = fleet.iter().position(|(id, _)| *id == leader);
        let (_, mut child) = fleet.remove(place.context("the leader is not in the fleet")?);
        let asked = clock::now();
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let (_, next) = nth(at + 1)?;
        took.push(Nanos(next).since(asked));
        child.wait()?;
        fleet.push(start(at + 3)?);
    }
    for (_, child) in &mut fleet {
        kill_process(Pid::from_child(child), Signal::TERM)?;
        child.wait()?;
    }
    Ok(took)
}

fn spread(all: &[Duration]) -> String {
    let at = |percent| percentile(all, percent).as_secs_f64() * 1000.0;
    format!(
        "p50 {:.0} ms, p99 {:.0} ms of {} runs",
        at(50),
        at(99),
        all.len()
    )
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
