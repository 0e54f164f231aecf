//! Ranked candidates: what each of them reads about the others, and the checks of their hand-overs (duty 20).
//!
//! Lists of candidates are late, old or wrong, and the readiness of candidates changes. A hand-over is checked against the
//! lists that the leader has read, because it cannot know more. S1 to S5 are checked as in every run.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::{Failback, Input, LocalTime, Preference, Rank, Standing, StepDownOrder};

use super::{Event, World};
use crate::fault::Fault;
use crate::invariants::Invariant;
use crate::node::Letter;
use crate::plan::nanos;

/// Time between two lists.
const EVERY: u64 = 10_000_000_000;

/// Longest time between two lists that count as consecutive.
const LONGEST_GAP: Duration = Duration::from_secs(30);

/// Remembered lists of a node: more than fit into the longest time before a failback.
const REMEMBERED: usize = 32;

/// The part of a node that concerns ranks.
#[derive(Debug, Default)]
pub(crate) struct RankedNode {
    unready: bool,
    /// The lists that it has read, the newest first.
    lists: VecDeque<(LocalTime, Vec<Standing>)>,
    /// Local time at which its last term began.
    began: LocalTime,
    /// The candidate that it ended its last term for.
    successor: Option<String>,
}

impl World {
    pub(super) fn preference(&self, i: usize) -> Option<Preference> {
        let rank = *self.plan.ranks.get(i)?;
        Some(Preference {
            rank,
            failback: Failback::Auto,
            failback_after: self.plan.failback_after,
        })
    }

    pub(super) fn begin_lists(&mut self, node: usize) {
        if self.plan.has_ranks() {
            let incarnation = self.nodes[node].incarnation;
            let first = self.rng.below(EVERY);
            self.after(first, Event::Members { node, incarnation });
        }
    }

    /// Reads the candidates for a node, and schedules the next list.
    pub(super) fn read_members(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation {
            return;
        }
        let mut next = EVERY - EVERY / 8 + self.rng.below(EVERY / 4);
        if self.happens(Fault::MembersUnread, 8) {
            next += self.rng.below(10 * EVERY);
        }
        self.after(next, Event::Members { node, incarnation });
        // Nobody leads for a moment during a hand-over, and the other stages of the liveness check do not expect that.
        if self.calm.as_ref().is_some_and(|calm| !calm.is_quiet()) {
            return;
        }
        let mut list: Vec<Standing> = (self.nodes.iter().zip(&self.plan.ranks))
            .map(|(node, rank)| Standing {
                identity: node.identity.clone(),
                rank: *rank,
                ready: !node.ranked.unready,
            })
            .collect();
        if self.happens(Fault::MemberStale, 8)
            && let Some((_, old)) = self.nodes[node].ranked.lists.back()
        {
            list = old.clone();
        }
        if self.happens(Fault::MemberWrong, 8) {
            let wrong = self.rng.below(list.len() as u64) as usize;
            list[wrong].rank.priority = self.rng.below(6) as i32;
        }
        self.deliver(node, Letter::Other(Input::Candidates(list)));
    }

    /// Returns whether a fault happens, with a probability in percent.
    fn happens(&mut self, fault: Fault, percent: u64) -> bool {
        let happens =
            self.calm.is_none() && self.plan.faults.has(fault) && self.rng.percent(percent);
        if happens {
            self.report.totals.faults.count(fault);
        }
        happens
    }

    /// Changes the readiness of a candidate.
    pub(super) fn strike_ranks(&mut self, fault: Fault) {
        if fault == Fault::MemberFlaps {
            let i = self.rng.below(self.nodes.len() as u64) as usize;
            self.nodes[i].ranked.unready ^= true;
        }
    }

    /// Makes every candidate ready.
    pub(super) fn calm_ranks(&mut self) {
        for node in &mut self.nodes {
            node.ranked.unready = false;
        }
    }

