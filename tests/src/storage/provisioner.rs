//! A provisioner as a process, with everything it needs.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_csi::mock::{MockConfig, MockDriver};

use super::api::Api;
use crate::embedded::Embedded;
use crate::process::Process;
use crate::tools;

/// An API server in this process and a folder for sockets.
#[derive(Debug)]
pub struct Rig {
    /// The server.
    pub server: Embedded,
    /// The server's administrator.
    pub api: Api,
    folder: tempfile::TempDir,
}

impl Rig {
    /// Starts the server.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start() -> Result<Self> {
        let server = Embedded::start()?;
        let api = Api::open(&server.kubeconfig()).await?;
        Ok(Self {
            server,
            api,
            folder: tempfile::tempdir()?,
        })
    }

    /// Starts a scripted driver in this process.
    ///
    /// # Errors
    /// It does not start.
    pub fn driver(&self, name: &str, config: MockConfig) -> Result<MockDriver> {
        Ok(MockDriver::start(config, self.socket(name))?)
    }

    /// Where a driver listens.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `tenure provision` for the driver at a socket, with these flags and without pauses between
    /// requests.
    ///
    /// # Errors
    /// It is not built.
    pub fn command(&self, socket: &str, flags: &[&str]) -> Result<Command> {
        let mut command = Command::new(tools::tenure()?);
        command
            .arg("provision")
            .arg("--kubeconfig")
            .arg(self.server.kubeconfig())
            .arg("--csi-address")
            .arg(self.socket(socket))
            .args(["-v=5", "--kube-api-qps=10000", "--kube-api-burst=10000"])
            .arg("--retry-interval-start=200ms")
            .args(flags)
            .env_remove("KUBECONFIG");
        Ok(command)
    }

    /// Starts it.
    ///
    /// # Errors
    /// It is not built.
    pub fn provisioner(&self, socket: &str, flags: &[&str]) -> Result<Provisioner> {
        let command = self.command(socket, flags)?;
        let process = Process::spawn(format!("provisioner {socket}"), command);
        Ok(Provisioner {
            process: process.context("tenure provision")?,
        })
    }
}

/// A running provisioner.
#[derive(Debug)]
pub struct Provisioner {
    /// The process.
    pub process: Process,
}

impl Provisioner {
    /// Asks it to end, and waits: its exit code.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn stop(mut self) -> Result<Option<i32>> {
        self.process.terminate();
        Ok(self.process.wait(Duration::from_secs(60))?.code())
    }
}
