//! Terms of an election: holder, start, end and reason.
//!
//! The lock object contains only its current holder. Earlier terms come from Events, which the API server deletes after
//! about an hour and which candidates may fail to write. A history therefore states what it does not know.

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::api;
use crate::elections::Seen;

/// Reason of Events about elections.
const REASON: &str = "LeaderElection";

/// Annotation of Events with the reason for the end of a term.
const WHY: &str = "tenure.dev/reason";

const TOKEN: &str = "tenure.dev/fencing-token";

/// Annotation of Events with the end of the lease of a previous holder that did not release.
const PREVIOUS_END: &str = "tenure.dev/previous-lease-end";

/// Number of new terms within [`RECENT`] that counts as flapping.
pub(crate) const FLAPPING: usize = 4;

/// Period for flapping.
pub(crate) const RECENT: SignedDuration = SignedDuration::from_mins(10);

/// Time without a leader that is shown as a gap.
const SHORTEST_GAP: SignedDuration = SignedDuration::from_secs(1);

/// Maximum number of statements that are kept about one election.
const MEMORY: usize = 200;

/// Reason of a term without an end Event.
const SILENT: &str = "crashed or cut off";

/// Reason of such a term if no candidate has taken over since.
const UNFOLLOWED: &str = "crashed or cut off; nobody has taken over";

/// The start or the end of a term, as an Event or a change of the lock object shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TermChange {
    pub(crate) namespace: String,
    pub(crate) name: String,
    at: Timestamp,
    holder: String,
    began: bool,
    why: Option<String>,
    token: Option<String>,
    /// If this is a start: the end of the previous holder's lease, unless that holder released the lock.
    previous_end: Option<Timestamp>,
}

/// One term.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Term {
    pub(crate) holder: String,
    /// Start; unknown if only the end is recorded.
    #[serde(serialize_with = "time")]
    pub(crate) from: Option<Timestamp>,
    /// `None` while the term lasts.
    #[serde(serialize_with = "time")]
    pub(crate) to: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<String>,
    /// `None` while the term lasts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<String>,
}

/// Returns the path of Events.
pub(crate) fn path(namespace: Option<&str>) -> String {
    let place = namespace.map_or(String::new(), |name| format!("/namespaces/{name}"));
    format!("/api/v1{place}/events?fieldSelector=reason%3D{REASON}")
}

/// Reads the statements of candidates, oldest first.
pub(crate) async fn read_changes(
    client: &Client,
    namespace: Option<&str>,
) -> Result<Vec<TermChange>> {
    let list = api::get(client, &path(namespace)).await?.body;
    let items = list["items"].as_array().map(Vec::as_slice);
    let mut changes: Vec<TermChange> = items
        .unwrap_or_default()
        .iter()
        .filter_map(TermChange::read)
        .collect();
    changes.sort_by_key(|change| change.at);
    Ok(changes)
}

impl TermChange {
    /// Derives a statement from a change of the lock object.
    pub(crate) fn of_change(before: Option<&Seen>, after: &Seen) -> Option<Self> {
        let held = before.map_or("", |seen| seen.holder.as_str());
        let parse = |time: &Option<String>| time.as_deref()?.parse().ok();
        let same = before.is_some_and(|b| b.transitions == after.transitions);
        if held == after.holder && (same || held.is_empty()) {
            return None;
        }
        let began = !after.holder.is_empty();
        let crashed = before.filter(|before| began && !before.holder.is_empty());
        Some(Self {
            namespace: after.namespace.clone(),
            name: after.name.clone(),
            at: parse(&after.acquire_time).or(parse(&after.renew_time))?,
            holder: if began { &after.holder } else { held }.to_owned(),
            began,
            why: (!began).then(|| "it released".to_owned()),
            token: None,
            previous_end: crashed.and_then(lease_end),
        })
    }

