//! Whole elections on every kind of lock: the state machine of `tenure-core`, locks, and a watch, with virtual time.
//! The tests show that the machine handles what locks report, in particular the half-written states of multi locks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{
    Command, Config, Election, FencingToken, Input, LocalTime, Now, Outcome, Source, Timing,
    WallTime,
};
use tenure_lock::{Error, Lock, LockKind, Precision, Snapshot, Watch, WatchOutcome};
use tokio::task::JoinHandle;

use crate::NOON;
use crate::store::{Dice, Store, client};

/// Duration of one simulation step.
const TURN: Duration = Duration::from_millis(5);

type Look = JoinHandle<Result<Option<Snapshot>, Error>>;

/// One candidate with a minimal driver.
struct Node {
    election: Election,
    lock: Arc<dyn Lock>,
    paths: Vec<String>,
    last: Option<Snapshot>,
    events: usize,
    read: Option<(u64, Look)>,
    write: Option<(u64, JoinHandle<Result<Snapshot, Error>>)>,
    look: Option<Look>,
    story: Vec<String>,
    token: Option<FencingToken>,
}

impl Node {
    fn new(kind: LockKind, store: &Arc<Mutex<Store>>, dice: &Dice, n: u32) -> Self {
        let client = client(store.clone(), dice.clone(), u64::MAX);
        let lock = kind.open(client, "foo", "bar", &BTreeMap::new()).unwrap();
        let Watch::Objects(targets) = lock.watch() else {
            panic!("the lock is in the API server")
        };
        let config = Config {
            identity: format!("{kind}-{n}"),
            timing: Timing::builder().build().unwrap(),
            release_on_cancel: true,
            for_life: false,
            rejoin: true,
            coordinated: false,
            preference: None,
            whole_seconds: lock.precision() == Precision::Seconds,
            seed: u64::from(n),
        };
        Self {
            election: Election::new(config),
            lock,
            paths: targets.iter().map(|target| target.object.path()).collect(),
            last: None,
            events: 0,
            read: None,
            write: None,
            look: None,
            story: Vec::new(),
            token: None,
        }
    }

    /// Performs one step of everything that is due.
    async fn turn(&mut self, now: Now, store: &Mutex<Store>) {
        if self
            .write
            .as_ref()
            .is_some_and(|(_, task)| task.is_finished())
            && let Some((id, task)) = self.write.take()
        {
            let outcome = match task.await.unwrap() {
                Ok(seen) => {
                    let version = seen.observation().version.clone();
                    self.last = Some(seen);
                    Outcome::Applied(version)
                }
                Err(error) => error.outcome(),
            };
            self.step(now, Input::Written(id, outcome));
        }
        if self
            .read
            .as_ref()
            .is_some_and(|(_, task)| task.is_finished())
            && let Some((id, task)) = self.read.take()
        {
            let input = match task.await.unwrap() {
                Ok(seen) => self.saw(Source::Read(id), seen),
                Err(_) => Input::ReadFailed(id),
            };
            self.step(now, input);
            self.step(now, Input::Watching(true));
        }
        if self.look.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(task) = self.look.take()
            && let Ok(Some(seen)) = task.await.unwrap()
        {
            let input = self.saw(Source::Watch, Some(seen));
            self.step(now, input);
        }
        let event = store.lock().unwrap().events.get(self.events).cloned();
        if let Some((path, object)) = event {
            self.events += 1;
            if let Some(target) = self.paths.iter().position(|own| *own == path) {
                match self
                    .lock
                    .apply_watch_event(target, Some(object), self.last.as_ref())
                {
                    WatchOutcome::Present(seen) => {
                        let input = self.saw(Source::Watch, Some(seen));
                        self.step(now, input);
                    }
                    WatchOutcome::Absent => panic!("nothing is deleted here"),
                    WatchOutcome::ReadNeeded => {
                        let lock = self.lock.clone();
                        self.look =
                            Some(tokio::task::spawn_local(async move { lock.read().await }));
                    }
                }
            }
        }
        if self.election.deadline().is_some_and(|at| at <= now.local) {
            self.step(now, Input::Tick);
        }
    }

    fn saw(&mut self, source: Source, seen: Option<Snapshot>) -> Input {
        self.last = seen;
        match &self.last {
            Some(seen) => Input::Observed(source, seen.observation().clone()),
            None => Input::Absent(source, None),
        }
    }

