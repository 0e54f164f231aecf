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
pub struct Snapshot {
    content: Arc<Content>,
}

#[derive(Debug)]
struct Content {
    observation: Observation,
    primary: Encoded,
    secondary: Option<Box<str>>,
    warnings: Box<[String]>,
}

/// A compact form of an object, because a process may hold thousands.
#[derive(Debug)]
enum Encoded {
    /// The object as text. A tree of values needs several times as much memory.
    Text(Box<str>),
    /// The parts of a plain Lease that the observation does not contain.
    Plain(Plain),
}

impl Snapshot {
    pub(crate) fn new(
        observation: Observation,
        primary: &Value,
        secondary: Option<&Value>,
        warnings: Vec<String>,
    ) -> Self {
        let text = |object: &Value| object.to_string().into_boxed_str();
        let content = Content {
            observation,
            primary: Encoded::Text(text(primary)),
            secondary: secondary.map(text),
            warnings: warnings.into(),
        };
        Self {
            content: Arc::new(content),
        }
    }

    /// Creates the state of a plain Lease without warnings.
    pub(crate) fn of_plain(observation: Observation, lease: Plain) -> Self {
        let content = Content {
            observation,
            primary: Encoded::Plain(lease),
            secondary: None,
            warnings: Box::default(),
        };
        Self {
            content: Arc::new(content),
        }
    }

    /// Returns the plain Lease, if it is one.
    pub(crate) fn plain(&self) -> Option<&Plain> {
        match &self.content.primary {
            Encoded::Plain(lease) => Some(lease),
            Encoded::Text(_) => None,
        }
    }

    /// Returns the observation for the state machine.
    pub fn observation(&self) -> &Observation {
        &self.content.observation
    }

    /// Returns the object as it was read; for a multi lock the primary object. The record of a Lease may be formatted
    /// differently than on the server.
    pub fn object(&self) -> Value {
        match &self.content.primary {
            Encoded::Text(text) => parse(text),
            Encoded::Plain(lease) => parse(&lease.text(&self.content.observation)),
        }
    }

    /// Returns the secondary object of a multi lock, if it exists.
    pub fn secondary(&self) -> Option<Value> {
        self.content.secondary.as_deref().map(parse)
    }

    /// Returns warnings for users: an unreadable record, malformed orders. Each names the object. Locks log warnings
    /// when they change.
    pub fn warnings(&self) -> &[String] {
        &self.content.warnings
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("the text of a value")
}

/// A record as stored in an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredRecord {
    /// The parsed record; empty if it cannot be parsed.
    pub(crate) record: Record,
    /// Its text. Equal texts are the same record.
    pub(crate) text: String,
    /// Reason why it cannot be parsed.
    pub(crate) unreadable: Option<String>,
}

/// Returns a hash of a text. Different texts have different hashes with near certainty.
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record as Values};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Collects the messages of log events.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Visit for Log {
        fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Values<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn warnings_are_logged_once_and_again_after_they_changed() {
        let log = Log::default();
        let warned = Warned::default();
        let logged = |warnings: &[&str]| {
            let warnings: Vec<_> = warnings.iter().map(ToString::to_string).collect();
            warned.note(&warnings);
            std::mem::take(&mut *log.0.lock().unwrap())
        };
        tracing::subscriber::with_default(log.clone(), || {
            let nothing: [&str; 0] = [];
            assert_eq!(logged(&[]), nothing);
            assert_eq!(logged(&["a", "b"]), ["a", "b"]);
            assert_eq!(logged(&["a", "b"]), nothing);
            assert_eq!(logged(&["a"]), ["a"]);
            assert_eq!(logged(&[]), nothing);
            assert_eq!(logged(&["a"]), ["a"]);
        });
    }
}
