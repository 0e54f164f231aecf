//! A checker for histories of compare-and-set writes.
//!
//! Writers compete for one shared object, and each also updates a separate object. They print every attempt and every
//! result in real-time order:
//!
//! | line | meaning |
//! |---|---|
//! | `@start REVISION` | the store opened at this revision |
//! | `@try WRITER shared\|own ID FROM` | the writer will replace the version with id FROM (0: no object) |
//! | `@ok WRITER shared\|own ID REVISION` | the write was acknowledged |
//! | `@no WRITER shared\|own ID` | the write was rejected with a conflict |
//!
//! Every ID is used once and is part of the stored object. The checker compares the lines with the final content:
//! - No acknowledged write is lost. At most one unanswered write per writer was applied.
//! - No revision is used twice. All revisions after a restart are higher than all revisions before it.
//! - Compare-and-set on the shared object is linearizable. Every version replaced its predecessor, and an operation that
//!   began after another was answered comes later in the order.
//!
//! `tests/tests/server_crash.rs` includes this file to check the server.

use std::collections::{BTreeMap, HashMap};

/// One attempt to replace the version with id `from` (0: no object) with the version `id`.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    id: u64,
    from: u64,
    began: usize,
    /// Line number of the result, and the revision unless the result is a conflict.
    answer: Option<(usize, Option<u64>)>,
}

impl Attempt {
    fn revision(&self) -> Option<u64> {
        self.answer?.1
    }
}

/// The stored version of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    pub(crate) id: u64,
    pub(crate) revision: u64,
}

/// Number of attempts by result.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) acknowledged: usize,
    pub(crate) refused: usize,
    pub(crate) unanswered: usize,
}

/// The lines of the writers, over any number of restarts.
#[derive(Debug, Default)]
pub(crate) struct History {
    lines: usize,
    /// The highest revision in the history.
    highest: u64,
    /// The attempts of each object in order of their start. The key is `shared` or the number of the owning writer.
    attempts: BTreeMap<String, Vec<Attempt>>,
}

impl History {
    /// Adds the output of one run of the store.
    pub(crate) fn read(&mut self, output: &str) {
        let mut open: HashMap<u64, (String, usize)> = HashMap::new();
        let mut seen = self.highest;
        for line in output.lines().filter_map(|line| line.strip_prefix('@')) {
            self.lines += 1;
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words.get(at)?.parse::<u64>().ok();
            match words[0] {
                "start" => {
                    let start = number(1).unwrap();
                    assert!(
                        start >= self.highest,
                        "the store starts at revision {start} after {}",
                        self.highest
                    );
                }
                "try" => {
                    let (Some(id), Some(from)) = (number(3), number(4)) else {
                        continue;
                    };
                    let name = if words[2] == "own" {
                        words[1]
                    } else {
                        words[2]
                    }
                    .to_owned();
                    let attempts = self.attempts.entry(name.clone()).or_default();
                    open.insert(id, (name, attempts.len()));
                    attempts.push(Attempt {
                        id,
                        from,
                        began: self.lines,
                        answer: None,
                    });
                }
                "ok" | "no" => {
                    let Some(id) = number(3) else { continue };
                    let (name, at) = open.remove(&id).expect("a result without an attempt");
                    let revision = (words[0] == "ok").then(|| number(4).unwrap());
                    if let Some(revision) = revision {
                        assert!(
                            revision > self.highest,
                            "revision {revision} was used before"
                        );
                        seen = seen.max(revision);
                    }
                    let attempts = self.attempts.get_mut(&name).unwrap();
                    attempts[at].answer = Some((self.lines, revision));
                }
                other => panic!("unknown line {other}"),
            }
        }
        self.highest = seen;
    }

    /// Compares the history with the content at this revision. `present` returns an object by its name. Returns the id
    /// of each acknowledged revision.
    pub(crate) fn check(
        &mut self,
        revision: u64,
        present: impl Fn(&str) -> Option<Present>,
    ) -> BTreeMap<u64, u64> {
        assert!(revision >= self.highest);
        let mut used = BTreeMap::new();
        for (name, attempts) in &self.attempts {
            for (revision, id) in versions(attempts, present(name)) {
                let twice = used.insert(revision, id);
                assert_eq!(
                    twice, None,
                    "revision {revision} was used twice, also for {id}"
                );
            }
        }
        self.highest = revision;
        used
    }

    /// Counts the attempts by result.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for attempt in self.attempts.values().flatten() {
            *match attempt.answer {
                Some((_, Some(_))) => &mut counts.acknowledged,
                Some((_, None)) => &mut counts.refused,
                None => &mut counts.unanswered,
            } += 1;
        }
        counts
    }
}

/// Orders the versions of one object and checks that the order explains every result. Returns the known revisions with
/// their ids.
fn versions(attempts: &[Attempt], present: Option<Present>) -> Vec<(u64, u64)> {
    let by_id: HashMap<u64, &Attempt> = attempts.iter().map(|a| (a.id, a)).collect();
    let acked = attempts.iter().filter(|a| a.revision().is_some()).count();
    let Some(present) = present else {
        assert_eq!(acked, 0, "acknowledged writes are lost");
        return Vec::new();
    };
    // Goes backwards from the stored version, because each version names its predecessor.
    let mut chain = Vec::new();
    let mut id = present.id;
    while id != 0 {
        let attempt = *by_id
            .get(&id)
            .unwrap_or_else(|| panic!("no writer wrote {id}"));
        assert!(
            !matches!(attempt.answer, Some((_, None))),
            "{attempt:?} was refused"
        );
        chain.push(attempt);
        id = attempt.from;
    }
    let there = chain.iter().filter(|a| a.revision().is_some()).count();
    assert_eq!(
        there, acked,
        "acknowledged writes are not in the chain of versions"
    );
    let last = chain[0].revision();
    assert!(
        last.is_none_or(|last| last == present.revision),
        "{:?}",
        chain[0]
    );

    // No write may be answered before one of its predecessors began.
    let mut answered = usize::MAX;
    for attempt in &chain {
        assert!(
            attempt.began < answered,
            "{attempt:?} began after its successor was answered"
        );
        answered = attempt.answer.map_or(answered, |(at, _)| at.min(answered));
    }
    let revisions: Vec<_> = chain
        .iter()
        .filter_map(|a| Some((a.revision()?, a.id)))
        .collect();
    assert!(
        revisions.is_sorted_by(|newer, older| newer.0 > older.0),
        "revisions decrease"
    );

    // A conflict is correct if the expected version was replaced before the conflict was reported.
    let successor: HashMap<u64, &Attempt> = chain.iter().map(|a| (a.from, *a)).collect();
    for refused in attempts {
        if let Some((at, None)) = refused.answer {
            let replaced = successor.get(&refused.from).is_some_and(|by| by.began < at);
            assert!(
                replaced,
                "{refused:?} was rejected without a conflicting write"
            );
        }
    }
    revisions
}
