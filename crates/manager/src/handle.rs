//! What can be done with a manager that runs: look at it, and add to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::migration::{LeaderMigration, Placement};
use crate::runnable::Runnable;
use crate::tasks::{Roster, Running};

/// A manager from outside, also while it runs; from [`Manager::handle`](crate::Manager::handle). Cheap to
/// clone.
#[derive(Clone)]
pub struct ManagerHandle {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) every: Roster,
    pub(crate) groups: BTreeMap<String, Roster>,
    pub(crate) migration: Option<(LeaderMigration, String)>,
    pub(crate) running: Running,
    pub(crate) open: Mutex<Open>,
}

/// Whether and what may still be added.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) names: BTreeSet<String>,
    pub(crate) stopped: bool,
    /// What did not stop in time.
    pub(crate) stuck: Option<String>,
}

impl ManagerHandle {
    /// Adds to what runs on every replica. It is started at once if the rest has been.
    ///
    /// # Errors
    /// The name is taken, or the manager is stopping or has stopped.
    pub fn add_every(&self, runnable: Runnable) -> Result<(), Error> {
        self.add(&self.inner.every, runnable)
    }

    /// Adds to a leader group that the manager was built with. It is started at once where this replica
    /// leads the group, and in each later term.
    ///
    /// # Errors
    /// There is no such group, the name is taken, or the manager is stopping or has stopped.
    pub fn add_leader(&self, group: &str, runnable: Runnable) -> Result<(), Error> {
        let group = match &self.inner.migration {
            None => group,
            Some((migration, component)) => match migration.place(runnable.name(), component) {
                Placement::NonMigrated => group,
                Placement::Migrated => &migration.leader_name,
                Placement::Unowned => {
                    tracing::info!(name = runnable.name(), "runs in another program");
                    return Ok(());
                }
            },
        };
        let groups = &self.inner.groups;
        let roster = groups.get(group).ok_or_else(|| Error::NoSuchGroup {
            group: group.to_owned(),
            groups: groups.keys().cloned().collect(),
        })?;
        self.add(roster, runnable)
    }

    /// The names of what runs in this process at present.
    pub fn running(&self) -> Vec<String> {
        self.inner.running.names()
    }

    fn add(&self, roster: &Roster, runnable: Runnable) -> Result<(), Error> {
        let mut open = self.lock();
        if open.stopped {
            return Err(Error::Stopped(runnable.name().to_owned()));
        }
        if !open.names.insert(runnable.name().to_owned()) {
            return Err(Error::DuplicateName(runnable.name().to_owned()));
        }
        roster.add(runnable);
        Ok(())
    }

    /// Nothing can be added from now on.
    pub(crate) fn close(&self) {
        self.lock().stopped = true;
    }

    pub(crate) fn note_stuck(&self, error: &Error) {
        self.lock().stuck = Some(error.to_string());
    }

    pub(crate) fn stuck(&self) -> Option<String> {
        self.lock().stuck.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        let open = self.inner.open.lock();
        open.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManagerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerHandle")
            .field("groups", &self.inner.groups.keys().collect::<Vec<_>>())
            .field("running", &self.running())
            .finish_non_exhaustive()
    }
}
