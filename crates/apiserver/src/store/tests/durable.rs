//! The durable engine: restarts, locks, full and failing disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::super::testing::{delete, everything, key, lease, put, set, try_set};
use super::super::{Expected, Fence, OpenError, RedbStore, Store, WatchEnd, Write, WriteError};
use super::medium::{Faults, Medium, small};

fn open(medium: &Medium) -> RedbStore {
    RedbStore::on(medium.media(), small()).unwrap()
}

/// Returns the revision and JSON of every object by name.
pub(super) fn content(store: &dyn Store) -> BTreeMap<String, (u64, Vec<u8>)> {
    let objects = store.list(&everything(), None).unwrap().objects;
    let row = |o: &Arc<super::super::Object>| (o.key.to_string(), (o.revision, o.json.to_vec()));
    objects.iter().map(row).collect()
}

#[tokio::test]
async fn clean_restart_continues_at_the_same_revision() {
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(dir.path()).unwrap();
    let first = set(
        &store,
        &key("a", "x"),
        json!({"metadata": {"labels": {"l": "v"}}}),
    )
    .await;
    let second = set(&store, &key("a", "y"), json!({"n": 1})).await;
    store
        .write(delete(&key("a", "y"), second.revision))
        .await
        .unwrap();
    let (revision, before) = (store.revision(), content(&store));
    drop(store);

    let store = RedbStore::open(dir.path()).unwrap();
    assert_eq!(store.revision(), revision);
    assert_eq!(content(&store), before);
    assert_eq!(store.get(&key("a", "x")).unwrap().labels, first.labels);
    assert!(store.watch(everything(), revision).is_ok());
    assert_eq!(
        store
            .watch(everything(), revision - 1)
            .err()
            .unwrap()
            .oldest,
        revision
    );
    assert_eq!(
        set(&store, &key("a", "z"), json!({})).await.revision,
        revision + 1
    );
}

#[tokio::test]
async fn a_restart_after_a_crash_skips_the_reserved_revisions() {
    let medium = Medium::default();
    let store = open(&medium);
    for n in 0..20 {
        set(&store, &key("a", "x"), json!({"n": n})).await;
    }
    let (revision, before) = (store.revision(), content(&store));
    let crashed = open(&Medium::of(medium.bytes()));
    assert!(
        crashed.revision() > revision + 1000,
        "{} after {revision}",
        crashed.revision()
    );
    assert_eq!(content(&crashed), before);
    assert!(
        crashed.watch(everything(), revision).is_err(),
        "the history must be expired"
    );
}

#[tokio::test]
async fn directory_is_used_by_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let _store = RedbStore::open(dir.path()).unwrap();
    let error = RedbStore::open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }));
    let expected = format!("in use by process {}", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
}

#[tokio::test]
async fn emptied_file_is_rejected_as_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("store.redb");
    // A crash during the first start leaves only the partial file, and the next start creates a new store.
    std::fs::write(dir.path().join("store.redb.part"), "half").unwrap();
    drop(RedbStore::open(dir.path()).unwrap());
    std::fs::write(&file, "").unwrap();
    let error = RedbStore::open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("store.redb is damaged: it is empty"),
        "{error}"
    );
}

#[tokio::test]
async fn files_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let store = RedbStore::open(dir.path()).unwrap();
    super::super::backup::save(&store, dir.path().join("backup")).unwrap();
    for name in ["store.redb", "backup"] {
        let mode = std::fs::metadata(dir.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
    }
}

#[tokio::test]
async fn the_token_survives_a_restart() {
    let medium = Medium::default();
    let store = open(&medium);
    let lock = key("a", "lock");
    let token = set(&store, &lock, lease("me", "t1", 1)).await.revision;
    set(&store, &lock, lease("me", "t1", 2)).await;
    let store = open(&Medium::of(medium.bytes()));
    let renewed = set(&store, &lock, lease("me", "t1", 3)).await.revision;
    let write = |token| Write {
        fence: Some(Fence {
            lease: lock.clone(),
            token,
            holder: "me".to_owned(),
        }),
        ..put(&key("a", &token.to_string()), Expected::Absent, json!({}))
    };
    store.write(write(token)).await.unwrap();
    assert!(matches!(
        store.write(write(renewed)).await,
        Err(WriteError::Fenced(_))
    ));
}

