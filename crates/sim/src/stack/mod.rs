//! The whole driver over a simulated network: `tenure::Elector` with its hub, timers, guards, the real lock and the
//! real watch, down to the HTTP requests.
//!
//! Time is tokio's paused time, so minutes take milliseconds. Every node has its own clock on top of it, with its own
//! rate. Requests of the driver's client go over a [`network::Wire`] to one [`server::Server`]. All randomness comes
//! from one seed, so a seed determines a run.
//!
//! S1 is checked with the real `is_leading()` every 500 ms and when a term begins. If people edit the lock, a
//! node that receives the edit must have stopped. S2 is checked with the tokens, S3 with a store that receives effects
//! of work, S4 and S5 for each write when it is sent, and L1 after the faults.

mod check;
mod clock;
mod nemesis;
mod network;
mod server;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::{Elector, Event, Handle, Hub, Overrun, Term};
use tenure_core::{LocalTime, Mutant, Timing};
use tenure_lock::{LockKind, ObjectName, Watch};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::caught::{caught, panicked};
use crate::fault::Fault;
use crate::invariants::s2_token_order::TokenOrder;
use crate::invariants::s3_effect_exclusion::FencedStore;
use crate::invariants::s5_no_foreign_writes::Sights;
use crate::invariants::{Invariant, Violation};
use crate::plan::nanos;
use crate::rng::Rng;
use crate::world::Report;
use clock::{NodeClock, pause};
use network::{End, Fate, Wire};
use server::{Answer, Author, Call, Server};

/// Name of every lock object. The elections of a run use different namespaces.
const NAME: &str = "stack";

/// Returns the namespace of an election.
fn namespace(election: usize) -> String {
    format!("ns-{election}")
}

/// Interval of additional guard checks. Guards become valid only when a term begins or is extended, which is checked
/// separately.
const LOOK: Duration = Duration::from_millis(500);

/// Maximum time to end a process whose work exceeded its deadline, in milliseconds. With the largest tolerated clock
/// errors, 56 ms of the margin are left.
const KILL_TAKES: u64 = 40;

/// Faults that affect requests. The first ones also affect reads.
const OF_REQUESTS: &[Fault] = &[
    Fault::RequestLost,
    Fault::AnswerLost,
    Fault::RequestLate,
    Fault::AnswerLate,
    Fault::ErrorNotApplied,
    Fault::Throttled,
    Fault::ErrorApplied,
    Fault::Duplicate,
    Fault::OwnConflict,
];
const OF_READS: usize = 6;

/// Maximum time for a driver to react to a message. No simulated time passes during computation.
const THOUGHT: Duration = Duration::from_millis(1);

/// Maximum rate error of clocks, in parts per thousand. 15 s / 10 s tolerates 20 %, but work has to end within the
/// margin, which tolerates 1.6 %.
const TOLERATED: u64 = 15;

/// Properties of a run.
#[derive(Clone, Debug)]
struct Plan {
    kind: LockKind,
    nodes: u64,
    /// Number of elections, in one hub of each process.
    elections: usize,
    timing: Timing,
    /// Maximum rate error of clocks, in parts per thousand.
    skew: u64,
    /// A seeded bug of every candidate.
    mutant: Option<Mutant>,
    /// Probability that a fault affects a request or event, in parts per million.
    faults: u64,
    /// People edit and delete the lock, so S1 is not guaranteed (A1).
    outsiders: bool,
    latency: Duration,
    horizon: Duration,
}

/// The elections of a run. A process participates in all of them with one hub, one client and one clock. It has the
/// same index among the nodes of each election.
#[derive(Debug)]
struct Fleet(Vec<Arc<World>>);

impl Fleet {
    fn is_broken(&self) -> bool {
        self.0.iter().any(|world| world.is_broken())
    }

    /// Ends a process and its work in every election. Returns false if it was already dead.
    fn kill(&self, node: usize) -> bool {
        let dead = self.0[0].lend().nodes[node].clock.is_dead();
        for world in &self.0 {
            world.lend().nodes[node].die();
        }
        !dead
    }
}

/// Shared state of one election.
#[derive(Debug)]
struct World {
    election: usize,
    plan: Plan,
    name: ObjectName,
    state: Mutex<State>,
    /// Wakes watchers in the order in which they registered; tokio's `watch` would use a random order.
    changed: Notify,
}

