//! Start and stop order of a manager.
//!
//! ```text
//!  start   listeners -> hooks and gate -> caches filled -> every, leader groups, shards -> ready
//!  stop    not ready -> leader groups, shards (released) -> every -> caches -> listeners
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, Config};
use prometheus_client::registry::Registry;
use tenure::{Elector, Handle};
use tenure_host::seats::Seats;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::builder::Builder;
use crate::cache::Source;
use crate::error::Error;
use crate::group::{Group, GroupHandle, Stops};
use crate::handle::ManagerHandle;
use crate::health::Checks;
use crate::hooks::{self, Calling, Hook};
use crate::http::{self, Site};
use crate::metrics::Metrics;
use crate::ready::{Gate, Readiness};
use crate::scope::Scope;
use crate::shard::Shards;
use crate::shard::driver::ShardGroup;
use crate::tasks::{Context, Roster, Running, Tasks, after};

/// Runs controllers; see the crate for an example.
#[must_use = "nothing happens until it is run"]
pub struct Manager {
    pub(crate) handle: ManagerHandle,
    pub(crate) config: Config,
    pub(crate) client: Client,
    pub(crate) hooks: Vec<Hook>,
    pub(crate) hook_limit: Duration,
    pub(crate) gate: Option<Gate>,
    pub(crate) sources: Vec<Source>,
    pub(crate) cache_limit: Duration,
    pub(crate) led: Vec<Led>,
    pub(crate) shards: Vec<ShardGroup>,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) probes: Option<SocketAddr>,
    pub(crate) metrics_address: Option<SocketAddr>,
    pub(crate) healthz: Arc<Checks>,
    pub(crate) readyz: Arc<Checks>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) metrics: Metrics,
    pub(crate) ready: watch::Sender<bool>,
    pub(crate) bound: watch::Sender<Vec<SocketAddr>>,
}

/// A leader group that has not been started.
pub(crate) struct Led {
    pub(crate) group: Group,
    pub(crate) elector: Option<Elector>,
    pub(crate) election: Option<Handle>,
    /// The group campaigns only after the work of this other group has been started.
    pub(crate) after: Option<String>,
}

impl Led {
    pub(crate) fn handle(&self) -> GroupHandle {
        GroupHandle {
            name: self.group.name.clone(),
            election: self.election.clone(),
            started: self.group.started.subscribe(),
        }
    }

    /// Returns the name and the runnables of the group.
    pub(crate) fn roster(&self) -> (String, Roster) {
        (self.group.name.to_string(), self.group.roster.clone())
    }
}

impl Manager {
    /// Configures a manager for the cluster of this configuration.
    pub fn builder(config: Config) -> Builder {
        Builder::new(config)
    }

    /// Returns a client of the cluster, for controllers. The elections use separate connections.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns a handle to query the manager and to add runnables while it runs.
    pub fn handle(&self) -> ManagerHandle {
        self.handle.clone()
    }

    /// Returns the handle of a leader group.
    pub fn group(&self, name: &str) -> Option<GroupHandle> {
        let led = self.led.iter().find(|led| &*led.group.name == name)?;
        Some(led.handle())
    }

    /// Returns the handle of a shard group.
    pub fn shards(&self, name: &str) -> Option<Shards> {
        let group = self.shards.iter().find(|group| &*group.name == name)?;
        Some(group.shards.clone())
    }

    /// Returns whether everything has been started and nothing is stopping, as reported by `/readyz`.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Returns the addresses of the listeners once they are open: probes first, then metrics.
    pub fn addresses(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.bound.subscribe()
    }

    /// Starts everything in order, runs until `shutdown` completes or an error ends the manager, and stops everything
    /// in order. Returns when leader scopes have ended and their locks are released.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future stops everything in the background, in the same order.
    ///
    /// # Errors
    ///
    /// Returns the error that ended the manager, unless it was the shutdown. A program should exit with code 1 in that
    /// case.
    pub async fn run(self, shutdown: impl Future) -> Result<(), Error> {
        let (fatal, fatals) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        let _stop_when_dropped = stop.clone().drop_guard();
        let context = Context {
            metrics: self.metrics.clone(),
            fatal,
            running: self.handle.inner.running.clone(),
        };
        let handle = self.handle.clone();
        let started = self.start(context, fatals);
        let mut shutdown = pin!(shutdown);
        let whole = started.await.inspect_err(|_| handle.close())?;
        // Run in a separate task, so that dropping this future does not interrupt anything.
        let mut whole = tokio::spawn(whole.run(stop.clone()));
        tokio::select! {
            biased;
            ended = &mut whole => return flatten(ended),
            _ = shutdown.as_mut() => stop.cancel(),
        }
        flatten(whole.await)
    }

