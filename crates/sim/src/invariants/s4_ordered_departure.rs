//! S4: the guard is false, and guarded work has ended, before the release is sent; and nothing is
//! released once the guard has run out.
//!
//! Where timers fire in time and clocks are within the margin, more holds and is checked: no term
//! begins while the work of another is still winding down, because work that did not end by its
//! deadline was ended with its process.

/// What a node is doing when it sends a release.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// Its guard is still true.
    pub guard_holds: bool,
    /// Its work has not ended.
    pub works: bool,
    /// Its work had not ended by its deadline.
    pub overran: bool,
    /// The time of its last guard is over.
    pub guard_ran_out: bool,
}

/// Judges a release as it is sent.
pub fn check_release(departure: Departure) -> Option<String> {
    let wrong = if departure.guard_holds {
        "releases with a good guard"
    } else if departure.works {
        "releases while its work goes on"
    } else if departure.overran {
        "releases although its work overran"
    } else if departure.guard_ran_out {
        "releases after its guard ran out"
    } else {
        return None;
    };
    Some(wrong.to_owned())
}

/// Judges the beginning of a term: takes the nodes whose work goes on.
pub fn check_work(leader: usize, mut working: impl Iterator<Item = usize>) -> Option<String> {
    working
        .find(|node| *node != leader)
        .map(|node| format!("node {leader} begins while the work of node {node} goes on"))
}
