//! Hooks, API servers and controllers that misbehave, each with its exact result. Cases that end the process are tested
//! with processes.

use std::future::Ready;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tenure_apiserver::TestServer;
use tenure_apiserver::server::Fault;
use tenure_apiserver::store::Store;
use tenure_manager::{Cache, Error, Gate, Manager, OnLoss, Runnable, Startup};

use super::{Log, Running, config, holder, lease_spec, quick, until};

fn speaker(log: &Log) -> Runnable {
    let log = log.clone();
    Runnable::new("work", move |scope| {
        log.say("starts");
        async move { scope.cancelled().await }
    })
}

/// Returns the error of a manager with this hook, and checks that nothing has run.
async fn failed_hook<F, W>(hook: F) -> String
where
    F: FnOnce(Startup) -> W + Send + 'static,
    W: Future + Send + 'static,
    W::Output: tenure_manager::Outcome,
{
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server)
        .await
        .hook_timeout(Duration::from_millis(200))
        .on_startup("seed", hook)
        .every(speaker(&log));
    let error = Running::start(manager.build().unwrap()).end().await;
    assert!(log.all().is_empty(), "{:?}", log.all());
    error.unwrap_err().to_string()
}

#[tokio::test]
async fn failed_hook_ends_the_start_with_its_error() {
    let error = failed_hook(|startup| async move {
        let _keep = startup;
        Err::<(), _>("no seed")
    });
    assert_eq!(error.await, "startup hook seed: no seed");
    let error = failed_hook(|startup| async move { startup.done.failed("no water") });
    assert_eq!(error.await, "startup hook seed: no water");
}

#[tokio::test]
async fn hanging_hook_ends_the_start_at_its_time_limit() {
    let error = failed_hook(|startup| async move {
        let _keep = startup;
        std::future::pending::<()>().await;
    });
    assert_eq!(
        error.await,
        "startup hook seed: has not returned within 0.2 s"
    );
    let error = failed_hook(|startup| async move {
        tokio::spawn(async move {
            let _keep = startup;
            tokio::time::sleep(Duration::from_secs(60)).await;
        });
    });
    assert_eq!(
        error.await,
        "startup hook seed: has not reported that it is done within 0.2 s"
    );
}

/// A hook that blocks its thread until the other end is dropped, and logs when it does.
fn blocking(log: &Log) -> (mpsc::Sender<()>, impl FnOnce(Startup) -> Ready<()> + use<>) {
    let (release, released) = mpsc::channel();
    let log = log.clone();
    let hook = move |startup| {
        log.say("blocks");
        let _ = released.recv();
        drop(startup);
        std::future::ready(())
    };
    (release, hook)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hook_that_blocks_its_thread_ends_the_start_at_its_time_limit() {
    let (release, hook) = blocking(&Log::default());
    // Neither the error nor the rest of the shutdown waits for the hook.
    assert_eq!(
        failed_hook(hook).await,
        "startup hook seed: has not returned within 0.2 s"
    );
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_while_a_hook_blocks_its_thread_names_it() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let (release, hook) = blocking(&log);
    let manager = quick(&server).await.on_startup("seed", hook);
    let manager = manager.every(speaker(&log)).build().unwrap();
    let running = Running::start(manager);
    log.wait("blocks", 1).await;
    let error = running.stop().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "still running 0.25 s after the stop was requested: startup hook seed"
    );
    drop(release);
    assert_eq!(log.all(), ["blocks"], "nothing was started");
}

#[tokio::test]
async fn hook_with_dropped_done_handle_ends_the_start() {
    let error = failed_hook(|startup| async move { drop(startup) });
    assert_eq!(
        error.await,
        "startup hook seed: its `Done` handle was dropped before it was called"
    );
}

#[tokio::test]
async fn panicking_hook_ends_the_start() {
    let error = failed_hook(|startup| async move {
        assert!(
            startup.client.default_namespace().is_empty(),
            "no {}",
            "seed"
        );
    });
    assert_eq!(error.await, "startup hook seed: panicked: no seed");
    // The call itself fails, before there is a future.
    let error = failed_hook(|startup| {
        let namespace = startup.client.default_namespace().to_owned();
        assert!(namespace.is_empty(), "no water");
        async {}
    });
    assert_eq!(error.await, "startup hook seed: panicked: no water");
}

#[tokio::test]
async fn a_hook_that_fails_later_does_not_wait_for_slower_ones() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server)
        .await
        .on_startup("keeper", |startup| async move {
            tokio::spawn(async move {
                let _keep = startup;
                std::future::pending::<()>().await;
            });
        })
        .on_startup("seed", |startup| async move {
            tokio::spawn(async move { startup.done.failed("no seed") });
        })
        .on_startup("slow", |startup| async move {
            let _keep = startup;
            std::future::pending::<()>().await;
        })
        .every(speaker(&log));
    let error = Running::start(manager.build().unwrap()).end().await;
    assert_eq!(error.unwrap_err().to_string(), "startup hook seed: no seed");
    assert!(log.all().is_empty());
}