/// Mutable state.
#[derive(Debug)]
struct State {
    election: usize,
    plan: Plan,
    rng: Rng,
    started: Instant,
    server: Server,
    /// Connections of an earlier epoch are broken.
    epoch: u64,
    calm: bool,
    nodes: Vec<Node>,
    tokens: TokenOrder,
    store: FencedStore,
    report: Report,
    traced: bool,
}

/// One candidate's process.
#[derive(Debug)]
struct Node {
    clock: NodeClock,
    handle: Option<Handle>,
    requests_cut_until: Instant,
    answers_cut_until: Instant,
    sights: Sights,
    /// The term whose work still runs.
    works_for: Option<u64>,
    overran: bool,
    /// Whether the process was paused, so that it could not stop in time.
    was_paused: bool,
    /// Whether the candidate polls and does not watch.
    polls: bool,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, mutant: Option<Mutant>, traced: bool) -> Report {
    caught(|| simulate(seed, TOLERATED, mutant, traced)).unwrap_or_else(|text| Report {
        violation: Some(Violation {
            invariant: Invariant::Assertion,
            at: 0,
            text,
        }),
        ..Report::default()
    })
}

/// `skew` is the maximum rate error of the clocks, in parts per thousand.
fn simulate(seed: u64, skew: u64, mutant: Option<Mutant>, traced: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing");
    // Clear panics of another run on this thread.
    panicked();
    runtime.block_on(play(seed, skew, mutant, traced))
}

async fn play(seed: u64, skew: u64, mutant: Option<Mutant>, traced: bool) -> Report {
    let mut rng = Rng::new(seed.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x57AC);
    let plan = Plan::new(&mut rng, skew, mutant);
    let (nodes, horizon, lease) = (plan.nodes, plan.horizon, plan.timing.lease());
    let elections = (0..plan.elections).map(|election| {
        let rng = Rng::new(rng.bits());
        World::new(election, plan.clone(), rng, traced)
    });
    let fleet = Arc::new(Fleet(elections.collect()));
    for _ in 0..nodes {
        launch(&fleet);
    }
    let started = Instant::now();
    while started.elapsed() < horizon && !fleet.is_broken() {
        let world = rng.pick(&fleet.0).clone();
        nemesis::strike(&fleet, &world);
        let next = world.lend().next_strike() / fleet.0.len() as u32;
        let until = started.elapsed() + next;
        watch_over(&fleet, started, until.min(horizon)).await;
    }
    for world in &fleet.0 {
        world.lend().calm_down();
    }
    // By now a candidate leads, and it keeps leading as long as nothing happens.
    let settled = horizon + Duration::from_secs(150) + 4 * lease;
    watch_over(&fleet, started, settled).await;
    let leaders: Vec<_> = fleet.0.iter().map(|world| world.lend().leader()).collect();
    watch_over(&fleet, started, settled + Duration::from_secs(60)).await;
    let mut report = Report::default();
    for (world, leader) in fleet.0.iter().zip(leaders) {
        let mut state = world.lend();
        if leader.is_none() {
            let text = "nobody leads long after the faults".to_owned();
            state.violate(Invariant::L1, text);
        } else if leader != state.leader() {
            let text = format!("{leader:?} lost its term although nothing happened");
            state.violate(Invariant::L1, text);
        }
        state.report.totals.accepted = state.store.accepted;
        state.report.totals.refused = state.store.refused;
        add(&mut report, std::mem::take(&mut state.report));
    }
    report.totals.simulated = started.elapsed().as_nanos();
    // Every line begins with its time.
    report.trace.sort_by(|a, b| a[..12].cmp(&b[..12]));
    report
}

/// Adds the results of another election of the run.
fn add(report: &mut Report, other: Report) {
    report.totals.add(other.totals);
    report.hash = report.hash.rotate_left(7) ^ other.hash;
    report.violation = report.violation.take().or(other.violation);
    report.trace.extend(other.trace);
}

