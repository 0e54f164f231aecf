//! Sharded leadership.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tenure::LockKind;
use tenure_apiserver::TestServer;
use tenure_manager::shard::Shards;
use tenure_manager::{Builder, Runnable};

use super::{LIMIT, Running, quick, read_config, until};

const SHARDS: u32 = 64;

/// Time limit for an even distribution after a change of replicas.
const EVEN_WITHIN: Duration = Duration::from_secs(60);

/// The owner of each shard, how often work on a shard started, and how often with two owners.
#[derive(Clone, Default)]
struct Board {
    owners: Arc<Mutex<BTreeMap<u32, String>>>,
    starts: Arc<AtomicUsize>,
    doubles: Arc<AtomicUsize>,
}

/// A worker on a shard, until dropped.
struct AtWork(Board, u32);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.owners.lock().unwrap().remove(&self.1);
    }
}

impl Board {
    /// Returns work that records whether another worker has the same shard.
    fn worker(&self, replica: &str) -> Runnable {
        let (board, replica) = (self.clone(), replica.to_owned());
        Runnable::new("worker", move |scope| {
            let (board, replica) = (board.clone(), replica.clone());
            async move {
                let shard = scope.shard().unwrap();
                let before = board.owners.lock().unwrap().insert(shard.index, replica);
                board.starts.fetch_add(1, Ordering::SeqCst);
                let twice = usize::from(before.is_some());
                board.doubles.fetch_add(twice, Ordering::SeqCst);
                let _at_work = AtWork(board, shard.index);
                scope.cancelled().await;
            }
        })
    }

    /// Checks that no shard ever had two owners.
    fn check(&self) {
        let doubles = self.doubles.load(Ordering::SeqCst);
        assert_eq!(doubles, 0, "shards with two owners");
    }

    /// Returns how many shards each of these replicas works on.
    fn counts(&self, replicas: &[Replica]) -> Vec<usize> {
        let owners = self.owners.lock().unwrap();
        let count = |name: &str| owners.values().filter(|owner| *owner == name).count();
        replicas.iter().map(|r| count(&r.name)).collect()
    }

    /// Returns whether every shard has an owner and the shards are evenly distributed.
    fn is_even(&self, replicas: &[Replica]) -> bool {
        let counts = self.counts(replicas);
        let even = counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1;
        even && counts.iter().sum::<usize>() == SHARDS as usize
    }
}

/// Client-go's durations, so that 64 leases cost little, except for the time after which others take over.
fn election(election: tenure::Builder) -> tenure::Builder {
    election
        .lease_duration(Duration::from_secs(10))
        .renew_deadline(Duration::from_secs(6))
        .retry_period(Duration::from_secs(2))
        .events(false)
}

struct Replica {
    name: String,
    running: Running,
    shards: Shards,
}

