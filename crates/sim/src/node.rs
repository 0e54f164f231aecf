//! The process of a candidate: its clock, its election, its work and its connections.

use tenure_core::death::Evidence;
use tenure_core::{Guard, Input, LocalTime, Place, Source, Version, WallTime};

use crate::clock::Clock;
use crate::invariants::s5_no_foreign_writes::Sights;
use crate::machine::Machine;
use crate::register::Object;
use crate::world::RankedNode;
use std::collections::VecDeque;
use std::rc::Rc;

/// A message for a node, kept while the node cannot run.
#[derive(Clone, Debug)]
pub(crate) enum Letter {
    /// A version of the object.
    Shown(Source, Rc<Object>),
    /// The object does not exist.
    Gone(Source, Option<u64>),
    /// Evidence that something has ended.
    Evidence(Evidence),
    /// Any other input.
    Other(Input),
}

impl Letter {
    /// Returns the number of the request that it answers.
    pub(crate) fn answers(&self) -> Option<u64> {
        match self {
            Self::Shown(Source::Read(id), _)
            | Self::Gone(Source::Read(id), _)
            | Self::Other(Input::ReadFailed(id) | Input::Written(id, _)) => Some(*id),
            Self::Shown(..) | Self::Gone(..) | Self::Evidence(_) | Self::Other(_) => None,
        }
    }
}

/// The guarded work of a term.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) term: u64,
    pub(crate) token: u64,
    pub(crate) number: u64,
    pub(crate) ending: bool,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) machine: Machine,
    pub(crate) clock: Clock,
    /// Unique among all incarnations of a run.
    pub(crate) incarnation: u64,
    pub(crate) identity: String,
    /// Whether the node runs client-go in a fleet with Tenure. No invariant is checked for such a node.
    pub(crate) foreign: bool,
    pub(crate) alive: bool,
    /// Real time at which a paused process resumes; 0 while it runs.
    pub(crate) paused_until: u64,
    pub(crate) inbox: Vec<Letter>,
    /// The deadline for which a tick is scheduled, and that tick's number.
    pub(crate) tick: Option<(LocalTime, u64)>,
    /// Number of consecutive ticks without effect.
    pub(crate) idle_ticks: u32,
    /// The request in flight.
    pub(crate) pending: Option<u64>,
    /// The request that the election waits for, and its timeout.
    pub(crate) open: Option<(u64, LocalTime)>,
    pub(crate) guard: Option<Guard>,
    pub(crate) work: Option<Work>,
    /// Whether the work of the last term exceeded its deadline.
    pub(crate) overran: bool,
    pub(crate) sights: Sights,
    /// The number of the watch connection, 0 if there is none.
    pub(crate) watch: u64,
    /// Watch events arrive in order: the next one not before this instant.
    pub(crate) watch_tail: u64,
    pub(crate) requests_blocked_until: u64,
    pub(crate) answers_blocked_until: u64,
    /// Real time until which the node was asked not to campaign.
    pub(crate) sits_out_until: u64,
    /// Whether the node was asked to end.
    pub(crate) leaving: bool,
    /// Whether a term has begun since the node last tried to acquire the lock.
    pub(crate) has_led: bool,
    /// Where the node runs, if it describes itself in the lock object.
    pub(crate) place: Option<Rc<Place>>,
    /// When the container of the node started, by the wall clock of the node in whole seconds.
    pub(crate) started: WallTime,
    /// The last evidence that the node received.
    pub(crate) evidence: VecDeque<Evidence>,
    /// The version whose holder the node has last proved dead.
    pub(crate) proved: Option<Version>,
    pub(crate) ranked: RankedNode,
}

impl Node {
    pub(crate) fn new(
        machine: Machine,
        (clock, real): (Clock, u64),
        incarnation: u64,
        identity: String,
    ) -> Self {
        Self {
            machine,
            started: clock.now(real).wall.whole_seconds(),
            clock,
            incarnation,
            identity,
            foreign: false,
            alive: true,
            paused_until: 0,
            inbox: Vec::new(),
            tick: None,
            idle_ticks: 0,
            pending: None,
            guard: None,
            work: None,
            overran: false,
            open: None,
            sights: Sights::default(),
            watch: 0,
            watch_tail: 0,
            requests_blocked_until: 0,
            answers_blocked_until: 0,
            sits_out_until: 0,
            leaving: false,
            has_led: false,
            place: None,
            evidence: VecDeque::new(),
            proved: None,
            ranked: RankedNode::default(),
        }
    }

    /// Returns whether it accepts messages from a source: the watch, or the response that it is waiting for.
    pub(crate) fn heeds(&self, source: Source) -> bool {
        match source {
            Source::Watch => true,
            Source::Read(id) => self.open.is_some_and(|(open, _)| open == id),
        }
    }

    /// Closes the request if a step processed its response or if it timed out.
    pub(crate) fn close_request(&mut self, answered: Option<u64>, now: LocalTime) {
        self.open
            .take_if(|(id, expires)| answered == Some(*id) || now >= *expires);
    }

    /// Returns whether it leads at a real instant, according to its own clock.
    pub(crate) fn leads(&self, real: u64) -> bool {
        self.alive && self.guard.is_some_and(|g| g.holds(self.clock.now(real)))
    }
}
