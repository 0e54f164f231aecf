//! The elections of a manager: what they have in common, and their health.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tenure::{Elector, Hub, LockKind};

use crate::group::{GroupHandle, overrun};
use crate::health::Check;
use crate::shard::Shards;
use crate::tasks::Running;

/// A leader that has not renewed is unhealthy this long after its lease ran out; Kubernetes'.
const HEALTH_TOLERANCE: Duration = Duration::from_secs(20);

/// What a program changes about its elections.
pub(crate) type Tune = Arc<dyn Fn(tenure::Builder) -> tenure::Builder + Send + Sync>;

/// What the elections of a manager have in common.
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
    /// An election of a group; `running` is what its terms run.
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

/// client-go's watchdog over all groups, and over the shards that this replica has when it is asked.
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

/// Fails where this process does not lead the group.
pub(crate) fn leader_check(group: GroupHandle) -> Check {
    Arc::new(move || {
        if group.is_leading() {
            return Ok(());
        }
        Err(format!("this replica does not lead {}", group.name()))
    })
}
