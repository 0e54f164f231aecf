//! The work of a term: its command, its environment, and the reason for its end.

use jiff::{SignedDuration, Timestamp};
use tenure::{StopReason, Term};
use tenure_core::crash::HeldTerm;
use tenure_lock::LockKind;

use super::super::args::Stdin;
use super::super::crash_release::CrashRelease;
use super::super::group::Spec;
use super::super::work::{End, Work};
use super::super::{finish, slots, terminal};
use super::Runner;
use crate::api;
use crate::observed_lock::rfc3339;
use crate::terms::stop_words;
use crate::values::{signal_name, variable};

/// Returns the reason for the end of a term in words.
pub(super) fn why_ended(end: &End, term: &Term) -> String {
    match end {
        End::Exited(exit) => format!("the command {exit}"),
        End::Asked(signal, _) => format!("received {}", signal_name(*signal)),
        End::HeldLongEnough => "--max-hold has passed".to_owned(),
        End::NotStarted(_) => "the command cannot be started".to_owned(),
        End::Lost => {
            let reason = term.tenure().reason().unwrap_or(StopReason::GuardExpired);
            stop_words(reason.as_str()).to_owned()
        }
    }
}

impl Runner {
    /// With `--once`: returns who completed the work since this process was started, or a little before.
    pub(super) fn done_before(&self) -> Option<(Timestamp, String)> {
        let window = SignedDuration::try_from(self.run.once?).unwrap_or_default();
        let since = self.began.checked_sub(window).ok()?;
        finish::completed_since(&self.entries.first()?.notes, since)
    }

    /// Notifies candidates that wait with `--once`, while the lease is still held.
    pub(super) async fn note_completed(&self, end: &End, term: &Term) {
        let done = matches!(end, End::Exited(exit) if exit.success());
        let Some(entry) = self
            .entries
            .first()
            .filter(|_| done && self.run.once.is_some())
        else {
            return;
        };
        let noted = finish::note_completed(&self.client, &entry.notes, term.tenure().identity());
        if let Err(error) = noted.await {
            eprintln!(
                "tenure: cannot record the completed work, so another candidate may repeat it: {}",
                api::plain(&error)
            );
        }
    }

    pub(super) fn work(&self, term: &Term) -> Work {
        let run = &self.run;
        Work {
            spec: Spec {
                argv: run.command.clone(),
                release: self.crash_release(term).unwrap_or_default(),
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

    /// Returns the data with which the watchdog releases this term if this process is killed. Returns nothing with a lock
    /// delay, because requests of the killed command may still be on their way, and the delay waits for them.
    fn crash_release(&self, term: &Term) -> Option<String> {
        let election = &self.run.election;
        let entry = &self.entries[0];
        let snapshot = entry.notes.snapshot()?;
        let whole_seconds = election.lock != LockKind::Leases;
        let held = HeldTerm::of(snapshot.observation(), whole_seconds)?;
        let own = held.identity == term.tenure().identity()
            && held.transitions == term.tenure().transitions();
        let delays = election.lock_delay.is_some_and(|delay| !delay.is_zero());
        if !own || delays {
            return None;
        }
        let name = &election.election;
        let release = CrashRelease {
            way: self.way.clone(),
            log: self.log.clone(),
            namespace: self.namespace.clone(),
            election: name.clone(),
            lease: entry
                .slot
                .map_or_else(|| name.clone(), |slot| slots::name_of(name, slot)),
            lease_duration: self.lease,
            term: held.into(),
        };
        release.encode()
    }

    pub(super) fn slot(&self) -> Option<slots::Slot> {
        let slot = self.entries.first()?.slot?;
        Some(slots::Slot::new(self.place(), slot, self.lease))
    }

    pub(super) fn place(&self) -> slots::Place {
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
            ("LEADER_ID", term.tenure().identity().to_owned()),
            ("PREVIOUS_LEADER", entry.notes.previous()),
            ("TERM", term.tenure().transitions().to_string()),
            ("FENCING_TOKEN", term.tenure().token().to_string()),
            ("FENCING_TOKEN_SORTABLE", term.tenure().token().sortable()),
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
}
