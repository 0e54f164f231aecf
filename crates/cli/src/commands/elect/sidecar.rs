//! The election loop of the sidecar: it receives changes, publishes them, and releases terms.
//!
//! This loop never waits for a receiver: changes are delivered through queues.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use rustix::process::Signal;
use tenure::{Candidate, Event, StopReason, Term};
use tenure_lock::duration::format as span;

use super::outlets::{ElectionChange, Notice, Outlets, PATIENCE, Share};
use super::view::{Seen, View};
use super::{CONFIGURATION, FORBIDDEN, UNREACHABLE, refuse};
use crate::events::{Change, EventLog, What};
use crate::say::{self, Voice};
use crate::signals::{Asked, Signals};
use crate::terms::stop_words;
use crate::waiting::Limit;

/// Time limit of the release at the end, after all outlets were notified.
const RELEASE: Duration = Duration::from_secs(5);

/// Time limit for ending a candidacy that holds no lease.
const HASTE: Duration = Duration::from_millis(400);

/// Time limit for the delivery of the last changes, after the release.
const FAREWELL: Duration = Duration::from_secs(2);

/// Time during which a leader that stepped down by a signal does not campaign.
const SIT_OUT: Duration = Duration::from_secs(30);

/// Time after which a namespace that does not exist is an error, unless `--startup-timeout` gives another.
const NO_NAMESPACE: Duration = Duration::from_secs(30);

/// Interval at which these processes are checked.
const STEP: Duration = Duration::from_millis(50);

/// Other processes that a release waits for.
#[derive(Clone, Debug)]
pub(super) struct Linger {
    pub(super) delay: Option<Duration>,
    pub(super) pid: Option<i32>,
}

/// The election loop.
pub(super) struct Sidecar {
    pub(super) candidate: Candidate,
    pub(super) signals: Signals,
    pub(super) view: View,
    pub(super) log: EventLog,
    pub(super) outlets: Outlets,
    /// Print `X is the leader` like the old sidecar, because scripts search for it.
    pub(super) print: bool,
    pub(super) dry_run: bool,
    pub(super) startup: Limit,
    pub(super) linger: Linger,
    pub(super) voice: Voice,
    pub(super) lease: Duration,
    /// The term that ended last, until it is known whether it was released.
    pub(super) ended: Option<Change>,
}

impl Sidecar {
    pub(super) async fn attend(mut self) -> Result<u8> {
        let mut term: Option<Term> = None;
        self.tell(Notice::Started, None);
        let startup = self.startup;
        let late = tokio::time::sleep(startup.left().unwrap_or(NO_NAMESPACE));
        tokio::pin!(late);
        let mut starting = true;
        let mut ending = false;
        loop {
            // The lease is renewed only while it leads, and a program in the same pod that still runs relies on it.
            if ending && !(term.is_some() && self.linger.is_running()) {
                break;
            }
            tokio::select! {
                event = self.candidate.next() => match event {
                    Some(event) => self.heard(event, &mut term),
                    None => return refuse(1, &"the election ended unexpectedly"),
                },
                asked = self.signals.next() => match asked {
                    // A second signal ends immediately.
                    Asked::End(_) if ending => {
                        say::second_signal("not waiting for the process of --wait-pid");
                        break;
                    }
                    Asked::End(_) => ending = true,
                    Asked::Forward(Signal::USR1) => self.view.handle.step_down(SIT_OUT),
                    Asked::Forward(_) | Asked::Child => {}
                },
                () = tokio::time::sleep(STEP), if ending => {}
                () = &mut late, if starting => {
                    starting = false;
                    if let Some((code, why)) = self.never_started() {
                        self.leave(term).await;
                        return refuse(code, &why);
                    }
                }
            }
        }
        self.leave(term).await;
        Ok(0)
    }

    /// After the startup timeout: returns why this candidate has not started, with the exit code.
    fn never_started(&self) -> Option<(u8, String)> {
        let health = self.view.handle.health();
        let limit = self.startup.whole();
        let shown = span(limit.unwrap_or(NO_NAMESPACE));
        if let Some((why, _)) = health.obstacle() {
            let namespace = &self.view.facts.namespace;
            let is_missing = why.contains(&format!("namespace {namespace} does not exist"));
            let code = if is_missing { CONFIGURATION } else { FORBIDDEN };
            if is_missing || (limit.is_some() && self.view.notes.heard().is_none()) {
                let by = limit.map_or("", |_| " (--startup-timeout)");
                return Some((code, format!("gave up after {shown}{by}: {why}")));
            }
        }
        if limit.is_none() || self.view.notes.heard().is_some() {
            return None;
        }
        let why = health.trouble();
        let why = why.map_or_else(|| "no answer".to_owned(), |t| t.to_string());
        let lock = self.view.handle.lock();
        let why = format!("cannot read {lock} within {shown}: {why}");
        Some((UNREACHABLE, why))
    }

