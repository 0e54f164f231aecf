//! Errors of a manager.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::{BuildError, StopReason};

/// Error of a manager that did not start, or that stopped without a request. The program should exit with code 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The election of a group is not valid.
    #[error("group {group}: {source}")]
    Election {
        /// The group.
        group: String,
        /// Every problem.
        source: BuildError,
    },
    /// A name is used twice, which would make metrics ambiguous.
    #[error("two runnables have the name {0}")]
    DuplicateName(String),
    /// A setting refers to a leader group without runnables.
    #[error("leader group {group} does not exist ({})", known(groups))]
    NoSuchGroup {
        /// The group.
        group: String,
        /// The existing groups.
        groups: Vec<String>,
    },
    /// A runnable was added after the shutdown began.
    #[error("{0} cannot be added: the manager is stopping or has stopped")]
    Stopped(String),
    /// A shard group is invalid.
    #[error("shard group {group}: {cause}")]
    Shards {
        /// The group.
        group: String,
        /// The reason.
        cause: String,
    },
    /// The client cannot be set up.
    #[error("cannot set up the client: {0}")]
    Client(#[from] kube::Error),
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Signal handlers cannot be installed.
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    /// A startup hook failed, or dropped its done handle.
    #[error("startup hook {name}: {cause}")]
    Hook {
        /// The hook.
        name: String,
        /// The reason.
        cause: String,
    },
    /// The API server did not become ready.
    #[error("the API server was not ready within {} s: {last}", limit.as_secs_f64())]
    NotReady {
        /// Time limit that was exceeded.
        limit: Duration,
        /// The last response.
        last: String,
    },
    /// A cache did not get its first list.
    #[error("cache {name} was not filled within {} s: {last}", limit.as_secs_f64())]
    CacheSync {
        /// The cache.
        name: String,
        /// Time limit that was exceeded.
        limit: Duration,
        /// The last error, if there was one.
        last: String,
    },
    /// A runnable with the policy to die failed or panicked.
    #[error("{name}: {cause}")]
    Runnable {
        /// The runnable.
        name: String,
        /// The reason.
        cause: String,
    },
    /// A term ended although this process continues.
    #[error("leader election lost for {group}: {}", reason.as_str())]
    Lost {
        /// The group.
        group: String,
        /// Reason for the end of the term.
        reason: StopReason,
    },
    /// Work did not end in time. Locks that it held are not released.
    #[error("still running {} s after the stop was requested: {}", limit.as_secs_f64(), names.join(", "))]
    ShutdownTimeout {
        /// Time limit that was exceeded.
        limit: Duration,
        /// Names of the work that still ran.
        names: Vec<String>,
    },
}

fn known(groups: &[String]) -> String {
    if groups.is_empty() {
        return "no groups exist".to_owned();
    }
    format!("existing groups: {}", groups.join(", "))
}

/// Returns an error with its causes, because the outermost error alone has too little information.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
