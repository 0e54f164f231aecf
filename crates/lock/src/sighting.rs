//! One sight of the lock object, with the object itself.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tenure_core::{Observation, Record};

use crate::plain::Plain;

/// What was seen: the [`Observation`] for the state machine, and the object, from which the next
/// write keeps everything that it does not change. Cheap to clone.
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

/// An object, in few bytes: a process may hold thousands.
#[derive(Debug)]
enum Kept {
    /// As text; a tree of values takes several times as much.
    Text(Box<str>),
    /// What the observation does not say of it.
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

    /// Of a Lease with nothing unusual in it, that nobody has to be warned of.
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

    /// The Lease, if there was nothing unusual in it.
    pub(crate) fn plain(&self) -> Option<&Plain> {
        match &self.seen.primary {
            Kept::Plain(lease) => Some(lease),
            Kept::Text(_) => None,
        }
    }

    /// What the state machine needs to know.
    pub fn observation(&self) -> &Observation {
        &self.seen.observation
    }

    /// The object as it was seen; of a multi lock the primary one. The record of a Lease may be spelled in
    /// our own way.
    pub fn object(&self) -> Value {
        match &self.seen.primary {
            Kept::Text(text) => parse(text),
            Kept::Plain(lease) => parse(&lease.text(&self.seen.observation)),
        }
    }

    /// The secondary object of a multi lock, if it exists.
    pub fn secondary(&self) -> Option<Value> {
        self.seen.secondary.as_deref().map(parse)
    }

    /// What a person should know: an unreadable record, malformed orders. Each names the object.
    /// Locks log them by themselves when they change.
    pub fn warnings(&self) -> &[String] {
        &self.seen.warnings
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the text of a value")
}

/// A record as it stands in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stored {
    /// What it says; all-empty if it cannot be read.
    pub(crate) record: Record,
    /// Its text; equal texts are the same record.
    pub(crate) text: String,
    /// Why it cannot be read.
    pub(crate) unreadable: Option<String>,
}

/// A number that differs for different texts.
pub(crate) fn fingerprint(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Logs warnings once, until they change.
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
