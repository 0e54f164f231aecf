//! A campaign of `tenure run`: waits for a term, runs its work, releases it, and repeats.

mod term;
mod wait;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::Client;
use tenure::deadline::Overrun;
use tenure::{Candidate, Event, Hub, StopReason, Timing};

use super::args::{OnLost, Run};
use super::obstacle::Obstacles;
use super::work::{End, Running};
use super::{FAILED, USAGE, code_of, finish, slots};
use crate::api;
use crate::connect::Connect;
use crate::death::Work;
use crate::election::{Connected, Entry};
use crate::events::{Change, EventLog, What};
use crate::log::Log;
use crate::observed_lock::{Gate, Notes};
use crate::output::escaped;
use crate::say::Voice;
use crate::signals::Signals;
use crate::waiting::Limit;
use term::why_ended;
use wait::Waited;

/// Time limit of the release after the work has ended.
const RELEASE: Duration = Duration::from_secs(5);

/// Time limit for ending a candidacy that holds no lease.
const FAREWELL: Duration = Duration::from_millis(400);

/// A running campaign.
pub(super) struct Runner {
    run: Run,
    client: Client,
    /// Address of the server, for display.
    server: String,
    /// Flags with which the watchdog finds it, and with which it logs.
    way: Connect,
    log: Log,
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

impl Runner {
    pub(super) fn new(
        run: Run,
        Connected {
            client,
            server,
            way,
            ..
        }: Connected,
        log: Log,
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
            way,
            log,
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
            // The candidacy of an earlier term is still running, and keeps orders about the next term.
            if self.entries.is_empty() {
                self.enter_one(&election, None, &BTreeMap::new())?;
            }
            return Ok(());
        };
        let random =
            u64::from(std::process::id()) ^ self.began.subsec_nanosecond().unsigned_abs() as u64;
        for slot in slots::order(count, last, random) {
            // The slot that this process holds, or held last, already has its candidacy.
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
        let Entry { builder, notes } =
            election.enter(&self.client, place, labels, &self.gate, Work::OfTree)?;
        let at_fence = self.running.clone();
        let elector = (self.run.announce)
            .apply(builder, None)
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
                    () = term.tenure().cancelled() => Some((FAILED, slot.unknown())),
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
                    () = term.tenure().cancelled() => None,
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
            let reason = term.tenure().reason();
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
