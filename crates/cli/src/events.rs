//! Writes one JSON line per change of an election, for other programs.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Serialize;
use tenure::Term;
use tenure::clock::{Clock, SystemClock};

use crate::observed_lock::Notes;

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// This process won a term.
    Acquired,
    /// The term ended. Its guard has expired and its work has ended.
    Lost,
    /// The lease was released.
    Released,
    /// Another holder was observed.
    Observed,
}

/// Details of a change.
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
    /// Describes a candidate's own term.
    pub(crate) fn own(term: &Term) -> Self {
        Self {
            leader: term.tenure().identity().to_owned(),
            identity: term.tenure().identity().to_owned(),
            token: Some(term.tenure().token().to_string()),
            transitions: Some(term.tenure().transitions()),
            until: None,
        }
    }

    /// Describes another candidate's term. Only the holder knows the token of a term.
    pub(crate) fn seen(leader: &str, identity: &str, notes: &Notes) -> Self {
        Self {
            leader: leader.to_owned(),
            identity: identity.to_owned(),
            token: None,
            transitions: notes.record().map(|record| record.transitions),
            until: None,
        }
    }

    /// Adds the end of the guard.
    pub(crate) fn ended(mut self, term: &Term) -> Self {
        self.until = Some(guard_end(term));
        self
    }

    /// Describes the same term after its release.
    pub(crate) fn released(mut self) -> Self {
        self.leader.clear();
        self
    }
}

/// Returns when this process stopped leading, in nanoseconds since the epoch: now, or earlier if the guard had already
/// expired.
fn guard_end(term: &Term) -> i128 {
    let now = Timestamp::now().as_nanosecond();
    let overdue = SystemClock
        .now()
        .local
        .since(term.tenure().until())
        .as_nanos();
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
    token: Option<&'a str>,
    transitions: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<i128>,
}

/// Destination of the lines.
pub(crate) struct EventLog {
    output: Option<Box<dyn Write>>,
    election: String,
}

impl EventLog {
    /// Opens a file to append to; without a file, discards the lines.
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

    /// Writes one line. A closed pipe does not end the election.
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
        let keys: Vec<_> = line.as_object().unwrap().keys().cloned().collect();
        let mut expected = [
            "election",
            "event",
            "leader",
            "self",
            "t",
            "time",
            "token",
            "transitions",
            "until",
        ];
        expected.sort_unstable();
        assert_eq!(keys.len(), expected.len(), "{keys:?}");
        assert!(
            keys.iter().all(|key| expected.contains(&key.as_str())),
            "{keys:?}"
        );
        let time = line["time"].as_str().unwrap();
        assert_eq!(
            (time.len(), time.chars().last()),
            (27, Some('Z')),
            "microseconds: {time}"
        );
        assert!(line["t"].as_i64().unwrap() > 1_600_000_000_000_000_000);
    }
}
