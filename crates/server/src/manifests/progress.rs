//! The first pass over the manifests, which readiness waits for.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tenure::{Handle, Status};
use tokio::sync::watch;
use tokio::time::Instant;

/// Maximum time that readiness waits for the first pass.
const LIMIT: Duration = Duration::from_secs(60);

/// State of the first pass over the manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstPass {
    /// Whether every file was applied or rejected.
    pub done: bool,
    /// Number of files.
    pub files: usize,
    /// Number of files that are not applied completely.
    pub failed: usize,
}

impl FirstPass {
    /// A pass without files.
    pub(crate) const NONE: Self = Self {
        done: true,
        files: 0,
        failed: 0,
    };
}

/// State of the first pass that the controller shares with the readiness check.
#[derive(Debug)]
pub(crate) struct Progress {
    pass: watch::Sender<FirstPass>,
    deadline: Instant,
    /// The election of the controllers. A server that does not lead applies nothing.
    election: OnceLock<Handle>,
}

impl Progress {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            pass: watch::Sender::default(),
            deadline: Instant::now() + LIMIT,
            election: OnceLock::new(),
        })
    }

    pub(crate) fn set_election(&self, election: Handle) {
        let _ = self.election.set(election);
    }

    pub(crate) fn is_done(&self) -> bool {
        self.pass.borrow().done
    }

    pub(crate) fn publish(&self, pass: FirstPass) {
        self.pass.send_if_modified(|present| {
            let changed = *present != pass && !present.done;
            if changed {
                *present = pass;
            }
            changed
        });
    }

    /// Runs the check of `/readyz`.
    ///
    /// # Errors
    /// Returns the manifests that are not applied yet.
    pub(crate) fn check(&self) -> Result<(), String> {
        let pass = *self.pass.borrow();
        let follows = || {
            let status = self.election.get().map(Handle::status);
            matches!(status, Some(Status::Follower { .. }))
        };
        if pass.done || Instant::now() >= self.deadline || follows() {
            return Ok(());
        }
        Err(match pass.files {
            0 => "the manifests are not applied yet".to_owned(),
            files => format!("{} of {files} manifests are not applied yet", pass.failed),
        })
    }

    /// Waits for the end of the first pass, for at most the time that readiness waits. A server that does not lead has
    /// no first pass.
    pub(crate) async fn finished(&self) -> Option<FirstPass> {
        let mut pass = self.pass.subscribe();
        let waited = tokio::time::timeout_at(self.deadline, pass.wait_for(|pass| pass.done)).await;
        waited.ok()?.ok().map(|pass| *pass)
    }
}