#[tokio::test]
async fn a_shutdown_during_the_start_is_clean() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let manager = quick(&server)
        .await
        .on_startup("slow", move |startup| async move {
            said.say("hook");
            let _keep = startup;
            std::future::pending::<()>().await;
        })
        .every(speaker(&log));
    let running = Running::start(manager.build().unwrap());
    log.wait("hook", 1).await;
    running.stop().await.unwrap();
    assert_eq!(log.all(), ["hook"]);
}

const QUICK_GATE: Gate = Gate {
    period: Duration::from_millis(20),
    timeout: Duration::from_millis(500),
    limit: Duration::from_secs(20),
    exclude: None,
};

#[tokio::test]
async fn late_api_server_is_waited_for() {
    let server = TestServer::start().await.unwrap();
    let late = server
        .faults()
        .add(Fault::answer(503).path("/readyz").times(5));
    let log = Log::default();
    let manager = quick(&server).await.gate(QUICK_GATE).every(speaker(&log));
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    assert_eq!(late.hits(), 5, "asked until it was ready");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn absent_api_server_ends_the_start_at_the_time_limit() {
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    let log = Log::default();
    let gate = Gate {
        limit: Duration::from_secs(1),
        ..QUICK_GATE
    };
    let manager = Manager::builder(kube::Config::new(url.parse().unwrap()))
        .gate(gate)
        .every(speaker(&log));
    let error = Running::start(manager.build().unwrap()).end().await;
    let error = error.unwrap_err().to_string();
    let start = "the API server was not ready within 1 s: ";
    assert!(error.starts_with(start), "{error}");
    assert!(error.to_lowercase().contains("refused"), "{error}");
    assert!(log.all().is_empty());
}

#[tokio::test]
async fn api_server_that_loses_its_watch_history_is_listed_again() {
    let server = TestServer::start().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(server.client().unwrap(), "default");
    let cache = Cache::new("leases", leases.clone(), Default::default());
    let reader = cache.reader();
    let log = Log::default();
    let manager = quick(&server)
        .await
        .on_loss(OnLoss::Demote)
        .cache(cache)
        .leader("g", speaker(&log));
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    server.jump_revision(100_000).await.unwrap();
    let lease = serde_json::from_value(json!({ "metadata": { "name": "new" } })).unwrap();
    leases.create(&Default::default(), &lease).await.unwrap();
    until("the cache goes on", || {
        reader
            .find(|l| l.metadata.name.as_deref() == Some("new"))
            .is_some()
    })
    .await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn api_server_outage_ends_the_term_and_a_second_one_begins() {
    let faults = |server: &TestServer| server.faults().clone();
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server).await.on_loss(OnLoss::Demote);
    let manager = manager.leader("g", speaker(&log)).build().unwrap();
    let running = Running::start(manager);
    log.wait("starts", 1).await;
    // The server does not respond usefully for longer than the lease, as during a restart.
    let down = faults(&server).add(Fault::answer(503));
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(log.count("starts"), 1);
    down.remove();
    log.wait("starts", 2).await;
    running.stop().await.unwrap();
}

/// Logs the holder of the lease when it is dropped.
struct Dropped(Log, Arc<dyn Store>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let spec = lease_spec(&*self.1, "g");
        let holder = spec["holderIdentity"].as_str().unwrap();
        self.0.say(format!("dropped while {holder:?} holds it"));
    }
}

/// Stops a manager with work that ignores its cancellation, with this time limit. The work is dropped, then the lease
/// is released.
async fn stop_deaf(limit: Duration) -> Result<(), Error> {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let log = Log::default();
    let (said, store) = (log.clone(), server.store().clone());
    let deaf = Runnable::new("deaf", move |_| {
        let dropped = Dropped(said.clone(), store.clone());
        said.say("starts");
        async move {
            let _dropped = dropped;
            std::future::pending::<()>().await;
        }
    });
    let manager = quick(&server)
        .await
        .identity("a")
        .shutdown_timeout(limit)
        .leader("g", deaf);
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    let stopped = running.stop().await;
    assert_eq!(log.all(), ["starts", "dropped while \"a\" holds it"]);
    assert_eq!(holder(&client, "g").await.as_deref(), Some(""));
    stopped
}

#[tokio::test]
async fn a_controller_that_ignores_cancellation_is_dropped_before_the_release() {
    let error = stop_deaf(Duration::from_millis(300)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "still running 0.3 s after the stop was requested: deaf"
    );
}

/// A zero timeout drops work on purpose.
#[tokio::test]
async fn zero_shutdown_timeout_drops_work_without_an_error() {
    stop_deaf(Duration::ZERO).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_shutdown_timeout_still_names_work_that_cannot_be_dropped() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let stuck = Runnable::new("stuck", move |_| {
        said.say("starts");
        // Blocks until the other end is dropped.
        let _ = released.lock().unwrap().recv();
        std::future::pending::<()>()
    });
    let manager = quick(&server).await.shutdown_timeout(Duration::ZERO);
    let manager = manager.every(stuck).every(speaker(&log));
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 2).await;
    let error = running.stop().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "still running 0 s after the stop was requested: stuck"
    );
    drop(release);
}

