//! Handle of a running manager, to query it and to add runnables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::migration::{LeaderMigration, Placement};
use crate::runnable::Runnable;
use crate::tasks::{Roster, Running};

/// A handle of a manager, from [`Manager::handle`](crate::Manager::handle). It also works while the manager runs. Cheap
/// to clone.
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

/// Whether runnables may still be added, and to which groups.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) names: BTreeSet<String>,
    pub(crate) stopped: bool,
    /// Work that did not stop in time.
    pub(crate) stuck: Option<String>,
}

impl ManagerHandle {
    /// Adds a runnable to every replica. It is started immediately if the others have been started.
    ///
    /// # Errors
    ///
    /// Fails if the name is taken, or if the manager is stopping or has stopped.
    pub fn add_every(&self, runnable: Runnable) -> Result<(), Error> {
        self.add(&self.inner.every, runnable)
    }

    /// Adds a runnable to a leader group that the manager was built with. It is started immediately if this replica
    /// leads the group, and in each later term.
    ///
    /// # Errors
    ///
    /// Fails if there is no such group, if the name is taken, or if the manager is stopping or has stopped.
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

    /// Returns the names of the runnables that run in this process now.
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

    /// Rejects all further additions.
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
