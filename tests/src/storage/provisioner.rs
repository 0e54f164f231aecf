//! A provisioner as a process, with everything it needs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_apiserver::server::{Builder, Server};
use tenure_csi::mock::{MockConfig, MockDriver};

use super::api::Api;
use crate::embedded::Embedded;
use crate::process::Process;
use crate::tools;

const PATIENCE: Duration = Duration::from_secs(90);

/// Repeats a check until it returns a value. The time limit is so long that only a defect exceeds it.
///
/// # Panics
///
/// Panics if there is never a value.
#[allow(clippy::disallowed_methods, reason = "waits for other processes")]
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < end, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// An API server in this process and a folder for sockets.
#[derive(Debug)]
pub struct Rig {
    /// The server.
    pub server: Embedded,
    /// Client of the server's administrator.
    pub api: Api,
    folder: tempfile::TempDir,
}

impl Rig {
    /// Starts the server.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub async fn start() -> Result<Self> {
        Self::start_with(Server::builder()).await
    }

    /// Starts a server with another configuration.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub async fn start_with(server: Builder) -> Result<Self> {
        let server = Embedded::start_with(server)?;
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
    ///
    /// Fails if it does not start.
    pub fn driver(&self, name: &str, config: MockConfig) -> Result<MockDriver> {
        Ok(MockDriver::start(config, self.socket(name))?)
    }

    /// Returns the socket of a driver.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns `tenure provision` for the driver at a socket, with these flags and without pauses between requests.
    ///
    /// # Errors
    ///
    /// Fails if it is not built.
    pub fn command(&self, socket: &str, flags: &[&str]) -> Result<Command> {
        self.command_as(&self.server.kubeconfig(), socket, flags)
    }

    /// Returns the same with another kubeconfig.
    ///
    /// # Errors
    ///
    /// Fails if it is not built.
    pub fn command_as(&self, kubeconfig: &Path, socket: &str, flags: &[&str]) -> Result<Command> {
        let mut command = Command::new(tools::tenure()?);
        command
            .arg("provision")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--csi-address")
            .arg(self.socket(socket))
            .args(["-v=5", "--kube-api-qps=10000", "--kube-api-burst=10000"])
            .arg("--retry-interval-start=200ms")
            .args(flags)
            .env_remove("KUBECONFIG");
        Ok(command)
    }

    /// Starts the provisioner.
    ///
    /// # Errors
    ///
    /// Fails if it is not built.
    pub fn provisioner(&self, socket: &str, flags: &[&str]) -> Result<Provisioner> {
        let command = self.command(socket, flags)?;
        Self::spawn(socket, command)
    }

    /// Starts the provisioner with a command of the caller.
    ///
    /// # Errors
    ///
    /// Fails if it does not exist.
    pub fn spawn(socket: &str, command: Command) -> Result<Provisioner> {
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
    /// Asks it to end, waits, and returns its exit code.
    ///
    /// # Errors
    ///
    /// Fails if it does not end in time.
    pub fn stop(mut self) -> Result<Option<i32>> {
        self.process.terminate();
        Ok(self.process.wait(Duration::from_secs(60))?.code())
    }
}
