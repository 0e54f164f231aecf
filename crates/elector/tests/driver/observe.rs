//! Status, metrics and health.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use tenure::metrics::Registry;
use tenure::{Elector, MemoryLock, Metrics, Status};

use crate::term::lead;
use crate::wire::{Wire, pass, secs};

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    text
}

fn value(text: &str, metric: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(metric));
    let line = line.unwrap_or_else(|| panic!("no {metric} in\n{text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn extra_8_metrics_after_cancel_say_that_it_does_not_lead() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let mut registry = Registry::default();
    let metrics = Metrics::new();
    metrics.register(&mut registry);
    let elector = wire
        .elector("a")
        .metrics(&metrics)
        .name("my")
        .build()
        .unwrap();
    let mut candidate = elector.start();
    let status = "leader_election_master_status{name=\"my\"}";
    let term = lead(&mut candidate).await;
    pass(secs(7)).await;
    let now = text(&registry);
    assert_eq!(value(&now, status), 1.0);
    // One renewal every two seconds, the first at a random instant.
    let valid = value(&now, "tenure_validity_seconds{name=\"my\"}");
    assert!((8.0..=10.0).contains(&valid), "{valid}");
    let renewals = value(&now, "tenure_renew_seconds_count{name=\"my\"}");
    assert!((3.0..=4.0).contains(&renewals), "{renewals}");
    assert_eq!(
        value(&now, "tenure_acquire_seconds_count{name=\"my\"}"),
        1.0
    );
    assert_eq!(value(&now, "tenure_terms_total{name=\"my\"}"), 1.0);
    assert_eq!(value(&now, "tenure_transitions{name=\"my\"}"), 0.0);
    candidate.shutdown();
    term.tenure().cancelled().await;
    let now = text(&registry);
    assert_eq!(
        value(&now, status),
        0.0,
        "in the sleep between renewals, too"
    );
    assert_eq!(value(&now, "tenure_validity_seconds{name=\"my\"}"), 0.0);
    assert_eq!(
        value(&now, "leader_election_slowpath_total{name=\"my\"}"),
        0.0
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_after_a_read_is_a_slow_one() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    let mut registry = Registry::default();
    let metrics = Metrics::new();
    metrics.register(&mut registry);
    let elector = wire.elector("a").metrics(&metrics).build().unwrap();
    let mut candidate = elector.start();
    let _term = lead(&mut candidate).await;
    lock.edit(|object| object["metadata"]["labels"] = serde_json::json!({}));
    pass(secs(5)).await;
    let now = text(&registry);
    assert_eq!(
        value(&now, "leader_election_slowpath_total{name=\"x\"}"),
        1.0
    );
    let refused = "tenure_errors_total{name=\"x\",class=\"refused\"}";
    assert_eq!(value(&now, refused), 1.0);
}

#[tokio::test(start_paused = true)]
async fn unreachable_server_is_reported_for_followers_too() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock).unwatched();
    wire.cut();
    let mut registry = Registry::default();
    let metrics = Metrics::new();
    metrics.register(&mut registry);
    let elector = wire.elector("a").metrics(&metrics).build().unwrap();
    let health = elector.handle().health();
    let _candidate = elector.start();
    assert_eq!(health.trouble(), None);
    pass(secs(30)).await;
    let now = text(&registry);
    let unknown = "tenure_errors_total{name=\"x\",class=\"unknown\"}";
    // The candidate sends a few requests in half a minute, with pauses between them.
    let errors = value(&now, unknown);
    assert!((2.0..=30.0).contains(&errors), "{errors}");
    assert!(value(&now, "tenure_last_error_timestamp_seconds{name=\"x\"}") > 0.0);
    let trouble = health.trouble().unwrap();
    assert!(trouble.lasted >= secs(20), "{trouble}");
    assert!(trouble.to_string().contains("memory lock x"), "{trouble}");
    assert_eq!(health.check(secs(20)), Ok(()), "client-go sees nothing");
}

#[tokio::test(start_paused = true)]
async fn the_status_wakes_on_changes_and_not_on_renewals() {
    let lock = MemoryLock::new("x");
    let wire = Wire::to(&lock);
    let elector = wire.elector("a").build().unwrap();
    let handle = elector.handle();
    let mut status = handle.watch();
    let mut candidate = elector.start();
    let term = lead(&mut candidate).await;
    let Status::Leader { token, until } = status.borrow_and_update().clone() else {
        panic!("leads")
    };
    assert_eq!(token, *term.tenure().token());
    pass(secs(20)).await;
    assert!(!status.has_changed().unwrap());
    let Status::Leader { until: later, .. } = handle.status() else {
        panic!("still leads")
    };
    assert!(later > until);
    lock.edit(|object| object["spec"]["holderIdentity"] = "b".into());
    status.changed().await.unwrap();
    let leader = "b".to_owned();
    assert!(matches!(
        &*status.borrow_and_update(),
        Status::Unknown | Status::Follower { .. }
    ));
    pass(secs(1)).await;
    assert_eq!(handle.status(), Status::Follower { leader });
    drop(Arc::new(term));
}

/// Uses the real clock and threads, because the case is about them. It waits for renewals, not for time.
#[test]
fn case_20_health_may_be_checked_from_many_threads_while_it_renews() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let lock = MemoryLock::new("x");
        let mut candidate = Elector::builder(Arc::new(lock.clone()))
            .lease_duration(secs(2))
            .renew_deadline(secs(1))
            .retry_period(Duration::from_millis(5))
            .build()
            .unwrap()
            .start();
        let term = lead(&mut candidate).await;
        let health = candidate.handle().health();
        let renewed = move || {
            let object = lock.object().unwrap();
            let version = object["metadata"]["resourceVersion"].as_str().unwrap();
            version.parse::<u64>().unwrap()
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (health, handle, renewed) =
                    (health.clone(), candidate.handle(), renewed.clone());
                std::thread::spawn(move || {
                    let mut checks = 0;
                    while renewed() < 40 {
                        health.check(Duration::from_secs(20)).unwrap();
                        assert!(handle.tenure().is_some());
                        checks += 1;
                    }
                    checks
                })
            })
            .collect();
        // The threads are joined outside the runtime's threads, which continue to drive the election.
        let checks = tokio::task::spawn_blocking(move || {
            let each = threads.into_iter().map(|thread| thread.join().unwrap());
            each.sum::<u64>()
        });
        assert!(checks.await.unwrap() > 0);
        drop(term);
    });
}
