//! Faults that do not affect single requests or watches: partitions, crashes, pauses, clocks, people.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_lock::LEADER_ANNOTATION;
use tokio::time::Instant;

use super::{Fleet, State, World, launch};
use crate::fault::Fault;

pub(super) const ALWAYS: &[Fault] = &[
    Fault::Partition,
    Fault::PartitionRequests,
    Fault::PartitionAnswers,
    Fault::StepDown,
    Fault::Crash,
    Fault::Pause,
    Fault::WallForward,
    Fault::WallBack,
    Fault::WatchBreak,
    Fault::LabelEdit,
];

pub(super) const BY_HAND: &[Fault] = &[
    Fault::HumanDelete,
    Fault::HumanClear,
    Fault::HumanRename,
    Fault::HumanDuration,
    Fault::HumanGarbage,
];

/// Injects a random fault.
pub(super) fn strike(fleet: &Arc<Fleet>, world: &Arc<World>) {
    let mut state = world.lend();
    let by_hand = state.plan.outsiders && state.rng.percent(40);
    let fault = *state.rng.pick(if by_hand { BY_HAND } else { ALWAYS });
    let alive: Vec<usize> = (0..state.nodes.len())
        .filter(|node| state.nodes[*node].handle.is_some())
        .collect();
    let victim = *state.rng.pick(&alive);
    state.count(fault);
    state.note(victim, 3, || format!("   ... to n{victim}"));
    match fault {
        Fault::Crash => {
            drop(state);
            fleet.kill(victim);
            launch(fleet);
        }
        Fault::Pause => {
            let span = state.delay();
            state.nodes[victim].clock.pause(span);
            drop(state);
            for world in &fleet.0 {
                world.lend().nodes[victim].was_paused = true;
            }
        }
        _ => {
            state.suffer(fault, victim);
            drop(state);
        }
    }
    world.changed.notify_waiters();
}

impl State {
    pub(super) fn next_strike(&mut self) -> Duration {
        Duration::from_millis(self.rng.range(500, 30_000))
    }

    fn suffer(&mut self, fault: Fault, victim: usize) {
        let now = Instant::now();
        let span = self.delay();
        let node = &mut self.nodes[victim];
        match fault {
            Fault::Partition => {
                node.requests_cut_until = now + span;
                node.answers_cut_until = now + span;
            }
            Fault::PartitionRequests => node.requests_cut_until = now + span,
            Fault::PartitionAnswers => node.answers_cut_until = now + span,
            Fault::StepDown => {
                if let Some(handle) = &node.handle {
                    handle.step_down(span);
                }
            }
            Fault::WallForward => node.clock.jump(span.as_micros() as i64),
            Fault::WallBack => node.clock.jump(-(span.as_micros() as i64)),
            Fault::WatchBreak => {
                // The server restarts, with or without its history.
                self.epoch += 1;
                if self.rng.percent(50) {
                    self.server.compact();
                }
            }
            Fault::HumanDelete => self.server.delete(),
            Fault::LabelEdit => {
                let text = self.rng.bits().to_string();
                self.server
                    .edit(|object| object["metadata"]["labels"]["edited"] = text.into());
            }
            Fault::HumanClear => self.server.edit(|o| set(o, "holderIdentity", "".into())),
            Fault::HumanRename => self
                .server
                .edit(|o| set(o, "holderIdentity", "a human".into())),
            Fault::HumanDuration => {
                let seconds = self.rng.range(1, 60);
                self.server
                    .edit(|o| set(o, "leaseDurationSeconds", seconds.into()));
            }
            _ => self
                .server
                .edit(|o| set(o, "leaseDurationSeconds", "a while".into())),
        }
    }

    /// Disables all faults.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        let now = Instant::now();
        for node in &mut self.nodes {
            node.requests_cut_until = now;
            node.answers_cut_until = now;
            node.clock.go_on();
        }
    }
}

/// Sets a field of the record, in any place where it is stored.
fn set(object: &mut Value, field: &str, value: Value) {
    if object["spec"].is_object() {
        object["spec"][field] = value;
        return;
    }
    let text = object["metadata"]["annotations"][LEADER_ANNOTATION].as_str();
    let record = text.and_then(|text| serde_json::from_str(text).ok());
    let mut record: Value = record.unwrap_or_else(|| json!({}));
    record[field] = value;
    object["metadata"]["annotations"][LEADER_ANNOTATION] = record.to_string().into();
}
