//! Configuration of a manager.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::{Api, Config};
use prometheus_client::registry::Registry;
use tenure::{Elector, Hub, LockKind};
use tokio::sync::watch;

use crate::cache::{Cache, Cached, Source};
use crate::elections::{Elections, Tune, election_check, leader_check};
use crate::error::Error;
use crate::group::{Group, GroupHandle, OnLoss};
use crate::handle::{Inner, ManagerHandle, Open as Additions};
use crate::health::{Check, Checks};
use crate::hooks::{Hook, Startup};
use crate::manager::{Led, Manager};
use crate::metrics::Metrics;
use crate::migration::{LeaderMigration, Placement};
use crate::ready::Gate;
use crate::runnable::{Outcome, Runnable};
use crate::shard::Shards;
use crate::shard::driver::{Open, ShardGroup};
use crate::tasks::{Roster, Running};
use crate::warm::Warm;

/// Default time limit of a startup hook.
const HOOK_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Default time limit of the first lists of caches; controller-runtime's value.
const CACHE_LIMIT: Duration = Duration::from_secs(120);

/// Default time limit of a shutdown; controller-runtime's value.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Collects the parts of a manager; [`build`](Self::build) validates them.
#[must_use = "call build"]
pub struct Builder {
    config: Config,
    lock_config: Option<Config>,
    namespace: Option<String>,
    identity: Option<String>,
    kind: LockKind,
    tune: Option<Tune>,
    hooks: Vec<Hook>,
    hook_limit: Duration,
    gate: Option<Gate>,
    sources: Vec<Source>,
    cache_limit: Duration,
    every: Vec<Runnable>,
    leaders: Vec<(String, Runnable)>,
    shards: BTreeMap<String, (u32, Vec<Runnable>)>,
    changes: BTreeSet<String>,
    hand_over_every: Duration,
    migration: Option<(LeaderMigration, String)>,
    no_leader_elect: bool,
    on_loss: OnLoss,
    shutdown_timeout: Duration,
    probes: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
    healthz: Checks,
    readyz: Checks,
    ready_when_leading: Vec<String>,
    registry: Registry,
    metrics: Metrics,
}

