//! A campaign of `tenure run`: waits for a term, runs its work, releases it, and repeats.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::select_all;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tenure::deadline::Overrun;
use tenure::lock::duration::format as span;
use tenure::{Candidate, Event, Hub, Status, StopReason, Term, Timing};

use super::args::{OnLost, Run, Stdin};
use super::group::Spec;
use super::obstacle::Obstacles;
use super::work::{End, Running, Work};
use super::{FAILED, USAGE, code_of, finish, slots, terminal};
use crate::api;
use crate::election::{Connected, Entry};
use crate::events::{Change, EventLog, What};
use crate::observed_lock::{Gate, Notes, rfc3339};
use crate::output::escaped;
use crate::say::Voice;
use crate::signals::Signals;
use crate::terms::stop_words;
use crate::values::{signal_name, variable};
use crate::waiting::{Limit, WORTH_A_WORD};

/// Time limit of the release after the work has ended.
const RELEASE: Duration = Duration::from_secs(5);

/// Time limit for ending a candidacy that holds no lease.
const FAREWELL: Duration = Duration::from_millis(400);

/// Interval at which `--nonblock` checks whether there is a reason to wait.
const LOOK: Duration = Duration::from_millis(20);

/// Interval at which a new candidate checks whether something prevents it from campaigning.
const GLANCE: Duration = Duration::from_millis(500);

/// A running campaign.
pub(super) struct Runner {
    run: Run,
    client: Client,
    /// Address of the server, for display.
    server: String,
    namespace: String,
    signals: Signals,
    running: Running,
    foreground: bool,
    /// Start time of this process, for `--once`.
    began: Timestamp,
    /// One candidacy, or one per slot until one of them leads.
    entries: Vec<Entered>,
    /// The candidacies for other slots, which are ending.
    leaving: Vec<Candidate>,
    gate: Gate,
    hub: Hub,
    /// The term that ended last, until it is known whether it was released.
    ended: Option<Change>,
    retry: Duration,
    grace: Duration,
    request_timeout: Duration,
    lease: Duration,
    voice: Voice,
}

/// One candidacy.
struct Entered {
    candidate: Candidate,
    notes: Notes,
    slot: Option<u32>,
}

impl Entered {
    /// Returns why requests fail, if they do.
    fn trouble(&self) -> Option<String> {
        let health = self.candidate.handle().health();
        let lasting = || health.obstacle().map(|(why, _)| why.to_string());
        health
            .trouble()
            .map(|trouble| trouble.to_string())
            .or_else(lasting)
    }
}

/// Returns the reason for the end of a term in words.
fn why_ended(end: &End, term: &Term) -> String {
    match end {
        End::Exited(exit) => format!("the command {exit}"),
        End::Asked(signal, _) => format!("received {}", signal_name(*signal)),
        End::HeldLongEnough => "--max-hold has passed".to_owned(),
        End::NotStarted(_) => "the command cannot be started".to_owned(),
        End::Lost => {
            let reason = term.reason().unwrap_or(StopReason::GuardExpired);
            stop_words(reason.as_str()).to_owned()
        }
    }
}

/// Returns the next event of any candidacy, and its index. Cancel safe.
async fn next(entries: &mut [Entered]) -> (Option<Event>, usize) {
    let events = entries
        .iter_mut()
        .map(|entry| Box::pin(entry.candidate.next()));
    let (event, at, _) = select_all(events).await;
    (event, at)
}

enum Waited {
    Lead(usize, Term),
    Code(u8),
}

impl Runner {
    pub(super) fn new(
        run: Run,
        Connected { client, server, .. }: Connected,
        namespace: String,
        signals: Signals,
        foreground: bool,
        began: Timestamp,
    ) -> Self {
        let gate = match run.slots {
            Some(_) => Gate::one_winner(),
            None => Gate::open(),
        };
        let hub = Hub::new(client.clone());
        let voice = Voice::new(&namespace, &run.election.election);
        Self {
            run,
            client,
            server,
            namespace,
            signals,
            running: Running::default(),
            foreground,
            began,
            entries: Vec::new(),
            leaving: Vec::new(),
            gate,
            hub,
            ended: None,
            retry: Duration::ZERO,
            grace: Duration::ZERO,
            request_timeout: Duration::ZERO,
            lease: Duration::ZERO,
            voice,
        }
    }

