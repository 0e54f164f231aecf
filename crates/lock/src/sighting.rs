//! The lock object at one version.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tenure_core::{Observation, Record};

use crate::plain::Plain;

/// The [`Observation`] for the state machine, and the object itself. The next write keeps everything in the object that
/// it does not change. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sighting {
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    observation: Observation,
    primary: Kept,
    secondary: Option<Box<str>>,
    warnings: Box<[String]>,
}

/// A compact form of an object, because a process may hold thousands.
#[derive(Debug)]
enum Kept {
    /// The object as text. A tree of values needs several times as much memory.
    Text(Box<str>),
    /// The parts of a plain Lease that the observation does not contain.
    Plain(Plain),
}

impl Sighting {
    pub(crate) fn new(
        observation: Observation,
        primary: &Value,
        secondary: Option<&Value>,
        warnings: Vec<String>,
    ) -> Self {
        let text = |object: &Value| object.to_string().into_boxed_str();
        let seen = Seen {
            observation,
            primary: Kept::Text(text(primary)),
            secondary: secondary.map(text),
            warnings: warnings.into(),
        };
        Self {
            seen: Arc::new(seen),
        }
    }

    /// Creates the state of a plain Lease without warnings.
    pub(crate) fn of_plain(observation: Observation, lease: Plain) -> Self {
        let seen = Seen {
            observation,
            primary: Kept::Plain(lease),
            secondary: None,
            warnings: Box::default(),
        };
        Self {
            seen: Arc::new(seen),
        }
    }

    /// Returns the plain Lease, if it is one.
    pub(crate) fn plain(&self) -> Option<&Plain> {
        match &self.seen.primary {
            Kept::Plain(lease) => Some(lease),
            Kept::Text(_) => None,
        }
    }

    /// Returns the observation for the state machine.
    pub fn observation(&self) -> &Observation {
        &self.seen.observation
    }

    /// Returns the object as it was read; for a multi lock the primary object. The record of a Lease may be formatted
    /// differently than on the server.
    pub fn object(&self) -> Value {
        match &self.seen.primary {
            Kept::Text(text) => parse(text),
            Kept::Plain(lease) => parse(&lease.text(&self.seen.observation)),
        }
    }

    /// Returns the secondary object of a multi lock, if it exists.
    pub fn secondary(&self) -> Option<Value> {
        self.seen.secondary.as_deref().map(parse)
    }

    /// Returns warnings for users: an unreadable record, malformed orders. Each names the object. Locks log warnings
    /// when they change.
    pub fn warnings(&self) -> &[String] {
        &self.seen.warnings
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the text of a value")
}

/// A record as stored in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The parsed record; empty if it cannot be parsed.
    pub(crate) record: Record,
    /// Its text. Equal texts are the same record.
    pub(crate) text: String,
    /// Reason why it cannot be parsed.
    pub(crate) unreadable: Option<String>,
}

/// Returns a number that differs for different texts.
pub(crate) fn fingerprint(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Logs warnings once, and again when they change.
#[derive(Debug, Default)]
pub(crate) struct Warned(AtomicU64);

impl Warned {
    pub(crate) fn note(&self, warnings: &[String]) {
        let present = match warnings {
            [] => 0,
            warnings => fingerprint(&warnings.join("\n")),
        };
        if self.0.swap(present, Ordering::Relaxed) != present {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
        }
    }
}
