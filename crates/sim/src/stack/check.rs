//! Checks of the invariants for drivers: responses and events that they receive, requests that they send, and terms
//! that they begin.

use std::sync::Arc;

use tenure::Term;
use tenure::clock::Clock as _;
use tenure_core::LocalTime;

use super::clock::pause;
use super::server::{Answer, Change, replaces};
use super::{LOOK, State, THOUGHT, TOLERATED, World};
use crate::invariants::Invariant;
use crate::invariants::s1_guard_exclusion::check_prompt_stop;
use crate::invariants::s4_ordered_departure::{Departure, check_release, check_work};
use crate::plan::nanos;
use crate::register::Object;

impl World {
    /// Handles a response that a node receives.
    pub(super) fn shown(self: &Arc<Self>, node: usize, answer: &Answer) {
        let mut state = self.lend();
        let code = match answer {
            Answer::Object(code, _) | Answer::Failure(code) => *code,
            Answer::List(..) | Answer::Watch { .. } | Answer::Noted => 200,
        };
        state.note(node, u64::from(code), || match answer {
            Answer::Object(code, stored) => {
                let object = &stored.object;
                format!(
                    "n{node} is answered {code}: {} by {:?}",
                    object.revision, object.author
                )
            }
            other => format!("n{node} is answered {other:?}"),
        });
        match answer {
            Answer::Object(_, stored) | Answer::List(Some(stored), _) => {
                state.saw(node, &stored.object);
                let revision = stored.object.revision;
                drop(state);
                self.expect_stop(node, Some(revision));
            }
            Answer::List(None, revision) => state.nodes[node].sights.saw_nothing(Some(*revision)),
            Answer::Failure(404) => {
                let this = &mut state.nodes[node];
                let moment = this
                    .clock
                    .now()
                    .local
                    .as_nanos()
                    .saturating_sub(nanos(THOUGHT));
                // A response and a watch event at the same instant may be processed in either order. If the response is
                // processed first, the node has not received the event yet.
                if !this.sights.is_news(moment) {
                    this.sights.saw_nothing(None);
                }
            }
            _ => {}
        }
    }

    /// Handles a change that a node's watch delivers.
    pub(super) fn changed(self: &Arc<Self>, node: usize, change: &Change) {
        let mut state = self.lend();
        let (kind, revision) = (change.kind, change.revision);
        state.note(node, revision, || {
            format!("n{node} watches {revision} {kind}")
        });
        let gone = kind == "DELETED";
        if gone {
            state.nodes[node].sights.saw_nothing(Some(revision));
        } else {
            state.saw(node, &change.stored.object);
        }
        drop(state);
        self.expect_stop(node, (!gone).then_some(revision));
    }

    /// Checks the weaker form of S1, for runs in which people edit the lock. If the delivered state is current and
    /// another writer wrote it, the node must stop within a moment.
    fn expect_stop(self: &Arc<Self>, node: usize, shown: Option<u64>) {
        let world = self.clone();
        tokio::spawn(async move {
            pause(THOUGHT).await;
            let mut state = world.lend();
            state.check_guards();
            let current = state.server.current();
            let foreign = match (current, shown) {
                (None, None) => Some("the object is gone"),
                (Some(now), Some(shown)) if now.object.revision == shown => {
                    (now.object.author != Some(node as u64)).then_some("it is held by another")
                }
                _ => None,
            };
            let leads = !state.nodes[node].clock.is_stopped() && state.leads(node);
            if let Some(text) = foreign.and_then(|shown| check_prompt_stop(shown, leads)) {
                state.violate(Invariant::S1, format!("node {node} {text}"));
            }
        });
    }
}

impl State {
    /// Checks S4 and S5 when an update is sent.
    pub(super) fn check_update(&mut self, node: usize, body: &serde_json::Value, local: LocalTime) {
        let Some(base) = replaces(body)
            .and_then(|revision| self.server.find(revision))
            .cloned()
        else {
            let text = format!("node {node} replaces a version that never existed");
            return self.violate(Invariant::S5, text);
        };
        let releases = self
            .server
            .read(body)
            .is_some_and(|new| new.record.is_free());
        if releases {
            let length = self.plan.timing.guard();
            let own = base.object.author == Some(node as u64);
            let departure = Departure {
                guard_holds: self.leads(node),
                works: self.nodes[node].works_for.is_some(),
                overran: self.nodes[node].overran,
                guard_ran_out: own && local >= base.object.sent + length,
            };
            if let Some(text) = check_release(departure) {
                return self.violate(Invariant::S4, format!("node {node} {text}"));
            }
        }
        let lease = self.patience(&base.object);
        let sights = &self.nodes[node].sights;
        let text = sights.check_write(node as u64, &base.object, lease, local.as_nanos());
        if let Some(text) = text {
            self.violate(Invariant::S5, format!("node {node} {text}"));
        }
    }

    fn patience(&self, object: &Object) -> u64 {
        if object.seen.unreadable {
            nanos(self.plan.timing.lease())
        } else {
            nanos(object.seen.record.lease_duration()).max(1_000_000_000)
        }
    }

    fn saw(&mut self, node: usize, object: &Object) {
        let lease = self.patience(object);
        let this = &mut self.nodes[node];
        let local = this.clock.now().local.as_nanos();
        this.sights.saw(node as u64, object, lease, local);
    }

    /// Handles the beginning of a term.
    pub(super) fn begins(&mut self, node: usize, term: &Term) {
        let token = term.tenure().token().as_str().parse().unwrap_or_default();
        self.note(node, token, || format!("n{node} LEADS with token {token}"));
        self.report.totals.terms += 1;
        self.nodes[node].works_for = Some(token);
        self.nodes[node].overran = false;
        let own = self
            .server
            .find(token)
            .filter(|stored| stored.object.author == Some(node as u64));
        let text = match own.map(|stored| stored.object.term) {
            Some(number) => self.tokens.begin(number, token),
            None => Some(format!(
                "node {node} leads with {token}, which it never wrote"
            )),
        };
        if let Some(text) = text {
            self.violate(Invariant::S2, text);
        }
        // If work overlaps too, two valid guards are the more severe finding.
        self.check_guards();
        self.check_work(node);
    }

    /// Checks S4: the work of earlier terms has ended. Requires good clocks and no manual edits of the lock.
    fn check_work(&mut self, node: usize) {
        let nodes = (self.nodes.iter().enumerate())
            .filter(|(_, other)| other.works_for.is_some() && !other.was_paused);
        let text = check_work(node, nodes.map(|(other, _)| other));
        if let Some(text) = text.filter(|_| !self.plan.outsiders && self.plan.skew <= TOLERATED) {
            self.violate(Invariant::S4, text);
        }
    }

    /// Handles an effect that reaches the store.
    pub(super) fn effect(&mut self, token: u64) {
        let term = self.server.find(token).map(|stored| stored.object.term);
        if let Some(text) = self.store.effect(term.unwrap_or_default(), token) {
            self.violate(Invariant::S3, text);
        }
    }

    /// Checks S1, unless people edit the lock.
    pub(super) fn check_guards(&mut self) {
        let leading: Vec<_> = (0..self.nodes.len())
            .filter(|node| self.leads(*node))
            .collect();
        if leading.len() > 1 && !self.plan.outsiders {
            self.report.totals.longest_overlap += nanos(LOOK);
            self.violate(Invariant::S1, format!("nodes {leading:?} lead together"));
        }
    }
}