/// Advances time, and checks the guards.
async fn watch_over(fleet: &Fleet, started: Instant, until: Duration) {
    while started.elapsed() < until && !fleet.is_broken() {
        pause(LOOK.min(until - started.elapsed())).await;
        for world in &fleet.0 {
            world.lend().check_guards();
        }
        if let Some(text) = panicked() {
            fleet.0[0].lend().violate(Invariant::Assertion, text);
        }
    }
}

/// Starts a process with one hub for all its elections.
fn launch(fleet: &Arc<Fleet>) {
    let (node, clock) = fleet.0[0].lend().place();
    let wires: Vec<_> = (fleet.0.iter())
        .map(|world| Wire {
            world: world.clone(),
            node,
            clock: clock.clone(),
        })
        .collect();
    let client = network::client(wires);
    let hub = Hub::with_clock(Some(client.clone()), Arc::new(clock.clone()));
    for world in &fleet.0 {
        let (seed, work) = world.lend().admit(&clock);
        take_part(fleet, world, &hub, &client, (node, &clock), (seed, work));
    }
}

/// Starts a candidate of a process in one election.
fn take_part(
    fleet: &Arc<Fleet>,
    world: &Arc<World>,
    hub: &Hub,
    client: &kube::Client,
    (node, clock): (usize, &NodeClock),
    (seed, work): (u64, u64),
) {
    let (plan, kills) = (&world.plan, Mutex::new(Rng::new(work)));
    let (overran, others) = (world.clone(), Arc::downgrade(fleet));
    let elector = Elector::open(client.clone(), plan.kind, &namespace(world.election), NAME)
        .hub(hub)
        .identity(format!("n{node}"))
        .lease_duration(plan.timing.lease())
        .renew_deadline(plan.timing.renew_deadline())
        .retry_period(plan.timing.retry_period())
        .seed(seed)
        .on_overrun(Overrun::call(move |_| {
            overran.lend().nodes[node].overran = true;
            let takes = kills.lock().map_or(0, |mut rng| rng.below(KILL_TAKES));
            if let Some(fleet) = others.upgrade() {
                tokio::spawn(kill(fleet, overran.clone(), node, takes));
            }
        }))
        .build()
        .expect("the plan holds valid timings");
    let elector = match plan.mutant {
        Some(mutant) => elector.mutate(mutant),
        None => elector,
    };
    let mut candidate = elector.start();
    world.lend().nodes[node].handle = Some(candidate.handle());
    let (world, clock, mut rng) = (world.clone(), clock.clone(), Rng::new(work));
    tokio::spawn(async move {
        while let Some(event) = candidate.next().await {
            if let Event::Lead(term) = event {
                world.lend().begins(node, &term);
                let rng = Rng::new(rng.bits());
                tokio::spawn(labour(world.clone(), node, clock.clone(), term, rng));
            }
        }
    });
}

/// Ends the process because its work exceeded its deadline. The work continues until the process has ended.
async fn kill(fleet: Arc<Fleet>, world: Arc<World>, node: usize, takes: u64) {
    pause(Duration::from_millis(takes)).await;
    if fleet.kill(node) {
        world.lend().count(Fault::SlowKill);
        launch(&fleet);
    }
}

/// Represents guarded work that runs until this value is dropped.
struct Working {
    world: Arc<World>,
    node: usize,
    token: u64,
}

impl Drop for Working {
    fn drop(&mut self) {
        let works_for = &mut self.world.lend().nodes[self.node].works_for;
        *works_for = works_for.filter(|term| *term != self.token);
    }
}

