//! Real Kubernetes for comparison with our own programs: kube-apiserver, etcd and client-go, built from `peers/`.
//!
//! The first build takes minutes, so tests that are run by hand use only what is already built, and report what is
//! missing. `TENURE_REAL=build`, which `cargo xtask test` sets, makes them build it if Go is installed. With
//! `TENURE_REAL=require`, and by default with `CI=true`, a missing Go is a failure too.
//!
//! `TENURE_KUBECONFIG=FILE` names an existing cluster. Tests that can share a cluster use it. Tests that need their
//! own, because they restart parts of it or run its controllers, print that and pass.

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

/// Reaction to a missing part.
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

/// Returns whether missing parts are a failure instead of a reason to skip.
pub fn required() -> bool {
    existing().is_none() && Missing::of_this_run() == Missing::Require
}

/// Returns the kubeconfig of an existing cluster, if one is to be used.
fn existing() -> Option<PathBuf> {
    let file = env::var_os("TENURE_KUBECONFIG")?;
    (!file.is_empty()).then(|| file.into())
}

/// Checks whether a test may start its own cluster.
///
/// # Errors
///
/// Fails if its programs are missing, or if another cluster is to be used.
pub fn own_cluster() -> Result<(), Skip> {
    match existing() {
        Some(file) => Err(Skip(format!(
            "this test needs its own cluster, not that of {}",
            file.display()
        ))),
        None => available(&[Peer::Etcd, Peer::KubeApiserver]),
    }
}

/// Returns the cluster that all tests of one run share, because starting one takes seconds. Needs built programs, or an
/// existing cluster.
///
/// Nothing drops it at the end of the run. Its processes end with this one, and the next run removes its folder.
///
/// # Errors
///
/// Fails if its programs are missing.
///
/// # Panics
///
/// Panics if they exist and do not start, which is a failure and never a reason to skip.
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

/// Checks whether these programs exist, so that the tests that use them can run.
///
/// # Errors
///
/// Names the missing ones and how to get them.
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
    fn explicit_setting_takes_precedence_over_ci() {
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
