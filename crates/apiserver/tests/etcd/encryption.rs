//! Encrypted values in etcd: no clear text, no start without the key, and rotation while servers write.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tenure_apiserver::store::{Encryption, EtcdConfig, EtcdError, EtcdStore, Scope};

use super::harness::{Etcd, until};
use super::*;

const SECRET: &str = "c2VjcmV0LW1hcmtlcg";

fn secret(name: &str) -> Key {
    Key {
        resource: "/secrets".into(),
        ..key(name)
    }
}

fn password(n: usize) -> Value {
    json!({"metadata": {"name": "x", "labels": {"l": SECRET}}, "data": {"p": SECRET, "n": n}})
}

/// Key files: the old key, both with the new one first, both with the old one first, and the new one.
struct KeyFiles {
    _dir: tempfile::TempDir,
    old: Encryption,
    new_and_old: Encryption,
    old_and_new: Encryption,
    new: Encryption,
}

impl KeyFiles {
    fn new(scope: Scope) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        Encryption::create_key_file(path("old")).unwrap();
        Encryption::create_key_file(path("new")).unwrap();
        let text = |name: &str| std::fs::read(path(name)).unwrap();
        let join = |name: &str, first: &str, second: &str| {
            // A copy keeps the mode.
            std::fs::copy(path("old"), path(name)).unwrap();
            std::fs::write(path(name), [text(first), text(second)].concat()).unwrap();
        };
        join("new-old", "new", "old");
        join("old-new", "old", "new");
        let read = |name: &str| Encryption::read(path(name), scope).unwrap();
        let (old, new_and_old) = (read("old"), read("new-old"));
        let (old_and_new, new) = (read("old-new"), read("new"));
        Self {
            _dir: dir,
            old,
            new_and_old,
            old_and_new,
            new,
        }
    }
}

fn config(etcd: &Etcd, encryption: &Encryption) -> EtcdConfig {
    EtcdConfig {
        encryption: encryption.clone(),
        ..etcd.config()
    }
}

async fn open(etcd: &Etcd, encryption: &Encryption) -> Result<Arc<EtcdStore>, EtcdError> {
    EtcdStore::open(config(etcd, encryption))
        .await
        .map(Arc::new)
}

/// Returns all values below the prefix, as etcd has them.
async fn raw_values(etcd: &Etcd) -> Vec<Vec<u8>> {
    let body =
        json!({"key": STANDARD.encode("/tenure/"), "range_end": STANDARD.encode("/tenure0")});
    let found = etcd.raw("/v3/kv/range", &body).await;
    let values = found["kvs"].as_array().unwrap().iter();
    values
        .map(|kv| {
            STANDARD
                .decode(kv["value"].as_str().unwrap_or_default())
                .unwrap()
        })
        .collect()
}