    /// Inserts a statement in order. An Event replaces the same statement from the lock, because it has more details.
    pub(crate) fn join(self, changes: &mut Vec<Self>) {
        let near = |other: &&mut Self| {
            (&other.holder, other.began) == (&self.holder, self.began)
                && other.at.duration_since(self.at).abs() < SignedDuration::from_millis(1500)
        };
        match changes.iter_mut().rev().find(near) {
            Some(known) => {
                let previous_end = self.previous_end.or(known.previous_end);
                if self.token.is_some() {
                    *known = self;
                }
                known.previous_end = previous_end;
            }
            None => changes.push(self),
        }
        changes.sort_by_key(|change| change.at);
        if changes.len() > MEMORY {
            changes.remove(0);
        }
    }

    /// Parses an Event. Returns `None` if it is not about an election.
    pub(crate) fn read(event: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let message = event["message"].as_str()?;
        let (holder, began) = match message.strip_suffix(" became leader") {
            Some(holder) => (holder, true),
            None => (message.strip_suffix(" stopped leading")?, false),
        };
        let about = &event["involvedObject"];
        if event["reason"] != REASON {
            return None;
        }
        Some(Self {
            namespace: text(&about["namespace"])?,
            name: text(&about["name"])?,
            at: instant(event)?,
            holder: holder.to_owned(),
            began,
            why: text(&event["metadata"]["annotations"][WHY]),
            token: text(&event["metadata"]["annotations"][TOKEN]),
            previous_end: text(&event["metadata"]["annotations"][PREVIOUS_END])
                .and_then(|time| time.parse().ok()),
        })
    }
}

/// Computes the terms from statements, oldest first.
pub(crate) fn of_changes<'a>(changes: impl IntoIterator<Item = &'a TermChange>) -> Vec<Term> {
    let mut terms: Vec<Term> = Vec::new();
    for change in changes {
        let open = terms.last_mut().filter(|term| term.to.is_none());
        match (change.began, open) {
            (true, open) => {
                if let Some(open) = open {
                    // The clock of the previous holder may be wrong.
                    let end = change.previous_end.unwrap_or(change.at).min(change.at);
                    open.end(end, SILENT);
                }
                terms.push(Term {
                    holder: change.holder.clone(),
                    from: Some(change.at),
                    to: None,
                    token: change.token.clone(),
                    ended: None,
                });
            }
            (false, Some(open)) if open.holder == change.holder => {
                open.end(change.at, &change.why());
            }
            // A late statement of a previous holder adds the reason for its end.
            (false, _) => match terms
                .iter_mut()
                .rev()
                .find(|t| t.holder == change.holder && t.ended.as_deref() == Some(SILENT))
            {
                Some(term) => {
                    let before = term.to.map_or(change.at, |to| to.min(change.at));
                    term.end(before, &change.why());
                }
                None => terms.push(Term {
                    holder: change.holder.clone(),
                    from: None,
                    to: Some(change.at),
                    token: change.token.clone(),
                    ended: Some(change.why()),
                }),
            },
        }
    }
    terms
}

/// Updates the terms with the current lock object.
pub(crate) fn settle(terms: &mut Vec<Term>, seen: &Seen) {
    let parse = |time: &Option<String>| time.as_deref().and_then(|time| time.parse().ok());
    let (acquired, renewed): (Option<Timestamp>, Option<Timestamp>) =
        (parse(&seen.acquire_time), parse(&seen.renew_time));
    let last = terms.last_mut().filter(|term| term.to.is_none());
    if seen.holder.is_empty() {
        if let Some(open) = last {
            let at = renewed.or(open.from).unwrap_or_default();
            open.end(at, "released");
        }
        return;
    }
    let end = lease_end(seen).filter(|_| seen.state == "expired");
    match last {
        Some(open) if open.holder == seen.holder => {}
        open => {
            if let Some(open) = open {
                open.end(acquired.or(open.from).unwrap_or_default(), SILENT);
            }
            // The end of the term may be announced before the lease is released.
            let ended = terms.last().is_some_and(|term| {
                let since = acquired.zip(term.to).is_some_and(|(from, to)| from <= to);
                term.holder == seen.holder && since
            });
            if ended {
                return;
            }
            terms.push(Term {
                holder: seen.holder.clone(),
                from: acquired,
                to: None,
                token: None,
                ended: None,
            });
        }
    }
    if let (Some(end), Some(open)) = (end, terms.last_mut()) {
        open.end(end, UNFOLLOWED);
    }
}