    /// Runs until SIGTERM or SIGINT. A second signal ends the process immediately with code 1, and so does work that
    /// cannot be stopped.
    ///
    /// # Errors
    ///
    /// Same as for [`run`](Self::run).
    pub async fn run_until_signal(self) -> Result<(), Error> {
        let asked = crate::signals::shutdown().map_err(Error::Signals)?;
        let handle = self.handle();
        let result = self.run(asked).await;
        crate::signals::exit_if_stuck(&handle, &result);
        result
    }

    async fn start(
        self,
        context: Context,
        fatals: mpsc::UnboundedReceiver<Error>,
    ) -> Result<Whole, Error> {
        let http_stop = CancellationToken::new();
        let mut listeners = JoinSet::new();
        let mut addresses = Vec::new();
        let seats = Seats::new();
        for (address, site) in self.sites() {
            let listener = http::bind(address).await?;
            addresses.extend(listener.local_addr());
            let (seats, stop) = (seats.clone(), http_stop.clone());
            listeners.spawn(http::serve(listener, site, seats, stop));
        }
        self.bound.send_replace(addresses);
        Ok(Whole {
            manager: self,
            context,
            fatals,
            listeners,
            http_stop,
        })
    }

    /// Returns the content of each address.
    fn sites(&self) -> Vec<(SocketAddr, Site)> {
        let site = |probes, metrics| Site {
            healthz: self.healthz.clone(),
            readyz: self.readyz.clone(),
            registry: self.registry.clone(),
            probes,
            metrics,
        };
        match (self.probes, self.metrics_address) {
            (Some(a), Some(b)) if a == b && a.port() != 0 => vec![(a, site(true, true))],
            (probes, metrics) => {
                let probes = probes.map(|address| (address, site(true, false)));
                let metrics = metrics.map(|address| (address, site(false, true)));
                probes.into_iter().chain(metrics).collect()
            }
        }
    }
}

fn flatten(ended: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    match ended {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down.
        Err(_) => Ok(()),
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<&str> = self.led.iter().map(|led| &*led.group.name).collect();
        f.debug_struct("Manager")
            .field("groups", &groups)
            .finish_non_exhaustive()
    }
}

/// A manager whose listeners are open.
struct Whole {
    manager: Manager,
    context: Context,
    fatals: mpsc::UnboundedReceiver<Error>,
    listeners: JoinSet<()>,
    http_stop: CancellationToken,
}

/// The running work, in the order in which they are stopped.
struct RunningWork {
    leaders: JoinSet<()>,
    leader_stops: Stops,
    every: Tasks,
    every_stop: CancellationToken,
    caches: JoinSet<()>,
    caches_stop: CancellationToken,
}

