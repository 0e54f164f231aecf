//! A cluster that outlives the command that started it: `cargo xtask real up` starts it, and `down` ends it.
//!
//! A state file stores which processes were started. A process id alone may have been reused, so the start time is
//! stored with it, and `down` ends only processes that match both.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::build::peers_dir;
use super::cluster::{Cluster, StartError, Tie};
use crate::clock;

/// Folder of such a cluster. There is at most one in each folder.
#[derive(Clone, Debug)]
pub struct Detached {
    folder: PathBuf,
}

/// The state that `up` stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The kubeconfig of a member of `system:masters`.
    pub kubeconfig: PathBuf,
    processes: Vec<Known>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    pid: u32,
    /// In clock ticks since boot, as in /proc.
    started: u64,
}

/// Reason why a cluster was not started or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DetachedError {
    /// It did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The state file is unusable.
    #[error("{path}: {source}")]
    State {
        /// The state file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A process does not end.
    #[error("process {0} does not end")]
    StillRunning(u32),
}

impl Detached {
    /// Returns the folder next to the built programs.
    pub fn usual() -> Self {
        Self {
            folder: peers_dir(),
        }
    }

    /// Uses another folder.
    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Returns the running cluster. Starts it if there is none; the second value is whether it was started now.
    ///
    /// A cluster with an ended process is unusable, so its other processes are ended first.
    ///
    /// # Errors
    ///
    /// Fails if it does not start, or if the state cannot be written.
    pub fn up(&self) -> Result<(State, bool), DetachedError> {
        match self.state()? {
            Some(state) if state.is_whole() => return Ok((state, false)),
            Some(_) => _ = self.down()?,
            None => {}
        }
        // The data of an ended cluster would be served again with new keys, but a new cluster is wanted.
        _ = fs::remove_dir_all(self.files());
        let cluster = Cluster::start_in(&self.files(), Tie::Detached)?;
        let known = |pid| {
            Some(Known {
                pid,
                started: start_time(pid)?,
            })
        };
        let state = State {
            kubeconfig: cluster.kubeconfig(),
            processes: cluster.pids().into_iter().filter_map(known).collect(),
        };
        let text = serde_json::to_string_pretty(&state).map_err(io::Error::other);
        text.and_then(|text| fs::write(self.state_file(), text))
            .map_err(|error| self.state_error(error))?;
        cluster.forget();
        Ok((state, true))
    }

    /// Ends the cluster, or its remaining processes, and removes its files. Returns whether there was anything to end
    /// or to remove.
    ///
    /// # Errors
    ///
    /// Fails if a process does not end.
    pub fn down(&self) -> Result<bool, DetachedError> {
        let Some(state) = self.state()? else {
            return Ok(false);
        };
        // The API server first, because it would log errors about its store.
        for known in state.processes.iter().rev() {
            for (signal, limit) in [(Signal::TERM, 3), (Signal::KILL, 10)] {
                if let Some(pid) = i32::try_from(known.pid).ok().and_then(Pid::from_raw)
                    && known.is_running()
                {
                    _ = kill_process(pid, signal);
                    let gone = || (!known.is_running()).then_some(());
                    clock::poll(Duration::from_secs(limit), gone);
                }
            }
            if known.is_running() {
                return Err(DetachedError::StillRunning(known.pid));
            }
        }
        fs::remove_file(self.state_file()).map_err(|error| self.state_error(error))?;
        _ = fs::remove_dir_all(self.files());
        Ok(true)
    }

    /// Returns the cluster, if any of its processes runs.
    ///
    /// # Errors
    ///
    /// Fails if the state file cannot be read.
    pub fn state(&self) -> Result<Option<State>, DetachedError> {
        let text = match fs::read_to_string(self.state_file()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| self.state_error(error))?,
        };
        let state: State =
            serde_json::from_str(&text).map_err(|error| self.state_error(error.into()))?;
        Ok((!state.running().is_empty()).then_some(state))
    }

    fn files(&self) -> PathBuf {
        self.folder.join("real")
    }

    fn state_file(&self) -> PathBuf {
        self.folder.join("real.json")
    }

    fn state_error(&self, source: io::Error) -> DetachedError {
        DetachedError::State {
            path: self.state_file(),
            source,
        }
    }
}

impl State {
    /// Returns the ids of the processes that still run: etcd, kube-apiserver.
    pub fn running(&self) -> Vec<u32> {
        self.processes
            .iter()
            .filter(|known| known.is_running())
            .map(|known| known.pid)
            .collect()
    }

    /// Returns whether all of them run.
    pub fn is_whole(&self) -> bool {
        self.processes.iter().all(Known::is_running)
    }
}

impl Known {
    fn is_running(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }
}

/// Returns the start time of a process that exists and is not a zombie.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    (fields.next()? != "Z").then_some(())?;
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_identified_by_pid_and_start_time() {
        let pid = std::process::id();
        let started = start_time(pid).unwrap();
        assert!(Known { pid, started }.is_running());
        assert!(
            !Known {
                pid,
                started: started - 1
            }
            .is_running()
        );
    }
}