    /// Revokes the guard, notifies all outlets, and only then releases the lease. A second signal ends the wait.
    async fn leave(mut self, mut term: Option<Term>) {
        let leads = term.is_some() || self.ended.is_some();
        self.candidate.shutdown();
        // A candidate without a lease does not wait, because a request may hang.
        let limit = if leads {
            PATIENCE + RELEASE + self.linger.delay.unwrap_or_default()
        } else {
            HASTE
        };
        let end = tokio::time::sleep(limit);
        tokio::pin!(end);
        loop {
            tokio::select! {
                event = self.candidate.next() => match event {
                    Some(Event::Finished) | None => break,
                    Some(event) => self.heard(event, &mut term),
                },
                () = &mut end => {
                    if leads {
                        let why = "could not release in time";
                        self.voice.not_released(why, self.lease);
                    }
                    break;
                }
                _ = self.signals.end() => {
                    if leads {
                        self.voice.not_released("exiting without releasing", self.lease);
                    }
                    return;
                }
            }
        }
        let patience = if leads { FAREWELL } else { Duration::ZERO };
        self.outlets.close(patience).await;
    }

    fn heard(&mut self, event: Event, term: &mut Option<Term>) {
        match event {
            Event::Lead(won) => {
                let identity = self.view.handle.identity().to_owned();
                self.see(&identity);
                self.voice.leading(&won, &self.view.notes.previous());
                self.log.write(What::Acquired, &Change::own(&won));
                *term = Some(won);
                self.tell(Notice::Elected, None);
                self.tell(Notice::Changed, None);
            }
            Event::Stop(reason) => {
                if let Some(term) = term.take() {
                    self.lost(term, &reason);
                }
            }
            Event::NewLeader(leader) => {
                if leader == self.view.handle.identity() {
                    return;
                }
                self.see(&leader);
                if !leader.is_empty() {
                    self.voice.waiting(&leader, &self.view.notes);
                } else if self.ended.is_none() {
                    self.voice.vacant(&self.view.notes.previous());
                }
                let identity = self.view.handle.identity();
                let change = Change::seen(&leader, identity, &self.view.notes);
                self.log.write(What::Observed, &change);
                self.tell(Notice::Changed, None);
                if self.dry_run && leader.is_empty() {
                    tracing::info!("dry run: this candidate would campaign now");
                }
            }
            Event::Released => {
                if let Some(change) = self.ended.take() {
                    self.log.write(What::Released, &change.released());
                    self.voice.released();
                }
            }
            _ => {}
        }
    }

    /// Handles the end of a term. The lease is released when every outlet that must be notified first has been
    /// notified.
    fn lost(&mut self, term: Term, reason: &StopReason) {
        let change = Change::own(&term).ended(&term);
        self.view.seen.send_modify(|seen| seen.leader.clear());
        self.log.write(What::Lost, &change);
        self.voice.stopped(&term, stop_words(reason.as_str()));
        self.ended = Some(change);
        let share = Share::new(term);
        if self.linger.any() {
            tokio::spawn(self.linger.clone().wait(share.clone()));
        }
        self.tell(Notice::Lost, Some(share));
    }

    fn tell(&self, notice: Notice, term: Option<Share>) {
        let mut answer = self.view.answer();
        if let Some(share) = &term {
            // Deliveries after the end of the term contain that term.
            answer.term = Some(share.term().tenure().transitions());
            answer.fencing_token = Some(share.term().tenure().token().to_string());
        }
        let previous = self.view.notes.previous();
        self.outlets.notify(&ElectionChange {
            notice,
            answer,
            previous,
            term,
        });
    }

    fn see(&self, leader: &str) {
        // After a release nobody leads until the next candidate does. The old sidecar printed nothing in that case.
        if self.print && !leader.is_empty() {
            // A closed standard output does not end the election.
            let _ = writeln!(std::io::stdout(), "{leader} is the leader");
        }
        self.view.seen.send_replace(Seen {
            leader: leader.to_owned(),
            observed_at: Some(Timestamp::now()),
        });
    }
}

impl Linger {
    fn any(&self) -> bool {
        self.delay.is_some() || self.pid.is_some()
    }

    /// Returns whether the process to wait for runs.
    fn is_running(&self) -> bool {
        let stat = |pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        let stat = self.pid.and_then(stat);
        stat.is_some_and(|stat| !stat.contains(") Z "))
    }

    /// Keeps a share of the term until the other processes have ended, as long as the lease can be kept.
    async fn wait(self, share: Share) {
        let mut waited = Duration::ZERO;
        while waited < self.delay.unwrap_or_default() || self.is_running() {
            if share.term_left().is_zero() {
                tracing::warn!(
                    "cannot delay the release any longer: the lease expires, although other programs of the pod still run"
                );
                return;
            }
            tokio::time::sleep(STEP).await;
            waited += STEP;
        }
    }
}
