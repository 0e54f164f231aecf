//! Requests and responses, and the faults that affect them.

use std::time::Duration;

use super::server::{Call, Reply};
use super::{Event, For, Letter, Travel, World};
use crate::fault::Fault;

impl World {
    /// Sends a request with the given time limit, or with that of a retry period.
    pub(super) fn send(
        &mut self,
        i: usize,
        asked_by: For,
        id: u64,
        call: Call,
        limit: Option<Duration>,
    ) {
        let replica = &self.replicas[i];
        let incarnation = replica.incarnation;
        let limit = limit.unwrap_or(self.timing.retry_period());
        let end = replica.clock.now(self.now).local + limit;
        let end = replica.clock.real_at(end, self.now);
        self.at(
            end,
            Event::Deliver(i, incarnation, Letter::Timeout(asked_by, id)),
        );
        if self.replicas[i].cut_until > self.now {
            return;
        }
        let mut delay = self.one_way();
        let mut travel = Travel {
            replica: i,
            incarnation,
            asked_by,
            id,
            call,
            answered: true,
            error: false,
        };
        if !self.calm && self.rng.chance(self.faults) {
            let faults = [
                Fault::RequestLost,
                Fault::AnswerLost,
                Fault::AnswerLate,
                Fault::RequestLate,
                Fault::ErrorApplied,
                Fault::ErrorNotApplied,
            ];
            let fault = *self.rng.pick(&faults);
            self.report.totals.faults.count(fault);
            self.trace(|_| format!("r{i}   !! {} ({id})", fault.name()));
            match fault {
                Fault::RequestLost => return,
                Fault::AnswerLost => travel.answered = false,
                Fault::RequestLate => delay += self.rng.below(2 * self.lease),
                Fault::ErrorApplied => travel.error = true,
                Fault::AnswerLate => {
                    // The request is executed now, and the response with that state arrives later.
                    let reply = self.serve(&travel.call);
                    let late = self.rng.below(self.lease);
                    let answer = Letter::Answer(self.served(asked_by), id, Box::new(reply));
                    return self.after(late, Event::Deliver(i, incarnation, answer));
                }
                _ => {
                    let answer = Letter::Answer(asked_by, id, Box::new(Reply::Error));
                    return self.after(delay, Event::Deliver(i, incarnation, answer));
                }
            }
        }
        self.after(delay, Event::Arrive(Box::new(travel)));
    }

    pub(super) fn arrive(&mut self, travel: &Travel) {
        let mut reply = self.serve(&travel.call);
        self.trace(|_| {
            let Travel {
                replica, id, call, ..
            } = travel;
            format!("   server: r{replica} {id} {call:?}")
        });
        if travel.error {
            reply = Reply::Error;
        }
        if travel.answered && self.replicas[travel.replica].cut_until <= self.now {
            let delay = self.one_way();
            let answer = Letter::Answer(self.served(travel.asked_by), travel.id, Box::new(reply));
            let event = Event::Deliver(travel.replica, travel.incarnation, answer);
            self.after(delay, event);
        }
    }

    /// Executes a request, and records a number that was agreed on.
    fn serve(&mut self, call: &Call) -> Reply {
        let reply = self.server.serve(call);
        if let (Call::Agree(number, ..), Reply::Stored(_)) = (call, &reply) {
            self.numbers.push((self.now, *number));
        }
        reply
    }

    /// Returns the same request, served now.
    fn served(&self, asked_by: For) -> For {
        match asked_by {
            For::Confirm(shard, term, _) => For::Confirm(shard, term, self.now),
            other => other,
        }
    }
}
