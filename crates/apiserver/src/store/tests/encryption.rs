//! Encrypted stores: no clear text in any file, no start without the key, and rotation without loss.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::super::backup::{BackupError, restore, save};
use super::super::durable::Config;
use super::super::testing::{LEASES, delete, everything, key, lease, put, set};
use super::super::{
    Encryption, Expected, Fence, Key, MemoryStore, OpenError, Range, RedbStore, Scope, Store, Write,
};
use super::medium::small;

/// Text in the value and the label of a Secret.
const SECRET: &str = "c2VjcmV0LW1hcmtlcg";
/// Text in the value of a ConfigMap.
const PLAIN: &str = "cGxhaW4tbWFya2Vy";

fn object(resource: &str, name: &str) -> Key {
    Key {
        resource: resource.into(),
        ..key("ns", name)
    }
}

fn secret(n: usize) -> Value {
    json!({"metadata": {"labels": {"l": SECRET}}, "data": {"password": SECRET, "n": n.to_string()}})
}

fn keys(keys: &[u8]) -> Encryption {
    Encryption::of(keys, Scope::Secrets)
}

fn open(dir: &Path, encryption: &Encryption) -> Result<RedbStore, OpenError> {
    let config = Config {
        encryption: encryption.clone(),
        ..small()
    };
    RedbStore::configured(dir, config)
}

/// Writes Secrets and other objects until the log is folded, so that both tables contain some.
async fn fill(store: &dyn Store) {
    for n in 0..40 {
        let name = format!("s{}", n % 10);
        set(store, &object("/secrets", &name), secret(n)).await;
        let value = json!({"data": {"x": PLAIN}});
        set(store, &object("/configmaps", &format!("c{n}")), value).await;
        set(store, &key("ns", "lock"), lease("me", "t1", n as u64)).await;
    }
    let gone = store.get(&object("/secrets", "s9")).unwrap();
    store.write(delete(&gone.key, gone.revision)).await.unwrap();
}

fn content(store: &dyn Store) -> BTreeMap<String, (u64, Vec<u8>)> {
    let ranges = ["/secrets", "/configmaps", LEASES].map(|resource| Range {
        resource: resource.into(),
        ..everything()
    });
    let objects = ranges
        .iter()
        .flat_map(|range| store.list(range, None).unwrap().objects);
    objects
        .map(|o| (o.key.to_string(), (o.revision, o.json.to_vec())))
        .collect()
}

