//! Telling programs on this machine: hooks and the state file.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::view::View;

/// A hook that runs longer is killed.
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    Elected,
    Lost,
    Changed,
}

/// Whom to tell.
#[derive(Clone, Debug)]
pub(crate) struct Hooks {
    elected: Option<String>,
    lost: Option<String>,
    changed: Option<String>,
    state_file: Option<PathBuf>,
}

impl Hooks {
    pub(crate) fn new(
        elected: &Option<String>,
        lost: &Option<String>,
        changed: &Option<String>,
        state_file: &Option<PathBuf>,
    ) -> Self {
        let (elected, lost) = (elected.clone(), lost.clone());
        Self {
            elected,
            lost,
            changed: changed.clone(),
            state_file: state_file.clone(),
        }
    }

    /// Writes the state file and runs the hook, one after the other, so that nobody hears of an
    /// election before an earlier one was told.
    pub(crate) async fn tell(&self, notice: Notice, view: &View) {
        if let Some(path) = &self.state_file
            && let Err(error) = write_state(path, view)
        {
            tracing::warn!(path = %path.display(), %error, "cannot write the state file");
        }
        let hook = match notice {
            Notice::Elected => &self.elected,
            Notice::Lost => &self.lost,
            Notice::Changed => &self.changed,
        };
        if let Some(hook) = hook {
            run(hook, view).await;
        }
    }
}

async fn run(hook: &str, view: &View) {
    let answer = serde_json::to_value(view.answer()).unwrap_or_default();
    let text = |key: &str| match &answer[key] {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    };
    let child = tokio::process::Command::new("/bin/sh")
        .args(["-c", hook])
        .stdin(Stdio::null())
        .env("TENURE_ELECTION", text("election"))
        .env("TENURE_NAMESPACE", text("namespace"))
        .env("TENURE_LOCK_KIND", text("lock"))
        .env("TENURE_LEADER", text("leader"))
        .env("TENURE_LEADER_ID", text("self"))
        .env("TENURE_LOCK_HELD", text("isLeader"))
        .env("TENURE_TERM", text("term"))
        .env("TENURE_FENCING_TOKEN", text("fencingToken"))
        .kill_on_drop(true)
        .spawn();
    let ended = match child {
        Ok(mut child) => tokio::time::timeout(HOOK_TIMEOUT, child.wait()).await,
        Err(error) => {
            tracing::warn!(hook, %error, "cannot run the hook");
            return;
        }
    };
    match ended {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => tracing::warn!(hook, %status, "the hook failed"),
        Ok(Err(error)) => tracing::warn!(hook, %error, "the hook failed"),
        Err(_) => tracing::warn!(
            hook,
            "the hook took longer than {HOOK_TIMEOUT:?} and was killed"
        ),
    }
}

/// Replaces the file as a whole, so that readers never see half of it.
fn write_state(path: &Path, view: &View) -> std::io::Result<()> {
    let part = path.with_extension("part");
    let mut file = std::fs::File::create(&part)?;
    serde_json::to_writer(&mut file, &view.answer())?;
    file.write_all(b"\n")?;
    std::fs::rename(&part, path)
}
