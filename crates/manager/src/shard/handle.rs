//! A handle of the shards of a group.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure::FencingToken;
use tokio::sync::watch;

use super::agreement::Standing;
use super::{Shard, shard_of};
use crate::group::GroupHandle;

/// The shards of a group, as seen by this replica. Cheap to clone.
#[derive(Clone)]
pub struct Shards {
    inner: Arc<Inner>,
}

struct Inner {
    of: u32,
    /// The shards that this replica campaigns for or owns.
    groups: Mutex<BTreeMap<u32, GroupHandle>>,
    standing: watch::Sender<Standing>,
}

impl Shards {
    pub(crate) fn new(of: u32) -> Self {
        let (groups, standing) = Default::default();
        Self {
            inner: Arc::new(Inner {
                of,
                groups,
                standing,
            }),
        }
    }

    /// Returns whether this replica is a member of the group, or waits to join.
    pub fn standing(&self) -> Standing {
        *self.inner.standing.borrow()
    }

    /// Returns a channel with the state and its changes.
    pub fn watch(&self) -> watch::Receiver<Standing> {
        self.inner.standing.subscribe()
    }

    /// Returns whether this replica owns the shard of this key at this instant, according to the clock.
    pub fn owns(&self, key: &str) -> bool {
        self.group(key).is_some_and(|group| is_owned(&group))
    }

    /// Returns the fencing token of the shard of this key, if this replica owns it. Without an election, shards have no
    /// token.
    pub fn token(&self, key: &str) -> Option<FencingToken> {
        let group = self.group(key).filter(is_owned)?;
        let tenure = group.election()?.tenure()?;
        tenure.is_leading().then(|| tenure.token().clone())
    }

    /// Returns the shards that this replica owns at this instant.
    pub fn owned(&self) -> Vec<Shard> {
        let of = self.inner.of;
        let groups = self.lock();
        let owned = groups.iter().filter(|(_, group)| is_owned(group));
        owned
            .map(|(index, _)| Shard { index: *index, of })
            .collect()
    }

    /// Returns the shards that this replica campaigns for or owns.
    pub(crate) fn groups(&self) -> Vec<GroupHandle> {
        self.lock().values().cloned().collect()
    }

    fn group(&self, key: &str) -> Option<GroupHandle> {
        self.lock().get(&shard_of(key, self.inner.of)).cloned()
    }

    /// Returns the channel to which this replica sends its state.
    pub(super) fn sender(&self) -> &watch::Sender<Standing> {
        &self.inner.standing
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, GroupHandle>> {
        let groups = self.inner.groups.lock();
        groups.unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards")
            .field("of", &self.inner.of)
            .field("owned", &self.owned())
            .finish()
    }
}

/// Returns whether a shard is owned. A shard that was won is owned once its work has been started, which happens after
/// the agreement on the number of shards was confirmed.
fn is_owned(group: &GroupHandle) -> bool {
    group.is_running() && group.is_leading()
}
