//! Commands that run at a change, one after the other.
//!
//! Only the release waits for hooks, and only for a limited time. A hook is killed after its time limit, and when the
//! term that it belongs to must end.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::str::FromStr;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tenure_lock::duration::format as span;
use tenure_lock::in_words;
use tokio::process::Child;

use super::{ElectionChange, Notice, PATIENCE, Queue};
use crate::commands::run::Exit;
use crate::notify::Unnotified as _;
use crate::values;

/// The commands for each change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hooks {
    pub(crate) elected: Option<String>,
    pub(crate) lost: Option<String>,
    pub(crate) changed: Option<String>,
    pub(crate) signal: Option<ProcessSignal>,
    /// Additional variables: the places of the state file and the HTTP endpoints.
    pub(crate) env: Vec<(String, String)>,
}

impl Hooks {
    /// Returns whether there are any hooks.
    pub(crate) fn any(&self) -> bool {
        let commands = [&self.elected, &self.lost, &self.changed];
        commands.iter().any(|command| command.is_some()) || self.signal.is_some()
    }

    /// Runs hooks until the queue is closed.
    pub(crate) async fn serve(self, mut queue: Queue) {
        let mut waiting = VecDeque::new();
        loop {
            let change = match waiting.pop_front() {
                Some(change) => change,
                None => match queue.recv().await {
                    Some(change) => change,
                    None => return,
                },
            };
            if let (Some(signal), Notice::Elected | Notice::Lost) = (&self.signal, change.notice) {
                signal.send();
            }
            let command = match change.notice {
                Notice::Started => &None,
                Notice::Elected => &self.elected,
                Notice::Lost => &self.lost,
                Notice::Changed => &self.changed,
            };
            if let Some(command) = command {
                self.run(command, &change, &mut queue, &mut waiting).await;
            }
        }
    }

    async fn run(
        &self,
        command: &str,
        change: &ElectionChange,
        queue: &mut Queue,
        waiting: &mut VecDeque<ElectionChange>,
    ) {
        let began = tokio::time::Instant::now();
        let mut limit = allowed(change, waiting);
        let child = tokio::process::Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .unnotified()
            .envs(change.environment())
            .envs(self.env.iter().cloned())
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                tracing::warn!(command, error = in_words(&error), "cannot run the hook");
                return;
            }
        };
        let mut open = true;
        loop {
            tokio::select! {
                status = child.wait() => return report(command, status),
                more = queue.recv(), if open => match more {
                    Some(more) => {
                        waiting.push_back(more);
                        limit = limit.min(began.elapsed() + allowed(change, waiting));
                    }
                    None => open = false,
                },
                () = tokio::time::sleep_until(began + limit) => {
                    kill(&mut child).await;
                    let limit = span(limit);
                    tracing::warn!(command, limit, "killed the hook: it did not end within its time limit");
                    return;
                }
            }
        }
    }
}

/// Returns the time limit of a hook. Waiting items shorten it, because the hook of a loss needs time too.
fn allowed(change: &ElectionChange, waiting: &VecDeque<ElectionChange>) -> Duration {
    let own = change.term.as_ref().map_or(PATIENCE, super::Share::left);
    let behind = waiting.iter().filter_map(|change| change.term.as_ref());
    behind.fold(own, |limit, share| limit.min(share.left() / 2))
}

fn report(command: &str, status: std::io::Result<ExitStatus>) {
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => tracing::warn!(command, status = %Exit::from(status), "the hook failed"),
        Err(error) => tracing::warn!(
            command,
            error = in_words(&error),
            "cannot wait for the hook"
        ),
    }
}

/// Kills the hook and the processes that it started.
async fn kill(child: &mut Child) {
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(group) = group.and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.kill().await;
}

impl ElectionChange {
    /// Returns the environment of a hook.
    fn environment(&self) -> Vec<(String, String)> {
        let answer = &self.answer;
        let token = answer.fencing_token.clone().unwrap_or_default();
        let sortable = token.parse::<tenure::FencingToken>();
        let term = answer.term.map_or(String::new(), |term| term.to_string());
        [
            ("EVENT", format!("{:?}", self.notice).to_lowercase()),
            ("LOCK_HELD", answer.is_leader.to_string()),
            ("ELECTION", answer.election.clone()),
            ("NAMESPACE", answer.namespace.clone()),
            ("LOCK_KIND", answer.lock.to_owned()),
            ("LEADER_ID", answer.leader.clone()),
            ("SELF", answer.identity.clone()),
            ("PREVIOUS_LEADER", self.previous.clone()),
            ("TERM", term),
            ("FENCING_TOKEN", token),
            (
                "FENCING_TOKEN_SORTABLE",
                sortable.map_or(String::new(), |token| token.sortable()),
            ),
            ("LEASE_UID", answer.lease_uid.clone().unwrap_or_default()),
            (
                "ACQUIRE_TIME",
                answer.acquire_time.clone().unwrap_or_default(),
            ),
            (
                "LEASE_DURATION",
                format!("{}s", answer.lease_duration_seconds),
            ),
        ]
        .map(|(name, value)| (format!("TENURE_{name}"), values::variable(&value)))
        .into()
    }
}

/// `NAME:SIGNAL`: sends a signal to every visible process of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessSignal {
    name: String,
    signal: Signal,
}

impl ProcessSignal {
    fn send(&self) {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut found = false;
        for process in processes {
            let name = std::fs::read_to_string(process.path().join("comm"));
            let id = process.file_name().to_str().and_then(|id| id.parse().ok());
            // The kernel truncates names to 15 bytes.
            let wanted: String = self.name.chars().take(15).collect();
            if let (Some(pid), Ok(name)) = (id.and_then(Pid::from_raw), name)
                && name.trim_end() == wanted
            {
                found = true;
                if let Err(error) = kill_process(pid, self.signal) {
                    tracing::warn!(name = self.name, %error, "cannot signal the process");
                }
            }
        }
        if !found {
            tracing::warn!(
                name = self.name,
                "found no process to signal; in a pod, set shareProcessNamespace"
            );
        }
    }
}

impl FromStr for ProcessSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.rsplit_once(':') {
            Some((name, signal)) if !name.is_empty() => Ok(Self {
                name: name.to_owned(),
                signal: values::signal(signal)?,
            }),
            _ => Err(format!("{text:?} is not NAME:SIGNAL, such as nginx:HUP")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_signal_values_are_parsed() {
        let hup: ProcessSignal = "nginx:HUP".parse().unwrap();
        assert_eq!((hup.name.as_str(), hup.signal), ("nginx", Signal::HUP));
        for bad in ["nginx", ":HUP", "nginx:", "nginx:NOPE"] {
            assert!(bad.parse::<ProcessSignal>().is_err(), "{bad}");
        }
    }
}