    /// Starts to campaign, for the election or for each of its slots.
    pub(super) fn enter(&mut self, last: Option<u32>) -> Result<()> {
        let election = self.run.election.election.clone();
        let Some(count) = self.run.slots else {
            // A candidate that has led is still running, and keeps orders about the next term.
            if self.entries.is_empty() {
                self.enter_one(&election, None, &BTreeMap::new())?;
            }
            return Ok(());
        };
        let random =
            u64::from(std::process::id()) ^ self.began.subsec_nanosecond().unsigned_abs() as u64;
        for slot in slots::order(count, last, random) {
            // The slot that is or was just held already has its candidacy.
            if self.entries.iter().any(|entry| entry.slot == Some(slot)) {
                continue;
            }
            let name = slots::name_of(&election, slot);
            self.enter_one(&name, Some(slot), &slots::labels(&election))?;
        }
        Ok(())
    }

    fn enter_one(
        &mut self,
        name: &str,
        slot: Option<u32>,
        labels: &BTreeMap<String, String>,
    ) -> Result<()> {
        let place = (self.namespace.as_str(), name);
        let election = &self.run.election;
        let Entry { builder, notes } = election.enter(&self.client, place, labels, &self.gate)?;
        let at_fence = self.running.clone();
        let elector = builder
            .hub(&self.hub)
            .on_overrun(Overrun::call(move |_| at_fence.kill()))
            .build()?;
        self.retry = elector.timing().retry_period();
        self.lease = elector.timing().lease();
        self.grace = elector.timing().grace();
        self.request_timeout = elector.timing().request_timeout();
        let candidate = elector.start();
        self.entries.push(Entered {
            candidate,
            notes,
            slot,
        });
        Ok(())
    }

    /// Prints that this candidate campaigns.
    pub(super) fn announce(&self, timing: &Timing) {
        if let Some(entry) = self.entries.first() {
            let handle = entry.candidate.handle();
            let slots = self.run.slots;
            self.voice.campaigning(handle.identity(), timing, slots);
        }
    }

    /// `patience` applies to the first term.
    pub(super) async fn campaign(&mut self, patience: Limit, mut log: EventLog) -> Result<u8> {
        let election = self.run.election.election.clone();
        let mut patience = patience;
        let mut obstacles = Some(Obstacles::new(self.run.startup_timeout));
        loop {
            let waited = self.wait_for_term(patience, obstacles.take(), &mut log);
            let (at, term) = match waited.await {
                Waited::Lead(at, term) => (at, term),
                Waited::Code(code) => return Ok(code),
            };
            // One slot is enough: the other candidacies end here.
            self.entries.swap(0, at);
            let others = self.entries.drain(1..).map(|entry| entry.candidate);
            self.leaving = others.inspect(Candidate::shutdown).collect();
            if let Some((at, by)) = self.done_before() {
                let by = escaped(&by);
                eprintln!("tenure: skipped: {by} completed {election} at {at:.0} (--once)");
                return Ok(0);
            }
            if let Some(slot) = self.slot() {
                let refusal = tokio::select! {
                    biased;
                    refusal = slot.refusal(self.request_timeout) => refusal,
                    () = term.cancelled() => Some((FAILED, slot.unknown())),
                    signal = self.signals.end() => return Ok(code_of(signal)),
                };
                if let Some((code, why)) = refusal {
                    eprintln!("tenure: {why}");
                    return Ok(code);
                }
            } else {
                // A term that ends before the answer is lost, and starts nothing.
                let place = self.place();
                let refusal = tokio::select! {
                    biased;
                    refusal = place.refuse_term(self.request_timeout) => refusal,
                    () = term.cancelled() => None,
                    signal = self.signals.end() => return Ok(code_of(signal)),
                };
                if let Some(why) = refusal {
                    eprintln!("tenure: {why}");
                    return Ok(USAGE);
                }
            }
            let change = Change::own(&term);
            log.write(What::Acquired, &change);
            self.voice.leading(&term, &self.entries[0].notes.previous());
            let end = self.work(&term).run(&term, &mut self.signals).await;
            self.note_completed(&end, &term).await;
            let change = change.ended(&term);
            log.write(What::Lost, &change);
            self.ended = Some(change);
            self.voice.stopped(&term, &why_ended(&end, &term));
            let reason = term.reason();
            let to_release = reason.as_ref().is_none_or(StopReason::is_voluntary);
            // The lease may be released only now, because all processes have ended.
            drop(term);
            match end {
                End::Exited(exit) | End::Asked(_, Some(exit)) => {
                    return self.released(&mut log, exit.code(), to_release).await;
                }
                End::Asked(signal, None) => {
                    return self.released(&mut log, code_of(signal), to_release).await;
                }
                End::NotStarted(error) => return Err(error).context("cannot start the command"),
                End::HeldLongEnough | End::Lost if self.run.on_lost == OnLost::Rejoin => {}
                End::HeldLongEnough => return self.released(&mut log, 0, to_release).await,
                End::Lost => {
                    eprintln!("tenure: lost the election {election}");
                    let code = self.run.lost_exit_code;
                    return self.released(&mut log, code, to_release).await;
                }
            }
            patience = Limit::begin(None);
            self.gate.reopen().await;
            let last = self.entries.first().and_then(|entry| entry.slot);
            self.enter(last).context("cannot campaign again")?;
        }
    }

