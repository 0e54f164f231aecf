//! The API server of a run: one lock object with versions, and its history for watchers.

use std::sync::Arc;

use serde_json::{Value, json};
use tenure_core::{LocalTime, Observation};
use tenure_lock::{Lock, ObjectName, WatchOutcome};

use crate::register::Object;

/// One version of the lock object, in its wire format and as the checks use it.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) json: Value,
    pub(super) object: Object,
}

/// A change for watchers.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) kind: &'static str,
    pub(super) stored: Arc<Stored>,
}

impl Change {
    pub(super) fn line(&self) -> String {
        let mut object = self.stored.json.clone();
        // A deletion has its own revision.
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        format!("{}\n", json!({ "type": self.kind, "object": object }))
    }
}

/// A request of a client.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Get,
    List,
    Watch {
        from: u64,
        seconds: u64,
    },
    Create(Value),
    Update(Value),
    /// An Event, which nobody reads.
    Note,
}

impl Call {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch { .. } => "watch",
            Self::Create(_) => "create",
            Self::Update(_) => "update",
            Self::Note => "event",
        }
    }

    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Create(_) | Self::Update(_))
    }
}

/// A response.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Object(u16, Arc<Stored>),
    List(Option<Arc<Stored>>, u64),
    /// Changes since this revision follow.
    Watch {
        from: u64,
        seconds: u64,
    },
    Noted,
    Failure(u16),
}

/// Author of a write, and its local time when the write is sent.
pub(super) type Author = (u64, LocalTime);

/// The server.
#[derive(Debug)]
pub(super) struct Server {
    name: ObjectName,
    /// Used only to parse records.
    reader: Arc<dyn Lock>,
    current: Option<Arc<Stored>>,
    changes: Vec<Change>,
    revision: u64,
    /// Watches cannot begin before this revision.
    compacted: u64,
    uids: u64,
    terms: u64,
}

impl Server {
    pub(super) fn new(name: ObjectName, reader: Arc<dyn Lock>) -> Self {
        Self {
            name,
            reader,
            current: None,
            changes: Vec::new(),
            revision: 100,
            compacted: 0,
            uids: 0,
            terms: 0,
        }
    }

    pub(super) fn current(&self) -> Option<&Arc<Stored>> {
        self.current.as_ref()
    }

    /// Returns the version that was created at this revision.
    pub(super) fn find(&self, revision: u64) -> Option<&Arc<Stored>> {
        let at = self
            .changes
            .binary_search_by_key(&revision, |change| change.revision);
        at.ok().map(|at| &self.changes[at].stored)
    }

    /// Returns the next change after a revision; an error if it was compacted.
    pub(super) fn after(&self, revision: u64) -> Result<Option<&Change>, ()> {
        if revision < self.compacted {
            return Err(());
        }
        let at = self.changes.partition_point(|c| c.revision <= revision);
        Ok(self.changes.get(at))
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Drops the history.
    pub(super) fn compact(&mut self) {
        self.compacted = self.revision;
    }

    /// Parses an object like a lock does.
    pub(super) fn read(&self, json: &Value) -> Option<Observation> {
        match self.reader.apply_watch_event(0, Some(json.clone()), None) {
            WatchOutcome::Present(snapshot) => Some(snapshot.observation().clone()),
            WatchOutcome::Absent | WatchOutcome::ReadNeeded => None,
        }
    }

    /// Executes a request.
    pub(super) fn serve(&mut self, author: Author, call: &Call) -> Answer {
        // Other objects of the store use revisions, too.
        self.revision += u64::from(matches!(call, Call::Note));
        match call {
            Call::Get => match &self.current {
                Some(stored) => Answer::Object(200, stored.clone()),
                None => Answer::Failure(404),
            },
            Call::List => Answer::List(self.current.clone(), self.revision),
            Call::Watch { from, .. } if *from < self.compacted => Answer::Failure(410),
            Call::Watch { from, seconds } => Answer::Watch {
                from: *from,
                seconds: *seconds,
            },
            Call::Note => Answer::Noted,
            Call::Create(_) if self.current.is_some() => Answer::Failure(409),
            Call::Create(body) => {
                let mut body = body.clone();
                self.uids += 1;
                body["metadata"]["uid"] = format!("uid-{}", self.uids).into();
                let stored = self.put(body, "ADDED", Some(author));
                Answer::Object(201, stored)
            }
            Call::Update(body) => {
                let Some(stored) = &self.current else {
                    return Answer::Failure(404);
                };
                let same = |key| stored.json["metadata"][key] == body["metadata"][key];
                if !same("uid") || !same("resourceVersion") {
                    return Answer::Failure(409);
                }
                let stored = self.put(body.clone(), "MODIFIED", Some(author));
                Answer::Object(200, stored)
            }
        }
    }

    /// Edits the object as a person would. If the record stays the same, its author does too.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let Some(old) = self.current.clone() else {
            return;
        };
        let mut json = old.json.clone();
        change(&mut json);
        let same =
            (self.read(&json)).is_some_and(|new| new.fingerprint == old.object.seen.fingerprint);
        let author = old.object.author.map(|author| (author, old.object.sent));
        self.put(json, "MODIFIED", author.filter(|_| same));
    }

    /// Deletes the object as a person would.
    pub(super) fn delete(&mut self) {
        if let Some(stored) = self.current.take() {
            self.revision += 1;
            self.changes.push(Change {
                revision: self.revision,
                kind: "DELETED",
                stored,
            });
        }
    }

    fn put(&mut self, mut json: Value, kind: &'static str, author: Option<Author>) -> Arc<Stored> {
        self.revision += 1;
        json["metadata"]["resourceVersion"] = self.revision.to_string().into();
        json["metadata"]["namespace"] = self.name.namespace().into();
        json["apiVersion"] = self.name.resource().api_version().into();
        json["kind"] = self.name.resource().kind.into();
        let seen = self
            .read(&json)
            .expect("every object here has a uid and a resourceVersion");
        let before = self.current.as_ref().map(|old| &old.object.seen.record);
        let (acquired, number) = (seen.record.acquire_time, seen.record.transitions);
        let wins = author.is_some()
            && !seen.record.is_free()
            && before.is_none_or(|old| (old.acquire_time, old.transitions) != (acquired, number));
        self.terms += u64::from(wins);
        let kept = self.current.as_ref().and_then(|old| old.object.marked_by);
        let stored = Arc::new(Stored {
            object: Object {
                revision: self.revision,
                marked_by: author.map(|(author, _)| author).or(kept),
                author: author.map(|(author, _)| author),
                sent: author.map(|(_, sent)| sent).unwrap_or_default(),
                term: self.terms,
                seen,
            },
            json,
        });
        self.changes.push(Change {
            revision: self.revision,
            kind,
            stored: stored.clone(),
        });
        self.current = Some(stored.clone());
        stored
    }
}

/// Returns the revision that an update replaces.
pub(super) fn replaces(body: &Value) -> Option<u64> {
    body["metadata"]["resourceVersion"].as_str()?.parse().ok()
}
