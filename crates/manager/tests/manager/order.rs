//! The order of starts and stops, and where work runs.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::reflector::ObjectRef;
use serde_json::json;
use tenure_apiserver::TestServer;
use tenure_manager::{Cache, Manager, Runnable, api_ready};

use super::site::get;
use super::{LIMIT, Log, Running, config, holder, quick, speaker, until};

#[tokio::test]
async fn hooks_gate_everything_in_order() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let (first, second) = (log.clone(), log.clone());
    let manager = quick(&server)
        .await
        .gate(api_ready())
        .on_startup("first", move |mut startup| async move {
            first.say("first hook");
            // The rest happens in another task, after the API server is ready.
            tokio::spawn(async move {
                startup.api_ready().await;
                startup.client.apiserver_version().await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
                first.say("first hook done");
                startup.done.ok();
            });
        })
        .on_startup("second", move |startup| async move {
            second.say("second hook");
            startup.done.ok();
            Ok::<_, std::io::Error>(())
        })
        .every(speaker("every", &log))
        .leader("group", speaker("leader", &log))
        .build()
        .unwrap();
    let mut ready = manager.ready();
    assert!(!*ready.borrow());
    let running = Running::start(manager);
    log.wait("leader starts", 1).await;
    assert!(*ready.borrow());
    running.stop().await.unwrap();
    assert!(!*ready.borrow_and_update());
    assert_eq!(
        log.all(),
        [
            "first hook",
            "second hook",
            "first hook done",
            "every starts",
            "leader starts",
            "leader stopped",
            "every stopped"
        ]
    );
}

/// Parts that stop later still work while others stop. The leader scope can use the rest of the process, and the rest
/// can use the caches and the listeners.
#[tokio::test]
async fn caches_and_listeners_stop_after_the_leader_scope() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let cache = Cache::new("maps", maps.clone(), Default::default());
    let (log, reader) = (Log::default(), cache.reader());
    let address = Arc::new(OnceLock::<SocketAddr>::new());
    // Creates an object, waits until the cache contains it, and queries the listener.
    let winding_down = |name: &'static str| {
        let (log, reader, maps) = (log.clone(), reader.clone(), maps.clone());
        let (address, client) = (address.clone(), client.clone());
        Runnable::new(name, move |scope| {
            let (log, reader, maps) = (log.clone(), reader.clone(), maps.clone());
            let (address, client) = (address.clone(), client.clone());
            async move {
                log.say(format!("{name} starts"));
                scope.cancelled().await;
                let holder = holder(&client, "x").await.unwrap();
                let map = serde_json::from_value(json!({ "metadata": { "name": name } }));
                let map = map.unwrap();
                maps.create(&PostParams::default(), &map).await.unwrap();
                let key = ObjectRef::new(name).within("default");
                until("the cache lives", || reader.get(&key).is_some()).await;
                let (ready, _) = get(*address.get().unwrap(), "/readyz").await;
                let (healthy, _) = get(*address.get().unwrap(), "/healthz").await;
                log.say(format!("{name} stopped: {holder:?}, {ready}, {healthy}"));
            }
        })
    };
    let manager = quick(&server)
        .await
        .identity("a")
        .probe_address(SocketAddr::from(([127, 0, 0, 1], 0)))
        .cache(cache)
        .every(winding_down("every"))
        .leader("x", winding_down("leader"))
        .build()
        .unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    let bound = bound.wait_for(|all| all.len() == 1).await.unwrap()[0];
    address.set(bound).unwrap();
    log.wait("leader starts", 1).await;
    running.stop().await.unwrap();
    assert_eq!(
        log.all(),
        [
            "every starts",
            "leader starts",
            "leader stopped: \"a\", 500, 200",
            "every stopped: \"\", 500, 200",
        ]
    );
    let closed = tokio::net::TcpStream::connect(bound).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn every_runs_on_all_and_leader_on_one_and_hands_over() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let (a, b) = (Log::default(), Log::default());
    let start = async |name: &str, log: &Log| {
        let manager = quick(&server)
            .await
            .identity(name)
            .every(speaker("every", log))
            .leader("one", speaker("leader", log));
        Running::start(manager.build().unwrap())
    };
    let first = start("a", &a).await;
    a.wait("leader starts", 1).await;
    let second = start("b", &b).await;
    b.wait("every starts", 1).await;
    assert_eq!(holder(&client, "one").await.as_deref(), Some("a"));
    assert_eq!(b.count("leader starts"), 0);
    first.stop().await.unwrap();
    b.wait("leader starts", 1).await;
    assert_eq!(a.count("leader stopped"), 1);
    second.stop().await.unwrap();
    assert_eq!(
        holder(&client, "one").await.as_deref(),
        Some(""),
        "released"
    );
}