    fn step(&mut self, now: Now, input: Input) {
        for command in self.election.step(now, input) {
            let lock = self.lock.clone();
            match command {
                Command::Read { id, .. } => {
                    let task = tokio::task::spawn_local(async move { lock.read().await });
                    self.read = Some((id, task));
                }
                Command::Write {
                    id, kind, record, ..
                } => {
                    let base = self.last.clone();
                    let task = tokio::task::spawn_local(async move {
                        lock.write(&kind, &record, base.as_ref()).await
                    });
                    self.write = Some((id, task));
                }
                Command::Lead { token, .. } => {
                    self.story.push("lead".to_owned());
                    self.token = Some(token);
                }
                Command::Stop { reason, .. } => {
                    self.story.push(format!("stop: {}", reason.as_str()));
                    self.step(now, Input::WorkEnded);
                }
                Command::Released => self.story.push("released".to_owned()),
                _ => {}
            }
        }
    }

    fn leads(&self, now: Now) -> bool {
        self.election.guard().is_some_and(|guard| guard.holds(now))
    }
}

struct World {
    nodes: Vec<Node>,
    store: Arc<Mutex<Store>>,
    now: Now,
}

impl World {
    fn new(kinds: &[LockKind], seed: u32) -> Self {
        let (store, dice) = (Arc::new(Mutex::new(Store::default())), Dice::new(seed));
        let now = Now {
            local: LocalTime::from_nanos(1),
            wall: WallTime::from_micros(NOON),
        };
        let nodes = (0..)
            .zip(kinds)
            .map(|(n, kind)| Node::new(*kind, &store, &dice, n))
            .collect();
        Self { nodes, store, now }
    }

    /// Advances time until one candidate leads, and returns it with the elapsed time.
    async fn until_one_leads(&mut self) -> (usize, Duration) {
        let begin = self.now.local;
        while self.now.local.since(begin) < Duration::from_secs(60) {
            self.turn().await;
            if let Some(leader) = self.nodes.iter().position(|node| node.leads(self.now)) {
                return (leader, self.now.local.since(begin));
            }
        }
        panic!("nobody leads: {:?}", self.stories());
    }

    async fn pass(&mut self, time: Duration) {
        let begin = self.now.local;
        while self.now.local.since(begin) < time {
            self.turn().await;
        }
    }

    async fn turn(&mut self) {
        self.now.local = self.now.local + TURN;
        let micros = i64::try_from(TURN.as_micros()).unwrap();
        self.now.wall = WallTime::from_micros(self.now.wall.as_micros() + micros);
        for node in &mut self.nodes {
            node.turn(self.now, &self.store).await;
        }
        let leaders = self
            .nodes
            .iter()
            .filter(|node| node.leads(self.now))
            .count();
        assert!(leaders <= 1, "two lead: {:?}", self.stories());
        tokio::task::yield_now().await;
    }

    fn stories(&self) -> Vec<&[String]> {
        self.nodes
            .iter()
            .map(|node| node.story.as_slice())
            .collect()
    }
}

async fn elections(kinds: &[LockKind], seed: u32, hand_over: Duration) {
    let mut world = World::new(kinds, seed);
    let now = world.now;
    for node in &mut world.nodes {
        node.step(now, Input::Start);
    }
    let (first, took) = world.until_one_leads().await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    world.pass(Duration::from_secs(20)).await;
    assert_eq!(
        world.nodes[first].story,
        ["lead"],
        "a quiet term: {:?}",
        world.stories()
    );

    let now = world.now;
    world.nodes[first].step(now, Input::StepDown(Duration::from_secs(600)));
    let (second, took) = world.until_one_leads().await;
    assert!(
        took < hand_over,
        "handed over in {took:?}: {:?}",
        world.stories()
    );
    world.pass(Duration::from_secs(10)).await;
    assert_eq!(
        world.nodes[first].story,
        ["lead", "stop: step-down", "released"]
    );
    assert_eq!(world.nodes[second].story, ["lead"]);
    let tokens = [first, second].map(|n| world.nodes[n].token.clone().unwrap());
    assert!(tokens[0] < tokens[1], "{tokens:?}");

    world.nodes.remove(second);
    let (third, took) = world.until_one_leads().await;
    let lease = Duration::from_secs(15);
    assert!(
        took < lease + Duration::from_secs(2),
        "taken over in {took:?}"
    );
    assert!(tokens[1] < world.nodes[third].token.clone().unwrap());
}

fn check(kinds: &[LockKind], hand_over: Duration) {
    for seed in 1..=3 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, elections(kinds, seed, hand_over));
    }
}

#[test]
fn one_candidate_leads_on_each_kind_of_lock() {
    for kind in LockKind::ALL {
        check(&[kind; 3], Duration::from_secs(1));
    }
}

#[test]
fn one_candidate_leads_while_moving_to_leases() {
    use LockKind::{ConfigMapsLeases, EndpointsLeases, Leases};
    // A multi lock that was too late for the Lease has already written its name to the primary object. That record has
    // to expire, unless a client of Leases takes over.
    let one_lease = Duration::from_secs(15 + 2);
    check(&[EndpointsLeases, Leases, EndpointsLeases], one_lease);
    check(&[Leases, ConfigMapsLeases, Leases], one_lease);
}
