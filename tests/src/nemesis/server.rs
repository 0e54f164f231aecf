//! The API server of a campaign: the real one with etcd, or ours, with the faults that are possible for each.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::Process;
use crate::real::{Cluster, Program};
use crate::wire::Wire;
use crate::{clock, tools};

const LIMIT: Duration = Duration::from_secs(240);

/// A server that can be killed and stopped, and whose disk can be filled.
#[derive(Debug)]
pub enum Server {
    /// kube-apiserver and etcd.
    Real(Box<Cluster>),
    /// `tenure server` as a separate process.
    Embedded(Box<Ours>),
}

/// `tenure server` with its durable store, on a separate disk if possible.
#[derive(Debug)]
pub struct Ours {
    process: Process,
    port: u16,
    disk: Disk,
}

impl Server {
    /// Starts a new real server.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn real() -> Result<Self> {
        Ok(Self::Real(Box::new(Cluster::start()?)))
    }

    /// Starts a new server of ours.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn embedded() -> Result<Self> {
        let disk = Disk::new()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let process = run_ours(port, disk.path())?;
        let mut server = Self::Embedded(Box::new(Ours {
            process,
            port,
            disk,
        }));
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Returns its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Real(_) => "kube-apiserver + etcd",
            Self::Embedded(_) => "tenure server",
        }
    }

    /// Returns the kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        match self {
            Self::Real(cluster) => cluster.kubeconfig(),
            Self::Embedded(ours) => ours.disk.path().join("kubeconfig"),
        }
    }

    /// Kills it without warning. Its store stays up if it is a separate process.
    pub fn kill(&mut self) {
        match self {
            Self::Real(cluster) => cluster.kill(Program::KubeApiserver),
            Self::Embedded(ours) => _ = ours.process.kill(),
        }
    }

    /// Kills its store without warning. Our server has no separate store and is killed instead.
    pub fn kill_store(&mut self) {
        match self {
            Self::Real(cluster) => cluster.kill(Program::Etcd),
            Self::Embedded(_) => self.kill(),
        }
    }

    /// Starts the process that [`kill`](Self::kill) killed.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn start(&mut self) -> Result<()> {
        match self {
            Self::Real(cluster) => Ok(cluster.start_again(Program::KubeApiserver)?),
            Self::Embedded(ours) => {
                ours.process = run_ours(ours.port, ours.disk.path())?;
                Ok(())
            }
        }
    }

    /// Starts the process that [`kill_store`](Self::kill_store) killed.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn start_store(&mut self) -> Result<()> {
        match self {
            Self::Real(cluster) => Ok(cluster.start_again(Program::Etcd)?),
            Self::Embedded(_) => self.start(),
        }
    }

    /// Sends SIGSTOP to the API server.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT to the API server.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Returns whether [`fill_disk`](Self::fill_disk) has an effect here.
    pub fn has_own_disk(&self) -> bool {
        matches!(self, Self::Embedded(ours) if ours.disk.mounted)
    }

    /// Fills the server's disk to the last byte.
    ///
    /// # Errors
    ///
    /// Fails if the file that fills it cannot be created.
    pub fn fill_disk(&self) -> io::Result<()> {
        match self {
            Self::Embedded(ours) if ours.disk.mounted => ours.disk.fill(),
            _ => Ok(()),
        }
    }

    /// Frees the disk space.
    pub fn free_disk(&self) {
        if let Self::Embedded(ours) = self {
            ours.disk.free();
        }
    }

    /// Waits until it responds. A kube-apiserver that starts without its store exits, and is started again, like a
    /// kubelet would do.
    ///
    /// # Errors
    ///
    /// Fails if it does not respond.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let kubeconfig = self.kubeconfig();
        let ready = clock::poll(LIMIT, || {
            if let Self::Real(cluster) = self
                && let Some(program) = cluster.dead()
            {
                cluster.start_again(program).ok()?;
            }
            let wire = Wire::connect(&kubeconfig).ok()?;
            let answer = wire.get("/api/v1/namespaces/default").ok()?;
            answer.status.is_success().then_some(())
        });
        ready.with_context(|| format!("{} is not ready in {LIMIT:?}\n{}", self.name(), self.said()))
    }

    /// Returns its last output, if the harness captures it.
    pub fn said(&self) -> String {
        match self {
            Self::Real(_) => String::new(),
            Self::Embedded(ours) => ours.process.transcript(),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = match self {
            Self::Real(cluster) => cluster.pids().last().copied(),
            Self::Embedded(ours) => Some(ours.process.pid()),
        };
        let pid = pid.and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            _ = kill_process(pid, signal);
        }
    }
}

fn run_ours(port: u16, dir: &Path) -> Result<Process> {
    let mut command = Command::new(tools::tenure()?);
    command.args(["server", "run", &format!("--listen=127.0.0.1:{port}")]);
    command.arg("--data-dir").arg(dir);
    Ok(Process::spawn("tenure server", command)?)
}

/// A folder; a separate file system if this process may mount one.
#[derive(Debug)]
struct Disk {
    folder: tempfile::TempDir,
    mounted: bool,
}

impl Disk {
    fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("tenure-disk-").tempdir()?;
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m,mode=0700", "tenure-disk"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        Ok(Self { folder, mounted })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    fn fill(&self) -> io::Result<()> {
        use io::Write;
        let mut file = std::fs::File::create(self.filler())?;
        // Write smaller and smaller pieces, until not one byte fits.
        let mut piece = vec![0; 1 << 20];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
        Ok(())
    }

    fn free(&self) {
        _ = std::fs::remove_file(self.filler());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted {
            _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }
}
