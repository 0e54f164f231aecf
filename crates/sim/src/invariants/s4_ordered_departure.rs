//! S4: the guard has expired or was revoked, and guarded work has ended, before the release is sent. Nothing is
//! released once the guard has expired by itself.
//!
//! If timers fire in time and clocks are within the margin, a stronger guarantee is checked: no term begins while the
//! work of another is still stopping. Work that did not end by its deadline was ended with its process.

/// State of a node when it sends a release.
#[derive(Clone, Copy, Debug)]
pub struct Departure {
    /// Its guard is still valid.
    pub guard_holds: bool,
    /// Its work has not ended.
    pub works: bool,
    /// Its work had not ended by its deadline.
    pub overran: bool,
    /// Its last guard has expired by itself.
    pub guard_ran_out: bool,
}

/// Checks a release when it is sent.
pub fn check_release(departure: Departure) -> Option<String> {
    let wrong = if departure.guard_holds {
        "releases while its guard is valid"
    } else if departure.works {
        "releases while its work runs"
    } else if departure.overran {
        "releases although its work exceeded its deadline"
    } else if departure.guard_ran_out {
        "releases after its guard expired"
    } else {
        return None;
    };
    Some(wrong.to_owned())
}

/// Checks the beginning of a term. Takes the nodes whose work still runs.
pub fn check_work(leader: usize, mut working: impl Iterator<Item = usize>) -> Option<String> {
    working
        .find(|node| *node != leader)
        .map(|node| format!("node {leader} begins a term while the work of node {node} still runs"))
}
