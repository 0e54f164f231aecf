//! Seats and shares with real tasks.

use super::*;

fn gate(requests: u32) -> Arc<Gate> {
    let limits = Limits {
        requests,
        body_bytes: 1_000,
        watches: 10,
        ..Limits::default()
    };
    Arc::new(Gate::new(&limits))
}

fn uses(gate: &Gate, lane: Lane) -> (u32, u32) {
    let found = gate.lanes()[lane as usize];
    (found.executing, found.waiting)
}

#[tokio::test(start_paused = true)]
async fn seat_of_one_user_is_not_taken_by_the_flood_of_another() {
    let gate = gate(4);
    let mut flood = Vec::new();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        flood.push(gate.seat("mallory", Lane::Workload).await.unwrap());
    }
    for _ in 0..22 {
        let gate = Arc::clone(&gate);
        tasks.push(tokio::spawn(async move {
            gate.seat("mallory", Lane::Workload).await.map(drop)
        }));
        tokio::task::yield_now().await;
    }
    // Two seats are left for others, and requests of the same user wait or are rejected.
    assert_eq!(uses(&gate, Lane::Workload), (2, 16));
    let alice = gate.seat("alice", Lane::Workload).await.unwrap();
    assert_eq!(uses(&gate, Lane::Workload), (3, 16));
    drop(alice);
    let mut codes = Vec::new();
    for task in tasks {
        codes.push(task.await.unwrap().map_err(|failure| failure.code));
    }
    assert!(codes.iter().all(|code| *code == Err(429)), "{codes:?}");
    let rejected: Vec<_> = gate.rejections().map(|(_, count)| count).collect();
    assert_eq!(rejected[..2], [6, 16], "queue full, and timed out");
    drop(flood);
    assert_eq!(uses(&gate, Lane::Workload), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn seat_rejection_names_the_limit_and_when_to_retry() {
    let gate = gate(2);
    let _seat = gate.seat("mallory", Lane::Workload).await.unwrap();
    let waits: Vec<_> = (0..9)
        .map(|_| {
            let gate = Arc::clone(&gate);
            tokio::spawn(async move { gate.seat("mallory", Lane::Workload).await.map(drop) })
        })
        .collect();
    let mut messages = Vec::new();
    for wait in waits {
        let failure = wait.await.unwrap().unwrap_err();
        assert_eq!((failure.code, failure.reason), (429, "TooManyRequests"));
        let details = failure.details.unwrap();
        assert_eq!(details.retry_after_seconds, Some(1));
        messages.push(failure.message);
    }
    let full = r#"user "mallory" has 8 requests that wait in the lane "workload""#;
    assert!(messages.iter().any(|m| m.contains(full)), "{messages:?}");
    let late = r#"waited 5 s for its turn in the lane "workload""#;
    assert!(messages.iter().any(|m| m.contains(late)), "{messages:?}");
}

#[tokio::test]
async fn seat_is_granted_in_turn_and_returned_by_cancelled_requests() {
    let gate = gate(2);
    let first = gate.seat("a", Lane::Workload).await.unwrap();
    let second = gate.seat("b", Lane::Workload).await.unwrap();
    let (done, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for name in ["a1", "a2", "c1"] {
        let (shared, done) = (Arc::clone(&gate), done.clone());
        tasks.push(tokio::spawn(async move {
            let _seat = shared.seat(&name[..1], Lane::Workload).await.unwrap();
            done.send(name).unwrap();
        }));
        while uses(&gate, Lane::Workload).1 < u32::try_from(tasks.len()).unwrap() {
            tokio::task::yield_now().await;
        }
    }
    tasks.remove(0).abort();
    while uses(&gate, Lane::Workload).1 > 2 {
        tokio::task::yield_now().await;
    }
    drop(second);
    // The user `a` still has the one seat that a user may have, so `c` is next.
    assert_eq!(order.recv().await, Some("c1"));
    drop(first);
    assert_eq!(order.recv().await, Some("a2"));
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(uses(&gate, Lane::Workload), (0, 0));
}

#[tokio::test]
async fn charge_is_returned_when_dropped_and_rejected_above_the_share() {
    let gate = gate(4);
    let mallory = gate.tenant("mallory");
    let mut first = mallory.take(Resource::Bodies, 300).unwrap();
    first.grow(200).unwrap();
    let failure = first.grow(1).unwrap_err();
    assert_eq!(failure.code, 429);
    assert!(
        failure.message.contains("500 bytes of request bodies"),
        "{}",
        failure.message
    );
    let alice = gate.tenant("alice");
    let second = alice.take(Resource::Bodies, 250).unwrap();
    drop((first, second));
    drop(mallory.take(Resource::Bodies, 500).unwrap());
    let part = mallory.take(Resource::Answers, 7).unwrap();
    assert_eq!(gate.answer_bytes(), 7);
    drop(part);
    assert_eq!(gate.answer_bytes(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn heavy_work_leaves_the_only_worker_to_other_tasks() {
    let gate = gate(4);
    let (go, wait) = std::sync::mpsc::channel();
    let heavy = tokio::spawn(async move {
        let tenant = gate.tenant("mallory");
        let work = async move { wait.recv().unwrap() };
        tenant.off_workers(work).await.unwrap()
    });
    // Runs on the runtime while the other task blocks its thread.
    let light = tokio::spawn(async move { go.send(7).unwrap() });
    light.await.unwrap();
    assert_eq!(heavy.await.unwrap(), 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn heavy_work_that_waits_can_be_cancelled_and_returns_its_seat() {
    let gate = gate(4);
    let (started, start) = oneshot::channel();
    let shared = Arc::clone(&gate);
    let heavy = tokio::spawn(async move {
        let work = async move {
            started.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        shared.tenant("mallory").off_workers(work).await.unwrap();
    });
    start.await.unwrap();
    assert_eq!(uses(&gate, Lane::Heavy), (1, 0));
    heavy.abort();
    assert!(heavy.await.unwrap_err().is_cancelled());
    assert_eq!(uses(&gate, Lane::Heavy), (0, 0));
}
