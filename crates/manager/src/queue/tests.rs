//! client-go's cases (`workqueue/queue_test.go`, `delaying_queue_test.go`), and cases of cancellation.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

async fn next(queue: &WorkQueue<&'static str>) -> Processing<&'static str> {
    let item = tokio::time::timeout(60 * SECOND, queue.get()).await;
    item.expect("in time").expect("not shut down")
}

#[tokio::test(start_paused = true)]
async fn an_item_added_twice_is_processed_once() {
    let queue = WorkQueue::new("q");
    for item in ["a", "b", "a"] {
        queue.add(item);
    }
    assert_eq!(queue.len(), 2);
    let (a, b) = (next(&queue).await, next(&queue).await);
    assert_eq!((*a, *b), ("a", "b"));
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_item_added_while_it_is_processed_waits_for_its_end() {
    let queue = WorkQueue::new("q");
    queue.add("a");
    let first = next(&queue).await;
    queue.add("a");
    queue.add("a");
    assert_eq!(queue.len(), 0, "nobody else may have it now");
    drop(first);
    assert_eq!(queue.len(), 1);
    drop(next(&queue).await);
    assert_eq!(queue.len(), 0, "one more time, not two");
}

#[tokio::test(start_paused = true)]
async fn earlier_of_two_delays_counts() {
    let queue = WorkQueue::new("q");
    let start = Instant::now();
    queue.add_after("a", 10 * SECOND);
    queue.add_after("a", 3 * SECOND);
    queue.add_after("a", 20 * SECOND);
    drop(next(&queue).await);
    assert_eq!(start.elapsed(), 3 * SECOND);
    tokio::time::advance(60 * SECOND).await;
    assert_eq!(queue.len(), 0, "it was due once");
}

#[tokio::test(start_paused = true)]
async fn delayed_items_come_in_the_order_of_their_times() {
    let queue = WorkQueue::new("q");
    queue.add_after("late", 2 * SECOND);
    queue.add_after("soon", SECOND);
    queue.add_after("now", Duration::ZERO);
    for expected in ["now", "soon", "late"] {
        assert_eq!(*next(&queue).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn sleeping_worker_is_woken_for_an_earlier_item() {
    let queue = WorkQueue::new("q");
    queue.add_after("hour", 3_600 * SECOND);
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.get().await.map(|item| *item) })
        })
        .collect();
    tokio::task::yield_now().await;
    let start = Instant::now();
    queue.add_after("second", SECOND);
    queue.add("now");
    let mut heard = HashSet::new();
    for worker in workers {
        heard.insert(worker.await.unwrap());
    }
    assert_eq!(heard, HashSet::from([Some("now"), Some("second")]));
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_item_due_while_it_is_processed_comes_after_it() {
    let queue = WorkQueue::new("q");
    queue.add("a");
    let first = next(&queue).await;
    queue.add_after("a", SECOND);
    tokio::time::advance(2 * SECOND).await;
    assert_eq!(queue.len(), 0);
    drop(first);
    assert_eq!(queue.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_until_they_are_forgotten() {
    let limiter = ItemBackoff::new(SECOND, 60 * SECOND);
    let queue = WorkQueue::with_limiter("q", limiter);
    let start = Instant::now();
    for after in [1, 3, 7] {
        queue.add_rate_limited("a");
        drop(next(&queue).await);
        assert_eq!(start.elapsed(), after * SECOND);
    }
    assert_eq!(queue.retries(&"a"), 3);
    queue.forget(&"a");
    queue.add_rate_limited("a");
    drop(next(&queue).await);
    assert_eq!(start.elapsed(), 8 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn after_a_shutdown_queued_items_are_returned_and_none_is_added() {
    let queue = WorkQueue::new("q");
    queue.add("a");
    queue.add_after("later", SECOND);
    queue.shut_down();
    queue.add("b");
    queue.add_after("c", SECOND);
    assert_eq!(*next(&queue).await, "a");
    assert!(queue.get().await.is_none());
    assert!(queue.is_shutting_down());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_wakes_every_worker() {
    let queue: WorkQueue<u32> = WorkQueue::new("q");
    let workers: Vec<_> = (0..5)
        .map(|_| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.get().await.is_none() })
        })
        .collect();
    tokio::task::yield_now().await;
    queue.shut_down();
    for worker in workers {
        assert!(worker.await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn drain_waits_for_queued_items_and_running_work() {
    let queue = WorkQueue::new("q");
    queue.add("a");
    queue.add("b");
    let a = next(&queue).await;
    let drain = tokio::spawn({
        let queue = queue.clone();
        async move { queue.shut_down_with_drain().await }
    });
    tokio::task::yield_now().await;
    drop(a);
    tokio::task::yield_now().await;
    assert!(!drain.is_finished(), "b waits");
    drop(next(&queue).await);
    drain.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn panicking_worker_does_not_block_its_item() {
    let queue = WorkQueue::new("q");
    queue.add("a");
    let worker = tokio::spawn({
        let queue = queue.clone();
        async move {
            let item = queue.get().await.unwrap();
            queue.add(*item);
            panic!("{}", *item);
        }
    });
    assert!(worker.await.unwrap_err().is_panic());
    assert_eq!(*next(&queue).await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_loses_no_item() {
    let queue = WorkQueue::new("q");
    // Two workers wait. The item wakes the first one, which is dropped before it takes the item.
    let mut dropped = Box::pin(queue.get());
    assert!(dropped.as_mut().now_or_never().is_none());
    let mut other = Box::pin(queue.get());
    assert!(other.as_mut().now_or_never().is_none());
    queue.add("a");
    drop(dropped);
    let item = tokio::time::timeout(60 * SECOND, other).await;
    assert_eq!(*item.expect("woken in its place").expect("an item"), "a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_never_share_an_item_and_lose_none() {
    let queue: WorkQueue<usize> = WorkQueue::new("q");
    let busy: Arc<Vec<AtomicU32>> = Arc::new((0..10).map(|_| AtomicU32::new(0)).collect());
    // How often each item was added, and which of these additions a worker has seen.
    let added: Arc<Vec<AtomicU32>> = Arc::new((0..10).map(|_| AtomicU32::new(0)).collect());
    let seen: Arc<Vec<AtomicU32>> = Arc::new((0..10).map(|_| AtomicU32::new(0)).collect());
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (queue, busy) = (queue.clone(), busy.clone());
            let (added, seen) = (added.clone(), seen.clone());
            tokio::spawn(async move {
                while let Some(item) = queue.get().await {
                    let place: &AtomicU32 = &busy[*item];
                    assert_eq!(place.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                    let times = added[*item].load(Ordering::SeqCst);
                    seen[*item].store(times, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    place.fetch_sub(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    for round in 0..1_000 {
        added[round % 10].fetch_add(1, Ordering::SeqCst);
        queue.add(round % 10);
        if round % 7 == 0 {
            tokio::task::yield_now().await;
        }
    }
    queue.shut_down_with_drain().await;
    for worker in workers {
        worker.await.unwrap();
    }
    for (item, seen) in seen.iter().enumerate() {
        assert_eq!(seen.load(Ordering::SeqCst), 100, "the last {item} was lost");
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_have_client_gos_names() {
    let metrics = QueueMetrics::new();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let queue = WorkQueue::with_metrics("claims", default_limiter(), &metrics);
    queue.add("a");
    queue.add("b");
    queue.add_rate_limited("c");
    let a = next(&queue).await;
    tokio::time::advance(2 * SECOND).await;
    drop(next(&queue).await);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    for line in [
        r#"workqueue_depth{name="claims"} 1"#,
        r#"workqueue_adds_total{name="claims"} 3"#,
        r#"workqueue_retries_total{name="claims"} 1"#,
        r#"workqueue_queue_duration_seconds_count{name="claims"} 2"#,
        r#"workqueue_work_duration_seconds_count{name="claims"} 1"#,
        r#"workqueue_unfinished_work_seconds{name="claims"} 2.0"#,
        r#"workqueue_longest_running_processor_seconds{name="claims"} 2.0"#,
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    drop((a, queue));
    text.clear();
    encode(&mut text, &registry).unwrap();
    assert!(
        !text.contains("workqueue_unfinished_work_seconds{"),
        "{text}"
    );
}
