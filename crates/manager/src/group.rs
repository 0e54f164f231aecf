//! A leader group: one election, and the runnables of its terms.
//!
//! Invariant: the lock is released only when every task of the term has ended and every [`Scope`] of it is dropped.
//! Work that cannot be ended keeps the lock until the process has ended.

use std::sync::Arc;

use tenure::{Candidate, Elector, Event, Handle, Overrun, StopReason, Term};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::scope::Scope;
use crate::shard::Shard;
use crate::shard::agreement::Gate;
use crate::tasks::{ABORT_TAKES, Context, Roster, Running, Tasks};

/// Reaction to a term that ends although this process continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnLoss {
    /// End the manager with [`Error::Lost`], as users of client-go do, because a new process has no stale state.
    #[default]
    Exit,
    /// Stop the leader scope, keep caches and everything else running, and campaign again.
    Demote,
}

/// The two stop signals of a group.
#[derive(Clone, Debug)]
pub(crate) struct Stops {
    /// Stop the work, release the lock, and end.
    pub(crate) soft: CancellationToken,
    /// Drop the work immediately.
    pub(crate) hard: CancellationToken,
}

/// One election and its work.
pub(crate) struct Group {
    pub(crate) name: Arc<str>,
    pub(crate) shard: Option<Shard>,
    pub(crate) roster: Roster,
    /// The running work of the group, which the [`overrun`] policy of its elector names.
    pub(crate) running: Running,
    pub(crate) on_loss: OnLoss,
    /// Another lock guards the same work, so this group cannot lose or give up its lock alone.
    pub(crate) tied: bool,
    /// Confirms each term of a shard before its work starts.
    pub(crate) gate: Option<Arc<Gate>>,
    /// Whether the work of a term has been started.
    pub(crate) started: watch::Sender<bool>,
}

impl Group {
    /// Campaigns and leads until it is stopped, or ends by policy.
    pub(crate) async fn run(self, elector: Elector, stops: Stops, context: Context) {
        let mut candidate = elector.start();
        let mut asked = false;
        loop {
            let event = tokio::select! {
                event = candidate.next() => event,
                () = stops.soft.cancelled(), if !asked => {
                    asked = true;
                    candidate.shutdown();
                    continue;
                }
            };
            match event {
                Some(Event::Lead(term)) => {
                    let Some(reason) = self.lead(term, &candidate, &stops, &context).await else {
                        return;
                    };
                    let own = matches!(reason, StopReason::Shutdown | StopReason::StepDown);
                    let lost = self.tied || (!own && self.on_loss == OnLoss::Exit);
                    if lost && !stops.soft.is_cancelled() {
                        let group = self.name.to_string();
                        context.fail(Error::Lost { group, reason });
                        return;
                    }
                }
                Some(Event::Finished) | None => return,
                Some(_) => {}
            }
        }
    }

