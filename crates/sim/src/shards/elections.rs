//! The elections of a replica: their steps, their commands, and the read that confirms a term.

use tenure_core::{Command, Input, Outcome, Source, slots as slot_rules};

use super::replica::{Next, Standing};
use super::server::{Call, Reply, WHOLE};
use super::{Event, For, Group, Letter, World, slots};

impl World {
    pub(super) fn step(&mut self, i: usize, shard: usize, input: Input) {
        let now = self.replicas[i].clock.now(self.now);
        let Some(owned) = self.replicas[i].elections.get_mut(shard) else {
            return;
        };
        if owned.finished {
            return;
        }
        self.report.totals.steps += 1;
        for command in owned.election.step(now, input) {
            self.trace(|_| format!("r{i}.{shard}   -> {command:?}"));
            self.obey(i, shard, command);
        }
        self.schedule_tick(i, shard);
    }

    fn obey(&mut self, i: usize, shard: usize, command: Command) {
        let place = if self.replicas[i].without_slots {
            WHOLE
        } else if self.is_semaphore() {
            (shard as u32, 0)
        } else {
            (shard as u32, self.replicas[i].shards)
        };
        let incarnation = self.replicas[i].incarnation;
        let owned = &mut self.replicas[i].elections[shard];
        match command {
            Command::Read { id, timeout } => {
                owned.request = Some((id, false));
                let asked_by = For::Election(shard);
                self.send(i, asked_by, id, Call::Get(place), Some(timeout));
            }
            Command::Write {
                id,
                kind,
                record,
                timeout,
            } => {
                owned.request = Some((id, true));
                let call = match kind.base() {
                    None => Call::Create(place, record),
                    Some(base) => Call::Replace(place, base.clone(), record),
                };
                self.send(i, For::Election(shard), id, call, Some(timeout));
            }
            Command::Lead { guard, .. } => {
                owned.guard = Some(guard);
                owned.term += 1;
                let term = owned.term;
                self.report.totals.terms += 1;
                if !self.is_semaphore() || self.is_first(i, shard) {
                    self.confirm(i, shard, term);
                }
            }
            Command::Extend { guard } => {
                owned.guard = Some(guard);
                self.check_owners();
            }
            Command::Stop { .. } => {
                owned.guard = None;
                let delay = self.rng.below(500_000_000);
                self.after(
                    delay,
                    Event::Deliver(i, incarnation, Letter::WorkEnded(shard)),
                );
                if self.is_semaphore() {
                    // The process ends with its term.
                    self.after(0, Event::Deliver(i, incarnation, Letter::Leave));
                }
            }
            Command::Finished => {
                owned.finished = true;
                owned.guard = None;
                let left = self.replicas[i]
                    .elections
                    .iter()
                    .all(|owned| owned.finished);
                let stays = self.replicas[i].may_change && !self.is_semaphore();
                if left && stays {
                    // The replica waits like a new process, but keeps its observations.
                    self.replicas[i].standing = Standing::Joining;
                    self.replicas[i].elections.clear();
                } else if left {
                    self.end(i);
                }
            }
            Command::Drain { .. }
            | Command::Overrun
            | Command::NewLeader { .. }
            | Command::Released => {}
        }
    }

    /// Reads the agreement for a term that has begun.
    pub(super) fn confirm(&mut self, i: usize, shard: usize, term: u64) {
        let owned = self.replicas[i].elections.get(shard);
        let Some(owned) = owned.filter(|owned| owned.term == term) else {
            return;
        };
        if owned.guard.is_some() {
            let looks = self.is_semaphore() && !self.replicas[i].without_slots;
            if looks && owned.confirmed != term {
                self.look_for_whole(i, shard, term);
            } else {
                self.read_number(i, shard, term);
            }
            // Repeat the read if there is no response.
            let (incarnation, period) = (self.replicas[i].incarnation, self.period());
            let again = Event::Deliver(i, incarnation, Letter::Confirm(shard, term));
            self.after(period, again);
        }
    }

    /// Reads the number for a term that has begun.
    pub(super) fn read_number(&mut self, i: usize, shard: usize, term: u64) {
        let id = self.number();
        let asked_by = For::Confirm(shard, term, 0);
        self.send(i, asked_by, id, Call::ReadAgreement, None);
    }

    /// Handles the end of a read for a term.
    pub(super) fn confirmed(
        &mut self,
        i: usize,
        shard: usize,
        (term, served): (u64, u64),
        reply: &Reply,
    ) {
        let replica = &mut self.replicas[i];
        let confirmed = match (self.group, reply) {
            (Group::Shards(_), Reply::Agreement(agreed)) => {
                replica.joining.confirms(agreed.as_ref())
            }
            (Group::Shards(_), _) => false,
            (Group::Slots(rules), reply) if replica.without_slots => {
                match rules.may_lead(slots::number(reply)) {
                    slot_rules::Lead::Yes => true,
                    slot_rules::Lead::Unknown => false,
                    slot_rules::Lead::Slots(_) => return self.go_on(i, 0, Next::Leave),
                }
            }
            (Group::Slots(rules), reply) => {
                let slot = shard as u32;
                match rules.may_start(slot, slots::number(reply)) {
                    slot_rules::Start::Yes => true,
                    slot_rules::Start::Unknown => false,
                    _ => return self.go_on(i, 0, Next::Leave),
                }
            }
        };
        let owned = replica.elections.get_mut(shard);
        if let Some(owned) = owned.filter(|owned| owned.term == term && confirmed) {
            // If the read was repeated, the first response counts.
            if owned.confirmed != term {
                let answered = matches!(reply, Reply::Agreement(_));
                owned.since = if answered { served } else { self.now };
            }
            owned.confirmed = term;
            self.check_owners();
        }
    }

    /// Handles the end of a request of an election.
    pub(super) fn written(&mut self, i: usize, shard: usize, id: u64, reply: Reply) {
        let Some(owned) = self.replicas[i].elections.get_mut(shard) else {
            return;
        };
        let Some((_, writes)) = owned.request.take_if(|(under_way, _)| *under_way == id) else {
            return;
        };
        let input = match (writes, reply) {
            (true, Reply::Stored(version)) => Input::Written(id, Outcome::Applied(version)),
            (true, Reply::Refused) => Input::Written(id, Outcome::Refused),
            (true, _) => Input::Written(id, Outcome::Unknown),
            (false, Reply::Got(Some(lease))) => Input::Observed(Source::Read(id), lease),
            (false, Reply::Got(None)) => Input::Absent(Source::Read(id), None),
            (false, _) => Input::ReadFailed(id),
        };
        self.step(i, shard, input);
    }

    fn schedule_tick(&mut self, i: usize, shard: usize) {
        let replica = &self.replicas[i];
        let Some(owned) = replica.elections.get(shard) else {
            return;
        };
        let Some(deadline) = owned.election.deadline().filter(|_| replica.alive) else {
            self.replicas[i].elections[shard].tick = None;
            return;
        };
        if owned.tick.is_some_and(|(at, _)| at == deadline) {
            return;
        }
        let incarnation = replica.incarnation;
        let at = replica.clock.real_at(deadline, self.now) + self.rng.below(1_000_000);
        let number = self.number();
        self.replicas[i].elections[shard].tick = Some((deadline, number));
        self.at(at, Event::Tick(i, incarnation, shard, number));
    }
}
