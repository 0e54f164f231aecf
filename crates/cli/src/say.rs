//! One line per change of a candidacy, on standard error: `tenure: leading shop/web, fencing token 42`.
//!
//! The lines are log events with a constant message, fields for programs, and a sentence for people in the field `text`.
//! `--log-format json` prints all of them; otherwise only the sentence is printed. A service manager that watches this process
//! gets the sentence as its status; see [`notify`].

use std::fmt::{self, Write as _};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure::{Term, Timing};
use tenure_lock::duration::format as span;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::notify;
use crate::observed_lock::Notes;
use crate::output::escaped;

/// Target of these log events.
pub(crate) const TARGET: &str = "tenure::say";

/// Logs a sentence of a [`Voice`], with the fields that all of them have: `text`, `namespace` and `election`. More fields and
/// the constant message follow.
macro_rules! log {
    ($level:ident, $voice:expr, $text:expr, $($rest:tt)+) => {
        tracing::$level!(
            target: TARGET,
            text = $text,
            namespace = $voice.namespace,
            election = $voice.election,
            $($rest)+
        )
    };
}

/// Logs a sentence of a [`Voice`] and makes it the status of this process. Like `log`, it takes fields and the constant message.
macro_rules! say {
    ($level:ident, $voice:expr, $text:expr, $($rest:tt)+) => {{
        let text = $text;
        notify::status(&text);
        log!($level, $voice, text, $($rest)+);
    }};
}

/// Reports the changes of one candidacy.
#[derive(Clone, Debug)]
pub(crate) struct Voice {
    namespace: String,
    election: String,
    place: String,
}

impl Voice {
    pub(crate) fn new(namespace: &str, election: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            election: election.to_owned(),
            place: format!("{namespace}/{election}"),
        }
    }

    /// Reports the start, with the durations.
    pub(crate) fn campaigning(&self, identity: &str, timing: &Timing, slots: Option<u32>) {
        let place = match slots {
            Some(slots) => format!("{} for one of {slots} slots", self.place),
            None => self.place.clone(),
        };
        let text = format!(
            "campaigning in {place} as {identity} (lease {}, renew deadline {}, retry period {})",
            span(timing.lease()),
            span(timing.renew_deadline()),
            span(timing.retry_period()),
        );
        notify::ready(&text);
        log!(
            info,
            self,
            text,
            identity,
            lease_seconds = timing.lease().as_secs_f64(),
            renew_deadline_seconds = timing.renew_deadline().as_secs_f64(),
            retry_period_seconds = timing.retry_period().as_secs_f64(),
            "campaigning"
        );
    }

    /// Reports the start of an observer, which never campaigns.
    pub(crate) fn observing(&self) {
        let text = format!("observing {}; --dry-run never campaigns", self.place);
        notify::ready(&text);
        log!(info, self, text, "observing");
    }

    /// Reports another holder. `notes` contains its record.
    pub(crate) fn waiting(&self, holder: &str, notes: &Notes) {
        let left = SignedDuration::try_from(notes.valid_for()).unwrap_or_default();
        let until = Timestamp::now().checked_add(left).unwrap_or_default();
        let until = format!("{until:.0}");
        let waits = format!("waiting: {holder} holds {}", self.place);
        // A status is shown for as long as the holder renews, so it does not contain a time.
        notify::status(&waits);
        let text = format!("{waits}, until {until} unless it renews its lease");
        let previous = notes.previous();
        log!(
            info,
            self,
            text,
            leader = holder,
            previous,
            term = notes.record().map(|record| record.transitions),
            until,
            "waiting"
        );
    }

    /// Reports that nobody holds the lock.
    pub(crate) fn vacant(&self, previous: &str) {
        let text = format!("nobody holds {}", self.place);
        say!(info, self, text, leader = "", previous, "no leader");
    }

    /// Reports a paused election that nobody holds.
    pub(crate) fn paused(&self) {
        let (place, election) = (&self.place, &self.election);
        let text = format!(
            "waiting: {place} is paused; nobody can acquire it until `tenure resume {election}`"
        );
        say!(info, self, text, "paused");
    }

    /// Reports the start of a term of this candidate.
    pub(crate) fn leading(&self, term: &Term, previous: &str) {
        let token = term.tenure().token().to_string();
        let text = format!("leading {}, fencing token {token}", self.place);
        say!(
            info,
            self,
            text,
            leader = term.tenure().identity(),
            previous,
            term = term.tenure().transitions(),
            token,
            "leading"
        );
    }

    /// Reports the end of a term of this candidate, with the reason as text.
    pub(crate) fn stopped(&self, term: &Term, why: &str) {
        let text = format!("stopped leading {}: {why}", self.place);
        say!(
            info,
            self,
            text,
            leader = "",
            previous = term.tenure().identity(),
            term = term.tenure().transitions(),
            token = term.tenure().token().to_string(),
            why,
            "stopped leading"
        );
    }

    pub(crate) fn released(&self) {
        let text = format!("released {}", self.place);
        say!(info, self, text, "released");
    }

    /// Warns that the lease remains held although nobody leads. `why` is the cause.
    pub(crate) fn not_released(&self, why: &str, lease: Duration) {
        let lease = span(lease);
        let text = format!("{why} {}; others wait up to {lease}", self.place);
        say!(warn, self, text, "not released");
    }

    /// Reports that the watchdog released the lease of a wrapper that was killed.
    pub(crate) fn released_after_crash(&self) {
        let text = format!(
            "tenure was killed; released {} after the command had ended",
            self.place
        );
        say!(info, self, text, "released after a crash");
    }

    /// Warns that the watchdog could not release the lease of a wrapper that was killed.
    pub(crate) fn not_released_after_crash(&self, why: &str, lease: Duration) {
        let (place, lease) = (&self.place, span(lease));
        let text = format!(
            "tenure was killed, and {place} could not be released: {why}; others wait up to {lease}"
        );
        say!(warn, self, text, why, "not released after a crash");
    }

    /// Reports whether the health checks let this candidate campaign.
    pub(crate) fn health(&self, trouble: Option<&str>) {
        let place = &self.place;
        match trouble {
            Some(why) => {
                let text = format!("not campaigning in {place}: the health check failed: {why}");
                say!(warn, self, text, why, "unhealthy");
            }
            None => {
                let text = format!("campaigning in {place}: the health check succeeded");
                say!(info, self, text, "healthy");
            }
        }
    }

    /// Warns about a leader that steps down because of its health.
    pub(crate) fn unhealthy_leader(&self, why: &str) {
        let place = &self.place;
        let text = format!("stepping down from {place}: the health check failed: {why}");
        say!(warn, self, text, why, "unhealthy leader");
    }
}

