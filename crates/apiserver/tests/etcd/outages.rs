//! Etcd becomes unavailable, returns, or compacts its history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use tenure_apiserver::pki::Pki;
use tenure_apiserver::store::{EtcdConfig, EtcdStore, WatchEnd};

use super::harness::{Etcd, LIMIT, Way, until};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_etcd_is_killed() {
    let Some(mut etcd) = Etcd::start().await else {
        return;
    };
    let store = etcd.store().await;
    let mut watch = store.watch(everything(), store.revision()).unwrap();
    let end = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let (store, end) = (Arc::clone(&store), Arc::clone(&end));
        async move {
            let (mut acknowledged, mut unknown) = (Vec::new(), Vec::new());
            let mut n = 0;
            while !end.load(Ordering::Relaxed) {
                n += 1;
                let name = format!("x{n}");
                let write = put(&key(&name), Expected::Absent, json!({"n": n}));
                match store.write(write).await {
                    Ok(object) => acknowledged.push((object.revision, name)),
                    Err(WriteError::Unknown(_)) => unknown.push(name),
                    Err(WriteError::Unavailable(why)) => {
                        assert!(why.contains("etcd"), "{why}");
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            (acknowledged, unknown)
        }
    });
    for _ in 0..3 {
        let before = store.revision();
        until("writes go on", async || store.revision() > before + 20).await;
        etcd.crash();
    }
    let before = store.revision();
    until("writes go on", async || store.revision() > before + 5).await;
    end.store(true, Ordering::Relaxed);
    let (acknowledged, unknown) = writing.await.unwrap();
    let again = etcd.store().await;
    for (revision, name) in &acknowledged {
        let found = again.get(&key(name)).expect("acknowledged");
        assert_eq!(found.revision, *revision);
    }
    let all = again.list(&everything(), None).unwrap().objects;
    assert!(all.len() <= acknowledged.len() + unknown.len());
    // The watch delivered every event exactly once.
    let mut revisions: Vec<u64> = all.iter().map(|object| object.revision).collect();
    revisions.sort_unstable();
    for revision in revisions {
        let event = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
        assert_eq!(event.unwrap().revision, revision);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn write_without_response_is_unknown_and_readyz_names_the_reason() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let store = etcd.store().await;
    create(&*store, "before", 1).await;
    etcd.signal(Signal::STOP);
    let write = put(&key("during"), Expected::Absent, json!({}));
    let refused = tokio::time::timeout(LIMIT, store.write(write))
        .await
        .unwrap();
    let Err(WriteError::Unknown(why) | WriteError::Unavailable(why)) = &refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("etcd"), "{why}");
    until("it is not ready", async || store.failure().is_some()).await;
    let why = store.failure().unwrap();
    assert!(why.contains("etcd") && why.contains(&etcd.url()), "{why}");
    let stale = tokio::time::timeout(LIMIT, store.fresh()).await.unwrap();
    assert!(stale.is_err(), "a fresh read must fail without etcd");
    assert!(
        store.get(&key("before")).is_some(),
        "a stale read must succeed without etcd"
    );
    // The store has already noticed that it cannot send.
    let write = put(&key("later"), Expected::Absent, json!({}));
    let refused = tokio::time::timeout(LIMIT, store.write(write))
        .await
        .unwrap();
    assert!(
        matches!(refused, Err(WriteError::Unavailable(_))),
        "{refused:?}"
    );

    etcd.signal(Signal::CONT);
    until("it is ready again", async || store.failure().is_none()).await;
    assert!(
        read(&*store, "later").await.is_none(),
        "the write must not have been sent"
    );
    create(&*store, "after", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_resumes_after_connection_loss_and_expires_after_compaction() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let way = Way::to(etcd.port()).await;
    let (far, near) = (etcd.store_by(&way).await, etcd.store().await);
    let mut watch = far.watch(everything(), far.revision()).unwrap();

    // After a short interruption, all events arrive.
    way.cut();
    until("it notices", async || far.failure().is_some()).await;
    let mut last = create(&*near, "x", 0).await;
    let mut missed = vec![last.revision];
    for n in 1..5 {
        let expected = Expected::Revision(last.revision);
        let write = put(&key("x"), expected, json!({"n": n}));
        last = near.write(write).await.unwrap();
        missed.push(last.revision);
    }
    // A revision outside our prefix produces no event below it.
    let foreign = etcd.raw_put("/somebody/else", "x").await;
    way.mend();
    until("it is back", async || far.failure().is_none()).await;
    assert!(
        far.revision() >= foreign,
        "the store was ready before its mirror was current"
    );
    for revision in missed {
        let event = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
        assert_eq!(event.unwrap().revision, revision);
    }

    // After an interruption during which etcd compacted its history, the watch expires and then the state is correct
    // again.
    way.cut();
    until("it notices", async || far.failure().is_some()).await;
    let seen = far.revision();
    let gone = near.write(delete(&key("x"), last.revision)).await.unwrap();
    let new = create(&*near, "y", 1).await;
    etcd.compact(new.revision).await;
    way.mend();
    let end = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
    let Err(WatchEnd::Expired(expired)) = end else {
        panic!("a removal was missed: {end:?}");
    };
    assert!(expired.oldest >= new.revision && gone.revision < new.revision);
    assert!(far.watch(everything(), seen).is_err());
    let listing = far.list(&everything(), None).unwrap();
    let names: Vec<_> = listing
        .objects
        .iter()
        .map(|o| o.key.name.as_str())
        .collect();
    assert_eq!(names, ["y"]);
    create(&*far, "z", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn removal_of_many_objects_in_one_transaction_expires_watches() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let store = etcd.store().await;
    for n in 0..3 {
        create(&*store, &format!("x{n}"), n).await;
    }
    let mut watch = store.watch(everything(), store.revision()).unwrap();
    let revision = etcd.raw_delete_all("/tenure/registry/").await;
    let end = tokio::time::timeout(LIMIT, watch.next()).await.unwrap();
    assert!(matches!(end, Err(WatchEnd::Expired(_))), "{end:?}");
    until("the state is right", async || store.revision() >= revision).await;
    assert!(store.list(&everything(), None).unwrap().objects.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_member_serves_when_one_does_not() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let way = Way::to(etcd.port()).await;
    let absent = "http://127.0.0.1:1".to_owned();
    let config = EtcdConfig {
        endpoints: vec![absent.clone(), way.url.clone(), etcd.url()],
        ..etcd.config()
    };
    let store = EtcdStore::open(config).await.unwrap();
    create(&store, "x", 1).await;
    way.cut();
    until("it goes on elsewhere", async || {
        let write = put(&key("y"), Expected::Absent, json!({}));
        match store.write(write).await {
            Ok(_) | Err(WriteError::Conflict(_)) => true,
            Err(WriteError::Unknown(_) | WriteError::Unavailable(_)) => false,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
    let nobody = EtcdConfig {
        endpoints: vec![absent.clone()],
        ..etcd.config()
    };
    let error = EtcdStore::open(nobody).await.unwrap_err().to_string();
    assert!(error.contains(&absent), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_compaction_removes_history_of_etcd() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let config = EtcdConfig {
        compaction: Some(Duration::from_millis(50)),
        ..etcd.config()
    };
    let store = EtcdStore::open(config).await.unwrap();
    let first = create(&store, "x", 0).await.revision;
    create(&store, "y", 0).await;
    until("the first revision is compacted", async || {
        let body = json!({"key": "YQ==", "revision": first.to_string()});
        let answer = etcd.raw("/v3/kv/range", &body).await;
        answer.to_string().contains("compacted")
    })
    .await;
    create(&store, "z", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_certificates_of_both_sides() {
    let pki = Pki::ephemeral(&[]).unwrap();
    let other = Pki::ephemeral(&[]).unwrap();
    let write = |folder: &std::path::Path, name: &str, text: &str| {
        let path = folder.join(name);
        tenure_host::files::replace(&path, text.as_bytes(), 0o600).unwrap();
        path.display().to_string()
    };
    let started = Etcd::start_with(|folder| {
        vec![
            format!(
                "--cert-file={}",
                write(folder, "server.crt", &pki.server.certificate)
            ),
            format!(
                "--key-file={}",
                write(folder, "server.key", &pki.server.key)
            ),
            format!("--trusted-ca-file={}", write(folder, "ca.crt", &pki.ca)),
            "--client-cert-auth".to_owned(),
            "--enable-grpc-gateway=false".to_owned(),
        ]
    })
    .await;
    let Some(etcd) = started else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| Some(write(folder.path(), name, text).into());
    let good = EtcdConfig {
        ca_file: file("ca.crt", &pki.ca),
        cert_file: file("client.crt", &pki.admin.certificate),
        key_file: file("client.key", &pki.admin.key),
        ..EtcdConfig::new([format!("https://127.0.0.1:{}", etcd.port())])
    };
    let store = EtcdStore::open(good.clone()).await.unwrap();
    create(&store, "x", 1).await;
    let stranger = EtcdConfig {
        ca_file: file("other.crt", &other.ca),
        ..good.clone()
    };
    let nameless = EtcdConfig {
        cert_file: None,
        key_file: None,
        ..good
    };
    // Both run concurrently, because each retries for a while.
    let (stranger, nameless) = tokio::join!(EtcdStore::open(stranger), EtcdStore::open(nameless));
    let error = stranger.unwrap_err().to_string();
    assert!(error.contains("TLS"), "{error}");
    assert!(nameless.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn full_etcd_differs_from_write_with_unknown_outcome() {
    // With these options etcd checks its size with every write.
    let quota = |_: &std::path::Path| {
        ["--quota-backend-bytes=4194304", "--backend-batch-limit=1"]
            .map(str::to_owned)
            .to_vec()
    };
    let Some(etcd) = Etcd::start_with(quota).await else {
        return;
    };
    let store = etcd.store().await;
    let text = "x".repeat(200_000);
    let mut full = Vec::new();
    // Many concurrent writes, so that some pass etcd's first check of its size and fail the second.
    for round in 0..20 {
        let writes = (0..100).map(|n| {
            let (store, text) = (&store, &text);
            async move {
                let name = format!("x{round}-{n}");
                let write = put(&key(&name), Expected::Absent, json!({"text": text}));
                (name, store.write(write).await)
            }
        });
        for (name, done) in join_all(writes).await {
            match done {
                Ok(_) | Err(WriteError::Unknown(_)) => {}
                Err(WriteError::Full(why)) => {
                    assert!(why.contains("etcd"), "{why}");
                    full.push(name);
                }
                Err(error) => panic!("{error}"),
            }
        }
        if !full.is_empty() {
            break;
        }
    }
    assert!(!full.is_empty(), "etcd did not become full");
    for name in full {
        assert!(read(&*store, &name).await.is_none(), "{name} was changed");
    }
}
