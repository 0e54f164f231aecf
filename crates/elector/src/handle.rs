//! Queries and requests to a running election, from other parts of the program.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::health::Health;
use crate::hub::Ask;
use crate::member::Membership;
use crate::shared::Shared;
use crate::status::Status;
use crate::sync::lock;
use crate::tenure::Tenure;

/// A handle to query an election and to ask it to step down. Cheap to clone. It does not keep the election running.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Ends the current term, if there is one: its work is cancelled and joined, then the lock is released. This
    /// candidate then does not campaign during the time `sit_out`.
    pub fn step_down(&self, sit_out: Duration) {
        self.shared.ask(Ask::StepDown(sit_out));
    }

    /// Returns the leader as known by this candidate.
    pub fn status(&self) -> Status {
        self.shared.status.get()
    }

    /// Returns a channel with the status. It notifies on changes, not on renewals.
    pub fn watch(&self) -> watch::Receiver<Status> {
        self.shared.status.subscribe()
    }

    /// Returns whether this candidate leads at this instant, according to the clock.
    pub fn is_leading(&self) -> bool {
        let term = lock(&self.shared.term).clone();
        term.is_some_and(|tenure| tenure.is_leading())
    }

    /// Returns the current term. A term is current until its work has ended. The handle is an [observer](Tenure::observer): it does not
    /// prolong the term.
    pub fn tenure(&self) -> Option<Tenure> {
        lock(&self.shared.term).clone()
    }

    /// Returns the health of the election.
    pub fn health(&self) -> Health {
        Health::new(self.shared.clone())
    }

    /// Returns the candidates that announce themselves; `None` unless this one does
    /// ([`Builder::announce`](crate::Builder::announce)).
    pub fn membership(&self) -> Option<&Membership> {
        self.shared.membership.get()
    }

    /// Returns the identity of this candidate.
    pub fn identity(&self) -> &str {
        &self.shared.identity
    }

    /// Returns the lock, for example `lease kube-system/x`.
    pub fn lock(&self) -> &str {
        &self.shared.lock
    }
}