/// A task or thread that a runnable started, and that holds its scope, is part of the work.
#[tokio::test]
async fn a_task_that_outlives_its_runnable_keeps_the_lease_until_it_ends() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let log = Log::default();
    let (said, store) = (log.clone(), server.store().clone());
    let parent = Runnable::new("parent", move |scope| {
        let (log, store, part) = (said.clone(), store.clone(), scope.clone());
        tokio::spawn(async move {
            log.say("starts");
            part.cancelled().await;
            // Longer than the runnable, and much longer than a release takes.
            tokio::time::sleep(Duration::from_millis(500)).await;
            drop(Dropped(log, store));
            drop(part);
        });
        async move { scope.cancelled().await }
    });
    let manager = Manager::builder(config(&server).await);
    let manager = manager.identity("a").leader("g", parent);
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    running.stop().await.unwrap();
    assert_eq!(log.all(), ["starts", "dropped while \"a\" holds it"]);
    assert_eq!(holder(&client, "g").await.as_deref(), Some(""));
}

#[tokio::test]
async fn a_thread_that_keeps_its_scope_is_named_and_nothing_is_released() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let log = Log::default();
    let said = log.clone();
    let (release, released) = mpsc::channel::<()>();
    let released = Arc::new(Mutex::new(released));
    let parent = Runnable::new("parent", move |scope| {
        let (part, released) = (scope.clone(), released.clone());
        std::thread::spawn(move || {
            // Blocks until the other end is dropped.
            let _ = released.lock().unwrap().recv();
            drop(part);
        });
        said.say("starts");
        async move { scope.cancelled().await }
    });
    let manager = Manager::builder(config(&server).await);
    let manager = manager
        .identity("a")
        .shutdown_timeout(Duration::from_millis(300))
        .leader("g", parent);
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    let error = running.stop().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "still running 0.3 s after the stop was requested: parent"
    );
    assert_eq!(holder(&client, "g").await.as_deref(), Some("a"));
    drop(release);
    while holder(&client, "g").await.as_deref() != Some("") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn lost_term_drops_work_that_ignores_it_before_another_may_lead() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let deaf = Runnable::new("deaf", move |scope| {
        said.say(format!("starts {}", scope.token().unwrap()));
        std::future::pending::<()>()
    });
    let manager = quick(&server)
        .await
        .on_loss(OnLoss::Demote)
        .leader("g", deaf);
    let manager = manager.build().unwrap();
    let group = manager.group("g").unwrap();
    let running = Running::start(manager);
    until("it starts", || log.all().len() == 1).await;
    let down = server
        .faults()
        .add(Fault::answer(503).path("/apis/coordination.k8s.io/"));
    until("the term ends", || !group.election().unwrap().is_leading()).await;
    until("the work is dropped", || {
        group.election().unwrap().tenure().is_none()
    })
    .await;
    down.remove();
    until("the next term", || log.all().len() == 2).await;
    let starts = log.all();
    assert_ne!(starts[0], starts[1], "another term");
    drop(running);
}

#[tokio::test]
async fn lease_lost_during_the_start_of_controllers_stops_them() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let log = Log::default();
    let said = log.clone();
    let leases: Api<Lease> = Api::namespaced(client, "default");
    // This controller starts slowly. In the meantime, another candidate takes the lease.
    let slow = Runnable::new("slow", move |scope| {
        let (said, leases) = (said.clone(), leases.clone());
        async move {
            said.say("starting");
            let patch = Patch::Merge(json!({ "spec": { "holderIdentity": "thief" } }));
            let stolen = leases.patch("g", &PatchParams::default(), &patch).await;
            stolen.unwrap();
            tokio::select! {
                () = scope.cancelled() => said.say("gave up"),
                () = tokio::time::sleep(Duration::from_secs(20)) => said.say("started"),
            }
        }
    });
    let manager = quick(&server).await.leader("g", slow);
    let error = Running::start(manager.build().unwrap()).end().await;
    assert!(matches!(error, Err(Error::Lost { .. })), "{error:?}");
    assert_eq!(log.all(), ["starting", "gave up"], "nothing ran twice");
}

#[tokio::test]
async fn forbidden_cache_is_reported_with_its_name() {
    let server = TestServer::start().await.unwrap();
    let mut forbidden = config(&server).await;
    forbidden.auth_info = Default::default();
    let client = kube::Client::try_from(forbidden).unwrap();
    let leases: Api<Lease> = Api::namespaced(client, "default");
    let log = Log::default();
    let manager = quick(&server)
        .await
        .cache(Cache::new("leases", leases, Default::default()))
        .cache_timeout(Duration::from_millis(500))
        .every(speaker(&log));
    let error = Running::start(manager.build().unwrap()).end().await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("cache leases was not filled within 0.5 s: "),
        "{error}"
    );
    assert!(error.contains("forbidden"), "{error}");
    assert!(log.all().is_empty());
}
