//! L1: after the faults have ended, a candidate soon leads and keeps leading. After a crash and after a release,
//! another candidate follows in time.

use std::time::Duration;

use tenure_core::{Input, StopReason};

use crate::node::Letter;
use crate::plan::{Clocks, Outsiders, Plan, nanos};
use crate::world::{Event, World};

/// Time for which a leader is observed without faults, in leases.
const QUIET_LEASES: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A candidate must start to lead.
    First,
    /// The leader must keep leading.
    Quiet,
    /// The leader has crashed; another candidate must lead.
    AfterCrash,
    /// The crashed process gets time to come back.
    Settle,
    /// The leader was asked to step down; another candidate must lead.
    AfterRelease,
    Over,
}

/// The part of a run after the faults.
#[derive(Clone, Copy, Debug)]
pub struct Calm {
    stage: Stage,
    since: u64,
    clocks: Clocks,
    /// Whether a controller decides who leads, so that less is required of candidates.
    coordinated: bool,
    /// The candidate that an operator's order names.
    named: Option<usize>,
}

impl Calm {
    pub(crate) fn begin(world: &mut World) -> Self {
        let stages = Self {
            stage: Stage::First,
            since: world.now,
            clocks: world.plan.clocks,
            coordinated: world.plan.coordinated,
            named: None,
        };
        let (retry, request) = world.slowest();
        let lease = match world.plan.outsiders {
            Outsiders::None => world.plan.longest_lease(),
            // The duration that a person wrote is honoured, too.
            _ => 3 * world.plan.longest_lease(),
        };
        let sits_out = world.nodes.iter().map(|n| n.sits_out_until);
        // The controller selects the same candidate again, even while that candidate does not campaign. It may not act
        // before a candidate renews its object.
        let (sits_out, controller) = if stages.coordinated {
            (sits_out.max(), 400_000_000_000)
        } else {
            (sits_out.min(), 0)
        };
        let sits_out = sits_out.unwrap_or_default().saturating_sub(world.now);
        // Requests that were delayed before still arrive. A controller may select a candidate that does not campaign,
        // and selects again when that assignment has expired.
        let late = (if stages.coordinated { 8 } else { 3 }) * world.plan.longest_lease();
        // Stuck work may first have to exceed its deadline, which takes up to a lease.
        let bound = late + 2 * lease + sits_out + 10 * retry + 4 * request + controller;
        world.after(stretch(&world.plan, bound), Event::Calm);
        stages
    }

    /// Returns how long it took until a term began, after a crash (true) or a release (false).
    pub(crate) fn led(&self, now: u64) -> Option<(bool, u64)> {
        match self.stage {
            Stage::AfterCrash => Some((true, now - self.since)),
            Stage::AfterRelease => Some((false, now - self.since)),
            Stage::First | Stage::Quiet | Stage::Settle | Stage::Over => None,
        }
    }

    /// Checks a term that was stopped, and returns the violation, if any.
    pub(crate) fn stopped(&self, node: usize, reason: &StopReason) -> Option<String> {
        let promised = self.clocks != Clocks::Wild && !self.coordinated;
        // A hand-over to a better candidate has its own checks.
        let promised = promised && !matches!(reason, StopReason::PreferredHolder(_));
        (self.stage == Stage::Quiet && promised).then(|| {
            let reason = reason.as_str();
            format!("node {node} lost its term without any fault: {reason}")
        })
    }

    /// Returns whether nothing happens in this stage but renewals and hand-overs to better candidates.
    pub(crate) fn is_quiet(&self) -> bool {
        self.stage == Stage::Quiet
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Continues when the time of a stage has passed.
    pub(crate) fn proceed(mut self, world: &mut World) -> Self {
        let leads = world.nodes.iter().position(|n| n.leads(world.now));
        let (retry, request) = world.slowest();
        let lease = world.plan.longest_lease();
        let Some(leader) = leads else {
            let promised = self.stage == Stage::First && world.plan.checks_coordination();
            if self.clocks == Clocks::Wild || (self.coordinated && !promised) {
                // The delay is not guaranteed with such clocks.
                self.stage = Stage::Over;
                world.after(0, Event::Calm);
                return self;
            }
            let waited = (world.now - self.since) as f64 / 1e9;
            let stage = self.stage;
            world.violate_liveness(format!("nobody leads {waited:.3} s after {stage:?} began"));
            self.stage = Stage::Over;
            return self;
        };
        if let Some(named) = self.named.filter(|named| *named != leader) {
            let text = format!("node {leader} leads, and not node {named}, which an order named");
            world.violate_liveness(text);
        }
        if self.stage == Stage::Quiet && world.plan.has_ranks() && self.clocks != Clocks::Wild {
            world.check_best_leads(leader, self.since);
        }
        let polls = !world.plan.watches.iter().all(|w| *w);
        self.since = world.now;
        let (stage, wait) = match self.stage {
            Stage::First => (
                Stage::Quiet,
                QUIET_LEASES * lease + world.longest_failback(),
            ),
            // The controller may select the candidate that crashes next.
            Stage::Quiet if self.coordinated => (Stage::Over, 0),
            Stage::Quiet => {
                world.trace(|_| format!("n{leader} crashes in the calm"));
                world.crash(leader);
                // A lock with whole seconds needs one more second to detect a change.
                let seconds = if world.plan.whole_seconds {
                    1_000_000_000
                } else {
                    0
                };
                let looks = if polls {
                    44 * retry / 10 + 2 * request
                } else {
                    0
                };
                // With a proof that the holder is dead, nobody waits for its lease. The end of a container in the
                // second of the acquisition proves nothing without the id of the container.
                let all = world.plan.proves.iter().all(|proves| *proves);
                let proved = !polls && all && world.plan.container_ids;
                let wait = if proved { request } else { lease };
                (
                    Stage::AfterCrash,
                    wait + looks + request + seconds + 200_000_000,
                )
            }
            Stage::AfterCrash => {
                for i in 0..world.nodes.len() {
                    if !world.nodes[i].alive {
                        world.restart(i);
                    }
                }
                (Stage::Settle, 2 * lease)
            }
            Stage::Settle => {
                self.named = (!polls).then(|| world.order_hand_over(leader)).flatten();
                if self.named.is_none() {
                    world.trace(|_| format!("n{leader} steps down in the calm"));
                    let pause = Duration::from_nanos(4 * lease);
                    world.deliver(leader, Letter::Other(Input::StepDown(pause)));
                }
                let run_out = if world.plan.release { 0 } else { lease };
                let looks = if polls {
                    44 * retry / 10 + 2 * request
                } else {
                    0
                };
                (
                    Stage::AfterRelease,
                    run_out + looks + 3 * request + 1_200_000_000,
                )
            }
            Stage::AfterRelease | Stage::Over => (Stage::Over, 0),
        };
        self.stage = stage;
        world.after(stretch(&world.plan, wait), Event::Calm);
        self
    }
}

/// Converts a duration to real time for the slowest clock.
fn stretch(plan: &Plan, time: u64) -> u64 {
    let slowest = plan.rates_ppm.iter().min().copied().unwrap_or_default();
    let slowest = slowest.min(0).unsigned_abs();
    (u128::from(time) * 1_000_000 / u128::from(1_000_000 - slowest)) as u64
        + nanos(Duration::from_millis(100))
}
