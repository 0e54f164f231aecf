//! The flags that describe an election, shared by the commands that take part in one.

use std::time::Duration;

use clap::Args;
use tenure::Builder;
use tenure::lock::LockKind;

use crate::values::duration;

/// Which election, and its timing.
#[derive(Args, Clone, Debug)]
pub(crate) struct Election {
    /// Name of the election, and of its lock object
    #[arg(long, value_name = "NAME", env = "TENURE_ELECTION")]
    pub(crate) election: String,
    /// Namespace of the lock object; by default the pod's, else that of the kubeconfig's context
    #[arg(
        long,
        visible_alias = "namespace",
        value_name = "NS",
        env = "TENURE_ELECTION_NAMESPACE"
    )]
    pub(crate) election_namespace: Option<String>,
    /// Kind of the lock: leases, configmaps, endpoints, configmapsleases, endpointsleases
    #[arg(
        long,
        value_name = "KIND",
        env = "TENURE_LOCK",
        default_value = "leases"
    )]
    pub(crate) lock: LockKind,
    /// Identity of this candidate; by default host name and a random part
    #[arg(long, value_name = "ID", env = "TENURE_ID")]
    pub(crate) id: Option<String>,
    /// How long others wait after the last renewal [default: 15s]
    #[arg(long, value_name = "D", env = "TENURE_LEASE_DURATION", value_parser = duration)]
    pub(crate) lease_duration: Option<Duration>,
    /// How long the leader acts without a renewal [default: 10s]
    #[arg(long, value_name = "D", env = "TENURE_RENEW_DEADLINE", value_parser = duration)]
    pub(crate) renew_deadline: Option<Duration>,
    /// How often the leader renews [default: 2s]
    #[arg(long, value_name = "D", env = "TENURE_RETRY_PERIOD", value_parser = duration)]
    pub(crate) retry_period: Option<Duration>,
    /// Short for lease duration T, renew deadline T/2, retry period T/4
    #[arg(long, value_name = "T", env = "TENURE_TTL", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
}

impl Election {
    /// Sets everything that the flags say about the election; `build` finds the problems.
    pub(crate) fn configure(&self, mut builder: Builder) -> Builder {
        let part = |divisor: u32| self.ttl.map(|ttl| ttl / divisor);
        if let Some(duration) = self.lease_duration.or(part(1)) {
            builder = builder.lease_duration(duration);
        }
        if let Some(duration) = self.renew_deadline.or(part(2)) {
            builder = builder.renew_deadline(duration);
        }
        if let Some(duration) = self.retry_period.or(part(4)) {
            builder = builder.retry_period(duration);
        }
        if let Some(id) = &self.id {
            builder = builder.identity(id);
        }
        builder.name(&self.election)
    }

    /// The namespace, given that of the kubeconfig's context.
    pub(crate) fn namespace(&self, context: &str) -> String {
        let own = || {
            std::env::var("POD_NAMESPACE")
                .ok()
                .filter(|namespace| !namespace.is_empty())
        };
        self.election_namespace
            .clone()
            .or_else(own)
            .unwrap_or_else(|| context.to_owned())
    }
}
