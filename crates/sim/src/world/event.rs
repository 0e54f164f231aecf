//! Events of a run, in the order of real time.

use super::crash::CrashRelease;
use super::network::Request;
use crate::node::Letter;

/// An event.
#[derive(Debug)]
pub(crate) enum Event {
    Tick {
        node: usize,
        number: u64,
    },
    Arrive(Box<Request>),
    Letter {
        node: usize,
        incarnation: u64,
        letter: Box<Letter>,
    },
    Answer {
        node: usize,
        incarnation: u64,
        id: u64,
        letter: Box<Letter>,
    },
    Timeout {
        node: usize,
        incarnation: u64,
        id: u64,
        write: bool,
    },
    Watch {
        node: usize,
        watch: u64,
        letter: Box<Letter>,
    },
    WatchDown {
        node: usize,
        watch: u64,
    },
    WatchUp {
        node: usize,
        incarnation: u64,
    },
    WatchReopened {
        node: usize,
        watch: u64,
    },
    WorkEnds {
        node: usize,
        incarnation: u64,
        number: u64,
    },
    Effect {
        term: u64,
        token: u64,
    },
    /// A process whose work exceeded its deadline is ended.
    Kill {
        node: usize,
        incarnation: u64,
    },
    Resume {
        node: usize,
        until: u64,
    },
    Restart {
        node: usize,
        incarnation: u64,
    },
    /// The watchdog of a crashed process reads the object, or writes its release.
    CrashRelease(Box<CrashRelease>),
    /// A candidate reads the members.
    Members {
        node: usize,
        incarnation: u64,
    },
    Nemesis,
    /// The controller of a coordinated election checks the object.
    Controller {
        number: u64,
    },
    /// A candidate of a coordinated election renews its LeaseCandidate.
    Candidate {
        node: usize,
        incarnation: u64,
    },
    /// The controller pings a candidate.
    Ping {
        node: usize,
        incarnation: u64,
    },
    Calm,
}

/// An event at an instant. Events of one instant are in the order in which they were scheduled.
pub(super) struct Entry(pub(super) u64, pub(super) u64, pub(super) Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}
