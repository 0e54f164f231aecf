//! The data directory: its lock, and the description of the running server for other processes.
//!
//! | file | content |
//! |---|---|
//! | `server.lock` | locked by the running server (`flock`), with its pid as text |
//! | `server.json` | an [`Instance`]: process and addresses of the server; removed at a clean shutdown |
//! | `kubeconfig` | the administrator's kubeconfig, mode 0600 |
//! | `token` | the administrator's bearer token, mode 0600 |
//! | `pki/`, `sa.key` | certificates and the key of ServiceAccount tokens |

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use tenure_host::files;

use crate::pki::write_private;

const POLL: Duration = Duration::from_millis(10);

/// Error of using a data directory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// Another server uses the directory.
    #[error(
        "the data directory {dir} is in use by the server with pid {pid}; \
         stop that server first, or choose another --data-dir"
    )]
    InUse {
        /// The directory.
        dir: String,
        /// Process id of the other server, or `unknown`.
        pid: String,
    },
    /// A file in the directory cannot be read or written.
    #[error("cannot use the data directory: {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The directory cannot be created.
    #[error("cannot use the data directory: {0}")]
    Folder(#[from] crate::pki::PkiError),
}

/// Description of a running server: the content of `server.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Process id.
    pub pid: u32,
    /// Start time of the process in clock ticks since boot, which distinguishes it from a later process with the same
    /// pid.
    pub start_ticks: u64,
    /// Start time of the server, RFC 3339.
    pub started_at: String,
    /// Version of the server.
    pub version: String,
    /// `memory`, `redb` or `etcd`.
    pub engine: String,
    /// URL for clients.
    pub url: String,
    /// Plain HTTP address on loopback, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_url: Option<String>,
    /// Unix socket, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Path of the administrator's kubeconfig.
    pub kubeconfig: PathBuf,
}

/// Result of stopping another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The server was not running.
    WasNotRunning,
    /// The server ended.
    Ended,
    /// The server is still running after the timeout.
    StillRunning,
}

impl Instance {
    /// Reads the description of a server. Returns `None` if no server ever ran there or the last one ended cleanly. Use
    /// [`Instance::is_alive`] to find out whether it still runs.
    ///
    /// # Errors
    /// Returns an error if the file exists but cannot be read or parsed.
    pub fn read(data_dir: &Path) -> Result<Option<Self>, DataDirError> {
        let path = data_dir.join("server.json");
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(file(&path, e)),
        };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|e| file(&path, e.into()))
    }

    /// Returns whether exactly that process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Sends SIGTERM to the server and waits for its end.
    ///
    /// # Errors
    /// Returns an error if the signal is not permitted, for example because the server belongs to another user.
    pub async fn stop(&self, timeout: Duration) -> std::io::Result<Stopped> {
        if !self.is_alive() {
            return Ok(Stopped::WasNotRunning);
        }
        let raw = i32::try_from(self.pid).map_err(std::io::Error::other)?;
        let pid = Pid::from_raw(raw).ok_or(std::io::ErrorKind::InvalidInput)?;
        match rustix::process::kill_process(pid, Signal::TERM) {
            Err(rustix::io::Errno::SRCH) => return Ok(Stopped::WasNotRunning),
            other => other?,
        }
        let deadline = tokio::time::Instant::now() + timeout;
        while tokio::time::Instant::now() < deadline {
            tokio::time::sleep(POLL).await;
            if !self.is_alive() {
                return Ok(Stopped::Ended);
            }
        }
        Ok(Stopped::StillRunning)
    }

    pub(super) fn this_process() -> (u32, u64) {
        let pid = std::process::id();
        (pid, start_ticks(pid).unwrap_or_default())
    }
}

/// Returns the default data directory: `$XDG_STATE_HOME/tenure`, else `~/.local/state/tenure`. `None` without a home
/// directory.
#[must_use]
pub fn default_data_dir() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local/state")))
        .map(|state| state.join("tenure"))
}

/// A data directory that is locked until dropped.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// The lock lasts as long as the file is open.
    lock: File,
}

impl DataDir {
    /// Creates the directory with mode 0700 if it does not exist, and locks it. Rejects a directory of another user,
    /// and one that every user can write to.
    pub(super) fn lock(path: &Path) -> Result<Self, DataDirError> {
        files::claim_folder(path).map_err(|e| file(path, e))?;
        // Absolute, because other processes read this path.
        let path = std::fs::canonicalize(path).map_err(|e| file(path, e))?;
        let database = path.join("store.redb");
        files::tighten(&database).map_err(|e| file(&database, e))?;
        let name = path.join("server.lock");
        let mut lock = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&name)
            .map_err(|e| file(&name, e))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut pid = String::new();
                let _ = lock.read_to_string(&mut pid);
                let pid = if pid.trim().is_empty() {
                    "unknown"
                } else {
                    pid.trim()
                };
                return Err(DataDirError::InUse {
                    dir: path.display().to_string(),
                    pid: pid.to_owned(),
                });
            }
            Err(e) => return Err(file(&name, e.into())),
        }
        let mut write = || {
            lock.set_len(0)?;
            lock.rewind()?;
            writeln!(lock, "{}", std::process::id())
        };
        write().map_err(|e| file(&name, e))?;
        Ok(Self { path, lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn publish(&self, instance: &Instance) -> Result<(), DataDirError> {
        let path = self.path.join("server.json");
        let text = serde_json::to_vec_pretty(instance).map_err(|e| file(&path, e.into()))?;
        write_private(&path, &text).map_err(|e| file(&path, e))
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path.join("server.json"));
        // Closing is not enough, because a child process may have inherited the descriptor.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

fn file(path: &Path, source: std::io::Error) -> DataDirError {
    DataDirError::File {
        path: path.display().to_string(),
        source,
    }
}

/// Returns field 22 of `/proc/PID/stat`; `None` if the process does not exist or is a zombie.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command name, is in parentheses and may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn second_lock_of_a_directory_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let first = DataDir::lock(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let error = DataDir::lock(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        drop(first);
        DataDir::lock(&path).unwrap();
    }

    fn instance(pid: u32, start_ticks: u64) -> Instance {
        Instance {
            pid,
            start_ticks,
            started_at: String::new(),
            version: String::new(),
            engine: "memory".into(),
            url: String::new(),
            insecure_url: None,
            socket: None,
            kubeconfig: PathBuf::new(),
        }
    }

    #[test]
    fn instance_round_trips_and_detects_its_process() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Instance::read(dir.path()).unwrap(), None);
        let held = DataDir::lock(dir.path()).unwrap();
        let (pid, ticks) = Instance::this_process();
        held.publish(&instance(pid, ticks)).unwrap();
        let read = Instance::read(dir.path()).unwrap().unwrap();
        assert!(read.is_alive());
        // Another start time means another process with the same pid.
        assert!(!instance(pid, ticks + 1).is_alive());
        drop(held);
        assert_eq!(Instance::read(dir.path()).unwrap(), None);
    }

    #[tokio::test]
    async fn stop_ends_a_process_and_reports_it() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let running = instance(child.id(), start_ticks(child.id()).unwrap());
        let stopped = running.stop(Duration::from_secs(10)).await.unwrap();
        assert_eq!(stopped, Stopped::Ended);
        assert!(!child.wait().unwrap().success());
        let again = running.stop(Duration::from_secs(1)).await.unwrap();
        assert_eq!(again, Stopped::WasNotRunning);
    }
}
