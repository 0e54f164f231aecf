//! The terms of an election and their overlaps, from the event lines of the candidates.
//!
//! This module is pure: it reads event lines and computes. A term is `[acquired.t, until)`, where `until` is the end of
//! guarded work according to the process itself. A killed process reports nothing, and it may have been stopped or
//! starved long before the kill. The harness therefore closes its term at the last reported step of work, or at the
//! moment of the kill if there was no step.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Nanos;
use crate::event::{Event, Kind};

/// The period in which one process leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// The identity of the leader.
    pub who: String,
    /// Its fencing token.
    pub token: Option<String>,
    /// The number of transitions that it wrote.
    pub transitions: u32,
    /// The first instant of guarded work.
    pub from: Nanos,
    /// The end of guarded work; `None` while it lasts.
    pub until: Option<Nanos>,
}

/// Two terms that overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The term that began first.
    pub first: Term,
    /// The term that began before the first had ended.
    pub second: Term,
    /// Length of the overlap, up to the given end of the history.
    pub length: Duration,
}

/// Problems of a history, one sentence per finding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Violations(pub Vec<String>);

/// The history of one election, from the lines of every candidate.
#[derive(Clone, Debug, Default)]
pub struct History {
    terms: Vec<Term>,
    work: BTreeMap<String, Vec<Nanos>>,
    malformed: Vec<String>,
}

impl History {
    /// Adds the lines of one process. `ended` is the time at which the process was killed, if it was.
    pub fn add(&mut self, events: &[Event], ended: Option<Nanos>) {
        let mut open: Option<Term> = None;
        let mut last_step = None;
        let mut ended_before = false;
        for event in events {
            match event.event {
                Kind::Acquired => {
                    if let Some(unfinished) = open.take() {
                        self.malformed
                            .push(format!("{} acquired twice without an end", event.me));
                        self.terms.push(unfinished);
                    }
                    last_step = None;
                    open = Some(Term {
                        who: event.me.clone(),
                        token: event.token.clone(),
                        transitions: event.transitions.unwrap_or_default(),
                        from: event.t,
                        until: None,
                    });
                }
                Kind::Lost | Kind::Released => match (open.take(), event.until) {
                    (Some(term), Some(until)) => {
                        if until > event.t {
                            self.malformed
                                .push(format!("{} ended its term in the future", event.me));
                        }
                        self.terms.push(Term {
                            until: Some(until.max(term.from)),
                            ..term
                        });
                    }
                    (Some(term), None) => {
                        self.malformed
                            .push(format!("{} ended a term without `until`", event.me));
                        self.terms.push(Term {
                            until: Some(event.t),
                            ..term
                        });
                    }
                    // A candidate may report the end of its term, and later the release of the lock.
                    (None, _) if event.event == Kind::Released && ended_before => {}
                    (None, _) => {
                        self.malformed
                            .push(format!("{} ended a term it never began", event.me));
                    }
                },
                Kind::Working => {
                    last_step = Some(event.t);
                    self.work.entry(event.me.clone()).or_default().push(event.t);
                }
                Kind::Observed | Kind::Stats | Kind::Other => {}
            }
            ended_before |= event.event == Kind::Lost;
        }
        self.terms.extend(open.map(|term| Term {
            until: ended.map(|at| last_step.unwrap_or(at).min(at)),
            ..term
        }));
        self.terms.sort_by_key(|term| term.from);
    }

    /// Returns all terms, in the order in which they began.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns every pair of overlapping terms. Terms without an end last until `now`.
    pub fn overlaps(&self, now: Nanos) -> Vec<Overlap> {
        let end = |term: &Term| term.until.unwrap_or(now);
        let mut found = Vec::new();
        for (index, first) in self.terms.iter().enumerate() {
            for second in &self.terms[index + 1..] {
                let length = end(first).min(end(second)).since(second.from);
                if !length.is_zero() {
                    found.push(Overlap {
                        first: first.clone(),
                        second: second.clone(),
                        length,
                    });
                }
            }
        }
        found
    }

