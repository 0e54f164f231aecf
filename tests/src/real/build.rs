//! Builds the programs in `peers/`, once per version.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock;

/// A third-party program, or a small one of ours based on a third-party library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The API server of Kubernetes.
    KubeApiserver,
    /// Its store.
    Etcd,
    /// The command line of Kubernetes, in the version of the API server.
    Kubectl,
    /// Leader election with the current client-go.
    Elector,
    /// Leader election with the last client-go that has every lock kind.
    OldElector,
    /// Shared informers of the current client-go.
    Informer,
    /// Server-side apply with the current client-go.
    Applier,
    /// The Go example of docs/book/reference/server.md, a test that starts its own server.
    EphemeralExample,
    /// The tests of the Go package in clients/go.
    TestServer,
    /// The package manager of Kubernetes.
    Helm,
    /// The controllers of Kubernetes, for their election and as a reference for ours.
    KubeControllerManager,
    /// The scheduler of Kubernetes, for its election.
    KubeScheduler,
    /// The test suite for CSI drivers.
    CsiSanity,
    /// Kubernetes' library that translates in-tree storage objects to CSI.
    Translation,
}

/// Reason why a program is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no `go` command.
    #[error("Go is not installed: {name} {version} is built with `go` from the PATH")]
    NoGo {
        /// The program.
        name: &'static str,
        /// Its version.
        version: String,
    },
    /// The compiler or the download failed. Its output is on stderr.
    #[error("building {name} {version} failed: its compiler ended with {status}")]
    Failed {
        /// The program.
        name: &'static str,
        /// Its version.
        version: String,
        /// Its exit status.
        status: std::process::ExitStatus,
    },
    /// Files could not be written, or programs could not be started.
    #[error("building {name}: {source}")]
    Io {
        /// The program.
        name: &'static str,
        /// The reason.
        source: io::Error,
    },
}

impl Peer {
    /// Every peer.
    pub const ALL: [Self; 14] = [
        Self::KubeApiserver,
        Self::Etcd,
        Self::Kubectl,
        Self::Elector,
        Self::OldElector,
        Self::Informer,
        Self::Applier,
        Self::EphemeralExample,
        Self::TestServer,
        Self::Helm,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::CsiSanity,
        Self::Translation,
    ];