/// Returns the end of the lease of the current holder: its last renewal plus the lease duration.
fn lease_end(seen: &Seen) -> Option<Timestamp> {
    let renewed: Timestamp = seen.renew_time.as_deref()?.parse().ok()?;
    let lease = SignedDuration::from_secs(i64::from(seen.lease_duration_seconds));
    renewed.checked_add(lease).ok()
}

/// Returns the time without a leader between two terms, if both ends are known and it lasted a second or more. A
/// hand-over takes milliseconds.
pub(crate) fn gap(before: &Term, after: &Term) -> Option<(Timestamp, Timestamp)> {
    let (from, to) = (before.to?, after.from?);
    (to.duration_since(from) >= SHORTEST_GAP).then_some((from, to))
}

/// Returns the number of recently started terms.
pub(crate) fn recent(terms: &[Term], now: Timestamp) -> usize {
    let begun = terms.iter().filter_map(|term| term.from);
    begun
        .filter(|from| now.duration_since(*from) < RECENT)
        .count()
}

impl Term {
    fn end(&mut self, at: Timestamp, why: &str) {
        self.to = Some(self.from.map_or(at, |from| at.max(from)));
        self.ended = Some(why.to_owned());
    }
}

impl TermChange {
    fn why(&self) -> String {
        let unknown = "it stopped leading without giving a reason";
        self.why.as_deref().map_or(unknown, stop_words).to_owned()
    }
}

/// Returns a stop reason of `tenure_core::StopReason` in words.
pub(crate) fn stop_words(reason: &str) -> &str {
    match reason {
        "guard-expired" => "it could not renew in time",
        "foreign-holder" => "somebody else took the lock",
        "emptied" => "somebody emptied the lock",
        "edited" => "somebody edited the lock",
        "deleted" => "the lock was deleted",
        "recreated" => "the lock was deleted and created again",
        "went-back" => "the API server's store was restored",
        "ordered" => "an operator ordered it to step down",
        "preferred-holder" => "another holder was preferred",
        "step-down" => "it stepped down",
        "work-ended" => "its work ended",
        "shutdown" => "it was shut down",
        other => other,
    }
}

/// Returns the time of an Event. The suffix of its name is more precise than its timestamps: hexadecimal nanoseconds in
/// client-go, microseconds in Tenure.
fn instant(event: &Value) -> Option<Timestamp> {
    let first = ["firstTimestamp", "eventTime"]
        .into_iter()
        .find_map(|key| event[key].as_str()?.parse::<Timestamp>().ok())?;
    let fine = || {
        let (_, digits) = event["metadata"]["name"].as_str()?.rsplit_once('.')?;
        let number = i64::from_str_radix(digits, 16).ok()?;
        let micros = if number > 100_000_000_000_000_000 {
            number / 1000
        } else {
            number
        };
        let fine = Timestamp::from_microsecond(micros).ok()?;
        (fine.duration_since(first).abs() < SignedDuration::from_secs(2)).then_some(fine)
    };
    Some(fine().unwrap_or(first))
}