/// The guarded work: sends effects to a store until it is cancelled, and a little longer.
async fn labour(world: Arc<World>, node: usize, clock: NodeClock, term: Term, mut rng: Rng) {
    let token = term.tenure().token().as_str().parse().unwrap_or_default();
    let working = Working {
        world: world.clone(),
        node,
        token,
    };
    // Some work completes by itself.
    let enough = Duration::from_millis(if rng.percent(20) {
        rng.below(90_000)
    } else {
        1 << 40
    });
    let enough = Instant::now() + enough;
    while Instant::now() < enough {
        let rest = Duration::from_millis(rng.range(200, 4_000));
        tokio::select! {
            biased;
            () = term.tenure().cancelled() => break,
            () = pause(rest) => {}
        }
        clock.runs().await;
        let (world, travel) = (world.clone(), rng.below(6_000) * rng.below(6));
        tokio::spawn(async move {
            pause(Duration::from_millis(travel)).await;
            world.lend().effect(token);
        });
    }
    let calm = world.lend().calm;
    let stuck = rng.percent(4) && !calm;
    if stuck {
        world.lend().count(Fault::WorkStuck);
    }
    let linger = if stuck { 60_000 } else { rng.below(3_000) };
    let outlives = rng.percent(30) && !calm;
    if !outlives {
        pause(Duration::from_millis(linger)).await;
        clock.runs().await;
        drop(working);
        drop(term);
        return;
    }
    // The future of the work ends, and a part of it continues: a thread, or a task that can be dropped.
    world.lend().count(Fault::WorkOutlives);
    let thread = (!rng.percent(50)).then(|| term.tenure().clone());
    let part = async move {
        pause(Duration::from_millis(linger)).await;
        clock.runs().await;
        drop(working);
    };
    match thread {
        Some(handle) => {
            drop(term);
            part.await;
            drop(handle);
        }
        None => drop(term.tenure().spawn(part)),
    }
}

impl Plan {
    fn new(rng: &mut Rng, skew: u64, mutant: Option<Mutant>) -> Self {
        use LockKind::{ConfigMaps, Endpoints, Leases};
        let (lease, renew, retry) = *rng.pick(&[(15, 10, 2), (15, 10, 2), (6, 3, 1), (30, 20, 4)]);
        let timing = Timing::builder()
            .lease_duration(Duration::from_secs(lease))
            .renew_deadline(Duration::from_secs(renew))
            .retry_period(Duration::from_secs(retry))
            .build()
            .expect("the table holds valid timings");
        Self {
            kind: *rng.pick(&[Leases, Leases, Leases, ConfigMaps, Endpoints]),
            nodes: rng.range(2, 5),
            timing,
            skew,
            mutant,
            faults: *rng.pick(&[5_000, 30_000, 100_000, 250_000]),
            outsiders: rng.percent(35),
            latency: Duration::from_micros(rng.range(500, 30_000)),
            horizon: Duration::from_secs(rng.range(200, 700)),
            elections: *rng.pick(&[1, 1, 2, 3]),
        }
    }
}

