//! `tenure server --ephemeral`: a server for one test, in any language.
//!
//! The data directory is a temporary folder, which is removed when the server ends, also if the start fails. The server
//! ends with the process that started it. It does not use the kernel's death signal for that, because the kernel sends
//! the signal when the *thread* that started the server ends. Test harnesses start servers in short-lived threads.

use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use tokio::io::AsyncReadExt as _;

use super::Options;
use super::encryption::EncryptionArgs;
use super::store::Store;
use crate::connect::Connect;
use crate::signals::Signals;

/// Interval at which the parent is checked if the kernel does not report its end.
const POLL: Duration = Duration::from_millis(200);

/// Runs a server on a temporary folder until its parent ends, or until it is asked to end.
pub(super) async fn serve(
    options: Options,
    encryption: EncryptionArgs,
    data_dir: Option<&Path>,
    connect: &Connect,
) -> Result<u8> {
    // This is the first step, because a parent that ends before this line is not noticed.
    let parent = getppid();
    // The variable may be set for the other commands of the same shell.
    let from_environment = std::env::var_os("TENURE_DATA_DIR").map(PathBuf::from);
    if data_dir.is_some_and(|dir| from_environment.as_deref() != Some(dir)) {
        bail!("--ephemeral uses a temporary folder, so it cannot be combined with --data-dir");
    }
    if connect.kubeconfig.is_some() && std::env::var_os("TENURE_KUBECONFIG").is_none() {
        bail!("--ephemeral starts an API server, so it cannot be combined with --kubeconfig");
    }
    if matches!(options.store.store, Store::Etcd(_)) {
        bail!("--ephemeral removes its data, so it cannot be combined with --store etcd=...");
    }
    // A harness often sends a second signal, for example SIGTERM after a ^C that reached the server, too. It must not
    // end the server before the folder is removed.
    let mut signals = Signals::listen()?;
    let closed = stdin_closed(options.until_stdin_closes);
    let asked = async {
        tokio::select! {
            _ = signals.end() => {}
            () = closed => {}
            () = ended(parent) => {}
        }
    };
    let folder = Folder::create()?;
    let connect = Connect {
        kubeconfig: None,
        ..connect.clone()
    };
    options
        .serve(folder.0.clone(), encryption, &connect, asked)
        .await
}

/// Prints the path of the kubeconfig. Fails if the reader is gone, which ends the server: the parent may have ended
/// before the server checked it.
pub(super) fn announce(kubeconfig: &Path) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", kubeconfig.display())
        .and_then(|()| out.flush())
        .context("cannot print the path of the kubeconfig on standard output")
}

/// Completes when standard input is closed, if `wanted`.
pub(super) async fn stdin_closed(wanted: bool) {
    if !wanted {
        return std::future::pending().await;
    }
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 256];
    // The content is ignored. After a failed read, no further input can arrive.
    while matches!(stdin.read(&mut buffer).await, Ok(count) if count > 0) {}
}

/// Completes when the process `parent` has ended.
async fn ended(parent: Option<Pid>) {
    // Kernels before 5.3, and filters of system calls, do not allow such descriptors.
    let descriptor = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
    // The parent may have ended before the descriptor was opened. The descriptor may then name another process.
    if let Some(descriptor) = descriptor.filter(|_| getppid() == parent) {
        // The descriptor is readable from the end of the process on. The exit of this process does not wait for the
        // thread.
        let wait = move || {
            let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
            while poll(&mut watched, None) == Err(Errno::INTR) {}
        };
        let _ = tokio::task::spawn_blocking(wait).await;
    }
    while getppid() == parent {
        tokio::time::sleep(POLL).await;
    }
}

/// A temporary folder that only its owner can read. Removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn create() -> Result<Self> {
        let (base, pid) = (std::env::temp_dir(), std::process::id());
        // The folder of a killed server with the same process id may still exist.
        for attempt in 0..1_000 {
            let path = base.join(format!("tenure-ephemeral-{pid}-{attempt}"));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let path = path.display();
                    return Err(error).with_context(|| {
                        format!("cannot create {path}; TMPDIR selects another place")
                    });
                }
            }
        }
        let base = base.display();
        bail!(
            "cannot create a folder in {base}: the names tenure-ephemeral-{pid}-N exist; remove them"
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            let why = tenure_lock::in_words(&error);
            super::note(&format!("cannot remove {}: {why}", self.0.display()));
        }
    }
}
