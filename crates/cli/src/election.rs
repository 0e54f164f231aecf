//! The flags that describe an election, and how commands join one.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use kube::Client;
use rustix::process::Signal;
use tenure::{Builder, Elector, Timing, identity};
use tenure_lock::LockKind;

use crate::connect::{self, Connect};
use crate::death::{self, DeathSource, Proofs, Work};
use crate::observed_lock::{Gate, Notes, ObservedLock};
use crate::rbac::Needs;
use crate::signals::Signals;
use crate::values::{duration, name};

/// File with the namespace of a pod's service account.
const SERVICE_ACCOUNT_NAMESPACE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Interval at which a credential plugin can renew a token ahead of time.
const KEEP_CREDENTIALS: Duration = Duration::from_secs(10);

/// The election and its timing.
#[derive(Args, Clone, Debug)]
pub(crate) struct Election {
    /// Name of the election, and of its lock object
    #[arg(long, value_name = "NAME", env = "TENURE_ELECTION", value_parser = name)]
    pub(crate) election: String,
    /// Namespace [default: of the pod or context]
    ///
    /// The default is the namespace of the pod that this process runs in, otherwise that of the kubeconfig's context.
    /// `--election-namespace` is another name of this flag.
    #[arg(
        short = 'n',
        long = "namespace",
        alias = "election-namespace",
        value_name = "NS",
        env = "TENURE_ELECTION_NAMESPACE",
        value_parser = name
    )]
    pub(crate) election_namespace: Option<String>,
    /// Kind of the lock object
    ///
    /// One of leases, configmaps, endpoints, configmapsleases, endpointsleases.
    #[arg(
        long,
        value_name = "KIND",
        env = "TENURE_LOCK",
        default_value = "leases"
    )]
    pub(crate) lock: LockKind,
    /// Identity [default: pod or host name, random part]
    #[arg(long, value_name = "ID", env = "TENURE_ID", value_parser = name)]
    pub(crate) id: Option<String>,
    /// Lease duration: time before another candidate may take over [default: 15s]
    ///
    /// It counts from the last renewal.
    #[arg(long, value_name = "D", env = "TENURE_LEASE_DURATION", value_parser = duration)]
    pub(crate) lease_duration: Option<Duration>,
    /// Renew deadline: time after which a leader stops without a renewal [default: 10s]
    #[arg(long, value_name = "D", env = "TENURE_RENEW_DEADLINE", value_parser = duration)]
    pub(crate) renew_deadline: Option<Duration>,
    /// Retry period: time between two renewals [default: 2s]
    #[arg(long, value_name = "D", env = "TENURE_RETRY_PERIOD", value_parser = duration)]
    pub(crate) retry_period: Option<Duration>,
    /// Lease duration T; sets all durations [default: 15s]
    ///
    /// Short for a lease duration of T, a renew deadline of T/2 and a retry period of T/4. The flags of these durations
    /// have precedence.
    #[arg(long, value_name = "T", env = "TENURE_TTL", value_parser = duration)]
    pub(crate) ttl: Option<Duration>,
    /// Lock delay: extra wait after an expired term that was not released [default: 0s]
    ///
    /// Use it for resources that cannot check fencing tokens: requests that the failed leader sent before its term
    /// expired have this long to arrive. All candidates must use the same value.
    #[arg(long, value_name = "D", env = "TENURE_LOCK_DELAY", value_parser = duration)]
    pub(crate) lock_delay: Option<Duration>,
    /// Take over early if host, pod or node shows that the leader ended [default: none]
    ///
    /// host: the kernel reports that the process of the leader has ended, or that the machine was restarted. The kernel
    /// reports the end of a process to candidates in the same pid namespace. pod: the kubelet reports that the container
    /// of the leader has ended. It needs the variables `POD_NAME`, `POD_NAMESPACE` and `POD_UID`. node: an administrator
    /// has set the taint node.kubernetes.io/out-of-service on the leader's node. It needs the variable `NODE_NAME`.
    ///
    /// `tenure run` needs no source if only its own process is killed, because its watchdog releases the lease.
    #[arg(
        long,
        value_enum,
        value_name = "SOURCES",
        env = "TENURE_CONFIRM_DEATH",
        value_delimiter = ',',
        hide_possible_values = true
    )]
    pub(crate) confirm_death: Vec<DeathSource>,
    /// Accept durations that client-go accepts although they leave no margin, with a warning.
    #[arg(skip)]
    pub(crate) client_go_compat: bool,
    /// Request timeout, if it does not follow from the durations.
    #[arg(skip)]
    pub(crate) request_timeout: Option<Duration>,
}

/// A candidacy that is ready to start.
pub(crate) struct Entry {
    pub(crate) builder: Builder,
    pub(crate) notes: Notes,
}

impl Election {
    /// Opens the lock of this name for a candidate. `build` reports problems with the durations.
    pub(crate) fn enter(
        &self,
        client: &Client,
        (namespace, name): (&str, &str),
        labels: &BTreeMap<String, String>,
        gate: &Gate,
        work: Work,
    ) -> Result<Entry> {
        let notes = Notes::default();
        let proofs = Proofs::open(&self.confirm_death, client, work)?;
        let place = proofs.place();
        let lock = self
            .lock
            .open_at(client.clone(), namespace, name, labels, place.as_ref())?;
        let lock = ObservedLock::new(lock, notes.clone(), gate.clone());
        let builder = Elector::builder(std::sync::Arc::new(lock)).client(client.clone());
        let builder = proofs.confirm(self.timed(builder));
        let builder = builder.identity(self.identity()).name(name);
        Ok(Entry { builder, notes })
    }

