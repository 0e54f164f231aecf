//! `tenure server` as a separate process, with the durable store.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures_util::StreamExt as _;
use http::Method;
use serde_json::json;
use tempfile::TempDir;
use tenure_apiserver::store::{Change, Expected, Key, RedbStore, Store, Write};

use super::client::Server;
use super::runtime;

/// Disables all controllers, because the real server also runs without its controller manager.
const ALONE: &str = "--disable=default-service-account,root-ca,garbage-collector,namespace-purge,\
    persistentvolume-binder,pvc-protection,pv-protection,first-consumer";

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Ours {
    child: Child,
    folder: TempDir,
    /// Time from the start of the process to `ok` from readyz.
    pub ready: Duration,
}

impl Ours {
    /// Starts it on an empty folder.
    ///
    /// # Errors
    ///
    /// Fails if it is not built or does not respond.
    pub fn start() -> Result<Self> {
        Self::start_on(tempfile::tempdir()?)
    }

    /// Starts it on an empty folder with additional arguments.
    ///
    /// # Errors
    ///
    /// Fails if it is not built or does not respond.
    pub fn start_with(args: &[&str]) -> Result<Self> {
        Self::run(tempfile::tempdir()?, &[&[ALONE], args].concat())
    }

    /// Starts it on an empty folder with its controllers, which is the default.
    ///
    /// # Errors
    ///
    /// Fails if it is not built or does not respond.
    pub fn start_whole() -> Result<Self> {
        Self::run(tempfile::tempdir()?, &[])
    }

    /// Starts it on a folder.
    ///
    /// # Errors
    ///
    /// Fails if it is not built or does not respond.
    pub fn start_on(folder: TempDir) -> Result<Self> {
        Self::run(folder, &[ALONE])
    }

    fn run(folder: TempDir, args: &[&str]) -> Result<Self> {
        // Files of an earlier server do not describe this one.
        let _ = std::fs::remove_file(folder.path().join("kubeconfig"));
        let began = Instant::now();
        let child = Command::new(crate::bench::shipped()?.0)
            .args(["server", "run", "--listen=127.0.0.1:0", "--data-dir"])
            .arg(folder.path())
            .args(args)
            .stderr(Stdio::null())
            .spawn()?;
        let mut ours = Self {
            child,
            folder,
            ready: Duration::ZERO,
        };
        let runtime = runtime()?;
        while began.elapsed() < Duration::from_secs(60) {
            if ours.kubeconfig().exists() && runtime.block_on(is_ready(&ours.kubeconfig())).is_ok()
            {
                ours.ready = began.elapsed();
                return Ok(ours);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        bail!("tenure server is not ready after 60 s");
    }

    /// Ends it and keeps its folder.
    ///
    /// # Errors
    ///
    /// Fails if it does not end.
    pub fn stop(mut self) -> Result<TempDir> {
        self.child.kill()?;
        self.child.wait()?;
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir()?);
        Ok(folder)
    }

    /// Returns the kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn is_ready(kubeconfig: &Path) -> Result<()> {
    let mut client = Server::new(kubeconfig).await?.connect().await?;
    client.send(Method::GET, "/readyz", String::new()).await?;
    Ok(())
}

/// Writes this many Leases to the store of a stopped server.
///
/// # Errors
///
/// Fails if the store cannot be opened or rejects a write.
pub(super) async fn fill(folder: &Path, leases: usize) -> Result<()> {
    let store = RedbStore::open(folder)?;
    let put = async |index: usize| {
        let name = format!("lease-{index}");
        let value = json!({
            "metadata": { "name": name, "namespace": "default", "uid": format!("{index:032}"),
                "creationTimestamp": "2026-01-02T03:04:05Z" },
            "spec": { "holderIdentity": "load", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:05.000006Z" },
        });
        let key = Key {
            resource: "coordination.k8s.io/leases".into(),
            namespace: "default".to_owned(),
            name,
        };
        let write = Write::new(key, Expected::Absent, Change::Put(value.into()));
        store.write(write).await
    };
    let mut writes = futures_util::stream::iter(0..leases)
        .map(put)
        .buffer_unordered(1024);
    while let Some(written) = writes.next().await {
        written?;
    }
    drop(writes);
    store.close();
    Ok(())
}
