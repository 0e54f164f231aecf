//! S1: at every real instant at most one incarnation has a valid guard.
//!
//! A guard becomes valid only when a term begins or is extended, when a stopped machine resumes, or when a wall clock
//! is set back. The simulator checks at each of these events. Between them guards can only expire.
//!
//! If A1 does not hold (people, restores), a weaker guarantee is checked instead. If a node receives the
//! current state of the object, and another writer wrote it, the term of the node has ended after that step.

/// The longest time during which two guards were valid together.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardExclusion {
    /// In nanoseconds; zero unless S1 is violated.
    pub longest_overlap: u64,
}

impl GuardExclusion {
    /// Takes, for every node with a valid guard, the instant until which the guard stays valid.
    pub fn check(
        &mut self,
        now: u64,
        guards: impl Iterator<Item = (usize, u64)>,
    ) -> Option<String> {
        let (mut first, mut text) = (None, None);
        for (node, until) in guards {
            match first {
                None => first = Some((node, until)),
                Some((other, end)) => {
                    let overlap = until.min(end).saturating_sub(now);
                    self.longest_overlap = self.longest_overlap.max(overlap);
                    text = Some(format!(
                        "nodes {other} and {node} both lead, for up to {:.3} s",
                        overlap as f64 / 1e9
                    ));
                }
            }
        }
        text
    }
}

/// Checks the weaker guarantee: a node that has received the current state from another writer must no longer have a
/// valid guard.
pub fn check_prompt_stop(shown: &str, guard_holds: bool) -> Option<String> {
    guard_holds.then(|| format!("still leads after it observed that {shown}"))
}