    /// Returns lease duration, renew deadline and retry period, as far as flags give them.
    fn durations(&self) -> [Option<Duration>; 3] {
        let part = |divisor: u32| self.ttl.map(|ttl| ttl / divisor);
        [
            self.lease_duration.or(part(1)),
            self.renew_deadline.or(part(2)),
            self.retry_period.or(part(4)),
        ]
    }

    /// Returns whether any flag sets a duration.
    pub(crate) fn has_durations(&self) -> bool {
        self.durations().iter().any(Option::is_some)
    }

    /// Validates the durations before anything is started or requested.
    pub(crate) fn check(&self) -> Result<Timing> {
        let [lease, renew, retry] = self.durations();
        let mut timing = Timing::builder().client_go_compat(self.client_go_compat);
        if let Some(lease) = lease {
            timing = timing.lease_duration(lease);
        }
        if let Some(renew) = renew {
            timing = timing.renew_deadline(renew);
        }
        if let Some(retry) = retry {
            timing = timing.retry_period(retry);
        }
        if let Some(timeout) = self.request_timeout {
            timing = timing.request_timeout(timeout);
        }
        if let Some(delay) = self.lock_delay {
            timing = timing.lock_delay(delay);
        }
        timing.build().map_err(|error| {
            anyhow::anyhow!("{error}; change these durations, or set all of them with --ttl")
        })
    }

    /// Returns the permissions that `--confirm-death` needs, given the namespace of the lock.
    pub(crate) fn needs_of_proofs(&self, namespace: &str) -> Needs {
        let pods = pod_namespace().unwrap_or_else(|| namespace.to_owned());
        death::needs(&self.confirm_death, &pods)
    }

    fn timed(&self, mut builder: Builder) -> Builder {
        let [lease, renew, retry] = self.durations();
        builder = builder.client_go_compat(self.client_go_compat);
        if let Some(lease) = lease {
            builder = builder.lease_duration(lease);
        }
        if let Some(renew) = renew {
            builder = builder.renew_deadline(renew);
        }
        if let Some(retry) = retry {
            builder = builder.retry_period(retry);
        }
        if let Some(timeout) = self.request_timeout {
            builder = builder.request_timeout(timeout);
        }
        if let Some(delay) = self.lock_delay {
            builder = builder.lock_delay(delay);
        }
        builder
    }

    /// Returns the namespace, given that of the kubeconfig's context.
    pub(crate) fn namespace(&self, context: &str) -> String {
        self.election_namespace
            .clone()
            .or_else(pod_namespace)
            .unwrap_or_else(|| context.to_owned())
    }

    /// Returns the given identity, otherwise the pod or host name with a random part, because two processes must not
    /// share an identity.
    fn identity(&self) -> String {
        let random = || match variable("POD_NAME") {
            None => identity::host_uuid(),
            Some(pod) => {
                let uuid = identity::host_uuid();
                let random = uuid.rsplit_once('_').map_or("", |(_, random)| random);
                format!("{pod}_{random}")
            }
        };
        self.id.clone().unwrap_or_else(random)
    }
}

/// Returns the namespace of the pod of this process.
pub(crate) fn pod_namespace() -> Option<String> {
    let file = || std::fs::read_to_string(SERVICE_ACCOUNT_NAMESPACE).ok();
    variable("POD_NAMESPACE").or_else(|| file().map(|text| text.trim().to_owned()))
}

/// Returns the name of the pod of this process. It is the host name unless that was changed.
pub(crate) fn pod_name() -> String {
    let host = || {
        let system = rustix::system::uname();
        system.nodename().to_string_lossy().into_owned()
    };
    variable("POD_NAME").unwrap_or_else(host)
}

/// Returns an environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// An API server that was found.
pub(crate) struct Connected {
    pub(crate) client: Client,
    /// The namespace of the kubeconfig's context.
    pub(crate) namespace: String,
    /// Address of the server, for display.
    pub(crate) server: String,
    /// Flags with which another process finds the server.
    pub(crate) way: Connect,
}

/// Connects to the API server. Finding it, and programs that fetch credentials, may hang; a signal ends that
/// immediately.
pub(crate) async fn connect(
    connect: &Connect,
    signals: &mut Signals,
) -> Result<Result<Connected, Signal>> {
    let connected = async {
        let (config, way) = connect.config_and_way().await?;
        let namespace = config.default_namespace.clone();
        let server = config.cluster_url.to_string();
        let plugin = config.auth_info.exec.is_some();
        let client = connect::electing(config).await?;
        if plugin {
            tokio::spawn(keep_credentials(client.clone()));
        }
        anyhow::Ok(Connected {
            client,
            namespace,
            server,
            way,
        })
    };
    tokio::select! {
        connected = connected => connected.map(Ok),
        signal = signals.end() => Ok(Err(signal)),
    }
}

/// Keeps credentials fresh. A plugin that is slower than the timeout of a renewal would be started again by every
/// attempt and never complete. This request waits for it without a limit, and the renewals use the result.
async fn keep_credentials(client: Client) {
    loop {
        tokio::time::sleep(KEEP_CREDENTIALS).await;
        let request = http::Request::get("/version").body(kube::client::Body::empty());
        if let Ok(request) = request {
            let _ = client.send(request).await;
        }
    }
}
