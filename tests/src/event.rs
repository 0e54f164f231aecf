//! The event lines of candidates: `tenure elect --events json` and the client-go elector in `peers/`.

use serde::{Deserialize, Deserializer};

use crate::clock::Nanos;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A term began.
    Acquired,
    /// A term ended and the lock was not released.
    Lost,
    /// A term ended and the lock was released.
    Released,
    /// The lock has another holder than before.
    Observed,
    /// A step of guarded work was done (peers only, with `--work`).
    Working,
    /// Counters of a process, as its last line (peers only).
    Stats,
    /// A line of a later version.
    #[serde(other)]
    Other,
}

/// One line.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    /// Time at which it was printed.
    #[serde(deserialize_with = "nanos")]
    pub t: Nanos,
    /// Kind of the event.
    pub event: Kind,
    /// Name of the election.
    #[serde(default)]
    pub election: String,
    /// The leader, as known by the printing process; empty for none.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub leader: String,
    /// The identity of the printing process.
    #[serde(default, rename = "self")]
    pub me: String,
    /// The term's fencing token.
    #[serde(default, deserialize_with = "token")]
    pub token: Option<String>,
    /// Number of changes of the holder.
    #[serde(default)]
    pub transitions: Option<u32>,
    /// End of guarded work, for `lost` and `released`.
    #[serde(default, deserialize_with = "maybe_nanos")]
    pub until: Option<Nanos>,
    /// All other fields.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

impl Event {
    /// Parses a line; `None` if it is not an event, for example a log line.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

fn nanos<'de, D: Deserializer<'de>>(from: D) -> Result<Nanos, D::Error> {
    i64::deserialize(from).map(Nanos)
}

fn maybe_nanos<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Nanos>, D::Error> {
    Ok(Option::<i64>::deserialize(from)?.map(Nanos))
}

fn null_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Parses a token. Tokens are decimal numbers of any length, so they are sent as text; a number is accepted too.
fn token<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(match Option::<serde_json::Value>::deserialize(from)? {
        None | Some(serde_json::Value::Null) => None,
        Some(serde_json::Value::String(text)) if text.is_empty() => None,
        Some(serde_json::Value::String(text)) => Some(text),
        Some(other) => Some(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_with_every_field() {
        let event = Event::parse(
            r#"{"time":"2026-11-15T23:00:00.000001Z","t":5,"event":"released","election":"e",
                "leader":"","self":"a","token":"417","transitions":3,"until":4}"#,
        )
        .unwrap();
        assert_eq!(
            (
                event.t,
                event.event,
                event.until,
                event.token.as_deref(),
                event.transitions
            ),
            (
                Nanos(5),
                Kind::Released,
                Some(Nanos(4)),
                Some("417"),
                Some(3)
            )
        );
    }

    #[test]
    fn numbers_as_tokens_nulls_and_unknown_events_are_read() {
        let line = r#"{"t":5,"event":"paused","leader":null,"token":417,"until":null}"#;
        let event = Event::parse(line).unwrap();
        assert_eq!(
            (event.event, event.token.as_deref()),
            (Kind::Other, Some("417"))
        );
        assert_eq!((event.leader.as_str(), event.until), ("", None));
    }

    #[test]
    fn log_lines_are_not_events() {
        assert!(Event::parse("I1115 leaderelection.go:257] attempting").is_none());
        assert!(Event::parse(r#"{"level":"info"}"#).is_none());
    }
}
