//! S1: at every real instant at most one incarnation's guard is true.
//!
//! A guard turns true only when a term begins or goes on, when a stopped machine goes on, or when a
//! wall clock is set back; the simulator asks at each of these. In between guards can only end.
//!
//! Where A1 is void (humans, restores) the promise is weaker and checked instead: whoever is shown
//! the present state of the object, and it is not its own, has stopped when the step is over.

/// The longest time that two guards were true together.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuardExclusion {
    /// In nanoseconds; zero unless something is broken.
    pub longest_overlap: u64,
}

impl GuardExclusion {
    /// Takes, for every node whose guard is true now, until when it stays true.
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

/// Rule 4: the present state was shown and is not ours, yet the guard is still good.
pub fn check_prompt_stop(shown: &str, guard_holds: bool) -> Option<String> {
    guard_holds.then(|| format!("leads on after it was shown that {shown}"))
}