impl Whole {
    async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut caches = JoinSet::new();
        let caches_stop = CancellationToken::new();
        let mut calling = Calling::default();
        let started = {
            let start_up = start_up(&mut self.manager, &mut calling, &mut caches, &caches_stop);
            tokio::select! {
                biased;
                () = stop.cancelled() => None,
                started = start_up => Some(started),
            }
        };
        let hooks = calling.end().await;
        if let Err(error) = &hooks {
            self.manager.handle.note_stuck(error);
        }
        let result = match started {
            // A shutdown was requested before anything ran.
            None => hooks,
            Some(Err(error)) => Err(error),
            Some(Ok(())) => {
                let mut work = self.go(caches, caches_stop.clone());
                let first = tokio::select! {
                    biased;
                    () = stop.cancelled() => Ok(()),
                    Some(error) = self.fatals.recv() => Err(error),
                    () = work.every.keep_up() => Ok(()),
                };
                self.manager.handle.close();
                if let Err(error) = &first {
                    tracing::error!(%error, "stopping the manager");
                }
                self.manager.ready.send_replace(false);
                let (limit, running) = (self.manager.shutdown_timeout, &self.context.running);
                let stopped = work.stop(limit, running).await;
                if let Err(error) = &stopped {
                    tracing::error!(%error, "the manager did not stop in time");
                    self.manager.handle.note_stuck(error);
                }
                // The reason for the stop is more useful than errors during the stop.
                first.and(stopped)
            }
        };
        self.manager.handle.close();
        caches_stop.cancel();
        self.http_stop.cancel();
        while self.listeners.join_next().await.is_some() {}
        result
    }

    /// Starts all work.
    fn go(&mut self, caches: JoinSet<()>, caches_stop: CancellationToken) -> RunningWork {
        let manager = &mut self.manager;
        let every_stop = CancellationToken::new();
        let scope = Scope::new("every".into(), every_stop.clone(), None, None);
        let every = Tasks::start(
            &manager.handle.inner.every,
            scope,
            &Running::default(),
            &self.context,
        );
        let leader_stops = Stops {
            soft: CancellationToken::new(),
            hard: CancellationToken::new(),
        };
        let handles: Vec<GroupHandle> = manager.led.iter().map(Led::handle).collect();
        let mut leaders = JoinSet::new();
        for led in std::mem::take(&mut manager.led) {
            let after = led.after.as_ref();
            let after = after.and_then(|name| handles.iter().find(|h| &*h.name == name).cloned());
            leaders.spawn(lead(led, after, leader_stops.clone(), self.context.clone()));
        }
        for group in std::mem::take(&mut manager.shards) {
            leaders.spawn(group.run(leader_stops.clone(), self.context.clone()));
        }
        manager.ready.send_replace(true);
        tracing::info!("started");
        RunningWork {
            leaders,
            leader_stops,
            every,
            every_stop,
            caches,
            caches_stop,
        }
    }
}

/// Runs the hooks, the gate and the caches.
async fn start_up(
    manager: &mut Manager,
    calling: &mut Calling,
    caches: &mut JoinSet<()>,
    caches_stop: &CancellationToken,
) -> Result<(), Error> {
    let (tell, ready) = watch::channel(Readiness::Waiting);
    let gate = async {
        match manager.gate {
            Some(gate) => gate.wait(&manager.config, &tell).await,
            None => {
                tell.send_replace(Readiness::Ready);
                Ok(())
            }
        }
    };
    let hooks = std::mem::take(&mut manager.hooks);
    let hooks = hooks::run(hooks, calling, &manager.client, &ready, manager.hook_limit);
    tokio::try_join!(gate, hooks)?;

    let mut syncs = Vec::new();
    for source in std::mem::take(&mut manager.sources) {
        let (run, synced) = source.split(manager.cache_limit);
        caches.spawn(run(caches_stop.clone()));
        syncs.push(synced);
    }
    futures_util::future::try_join_all(syncs).await?;
    Ok(())
}

/// Runs one leader group.
async fn lead(led: Led, after: Option<GroupHandle>, stops: Stops, context: Context) {
    if let Some(after) = after {
        tokio::select! {
            () = stops.soft.cancelled() => return,
            running = after.running() => if !running { return },
        }
    }
    match led.elector {
        Some(elector) => led.group.run(elector, stops, context).await,
        None => led.group.run_without_election(stops, context).await,
    }
}

impl RunningWork {
    async fn stop(mut self, limit: Duration, running: &Running) -> Result<(), Error> {
        let end = after(limit);
        let mut names = Vec::new();
        self.leader_stops.soft.cancel();
        let leaders = async { while self.leaders.join_next().await.is_some() {} };
        if tokio::time::timeout_at(end, leaders).await.is_err() {
            let every = self.every.names();
            names = running.names();
            names.retain(|name| !every.contains(name));
            self.leader_stops.hard.cancel();
            while self.leaders.join_next().await.is_some() {}
        }
        self.every_stop.cancel();
        if tokio::time::timeout_at(end, self.every.ended())
            .await
            .is_err()
        {
            names.extend(self.every.names());
            self.every.abort().await;
        }
        self.caches_stop.cancel();
        while self.caches.join_next().await.is_some() {}
        if limit.is_zero() {
            // A zero timeout drops work immediately. Work that could not even be dropped is still listed here.
            let left = running.names();
            names.retain(|name| left.contains(name));
        }
        if names.is_empty() {
            Ok(())
        } else {
            Err(Error::ShutdownTimeout { limit, names })
        }
    }
}