    /// Runs one term; returns nothing if its work could not be ended.
    async fn lead(
        &self,
        term: Term,
        candidate: &Candidate,
        stops: &Stops,
        context: &Context,
    ) -> Option<StopReason> {
        if !self.is_confirmed(&term, stops).await {
            if stops.soft.is_cancelled() {
                candidate.shutdown();
            }
            term.tenure().cancelled().await;
            return Some(term.tenure().reason().unwrap_or(StopReason::GuardExpired));
        }
        let token = term.tenure().token().to_string();
        tracing::info!(group = &*self.name, token, "leading");
        let cancel = CancellationToken::new();
        term.tenure().at_end({
            let cancel = cancel.clone();
            move |_| cancel.cancel()
        });
        let tenure = Some(term.tenure().clone());
        let scope = Scope::new(self.name.clone(), cancel, tenure, self.shard);
        let mut tasks = Tasks::start(&self.roster, scope, &self.running, context);
        self.started.send_replace(true);
        tokio::select! {
            biased;
            () = term.tenure().cancelled() => {}
            () = stops.soft.cancelled() => {
                candidate.shutdown();
                term.tenure().cancelled().await;
            }
            () = tasks.keep_up() => {}
        }
        self.started.send_replace(false);
        tasks.close();
        let ended = tokio::select! {
            biased;
            ended = term.joined(tasks.ended()) => ended,
            () = stops.hard.cancelled() => false,
        };
        let reason = term.tenure().reason().unwrap_or(StopReason::GuardExpired);
        if !ended {
            let names = tasks.names();
            tracing::warn!(
                group = &*self.name,
                ?names,
                "runnables did not stop in time; dropping them"
            );
            tasks.abort_all();
            if !term.joined_within(ABORT_TAKES, tasks.ended()).await {
                // A task blocks its thread, or its scope is held elsewhere, so the term cannot be joined. The lock is
                // released when the work ends. If it does not end, the deadline thread ends the process.
                let names = tasks.names();
                tracing::error!(
                    group = &*self.name,
                    ?names,
                    "runnables cannot be stopped; keeping the lock"
                );
                return None;
            }
        }
        tracing::info!(
            group = &*self.name,
            token,
            reason = reason.as_str(),
            "no longer leading"
        );
        Some(reason)
    }

    /// Waits until the work of a term may start. Returns false if the term ends, or has to end, before that.
    async fn is_confirmed(&self, term: &Term, stops: &Stops) -> bool {
        let Some(gate) = &self.gate else {
            return true;
        };
        tokio::select! {
            biased;
            () = term.tenure().cancelled() => false,
            () = stops.soft.cancelled() => false,
            () = gate.confirm() => true,
        }
    }

    /// Runs the leader scope of a process without an election.
    pub(crate) async fn run_without_election(self, stops: Stops, context: Context) {
        let cancel = stops.soft.clone();
        let scope = Scope::new(self.name.clone(), cancel, None, self.shard);
        let mut tasks = Tasks::start(&self.roster, scope, &self.running, &context);
        self.started.send_replace(true);
        tokio::select! {
            () = stops.soft.cancelled() => {}
            () = tasks.keep_up() => {}
        }
        tokio::select! {
            biased;
            () = tasks.ended() => {}
            () = stops.hard.cancelled() => {
                tasks.abort().await;
            }
        }
        self.started.send_replace(false);
    }
}

/// Returns a policy that aborts the process and names the runnables of the group that still run.
pub(crate) fn overrun(group: &str, running: &Running) -> Overrun {
    let (group, running) = (group.to_owned(), running.clone());
    Overrun::abort_with(move |overran| {
        let names = running.names().join(", ");
        // A group without work has a term too. Code that blocks the runtime can keep that term from ending.
        let of = if names.is_empty() { "" } else { " of " };
        format!(
            "{names}{of}leader group {group} did not end in time after the term of {} ended; aborting, \
             because another process may lead now",
            overran.lock,
        )
    })
}

/// A handle to query the election of a group.
#[derive(Clone, Debug)]
pub struct GroupHandle {
    pub(crate) name: Arc<str>,
    pub(crate) election: Option<Handle>,
    pub(crate) started: watch::Receiver<bool>,
}

impl GroupHandle {
    /// Returns the name of the group, which is also that of its lock.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the election; nothing without one.
    pub fn election(&self) -> Option<&Handle> {
        self.election.as_ref()
    }

    /// Returns whether this process leads the group at this instant, according to the clock. Without an election,
    /// returns whether the work of the group has been started.
    pub fn is_leading(&self) -> bool {
        match &self.election {
            Some(election) => election.is_leading(),
            None => self.is_running(),
        }
    }

    /// Returns whether the work of this group has been started in this process.
    pub fn is_running(&self) -> bool {
        *self.started.borrow()
    }

    /// Waits until the work of this group has been started in this process. Returns immediately if it has already been
    /// started, and returns false if it will never be started.
    pub async fn running(&self) -> bool {
        self.started.clone().wait_for(|yes| *yes).await.is_ok()
    }
}