/// Reports what a second signal skips.
pub(crate) fn second_signal(what: &str) {
    let text = format!("second signal: {what}");
    tracing::warn!(target: TARGET, text, "second signal");
}

/// Warns that candidates with and without slots cannot be distinguished, because reading the lease that shows it is
/// forbidden.
pub(crate) fn slots_unchecked(namespace: &str, lease: &str) {
    let text = format!(
        "cannot check whether other candidates use this election with slots or without: missing permission: get \
         leases.coordination.k8s.io \"{lease}\" in namespace \"{namespace}\"; apply the Role printed by `tenure run --print-rbac`"
    );
    tracing::warn!(target: TARGET, text, namespace, lease, "slots are not checked");
}

/// Formats the events of this module as sentences, and others as usual.
pub(crate) struct Sentences(Format);

impl Sentences {
    pub(crate) fn new() -> Self {
        Self(tracing_subscriber::fmt::format().with_target(false))
    }
}

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != TARGET {
            return self.0.format_event(context, writer, event);
        }
        let mut text = Text::default();
        event.record(&mut text);
        writeln!(writer, "tenure: {}", escaped(&text.0))
    }
}

/// The field `text` of an event.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "text" {
            value.clone_into(&mut self.0);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "text" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_of_a_voice_has_namespace_and_election_as_fields() {
        let written = Written::default();
        let to = written.clone();
        let log = tracing_subscriber::fmt()
            .json()
            .with_writer(move || to.clone())
            .finish();
        tracing::subscriber::with_default(log, || {
            let voice = Voice::new("shop", "web");
            voice.observing();
            voice.vacant("alice");
            voice.paused();
            voice.released();
            voice.not_released("did not release", Duration::from_secs(15));
            voice.released_after_crash();
            voice.not_released_after_crash("it is ill", Duration::from_secs(15));
            voice.health(Some("it is ill"));
            voice.health(None);
            voice.unhealthy_leader("it is ill");
        });
        let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        for line in written.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let fields = &line["fields"];
            assert_eq!(
                (&fields["namespace"], &fields["election"]),
                (&"shop".into(), &"web".into()),
                "{line}"
            );
            assert!(
                fields["text"]
                    .as_str()
                    .is_some_and(|text| text.contains("shop/web")),
                "{line}"
            );
        }
        assert_eq!(written.lines().count(), 10, "{written}");
    }

    #[test]
    fn sentence_has_no_fields_and_other_lines_have_them() {
        let written = Written::default();
        let to = written.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || to.clone())
            .with_ansi(false)
            .event_format(Sentences::new())
            .finish();
        tracing::subscriber::with_default(log, || {
            Voice::new("shop", "web").released();
            Voice::new("shop", "web").not_released("did not release", Duration::from_secs(15));
            second_signal("a\u{1b}b");
            tracing::warn!(kind = "other", "as usual");
        });
        let written = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = written.lines().collect();
        assert_eq!(
            lines[..3],
            [
                "tenure: released shop/web",
                "tenure: did not release shop/web; others wait up to 15s",
                "tenure: second signal: a\\u{1b}b",
            ]
        );
        assert!(
            lines[3].ends_with("WARN as usual kind=\"other\""),
            "{written}"
        );
    }
}
