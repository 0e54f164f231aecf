//! The agreement of a group on its number of shards, stored in a dedicated Lease without a holder.
//!
//! [`tenure_core::shards`] makes the decisions; this module sends the requests. A replica waits here until the group is
//! open for its number, confirms each shard that it wins, and leaves when the group has another number.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt as _};
use tenure::clock::{Clock as _, SystemClock};
use tenure_core::record::MAX_LEASE;
use tenure_core::shards::{Agreement, Decision, Joining, Listed, Obstacle, Rules};
use tenure_core::{LocalTime, ResourceVersion, Timing, Version};
use tokio::sync::{Mutex, Notify, watch};

use super::members::{GROUP_LABEL, agreement_lease, of_shard_lease};

/// The annotation with the number of shards.
const SHARDS: &str = "tenure.dev/shards";

/// The annotation with the number that the group is open for.
const OPEN: &str = "tenure.dev/shards-open";

/// Timeout of one request.
const REQUEST_TAKES: Duration = Duration::from_secs(10);

/// Interval at which a waiting replica logs that it waits.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Number of leases that are listed once per retry period. A group with more leases lists them less often.
const LIST_AT_EASE: usize = 1_000;

/// State of a replica in a shard group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// The replica has not started, or is reading the number of shards that the group has agreed on.
    #[default]
    Joining,
    /// The replica waits until replicas with another number of shards are gone.
    Waiting {
        /// The number of shards of this replica.
        shards: u32,
        /// The number that the group has agreed on, if there is an agreement.
        agreed: Option<u32>,
        /// Number of shards that belong to another shard count and may still have an owner.
        held: usize,
        /// Number of replicas that are members.
        replicas: usize,
    },
    /// The replica is a member, and may own shards.
    Member,
}

impl Standing {
    /// Returns the text for `/readyz`; nothing for a member.
    pub(crate) fn note(self) -> Option<String> {
        (self != Self::Member).then(|| self.to_string())
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joining => f.write_str("joining"),
            Self::Member => f.write_str("member"),
            Self::Waiting {
                shards,
                agreed,
                held,
                replicas,
            } => {
                write!(f, "waiting to change the number of shards")?;
                if let Some(agreed) = agreed {
                    write!(f, " from {agreed}")?;
                }
                write!(f, " to {shards}: {held} shards held, {replicas} replicas")
            }
        }
    }
}

/// Reason why a replica cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) agreed: u32,
}

/// The agreement of one group, as used by one replica.
pub(crate) struct Gate {
    leases: Api<Lease>,
    group: Arc<str>,
    shards: u32,
    lease: Duration,
    retry: Duration,
    joining: Mutex<Joining>,
    /// Send time of the last read that showed the group open for this replica's number.
    confirmed: Mutex<Option<LocalTime>>,
    /// Notified when the agreement may have changed.
    changed: Notify,
    standing: watch::Sender<Standing>,
}

impl Gate {
    pub(super) fn new(
        leases: Api<Lease>,
        group: Arc<str>,
        shards: u32,
        may_change: bool,
        timing: &Timing,
        standing: watch::Sender<Standing>,
    ) -> Self {
        let lease = timing.lease();
        let joining = Joining::new(shards, may_change, lease, Rules::default());
        Self {
            leases,
            group,
            shards,
            lease,
            retry: timing.retry_period(),
            joining: Mutex::new(joining),
            confirmed: Mutex::default(),
            changed: Notify::new(),
            standing,
        }
    }

    /// Waits until the group is open for this number of shards.
    ///
    /// # Errors
    ///
    /// Fails if the group has another number and this replica may not change it.
    ///
    /// # Cancel safety
    ///
    /// A write in flight may or may not be applied. The next call continues from the resulting state.
    pub(super) async fn join(&self) -> Result<(), Refused> {
        let mut pause = Pause::new(self.retry, self.lease);
        let mut logged = None;
        loop {
            match self.step().await {
                Ok((Decision::Join, _)) => {
                    self.standing.send_replace(Standing::Member);
                    return Ok(());
                }
                Ok((Decision::Refuse(agreed), _)) => return Err(Refused { agreed }),
                Ok((Decision::Claim(_) | Decision::Open(_), _)) => pause.reset(),
                Ok((Decision::Wait(obstacle), listed)) => {
                    self.wait_for(&obstacle, &mut logged);
                    let pause = self.retry * u32::try_from(listed / LIST_AT_EASE + 1).unwrap_or(1);
                    tokio::time::sleep(pause.min(self.lease)).await;
                }
                Err(error) => {
                    let group = &*self.group;
                    tracing::warn!(group, %error, "cannot agree on the number of shards; retrying");
                    pause.sleep().await;
                }
            }
        }
    }