async fn with_text(etcd: &Etcd, text: &str) -> usize {
    let values = raw_values(etcd).await;
    let has = |value: &&Vec<u8>| {
        value
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    values.iter().filter(has).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_encrypted_and_need_their_key() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let keys = KeyFiles::new(Scope::Secrets);
    let store = open(&etcd, &keys.old).await.unwrap();
    let other = open(&etcd, &keys.old_and_new).await.unwrap();
    let written = store.write(put(&secret("a"), Expected::Absent, password(1)));
    let written = written.await.unwrap();
    create(&*store, "lease", 1).await;
    let shared = store
        .agree("keys", SECRET.as_bytes().to_vec())
        .await
        .unwrap();
    assert_eq!(shared, SECRET.as_bytes());
    assert_eq!(other.agree("keys", b"mine".to_vec()).await.unwrap(), shared);
    // The mirror of another server decrypts the event.
    other.fresh().await.unwrap();
    let read = other.get(&secret("a")).unwrap();
    assert_eq!((&read.json, &read.labels), (&written.json, &written.labels));
    assert_eq!(with_text(&etcd, SECRET).await, 0);
    assert_eq!(
        with_text(&etcd, "\"n\":1").await,
        1,
        "the lease is in clear text"
    );

    let id = keys.old.writing_key().unwrap().to_string();
    for wrong in [&keys.new, &Encryption::OFF] {
        // A missing key is reported immediately, not after the time limit of opening.
        let opened = tokio::time::timeout(Duration::from_secs(10), open(&etcd, wrong)).await;
        let error = opened.unwrap().unwrap_err();
        assert!(matches!(error, EtcdError::Locked(_)), "{error}");
        let error = error.to_string();
        assert!(
            error.contains("secrets ns/a is encrypted with key "),
            "{error}"
        );
        assert!(error.contains(&id), "{error}");
    }
    // A value that was moved to another key is not served.
    let copied = raw_values(&etcd).await;
    let value = copied
        .iter()
        .find(|value| value.starts_with(b"tenure2 term="));
    let body = json!({"key": STANDARD.encode("/tenure/registry//secrets/ns/b"),
        "value": STANDARD.encode(value.unwrap())});
    etcd.raw("/v3/kv/put", &body).await;
    let reason = "secrets ns/b cannot be decrypted";
    until(reason, async || {
        store.failure().is_some_and(|why| why.contains(reason))
    })
    .await;
    etcd.raw_delete_all("/tenure/registry//secrets/ns/b").await;
    until("ready", async || store.failure().is_none()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rotation_while_servers_write_loses_nothing() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let keys = KeyFiles::new(Scope::All);
    let plain = etcd.store().await;
    for n in 0..50 {
        let key = secret(&format!("s{n}"));
        plain
            .write(put(&key, Expected::Absent, password(n)))
            .await
            .unwrap();
    }
    let lock = plain.write(put(
        &key("lock"),
        Expected::Absent,
        json!({"metadata": {}, "spec": {"holderIdentity": "me", "acquireTime": "t"}}),
    ));
    let token = lock.await.unwrap().revision;
    plain
        .agree("keys", SECRET.as_bytes().to_vec())
        .await
        .unwrap();
    drop(plain);
    assert_eq!(with_text(&etcd, SECRET).await, 51);

    let store = open(&etcd, &keys.old).await.unwrap();
    let rotated = EtcdStore::rotate_keys(config(&etcd, &keys.old), |_| {})
        .await
        .unwrap();
    assert_eq!((rotated.read, rotated.encrypted), (51, 51));
    assert_eq!(
        rotated.rewritten, 52,
        "the shared keys must be encrypted too"
    );
    assert_eq!(with_text(&etcd, SECRET).await, 0);
    drop(store);

    // A server writes with the new key while the values of the old one are rewritten.
    let store = open(&etcd, &keys.new_and_old).await.unwrap();
    let late = open(&etcd, &keys.old_and_new).await.unwrap();
    late.write(put(&secret("late"), Expected::Absent, password(99)))
        .await
        .unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, done) = (Arc::clone(&store), Arc::clone(&done));
        async move {
            let mut counts = vec![0; 50];
            let mut n = 0;
            while !done.load(Ordering::Acquire) {
                n += 1;
                let at = n % 50;
                let key = secret(&format!("s{at}"));
                let present = store.get(&key).unwrap().revision;
                let write = put(&key, Expected::Revision(present), password(1000 + n));
                match store.write(write).await {
                    Ok(_) => counts[at] = 1000 + n,
                    Err(WriteError::Conflict(_)) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            counts
        }
    });
    let rotated = EtcdStore::rotate_keys(config(&etcd, &keys.new_and_old), |_| {})
        .await
        .unwrap();
    done.store(true, Ordering::Release);
    let counts = writer.await.unwrap();
    assert_eq!((rotated.read, rotated.encrypted), (52, 52));
    drop((store, late));

    let store = open(&etcd, &keys.new).await.unwrap();
    for (n, count) in counts.into_iter().enumerate() {
        let object = store.get(&secret(&format!("s{n}"))).unwrap();
        let expected = if count == 0 { n } else { count };
        assert_eq!(value(&object)["data"]["n"], expected);
    }
    assert_eq!(
        store.agree("keys", Vec::new()).await.unwrap(),
        SECRET.as_bytes()
    );
    // The rewritten lease has another revision, and the token of its term is still valid.
    let lease = store.get(&key("lock")).unwrap();
    assert!(lease.revision > token);
    let fence = Fence {
        lease: key("lock"),
        token,
        holder: "me".to_owned(),
    };
    let write = under(fence, put(&key("fenced"), Expected::Absent, json!({})));
    store.write(write).await.unwrap();
    let again = EtcdStore::rotate_keys(config(&etcd, &keys.new), |_| {})
        .await
        .unwrap();
    assert_eq!(again.rewritten, 0);
    let error = EtcdStore::rotate_keys(config(&etcd, &keys.old), |_| {})
        .await
        .unwrap_err();
    assert!(matches!(error, EtcdError::Locked(_)), "{error}");
}
