//! Histories of compare-and-set, and whether one order of writes explains them.
//!
//! Writers fight over one shared object and write to objects of their own. They say what they are about to
//! do and what was answered, in lines whose order is an order of real time:
//! `@start REVISION`, `@try WRITER shared|own ID FROM`, `@ok WRITER shared|own ID REVISION`,
//! `@no WRITER shared|own ID`. An ID is used once, is kept in the object, and FROM is that of the version
//! to be replaced, or 0. From these lines and from what is there in the end follows whether
//! - no acknowledged write is lost, and of each writer at most the one unanswered write is there;
//! - no revision is seen twice, and all after a restart are above all before it;
//! - compare-and-set on the shared object is linearizable: every version replaced the one before it, and
//!   an operation that began after another was answered comes after it.
//!
//! Two test programs have this file: that of the store, and `tests/tests/server_crash.rs` for the server.

use std::collections::{BTreeMap, HashMap};

/// One attempt to replace the version with id `from` (0 is none) by the version with `id`.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    id: u64,
    from: u64,
    began: usize,
    /// When it was answered, and with which revision; a conflict has none.
    answer: Option<(usize, Option<u64>)>,
}

impl Attempt {
    fn revision(&self) -> Option<u64> {
        self.answer?.1
    }
}

/// What is there of an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present {
    pub(crate) id: u64,
    pub(crate) revision: u64,
}

/// What became of attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) acknowledged: usize,
    pub(crate) refused: usize,
    pub(crate) unanswered: usize,
}

/// What writers said, over any number of restarts.
#[derive(Debug, Default)]
pub(crate) struct History {
    lines: usize,
    /// The highest revision that anyone has heard of.
    highest: u64,
    /// Per object, in order of beginning: `shared`, or the number of the writer whose own it is.
    attempts: BTreeMap<String, Vec<Attempt>>,
}

impl History {
    /// Takes in what was said from one start of the store to its end.
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
                        "starts at {start} after {}",
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
                    let (name, at) = open.remove(&id).expect("an answer has its attempt");
                    let revision = (words[0] == "ok").then(|| number(4).unwrap());
                    if let Some(revision) = revision {
                        assert!(revision > self.highest, "{revision} again, or from before");
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

    /// Compares what was said with what is there, by the names of objects, at this revision; returns
    /// the id of each revision that was acknowledged.
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
                assert_eq!(twice, None, "revision {revision} is {id} too");
            }
        }
        self.highest = revision;
        used
    }

    /// What became of all attempts.
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

/// The versions of one object in their order, which must explain every answer; revision to id, as far
/// as revisions are known.
fn versions(attempts: &[Attempt], present: Option<Present>) -> Vec<(u64, u64)> {
    let by_id: HashMap<u64, &Attempt> = attempts.iter().map(|a| (a.id, a)).collect();
    let acked = attempts.iter().filter(|a| a.revision().is_some()).count();
    let Some(present) = present else {
        assert_eq!(acked, 0, "acknowledged writes are lost");
        return Vec::new();
    };
    // Backwards from what is there: each version names the one that it replaced.
    let mut chain = Vec::new();
    let mut id = present.id;
    while id != 0 {
        let attempt = *by_id
            .get(&id)
            .unwrap_or_else(|| panic!("nobody wrote {id}"));
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

    // Real time: nothing was answered before something with an earlier place began.
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
        "revisions go back"
    );

    // A refusal is right if the version that it expected was replaced before the refusal.
    let successor: HashMap<u64, &Attempt> = chain.iter().map(|a| (a.from, *a)).collect();
    for refused in attempts {
        if let Some((at, None)) = refused.answer {
            let replaced = successor.get(&refused.from).is_some_and(|by| by.began < at);
            assert!(
                replaced,
                "{refused:?} was refused, and nothing was in its way"
            );
        }
    }
    revisions
}