    pub(super) fn note_list(&mut self, i: usize, list: &[Standing], local: LocalTime) {
        let lists = &mut self.nodes[i].ranked.lists;
        lists.truncate(REMEMBERED - 1);
        lists.push_front((local, list.to_vec()));
    }

    pub(super) fn note_term(&mut self, i: usize) {
        let local = self.nodes[i].clock.now(self.now).local;
        self.nodes[i].ranked.began = local;
    }

    /// The node campaigns for another term.
    pub(super) fn forget_successor(&mut self, i: usize) {
        self.nodes[i].ranked.successor = None;
    }

    /// Checks that a leader ends its term for a better candidate only if it has read for long enough that the candidate
    /// is ready and better.
    pub(super) fn check_hand_over(&mut self, i: usize, to: &str) {
        if !self.plan.has_ranks() {
            return;
        }
        let node = &self.nodes[i];
        let now = node.clock.now(self.now).local;
        let mut since = None;
        let mut next = now;
        for (at, list) in &node.ranked.lists {
            if next.since(*at) > LONGEST_GAP || !self.is_better(i, to, list) {
                break;
            }
            (since, next) = (Some(*at), *at);
        }
        let version = node.machine.version();
        let known = version.and_then(|version| self.register.find(version));
        let text = match since {
            None => "that is not ready or not better",
            Some(since) if now.since(since.max(node.ranked.began)) < self.plan.failback_after => {
                "that was not ready for long enough"
            }
            Some(_) if known.is_some_and(|known| known.seen.orders.paused) => {
                "although the election is paused"
            }
            Some(_) => {
                self.report.totals.hand_overs += 1;
                self.nodes[i].ranked.successor = Some(to.to_owned());
                return;
            }
        };
        self.violate(
            Invariant::L1,
            format!("node {i} hands over to {to}, {text}"),
        );
    }

    /// Checks that the release of a leader that hands over names the candidate, if it is still ready.
    pub(super) fn check_successor(&mut self, i: usize, order: Option<&StepDownOrder>) {
        let ranked = &self.nodes[i].ranked;
        let last = ranked.lists.front();
        let expected = ranked
            .successor
            .as_deref()
            .filter(|to| last.is_some_and(|(_, list)| self.is_better(i, to, list)));
        let named = order.and_then(|order| order.to.as_deref());
        if named != expected {
            let text = format!("node {i} releases for {named:?} instead of {expected:?}");
            self.violate(Invariant::L1, text);
        }
    }

    fn is_better(&self, i: usize, to: &str, list: &[Standing]) -> bool {
        let own = self.plan.ranks.get(i);
        let found = list.iter().find(|other| other.identity == to);
        found.is_some_and(|found| found.ready && Some(&found.rank) > own)
    }

    /// Returns the time after which the best candidate leads if nothing fails, in nanoseconds.
    pub(crate) fn longest_failback(&self) -> u64 {
        match self.plan.has_ranks() {
            // Hand-overs to a good candidate and then to the best one.
            true => 3 * (nanos(self.plan.failback_after) + 4 * EVERY),
            false => 0,
        }
    }

    /// Checks that no candidate ranks above the leader after a long time without faults.
    pub(crate) fn check_best_leads(&mut self, leader: usize, began: u64) {
        let polls = !self.plan.watches.iter().all(|watches| *watches);
        let busy = self.nodes.iter().any(|node| node.sits_out_until > began);
        let best = self.plan.ranks.iter().max().copied();
        if polls || busy || best == self.plan.ranks.get(leader).copied() {
            return;
        }
        let text = format!("node {leader} leads, although a better candidate is ready");
        self.violate(Invariant::L1, text);
    }
}

/// Returns a rank with few possible values, so that some candidates have the same.
pub(crate) fn rank(number: u64) -> Rank {
    Rank {
        priority: (number / 2) as i32 - 1,
        in_zone: !number.is_multiple_of(2),
    }
}