    fn wait_for(&self, obstacle: &Obstacle, logged: &mut Option<(Option<u32>, LocalTime)>) {
        let Obstacle {
            agreed,
            held,
            replicas,
        } = *obstacle;
        let shards = self.shards;
        self.standing.send_replace(Standing::Waiting {
            shards,
            agreed,
            held,
            replicas,
        });
        let now = SystemClock.now().local;
        let due = logged.is_none_or(|(before, at)| before != agreed || now.since(at) >= LOG_EVERY);
        if due {
            *logged = Some((agreed, now));
            tracing::info!(
                group = &*self.group,
                shards,
                agreed,
                held,
                replicas,
                "waiting until replicas with another number of shards have ended"
            );
        }
    }

    /// Waits until a read that is sent after this call shows the group open for this number of shards.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn confirm(&self) {
        let called = SystemClock.now().local;
        let mut pause = Pause::new(self.retry, self.lease);
        loop {
            // Concurrent callers share a read that was sent after their own call.
            let mut confirmed = self.confirmed.lock().await;
            if confirmed.is_some_and(|sent| sent > called) {
                return;
            }
            let sent = SystemClock.now().local;
            match self.read().await {
                Ok(agreed) if self.joining.lock().await.confirms(agreed.as_ref()) => {
                    *confirmed = Some(sent);
                    return;
                }
                // The agreement is missing or has another number; the task in `keep` handles that.
                Ok(_) => self.changed.notify_one(),
                Err(error) => {
                    let group = &*self.group;
                    tracing::debug!(group, %error, "cannot confirm the number of shards; retrying");
                }
            }
            drop(confirmed);
            pause.sleep().await;
        }
    }

    /// Records that the watch delivered a change of the agreement.
    pub(super) fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Maintains the agreement while this replica is a member, and completes when the replica has to leave. A deleted
    /// agreement is written again.
    pub(super) async fn keep(&self) {
        loop {
            // A watch without events delays the check, but not indefinitely.
            let _ = tokio::time::timeout(self.lease * 4, self.changed.notified()).await;
            let mut pause = Pause::new(self.retry, self.lease);
            loop {
                match self.read().await {
                    Ok(agreed) => {
                        let joining = self.joining.lock().await;
                        if joining.must_leave(agreed.as_ref()) {
                            return;
                        }
                        if joining.confirms(agreed.as_ref()) {
                            break;
                        }
                        drop(joining);
                        tracing::warn!(
                            group = &*self.group,
                            shards = self.shards,
                            "the agreement on the number of shards was deleted or closed; writing it again"
                        );
                        if let Err(error) = self.step().await {
                            tracing::debug!(group = &*self.group, %error, "cannot write the agreement on the number of shards");
                        }
                    }
                    Err(error) => {
                        tracing::debug!(group = &*self.group, %error, "cannot read the agreement on the number of shards");
                    }
                }
                pause.sleep().await;
            }
        }
    }

    /// Reads, decides, and writes the decision. Also returns the number of leases.
    async fn step(&self) -> Result<(Decision, usize), RequestFailed> {
        // The list must come after the read: see `tenure_core::shards`.
        let agreed = self.read().await?;
        // The usual case needs no list, so that replicas that start together join together.
        if self.joining.lock().await.confirms(agreed.as_ref()) {
            return Ok((Decision::Join, 0));
        }
        let asked = SystemClock.now().local;
        let selector = ListParams::default().labels(&format!("{GROUP_LABEL}={}", self.group));
        let list = in_time(self.leases.list(&selector)).await?;
        let answered = SystemClock.now().local;
        let leases: Vec<Listed> = list
            .items
            .iter()
            .filter_map(|lease| listed(&self.group, lease))
            .collect();
        let mut joining = self.joining.lock().await;
        let decision = joining.step(asked, answered, agreed.as_ref(), &leases);
        drop(joining);
        match &decision {
            Decision::Claim(version) => self.write(None, version.as_ref()).await?,
            Decision::Open(version) => self.write(Some(self.shards), Some(version)).await?,
            Decision::Join | Decision::Wait(_) | Decision::Refuse(_) => {}
        }
        Ok((decision, leases.len()))
    }

    async fn read(&self) -> Result<Option<Agreement>, RequestFailed> {
        let name = agreement_lease(&self.group);
        let lease = in_time(self.leases.get_opt(&name)).await?;
        Ok(lease.as_ref().map(agreement))
    }

    /// Replaces this version of the agreement by one with the number of this replica, or creates the object. A conflict
    /// is resolved after the next read.
    async fn write(
        &self,
        open: Option<u32>,
        version: Option<&Version>,
    ) -> Result<(), RequestFailed> {
        let name = agreement_lease(&self.group);
        let number = |number: u32| number.to_string();
        let mut annotations = BTreeMap::from([(SHARDS.to_owned(), number(self.shards))]);
        annotations.extend(open.map(|open| (OPEN.to_owned(), number(open))));
        let labels = BTreeMap::from([(GROUP_LABEL.to_owned(), self.group.to_string())]);
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                annotations: Some(annotations),
                labels: Some(labels),
                uid: version.map(|version| version.uid.to_string()),
                resource_version: version.map(|version| version.revision.to_string()),
                ..ObjectMeta::default()
            },
            spec: None,
        };
        let parameters = PostParams::default();
        let written = match version {
            None => in_time(self.leases.create(&parameters, &lease)).await,
            Some(_) => in_time(self.leases.replace(&name, &parameters, &lease)).await,
        };
        match written {
            Ok(_) => {
                let (group, shards) = (&*self.group, self.shards);
                tracing::info!(
                    group,
                    shards,
                    open = open.is_some(),
                    "wrote the agreement on the number of shards"
                );
                Ok(())
            }
            Err(RequestFailed::Answer(kube::Error::Api(status)))
                if matches!(status.code, 404 | 409) =>
            {
                tracing::debug!(
                    group = &*self.group,
                    "the agreement on the number of shards has changed"
                );
                // The offset keeps two replicas that collided once from colliding again.
                let spread = u32::from(std::process::id().to_le_bytes()[0]);
                tokio::time::sleep(self.retry * spread / 1_024).await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("group", &self.group)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
enum RequestFailed {
    #[error("no answer within {} s", REQUEST_TAKES.as_secs())]
    Timeout,
    #[error(transparent)]
    Answer(kube::Error),
}

async fn in_time<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestFailed> {
    let answer = tokio::time::timeout(REQUEST_TAKES, request).await;
    let answer = answer.map_err(|_| RequestFailed::Timeout)?;
    answer.map_err(RequestFailed::Answer)
}

/// A delay that doubles up to a limit.
struct Pause {
    first: Duration,
    next: Duration,
    limit: Duration,
}

impl Pause {
    fn new(first: Duration, limit: Duration) -> Self {
        Self {
            first,
            next: first,
            limit,
        }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }

    async fn sleep(&mut self) {
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(self.limit);
    }
}

fn agreement(lease: &Lease) -> Agreement {
    let number = |key| lease.annotations().get(key)?.parse().ok();
    Agreement {
        shards: number(SHARDS),
        open: number(OPEN),
        version: version(lease),
    }
}

fn version(lease: &Lease) -> Version {
    Version {
        uid: lease.uid().unwrap_or_default().into(),
        revision: ResourceVersion::new(lease.resource_version().unwrap_or_default()),
    }
}

/// Parses a lease of a shard or of a replica; nothing for any other.
fn listed(group: &str, lease: &Lease) -> Option<Listed> {
    let name = lease.name_any();
    let of = of_shard_lease(group, &name)?;
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let seconds = u64::try_from(seconds.unwrap_or_default()).unwrap_or_default();
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
    Some(Listed {
        name,
        of,
        held: holder.is_some_and(|holder| !holder.is_empty()),
        version: version(lease),
        duration: Duration::from_secs(seconds).min(MAX_LEASE),
    })
}
