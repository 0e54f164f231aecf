//! Losing and regaining leadership in one process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use serde_json::json;
use tenure::clock::{Clock as _, SystemClock};
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;
use tenure_manager::{Cache, Cause, Error, Next, OnLoss, Runnable, Warm};

use super::{LIMIT, Log, Running, give, lease_spec, quick, steal, until};

fn speaker(log: &Log) -> Runnable {
    let log = log.clone();
    Runnable::new("work", move |scope| {
        let log = log.clone();
        async move {
            log.say("starts");
            scope.cancelled().await;
            log.say("stopped");
        }
    })
}

#[tokio::test]
async fn exit_ends_the_manager_with_the_group_and_the_reason() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server).await.leader("g", speaker(&log));
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    steal(&server, "g").await;
    let error = running.end().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "leader election lost for g: foreign-holder"
    );
    assert!(matches!(error, Error::Lost { .. }));
    assert_eq!(log.all(), ["starts", "stopped"]);
}

/// The API server is unreachable: the work has stopped before the lease expires for other candidates.
#[tokio::test]
async fn demote_stops_the_work_before_the_end_of_its_validity() {
    const LEASE: Duration = Duration::from_secs(6);
    let server = TestServer::start().await.unwrap();
    let stops = Arc::new(Mutex::new(Vec::new()));
    let stopped = stops.clone();
    let work = Runnable::new("work", move |scope| {
        let stopped = stopped.clone();
        async move {
            scope.cancelled().await;
            stopped.lock().unwrap().push(SystemClock.now());
        }
    });
    let manager = quick(&server).await.on_loss(OnLoss::Demote);
    // Leave several seconds for the end, so that the test does not fail on a busy machine.
    let manager = manager.elections(|election| {
        election
            .lease_duration(LEASE)
            .renew_deadline(Duration::from_secs(2))
            .retry_period(Duration::from_millis(200))
            .events(false)
    });
    let manager = manager.leader("g", work).build().unwrap();
    let group = manager.group("g").unwrap();
    let running = Running::start(manager);
    assert!(group.running().await);
    let first = group.election().unwrap().tenure().unwrap();
    let leases = "/apis/coordination.k8s.io/";
    let cut = server.faults().add(Fault::answer(503).path(leases));
    until("the work has stopped", || !stops.lock().unwrap().is_empty()).await;
    let stop = stops.lock().unwrap()[0];
    let spec = lease_spec(&**server.store(), "g");
    assert!(!first.is_leading());
    // Other candidates see the time of the last renewal. Nobody may take the lease before a lease duration has passed
    // since then.
    let spec: LeaseSpec = serde_json::from_value(spec).unwrap();
    let renewed = spec.renew_time.unwrap().0.as_microsecond();
    let held = Duration::from_micros((stop.wall.as_micros() - renewed).unsigned_abs());
    assert!(held < LEASE, "it stopped {held:?} after the last renewal");
    assert_eq!(spec.lease_duration_seconds, Some(6));
    cut.remove();
    until("the next term", || group.is_leading()).await;
    let second = group.election().unwrap().tenure().unwrap();
    assert!(second.token() > first.token());
    running.stop().await.unwrap();
}

