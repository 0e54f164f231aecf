//! Implements assignments: campaigns for the shards that this replica should own, and hands over those that it should
//! not own. Without elections there is only one replica, which owns all shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use tenure::clock::{Clock as _, SystemClock};
use tenure::{BuildError, Candidate, Elector, Event, Handle};
use tenure_core::LocalTime;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::agreement::{Gate, Refused, Standing};
use super::assign::assign;
use super::members::{GROUP_LABEL, Stale, View, agreement_lease, member_lease, shard_lease};
use super::{Shard, Shards};
use crate::error::Error;
use crate::group::{Group, GroupHandle, OnLoss, Stops};
use crate::tasks::{Context, Roster, Running};

/// Interval at which the clock is checked without events.
const TICK: Duration = Duration::from_millis(100);

/// Leases of dead members are deleted after this many lease durations.
const STALE_AFTER: u32 = 20;

/// Timeout for the deletion of a lease.
const CLEANING_TAKES: Duration = Duration::from_secs(2);

/// Creates an election with a lease of this name and with this label. The last argument is the running work of its
/// terms.
pub(crate) type Open =
    Arc<dyn Fn(&str, (&str, &str), &Running) -> Result<Elector, BuildError> + Send + Sync>;

/// A shard group of a manager.
pub(crate) struct ShardGroup {
    pub(crate) name: Arc<str>,
    pub(crate) of: u32,
    pub(crate) identity: String,
    pub(crate) roster: Roster,
    pub(crate) leases: Api<Lease>,
    pub(crate) open: Open,
    /// Whether there is only one replica, which owns every shard without a lease.
    pub(crate) alone: bool,
    /// Waits until replicas with another number of shards are gone, and changes the number.
    pub(crate) may_change: bool,
    /// Minimum time between two hand-overs.
    pub(crate) hand_over_every: Duration,
    pub(crate) shards: Shards,
}

impl ShardGroup {
    /// Validates the configuration before anything starts.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let fail = |cause: &str| {
            Err(Error::Shards {
                group: self.name.to_string(),
                cause: cause.to_owned(),
            })
        };
        if self.of == 0 || self.of > 10_000 {
            return fail("the number of shards must be from 1 to 10000");
        }
        if self.alone {
            return Ok(());
        }
        if self.name.len() > 63 {
            return fail("the name has more than 63 characters, the maximum of a label");
        }
        let shard = Shard {
            index: 0,
            of: self.of,
        };
        let group = self.name.to_string();
        let opened = self.open(&shard_lease(&self.name, shard), &Running::default());
        opened
            .map(|_| ())
            .map_err(|source| Error::Election { group, source })
    }

    fn open(&self, lease: &str, running: &Running) -> Result<Elector, BuildError> {
        (self.open)(lease, (GROUP_LABEL, &self.name), running)
    }

    /// Creates the group of one shard, and a handle of it.
    fn shard(
        &self,
        index: u32,
        running: Running,
        election: Option<Handle>,
        gate: Option<Arc<Gate>>,
    ) -> (Group, GroupHandle) {
        let started = watch::Sender::new(false);
        let handle = GroupHandle {
            name: self.name.clone(),
            election,
            started: started.subscribe(),
        };
        let of = self.of;
        let group = Group {
            name: self.name.clone(),
            shard: Some(Shard { index, of }),
            roster: self.roster.clone(),
            running,
            on_loss: OnLoss::Demote,
            tied: false,
            gate,
            started,
        };
        (group, handle)
    }

    /// Runs until it is stopped.
    pub(crate) async fn run(self, stops: Stops, context: Context) {
        if self.alone {
            self.own_all(stops, context).await;
        } else {
            self.take_part(stops, context).await;
        }
    }

    async fn own_all(self, stops: Stops, context: Context) {
        self.shards.sender().send_replace(Standing::Member);
        let mut set = JoinSet::new();
        for index in 0..self.of {
            let (group, handle) = self.shard(index, Running::default(), None, None);
            self.shards.lock().insert(index, handle);
            set.spawn(group.run_without_election(stops.clone(), context.clone()));
        }
        set.join_all().await;
        self.shards.lock().clear();
    }

    /// Waits until the group has this number of shards, joins it, and starts again if the number changes.
    async fn take_part(self, stops: Stops, context: Context) {
        let group = Arc::new(self);
        while !stops.soft.is_cancelled() {
            let member = member_lease(&group.name, &group.identity);
            let elector = match group.open(&member, &Running::default()) {
                Ok(elector) => elector,
                Err(source) => {
                    let group = group.name.to_string();
                    return context.fail(Error::Election { group, source });
                }
            };
            let standing = group.shards.sender().clone();
            standing.send_replace(Standing::Joining);
            let gate = Arc::new(Gate::new(
                group.leases.clone(),
                group.name.clone(),
                group.of,
                group.may_change,
                elector.timing(),
                standing,
            ));
            let joined = tokio::select! {
                biased;
                () = stops.soft.cancelled() => return,
                joined = gate.join() => joined,
            };
            if let Err(refused) = joined {
                return context.fail(group.refused(refused));
            }
            let present = Present {
                group: group.clone(),
                gate,
                member,
            };
            present.run(elector, &stops, &context).await;
        }
    }

    fn refused(&self, Refused { agreed }: Refused) -> Error {
        let (of, name) = (self.of, &self.name);
        let lease = agreement_lease(name);
        Error::Shards {
            group: name.to_string(),
            cause: format!(
                "the group has agreed on {agreed} shards, not {of} (Lease {lease}); give every replica {agreed} \
                 shards, or call change_shards({name:?}) on the builder to wait until the replicas with {agreed} \
                 are gone and change the number"
            ),
        }
    }
}