    /// Returns how long after the beginning of a newer term the given process still did guarded work; zero if it never
    /// did.
    ///
    /// Unlike the overlap of terms, this excludes time in which the process was stopped.
    pub fn stale_work(&self, who: &str) -> Duration {
        let own: Vec<&Term> = self.terms.iter().filter(|term| term.who == who).collect();
        let stale = |at: Nanos| {
            let began = own.iter().rev().find(|term| term.from <= at)?.from;
            let newer = self
                .terms
                .iter()
                .find(|term| term.from > began && term.who != who)?;
            (newer.from < at).then(|| at.since(newer.from))
        };
        let work = self.work.get(who).map(Vec::as_slice).unwrap_or_default();
        work.iter()
            .filter_map(|at| stale(*at))
            .max()
            .unwrap_or_default()
    }

    /// Returns the longest [`stale_work`](Self::stale_work) of all processes.
    pub fn longest_stale_work(&self) -> Duration {
        let everybody = self.work.keys().map(|who| self.stale_work(who));
        everybody.max().unwrap_or_default()
    }

    /// Returns contradictory lines and tokens that do not increase: properties that hold even if people delete and edit
    /// the lock.
    pub fn disorder(&self) -> Vec<String> {
        let mut found = self.malformed.clone();
        for pair in self.terms.windows(2) {
            let (older, newer) = (&pair[0], &pair[1]);
            if let (Some(low), Some(high)) = (&older.token, &newer.token)
                && (low.len(), low) >= (high.len(), high)
            {
                found.push(format!(
                    "the token {high} of {} is not above {low} of {}",
                    newer.who, older.who
                ));
            }
        }
        found
    }

