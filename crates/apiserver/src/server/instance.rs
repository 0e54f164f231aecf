//! The data directory: one server at a time, and what others can know about it.
//!
//! | file | is |
//! |---|---|
//! | `server.lock` | locked by the running server (`flock`), with its pid as text |
//! | `server.json` | an [`Instance`]: where the server is; removed when it ends cleanly |
//! | `kubeconfig` | the administrator's, mode 0600 |
//! | `token` | the administrator's bearer token, mode 0600 |
//! | `pki/`, `sa.key` | certificates and the key of ServiceAccount tokens |

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::pki::{create_private_folder, write_private};

const POLL: Duration = Duration::from_millis(10);

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataDirError {
    /// Another server has it.
    #[error(
        "the data directory {dir} is in use by the server with pid {pid}; \
         stop that one first or give another --data-dir"
    )]
    InUse {
        /// The directory.
        dir: String,
        /// Who has it; `unknown` if it did not say.
        pid: String,
    },
    /// A file in it cannot be read or written.
    #[error("data directory, {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The folder itself cannot be made.
    #[error("data directory, {0}")]
    Folder(#[from] crate::pki::PkiError),
}

/// A server as others see it: the content of `server.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Process id.
    pub pid: u32,
    /// When the process started, in clock ticks since boot; tells it from a later one of that pid.
    pub start_ticks: u64,
    /// When the server started, RFC 3339.
    pub started_at: String,
    /// Version of the server.
    pub version: String,
    /// `memory`, `redb` or `etcd`.
    pub engine: String,
    /// Where clients connect.
    pub url: String,
    /// Plain HTTP on loopback, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_url: Option<String>,
    /// Unix socket, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
}

/// How stopping another server went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was not running.
    WasNotRunning,
    /// It ended.
    Ended,
    /// It is still running after the time that was given to it.
    StillRunning,
}

impl Instance {
    /// Reads what a server wrote about itself; `None` if none ever ran there or the last one ended
    /// cleanly. Whether it still runs is [`Instance::is_alive`]'s to say.
    ///
    /// # Errors
    /// If the file is there but cannot be read or understood.
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

    /// Whether that very process still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        start_ticks(self.pid) == Some(self.start_ticks)
    }

    /// Asks the server to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// If it may not be signalled, as when it belongs to another user.
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

/// The directory for a server that is told no other: `$XDG_STATE_HOME/tenure`, else
/// `~/.local/state/tenure`. `None` without a home.
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

/// A data directory held by this server until dropped.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    /// The lock lasts as long as the file is open.
    lock: File,
}

impl DataDir {
    /// Creates the directory if need be, for its owner only, and locks it.
    pub(super) fn lock(path: &Path) -> Result<Self, DataDirError> {
        create_private_folder(path)?;
        let private = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(path, private).map_err(|e| file(path, e))?;
        // Absolute, so that what is written about it holds for readers elsewhere.
        let path = std::fs::canonicalize(path).map_err(|e| file(path, e))?;
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
        // Closing is not enough: a child that is just being started has a copy of the file.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

fn file(path: &Path, source: std::io::Error) -> DataDirError {
    DataDirError::File {
        path: path.display().to_string(),
        source,
    }
}

/// Field 22 of `/proc/PID/stat`; `None` if there is no such process or it is a zombie.
fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field, the command's name, is in parentheses and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_first() {
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
    fn an_instance_reads_back_and_knows_its_process() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Instance::read(dir.path()).unwrap(), None);
        let held = DataDir::lock(dir.path()).unwrap();
        let (pid, ticks) = Instance::this_process();
        held.publish(&instance(pid, ticks)).unwrap();
        let read = Instance::read(dir.path()).unwrap().unwrap();
        assert!(read.is_alive());
        // The pid of today is not the process of yesterday.
        assert!(!instance(pid, ticks + 1).is_alive());
        drop(held);
        assert_eq!(Instance::read(dir.path()).unwrap(), None);
    }

    #[tokio::test]
    async fn stop_ends_a_process_and_says_so() {
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