async fn replica(server: &TestServer, board: &Board, name: &str, every: Duration) -> Replica {
    let manager: Builder = quick(server)
        .await
        .identity(name)
        // This kind applies to the locks of leader groups; shards still use Leases.
        .lock_kind(LockKind::ConfigMaps)
        .elections(election)
        .hand_over_every(every)
        .shard("queue", SHARDS, board.worker(name));
    let manager = manager.build().unwrap();
    let shards = manager.shards("queue").unwrap();
    Replica {
        name: name.to_owned(),
        running: Running::start(manager),
        shards,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_1_to_5_to_3_are_even_with_the_fewest_hand_overs() {
    let server = TestServer::start().await.unwrap();
    let board = Board::default();
    let quickly = Duration::from_millis(60);
    let mut replicas = vec![replica(&server, &board, "a", quickly).await];
    until("one owns all", || board.is_even(&replicas)).await;
    assert_eq!(board.starts.load(Ordering::SeqCst), 64);

    let began = Instant::now();
    for name in ["b", "c", "d", "e"] {
        replicas.push(replica(&server, &board, name, quickly).await);
    }
    until("five are even", || board.is_even(&replicas)).await;
    assert!(began.elapsed() < EVEN_WITHIN, "{:?}", began.elapsed());
    let moved = board.starts.load(Ordering::SeqCst) - 64;
    assert!(
        moved <= 56,
        "{moved} hand-overs; 51 is the least, and 10 % more is allowed"
    );

    // Each key has one owner, and every replica knows whether it is the owner.
    for n in 0..200 {
        let key = format!("default/claim-{n}");
        let owners = replicas.iter().filter(|r| r.shards.owns(&key)).count();
        assert_eq!(owners, 1, "{key}");
    }

    let before = board.starts.load(Ordering::SeqCst);
    let began = Instant::now();
    let leaving: usize = board.counts(&replicas)[3..].iter().sum();
    for gone in replicas.drain(3..).collect::<Vec<_>>() {
        gone.running.stop().await.unwrap();
        assert!(gone.shards.owned().is_empty());
    }
    until("three are even", || board.is_even(&replicas)).await;
    assert!(began.elapsed() < EVEN_WITHIN, "{:?}", began.elapsed());
    let moved = board.starts.load(Ordering::SeqCst) - before;
    // The second replica that leaves may have received shards of the first.
    let least = leaving + leaving / 8;
    assert!(
        moved <= least + least / 10,
        "{moved} hand-overs for {leaving} shards left behind"
    );
    for replica in replicas {
        replica.running.stop().await.unwrap();
    }
    board.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_of_a_silent_replica_are_acquired_when_its_leases_expire() {
    let server = TestServer::start().await.unwrap();
    let board = Board::default();
    let quickly = Duration::from_millis(20);
    let survivor = replica(&server, &board, "a", quickly).await;
    until("one owns all", || survivor.shards.owned().len() == 64).await;
    let dead = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let kubeconfig = server.kubeconfig().to_owned();
    let shards = dead.spawn({
        let board = board.clone();
        async move {
            let config = read_config(&kubeconfig).await;
            let manager = tenure_manager::Manager::builder(config)
                .identity("b")
                .elections(election)
                .hand_over_every(quickly)
                .shard("queue", SHARDS, board.worker("b"));
            let manager = manager.build().unwrap();
            let shards = manager.shards("queue").unwrap();
            tokio::spawn(manager.run(std::future::pending::<()>()));
            shards
        }
    });
    let shards = shards.await.unwrap();
    until("half each", || shards.owned().len() == 32).await;
    // The replica ends abruptly, without releasing anything.
    dead.shutdown_background();
    let survives = [survivor];
    until("all again", || board.is_even(&survives)).await;
    let [survivor] = survives;
    let stopped = tokio::time::timeout(LIMIT, survivor.running.stop()).await;
    stopped.unwrap().unwrap();
    board.check();
}

#[tokio::test]
async fn without_an_election_this_process_owns_every_shard_and_no_lease_is_written() {
    let server = TestServer::start().await.unwrap();
    let board = Board::default();
    let manager = quick(&server).await.no_leader_elect(true);
    let manager = manager.shard("queue", SHARDS, board.worker("a"));
    let manager = manager.build().unwrap();
    let shards = manager.shards("queue").unwrap();
    let running = Running::start(manager);
    let working = || board.owners.lock().unwrap().len();
    until("it works on all", || working() == SHARDS as usize).await;
    assert_eq!(shards.owned().len(), SHARDS as usize);
    assert!(shards.owns("default/claim-1"));
    assert_eq!(shards.token("default/claim-1"), None);
    running.stop().await.unwrap();
    assert_eq!(working(), 0);
    assert!(shards.owned().is_empty());
    assert_eq!(board.starts.load(Ordering::SeqCst), SHARDS as usize);
    board.check();
    let leases: Api<Lease> = Api::all(server.client().unwrap());
    let leases = leases.list(&Default::default()).await.unwrap();
    assert!(leases.items.is_empty(), "{:?}", leases.items);
}

#[tokio::test]
async fn invalid_shard_group_is_rejected_by_name() {
    let server = TestServer::start().await.unwrap();
    let board = Board::default();
    let none = quick(&server).await.shard("queue", 0, board.worker("a"));
    assert_eq!(
        none.build().unwrap_err().to_string(),
        "shard group queue: the number of shards must be from 1 to 10000"
    );
}