#[tokio::test]
async fn the_leader_scope_is_empty_before_the_lease_is_released() {
    let server = TestServer::start().await.unwrap();
    let client = server.client().unwrap();
    let log = Log::default();
    let (said, asked) = (log.clone(), client.clone());
    let slow = Runnable::new("slow", move |scope| {
        let (said, asked) = (said.clone(), asked.clone());
        async move {
            said.say("starts");
            scope.cancelled().await;
            assert!(!scope.is_leading(), "told to stop is no longer leading");
            assert!(scope.check().is_err());
            tokio::time::sleep(Duration::from_millis(700)).await;
            said.say(holder(&asked, "x").await.unwrap_or_default());
        }
    });
    let manager = quick(&server).await.identity("a").leader("x", slow);
    let running = Running::start(manager.build().unwrap());
    log.wait("starts", 1).await;
    running.stop().await.unwrap();
    assert_eq!(
        log.all(),
        ["starts", "a"],
        "the lease was kept for the winding down"
    );
    assert_eq!(holder(&client, "x").await.as_deref(), Some(""));
}

#[tokio::test]
async fn each_group_has_its_own_lease_and_its_own_token() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let teller = |name: &'static str| {
        let log = log.clone();
        Runnable::new(name, move |scope| {
            let log = log.clone();
            async move {
                log.say(format!("{name} {}", scope.token().unwrap()));
                scope.cancelled().await;
            }
        })
    };
    let manager = quick(&server)
        .await
        .leader("k3s", teller("core"))
        .leader("k3s-etcd", teller("etcd"))
        .leader("k3s", teller("helm"));
    let running = Running::start(manager.build().unwrap());
    until("three", || log.all().len() == 3).await;
    let token = |name: &str| {
        let all = log.all();
        let line = all.iter().find(|line| line.starts_with(name)).unwrap();
        line.split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(token("core"), token("helm"), "one term");
    assert_ne!(token("core"), token("etcd"));
    running.stop().await.unwrap();
    let leases: Api<Lease> = Api::namespaced(server.client().unwrap(), "default");
    let names: Vec<_> = leases.list(&Default::default()).await.unwrap().items;
    let names: Vec<_> = names.into_iter().filter_map(|l| l.metadata.name).collect();
    assert_eq!(names, ["k3s", "k3s-etcd"]);
}

#[tokio::test]
async fn without_an_election_the_leader_scope_runs_and_no_lease_is_written() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let alone = Runnable::new("alone", move |scope| {
        let said = said.clone();
        async move {
            assert!(scope.is_leading() && scope.check().is_ok());
            assert!(scope.token().is_none());
            said.say("starts");
            scope.cancelled().await;
            assert!(!scope.is_leading());
            said.say("stopped");
        }
    });
    let manager = Manager::builder(config(&server).await)
        .no_leader_elect(true)
        .leader("x", alone)
        .build()
        .unwrap();
    let group = manager.group("x").unwrap();
    assert!(group.election().is_none());
    let running = Running::start(manager);
    assert!(tokio::time::timeout(LIMIT, group.running()).await.unwrap());
    log.wait("starts", 1).await;
    running.stop().await.unwrap();
    assert_eq!(log.all(), ["starts", "stopped"]);
    assert_eq!(holder(&server.client().unwrap(), "x").await, None);
}

#[tokio::test]
async fn a_dropped_run_still_stops_and_releases() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let manager = quick(&server).await.leader("x", speaker("leader", &log));
    let running = Running::start(manager.build().unwrap());
    log.wait("leader starts", 1).await;
    running.task.abort();
    log.wait("leader stopped", 1).await;
    let client = server.client().unwrap();
    let released = async {
        while holder(&client, "x").await.as_deref() != Some("") {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, released).await.unwrap();
}

#[tokio::test]
async fn names_are_unique_and_elections_valid_before_anything_starts() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let twice = Manager::builder(config(&server).await)
        .every(speaker("x", &log))
        .leader("g", speaker("x", &log))
        .build();
    assert_eq!(
        twice.unwrap_err().to_string(),
        "two runnables have the name x"
    );
    let bad = Manager::builder(config(&server).await)
        .elections(|election| election.lease_duration(Duration::from_secs(1)))
        .leader("g", speaker("x", &log))
        .build();
    let error = bad.unwrap_err().to_string();
    assert!(error.starts_with("group g: invalid election: "), "{error}");
}

#[tokio::test]
async fn the_locks_may_be_at_another_api_server() {
    let (here, there) = (TestServer::start().await, TestServer::start().await);
    let (here, there) = (here.unwrap(), there.unwrap());
    let log = Log::default();
    let manager = quick(&here)
        .await
        .identity("a")
        .lock_config(config(&there).await)
        .leader("x", speaker("leader", &log));
    let running = Running::start(manager.build().unwrap());
    log.wait("leader starts", 1).await;
    let holder = async |server: &TestServer| holder(&server.client().unwrap(), "x").await;
    assert_eq!(holder(&there).await.as_deref(), Some("a"));
    assert_eq!(holder(&here).await, None);
    running.stop().await.unwrap();
}