impl Builder {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            lock_config: None,
            namespace: None,
            identity: None,
            kind: LockKind::Leases,
            tune: None,
            hooks: Vec::new(),
            hook_limit: HOOK_LIMIT,
            gate: None,
            sources: Vec::new(),
            cache_limit: CACHE_LIMIT,
            every: Vec::new(),
            leaders: Vec::new(),
            shards: BTreeMap::new(),
            changes: BTreeSet::new(),
            hand_over_every: Duration::from_secs(1),
            migration: None,
            no_leader_elect: false,
            on_loss: OnLoss::default(),
            shutdown_timeout: SHUTDOWN_TIMEOUT,
            probes: None,
            metrics_address: None,
            healthz: Checks::default(),
            readyz: Checks::default(),
            ready_when_leading: Vec::new(),
            registry: Registry::default(),
            metrics: Metrics::default(),
        }
    }

    /// Adds a hook that runs before controllers start. Hooks run in the order in which they were added. A hook reports
    /// completion with [`Startup::done`].
    pub fn on_startup<F, W>(mut self, name: &str, hook: F) -> Self
    where
        F: FnOnce(Startup) -> W + Send + 'static,
        W: Future + Send + 'static,
        W::Output: Outcome,
    {
        self.hooks.push(Hook::new(name, hook));
        self
    }

    /// Sets the time limit of each hook; 15 minutes by default. On a runtime with several threads the limit applies
    /// even if the hook blocks its thread.
    pub fn hook_timeout(mut self, limit: Duration) -> Self {
        self.hook_limit = limit;
        self
    }

    /// Starts controllers only when the API server is ready: `gate(api_ready())`.
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gate = Some(gate);
        self
    }

    /// Adds a cache on every replica. It is filled before anything runs.
    pub fn cache<K: Cached>(mut self, cache: Cache<K>) -> Self {
        self.sources.push(cache.into_source());
        self
    }

    /// Sets the time limit for filling the caches; 2 minutes by default.
    pub fn cache_timeout(mut self, limit: Duration) -> Self {
        self.cache_limit = limit;
        self
    }

    /// Adds a runnable that runs on every replica.
    pub fn every(mut self, runnable: Runnable) -> Self {
        self.every.push(runnable);
        self
    }

    /// Adds a runnable that runs on the leader of a group. Each group has its own lock, named after the group.
    pub fn leader(mut self, group: &str, runnable: Runnable) -> Self {
        self.leaders.push((group.to_owned(), runnable));
        self
    }

    /// Adds a controller that reconciles on the leader of a group. Its cache and queue are kept warm on every replica.
    pub fn warm<K: Cached>(mut self, group: &str, controller: Warm<K>) -> Self {
        let (source, runnable) = controller.split(&self.metrics);
        self.sources.push(source);
        self.leader(group, runnable)
    }

    /// Adds a runnable that runs once per shard, distributed over all replicas. [`Scope::owns`](crate::Scope::owns)
    /// returns whether an instance is responsible for a key. If a group gets two numbers of shards, the later one is
    /// used.
    ///
    /// All replicas of a group must use the same number of shards. The group stores it in the Lease `GROUP.shards`. A
    /// replica with another number ends with an error that names both, unless [`change_shards`](Self::change_shards) is
    /// set.
    pub fn shard(mut self, group: &str, shards: u32, runnable: Runnable) -> Self {
        let entry = self.shards.entry(group.to_owned()).or_default();
        entry.0 = shards;
        entry.1.push(runnable);
        self
    }

    /// Allows this replica to change the number of shards of a group, for a rolling update. A replica whose number
    /// differs from the group's first waits until no replica with the old number is a member. It also waits until no
    /// shard of the old number can have an owner. Then it changes the number and starts. It reports the wait in the
    /// log, in [`Shards::standing`] and in `/readyz/shards-GROUP`. It is ready while it waits, because a rolling update
    /// that waited for it would never end the old replicas.
    pub fn change_shards(mut self, group: &str) -> Self {
        self.changes.insert(group.to_owned());
        self
    }

    /// Sets the minimum time between hand-overs of a replica that owns too many shards; a second by default.
    pub fn hand_over_every(mut self, pause: Duration) -> Self {
        self.hand_over_every = pause;
        self
    }

    /// Moves controllers between this program, called `component` in the configuration, and another one. A controller
    /// that belongs to another program is not run. Because two locks guard one set of controllers, a term of either
    /// lock that ends by an order or by a loss ends the manager. [`on_loss`](Self::on_loss) has no effect on that.
    pub fn leader_migration(mut self, migration: LeaderMigration, component: &str) -> Self {
        self.migration = Some((migration, component.to_owned()));
        self
    }

    /// Runs the leader scopes without an election, and owns every shard. Use it only if there can be no second process,
    /// for example in the process that owns the store.
    pub fn no_leader_elect(mut self, yes: bool) -> Self {
        self.no_leader_elect = yes;
        self
    }

    /// Sets the reaction to a term that ends although this process continues; [`OnLoss::Exit`] by default.
    pub fn on_loss(mut self, on_loss: OnLoss) -> Self {
        self.on_loss = on_loss;
        self
    }

    /// Stores the locks in another API server than that of the controllers, or accesses them as another user.
    pub fn lock_config(mut self, config: Config) -> Self {
        self.lock_config = Some(config);
        self
    }

    /// Sets the namespace of the locks; by default the namespace of the pod, or of the kubeconfig's context.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// Sets the identity of this replica; by default its host name and a random part.
    pub fn identity(mut self, identity: &str) -> Self {
        self.identity = Some(identity.to_owned());
        self
    }

    /// Sets the kind of the locks; Leases by default. Shards always use Leases, because their replicas find each other
    /// by the labels of Leases.
    pub fn lock_kind(mut self, kind: LockKind) -> Self {
        self.kind = kind;
        self
    }

    /// Customizes the elections of all groups, for example their durations:
    /// `elections(|election| election.lease_duration(..))`.
    pub fn elections(
        mut self,
        tune: impl Fn(tenure::Builder) -> tenure::Builder + Send + Sync + 'static,
    ) -> Self {
        self.tune = Some(Arc::new(tune));
        self
    }

    /// Sets the time limit of a shutdown; 30 seconds by default. Zero drops all work immediately and does not count as
    /// an error, as in controller-runtime. Locks are still released after that.
    pub fn shutdown_timeout(mut self, limit: Duration) -> Self {
        self.shutdown_timeout = limit;
        self
    }

    /// Serves `/healthz` and `/readyz` on this address.
    pub fn probe_address(mut self, address: SocketAddr) -> Self {
        self.probes = Some(address);
        self
    }

    /// Serves `/metrics` on this address, which may be the same as that of the probes.
    pub fn metrics_address(mut self, address: SocketAddr) -> Self {
        self.metrics_address = Some(address);
        self
    }

    /// Adds a check of `/healthz`. It must fail if this process should be restarted.
    pub fn health_check(
        mut self,
        name: &str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.healthz.add(name, Arc::new(check));
        self
    }

    /// Adds a check of `/readyz`. It must fail while this process should receive no requests.
    pub fn ready_check(
        mut self,
        name: &str,
        check: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.readyz.add(name, Arc::new(check));
        self
    }

    /// Adds the check `leader-GROUP` to `/readyz`, which fails if this replica does not lead the group. Use it for a
    /// Service that sends requests only to the leader. Such a Deployment has one ready replica, so a rolling update
    /// needs a `maxUnavailable` of at least all replicas but one.
    pub fn ready_when_leading(mut self, group: &str) -> Self {
        self.ready_when_leading.push(group.to_owned());
        self
    }

    /// Adds custom metrics to the served ones.
    pub fn metrics(mut self, register: impl FnOnce(&mut Registry)) -> Self {
        register(&mut self.registry);
        self
    }

    /// Validates the configuration.
    ///
    /// # Errors
    ///
    /// Returns the first problem, with the name of the group or the runnable.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub fn build(mut self) -> Result<Manager, Error> {
        let names = self.names()?;
        let client = tenure::work_client(self.config.clone())?;
        let lock_config = self.lock_config.take();
        let lock_config = lock_config.unwrap_or_else(|| self.config.clone());
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| lock_config.default_namespace.clone());
        let lock_client = tenure::client(lock_config)?;
        let identity = self.identity.clone();
        let identity = identity.unwrap_or_else(tenure::identity::host_uuid);
        let elections = Elections {
            hub: Hub::new(lock_client.clone()),
            client: lock_client.clone(),
            kind: self.kind,
            namespace: namespace.clone(),
            identity: identity.clone(),
            tune: self.tune.clone(),
            metrics: self.metrics.elections.clone(),
        };

        let led = self.lead(&elections)?;
        let mut shards = Vec::new();
        if let Some(unknown) = self.changes.iter().find(|g| !self.shards.contains_key(*g)) {
            return Err(Error::Shards {
                group: unknown.clone(),
                cause: "change_shards needs a shard group, and this group has no shards".to_owned(),
            });
        }
        for (name, (of, runnables)) in std::mem::take(&mut self.shards) {
            let open: Open = {
                // Replicas find each other and the shards by the labels of Leases.
                let kind = LockKind::Leases;
                let elections = Elections {
                    kind,
                    ..elections.clone()
                };
                let name = name.clone();
                Arc::new(move |lease, (key, value), running| {
                    elections
                        .builder(&name, lease, running)
                        .label(key, value)
                        .name(lease)
                        .build()
                })
            };
            let group = ShardGroup {
                name: name.as_str().into(),
                of,
                identity: identity.clone(),
                roster: Roster::new(runnables),
                leases: Api::namespaced(lock_client.clone(), &namespace),
                open,
                alone: self.no_leader_elect,
                may_change: self.changes.contains(&name),
                hand_over_every: self.hand_over_every,
                shards: Shards::new(of),
            };
            group.check()?;
            let seen = group.shards.clone();
            let note = move || seen.standing().note();
            self.readyz
                .add_note(&format!("shards-{name}"), Arc::new(note));
            shards.push(group);
        }

        self.metrics.register(&mut self.registry);
        let handles: Vec<GroupHandle> = led.iter().map(Led::handle).collect();
        for name in &self.ready_when_leading {
            let group = handles.iter().find(|group| group.name() == name);
            let group = group.ok_or_else(|| Error::NoSuchGroup {
                group: name.clone(),
                groups: handles
                    .iter()
                    .map(|group| group.name().to_owned())
                    .collect(),
            })?;
            let check = leader_check(group.clone());
            self.readyz.add(&format!("leader-{name}"), check);
        }
        let sharded = shards.iter().map(|group| group.shards.clone()).collect();
        self.healthz
            .add("leaderElection", election_check(handles, sharded));
        let ready = watch::Sender::new(false);
        let started = ready.subscribe();
        let check: Check = Arc::new(move || match *started.borrow() {
            true => Ok(()),
            false => Err("not started, or stopping".to_owned()),
        });
        self.readyz.add("manager", check);
        let handle = ManagerHandle {
            inner: Arc::new(Inner {
                every: Roster::new(self.every),
                groups: led.iter().map(Led::roster).collect(),
                migration: self.migration,
                running: Running::default(),
                open: Mutex::new(Additions {
                    names,
                    stopped: false,
                    stuck: None,
                }),
            }),
        };
        Ok(Manager {
            handle,
            config: self.config,
            client,
            hooks: self.hooks,
            hook_limit: self.hook_limit,
            gate: self.gate,
            sources: self.sources,
            cache_limit: self.cache_limit,
            led,
            shards,
            shutdown_timeout: self.shutdown_timeout,
            probes: self.probes,
            metrics_address: self.metrics_address,
            healthz: Arc::new(self.healthz),
            readyz: Arc::new(self.readyz),
            registry: Arc::new(self.registry),
            metrics: self.metrics,
            ready,
            bound: watch::Sender::default(),
        })
    }

    /// Returns the names of all runnables, which must be unique.
    fn names(&self) -> Result<BTreeSet<String>, Error> {
        let every = self.every.iter();
        let leaders = self.leaders.iter().map(|(_, runnable)| runnable);
        let shards = self.shards.values().flat_map(|(_, runnables)| runnables);
        let mut seen = BTreeSet::new();
        for runnable in every.chain(leaders).chain(shards) {
            if !seen.insert(runnable.name().to_owned()) {
                return Err(Error::DuplicateName(runnable.name().to_owned()));
            }
        }
        Ok(seen)
    }

    /// Sorts leader runnables into groups, in the order in which the groups were first named.
    fn lead(&mut self, elections: &Elections) -> Result<Vec<Led>, Error> {
        let mut groups: Vec<(String, Option<String>, Vec<Runnable>)> = Vec::new();
        for (group, runnable) in std::mem::take(&mut self.leaders) {
            let (group, after) = match &self.migration {
                None => (group, None),
                Some((migration, component)) => match migration.place(runnable.name(), component) {
                    Placement::NonMigrated => (group, None),
                    Placement::Migrated => (migration.leader_name.clone(), Some(group)),
                    Placement::Unowned => {
                        tracing::info!(name = runnable.name(), "runs in another program");
                        continue;
                    }
                },
            };
            match groups.iter_mut().find(|(name, ..)| *name == group) {
                Some((_, _, runnables)) => runnables.push(runnable),
                None => groups.push((group, after, vec![runnable])),
            }
        }
        // With a migration, the main lock comes first even if all of its controllers have moved.
        let missing: Vec<String> = groups
            .iter()
            .filter_map(|(_, after, _)| after.clone())
            .filter(|after| groups.iter().all(|(name, ..)| name != after))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        groups.extend(missing.into_iter().map(|name| (name, None, Vec::new())));

        let mut led = Vec::new();
        for (name, after, runnables) in groups {
            let running = Running::default();
            let elector = if self.no_leader_elect {
                None
            } else {
                let built = elections.builder(&name, &name, &running).build();
                let group = name.clone();
                Some(built.map_err(|source| Error::Election { group, source })?)
            };
            let group = Group {
                name: name.as_str().into(),
                shard: None,
                roster: Roster::new(runnables),
                running,
                on_loss: self.on_loss,
                tied: self.migration.is_some(),
                gate: None,
                started: watch::Sender::new(false),
            };
            led.push(Led {
                election: elector.as_ref().map(Elector::handle),
                group,
                elector,
                after,
            });
        }
        Ok(led)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("every", &self.every)
            .field("leaders", &self.leaders)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}
