//! Warm standby.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::watcher;
use serde_json::json;
use tenure_apiserver::TestServer;
use tenure_manager::{Cause, Next, OnLoss, Warm};

use super::{Log, Running, quick, until};

async fn make(maps: &Api<ConfigMap>, name: &str) {
    let map = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// Logs each object's name, with a minus sign if it is deleted.
fn teller(maps: &Api<ConfigMap>, log: &Log) -> Warm<ConfigMap> {
    let log = log.clone();
    let config = watcher::Config::default();
    Warm::new("maps", maps.clone(), config, move |request| {
        let log = log.clone();
        async move {
            request.scope.check()?;
            let sign = if request.object.is_some() { '+' } else { '-' };
            log.say(format!("{sign}{}", request.key.name));
            Ok::<_, Cause>(Next::Change)
        }
    })
}

#[tokio::test]
async fn standby_fills_cache_and_queue_and_reconciles_nothing_until_it_leads() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    make(&maps, "a").await;
    let (first_log, second_log) = (Log::default(), Log::default());
    let first = quick(&server).await.warm("g", teller(&maps, &first_log));
    let first = Running::start(first.build().unwrap());
    first_log.wait("+a", 1).await;
    let warm = teller(&maps, &second_log);
    let reader = warm.reader();
    let second = Running::start(quick(&server).await.warm("g", warm).build().unwrap());
    make(&maps, "b").await;
    first_log.wait("+b", 1).await;
    until("the standby's cache", || reader.len() == 2).await;
    assert!(second_log.all().is_empty(), "{:?}", second_log.all());
    first.stop().await.unwrap();
    second_log.wait("+a", 1).await;
    second_log.wait("+b", 1).await;
    second.stop().await.unwrap();
}

#[tokio::test]
async fn objects_deleted_during_standby_are_reconciled_by_the_next_leader() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    for name in ["a", "b"] {
        make(&maps, name).await;
    }
    let (first_log, second_log) = (Log::default(), Log::default());
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let first = quick(&server).await.warm("g", teller(&maps, &first_log));
    let first = Running::start(first.build().unwrap());
    first_log.wait("+b", 1).await;
    let warm = teller(&maps, &second_log);
    let reader = warm.reader();
    let second = quick(&server).await.metrics_address(free).warm("g", warm);
    let second = second.build().unwrap();
    let mut bound = second.addresses();
    let second = Running::start(second);
    until("the standby's cache", || reader.len() == 2).await;
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    first_log.wait("-a", 1).await;
    until("the standby knows", || reader.len() == 1).await;
    // The queue contains two objects before this replica leads: an existing one, and one that was deleted.
    let address = bound.wait_for(|all| !all.is_empty()).await.unwrap()[0];
    wait_for_metric(address, r#"workqueue_depth{name="maps"} 2"#).await;
    first.stop().await.unwrap();
    second_log.wait("-a", 1).await;
    second_log.wait("+b", 1).await;
    second.stop().await.unwrap();
}

/// The queue is full before the second term is won, although the first term emptied it.
#[tokio::test]
async fn a_former_leader_queues_everything_for_its_next_term() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    for name in ["a", "b"] {
        make(&maps, name).await;
    }
    let log = Log::default();
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let manager = quick(&server).await.on_loss(OnLoss::Demote);
    let manager = manager.metrics_address(free).warm("g", teller(&maps, &log));
    let manager = manager.build().unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    log.wait("+b", 1).await;
    let address = bound.wait_for(|all| !all.is_empty()).await.unwrap()[0];
    wait_for_metric(address, r#"workqueue_depth{name="maps"} 0"#).await;
    super::give(&server, "g", "thief", 3600).await;
    wait_for_metric(address, r#"workqueue_depth{name="maps"} 2"#).await;
    super::give(&server, "g", "", 1).await;
    log.wait("+a", 2).await;
    log.wait("+b", 2).await;
    running.stop().await.unwrap();
}

async fn wait_for_metric(address: std::net::SocketAddr, line: &str) {
    let found = async {
        loop {
            let (_, text) = super::site::get(address, "/metrics").await;
            if text.lines().any(|found| found == line) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(super::LIMIT, found).await;
    assert!(found.is_ok(), "no {line}");
}

/// A reconciliation that is dropped at the end of a term no longer counts as running.
#[tokio::test]
async fn a_dropped_reconciliation_is_no_longer_active() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    make(&maps, "a").await;
    let log = Log::default();
    let said = log.clone();
    let deaf = Warm::new("maps", maps, watcher::Config::default(), move |_| {
        said.say("tries");
        // The controller ignores cancellation in its first term.
        let deaf = said.count("tries") == 1;
        async move {
            if deaf {
                std::future::pending::<()>().await;
            }
            Ok::<_, Cause>(Next::Change)
        }
    });
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let manager = quick(&server)
        .await
        .on_loss(OnLoss::Demote)
        .metrics_address(free)
        .warm("g", deaf);
    let manager = manager.build().unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    log.wait("tries", 1).await;
    let address = bound.wait_for(|all| !all.is_empty()).await.unwrap()[0];
    let active =
        |count: u32| format!(r#"controller_runtime_active_workers{{controller="maps"}} {count}"#);
    let (_, text) = super::site::get(address, "/metrics").await;
    assert!(text.contains(&active(1)), "{text}");
    super::steal(&server, "g").await;
    log.wait("tries", 2).await;
    wait_for_metric(address, &active(0)).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn an_error_and_a_panic_are_tried_again() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    make(&maps, "a").await;
    let log = Log::default();
    let said = log.clone();
    let config = watcher::Config::default();
    let warm = Warm::new("maps", maps, config, move |_| {
        let said = said.clone();
        async move {
            said.say("try");
            match said.count("try") {
                1 => Err("not yet".into()),
                2 => panic!("not yet either"),
                3 => Ok::<_, Cause>(Next::After(Duration::from_millis(1))),
                _ => Ok(Next::Change),
            }
        }
    });
    let running = Running::start(quick(&server).await.warm("g", warm).build().unwrap());
    log.wait("try", 4).await;
    running.stop().await.unwrap();
}

#[tokio::test]
async fn objects_deleted_while_the_watch_was_broken_are_reconciled() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    make(&maps, "a").await;
    make(&maps, "b").await;
    let log = Log::default();
    let manager = quick(&server).await.on_loss(OnLoss::Demote);
    let manager = manager.warm("g", teller(&maps, &log)).build().unwrap();
    let running = Running::start(manager);
    log.wait("+b", 1).await;
    // Watching and listing ConfigMaps fails for some time.
    let path = "/api/v1/namespaces/default/configmaps";
    let fault = tenure_apiserver::server::Fault::answer(503).path(path);
    let watch = server.faults().add(fault.clone().verb("watch"));
    let list = server.faults().add(fault.verb("list"));
    server.jump_revision(10_000).await.unwrap();
    maps.delete("a", &DeleteParams::default()).await.unwrap();
    until("the watch is broken", || watch.hits() + list.hits() > 0).await;
    watch.remove();
    list.remove();
    log.wait("-a", 1).await;
    running.stop().await.unwrap();
}
