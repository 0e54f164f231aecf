//! A running server, and its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::backup::Saver;
use super::faults::Faults;
use super::instance::DataDir;
use crate::auth::{Auth, Recorder};
use crate::http::Api;
use crate::pki::{Pki, write_private};
use crate::store::Store;
use crate::store::backup::{BackupError, Report};

/// How often recorded traffic is written down, if there is new.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// What others may know of a running server.
pub(super) struct Parts {
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

/// Files that a running server holds.
pub(super) struct Files {
    /// Ends the engine, so that its files are free although a task may still know the store.
    pub(super) close: Option<Box<dyn FnOnce() + Send + Sync>>,
    pub(super) record: Option<(PathBuf, Arc<Recorder>)>,
    pub(super) data_dir: Option<DataDir>,
}

/// A running server. Dropping it ends the server at once; [`Handle::shutdown`] ends it cleanly.
#[must_use = "dropping the handle ends the server"]
pub struct Handle {
    parts: Parts,
    end: watch::Sender<bool>,
    listeners: JoinSet<()>,
    files: Files,
    recording: Option<JoinHandle<()>>,
}

impl Handle {
    pub(super) fn new(
        parts: Parts,
        end: watch::Sender<bool>,
        listeners: JoinSet<()>,
        files: Files,
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
        }
    }

    /// Where clients connect: the TLS address, else the plain one, else the socket.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.parts.url
    }

    /// The plain HTTP address, if there is one.
    #[must_use]
    pub fn insecure_url(&self) -> Option<&str> {
        self.parts.insecure_url.as_deref()
    }

    /// The socket file, if there is one.
    #[must_use]
    pub fn unix_socket(&self) -> Option<&Path> {
        self.parts.socket.as_deref()
    }

    /// The administrator's kubeconfig, as text.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.parts.kubeconfig
    }

    /// Where the kubeconfig was written, if it was.
    #[must_use]
    pub fn kubeconfig_path(&self) -> Option<&Path> {
        self.parts.kubeconfig_path.as_deref()
    }

    /// The administrator's token; only servers with a data directory or without TLS have one.
    #[must_use]
    pub fn admin_token(&self) -> Option<&str> {
        self.parts.admin_token.as_deref()
    }

    /// The certificates; only servers with TLS have them.
    #[must_use]
    pub fn pki(&self) -> Option<&Pki> {
        self.parts.pki.as_ref()
    }

    /// The store behind the API.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.parts.store
    }

    /// The API, without transport and security in front.
    #[must_use]
    pub fn api(&self) -> &Arc<Api> {
        &self.parts.api
    }

    /// Authentication and authorization.
    #[must_use]
    pub fn auth(&self) -> &Arc<Auth> {
        &self.parts.auth
    }

    /// Faults on purpose.
    #[must_use]
    pub fn faults(&self) -> &Arc<Faults> {
        &self.parts.faults
    }

    /// Saves the present state to a file, which appears only when it is complete; the server goes on
    /// meanwhile. `None` for a custom store, which this server cannot save.
    ///
    /// # Errors
    /// Names the file and what the file system said.
    pub async fn backup(&self, path: &Path) -> Option<Result<Report, BackupError>> {
        Some(self.parts.saver.as_ref()?.save(path).await)
    }

    /// Ends cleanly: no new connections, watches end as streams end, requests under way are
    /// answered, as long as the drain timeout lasts.
    pub async fn shutdown(mut self) {
        self.end.send_replace(true);
        self.parts.api.shutdown();
        while self.listeners.join_next().await.is_some() {}
        self.finish();
    }

    /// Runs until SIGTERM or SIGINT, then ends cleanly. A second signal ends at once.
    ///
    /// # Errors
    /// If signals cannot be listened for.
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
        if let Some(task) = self.recording.take() {
            task.abort();
        }
        if let Some((path, recorder)) = self.files.record.take() {
            write_record(&path, &recorder);
        }
        if let Some(close) = self.files.close.take() {
            close();
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
