//! `tenure server` as a process, with provisioners for it.
#![allow(clippy::disallowed_methods, reason = "waits for other processes")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use tenure_csi::mock::{MockConfig, MockDriver};

use super::api::Api;
use super::provisioner::Provisioner;
use crate::process::Process;
use crate::tools;

const LIMIT: Duration = Duration::from_secs(120);

/// The built-in controllers for storage.
pub const STORAGE_CONTROLLERS: &str =
    "persistentvolume-binder,pvc-protection,pv-protection,first-consumer";

/// A server with its controllers. Dropping it ends it.
#[derive(Debug)]
pub struct Served {
    /// Client of the server's administrator.
    pub api: Api,
    /// The server.
    pub process: Process,
    folder: tempfile::TempDir,
}

impl Served {
    /// Starts it on an empty folder.
    ///
    /// # Errors
    ///
    /// Fails if it is not built or does not respond.
    pub async fn start(flags: &[&str]) -> Result<Self> {
        Self::start_on(tempfile::tempdir()?, flags).await
    }

    /// Starts it on a folder.
    ///
    /// # Errors
    ///
    /// Fails if it is not built or does not respond.
    pub async fn start_on(folder: tempfile::TempDir, flags: &[&str]) -> Result<Self> {
        let file = folder.path().join("kubeconfig");
        // Files of an earlier server do not describe this one.
        _ = std::fs::remove_file(&file);
        let mut command = Command::new(tools::tenure()?);
        command
            .args(["server", "run", "--listen=127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .args(flags);
        let mut process = Process::spawn("tenure server", command)?;
        let answers = async {
            loop {
                if let Ok(api) = Api::open(&file).await
                    && api.get("/version").await.is_ok()
                {
                    return Some(api);
                }
                if process.has_ended() {
                    return None;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        match tokio::time::timeout(LIMIT, answers).await {
            Ok(Some(api)) => Ok(Self {
                api,
                process,
                folder,
            }),
            _ => bail!("tenure server does not answer: {}", process.transcript()),
        }
    }

    /// Returns the kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Kills it, and returns its folder.
    ///
    /// # Errors
    ///
    /// Fails if no other folder can be created.
    pub fn stop(mut self) -> Result<tempfile::TempDir> {
        self.process.kill();
        Ok(std::mem::replace(&mut self.folder, tempfile::tempdir()?))
    }

    /// Starts a scripted driver in this process.
    ///
    /// # Errors
    ///
    /// Fails if it does not start.
    pub fn driver(&self, config: MockConfig) -> Result<MockDriver> {
        Ok(MockDriver::start(config, self.socket())?)
    }

    /// Starts `tenure provision` for the driver, without pauses between requests.
    ///
    /// # Errors
    ///
    /// Fails if it is not built.
    pub fn provisioner(&self, flags: &[&str]) -> Result<Provisioner> {
        let mut command = Command::new(tools::tenure()?);
        command
            .arg("provision")
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--csi-address")
            .arg(self.socket())
            .args(["--kube-api-qps=100000", "--kube-api-burst=100000"])
            .arg("--retry-interval-start=200ms")
            .args(flags)
            .env_remove("KUBECONFIG");
        let process = Process::spawn("tenure provision", command)?;
        Ok(Provisioner { process })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("csi.sock")
    }
}
