//! Metrics after a known sequence.

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::watcher;
use serde_json::json;
use tenure_apiserver::TestServer;
use tenure_manager::{Backoff, Cause, Next, Runnable, Warm};

use super::site::get;
use super::{LIMIT, Log, Running, quick};

const SOON: Backoff = Backoff {
    first: Duration::from_millis(1),
    most: Duration::from_millis(1),
    reset_after: Duration::from_secs(3600),
};

/// Returns the lines of these families without comments and without durations.
fn counts(text: &str, families: &[&str]) -> Vec<String> {
    let timed = |line: &str| line.contains("_seconds_sum") || line.contains("_seconds_bucket");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let lines = lines.filter(|line| families.iter().any(|family| line.starts_with(family)));
    let mut lines: Vec<String> = lines
        .filter(|line| !timed(line) || line.contains(r#"le="+Inf""#))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

/// Waits until these are exactly the lines of these families.
async fn shows(address: SocketAddr, families: &[&str], wanted: &[&str]) {
    let mut seen = Vec::new();
    let shown = async {
        while seen != wanted {
            let (_, text) = get(address, "/metrics").await;
            seen = counts(&text, families);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let shown = tokio::time::timeout(LIMIT, shown).await;
    assert!(shown.is_ok(), "{seen:#?}");
}

#[tokio::test]
async fn reconciliations_are_counted_by_result() {
    let server = TestServer::start().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(server.client().unwrap(), "default");
    let log = Log::default();
    let said = log.clone();
    let config = watcher::Config::default();
    let warm = Warm::new("maps", maps.clone(), config, move |_| {
        let said = said.clone();
        async move {
            said.say("try");
            match said.count("try") {
                1 => Err("not yet".into()),
                2 => panic!("not yet either"),
                3 | 4 => Ok::<_, Cause>(Next::After(Duration::from_millis(1))),
                5 => Ok(Next::Change),
                _ => std::future::pending().await,
            }
        }
    });
    let manager = quick(&server)
        .await
        .metrics_address(SocketAddr::from(([127, 0, 0, 1], 0)))
        .warm("g", warm.workers(3))
        .build()
        .unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    let address = bound.wait_for(|all| all.len() == 1).await.unwrap()[0];
    let shows = async |wanted: &[&str]| shows(address, &["controller_runtime_"], wanted).await;
    // As in controller-runtime, counters start at zero, so that a rate includes the first event.
    shows(&[
        r#"controller_runtime_active_workers{controller="maps"} 0"#,
        r#"controller_runtime_max_concurrent_reconciles{controller="maps"} 3"#,
        r#"controller_runtime_reconcile_errors_total{controller="maps"} 0"#,
        r#"controller_runtime_reconcile_panics_total{controller="maps"} 0"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="error"} 0"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="requeue_after"} 0"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="success"} 0"#,
    ])
    .await;
    let make = async |name: &str| {
        let map = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    };
    make("a").await;
    log.wait("try", 5).await;
    make("b").await;
    // A panic is an error, too. The running reconciliation has no result yet.
    shows(&[
        r#"controller_runtime_active_workers{controller="maps"} 1"#,
        r#"controller_runtime_max_concurrent_reconciles{controller="maps"} 3"#,
        r#"controller_runtime_reconcile_errors_total{controller="maps"} 2"#,
        r#"controller_runtime_reconcile_panics_total{controller="maps"} 1"#,
        r#"controller_runtime_reconcile_time_seconds_bucket{le="+Inf",controller="maps"} 5"#,
        r#"controller_runtime_reconcile_time_seconds_count{controller="maps"} 5"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="error"} 2"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="requeue_after"} 2"#,
        r#"controller_runtime_reconcile_total{controller="maps",result="success"} 1"#,
    ])
    .await;
    drop(running);
}

#[tokio::test]
async fn restarts_and_panics_of_runnables_are_counted() {
    let server = TestServer::start().await.unwrap();
    let log = Log::default();
    let said = log.clone();
    let nodes = Runnable::new("nodes", move |scope| {
        let said = said.clone();
        async move {
            said.say("starts");
            match said.count("starts") {
                1 | 2 => return Err("no disk"),
                3 => panic!("no node"),
                _ => scope.cancelled().await,
            }
            Ok(())
        }
    });
    let manager = quick(&server)
        .await
        .metrics_address(SocketAddr::from(([127, 0, 0, 1], 0)))
        .every(nodes.restart(SOON))
        .build()
        .unwrap();
    let mut bound = manager.addresses();
    let running = Running::start(manager);
    let address = bound.wait_for(|all| all.len() == 1).await.unwrap()[0];
    log.wait("starts", 4).await;
    shows(
        address,
        &["tenure_manager_"],
        &[
            r#"tenure_manager_panics_total{controller="nodes"} 1"#,
            r#"tenure_manager_restarts_total{controller="nodes"} 3"#,
        ],
    )
    .await;
    running.stop().await.unwrap();
    assert_eq!(log.count("starts"), 4);
}
