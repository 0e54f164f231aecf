//! Shared settings and health of a manager's elections.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tenure::{Elector, Hub, LockKind};

use crate::group::{GroupHandle, overrun};
use crate::health::Check;
use crate::shard::Shards;
use crate::tasks::Running;

/// Time after the end of its lease at which a leader is unhealthy; Kubernetes' value.
const HEALTH_TOLERANCE: Duration = Duration::from_secs(20);

/// Customisation of elections by the program.
pub(crate) type Tune = Arc<dyn Fn(tenure::Builder) -> tenure::Builder + Send + Sync>;

/// Shared settings of a manager's elections.
#[derive(Clone)]
pub(crate) struct Elections {
    pub(crate) hub: Hub,
    pub(crate) client: Client,
    pub(crate) kind: LockKind,
    pub(crate) namespace: String,
    pub(crate) identity: String,
    pub(crate) tune: Option<Tune>,
    pub(crate) metrics: tenure::Metrics,
}

impl Elections {
    /// Creates the election of a group; `running` is the work of its terms.
    pub(crate) fn builder(&self, group: &str, lock: &str, running: &Running) -> tenure::Builder {
        let builder = Elector::open(self.client.clone(), self.kind, &self.namespace, lock)
            .hub(&self.hub)
            .identity(self.identity.clone())
            .metrics(&self.metrics)
            .on_overrun(overrun(group, running));
        match &self.tune {
            Some(tune) => tune(builder),
            None => builder,
        }
    }
}

/// Creates client-go's watchdog check for all groups and for the current shards of this replica.
pub(crate) fn election_check(groups: Vec<GroupHandle>, shards: Vec<Shards>) -> Check {
    Arc::new(move || {
        let sharded = shards.iter().flat_map(Shards::groups);
        for group in groups.iter().cloned().chain(sharded) {
            let Some(election) = group.election() else {
                continue;
            };
            let checked = election.health().check(HEALTH_TOLERANCE);
            checked.map_err(|error| error.to_string())?;
        }
        Ok(())
    })
}

/// Creates a check that fails if this process does not lead the group.
pub(crate) fn leader_check(group: GroupHandle) -> Check {
    Arc::new(move || {
        if group.is_leading() {
            return Ok(());
        }
        Err(format!("this replica does not lead {}", group.name()))
    })
}
