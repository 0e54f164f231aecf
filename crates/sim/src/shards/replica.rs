//! One replica of a shard group: the process of joining, and an election for each shard.

use tenure_core::shards::{Agreement, Decision, Joining, Rules};
use tenure_core::slots;
use tenure_core::{Config, Election, Guard, LocalTime, Now, Timing, Version};

use super::Group;
use super::server::{Call, Reply};
use crate::clock::Clock;
use crate::rng::Rng;

/// A process.
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) shards: u32,
    pub(super) may_change: bool,
    /// Semaphores: this process uses the election without slots.
    pub(super) without_slots: bool,
    /// Semaphores: the lease of the election without slots, as this process has observed it.
    pub(super) whole: slots::Whole,
    pub(super) clock: Clock,
    pub(super) incarnation: u64,
    pub(super) alive: bool,
    pub(super) paused_until: u64,
    pub(super) cut_until: u64,
    pub(super) inbox: Vec<super::Letter>,
    group: Group,
    pub(super) joining: Joining,
    pub(super) gate: Gate,
    pub(super) standing: Standing,
    pub(super) elections: Vec<Owned>,
}

/// An election for a shard.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) election: Election,
    pub(super) guard: Option<Guard>,
    /// Number of terms so far.
    pub(super) term: u64,
    /// The term that was confirmed.
    pub(super) confirmed: u64,
    /// Instant at which the confirming read was served.
    pub(super) since: u64,
    pub(super) request: Option<(u64, bool)>,
    pub(super) tick: Option<(LocalTime, u64)>,
    pub(super) finished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Joining,
    Member,
    Leaving,
}

/// The operation of a replica on the agreement that is in progress.
#[derive(Debug)]
pub(super) enum Gate {
    Idle,
    Reading(u64),
    Listing(u64, LocalTime, Option<Agreement>),
    Writing(u64),
}

/// Next action after a response about the agreement.
#[derive(Debug)]
pub(super) enum Next {
    Call(Call),
    /// Repeat immediately.
    Again,
    /// Repeat later.
    Later,
    Join,
    Leave,
    Refused,
}

impl Replica {
    pub(super) fn new(
        (shards, may_change): (u32, bool),
        clock: Clock,
        incarnation: u64,
        timing: &Timing,
        group: Group,
    ) -> Self {
        let rules = match group {
            Group::Shards(rules) => rules,
            Group::Slots(_) => Rules::default(),
        };
        Self {
            group,
            shards,
            may_change,
            without_slots: false,
            whole: slots::Whole::default(),
            clock,
            incarnation,
            alive: true,
            paused_until: 0,
            cut_until: 0,
            inbox: Vec::new(),
            joining: Joining::new(shards, may_change, timing.lease(), rules),
            gate: Gate::Idle,
            standing: Standing::Joining,
            elections: Vec::new(),
        }
    }

    /// Starts an election for each shard.
    pub(super) fn campaign(&mut self, timing: &Timing, rng: &mut Rng) {
        let identity = format!("r{}", self.incarnation);
        self.standing = Standing::Member;
        let count = if self.without_slots { 1 } else { self.shards };
        self.elections = (0..count)
            .map(|_| Owned {
                election: Election::new(Config {
                    identity: identity.clone(),
                    timing: timing.clone(),
                    release_on_cancel: rng.percent(75),
                    for_life: false,
                    rejoin: true,
                    coordinated: false,
                    preference: None,
                    whole_seconds: false,
                    seed: rng.bits(),
                }),
                guard: None,
                term: 0,
                confirmed: 0,
                since: 0,
                request: None,
                tick: None,
                finished: false,
            })
            .collect();
    }

    /// Returns until when it owns a shard, if it owns it at this instant.
    pub(super) fn owns(&self, index: usize, now: Now) -> Option<LocalTime> {
        let owned = self.elections.get(index).filter(|_| self.alive)?;
        let confirmed = owned.confirmed == owned.term;
        let guard = owned.guard.filter(|guard| confirmed && guard.holds(now))?;
        Some(guard.until())
    }

    /// Continues the operation on the agreement after a response.
    pub(super) fn answered(&mut self, id: u64, now: LocalTime, reply: Reply) -> Option<Next> {
        let gate = std::mem::replace(&mut self.gate, Gate::Idle);
        match (gate, reply) {
            (Gate::Reading(under_way), Reply::Agreement(agreed)) if under_way == id => {
                if let Group::Slots(rules) = self.group {
                    return Some(self.compare(id, rules, agreed.as_ref()));
                }
                let agreed_on = agreed.as_ref();
                Some(match self.standing {
                    Standing::Member if self.joining.must_leave(agreed_on) => Next::Leave,
                    Standing::Member if self.joining.confirms(agreed_on) => Next::Later,
                    Standing::Leaving => Next::Later,
                    Standing::Member | Standing::Joining => {
                        self.gate = Gate::Listing(id, now, agreed);
                        Next::Call(Call::List)
                    }
                })
            }
            (Gate::Listing(under_way, asked, agreed), Reply::Listed(leases)) if under_way == id => {
                let decision = self.joining.step(asked, now, agreed.as_ref(), &leases);
                Some(self.decided(id, decision))
            }
            (Gate::Writing(under_way), _) if under_way == id => Some(Next::Again),
            (Gate::Reading(under_way) | Gate::Listing(under_way, ..), _) if under_way == id => {
                Some(Next::Later)
            }
            (gate, _) => {
                self.gate = gate;
                None
            }
        }
    }

    fn decided(&mut self, id: u64, decision: Decision) -> Next {
        let mut write = |open: Option<u32>, version: Option<Version>| {
            self.gate = Gate::Writing(id);
            Next::Call(Call::Agree(self.shards, open, version))
        };
        match decision {
            Decision::Claim(version) => write(None, version),
            Decision::Open(version) => write(Some(self.shards), Some(version)),
            Decision::Join if self.standing == Standing::Joining => Next::Join,
            Decision::Join | Decision::Wait(_) => Next::Later,
            Decision::Refuse(_) if self.standing == Standing::Member => Next::Later,
            Decision::Refuse(_) => Next::Refused,
        }
    }

    /// Compares the number of slots.
    fn compare(&mut self, id: u64, rules: slots::Rules, agreed: Option<&Agreement>) -> Next {
        if self.standing != Standing::Joining {
            return Next::Later;
        }
        let number = agreed.and_then(|agreed| agreed.shards);
        if self.without_slots {
            return match rules.may_lead(Some(number)) {
                slots::Lead::Yes => Next::Join,
                slots::Lead::Slots(_) => Next::Refused,
                slots::Lead::Unknown => Next::Later,
            };
        }
        match rules.decide(number, self.shards, self.may_change) {
            slots::Decision::Join => Next::Join,
            slots::Decision::Refuse(_) => Next::Refused,
            slots::Decision::Write => {
                self.gate = Gate::Writing(id);
                let version = agreed.map(|agreed| agreed.version.clone());
                Next::Call(Call::Agree(self.shards, None, version))
            }
        }
    }
}
