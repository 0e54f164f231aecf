//! Real Kubernetes beside our own programs: kube-apiserver, etcd and client-go, built from `peers/`.
//!
//! The first build takes minutes, so tests run by hand only use what is built already and say what is missing.
//! `TENURE_REAL=build`, as `cargo xtask test` has it, makes them build it, if there is Go. With
//! `TENURE_REAL=require`, and where `CI=true` and nothing else is said, a missing Go is a failure too.
//!
//! `TENURE_KUBECONFIG=FILE` names a cluster that is there already: tests that share one use it, and those that
//! need one of their own, because they restart parts of it or run its controllers, say so and pass.

mod build;
mod cluster;
mod detached;
mod etcd;

use std::env;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

pub use build::{BuildError, Peer, build, build_rust_peer, built, peers_dir};
pub use cluster::{Cluster, Program, StartError};
pub use detached::{Detached, DetachedError, State};
pub use etcd::Etcd;

use crate::Skip;

/// What is done about a missing part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Skip,
    Build,
    Require,
}

impl Missing {
    fn of_this_run() -> Self {
        let value = |name| env::var(name).ok();
        Self::told(value("TENURE_REAL").as_deref(), value("CI").as_deref())
    }

    fn told(real: Option<&str>, ci: Option<&str>) -> Self {
        match (real, ci) {
            (Some("require"), _) => Self::Require,
            (Some("build"), _) => Self::Build,
            (_, Some("true")) => Self::Require,
            _ => Self::Skip,
        }
    }
}

/// Whether missing parts are a failure rather than a reason to skip.
pub fn required() -> bool {
    existing().is_none() && Missing::of_this_run() == Missing::Require
}

/// The kubeconfig of a cluster that is there already, if one is to be used.
fn existing() -> Option<PathBuf> {
    let file = env::var_os("TENURE_KUBECONFIG")?;
    (!file.is_empty()).then(|| file.into())
}

/// Whether a test may start a cluster for itself alone.
///
/// # Errors
/// Its programs are not there, or another cluster is to be used.
pub fn own_cluster() -> Result<(), Skip> {
    match existing() {
        Some(file) => Err(Skip(format!(
            "this needs a cluster of its own, not that of {}",
            file.display()
        ))),
        None => available(&[Peer::Etcd, Peer::KubeApiserver]),
    }
}

/// The cluster that all tests of one run share: starting one takes seconds. Built parts are needed, or a
/// cluster that is there already.
///
/// Nothing drops it at the end of the run. Its processes end with this one, and its folder is removed by
/// the next run.
///
/// # Errors
/// Its programs are not there.
///
/// # Panics
/// They are there and do not start: that is a failure, never a reason to skip.
pub fn shared() -> Result<&'static Cluster, Skip> {
    static SHARED: OnceLock<Result<Cluster, Skip>> = OnceLock::new();
    let cluster = SHARED.get_or_init(|| {
        let existing = existing();
        if existing.is_none() {
            available(&[Peer::Etcd, Peer::KubeApiserver])?;
        }
        let runs = peers_dir().join("runs");
        for old in fs::read_dir(&runs)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            if !fs::exists(format!("/proc/{}", old.file_name().display())).unwrap_or(true) {
                _ = fs::remove_dir_all(old.path());
            }
        }
        let dir = runs.join(std::process::id().to_string());
        let cluster = match existing {
            Some(kubeconfig) => Cluster::existing(&dir, &kubeconfig),
            None => Cluster::start_in(&dir, cluster::Tie::Bound),
        };
        Ok(cluster.unwrap_or_else(|error| panic!("{error}")))
    });
    cluster.as_ref().map_err(Clone::clone)
}

/// Whether these programs are there, so that the tests that use them can run.
///
/// # Errors
/// Says which are missing and how to get them.
pub fn available(peers: &[Peer]) -> Result<(), Skip> {
    if required() || Missing::of_this_run() == Missing::Build {
        for peer in peers {
            build(*peer).map_err(|error| Skip(error.to_string()))?;
        }
        return Ok(());
    }
    let missing: Vec<String> = peers
        .iter()
        .filter(|peer| built(**peer).is_none())
        .map(|peer| format!("{} {}", peer.name(), peer.version()))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let hint = if build::go().is_ok() {
        "`cargo xtask real build` builds it"
    } else {
        "it needs Go on the PATH"
    };
    Err(Skip(format!(
        "{} not built yet: {hint}",
        missing.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::Missing;

    #[test]
    fn what_is_said_of_missing_parts_goes_before_where_this_runs() {
        for (real, ci, wanted) in [
            (None, None, Missing::Skip),
            (None, Some("true"), Missing::Require),
            (Some("build"), None, Missing::Build),
            (Some("build"), Some("true"), Missing::Build),
            (Some("require"), None, Missing::Require),
            (Some("nonsense"), Some("true"), Missing::Require),
        ] {
            assert_eq!(Missing::told(real, ci), wanted, "{real:?} {ci:?}");
        }
    }
}
