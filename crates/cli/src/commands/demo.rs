//! `tenure demo`: runs three candidates, kills their leaders, and serves a page.
//!
//! The demo is isolated: its API server is in this process and in memory, and the kernel ends the candidates with this
//! process. It leaves nothing behind and does not touch other elections.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use jiff::Timestamp;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tenure_apiserver::server::{Handle, Server};
use tokio::sync::mpsc;

use crate::commands::run;
use crate::notify::Unnotified as _;
use crate::output::{self, Paint};
use crate::page::{self, OnServer};
use crate::signals::Signals;

/// Timings with a short lease, so that a take-over after a crash is quick.
const TIMING: [&str; 3] = [
    "--lease-duration=3s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
];

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

const ELECTION: &str = "demo";

/// Time limit of a start or a hand-over.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time for candidates to end.
const GOODBYE: Duration = Duration::from_secs(5);

/// Kill local leaders and show the time of each hand-over
///
/// Three candidates run on this machine, with a server in memory.
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// End after N hand-overs [default: run until Ctrl-C]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Do not serve the page
    #[arg(long)]
    no_page: bool,
    /// Time for which each leader leads
    #[arg(long, value_name = "D", default_value = "3s", value_parser = crate::values::duration)]
    pause: Duration,
}

/// A candidate that won a term.
struct Won {
    id: String,
    at: Timestamp,
}

impl Demo {
    pub(crate) async fn run(self) -> Result<u8> {
        let mut signals = Signals::listen()?;
        let folder = Folder::new()?;
        let server = start_server(&folder.0.join("kubeconfig"), !self.no_page).await?;
        if let (false, Some(url), Some(token)) =
            (self.no_page, server.insecure_url(), server.admin_token())
        {
            println!(
                "Watch it in a browser: {url}{}#token={token}\n",
                page::PREFIX
            );
        }
        let mut stage = Stage::new(folder.0.join("kubeconfig"));
        let played = {
            let play = self.play(&mut stage);
            tokio::select! {
                played = play => Some(played),
                _ = signals.end() => None,
            }
        };
        clear_line();
        // The candidates end before the server, so that they can release the lease.
        stage.close().await;
        server.shutdown().await;
        stage.report();
        match played {
            Some(Err(error)) => Err(error),
            _ => Ok(0),
        }
    }

    async fn play(&self, stage: &mut Stage) -> Result<()> {
        for name in NAMES {
            stage.enter(name)?;
        }
        let start = Timestamp::now();
        let first = stage
            .next_leader(start, "waiting for the first leader")
            .await?;
        println!(
            "{} leads. Leaders are asked to end (SIGTERM) and killed (SIGKILL) in turn.\n",
            first.id
        );
        println!("     BY       FROM   -> TO     HAND-OVER");
        let mut leader = first.id;
        let mut round = 0;
        while self.rounds.is_none_or(|rounds| round < rounds) {
            round += 1;
            tokio::time::sleep(self.pause).await;
            let signal = if round % 2 == 1 {
                Signal::TERM
            } else {
                Signal::KILL
            };
            let at = stage.kill(&leader, signal)?;
            let text = match signal {
                Signal::TERM => format!("{leader} was asked to end"),
                _ => format!("{leader} was killed; waiting until its lease of 3 s expires"),
            };
            let next = stage.next_leader(at, &text).await?;
            let took = next.at.duration_since(at).unsigned_abs();
            stage.note(round, signal, &leader, &next.id, took);
            stage.enter(&leader)?;
            leader = next.id;
        }
        Ok(())
    }
}

async fn start_server(kubeconfig: &Path, with_page: bool) -> Result<Handle> {
    let builder = Server::builder()
        .no_tls()
        .insecure_listen(([127, 0, 0, 1], 0).into())
        .write_kubeconfig(kubeconfig);
    if !with_page {
        return Ok(builder.start().await?);
    }
    let (builder, page) = OnServer::add(builder);
    let server = builder.start().await?;
    page.open(&server).await?;
    Ok(server)
}

/// The running candidates.
struct Stage {
    kubeconfig: PathBuf,
    actors: Vec<(String, Child)>,
    won: mpsc::UnboundedReceiver<Won>,
    tell: mpsc::UnboundedSender<Won>,
    asked: Vec<Duration>,
    crashed: Vec<Duration>,
}

impl Stage {
    fn new(kubeconfig: PathBuf) -> Self {
        let (tell, won) = mpsc::unbounded_channel();
        Self {
            kubeconfig,
            actors: Vec::new(),
            won,
            tell,
            asked: Vec::new(),
            crashed: Vec::new(),
        }
    }