    /// Returns the program's name, the same for all its versions.
    pub fn name(self) -> &'static str {
        match self {
            Self::KubeApiserver => "kube-apiserver",
            Self::Etcd => "etcd",
            Self::Kubectl => "kubectl",
            Self::Elector | Self::OldElector => "elector",
            Self::Informer => "informer",
            Self::Applier => "applier",
            Self::EphemeralExample => "ephemeral-example",
            Self::TestServer => "testserver",
            Self::Helm => "helm",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::CsiSanity => "csi-sanity",
            Self::Translation => "translation",
        }
    }

    /// Returns the version of its main module, as its go.mod pins it.
    pub fn version(self) -> String {
        let module = match self {
            _ if self.is_kubernetes() => "k8s.io/kubernetes",
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::CsiSanity => "github.com/kubernetes-csi/csi-test/v5",
            Self::Translation => "k8s.io/csi-translation-lib",
            Self::Helm => "helm.sh/helm/v4",
            _ => "k8s.io/client-go",
        };
        let text = fs::read_to_string(self.folder().join(self.modfile())).unwrap_or_default();
        pinned(&text, module).unwrap_or("unknown").to_owned()
    }

    fn folder(self) -> PathBuf {
        root().join("peers").join(match self {
            Self::KubeApiserver | Self::Kubectl => "kubernetes",
            Self::KubeControllerManager | Self::KubeScheduler => "controllers",
            Self::Etcd => "etcd",
            Self::Elector | Self::OldElector | Self::Informer => "client-go",
            Self::Applier => "applier",
            Self::EphemeralExample => "ephemeral",
            Self::Helm => "helm",
            Self::CsiSanity => "csi-sanity",
            Self::Translation => "translation",
            Self::TestServer => "../clients/go",
        })
    }

    fn is_kubernetes(self) -> bool {
        matches!(
            self,
            Self::KubeApiserver | Self::Kubectl | Self::KubeControllerManager | Self::KubeScheduler
        )
    }

    fn modfile(self) -> &'static str {
        if self == Self::OldElector {
            "go-0.23.mod"
        } else {
            "go.mod"
        }
    }

    fn package(self) -> &'static str {
        match self {
            Self::KubeApiserver => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::Elector | Self::OldElector => "./elector",
            Self::Informer => "./informer",
            Self::Applier | Self::EphemeralExample | Self::Translation => ".",
            Self::KubeControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::KubeScheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::CsiSanity => "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity",
            Self::TestServer => "./testserver",
            Self::Helm => "helm.sh/helm/v4/cmd/helm",
        }
    }

    /// Returns the arguments of `go` that compile it: a program, or the tests of a package as a program.
    fn compile(self) -> &'static [&'static str] {
        match self {
            Self::EphemeralExample | Self::TestServer => &["test", "-c"],
            _ => &["build"],
        }
    }

    /// Returns the linker flags that set the version. Otherwise programs of Kubernetes report v0.0.0, which clients
    /// reject.
    fn link_flags(self) -> String {
        let mut flags = "-s -w".to_owned();
        if self.is_kubernetes() {
            let version = self.version();
            let mut parts = version.trim_start_matches('v').split('.');
            let major = parts.next().unwrap_or_default();
            let minor = parts.next().unwrap_or_default();
            for (name, value) in [
                ("gitVersion", version.as_str()),
                ("gitMajor", major),
                ("gitMinor", minor),
                ("gitTreeState", "clean"),
            ] {
                flags += &format!(" -X k8s.io/component-base/version.{name}={value}");
            }
        }
        flags
    }

    fn first_build(self) -> &'static str {
        match self {
            Self::KubeApiserver => "about ten minutes on two cores the first time",
            Self::KubeControllerManager => "some minutes the first time",
            _ => "a minute or two the first time",
        }
    }

    fn path(self) -> PathBuf {
        peers_dir().join(format!("{}-{}", self.name(), self.version()))
    }
}

/// Returns the folder of built programs: `$TENURE_PEERS`, or `peers` in cargo's target folder.
pub fn peers_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("TENURE_PEERS") {
        return dir.into();
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target
        .unwrap_or_else(|| root().join("target"))
        .join("peers")
}

/// Returns the program, if it is built from the current sources.
pub fn built(peer: Peer) -> Option<PathBuf> {
    let path = peer.path();
    let stamp = fs::read_to_string(stamp_file(&path)).ok()?;
    (path.exists() && stamp == fingerprint(peer).ok()?).then_some(path)
}

/// Returns the program. Builds it first if necessary. Progress goes to stderr.
///
/// # Errors
///
/// Fails if Go is not installed, or if the build failed.
pub fn build(peer: Peer) -> Result<PathBuf, BuildError> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if let Some(path) = built(peer) {
        return Ok(path);
    }
    // Tests run in parallel, and several need the same program.
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built(peer) {
        return Ok(path);
    }
    let (name, version) = (peer.name(), peer.version());
    go().map_err(|_| BuildError::NoGo {
        name,
        version: version.clone(),
    })?;
    let failed = |source| BuildError::Io { name, source };
    let path = peer.path();
    let stamp = fingerprint(peer).map_err(failed)?;
    fs::create_dir_all(peers_dir()).map_err(failed)?;
    // Built under another name and then renamed, so that two concurrent builds cannot harm each other.
    let fresh = path.with_extension(format!("{}.new", std::process::id()));

    let started = clock::now();
    say(&format!(
        "building {name} {version} ({})",
        peer.first_build()
    ));
    let mut command = Command::new("go");
    command
        .current_dir(peer.folder())
        .args(peer.compile())
        .args(["-trimpath", "-buildvcs=false", "-modfile", peer.modfile()])
        .args(["-ldflags", &peer.link_flags(), "-o"])
        .args([fresh.as_os_str(), peer.package().as_ref()])
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null());
    let mut child = crate::spawn::spawn_bound(command).map_err(failed)?;
    let status = loop {
        let ended = clock::poll(Duration::from_secs(30), || child.try_wait().transpose());
        match ended {
            Some(status) => break status.map_err(failed)?,
            None => say(&format!(
                "building {name} {version}: {} s",
                clock::now().since(started).as_secs()
            )),
        }
    };
    if !status.success() {
        _ = fs::remove_file(&fresh);
        return Err(BuildError::Failed {
            name,
            version,
            status,
        });
    }
    fs::rename(&fresh, &path).map_err(failed)?;
    fs::write(stamp_file(&path), stamp).map_err(failed)?;
    say(&format!(
        "built {name} {version} in {:.0?}",
        clock::now().since(started)
    ));
    Ok(path)
}