fn contains(path: &Path, text: &str) -> bool {
    let bytes = fs::read(path).unwrap();
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

/// Returns the files below a folder that contain a text.
fn files_with(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if contains(&path, text) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn no_file_has_a_secret_in_clear_text() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let store = open(&home, &keys(&[1])).unwrap();
    fill(&store).await;
    // The copy is the state after a SIGKILL.
    fs::copy(home.join("store.redb"), dir.path().join("crashed")).unwrap();
    save(&store, dir.path().join("backup")).unwrap();
    let before = content(&store);
    store.close();
    assert!(files_with(dir.path(), SECRET).is_empty());
    let plain = files_with(dir.path(), PLAIN);
    assert_eq!(plain.len(), 3, "the search must find clear text: {plain:?}");
    let again = open(&home, &keys(&[1])).unwrap();
    assert_eq!(content(&again), before);
    drop(again);

    restore(
        dir.path().join("backup"),
        dir.path().join("new"),
        &keys(&[1]),
    )
    .unwrap();
    assert!(files_with(&dir.path().join("new"), SECRET).is_empty());
    let memory = MemoryStore::new().encrypted(keys(&[1]));
    fill(&memory).await;
    save(&memory, dir.path().join("of-memory")).unwrap();
    assert!(!contains(&dir.path().join("of-memory"), SECRET));
    assert!(contains(&dir.path().join("of-memory"), PLAIN));

    let all = dir.path().join("all");
    let store = open(&all, &Encryption::of(&[1], Scope::All)).unwrap();
    fill(&store).await;
    drop(store);
    assert!(files_with(&all, SECRET).is_empty());
    assert!(files_with(&all, PLAIN).is_empty());
}

#[tokio::test]
async fn store_without_its_key_does_not_open_and_stays_usable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backup");
    let home = dir.path().join("home");
    let store = open(&home, &keys(&[1])).unwrap();
    fill(&store).await;
    let before = content(&store);
    save(&store, &file).unwrap();
    drop(store);
    let id = keys(&[1]).writing_key().unwrap().to_string();
    for (wrong, hint) in [
        (Encryption::OFF, "--encryption-key-file FILE"),
        (
            keys(&[2, 3]),
            "which is not in /etc/tenure/keys; add this key",
        ),
        (Encryption::of(&[2], Scope::None), "which is not in"),
    ] {
        let error = open(&home, &wrong).unwrap_err();
        assert!(matches!(error, OpenError::Locked { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("store.redb: secrets ns/s"), "{error}");
        assert!(error.contains(&id) && error.contains(hint), "{error}");
        let error = RedbStore::rotate_keys(&home, &wrong, |_| {}).unwrap_err();
        assert!(matches!(error, OpenError::Locked { .. }), "{error}");
        assert!(!home.join("store.redb.part").exists());
        let target = dir.path().join("target");
        let error = restore(&file, &target, &wrong).unwrap_err();
        assert!(matches!(error, BackupError::Locked { .. }), "{error}");
        assert!(error.to_string().contains(&id), "{error}");
        assert!(!target.join("store.redb").exists());
    }
    for right in [keys(&[1]), keys(&[2, 1]), Encryption::of(&[1], Scope::None)] {
        assert_eq!(content(&open(&home, &right).unwrap()), before);
    }
}

#[tokio::test]
async fn rotation_encrypts_a_plain_store_and_then_changes_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    let store = open(home, &Encryption::OFF).unwrap();
    fill(&store).await;
    let lock = key("ns", "lock");
    let token = set(&store, &lock, lease("other", "t2", 99)).await.revision;
    drop(store);
    assert_eq!(files_with(home, SECRET).len(), 1);

    // A store with a key reads clear text and writes encrypted values.
    let store = open(home, &keys(&[1])).unwrap();
    set(&store, &object("/secrets", "s0"), secret(100)).await;
    let (before, revision) = (content(&store), store.revision());
    drop(store);
    let mut steps = 0;
    let rotation = RedbStore::rotate_keys(home, &keys(&[1]), |_| steps += 1).unwrap();
    assert_eq!((rotation.rewritten, rotation.encrypted), (8, 9));
    assert_eq!((rotation.read, rotation.total), (50, Some(50)));
    assert_eq!(steps, 50);
    assert!(
        files_with(home, SECRET).is_empty(),
        "free pages must not contain the secret"
    );
    let store = open(home, &keys(&[1])).unwrap();
    assert_eq!(
        (content(&store), store.revision()),
        (before.clone(), revision)
    );
    drop(store);

    // The new key is first. After the rotation, the old one is not needed.
    assert!(open(home, &keys(&[2])).is_err());
    let rotation = RedbStore::rotate_keys(home, &keys(&[2, 1]), |_| {}).unwrap();
    assert_eq!((rotation.rewritten, rotation.encrypted), (9, 9));
    let again = RedbStore::rotate_keys(home, &keys(&[2, 1]), |_| {}).unwrap();
    assert_eq!((again.rewritten, again.encrypted), (0, 9));
    assert!(open(home, &keys(&[1])).is_err());
    let store = open(home, &keys(&[2])).unwrap();
    assert_eq!(
        (content(&store), store.revision()),
        (before.clone(), revision)
    );
    // The token of the term is still valid.
    let fenced = Write {
        fence: Some(Fence {
            lease: lock,
            token,
            holder: "other".to_owned(),
        }),
        ..put(&key("ns", "fenced"), Expected::Absent, json!({}))
    };
    let fenced = store.write(fenced).await.unwrap();
    store
        .write(delete(&fenced.key, fenced.revision))
        .await
        .unwrap();
    drop(store);

    for (scope, encrypted, rewritten) in [(Scope::All, 50, 41), (Scope::None, 0, 50)] {
        let keys = Encryption::of(&[2], scope);
        let rotation = RedbStore::rotate_keys(home, &keys, |_| {}).unwrap();
        assert_eq!(
            (rotation.rewritten, rotation.encrypted),
            (rewritten, encrypted)
        );
    }
    assert_eq!(content(&open(home, &Encryption::OFF).unwrap()), before);
}

#[tokio::test]
async fn rotation_of_a_crashed_store_does_not_reuse_revisions() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("home"), &keys(&[1])).unwrap();
    fill(&store).await;
    let revision = store.revision();
    let error = RedbStore::rotate_keys(dir.path().join("home"), &keys(&[1]), |_| {}).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    let crashed = dir.path().join("crashed");
    fs::create_dir(&crashed).unwrap();
    fs::copy(
        dir.path().join("home/store.redb"),
        crashed.join("store.redb"),
    )
    .unwrap();
    let before = content(&store);
    fs::write(
        crashed.join("store.redb.part"),
        "of an interrupted rotation",
    )
    .unwrap();
    RedbStore::rotate_keys(&crashed, &keys(&[2, 1]), |_| {}).unwrap();
    assert!(!crashed.join("store.redb.part").exists());
    let rotated = open(&crashed, &keys(&[2])).unwrap();
    assert_eq!(content(&rotated), before);
    assert!(
        rotated.revision() > revision,
        "reserved revisions must not be reused"
    );
}

#[tokio::test]
async fn rotation_without_data_or_with_damage_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let error = RedbStore::rotate_keys(dir.path(), &keys(&[1]), |_| {}).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    let store = open(dir.path(), &Encryption::OFF).unwrap();
    fill(&store).await;
    drop(store);
    let file = dir.path().join("store.redb");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes
        .windows(PLAIN.len())
        .rposition(|part| part == PLAIN.as_bytes());
    bytes[at.unwrap()] ^= 1;
    let mut hits = 0;
    for at in 0..bytes.len() - PLAIN.len() {
        if bytes[at..].starts_with(PLAIN.as_bytes()) {
            bytes[at] ^= 1;
            hits += 1;
        }
    }
    assert!(hits > 0);
    fs::write(&file, &bytes).unwrap();
    let error = RedbStore::rotate_keys(dir.path(), &keys(&[1]), |_| {}).unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    assert!(!dir.path().join("store.redb.part").exists());
    assert!(contains(&file, SECRET));
}
