//! The audit log: one JSON line per stage of a request, in the format of `audit.k8s.io/v1` Events.
//!
//! | file | content |
//! |---|---|
//! | `policy` | the rules that select the recorded requests and their level of detail |
//! | `trail` | the data of one request, collected from its head to the end of its response |
//! | `event` | the JSON line |
//! | `log` | the bounded queue, the writer thread, and the rotated files |
//!
//! Invariant: a request never waits for the log. An event that does not fit into the queue, or cannot be written, is
//! counted and dropped.

mod event;
mod log;
mod policy;
mod trail;

use std::path::PathBuf;
use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

pub use policy::{Level, Policy, PolicyError, Stage};
pub(crate) use trail::Trail;

/// Configuration of the audit log.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The file, or `-` for standard output.
    pub path: PathBuf,
    /// The requests to record.
    pub policy: Policy,
    /// Size in bytes at which the file is rotated; 0 disables rotation.
    pub max_bytes: u64,
    /// Number of rotated files to keep; 0 keeps all.
    pub max_backups: usize,
}

impl Options {
    /// Records requests to this file, with the default policy. Files are rotated at 100 MiB, and 10 rotated files are
    /// kept.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            policy: Policy::default(),
            max_bytes: 100 << 20,
            max_backups: 10,
        }
    }
}

/// Error of opening the audit log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// The file cannot be opened.
    #[error("cannot open the audit log {0}: {1}")]
    File(String, #[source] std::io::Error),
    /// The file is not a regular file.
    #[error("the audit log {0} is not a regular file; name a file, or `-` for standard output")]
    NotAFile(String),
    /// Another user of the machine owns the file and can change it.
    #[error(
        "the audit log {0} belongs to user {1}, who can change it; remove it, or name another file"
    )]
    OtherOwner(String, u32),
}

/// Counters of the audit log, under the names that kube-apiserver uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    events: Counter,
    errors: Counter,
}

impl Counts {
    pub(crate) fn register(&self, registry: &mut Registry) {
        let help = "Generated audit events";
        registry.register("apiserver_audit_event", help, self.events.clone());
        let label = ("plugin".into(), "log".into());
        let help = "Audit events that were dropped because the queue was full or the file was not writable";
        registry.sub_registry_with_label(label).register(
            "apiserver_audit_error",
            help,
            self.errors.clone(),
        );
    }
}

/// An open audit log.
pub(crate) struct Audit {
    policy: Policy,
    log: log::Log,
}

impl Audit {
    /// Opens the file and starts the writer.
    pub(crate) fn open(options: Options, counts: Counts) -> Result<Arc<Self>, AuditError> {
        Ok(Arc::new(Self {
            log: log::Log::open(&options, counts)?,
            policy: options.policy,
        }))
    }

    /// Writes the queued events, in bounded time. Later events are dropped.
    pub(crate) fn close(&self) {
        self.log.close();
    }
}
