//! The wait for a term: what it waits for, what it prints, and when it gives up.

use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tenure::{Event, Status, Term};
use tenure_lock::duration::format as span;

use super::super::obstacle::Obstacles;
use super::super::{FAILED, code_of};
use super::{Entered, Runner};
use crate::events::{Change, EventLog, What};
use crate::output::escaped;
use crate::waiting::{Limit, WORTH_A_WORD};

/// Interval at which `--nonblock` checks whether there is a reason to wait.
const LOOK: Duration = Duration::from_millis(20);

/// Interval at which a new candidate checks whether something prevents it from campaigning.
const GLANCE: Duration = Duration::from_millis(500);

/// Result of the wait.
pub(super) enum Waited {
    Lead(usize, Term),
    Code(u8),
}

/// Returns the next event of any candidacy, and its index. Cancel safe.
async fn next(entries: &mut [Entered]) -> (Option<Event>, usize) {
    let events = entries
        .iter_mut()
        .map(|entry| Box::pin(entry.candidate.next()));
    let (event, at, _) = select_all(events).await;
    (event, at)
}

impl Runner {
    /// `obstacles` is given for the first term: later, a candidate waits until a permission is granted again.
    pub(super) async fn wait_for_term(
        &mut self,
        patience: Limit,
        mut obstacles: Option<Obstacles>,
        log: &mut EventLog,
    ) -> Waited {
        let timeout = tokio::time::sleep(patience.left().unwrap_or(Duration::MAX));
        let word = tokio::time::sleep(WORTH_A_WORD);
        tokio::pin!(timeout, word);
        let mut waits_silently = true;
        let began = Instant::now();
        loop {
            tokio::select! {
                biased;
                (event, at) = next(&mut self.entries) => match event {
                    Some(Event::Lead(term)) => return Waited::Lead(at, term),
                    Some(Event::NewLeader(holder)) => {
                        self.note_observed(&holder, at, log);
                        waits_silently &= !self.say_who_holds(&holder, at);
                    }
                    Some(Event::Released) => self.note_released(log),
                    Some(_) => {}
                    None => return Waited::Code(FAILED),
                },
                signal = self.signals.end() => return Waited::Code(code_of(signal)),
                () = &mut timeout, if patience.whole().is_some() => {
                    self.explain(patience.whole().unwrap_or_default());
                    return Waited::Code(self.run.conflict_exit_code);
                }
                () = &mut word, if waits_silently => {
                    waits_silently = false;
                    self.say_what_it_waits_for(obstacles.as_ref());
                }
                () = tokio::time::sleep(LOOK), if self.run.nonblock => {}
                () = tokio::time::sleep(GLANCE), if obstacles.is_some() => {}
            }
            let over = obstacles.as_ref().is_some_and(Obstacles::is_over);
            if let Some(why) = obstacles.as_mut().and_then(|known| self.is_refused(known)) {
                eprintln!("tenure: {why}");
                return Waited::Code(FAILED);
            }
            obstacles = obstacles.filter(|_| !over);
            if let Some((code, why)) = self.in_vain(began.elapsed()) {
                // An observed state is about to be reported as an event.
                let told = tokio::time::timeout(LOOK, next(&mut self.entries)).await;
                if let Ok((Some(Event::NewLeader(holder)), at)) = told {
                    self.note_observed(&holder, at, log);
                }
                eprintln!("tenure: {why}");
                return Waited::Code(code);
            }
        }
    }

    /// With `--nonblock`: returns why further waiting is useless, with the exit code.
    fn in_vain(&self, waited: Duration) -> Option<(u8, String)> {
        if !self.run.nonblock {
            return None;
        }
        if let Some(why) = self.taken() {
            return Some((self.run.conflict_exit_code, why));
        }
        let heard = self
            .entries
            .iter()
            .all(|entry| entry.notes.heard().is_some());
        // A candidate that has observed a free lock gets the time for one more request, to acquire it.
        let limit = self.request_timeout * if heard { 2 } else { 1 };
        if waited < limit {
            return None;
        }
        let trouble = self.entries.iter().find_map(Entered::trouble);
        let election = &self.run.election.election;
        let why = trouble.unwrap_or_else(|| format!("no answer from {}", self.server));
        Some((FAILED, format!("cannot lead {election} now: {why}")))
    }

    /// Returns the reason if no slot is available: each is held by another candidate or paused.
    fn taken(&self) -> Option<String> {
        let election = &self.run.election.election;
        let mut why = None;
        for entry in &self.entries {
            let snapshot = entry.notes.snapshot()?;
            let seen = snapshot.observation();
            let holder = &seen.record.holder;
            if holder == entry.candidate.handle().identity() {
                return None;
            }
            why = Some(if !seen.record.is_free() {
                format!("{} holds the election {election}", escaped(holder))
            } else if seen.orders.paused {
                format!("the election {election} is paused")
            } else {
                return None;
            });
        }
        why
    }

    /// Prints what it waits for, if that is not another holder.
    fn say_what_it_waits_for(&self, obstacles: Option<&Obstacles>) {
        let heard = |entry: &Entered| entry.notes.heard().is_some();
        if let Some(limit) = obstacles.and_then(Obstacles::met) {
            let limit = span(limit);
            eprintln!(
                "tenure: cannot campaign yet; retrying for up to {limit} (--startup-timeout)"
            );
        } else if !self.entries.iter().any(heard) {
            eprintln!("tenure: waiting for {}", self.server);
        } else if self.taken().is_some_and(|why| why.ends_with("is paused")) {
            self.voice.paused();
        }
    }

    /// Prints who holds the lock. Candidates of several slots wait only if all of them are taken.
    fn say_who_holds(&self, holder: &str, at: usize) -> bool {
        let entry = &self.entries[at];
        let own = holder == entry.candidate.handle().identity();
        let says = !holder.is_empty() && !own && self.taken().is_some();
        if says {
            self.voice.waiting(holder, &entry.notes);
        }
        says
    }

    /// Returns why this candidate cannot campaign, if that has lasted for the startup timeout. Prints what is missing
    /// before.
    fn is_refused(&self, obstacles: &mut Obstacles) -> Option<String> {
        let recent = self.retry * 3 + self.request_timeout;
        let obstacle = |entry: &Entered| {
            let (why, ago) = entry.candidate.handle().health().obstacle()?;
            (ago < recent).then_some(why)
        };
        let why = self.entries.iter().find_map(obstacle)?;
        let needs = || self.run.needs(&self.namespace);
        let election = &self.run.election.election;
        obstacles.meet(&why, &self.client, election, needs)
    }

    fn note_observed(&self, holder: &str, at: usize, log: &mut EventLog) {
        let entry = &self.entries[at];
        let handle = entry.candidate.handle();
        let seen = Change::seen(holder, handle.identity(), &entry.notes);
        log.write(What::Observed, &seen);
    }

    /// Prints why the wait failed: another candidate leads, or the API server is unreachable.
    fn explain(&self, waited: Duration) {
        let Some(entry) = self.entries.first() else {
            return;
        };
        let handle = entry.candidate.handle();
        let why = match (entry.trouble(), handle.status()) {
            (Some(trouble), _) => trouble,
            (None, Status::Follower { leader }) => format!("{} leads", escaped(&leader)),
            (None, _) => self
                .taken()
                .unwrap_or_else(|| "nobody leads yet".to_owned()),
        };
        let (election, waited) = (&self.run.election.election, span(waited));
        eprintln!("tenure: not elected in {election} within {waited}: {why}");
    }
}
