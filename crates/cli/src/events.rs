//! One JSON line per change of an election, for programs that follow along.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Serialize;
use tenure::clock::{Clock, SystemClock};
use tenure::{Handle, Status, Term};

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// This process won a term.
    Acquired,
    /// The term ended; its guard is out and its work has ended.
    Lost,
    /// The lease was given back.
    Released,
    /// Another holder was seen.
    Observed,
}

/// The parts of a change that the election knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Change {
    pub(crate) leader: String,
    pub(crate) identity: String,
    pub(crate) token: Option<String>,
    pub(crate) transitions: Option<u32>,
    /// Nanoseconds since the epoch at which this process's guard ended.
    pub(crate) until: Option<i128>,
}

impl Change {
    /// What a candidate knows of itself and of its term.
    pub(crate) fn of(handle: &Handle, term: Option<&Term>) -> Self {
        let leader = match (term, handle.status()) {
            (Some(term), _) => term.identity().to_owned(),
            (None, Status::Follower { leader }) => leader,
            (None, _) => String::new(),
        };
        Self {
            leader,
            identity: handle.identity().to_owned(),
            token: term.map(|term| term.token().to_string()),
            transitions: term.map(|term| term.transitions()),
            until: None,
        }
    }
}

/// When this process stopped to be leader, in nanoseconds since the epoch: now, or earlier if the
/// guard had run out before anybody noticed.
pub(crate) fn guard_end(term: &Term) -> i128 {
    let now = Timestamp::now().as_nanosecond();
    let overdue = SystemClock.now().local.since(term.until()).as_nanos();
    now - i128::try_from(overdue).unwrap_or(0)
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    t: i128,
    event: What,
    election: &'a str,
    leader: &'a str,
    #[serde(rename = "self")]
    identity: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transitions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<i128>,
}

/// Where the lines go.
pub(crate) struct EventLog {
    output: Option<Box<dyn Write>>,
    election: String,
}

impl EventLog {
    /// Appends to a file, or to nothing.
    pub(crate) fn open(path: Option<&Path>, election: &str) -> Result<Self> {
        let open = |path: &Path| -> Result<Box<dyn Write>> {
            let file = File::options().create(true).append(true).open(path);
            Ok(Box::new(file.with_context(|| {
                format!("cannot write {}", path.display())
            })?))
        };
        Ok(Self {
            output: path.map(open).transpose()?,
            election: election.to_owned(),
        })
    }

    /// Writes to standard output.
    pub(crate) fn stdout(election: &str) -> Self {
        Self {
            output: Some(Box::new(io::stdout())),
            election: election.to_owned(),
        }
    }

    /// Writes one line. A reader that has gone away does not end an election.
    pub(crate) fn write(&mut self, event: What, change: &Change) {
        let Some(output) = &mut self.output else {
            return;
        };
        let now = Timestamp::now();
        let line = Line {
            time: now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            t: now.as_nanosecond(),
            event,
            election: &self.election,
            leader: &change.leader,
            identity: &change.identity,
            token: change.token.as_deref(),
            transitions: change.transitions,
            until: change.until,
        };
        if let Ok(mut text) = serde_json::to_vec(&line) {
            text.push(b'\n');
            let _ = output.write_all(&text).and_then(|()| output.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_documented_fields() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut log = EventLog::open(Some(&path), "e").unwrap();
        let change = Change {
            leader: "a".into(),
            identity: "a".into(),
            token: Some("7".into()),
            transitions: Some(1),
            until: Some(5),
        };
        log.write(What::Lost, &change);
        let line: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for (key, value) in [
            ("event", "lost".into()),
            ("election", "e".into()),
            ("self", "a".into()),
            ("leader", "a".into()),
            ("token", "7".into()),
            ("transitions", 1.into()),
            ("until", serde_json::json!(5)),
        ] {
            assert_eq!(line[key], value, "{key}");
        }
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
        assert!(line["t"].as_i64().unwrap() > 1_600_000_000_000_000_000);
    }
}
