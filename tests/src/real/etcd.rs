//! An etcd with one member, without an API server.

use std::io;
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::build::{Peer, build};
use super::cluster::{etcd_command, free_ports};
use crate::clock;

/// A running etcd. Dropping it ends it and removes its data.
#[derive(Debug)]
pub struct Etcd {
    child: Child,
    port: u16,
    _folder: TempDir,
}

impl Etcd {
    /// Starts one on a free port. Builds it first if necessary.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be built or started.
    pub fn start() -> io::Result<Self> {
        let program = build(Peer::Etcd).map_err(io::Error::other)?;
        let folder = tempfile::Builder::new().prefix("tenure-etcd-").tempdir()?;
        let [port, peer] = free_ports()?;
        let mut command = etcd_command(&program, folder.path(), port, peer);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut etcd = Self {
            child: crate::spawn::spawn_bound(command)?,
            port,
            _folder: folder,
        };
        let listens = || TcpStream::connect(("127.0.0.1", port)).ok();
        if clock::poll(Duration::from_secs(240), listens).is_none() {
            let ended = etcd.child.try_wait()?;
            return Err(io::Error::other(format!("etcd does not listen: {ended:?}")));
        }
        Ok(etcd)
    }

    /// Sends SIGSTOP: it is stopped.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Sends SIGCONT: it continues.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            _ = kill_process(pid, signal);
        }
    }

    /// Returns its URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns its port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