    /// `obstacles` is given for the first term: later, a candidate waits until a permission is granted again.
    async fn wait_for_term(
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
                    self.say_what_it_waits_for();
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
    fn say_what_it_waits_for(&self) {
        let heard = |entry: &Entered| entry.notes.heard().is_some();
        if !self.entries.iter().any(heard) {
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
        let needs = || vec![(self.namespace.clone(), self.run.needs())];
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

    /// With `--once`: returns who completed the work since this process was started, or a little before.
    fn done_before(&self) -> Option<(Timestamp, String)> {
        let window = SignedDuration::try_from(self.run.once?).unwrap_or_default();
        let since = self.began.checked_sub(window).ok()?;
        finish::completed_since(&self.entries.first()?.notes, since)
    }

    /// Notifies candidates that wait with `--once`, while the lease is still held.
    async fn note_completed(&self, end: &End, term: &Term) {
        let done = matches!(end, End::Exited(exit) if exit.success());
        let Some(entry) = self
            .entries
            .first()
            .filter(|_| done && self.run.once.is_some())
        else {
            return;
        };
        let noted = finish::note_completed(&self.client, &entry.notes, term.identity());
        if let Err(error) = noted.await {
            eprintln!("tenure: others may do it again: {}", api::plain(&error));
        }
    }

    fn work(&self, term: &Term) -> Work {
        let run = &self.run;
        Work {
            spec: Spec {
                argv: run.command.clone(),
                env: self.environment(term),
                stdin: run.stdin == Stdin::Inherit,
                keep: run.keep_fd.clone(),
            },
            on_exit: run.on_exit,
            on_failure: run.on_exit_failure.unwrap_or(run.on_exit),
            max_restarts: run.max_restarts,
            stop_signal: run.stop_signal,
            max_hold: run.max_hold,
            min_validity: run.min_validity.unwrap_or(self.retry),
            grace: self.grace,
            step_down_signal: run.step_down_signal,
            passed_on: run.forward_signal.0.clone(),
            handle: self.entries[0].candidate.handle(),
            foreground: self.foreground,
            running: self.running.clone(),
            slot: self.slot(),
        }
    }

    fn slot(&self) -> Option<slots::Slot> {
        let slot = self.entries.first()?.slot?;
        Some(slots::Slot::new(self.place(), slot, self.lease))
    }

    fn place(&self) -> slots::Place {
        let (client, election) = (self.client.clone(), &self.run.election.election);
        slots::Place::new(client, &self.namespace, election)
    }

    /// Returns the environment of the command with information about its term.
    fn environment(&self, term: &Term) -> Vec<(String, String)> {
        let election = &self.run.election;
        let entry = &self.entries[0];
        let record = entry.notes.record().unwrap_or_default();
        let acquired = record.acquire_time.and_then(rfc3339).unwrap_or_default();
        let mut env: Vec<(String, String)> = [
            ("LOCK_HELD", "true".to_owned()),
            ("ELECTION", election.election.clone()),
            ("NAMESPACE", self.namespace.clone()),
            ("LOCK_KIND", election.lock.to_string()),
            ("LEADER_ID", term.identity().to_owned()),
            ("PREVIOUS_LEADER", entry.notes.previous()),
            ("TERM", term.transitions().to_string()),
            ("FENCING_TOKEN", term.token().to_string()),
            ("FENCING_TOKEN_SORTABLE", term.token().sortable()),
            ("LEASE_UID", entry.notes.uid().unwrap_or_default()),
            ("ACQUIRE_TIME", acquired),
            (
                "LEASE_DURATION",
                format!("{}s", record.lease_duration_seconds),
            ),
        ]
        .into_iter()
        .chain(entry.slot.map(|slot| ("SLOT", slot.to_string())))
        .map(|(name, value)| (format!("{}{name}", self.run.env_prefix), variable(&value)))
        .collect();
        if self.foreground {
            env.push((terminal::FOREGROUND.to_owned(), "1".to_owned()));
        }
        env
    }

    fn note_released(&mut self, log: &mut EventLog) {
        if let Some(change) = self.ended.take() {
            log.write(What::Released, &change.released());
            self.voice.released();
        }
    }

    /// Releases the lease after the work has ended, and logs it. Waits for a limited time. `to_release` says whether
    /// this candidate still holds the lease.
    async fn released(&mut self, log: &mut EventLog, code: u8, to_release: bool) -> Result<u8> {
        if let Some(entry) = self.entries.first() {
            entry.candidate.shutdown();
        }
        let mut given_back = false;
        let finished = async {
            let Some(entry) = self.entries.first_mut() else {
                return;
            };
            while let Some(event) = entry.candidate.next().await {
                given_back |= matches!(event, Event::Released);
                if matches!(event, Event::Finished) {
                    break;
                }
            }
        };
        let skipped = tokio::select! {
            () = finished => "could not release",
            () = tokio::time::sleep(RELEASE) => "could not release in time",
            _ = self.signals.end() => "exiting without releasing",
        };
        if given_back {
            self.note_released(log);
        } else if to_release {
            self.voice.not_released(skipped, self.lease);
        }
        let delete = |entry: &&Entered| {
            let slot = usize::try_from(entry.slot.unwrap_or(0)).unwrap_or(usize::MAX);
            self.run.delete_on_exit && given_back && !self.run.keeps_slots(slot)
        };
        if let Some(entry) = self.entries.first().filter(delete)
            && let Some(snapshot) = entry.notes.snapshot()
        {
            let deleted = tokio::time::timeout(RELEASE, finish::delete(&self.client, &snapshot));
            match deleted.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("tenure: {}", api::plain(&error)),
                Err(_) => eprintln!("tenure: the lock object was not deleted in time"),
            }
        }
        Ok(code)
    }

    /// Ends the candidacies without a lease. A hanging request ends with the process.
    pub(super) async fn leave(&mut self) {
        let entries = self.entries.drain(..).map(|entry| entry.candidate);
        self.leaving.extend(entries.inspect(Candidate::shutdown));
        let finished = async {
            for candidate in &mut self.leaving {
                while let Some(event) = candidate.next().await {
                    if matches!(event, Event::Finished) {
                        break;
                    }
                }
            }
        };
        tokio::select! {
            () = finished => {}
            () = tokio::time::sleep(FAREWELL) => {}
            _ = self.signals.end() => {}
        }
    }
}