impl World {
    fn new(election: usize, plan: Plan, rng: Rng, traced: bool) -> Arc<Self> {
        let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let client = kube::Client::new(nobody, "default");
        let reader = plan
            .kind
            .open(client, &namespace(election), NAME, &Default::default())
            .expect("the name is a good one");
        let Watch::Objects(targets) = reader.watch() else {
            unreachable!("the lock is in the API server");
        };
        let name = targets[0].object.clone();
        let mut state = State {
            election,
            plan: plan.clone(),
            rng,
            started: Instant::now(),
            server: Server::new(name.clone(), reader),
            epoch: 0,
            calm: false,
            nodes: Vec::new(),
            tokens: TokenOrder::default(),
            store: FencedStore::default(),
            report: Report::default(),
            traced,
        };
        state.note(0, 0, || format!("{plan:?}"));
        Arc::new(Self {
            election,
            plan,
            name,
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    fn lend(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_broken(&self) -> bool {
        self.lend().report.violation.is_some()
    }

    /// Executes a request on the server.
    fn serve(&self, author: Author, call: &Call) -> Answer {
        let answer = self.lend().server.serve(author, call);
        if call.is_write() {
            self.changed.notify_waiters();
        }
        answer
    }
}

impl Node {
    /// Ends the process and its work.
    fn die(&mut self) {
        self.clock.kill();
        self.handle = None;
        self.works_for = None;
    }
}

impl State {
    /// Returns the index and the clock of a new process.
    fn place(&mut self) -> (usize, NodeClock) {
        let skew = self.plan.skew;
        let rate = (1_000 - skew + self.rng.below(2 * skew + 1)) as f64 / 1_000.0;
        let first = Duration::from_millis(self.rng.range(1_000, 1 << 40));
        (self.nodes.len(), NodeClock::new(first, rate))
    }

    /// Adds a new process, and returns the seeds for it and its work.
    fn admit(&mut self, clock: &NodeClock) -> (u64, u64) {
        let now = Instant::now();
        self.nodes.push(Node {
            clock: clock.clone(),
            handle: None,
            requests_cut_until: now,
            answers_cut_until: now,
            sights: Sights::default(),
            works_for: None,
            overran: false,
            was_paused: false,
            polls: self.rng.percent(15),
        });
        (self.rng.bits(), self.rng.bits())
    }

    fn one_way(&mut self) -> Duration {
        self.plan.latency / 2
            + self
                .plan
                .latency
                .mul_f64(self.rng.below(1_000) as f64 / 1_000.0)
    }

    fn strikes(&mut self) -> bool {
        !self.calm && self.rng.chance(self.plan.faults)
    }

    fn delay(&mut self) -> Duration {
        let longest = 2 * nanos(self.plan.timing.lease());
        Duration::from_nanos(self.rng.range(50_000_000, longest))
    }

    fn event_delay(&mut self) -> Duration {
        let usual = self.one_way();
        if self.strikes() {
            self.count(Fault::WatchLate);
            return usual + self.delay() / 4;
        }
        usual
    }

    /// Decides how the next watch ends, and when.
    fn watch_ends(&mut self) -> (End, Duration) {
        if self.calm || !self.rng.percent(50) {
            return (End::Clean, Duration::MAX / 4);
        }
        self.count(Fault::WatchBreak);
        let ends = [End::Clean, End::Broken, End::Gone, End::Silent];
        let end = *self.rng.pick(&ends);
        (end, Duration::from_millis(self.rng.below(90_000)))
    }

    /// Checks a request when it is sent, and decides what happens to it.
    fn leaves(&mut self, node: usize, call: &Call, local: LocalTime) -> Fate {
        let what = call.name();
        self.note(node, 1, || format!("n{node} sends {what}"));
        self.report.totals.steps += 1;
        match call {
            Call::Create(_) => {
                if let Some(text) = self.nodes[node].sights.check_create(local.as_nanos()) {
                    self.violate(Invariant::S5, format!("node {node} {text}"));
                }
            }
            Call::Update(body) => self.check_update(node, body, local),
            Call::List | Call::Watch { .. } if self.nodes[node].polls => {
                return Fate {
                    fault: Some(Fault::Forbidden),
                    ..Fate::default()
                };
            }
            _ => {}
        }
        if !self.strikes() {
            return Fate::default();
        }
        // Only repeated writes are interesting.
        let kinds = if call.is_write() {
            OF_REQUESTS
        } else {
            &OF_REQUESTS[..OF_READS]
        };
        let fault = *self.rng.pick(kinds);
        self.count(fault);
        Fate {
            fault: Some(fault),
            delay: self.delay(),
            reset: self.rng.percent(50),
        }
    }

    fn leads(&self, node: usize) -> bool {
        (self.nodes[node].handle.as_ref()).is_some_and(Handle::is_leading)
    }

    /// Returns the leader and its token.
    fn leader(&self) -> Option<(usize, String)> {
        (0..self.nodes.len()).find_map(|node| {
            let tenure = self.nodes[node].handle.as_ref()?.tenure()?;
            tenure
                .is_leading()
                .then(|| (node, tenure.token().to_string()))
        })
    }

    fn count(&mut self, fault: Fault) {
        self.report.totals.faults.count(fault);
        let name = fault.name();
        self.note(0, fault as u64, || format!("   fault: {name}"));
    }

    fn violate(&mut self, invariant: Invariant, text: String) {
        self.note(0, 2, || format!("VIOLATION {invariant}: {text}"));
        let at = self.started.elapsed().as_nanos() as u64;
        self.report.violation.get_or_insert(Violation {
            invariant,
            at,
            text,
        });
    }

    /// Records an event in the hash and the trace of the run.
    fn note(&mut self, node: usize, what: u64, text: impl FnOnce() -> String) {
        let now = self.started.elapsed();
        let report = &mut self.report;
        for value in [now.as_nanos() as u64, node as u64, what] {
            report.hash =
                (report.hash ^ value).wrapping_mul(0x0000_0100_0000_01B3) ^ (report.hash >> 29);
        }
        if self.traced {
            let line = format!("{:>12.6} {} {}", now.as_secs_f64(), self.election, text());
            report.trace.push(line);
        }
    }
}
