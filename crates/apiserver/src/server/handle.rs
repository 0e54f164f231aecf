//! A running server and its shutdown.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::backup::Saver;
use super::faults::Faults;
use super::instance::DataDir;
use super::reload::Reload;
use crate::audit::Audit;
use crate::auth::{Auth, Recorder};
use crate::http::Api;
use crate::pki::{Pki, write_private};
use crate::store::Store;
use crate::store::backup::{BackupError, Report};

/// Interval at which recorded roles are written if they changed.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// Public properties of a running server.
pub(super) struct HandleParts {
    pub(super) url: String,
    pub(super) insecure_url: Option<String>,
    pub(super) socket: Option<PathBuf>,
    pub(super) kubeconfig: String,
    pub(super) kubeconfig_path: Option<PathBuf>,
    pub(super) admin_token: Option<String>,
    pub(super) pki: Option<Pki>,
    pub(super) store: Arc<dyn Store>,
    pub(super) saver: Option<Saver>,
    pub(super) api: Arc<Api>,
    pub(super) auth: Arc<Auth>,
    pub(super) faults: Arc<Faults>,
}

/// Files of a running server.
pub(super) struct Files {
    /// Closes the engine, so that its files are released although a task may still hold the store.
    pub(super) close: Option<Box<dyn FnOnce() + Send + Sync>>,
    pub(super) record: Option<(PathBuf, Arc<Recorder>)>,
    pub(super) audit: Option<Arc<Audit>>,
    pub(super) data_dir: Option<DataDir>,
}

/// A running server. Dropping it ends the server immediately; [`Handle::shutdown`] ends it cleanly.
#[must_use = "dropping the handle ends the server"]
pub struct Handle {
    parts: HandleParts,
    end: watch::Sender<bool>,
    listeners: JoinSet<()>,
    files: Files,
    recording: Option<JoinHandle<()>>,
    reloading: JoinHandle<()>,
}

impl Handle {
    pub(super) fn new(
        parts: HandleParts,
        end: watch::Sender<bool>,
        listeners: JoinSet<()>,
        files: Files,
        reload: Reload,
    ) -> Self {
        let recording = files.record.clone().map(|(path, recorder)| {
            tokio::spawn(async move {
                let mut written = 0;
                loop {
                    tokio::time::sleep(RECORD_EVERY).await;
                    if recorder.changes() != written {
                        written = recorder.changes();
                        write_record(&path, &recorder);
                    }
                }
            })
        });
        Self {
            parts,
            end,
            listeners,
            files,
            recording,
            reloading: tokio::spawn(reload.run()),
        }
    }

    /// Returns the address for clients: TLS, else plain HTTP, else the socket.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.parts.url
    }

    /// Returns the plain HTTP address, if there is one.
    #[must_use]
    pub fn insecure_url(&self) -> Option<&str> {
        self.parts.insecure_url.as_deref()
    }

    /// Returns the socket file, if there is one.
    #[must_use]
    pub fn unix_socket(&self) -> Option<&Path> {
        self.parts.socket.as_deref()
    }

    /// Returns the administrator's kubeconfig as text.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.parts.kubeconfig
    }

    /// Returns the path of the written kubeconfig, if there is one.
    #[must_use]
    pub fn kubeconfig_path(&self) -> Option<&Path> {
        self.parts.kubeconfig_path.as_deref()
    }

    /// Returns the administrator's token. Only servers with a data directory or without TLS have one.
    #[must_use]
    pub fn admin_token(&self) -> Option<&str> {
        self.parts.admin_token.as_deref()
    }

    /// Returns the certificates. Only servers with TLS have them.
    #[must_use]
    pub fn pki(&self) -> Option<&Pki> {
        self.parts.pki.as_ref()
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    /// Returns the API without transport and security.
    #[must_use]
    pub fn api(&self) -> &Arc<Api> {
        &self.parts.api
    }

    /// Returns authentication and authorization.
    #[must_use]
    pub fn auth(&self) -> &Arc<Auth> {
        &self.parts.auth
    }

    /// Returns the fault injection.
    #[must_use]
    pub fn faults(&self) -> &Arc<Faults> {
        &self.parts.faults
    }

    /// Saves the current state to a file, which appears only after it is complete. The server continues to work.
    /// Returns `None` for a custom store, which does not support backups.
    ///
    /// # Errors
    /// Returns the file and the error of the file system.
    pub async fn backup(&self, path: &Path) -> Option<Result<Report, BackupError>> {
        Some(self.parts.saver.as_ref()?.save(path).await)
    }

    /// Shuts down cleanly: accepts no connections, ends watches cleanly, and answers active requests within the drain
    /// timeout.
    pub async fn shutdown(mut self) {
        self.end.send_replace(true);
        self.parts.api.shutdown();
        while self.listeners.join_next().await.is_some() {}
        self.finish();
    }

    /// Runs until SIGTERM or SIGINT, then shuts down cleanly. A second signal ends the server immediately.
    ///
    /// # Errors
    /// Returns an error if signal handlers cannot be installed.
    pub async fn run_until_signal(self) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut either = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        either().await;
        tokio::select! {
            () = self.shutdown() => {}
            () = either() => {}
        }
        Ok(())
    }

    fn finish(&mut self) {
        self.reloading.abort();
        if let Some(task) = self.recording.take() {
            task.abort();
        }
        if let Some((path, recorder)) = self.files.record.take() {
            write_record(&path, &recorder);
        }
        if let Some(close) = self.files.close.take() {
            close();
        }
        if let Some(audit) = self.files.audit.take() {
            audit.close();
        }
        self.files.data_dir = None;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end.send_replace(true);
        self.parts.api.shutdown();
        self.finish();
    }
}

fn write_record(path: &Path, recorder: &Recorder) {
    if let Err(error) = write_private(path, recorder.to_yaml().as_bytes()) {
        tracing::warn!(path = %path.display(), %error, "cannot write the recorded roles");
    }
}