#[tokio::test]
async fn fence_is_checked_against_earlier_writes_of_the_same_group() {
    let store = Arc::new(open(&Medium::default()));
    let lock = key("a", "lock");
    for round in 0..50 {
        let term = set(&*store, &lock, lease("me", &format!("t{round}"), 0))
            .await
            .revision;
        let fence = Fence {
            lease: lock.clone(),
            token: term,
            holder: "me".to_owned(),
        };
        let target = key("a", &format!("target{round}"));
        let fenced = Write {
            fence: Some(fence),
            ..put(&target, Expected::Absent, json!({}))
        };
        let theft = put(&lock, Expected::Revision(term), lease("you", "now", 0));
        let (fenced, theft) = tokio::join!(store.write(fenced), store.write(theft));
        let theft = theft.unwrap().revision;
        match fenced {
            Ok(object) => assert!(
                object.revision < theft,
                "a fenced write succeeded after another holder won"
            ),
            Err(WriteError::Fenced(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn one_of_many_writers_wins_each_revision() {
    let store = Arc::new(open(&Medium::default()));
    let shared = key("a", "x");
    let first = set(&*store, &shared, json!({})).await.revision;
    let attempts = (0..40).map(|n| {
        let write = put(&shared, Expected::Revision(first), json!({"n": n}));
        let store = store.clone();
        tokio::spawn(async move { store.write(write).await })
    });
    let mut won = 0;
    for attempt in attempts.collect::<Vec<_>>() {
        match attempt.await.unwrap() {
            Ok(_) => won += 1,
            Err(WriteError::Conflict(Some(present))) => assert_eq!(present.revision, first + 1),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(store.revision(), first + 1);
}

/// Fills the store until a write fails for lack of space. Returns the number of acknowledged writes.
async fn fill(store: &dyn Store, prefix: &str) -> usize {
    let filler = "x".repeat(4000);
    for n in 0..20_000 {
        match try_set(
            store,
            &key("a", &format!("{prefix}{n}")),
            json!({"f": filler}),
        )
        .await
        {
            Ok(_) => {}
            Err(WriteError::Full(_)) => return n,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the disk did not become full");
}

async fn recovered(store: &dyn Store) {
    for _ in 0..200 {
        if store.failure().is_none() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the store still rejects writes: {:?}", store.failure());
}

#[tokio::test]
async fn a_full_disk_refuses_writes_serves_reads_and_recovers() {
    let medium = Medium::default();
    let store = open(&medium);
    for (round, faults) in [
        Faults {
            room: Some(medium.len() + (1 << 20)),
            ..Faults::default()
        },
        Faults {
            writes: Some(57),
            ..Faults::default()
        },
        Faults {
            writes: Some(0),
            ..Faults::default()
        },
    ]
    .into_iter()
    .enumerate()
    {
        medium.fault(faults);
        let written = fill(&store, &format!("r{round}-")).await;
        let before = content(&store);
        assert_eq!(
            before
                .keys()
                .filter(|k| k.contains(&format!("/r{round}-")))
                .count(),
            written
        );
        assert!(
            store.failure().unwrap().contains("no space"),
            "{:?}",
            store.failure()
        );
        let again = try_set(&store, &key("a", "more"), json!({})).await;
        assert!(matches!(again, Err(WriteError::Full(_))), "{again:?}");

        medium.fault(Faults::default());
        recovered(&store).await;
        assert_eq!(content(&store), before);
        let after = set(&store, &key("a", &format!("after{round}")), json!({})).await;
        let crashed = open(&Medium::of(medium.bytes()));
        assert!(crashed.revision() > after.revision);
        assert_eq!(content(&crashed), content(&store));
    }
}

#[tokio::test]
async fn failed_sync_stops_writes_permanently() {
    let medium = Medium::default();
    let store = open(&medium);
    let kept = set(&store, &key("a", "x"), json!({})).await;
    let mut watch = store.watch(everything(), kept.revision).unwrap();
    medium.fault(Faults {
        sync: true,
        ..Faults::default()
    });
    let failed = try_set(&store, &key("a", "y"), json!({})).await;
    assert!(matches!(failed, Err(WriteError::Failed(_))), "{failed:?}");
    assert!(store.failure().unwrap().contains("the sync failed"));
    assert_eq!(
        store.revision(),
        kept.revision,
        "a write that is not durable must not be published"
    );

    medium.fault(Faults::default());
    let later = try_set(&store, &key("a", "z"), json!({})).await;
    assert!(matches!(later, Err(WriteError::Failed(_))), "{later:?}");
    assert!(store.get(&key("a", "x")).is_some());
    store.close();
    assert_eq!(watch.next().await.unwrap_err(), WatchEnd::Closed);
    let restarted = open(&Medium::of(medium.bytes()));
    assert!(
        restarted.revision() > kept.revision + 1,
        "the revisions of the failed commit must not be reused"
    );
}

#[tokio::test]
async fn a_full_file_system_refuses_writes_and_recovers() {
    let Some(mount) = Tmpfs::new() else {
        let ci = std::env::var_os("CI").is_some_and(|ci| ci == "true");
        assert!(!ci, "mounting a small tmpfs needs root, which CI must have");
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    };
    let store = RedbStore::open(mount.0.path().join("data")).unwrap();
    let ballast = mount.0.path().join("ballast");
    std::fs::write(&ballast, vec![1; 4 << 20]).unwrap();
    let written = fill(&store, "a").await;
    assert!(written > 0);
    assert_eq!(content(&store).len(), written);
    std::fs::remove_file(&ballast).unwrap();
    recovered(&store).await;
    set(&store, &key("a", "after"), json!({})).await;
    let before = content(&store);
    drop(store);
    let store = RedbStore::open(mount.0.path().join("data")).unwrap();
    assert_eq!(content(&store), before);
}

/// A file system of 16 MiB, unmounted on drop.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn new() -> Option<Self> {
        let dir = tempfile::tempdir().ok()?;
        let mut command = std::process::Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=16m", "tmpfs"])
            .arg(dir.path());
        command.output().ok()?.status.success().then(|| Self(dir))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0.path())
            .output();
    }
}

#[tokio::test]
async fn open_on_full_disk_never_reuses_revisions() {
    let medium = Medium::default();
    let store = open(&medium);
    set(&store, &key("a", "x"), json!({})).await;
    let crashed = medium.bytes();
    let mut hits = 0;
    // In each round, the space runs out at another write of the repair or of the first commit.
    for writes in 0..60 {
        let disk = Medium::of(crashed.clone());
        disk.fault(Faults {
            writes: Some(writes),
            ..Faults::default()
        });
        let Ok(full) = RedbStore::on(disk.media(), small()) else {
            continue;
        };
        let seen = full.revision();
        assert!(
            seen > store.revision() + 1000,
            "the store must start after the reserved revisions"
        );
        let refused = try_set(&full, &key("a", "y"), json!({})).await;
        hits += usize::from(matches!(refused, Err(WriteError::Full(_))));
        disk.fault(Faults::default());
        let seen = seen.max(full.revision());
        full.close();
        let revision = open(&Medium::of(disk.bytes())).revision();
        assert!(revision >= seen, "{revision} after {seen}");
    }
    assert!(hits > 0, "the disk was never full");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_disk_rejects_writes_above_the_queue_limit() {
    let medium = Medium::default();
    let config = super::super::durable::Config {
        queue_bytes: 64 << 10,
        ..small()
    };
    let store = Arc::new(RedbStore::on(medium.media(), config).unwrap());
    let mut writes = tokio::task::JoinSet::new();
    let hang = medium.hang();
    for n in 0..200 {
        let store = store.clone();
        writes.spawn(async move {
            let value = json!({"x": "y".repeat(1000)});
            try_set(&*store, &key("a", &n.to_string()), value).await
        });
    }
    // The queue holds about sixty writes. The disk hangs until half of all writes were rejected, so that the result
    // does not depend on how fast the tasks start.
    for _ in 0..100 {
        let busy = writes.join_next().await.unwrap().unwrap();
        assert!(matches!(busy, Err(WriteError::Busy)), "{busy:?}");
    }
    drop(hang);
    let mut done = 0;
    while let Some(result) = writes.join_next().await {
        match result.unwrap() {
            Ok(_) => done += 1,
            Err(WriteError::Busy) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert!(done >= 20, "only {done} queued writes succeeded");
    set(&*store, &key("a", "after"), json!({})).await;
}
