//! Backups: saved under load, damaged, and restored. A restore never reuses a revision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::super::backup::{BackupError, replace, restore, save};
use super::super::testing::{everything, key, lease, put, set};
use super::super::{
    Encryption, Expected, Fence, MemoryStore, OpenError, RedbStore, Store, Write, WriteError,
};
use super::durable::content;

#[tokio::test]
async fn a_restore_has_the_objects_and_a_later_revision() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    let store = RedbStore::open(dir.path().join("old")).unwrap();
    let lock = key("a", "lock");
    let token = set(&store, &lock, lease("me", "t1", 1)).await.revision;
    set(
        &store,
        &key("b", "x"),
        json!({"metadata": {"labels": {"a": "b"}}}),
    )
    .await;
    let saved = save(&store, &file).unwrap();
    assert_eq!((saved.revision, saved.objects), (store.revision(), 2));
    let lost = set(&store, &key("b", "lost"), json!({})).await.revision;

    let new = dir.path().join("new");
    let report = restore(&file, &new, &Encryption::OFF).unwrap();
    assert_eq!(report.objects, 2);
    assert!(report.revision > saved.revision + (1 << 40));
    assert!(report.revision < 1 << 53);
    let restored = RedbStore::open(&new).unwrap();
    assert_eq!(restored.revision(), report.revision);
    for old in [1, saved.revision, lost] {
        assert!(
            restored.watch(everything(), old).is_err(),
            "a watch from {old} must expire"
        );
        assert!(restored.list(&everything(), Some(old)).is_err());
    }
    let mut expected = content(&store);
    expected.retain(|name, _| !name.contains("lost"));
    assert_eq!(content(&restored), expected);

    let fenced = |token, name: &str| Write {
        fence: Some(Fence {
            lease: lock.clone(),
            token,
            holder: "me".to_owned(),
        }),
        ..put(&key("b", name), Expected::Absent, json!({}))
    };
    let stale = restored.write(fenced(token, "y")).await;
    assert!(matches!(stale, Err(WriteError::Fenced(_))), "{stale:?}");
    set(&restored, &lock, lease("me", "t1", 2)).await;
    let stale = restored.write(fenced(token, "y")).await;
    assert!(
        matches!(stale, Err(WriteError::Fenced(_))),
        "a renewal must not start a new term: {stale:?}"
    );
    let term = set(&restored, &lock, lease("me", "t2", 3)).await.revision;
    restored.write(fenced(term, "y")).await.unwrap();

    let error = restore(&file, &new, &Encryption::OFF).unwrap_err();
    assert!(
        matches!(error, BackupError::Store(OpenError::InUse { .. })),
        "{error}"
    );
    drop(restored);
    let error = restore(&file, &new, &Encryption::OFF).unwrap_err();
    assert!(
        matches!(error, BackupError::Store(OpenError::Exists { .. })),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_under_load_is_consistent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    let stop = Arc::new(AtomicBool::new(false));
    // The writer sets first a and then b to the same number, so that a == b or a == b + 1 at every revision.
    let writer = tokio::spawn({
        let (store, stop) = (store.clone(), stop.clone());
        async move {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                n += 1;
                set(&*store, &key("x", "a"), json!({"n": n})).await;
                set(&*store, &key("x", "b"), json!({"n": n})).await;
                tokio::task::yield_now().await;
            }
        }
    });
    store.reached(10).await;
    for n in 0..20 {
        let file = dir.path().join(format!("{n}"));
        let saved = save(&*store, &file).unwrap();
        let target = dir.path().join(format!("dir{n}"));
        restore(&file, &target, &Encryption::OFF).unwrap();
        let restored = RedbStore::open(&target).unwrap();
        let number = |name| {
            let object = restored.get(&key("x", name)).unwrap();
            assert!(object.revision <= saved.revision);
            serde_json::from_slice::<serde_json::Value>(&object.json).unwrap()["n"].as_i64()
        };
        let (a, b) = (number("a").unwrap(), number("b").unwrap());
        assert!(a == b || a == b + 1, "a {a}, b {b}");
    }
    stop.store(true, Ordering::Relaxed);
    writer.await.unwrap();
}

#[tokio::test]
async fn damaged_backup_is_rejected_and_creates_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    let store = MemoryStore::new();
    for n in 0..5 {
        set(&store, &key("a", &format!("x{n}")), json!({"n": n})).await;
    }
    save(&store, &file).unwrap();
    let good = std::fs::read(&file).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        std::fs::write(&file, &bad).unwrap();
        let target = dir.path().join("target");
        let error = restore(&file, &target, &Encryption::OFF).unwrap_err();
        assert!(
            matches!(error, BackupError::Damaged { .. }),
            "byte {at}: {error}"
        );
        assert!(!target.exists());
        std::fs::write(&file, &good[..at]).unwrap();
        assert!(
            matches!(
                restore(&file, &target, &Encryption::OFF),
                Err(BackupError::Damaged { .. })
            ),
            "cut at {at}"
        );
    }
}

#[tokio::test]
async fn restores_of_one_backup_start_at_different_revisions() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    let store = MemoryStore::new();
    set(&store, &key("a", "x"), json!({})).await;
    save(&store, &file).unwrap();
    // The second backup is of a store that was itself just restored.
    restore(&file, dir.path().join("first"), &Encryption::OFF).unwrap();
    let first = RedbStore::open(dir.path().join("first")).unwrap();
    save(&first, &file).unwrap();
    let mut highest = first.revision();
    for n in 0..5 {
        let report = restore(&file, dir.path().join(n.to_string()), &Encryption::OFF).unwrap();
        assert!(
            report.revision > highest,
            "{} after {highest}",
            report.revision
        );
        highest = report.revision;
    }
}

#[tokio::test]
async fn replaced_store_is_kept_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let (file, home) = (dir.path().join("backup"), dir.path().join("home"));
    let store = RedbStore::open(&home).unwrap();
    set(&store, &key("a", "saved"), json!({})).await;
    save(&store, &file).unwrap();
    set(&store, &key("a", "later"), json!({})).await;
    let error = replace(&file, &home, &Encryption::OFF).unwrap_err();
    assert!(
        matches!(error, BackupError::Store(OpenError::InUse { .. })),
        "{error}"
    );
    // A restore with a wrong clock can leave the revision far ahead of the clock.
    let ahead = store.jump(1 << 60).await.unwrap();
    let before = content(&store);
    drop(store);

    let (report, kept) = replace(&file, &home, &Encryption::OFF).unwrap();
    assert_eq!(report.objects, 1);
    assert!(report.revision > ahead);
    let store = RedbStore::open(&home).unwrap();
    assert_eq!(store.revision(), report.revision);
    assert!(store.get(&key("a", "later")).is_none());
    assert!(store.get(&key("a", "saved")).is_some());
    drop(store);
    let old = dir.path().join("old");
    std::fs::create_dir(&old).unwrap();
    std::fs::rename(kept.unwrap(), old.join("store.redb")).unwrap();
    assert_eq!(content(&RedbStore::open(&old).unwrap()), before);

    // A crash during a replacement leaves a partial file and a second hard link to the store.
    std::fs::write(home.join("store.redb.part"), "half").unwrap();
    std::fs::hard_link(home.join("store.redb"), home.join("store.redb.before-1")).unwrap();
    assert!(
        RedbStore::open(&home)
            .unwrap()
            .get(&key("a", "saved"))
            .is_some()
    );
    replace(&file, &home, &Encryption::OFF).unwrap();
}