    /// Checks everything that must hold for candidates that follow the rules.
    ///
    /// # Errors
    ///
    /// Fails for overlapping terms, tokens that do not increase, transitions that decrease, and contradictory lines.
    pub fn check(&self, now: Nanos) -> Result<(), Violations> {
        let mut found = self.disorder();
        found.extend(self.overlaps(now).iter().map(|overlap| {
            format!(
                "{} and {} both led for {:?}",
                overlap.first.who, overlap.second.who, overlap.length
            )
        }));
        for pair in self.terms.windows(2) {
            let (older, newer) = (&pair[0], &pair[1]);
            if newer.transitions < older.transitions {
                found.push(format!(
                    "transitions went down from {} ({}) to {} ({})",
                    older.transitions, older.who, newer.transitions, newer.who
                ));
            }
        }
        if found.is_empty() {
            Ok(())
        } else {
            Err(Violations(found))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    /// Parses a script: `acquired@10#5/1` is the event, its time in ms, token and transitions; `lost@20<18` ends at 18.
    fn lines(me: &str, script: &str) -> Vec<Event> {
        script
            .split_whitespace()
            .map(|word| {
                let (event, rest) = word.split_once('@').unwrap();
                let (rest, until) = rest.split_once('<').unwrap_or((rest, ""));
                let (t, term) = rest.split_once('#').unwrap_or((rest, ""));
                let (token, transitions) = term.split_once('/').unwrap_or((term, ""));
                let mut line = serde_json::json!({
                    "t": t.parse::<i64>().unwrap() * MS, "event": event, "self": me, "token": token,
                });
                if let Ok(until) = until.parse::<i64>() {
                    line["until"] = (until * MS).into();
                }
                if let Ok(transitions) = transitions.parse::<u32>() {
                    line["transitions"] = transitions.into();
                }
                Event::parse(&line.to_string()).unwrap()
            })
            .collect()
    }

    fn history(processes: &[(&str, &str)]) -> History {
        let mut history = History::default();
        for (me, script) in processes {
            history.add(&lines(me, script), None);
        }
        history
    }

    fn violations(processes: &[(&str, &str)]) -> Vec<String> {
        history(processes)
            .check(Nanos(1000 * MS))
            .err()
            .map_or_else(Vec::new, |found| found.0)
    }

    #[test]
    fn consecutive_terms_without_a_gap_are_valid() {
        let found = violations(&[
            ("a", "acquired@10#5/0 released@21<20"),
            ("b", "acquired@20#9/1 lost@40<39"),
            ("c", "acquired@50#12/2"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn the_end_of_the_work_counts_and_not_the_time_of_the_line() {
        let processes = [
            ("a", "acquired@10#5/0 lost@90<20"),
            ("b", "acquired@30#9/1 lost@50<50"),
        ];
        assert_eq!(violations(&processes), Vec::<String>::new());
    }

    #[test]
    fn overlap_of_two_terms_is_found_and_measured() {
        let history = history(&[
            ("a", "acquired@10#5/0 lost@61<60"),
            ("b", "acquired@30#9/1 lost@90<90"),
        ]);
        let found = history.overlaps(Nanos(100 * MS));
        assert_eq!(found.len(), 1);
        assert_eq!(
            (
                found[0].first.who.as_str(),
                found[0].second.who.as_str(),
                found[0].length
            ),
            ("a", "b", Duration::from_millis(30))
        );
        assert_eq!(
            history.check(Nanos(0)).unwrap_err().to_string(),
            "a and b both led for 30ms"
        );
    }

    #[test]
    fn a_short_term_inside_a_long_one_and_an_open_term_are_found() {
        let found = violations(&[
            ("a", "acquired@10#1/0"),
            ("b", "acquired@20#2/1 lost@30<30"),
            ("c", "acquired@40#3/2 lost@50<50"),
        ]);
        assert_eq!(
            found,
            ["a and b both led for 10ms", "a and c both led for 10ms"]
        );
    }

    #[test]
    fn killed_process_no_longer_leads() {
        let mut history = History::default();
        history.add(&lines("a", "acquired@10#1/0"), Some(Nanos(30 * MS)));
        history.add(&lines("b", "acquired@31#2/1"), None);
        assert_eq!(history.check(Nanos(99 * MS)), Ok(()));
    }

    #[test]
    fn a_killed_process_worked_until_its_last_step() {
        let frozen = lines("a", "acquired@10#1/0 working@15 working@20");
        let mut history = History::default();
        history.add(&frozen, Some(Nanos(50 * MS)));
        history.add(&lines("b", "acquired@31#2/1"), None);
        assert_eq!(history.check(Nanos(99 * MS)), Ok(()));
        // A term that continued is detected.
        let mut history = History::default();
        let busy = lines("a", "acquired@10#1/0 working@15 working@40");
        history.add(&busy, Some(Nanos(50 * MS)));
        history.add(&lines("b", "acquired@31#2/1"), None);
        let found = history.check(Nanos(99 * MS)).unwrap_err().to_string();
        assert_eq!(found, "a and b both led for 9ms");
    }

    #[test]
    fn tokens_are_compared_as_numbers_and_must_grow() {
        let low_high = [
            ("a", "acquired@1#9/0 lost@2<2"),
            ("b", "acquired@3#10/1 lost@4<4"),
        ];
        assert_eq!(violations(&low_high), Vec::<String>::new());
        let equal = [
            ("a", "acquired@1#10/0 lost@2<2"),
            ("b", "acquired@3#10/1 lost@4<4"),
        ];
        assert_eq!(
            violations(&equal),
            ["the token 10 of b is not above 10 of a"]
        );
    }

    #[test]
    fn transitions_must_not_go_down() {
        let found = violations(&[
            ("a", "acquired@1#1/4 lost@2<2"),
            ("b", "acquired@3#2/0 lost@4<4"),
        ]);
        assert_eq!(found, ["transitions went down from 4 (a) to 0 (b)"]);
    }

    #[test]
    fn lost_term_may_be_released_later() {
        let lost_then_released = [("a", "acquired@1#1/0 lost@5<4 released@9")];
        assert_eq!(violations(&lost_then_released), Vec::<String>::new());
        let never_led = [("a", "released@9")];
        assert_eq!(violations(&never_led), ["a ended a term it never began"]);
    }

    #[test]
    fn contradictory_lines_are_reported() {
        assert_eq!(
            violations(&[("a", "lost@5<4")]),
            ["a ended a term it never began"]
        );
        assert_eq!(
            violations(&[("a", "acquired@1#1/0 lost@5")]),
            ["a ended a term without `until`"]
        );
        assert_eq!(
            violations(&[("a", "acquired@1#1/0 lost@5<9")]),
            ["a ended its term in the future"]
        );
        let twice = violations(&[("a", "acquired@1#1/0 acquired@5#2/1 lost@7<6")]);
        assert_eq!(twice[0], "a acquired twice without an end");
    }

    #[test]
    fn work_counts_as_stale_only_after_a_newer_term_began() {
        let history = history(&[
            (
                "a",
                "acquired@10#1/0 working@15 working@70 working@75 lost@81<80",
            ),
            ("b", "acquired@30#2/1 working@31"),
        ]);
        assert_eq!(history.stale_work("a"), Duration::from_millis(45));
        assert_eq!(history.stale_work("b"), Duration::ZERO);
        assert_eq!(history.stale_work("nobody"), Duration::ZERO);
    }
}
