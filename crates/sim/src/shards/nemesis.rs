//! Faults that affect replicas and the agreement, and the update in progress.

use std::time::Duration;

use tenure_core::Input;

use super::replica::{Next, Standing};
use super::{Event, NUMBERS, World};
use crate::fault::Fault;

impl World {
    pub(super) fn strike(&mut self) {
        if self.calm {
            return;
        }
        let next = self.rng.below(self.lease);
        self.after(next, Event::Strike);
        self.update();
        let i = self.rng.below(self.replicas.len() as u64) as usize;
        let span = match self.rng.below(2) {
            0 => self.rng.below(self.lease / 4),
            _ => self.rng.below(3 * self.lease),
        };
        let faults = [
            Fault::Crash,
            Fault::Crash,
            Fault::Shutdown,
            Fault::Pause,
            Fault::Partition,
            Fault::HumanDelete,
            Fault::HumanGarbage,
            Fault::StepDown,
        ];
        // A person who edits the number of slots changes it for all processes.
        let kinds = if self.is_semaphore() { 5 } else { faults.len() };
        let fault = *self.rng.pick(&faults[..kinds]);
        self.report.totals.faults.count(fault);
        self.trace(|_| format!("r{i} !! {}", fault.name()));
        let replica = &mut self.replicas[i];
        match fault {
            Fault::Crash if replica.alive => {
                replica.alive = false;
                let incarnation = replica.incarnation;
                self.after(span, Event::Restart(i, incarnation));
            }
            // The replica releases its shards, and the next process starts as after a crash.
            Fault::Shutdown if replica.alive && replica.paused_until <= self.now => {
                replica.may_change = false;
                if replica.standing == Standing::Member {
                    self.go_on(i, 0, Next::Leave);
                }
            }
            Fault::Pause if replica.alive && replica.paused_until <= self.now => {
                replica.paused_until = self.now + span;
                self.after(span, Event::Resume(i));
            }
            Fault::Partition => replica.cut_until = self.now + span,
            Fault::HumanDelete if self.rng.percent(50) => self.server.delete_free(),
            Fault::HumanDelete => _ = self.server.delete_agreement(),
            Fault::HumanGarbage => {
                let number = *self.rng.pick(&[None, Some(2), Some(3), Some(1)]);
                self.server.edit_agreement(number);
            }
            Fault::StepDown if replica.alive && replica.paused_until <= self.now => {
                let sit_out = Duration::from_nanos(span / 4);
                for shard in 0..replica.elections.len() {
                    self.step(i, shard, Input::StepDown(sit_out));
                }
            }
            _ => {}
        }
    }

    /// Advances the update: more new processes use the next number of shards.
    fn update(&mut self) {
        if !self.rng.percent(30) {
            return;
        }
        self.progress += self.rng.range(20, 60);
        if self.progress > 120 {
            self.progress = 0;
            self.stage += 1;
        }
        if self.without_slots > 0 {
            self.without_slots = *self.rng.pick(&[20, 60]);
        }
    }

    pub(super) fn restart(&mut self, i: usize) {
        let clock = self.replicas[i].clock.clone();
        self.replicas[i] = self.incarnate(clock);
        self.launch(i);
    }

    /// Ends the faults and the update: every process uses the current number of shards.
    pub(super) fn calm_down(&mut self) {
        self.calm = true;
        self.progress = 0;
        let shards = NUMBERS[self.stage % NUMBERS.len()];
        for i in 0..self.replicas.len() {
            let replica = &mut self.replicas[i];
            replica.cut_until = 0;
            let other = replica.shards != shards || replica.without_slots;
            if !replica.alive || other || !replica.may_change {
                self.restart(i);
                continue;
            }
            replica.paused_until = 0;
            self.resume(i);
        }
    }
}