    /// Starts a candidate. The kernel kills it if this process dies.
    fn enter(&mut self, id: &str) -> Result<()> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        command
            .arg(run::CHILD)
            .arg(std::process::id().to_string())
            // Inherits only the standard file descriptors, and needs no control group.
            .args(["", ""])
            .arg(&own);
        command.args(["elect", "--events=json", "--require-cluster"]);
        command
            .args(["--election", ELECTION, "--id", id])
            .args(TIMING);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command
            .env_remove("TENURE_HTTP")
            .unnotified()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().context("cannot start a candidate")?;
        let stdout = child
            .stdout
            .take()
            .context("cannot read the output of a candidate")?;
        let (tell, name) = (self.tell.clone(), id.to_owned());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let Ok(event) = serde_json::from_str::<Value>(&line) else {
                    continue;
                };
                let at = event["time"].as_str().and_then(|time| time.parse().ok());
                if let (Some("acquired"), Some(at)) = (event["event"].as_str(), at) {
                    let id = name.clone();
                    let _ = tell.send(Won { id, at });
                }
            }
        });
        self.actors.push((id.to_owned(), child));
        Ok(())
    }

    /// Sends a signal to a candidate and removes it. Returns the time of the signal.
    fn kill(&mut self, id: &str, signal: Signal) -> Result<Timestamp> {
        let place = self.actors.iter().position(|(name, _)| name == id);
        let place = place.context("the leader is not a candidate of this demo")?;
        let (_, mut child) = self.actors.swap_remove(place);
        let at = Timestamp::now();
        kill_process(Pid::from_child(&child), signal).context("cannot signal a candidate")?;
        std::thread::spawn(move || child.wait());
        Ok(at)
    }

    /// Waits for the next winner, and shows the elapsed time during the wait.
    async fn next_leader(&mut self, since: Timestamp, waiting: &str) -> Result<Won> {
        let start = Instant::now();
        loop {
            match tokio::time::timeout(Duration::from_millis(100), self.won.recv()).await {
                Ok(Some(won)) if won.at >= since => {
                    clear_line();
                    return Ok(won);
                }
                Ok(Some(_)) => {}
                Ok(None) => bail!("all candidates have ended"),
                Err(_) if start.elapsed() > PATIENCE => {
                    bail!("no leader within {PATIENCE:?}")
                }
                Err(_) => progress(&format!(
                    "{waiting}: {:.1} s",
                    start.elapsed().as_secs_f64()
                )),
            }
        }
    }

    fn note(&mut self, round: u32, signal: Signal, from: &str, to: &str, took: Duration) {
        let (by, times, paint) = match signal {
            Signal::TERM => ("SIGTERM", &mut self.asked, Paint::Green),
            _ => ("SIGKILL", &mut self.crashed, Paint::Yellow),
        };
        times.push(took);
        let took = output::paint(paint, &output::span(took.as_secs_f64()));
        println!("{round:>3}. {by:<8} {from:<6} -> {to:<6} {took}");
    }

    /// Ends all candidates.
    async fn close(&mut self) {
        for (_, child) in &self.actors {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        let end = Instant::now() + GOODBYE;
        for (_, child) in &mut self.actors {
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn report(&self) {
        let line = |what: &str, times: &[Duration]| {
            let mut times = times.to_vec();
            times.sort();
            if let (Some(least), Some(most)) = (times.first(), times.last()) {
                let span = |time: &Duration| output::span(time.as_secs_f64());
                println!(
                    "{what:<34} {:>2} hand-over{}, {} to {}, median {}",
                    times.len(),
                    if times.len() == 1 { "" } else { "s" },
                    span(least),
                    span(most),
                    span(&times[times.len() / 2])
                );
            }
        };
        println!();
        line("after SIGTERM, by release:", &self.asked);
        line("after SIGKILL, by a lease of 3 s:", &self.crashed);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for (_, child) in &mut self.actors {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A temporary directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        // The name is unpredictable, so that no other user can create the folder first.
        let random = RandomState::new().build_hasher().finish();
        let name = format!("tenure-demo-{}-{random:016x}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Prints a line that the next one replaces, on terminals only.
fn progress(text: &str) {
    if output::is_terminal() {
        print!("\r\x1b[2K{}", output::paint(Paint::Faint, text));
        let _ = std::io::stdout().flush();
    }
}

fn clear_line() {
    if output::is_terminal() {
        print!("\r\x1b[2K");
        let _ = std::io::stdout().flush();
    }
}
