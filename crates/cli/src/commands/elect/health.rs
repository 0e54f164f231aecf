//! Health-gated candidacy: an unhealthy candidate does not campaign, and an unhealthy leader steps down.
//!
//! Two rules keep an election alive. A leader that stepped down does not campaign for longer than a retry period, so
//! that a healthy candidate wins. If nobody has led for a long time, an unhealthy leader is better than none.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use kube::Client;
use serde_json::Value;
use tenure::Handle;
use tenure_lock::duration::format as span;
use tenure_lock::in_words;

use super::args::Health;
use crate::commands::run::Exit;
use crate::notify::Unnotified as _;
use crate::observed_lock::{Gate, Notes};
use crate::say::Voice;

/// Start of the reason why the gate of an unhealthy candidate is closed.
const UNHEALTHY: &str = "this candidate is unhealthy";

/// The checks of one candidate.
pub(super) struct HealthGate {
    pub(super) checks: Health,
    pub(super) client: Client,
    /// Path of the candidate's own pod.
    pub(super) pod: String,
    /// The pod condition that `--wait-ready` waits for.
    pub(super) ready: &'static str,
    pub(super) handle: Handle,
    pub(super) notes: Notes,
    pub(super) gate: ReadyGate,
    pub(super) voice: Voice,
}

/// The gate of this candidate, whose state is announced.
pub(super) struct ReadyGate {
    gate: Gate,
    handle: Handle,
}

impl ReadyGate {
    pub(super) fn new(gate: Gate, handle: Handle) -> Self {
        Self { gate, handle }
    }

    /// Closes the gate for a reason, or opens it, and announces the change.
    pub(super) fn close(&self, why: Option<String>) {
        if let Some(membership) = self.handle.membership() {
            membership.set_not_ready(why.clone());
        }
        self.gate.close(why);
    }

    fn reason(&self) -> Option<String> {
        self.gate.reason()
    }
}

impl Health {
    /// Returns whether there is anything to check.
    pub(super) fn any(&self) -> bool {
        self.health_url.is_some()
            || self.health_file.is_some()
            || self.health_cmd.is_some()
            || self.wait_ready
    }
}

impl HealthGate {
    /// Opens and closes the gate until dropped.
    pub(super) async fn serve(self) {
        let mut failures = 0;
        let mut was_ready = !self.checks.wait_ready;
        // This candidate leads although it is unhealthy, because nobody else did.
        let mut escaped = false;
        loop {
            let limit = self.checks.health_interval;
            let checked = tokio::time::timeout(limit, self.check(was_ready)).await;
            let late = || Some(format!("no answer within {}", span(limit)));
            let trouble = checked.unwrap_or_else(|_| late());
            match trouble {
                None => {
                    if self.gate.reason().is_some() {
                        self.voice.health(None);
                    }
                    (failures, was_ready, escaped) = (0, true, false);
                    self.gate.close(None);
                }
                Some(why) => {
                    failures += 1;
                    escaped = self.unhealthy(&why, failures, escaped);
                }
            }
            tokio::time::sleep(self.checks.health_interval).await;
        }
    }

    /// Handles a failed check. Returns whether this candidate may lead although the check failed.
    fn unhealthy(&self, why: &str, failures: u32, escaped: bool) -> bool {
        if self.handle.is_leading() {
            if !escaped && failures >= self.checks.health_failures {
                self.voice.unhealthy_leader(why);
                self.gate.close(Some(format!("{UNHEALTHY}: {why}")));
                self.handle.step_down(self.checks.health_backoff);
            }
            return escaped;
        }
        if self.notes.leaderless_for() >= self.checks.deadlock_grace {
            if self.gate.reason().is_some() {
                tracing::warn!(
                    why,
                    "nobody has led for a long time: campaigning although unhealthy"
                );
            }
            self.gate.close(None);
            return true;
        }
        let known = self.gate.reason();
        if !known.is_some_and(|known| known.starts_with(UNHEALTHY)) {
            self.voice.health(Some(why));
        }
        self.gate.close(Some(format!("{UNHEALTHY}: {why}")));
        false
    }

    /// Returns the problem, if any.
    async fn check(&self, was_ready: bool) -> Option<String> {
        if !was_ready && let Err(why) = self.ready().await {
            return Some(why);
        }
        if let Some(file) = &self.checks.health_file
            && let Err(why) = fresh(file, self.checks.health_file_max_age)
        {
            return Some(format!("{}: {why}", file.display()));
        }
        if let Some(command) = &self.checks.health_cmd {
            let status = tokio::process::Command::new("/bin/sh")
                .args(["-c", command])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .unnotified()
                .kill_on_drop(true)
                .status()
                .await;
            match status {
                Ok(status) if status.success() => {}
                Ok(status) => return Some(format!("`{command}` {}", Exit::from(status))),
                Err(error) => return Some(format!("cannot run `{command}`: {}", in_words(&error))),
            }
        }
        match &self.checks.health_url {
            Some(url) => url.get().await.err(),
            None => None,
        }
    }

    async fn ready(&self) -> Result<(), String> {
        let request = http::Request::get(&self.pod).body(Vec::new());
        let request = request.map_err(|error| error.to_string())?;
        let pod = self.client.request::<Value>(request).await;
        let pod =
            pod.map_err(|error| format!("cannot read this pod: {}", tenure::plain(&error)))?;
        let ready =
            |condition: &Value| condition["type"] == self.ready && condition["status"] == "True";
        let conditions = pod["status"]["conditions"].as_array();
        if conditions.is_some_and(|conditions| conditions.iter().any(ready)) {
            Ok(())
        } else {
            Err(format!("the pod is not {} yet", self.ready))
        }
    }
}

fn fresh(file: &Path, max_age: Option<Duration>) -> Result<(), String> {
    let modified = file.metadata().and_then(|data| data.modified());
    let modified = modified.map_err(|error| in_words(&error))?;
    // A time in the future counts as fresh.
    let age = SystemTime::now()
        .duration_since(modified)
        .unwrap_or_default();
    match max_age {
        Some(most) if age > most => Err(format!("last written {} s ago", age.as_secs())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_must_exist_and_be_fresh() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("healthy");
        assert!(fresh(&file, None).is_err());
        std::fs::write(&file, "").unwrap();
        assert_eq!(fresh(&file, None), Ok(()));
        assert_eq!(fresh(&file, Some(Duration::from_secs(3600))), Ok(()));
        let old = SystemTime::now() - Duration::from_secs(600);
        let opened = std::fs::File::options().append(true).open(&file).unwrap();
        opened.set_modified(old).unwrap();
        assert_eq!(fresh(&file, None), Ok(()), "any age will do");
        assert!(fresh(&file, Some(Duration::from_secs(60))).is_err());
    }
}