/// A replica that is a member of a group.
struct Present {
    group: Arc<ShardGroup>,
    gate: Arc<Gate>,
    /// Name of its own lease.
    member: String,
}

impl Present {
    /// Runs as a member until it is stopped or the group has another number of shards. Owns nothing afterwards.
    async fn run(self, elector: Elector, stops: &Stops, context: &Context) {
        let Self {
            group,
            gate,
            member,
        } = self;
        let timing = elector.timing();
        // A little more than two retry periods. After that, other replicas start to campaign for the shards of a silent
        // member. They can win them only when its leases expire.
        let late = timing.retry_period() * 2 + Duration::from_secs(1);
        let late = late.min(timing.lease());
        let stale_after = timing.lease() * STALE_AFTER;
        let membership = elector.handle();
        let candidate = Arc::new(tokio::sync::Mutex::new(elector.start()));
        let leave = CancellationToken::new();
        let present = tokio::spawn(be_present(candidate, leave.clone()));

        let agreement = agreement_lease(&group.name);
        let mut driver = Driver {
            view: View::new(&group.name, group.of),
            next_hand_over: SystemClock.now().local,
            running: BTreeMap::new(),
            set: JoinSet::new(),
            late,
            stops: stops.clone(),
            context: context.clone(),
            gate: gate.clone(),
            group,
        };
        let config =
            watcher::Config::default().labels(&format!("{GROUP_LABEL}={}", driver.group.name));
        let events = watcher(driver.group.leases.clone(), config).default_backoff();
        let mut events = std::pin::pin!(events);
        let mut cleaned = SystemClock.now().local;
        let mut tick = tokio::time::interval(TICK);
        let mut news = true;
        let mut due = None;
        let mut left = std::pin::pin!(gate.keep());
        while !stops.soft.is_cancelled() {
            if news && driver.view.is_synced() && membership.is_leading() {
                due = driver.reconcile();
            }
            let now = SystemClock.now().local;
            if now.since(cleaned) >= stale_after {
                cleaned = now;
                driver.clean(&member, stale_after).await;
            }
            news = tokio::select! {
                () = stops.soft.cancelled() => false,
                () = &mut left => {
                    let (group, shards) = (&*driver.group.name, driver.group.of);
                    tracing::warn!(group, shards, "the group uses another number of shards; leaving it");
                    break;
                }
                Some(event) = events.next() => match event {
                    Ok(event) => {
                        if tells_of(&event, &agreement) {
                            gate.note_change();
                        }
                        driver.view.apply(event, SystemClock.now().local)
                    }
                    Err(_) => false,
                },
                Some(ended) = driver.set.join_next() => {
                    driver.ended(ended.ok());
                    true
                }
                // Sleep exactly until the hand-over, because rounding up to a tick would add a delay for each of many
                // shards.
                () = sleep_until(due) => {
                    due = None;
                    true
                }
                _ = tick.tick() => true,
            };
        }
        // Leave first, so that the other replicas compute the new assignment and wait for the shards.
        leave.cancel();
        let _ = present.await;
        driver.finish().await;
        // If it is not deleted, other replicas delete it later.
        let parameters = DeleteParams::default();
        let removed = driver.group.leases.delete(&member, &parameters);
        let _ = tokio::time::timeout(CLEANING_TAKES, removed).await;
    }
}

/// Returns whether an event may concern the lease of this name. The end of a list does, because the list may not
/// contain the lease.
fn tells_of(event: &watcher::Event<Lease>, name: &str) -> bool {
    match event {
        watcher::Event::Apply(lease) | watcher::Event::Delete(lease) => {
            lease.metadata.name.as_deref() == Some(name)
        }
        watcher::Event::InitDone => true,
        watcher::Event::Init | watcher::Event::InitApply(_) => false,
    }
}