#[expect(clippy::ref_option, reason = "serde calls it")]
fn time<S: Serializer>(time: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serializer.collect_str(time),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event(micros: i64, message: &str, why: Option<&str>) -> Value {
        let at = Timestamp::from_microsecond(micros).unwrap();
        json!({
            "metadata": {
                "name": format!("x.{micros:x}"),
                "annotations": { "tenure.dev/fencing-token": "7", "tenure.dev/reason": why },
            },
            "involvedObject": { "namespace": "ns", "name": "x" },
            "reason": "LeaderElection",
            "message": message,
            "firstTimestamp": format!("{at:.0}"),
        })
    }

    fn told(events: &[Value]) -> Vec<(String, Option<i64>, Option<i64>, String)> {
        let changes: Vec<TermChange> = events.iter().filter_map(TermChange::read).collect();
        let micros = |time: Option<Timestamp>| time.map(Timestamp::as_microsecond);
        of_changes(&changes)
            .into_iter()
            .map(|t| {
                let ended = t.ended.unwrap_or_default();
                (t.holder, micros(t.from), micros(t.to), ended)
            })
            .collect()
    }

    const T: i64 = 1_600_000_000_250_000;

    #[test]
    fn a_term_that_was_announced_to_end_says_why() {
        let events = [
            event(T, "a became leader", None),
            event(T + 5, "a stopped leading", Some("shutdown")),
            event(T + 9, "b became leader", None),
        ];
        assert_eq!(
            told(&events),
            [
                ("a".into(), Some(T), Some(T + 5), "it was shut down".into()),
                ("b".into(), Some(T + 9), None, String::new()),
            ]
        );
    }

    #[test]
    fn term_without_an_end_event_is_reported_as_silent() {
        let events = [
            event(T, "a became leader", None),
            event(T + 9, "b became leader", None),
            event(T + 12, "c stopped leading", None),
        ];
        let told = told(&events);
        assert_eq!(told[0].3, SILENT);
        assert_eq!((told[2].0.as_str(), told[2].1), ("c", None));
    }

    #[test]
    fn silent_term_ends_with_its_lease_and_leaves_a_gap() {
        let second = 1_000_000;
        let mut next = event(T + 40 * second, "b became leader", None);
        let end = Timestamp::from_microsecond(T + 15 * second).unwrap();
        next["metadata"]["annotations"]["tenure.dev/previous-lease-end"] = end.to_string().into();
        let events = [event(T, "a became leader", None), next.clone()];
        let expected = ("a".into(), Some(T), Some(T + 15 * second), SILENT.into());
        assert_eq!(told(&events)[0], expected);
        let changes: Vec<TermChange> = events.iter().filter_map(TermChange::read).collect();
        let terms = of_changes(&changes);
        let (from, to) = gap(&terms[0], &terms[1]).unwrap();
        assert_eq!(to.duration_since(from), SignedDuration::from_secs(25));
        // A holder whose clock is ahead cannot lead longer than until the next term.
        next["metadata"]["annotations"]["tenure.dev/previous-lease-end"] =
            "2030-01-01T00:00:00Z".into();
        let events = [event(T, "a became leader", None), next];
        assert_eq!(told(&events)[0].2, Some(T + 40 * second));
    }

    #[test]
    fn late_event_adds_the_reason_of_a_silent_end() {
        let events = [
            event(T, "a became leader", None),
            event(T + 9, "b became leader", None),
            event(T + 12, "a stopped leading", Some("guard-expired")),
        ];
        let told = told(&events);
        assert_eq!(told.len(), 2);
        assert_eq!(told[0].3, "it could not renew in time");
    }

    #[test]
    fn unrelated_events_are_ignored() {
        assert_eq!(TermChange::read(&event(T, "pulled an image", None)), None);
        let mut other = event(T, "a became leader", None);
        other["reason"] = "Scheduled".into();
        assert_eq!(TermChange::read(&other), None);
    }

    #[test]
    fn event_name_gives_the_time_only_if_it_matches_the_timestamp() {
        let at = |event: &Value| instant(event).unwrap().as_microsecond();
        assert_eq!(at(&event(T, "a became leader", None)), T);
        let mut nanos = event(T, "a became leader", None);
        nanos["metadata"]["name"] = format!("x.{:x}", T * 1000 + 7).into();
        assert_eq!(at(&nanos), T);
        nanos["metadata"]["name"] = "x.17".into();
        assert_eq!(at(&nanos), 1_600_000_000_000_000);
    }
}
