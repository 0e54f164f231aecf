//! The agreement of a group on its number of shards: one Lease of its own, which nobody holds.
//!
//! What it means is decided in [`tenure::core::shards`]; here are the requests. A replica waits here until the
//! group is open for its number, confirms each shard that it wins, and leaves when the group has another number.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, ResourceExt as _};
use tenure::clock::{Clock as _, SystemClock};
use tenure::core::record::MAX_LEASE;
use tenure::core::shards::{Agreement, Decision, Joining, Listed, Obstacle, Rules};
use tenure::core::{LocalTime, ResourceVersion, Timing, Version};
use tokio::sync::{Mutex, Notify, watch};

use super::members::{GROUP_LABEL, agreement_lease, of_shard_lease};

/// The annotation with the number of shards.
const SHARDS: &str = "tenure.dev/shards";

/// The annotation with the number that the group is open for.
const OPEN: &str = "tenure.dev/shards-open";

/// One request takes at most so long.
const REQUEST_TAKES: Duration = Duration::from_secs(10);

/// How often a replica that waits says so in its log.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// So many leases are listed once per retry period; more are listed less often.
const LIST_AT_EASE: usize = 1_000;

/// Where a replica stands in a shard group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It has not started, or asks for the number of shards that the group has agreed on.
    #[default]
    Joining,
    /// It waits until replicas with another number of shards are gone.
    Waiting {
        /// Its own number of shards.
        shards: u32,
        /// The number that the group has agreed on, if there is an agreement.
        agreed: Option<u32>,
        /// How many shards of another number may still have an owner.
        held: usize,
        /// How many replicas take part.
        replicas: usize,
    },
    /// It takes part, and may own shards.
    Member,
}

impl Standing {
    /// What `/readyz` says about it; nothing for a member.
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

/// Why a replica does not take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) agreed: u32,
}

/// The agreement of one group, as one replica uses it.
pub(crate) struct Gate {
    leases: Api<Lease>,
    group: Arc<str>,
    shards: u32,
    lease: Duration,
    retry: Duration,
    joining: Mutex<Joining>,
    /// When the last read was sent that showed the group open for this replica's number.
    confirmed: Mutex<Option<LocalTime>>,
    /// The agreement may have changed.
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
    /// The group has another number, and this replica may not change it.
    ///
    /// # Cancel safety
    /// A write that was under way is applied or not; the next call goes on from there.
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
                "waiting until replicas with another number of shards are gone"
            );
        }
    }

    /// Waits until the group is seen open for this number of shards by a read that is sent after this call.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn confirm(&self) {
        let called = SystemClock.now().local;
        let mut pause = Pause::new(self.retry, self.lease);
        loop {
            // Whoever waits here shares the read of another that was sent after its own call.
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
                // It is gone or of another number; the one that keeps it acts on that.
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

    /// The watch has shown a change of the agreement.
    pub(super) fn note_change(&self) {
        self.changed.notify_one();
    }

    /// Keeps the agreement while this replica takes part, and completes when the replica has to leave. An agreement
    /// that somebody deleted is written again.
    pub(super) async fn keep(&self) {
        loop {
            // A watch that fell silent delays this, but not for ever.
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
                            "the agreement on the number of shards is gone or not open; writing it again"
                        );
                        if let Err(error) = self.step().await {
                            tracing::debug!(group = &*self.group, %error, "agreement not written");
                        }
                    }
                    Err(error) => {
                        tracing::debug!(group = &*self.group, %error, "agreement not read");
                    }
                }
                pause.sleep().await;
            }
        }
    }

    /// Reads, decides, and writes what was decided. Also how many leases there are.
    async fn step(&self) -> Result<(Decision, usize), RequestFailed> {
        // The list comes after the read: see `tenure::core::shards`.
        let agreed = self.read().await?;
        // The usual case needs no list, and replicas that start together join together.
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

    /// Writes this replica's number over a version, or creates the object. A conflict is left to the next read.
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
                tracing::info!(group, shards, open = open.is_some(), "wrote the agreement");
                Ok(())
            }
            Err(RequestFailed::Answer(kube::Error::Api(status)))
                if matches!(status.code, 404 | 409) =>
            {
                tracing::debug!(group = &*self.group, "the agreement has changed");
                // Two replicas that collide once do not collide for ever.
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

/// Why a request brought nothing.
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

/// A pause that doubles, up to a limit.
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

/// A lease of a shard or of a replica; nothing for any other.
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
