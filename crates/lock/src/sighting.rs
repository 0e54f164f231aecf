//! One sight of the lock object, with the object itself.

use std::hash::{DefaultHasher, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tenure_core::{Observation, Record};

/// What was seen: the [`Observation`] for the state machine, and the object, from which the next
/// write keeps everything that it does not change. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sighting {
    seen: Arc<Seen>,
}

#[derive(Debug)]
struct Seen {
    observation: Observation,
    /// As text: a tree of values takes several times as much, and a process may hold thousands.
    primary: Box<str>,
    secondary: Option<Box<str>>,
    warnings: Vec<String>,
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
            primary: text(primary),
            secondary: secondary.map(text),
            warnings,
        };
        Self {
            seen: Arc::new(seen),
        }
    }

    /// Of an object that is text already, and that nobody has to be warned of.
    pub(crate) fn plain(observation: Observation, object: String) -> Self {
        let seen = Seen {
            observation,
            primary: object.into_boxed_str(),
            secondary: None,
            warnings: Vec::new(),
        };
        Self {
            seen: Arc::new(seen),
        }
    }

    /// The object as text.
    pub(crate) fn text(&self) -> &str {
        &self.seen.primary
    }

    /// What the state machine needs to know.
    pub fn observation(&self) -> &Observation {
        &self.seen.observation
    }

    /// The object as it was seen; of a multi lock the primary one.
    pub fn object(&self) -> Value {
        parse(&self.seen.primary)
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