#[tokio::test]
async fn demote_stops_the_work_and_campaigns_again() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server).await.on_loss(OnLoss::Demote);
    let manager = manager.leader("g", speaker(&log)).build().unwrap();
    let group = manager.group("g").unwrap();
    let running = Running::start(manager);
    log.wait("starts", 1).await;
    let first = group.election().unwrap().tenure().unwrap();
    steal(&server, "g").await;
    log.wait("starts", 2).await;
    assert_eq!(log.all(), ["starts", "stopped", "starts"]);
    let second = group.election().unwrap().tenure().unwrap();
    assert!(second.token() > first.token());
    assert!(!first.is_leading());
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_thousand_terms_leak_no_task_and_no_cache_dies() {
    const TERMS: usize = 1_000;
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let leases: Api<Lease> = Api::namespaced(client, "default");
    let cache = Cache::new("maps", maps.clone(), watcher::Config::default());
    let (reader, seen) = (cache.reader(), cache.reader());
    let terms = Arc::new(AtomicUsize::new(0));
    let count = terms.clone();
    let work = Runnable::new("work", move |scope| {
        let (reader, count) = (reader.clone(), count.clone());
        async move {
            // The cache of the process was filled once.
            assert!(!reader.is_empty());
            count.fetch_add(1, Ordering::SeqCst);
            scope.cancelled().await;
        }
    });
    let make = async |name: &str| {
        let map = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    };
    make("first").await;
    // A warm controller reconciles its objects in each term, with the token of that term.
    let reconciled = Arc::new(AtomicUsize::new(0));
    let (count, last) = (reconciled.clone(), Arc::new(Mutex::new(None)));
    let config = watcher::Config::default();
    let warm = Warm::new("warm", maps.clone(), config, move |request| {
        let (count, last) = (count.clone(), last.clone());
        async move {
            let token = request.scope.token().cloned();
            let before = last.lock().unwrap().replace(token.clone());
            if before.is_none_or(|before| before < token) {
                count.fetch_add(1, Ordering::SeqCst);
            }
            Ok::<_, Cause>(Next::Change)
        }
    });
    let manager = quick(&server)
        .await
        .on_loss(OnLoss::Demote)
        .cache(cache)
        .leader("g", work)
        .warm("g", warm);
    let manager = manager.build().unwrap();
    let group = manager.group("g").unwrap();
    let running = Running::start(manager);
    let mut tasks_after_ten = 0;
    for term in 1..=TERMS {
        until("the next term", || terms.load(Ordering::SeqCst) == term).await;
        until("its reconciliation", || {
            reconciled.load(Ordering::SeqCst) == term
        })
        .await;
        if term == 10 {
            tasks_after_ten = tokio::runtime::Handle::current()
                .metrics()
                .num_alive_tasks();
        }
        if term == TERMS {
            break;
        }
        let election = group.election().unwrap();
        let tenure = election.tenure().unwrap();
        // Most terms end by a release. Others are lost because another client empties, takes or deletes the lease.
        let ends = match term % 200 {
            0 => {
                steal(&server, "g").await;
                "foreign-holder"
            }
            100 => {
                leases.delete("g", &DeleteParams::default()).await.unwrap();
                "deleted"
            }
            n if n % 10 == 0 => {
                give(&server, "g", "", 1).await;
                "emptied"
            }
            _ => {
                election.step_down(Duration::ZERO);
                "step-down"
            }
        };
        tokio::time::timeout(LIMIT, tenure.cancelled())
            .await
            .unwrap();
        assert_eq!(tenure.reason().unwrap().as_str(), ends);
    }
    let tasks = tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks();
    assert!(
        tasks <= tasks_after_ten + 2,
        "{tasks_after_ten} tasks after ten terms, {tasks} after a thousand"
    );
    make("last").await;
    until("the cache is alive", || seen.len() == 2).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_kube_rs_controller_plugs_in_and_works_in_each_term() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    let map = serde_json::from_value(json!({ "metadata": { "name": "m" } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let log = Log::default();
    let said = Arc::new(log.clone());
    async fn reconcile(map: Arc<ConfigMap>, log: Arc<Log>) -> Result<Action, std::io::Error> {
        log.say(map.metadata.name.clone().unwrap_or_default());
        Ok(Action::await_change())
    }
    fn failed(_: Arc<ConfigMap>, _: &std::io::Error, _: Arc<Log>) -> Action {
        Action::await_change()
    }
    let controller = Runnable::controller("maps", move |scope| {
        Controller::new(maps.clone(), watcher::Config::default())
            .graceful_shutdown_on(scope.until_cancelled())
            .run(reconcile, failed, said.clone())
    });
    let manager = quick(&server).await.on_loss(OnLoss::Demote);
    let manager = manager.leader("g", controller).build().unwrap();
    let group = manager.group("g").unwrap();
    let running = Running::start(manager);
    log.wait("m", 1).await;
    group.election().unwrap().step_down(Duration::ZERO);
    log.wait("m", 2).await;
    running.stop().await.unwrap();
}