/// Sleeps until an instant; forever without one.
async fn sleep_until(at: Option<LocalTime>) {
    match at {
        Some(at) => SystemClock.sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Holds a member's lease until it should leave.
async fn be_present(candidate: Arc<tokio::sync::Mutex<Candidate>>, leave: CancellationToken) {
    let mut candidate = candidate.lock().await;
    let mut term = None;
    let mut left = false;
    loop {
        tokio::select! {
            event = candidate.next() => match event {
                Some(Event::Lead(next)) => term = Some(next),
                Some(Event::Stop(_)) => drop(term.take()),
                Some(Event::Finished) | None => return,
                Some(_) => {}
            },
            () = leave.cancelled(), if !left => {
                left = true;
                candidate.shutdown();
            }
        }
    }
}

struct Driver {
    group: Arc<ShardGroup>,
    gate: Arc<Gate>,
    view: View,
    next_hand_over: LocalTime,
    running: BTreeMap<u32, Candidacy>,
    set: JoinSet<u32>,
    late: Duration,
    stops: Stops,
    context: Context,
}

/// A shard that this replica campaigns for or owns.
struct Candidacy {
    handle: Handle,
    stop: CancellationToken,
}

impl Driver {
    /// Starts and ends candidacies. Returns when to run again without an event, if a shard waits to be handed over.
    fn reconcile(&mut self) -> Option<LocalTime> {
        let now = SystemClock.now().local;
        let me = self.group.identity.clone();
        let members = self.view.members(&me, now, self.late);
        let mut holders = self.view.holders();
        // The state of this replica's own candidacies is newer than that from the watch.
        for (shard, candidacy) in &self.running {
            let place = usize::try_from(*shard).unwrap_or_default();
            if candidacy.handle.is_leading() {
                holders[place] = Some(&me);
            }
        }
        let targets = assign(&members, &holders);
        let mine: Vec<bool> = targets
            .into_iter()
            .map(|target| target.is_some_and(|member| members[member] == me))
            .collect();
        let mut waits = false;
        for (index, mine) in (0..self.group.of).zip(mine) {
            match (mine, self.running.get(&index)) {
                (true, None) => self.campaign(index),
                (false, Some(candidacy)) if !candidacy.stop.is_cancelled() => {
                    // A candidacy without a term has nothing to hand over.
                    let owns = candidacy.handle.tenure().is_some();
                    if owns && now < self.next_hand_over {
                        waits = true;
                        continue;
                    }
                    if owns {
                        self.next_hand_over = now + self.group.hand_over_every;
                    }
                    candidacy.stop.cancel();
                }
                _ => {}
            }
        }
        waits.then_some(self.next_hand_over)
    }

    fn campaign(&mut self, index: u32) {
        let of = self.group.of;
        let running = Running::default();
        let lease = shard_lease(&self.group.name, Shard { index, of });
        let elector = match self.group.open(&lease, &running) {
            Ok(elector) => elector,
            Err(source) => {
                let group = self.group.name.to_string();
                return self.context.fail(Error::Election { group, source });
            }
        };
        let handle = elector.handle();
        let (group, seen) = self.group.shard(
            index,
            running,
            Some(handle.clone()),
            Some(self.gate.clone()),
        );
        let stop = CancellationToken::new();
        let stops = Stops {
            soft: stop.clone(),
            hard: self.stops.hard.clone(),
        };
        let work = group.run(elector, stops, self.context.clone());
        self.set.spawn(async move {
            work.await;
            index
        });
        self.group.shards.lock().insert(index, seen);
        self.running.insert(index, Candidacy { handle, stop });
    }

    fn ended(&mut self, shard: Option<u32>) {
        let Some(shard) = shard else { return };
        self.running.remove(&shard);
        self.group.shards.lock().remove(&shard);
    }

    async fn clean(&self, own: &str, after: Duration) {
        for Stale { name, uid, version } in self.view.stale(SystemClock.now().local, after) {
            if name == own {
                continue;
            }
            let unchanged = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: Some(uid),
                    resource_version: Some(version),
                }),
                ..DeleteParams::default()
            };
            let removed = self.group.leases.delete(&name, &unchanged);
            if let Ok(Err(error)) = tokio::time::timeout(CLEANING_TAKES, removed).await {
                tracing::debug!(
                    name,
                    error = tenure::plain(&error),
                    "cannot delete the lease of a dead member"
                );
            }
        }
    }

    async fn finish(&mut self) {
        for candidacy in self.running.values() {
            candidacy.stop.cancel();
        }
        while let Some(ended) = self.set.join_next().await {
            self.ended(ended.ok());
        }
    }
}
