//! `/healthz`: a leader that does not renew should be restarted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::Hub;
use tenure::clock::{Clock, SystemClock};
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;
use tenure_core::{LocalTime, Now};
use tenure_lock::BoxFuture;
use tenure_manager::{Builder, OnLoss};

use super::site::get;
use super::{LIMIT, Log, Running, quick, speaker};

/// The clock of this machine, which can be set forward.
#[derive(Clone, Debug, Default)]
struct Ahead(Arc<AtomicU64>);

impl Ahead {
    fn by(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }
}

impl Clock for Ahead {
    fn now(&self) -> Now {
        let now = SystemClock.now();
        Now {
            local: now.local + self.by(),
            wall: now.wall,
        }
    }

    fn sleep_until(&self, at: LocalTime) -> BoxFuture<'static, ()> {
        // Sleep briefly, because the clock may be set forward. Callers check the clock again.
        let left = at.since(self.now().local);
        Box::pin(tokio::time::sleep(left.min(Duration::from_millis(20))))
    }

    fn is_real(&self) -> bool {
        false
    }
}

/// Runs a manager that holds this lease and cannot renew it for a lease duration plus the tolerance, and then can
/// again.
async fn not_renewed(lease: &str, with: impl FnOnce(Builder, &Log) -> Builder) {
    let server = TestServer::start().await.unwrap();
    let clock = Ahead::default();
    let hub = Hub::with_clock(Some(server.client().unwrap()), Arc::new(clock.clone()));
    let log = Log::default();
    let manager = quick(&server)
        .await
        .elections(move |election| {
            election
                .hub(&hub)
                .lease_duration(Duration::from_secs(15))
                .retry_period(Duration::from_millis(100))
                .events(false)
        })
        .on_loss(OnLoss::Demote)
        .probe_address(SocketAddr::from(([127, 0, 0, 1], 0)));
    let manager = with(manager, &log).build().unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    let address = bound.wait_for(|all| all.len() == 1).await.unwrap()[0];
    log.wait("work starts", 1).await;
    let answers = async |wanted: (u16, String)| {
        let answered = async {
            while get(address, "/healthz/leaderElection").await != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let answered = tokio::time::timeout(LIMIT, answered).await;
        assert!(answered.is_ok(), "never {wanted:?}");
    };
    answers((200, "ok".to_owned())).await;

    let path = format!("/apis/coordination.k8s.io/v1/namespaces/default/leases/{lease}");
    let cut = server.faults().add(Fault::answer(503).path(path));
    super::until("no renewal is under way", || cut.hits() > 0).await;
    clock.0.store(60, Ordering::SeqCst);
    let why = format!("failed election to renew leadership on lease {lease}");
    answers((500, format!("internal server error: {why}\n"))).await;
    let text = "[-]leaderElection failed: reason withheld\nhealthz check failed\n";
    assert_eq!(get(address, "/healthz").await, (500, text.to_owned()));
    log.wait("work stopped", 1).await;

    cut.remove();
    answers((200, "ok".to_owned())).await;
    log.wait("work starts", 2).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_leader_that_does_not_renew_is_unhealthy_until_it_does() {
    not_renewed("g", |manager, log| {
        manager.leader("g", speaker("work", log))
    })
    .await;
}

#[tokio::test]
async fn a_replica_that_does_not_renew_a_shard_is_unhealthy_until_it_does() {
    not_renewed("queue.00-of-01", |manager, log| {
        manager.shard("queue", 1, speaker("work", log))
    })
    .await;
}
