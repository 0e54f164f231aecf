//! Watches deliver every event of their range once and in order, or expire.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;

use super::super::testing::{delete, everything, key, put, range, set};
use super::super::{
    Event, EventKind, Expected, Expired, MemoryStore, Retention, Store, Watch, WatchEnd,
};

/// Returns the events that are available without waiting.
fn drain(watch: &mut dyn Watch) -> Vec<Arc<Event>> {
    std::iter::from_fn(|| watch.next().now_or_never().map(Result::unwrap)).collect()
}

fn revisions(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.revision).collect()
}

fn short(min_events: usize, max_events: usize) -> MemoryStore {
    MemoryStore::with(Retention {
        min_events,
        max_events,
        ..Retention::default()
    })
}

#[tokio::test]
async fn events_have_kind_state_and_previous_state() {
    let store = MemoryStore::new();
    let lock = key("ns", "x");
    let mut watch = store.watch(everything(), store.revision()).unwrap();
    let first = set(&store, &lock, json!({"n": 1})).await;
    let second = set(&store, &lock, json!({"n": 2})).await;
    let gone = store.write(delete(&lock, second.revision)).await.unwrap();
    let third = set(&store, &lock, json!({"n": 3})).await;

    let events = drain(&mut *watch);
    let seen: Vec<_> = events
        .iter()
        .map(|e| {
            (
                e.kind,
                e.object.revision,
                e.previous.as_ref().map(|p| p.revision),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (EventKind::Added, first.revision, None),
            (EventKind::Modified, second.revision, Some(first.revision)),
            (EventKind::Deleted, gone.revision, Some(second.revision)),
            (EventKind::Added, third.revision, None),
        ]
    );
    let last: serde_json::Value = serde_json::from_slice(&events[2].object.json).unwrap();
    let stamp = gone.revision.to_string();
    assert_eq!(
        last,
        json!({"n": 2, "metadata": {"resourceVersion": stamp}})
    );
}

#[tokio::test]
async fn each_range_sees_its_own_events_only() {
    let store = MemoryStore::new();
    let start = store.revision();
    let ranges = [
        range(None, None),
        range(Some("a"), None),
        range(None, Some("x")),
        range(Some("a"), Some("x")),
    ];
    let mut early: Vec<_> = ranges
        .iter()
        .map(|range| store.watch(range.clone(), start).unwrap())
        .collect();
    for (namespace, name) in [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"), ("a", "x")] {
        set(&store, &key(namespace, name), json!({})).await;
    }
    let mut late: Vec<_> = ranges
        .iter()
        .map(|range| store.watch(range.clone(), start).unwrap())
        .collect();
    let expected: [&[u64]; 4] = [&[2, 3, 4, 5, 6], &[2, 4, 6], &[2, 3, 6], &[2, 6]];
    for watches in [&mut early, &mut late] {
        for (watch, expected) in watches.iter_mut().zip(expected) {
            assert_eq!(revisions(&drain(&mut **watch)), expected);
        }
    }
}

#[tokio::test]
async fn a_watch_resumes_anywhere_without_gap_or_repeat() {
    let store = MemoryStore::new();
    for n in 0..20 {
        set(&store, &key("a", &format!("x{}", n % 3)), json!({"n": n})).await;
    }
    for after in 1..=21 {
        let mut watch = store.watch(everything(), after).unwrap();
        assert_eq!(
            revisions(&drain(&mut *watch)),
            (after + 1..=21).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn a_second_watch_of_one_object_may_start_further_back() {
    let store = MemoryStore::new();
    for n in 0..4 {
        set(&store, &key("a", "x"), json!({"n": n})).await;
    }
    let mut newer = store.watch(range(Some("a"), Some("x")), 4).unwrap();
    let mut older = store.watch(range(Some("a"), Some("x")), 1).unwrap();
    assert_eq!(revisions(&drain(&mut *older)), [2, 3, 4, 5]);
    assert_eq!(revisions(&drain(&mut *newer)), [5]);
    drop(older);
    set(&store, &key("a", "x"), json!({})).await;
    assert_eq!(revisions(&drain(&mut *newer)), [6]);
}

#[tokio::test]
async fn watch_before_the_oldest_revision_expires() {
    let store = short(0, 10);
    for n in 0..30 {
        set(&store, &key("a", &n.to_string()), json!({})).await;
    }
    // Revisions 22..=31 are retained, so a watch can start after 21 but not after 20.
    let Err(expired) = store.watch(everything(), 20) else {
        panic!("a watch after 20 would miss revision 21")
    };
    assert_eq!(
        expired,
        Expired {
            asked: 20,
            oldest: 21
        }
    );
    assert_eq!(store.list(&everything(), Some(20)).unwrap_err().oldest, 21);
    let mut watch = store.watch(everything(), 21).unwrap();
    assert_eq!(
        revisions(&drain(&mut *watch)),
        (22..=31).collect::<Vec<_>>()
    );
    assert_eq!(
        store.list(&everything(), Some(21)).unwrap().objects.len(),
        20
    );
}

#[tokio::test]
async fn a_slow_reader_expires_and_a_quiet_range_does_not() {
    let store = short(0, 10);
    set(&store, &key("a", "quiet"), json!({})).await;
    let mut slow = store.watch(everything(), store.revision()).unwrap();
    let mut slow_one = store
        .watch(range(Some("a"), Some("busy")), store.revision())
        .unwrap();
    let mut quiet = store
        .watch(range(Some("a"), Some("quiet")), store.revision())
        .unwrap();
    for n in 0..50 {
        set(&store, &key("a", "busy"), json!({"n": n})).await;
    }
    for watch in [&mut slow, &mut slow_one] {
        let end = watch.next().now_or_never().unwrap().unwrap_err();
        assert_eq!(
            end,
            WatchEnd::Expired(Expired {
                asked: 2,
                oldest: 42
            })
        );
        assert_eq!(watch.revision(), 2, "a bookmark must not skip lost events");
    }
    assert!(quiet.next().now_or_never().is_none());
    assert_eq!(
        quiet.revision(),
        store.revision(),
        "the revision of a quiet range follows the store"
    );
    let event = set(&store, &key("a", "quiet"), json!({})).await;
    assert_eq!(revisions(&drain(&mut *quiet)), [event.revision]);
}

#[tokio::test]
async fn watch_from_future_revision_skips_earlier_events() {
    let store = MemoryStore::new();
    let mut watch = store.watch(everything(), 4).unwrap();
    for n in 0..5 {
        set(&store, &key("a", "x"), json!({"n": n})).await;
    }
    assert_eq!(revisions(&drain(&mut *watch)), [5, 6]);
}

#[tokio::test]
async fn a_bookmark_never_runs_ahead_of_the_reader() {
    let store = MemoryStore::new();
    let mut watch = store.watch(everything(), store.revision()).unwrap();
    let first = set(&store, &key("a", "x"), json!({})).await.revision;
    set(&store, &key("a", "y"), json!({})).await;
    assert_eq!(watch.revision(), first - 1);
    watch.next().await.unwrap();
    assert_eq!(watch.revision(), first);
    watch.next().await.unwrap();
    assert_eq!(watch.revision(), store.revision());
}

#[tokio::test]
async fn waiting_readers_wake_and_a_cancelled_call_loses_nothing() {
    let store = Arc::new(MemoryStore::new());
    let mut watch = store.watch(range(Some("a"), Some("x")), 1).unwrap();
    assert!(watch.next().now_or_never().is_none());
    let waiting = tokio::spawn(async move {
        let event = watch.next().await.unwrap();
        (event.revision, watch)
    });
    let reached = tokio::spawn({
        let store = store.clone();
        async move { store.reached(3).await }
    });
    tokio::task::yield_now().await;
    set(&*store, &key("b", "x"), json!({})).await;
    set(&*store, &key("a", "x"), json!({})).await;
    let (revision, _watch) = tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(revision, 3);
    tokio::time::timeout(Duration::from_secs(20), reached)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn closing_ends_a_watch_after_its_last_event() {
    let store = MemoryStore::new();
    let mut watch = store.watch(everything(), 1).unwrap();
    set(&store, &key("a", "x"), json!({})).await;
    drop(store);
    assert_eq!(watch.next().await.unwrap().revision, 2);
    assert_eq!(watch.next().await.unwrap_err(), WatchEnd::Closed);
}

#[tokio::test]
async fn jump_expires_older_revisions() {
    let store = MemoryStore::new();
    set(&store, &key("a", "x"), json!({})).await;
    let mut watch = store.watch(range(Some("a"), None), 2).unwrap();
    let after = store.jump(1000).await.unwrap();
    assert_eq!(after, 1002);
    assert!(matches!(watch.next().await, Err(WatchEnd::Expired(_))));
    assert_eq!(store.list(&everything(), Some(2)).unwrap_err().oldest, 1002);
    assert_eq!(store.list(&everything(), None).unwrap().revision, 1002);
    assert_eq!(set(&store, &key("a", "y"), json!({})).await.revision, 1003);
}

#[tokio::test]
async fn conflicts_name_the_present_version() {
    use super::super::WriteError::Conflict;
    let store = MemoryStore::new();
    let lock = key("a", "x");
    let missing = store
        .write(put(&lock, Expected::Revision(1), json!({})))
        .await;
    assert!(matches!(missing, Err(Conflict(None))));
    let first = set(&store, &lock, json!({})).await;
    for expected in [
        Expected::Absent,
        Expected::Revision(1),
        Expected::Revision(99),
    ] {
        let Err(Conflict(Some(present))) = store.write(put(&lock, expected, json!({}))).await
        else {
            panic!("{expected:?} does not hold")
        };
        assert_eq!(present.revision, first.revision);
    }
    assert_eq!(
        store.revision(),
        first.revision,
        "a rejected write must not use a revision"
    );
}