/// Returns a program based on another crate for leader election, from a separate cargo project below `peers/`, built as
/// it would ship. Cargo detects whether there is anything to do.
///
/// # Errors
///
/// Fails if cargo failed.
pub fn build_rust_peer(name: &'static str) -> Result<PathBuf, BuildError> {
    let failed = |source| BuildError::Io { name, source };
    let target = peers_dir().join("rust");
    let program = target.join("release").join(name);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(root().join("peers").join(name))
        .args(["build", "--release", "--quiet", "--locked", "--target-dir"])
        .arg(&target)
        .stdin(Stdio::null());
    let status = crate::spawn::spawn_bound(command)
        .and_then(|mut child| child.wait())
        .map_err(failed)?;
    if status.success() {
        return Ok(program);
    }
    let version = "in peers/".to_owned();
    Err(BuildError::Failed {
        name,
        version,
        status,
    })
}

/// Returns Go's own version line.
pub(super) fn go() -> io::Result<String> {
    let output = Command::new("go")
        .arg("version")
        .stderr(Stdio::null())
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn say(line: &str) {
    _ = writeln!(io::stderr(), "{line}");
}

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Returns the version that a go.mod requires of a module.
fn pinned<'text>(go_mod: &'text str, module: &str) -> Option<&'text str> {
    go_mod.lines().find_map(|line| {
        let line = line.trim().strip_prefix("require ").unwrap_or(line.trim());
        let version = line
            .strip_prefix(module)?
            .strip_prefix(' ')?
            .split_whitespace()
            .next()?;
        version.starts_with('v').then_some(version)
    })
}

fn stamp_file(program: &Path) -> PathBuf {
    let mut name = program.as_os_str().to_owned();
    name.push(".sources");
    name.into()
}

/// Returns a hash of the sources of a program. File times would not work, because a checkout changes all of them.
fn fingerprint(peer: Peer) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    let mut folders = vec![peer.folder()];
    while let Some(folder) = folders.pop() {
        let mut entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                entry.file_name().hash(&mut hasher);
                fs::read(entry.path())?.hash(&mut hasher);
            }
        }
    }
    peer.link_flags().hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        let text = "module m\n\nrequire k8s.io/kubernetes v1.36.3\n\nreplace (\n\tk8s.io/api => k8s.io/api v0.36.3\n)\n\
                    require (\n\tk8s.io/client-go v0.37.2\n\tk8s.io/client-go-x v0.1.0 // indirect\n)";
        assert_eq!(pinned(text, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(pinned(text, "k8s.io/client-go"), Some("v0.37.2"));
        assert_eq!(pinned(text, "k8s.io/api"), None);
    }

    #[test]
    fn every_peer_is_pinned_and_has_its_own_path() {
        let mut paths: Vec<_> = Peer::ALL.into_iter().map(Peer::path).collect();
        assert!(
            Peer::ALL.iter().all(|peer| peer.version().starts_with('v')),
            "{paths:?}"
        );
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), Peer::ALL.len());
    }
}
