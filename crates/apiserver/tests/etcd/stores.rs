//! The guarantees of a store, with one and with several servers on the same etcd.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use tenure_apiserver::store::{EtcdConfig, EtcdStore, EventKind, Window};

use super::harness::{Etcd, LIMIT, retention, until};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn etcd_engine_keeps_the_guarantees_of_every_engine() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let store = etcd.store().await;
    let mut watch = store.watch(everything(), store.revision()).unwrap();
    let first = create(&*store, "x", 1).await;
    let second = store
        .write(put(
            &key("x"),
            Expected::Revision(first.revision),
            json!({"n": 2}),
        ))
        .await
        .unwrap();
    assert_eq!(value(&second)["n"], 2);
    let stamp = second.revision.to_string();
    assert_eq!(value(&second)["metadata"]["resourceVersion"], stamp);
    assert_eq!(store.get(&key("x")).unwrap().json, second.json);
    for expected in [
        Expected::Absent,
        Expected::Revision(first.revision),
        Expected::Revision(second.revision + 99),
    ] {
        let refused = store.write(put(&key("x"), expected, json!({}))).await;
        let Err(WriteError::Conflict(Some(present))) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(present.revision, second.revision);
    }
    let gone = store
        .write(delete(&key("x"), second.revision))
        .await
        .unwrap();
    assert_eq!(value(&gone)["n"], 2);
    assert!(store.get(&key("x")).is_none());
    let missing = store.write(delete(&key("x"), second.revision)).await;
    assert!(matches!(missing, Err(WriteError::Conflict(None))));
    let third = create(&*store, "x", 3).await;

    let mut seen = Vec::new();
    for _ in 0..4 {
        let event = watch.next().await.unwrap();
        let previous = event.previous.as_ref().map(|p| p.revision);
        seen.push((event.kind, event.revision, previous));
        assert_eq!(event.object.revision, event.revision);
    }
    assert_eq!(
        seen,
        [
            (EventKind::Added, first.revision, None),
            (EventKind::Modified, second.revision, Some(first.revision)),
            (EventKind::Deleted, gone.revision, Some(second.revision)),
            (EventKind::Added, third.revision, None),
        ]
    );
    // Exact lists at past revisions, in pages.
    let past = store.list(&everything(), Some(second.revision)).unwrap();
    assert_eq!(value(&past.objects[0])["n"], 2);
    assert!(
        store
            .list(&everything(), Some(gone.revision))
            .unwrap()
            .objects
            .is_empty()
    );
    create(&*store, "y", 1).await;
    let window = Window {
        after: Some(("ns", "x")),
        limit: Some(1),
    };
    let page = store.page(&everything(), None, &window).unwrap();
    assert_eq!(
        (page.objects[0].key.name.as_str(), page.remaining),
        ("y", 0)
    );
    for bad in ["a/b", "a\0b"] {
        let refused = store
            .write(put(&key(bad), Expected::Absent, json!({})))
            .await;
        assert!(
            matches!(refused, Err(WriteError::Invalid(_))),
            "{refused:?}"
        );
    }
    assert!(
        store.jump(5).await.is_err(),
        "only writes raise etcd's revision"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn start_reads_existing_objects_with_revisions_and_terms() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let store = etcd.store().await;
    // More than one page.
    let made = join_all((0..1200).map(|n| {
        let store = &store;
        async move { create(&**store, &format!("x{n:04}"), n).await }
    }));
    let mut made: Vec<_> = made.await.iter().map(|o| o.revision).collect();
    let lock = create_lease(&*store, "a", 1).await;
    drop(store);
    let store = etcd.store().await;
    let listing = store.list(&everything(), None).unwrap();
    assert_eq!(listing.objects.len(), 1201);
    let mut found: Vec<_> = listing.objects.iter().map(|o| o.revision).collect();
    found.retain(|revision| *revision != lock.revision);
    found.sort_unstable();
    made.sort_unstable();
    assert_eq!(found, made);
    store.check_fence(&fence("a", lock.revision)).unwrap();
    let too_old = store.watch(everything(), lock.revision - 1);
    assert!(too_old.is_err(), "older history must be expired");
}

#[tokio::test(flavor = "multi_thread")]
async fn compare_and_set_is_linearizable_over_two_servers() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let stores = [etcd.store().await, etcd.store().await];
    let start = create(&*stores[0], "counter", 0).await.revision;
    let mut watches: Vec<_> = stores
        .iter()
        .map(|store| store.watch(everything(), start))
        .collect();
    // A watch of the second server starts at a revision that the server may not have received yet.
    let (writers, each) = (8, 25);
    let work = join_all((0..writers).map(|writer| {
        let stores = stores.clone();
        tokio::spawn(async move {
            let mut revisions = Vec::new();
            for n in 0..each {
                loop {
                    let store = &stores[(writer + n) % 2];
                    let present = read(&**store, "counter").await.unwrap();
                    let next = json!({"n": value(&present)["n"].as_u64().unwrap() + 1});
                    let expected = Expected::Revision(present.revision);
                    match store.write(put(&key("counter"), expected, next)).await {
                        Ok(object) => break revisions.push((object.revision, value(&object))),
                        Err(WriteError::Conflict(Some(_))) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            revisions
        })
    }));
    let work = tokio::time::timeout(LIMIT, work).await.unwrap();
    let all = work.into_iter().flat_map(Result::unwrap);
    let by_revision: BTreeMap<u64, Value> = all.collect();
    let total = writers * each;
    assert_eq!(by_revision.len(), total, "no revision may be used twice");
    for (place, (_, counted)) in by_revision.iter().enumerate() {
        assert_eq!(counted["n"], place + 1, "no update is lost");
    }
    for (store, watch) in stores.iter().zip(&mut watches) {
        let last = read(&**store, "counter").await.unwrap();
        assert_eq!(value(&last)["n"], total);
        let watch = watch.as_mut().unwrap();
        for revision in by_revision.keys() {
            assert_eq!(watch.next().await.unwrap().revision, *revision);
        }
    }
}

fn fence(holder: &str, token: u64) -> Fence {
    Fence {
        lease: key("lock"),
        token,
        holder: holder.to_owned(),
    }
}

fn lease(holder: &str, renewed: u64) -> Value {
    json!({"spec": {"holderIdentity": holder, "acquireTime": holder, "renewTime": renewed}})
}

async fn create_lease(store: &dyn Store, holder: &str, renewed: u64) -> Arc<Object> {
    let write = put(&key("lock"), Expected::Absent, lease(holder, renewed));
    store.write(write).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_holds_at_every_server_and_while_the_lease_is_renewed() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let (here, there) = (etcd.store().await, etcd.store().await);
    let mut lock = create_lease(&*here, "a", 0).await;
    let token = lock.revision;
    // Renewals run on one server and fenced writes on the other; no renewal makes the token stale.
    let renewing = tokio::spawn({
        let here = Arc::clone(&here);
        async move {
            for n in 1..100 {
                let expected = Expected::Revision(lock.revision);
                let write = put(&key("lock"), expected, lease("a", n));
                lock = here.write(write).await.unwrap();
            }
            lock
        }
    });
    for n in 0..50 {
        let write = put(&key(&format!("x{n}")), Expected::Absent, json!({}));
        let write = under(fence("a", token), write);
        // During continuous renewals a write may return `Busy`, each time after dozens of renewals. There are not
        // enough renewals for a fourth time.
        let mut written = there.write(write.clone()).await;
        for _ in 0..3 {
            if matches!(written, Err(WriteError::Busy)) {
                written = there.write(write.clone()).await;
            }
        }
        written.unwrap();
    }
    let lock = renewing.await.unwrap();
    // Another holder wins on this server. The other server rejects the next write even if its mirror is outdated.
    let expected = Expected::Revision(lock.revision);
    let won = here
        .write(put(&key("lock"), expected, lease("b", 0)))
        .await
        .unwrap();
    let write = put(&key("late"), Expected::Absent, json!({}));
    let refused = there.write(under(fence("a", token), write.clone())).await;
    assert!(matches!(refused, Err(WriteError::Fenced(_))), "{refused:?}");
    assert!(read(&*here, "late").await.is_none());
    there
        .write(under(fence("b", won.revision), write))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_are_separate_and_foreign_writes_do_not_delay_reads() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let other = EtcdConfig {
        prefix: "/other".to_owned(),
        ..etcd.config()
    };
    let (mine, other) = (etcd.store().await, EtcdStore::open(other).await.unwrap());
    create(&*mine, "x", 1).await;
    assert!(read(&other, "x").await.is_none());
    // A fresh read returns even if nothing below our prefix changes.
    for n in 0..3 {
        let foreign = etcd.raw_put("/somebody/else", &n.to_string()).await;
        read(&*mine, "x").await.unwrap();
        assert!(mine.revision() >= foreign);
    }
    assert_eq!(mine.agree("keys", b"one".to_vec()).await.unwrap(), b"one");
    let second = etcd.store().await;
    assert_eq!(second.agree("keys", b"two".to_vec()).await.unwrap(), b"one");
    assert_eq!(other.agree("keys", b"two".to_vec()).await.unwrap(), b"two");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_expires_with_the_exact_revision() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let short = EtcdConfig {
        retention: retention(5),
        ..etcd.config()
    };
    let store = EtcdStore::open(short).await.unwrap();
    let mut slow = store.watch(everything(), store.revision()).unwrap();
    let mut made = Vec::new();
    for n in 0..20 {
        made.push(create(&store, &format!("x{n}"), n).await.revision);
    }
    assert!(slow.next().await.is_err());
    let oldest = made[made.len() - 6];
    let refused = store.watch(everything(), oldest - 1).err().unwrap();
    assert_eq!(refused.oldest, oldest);
    let mut watch = store.watch(everything(), oldest).unwrap();
    assert_eq!(watch.next().await.unwrap().revision, made[made.len() - 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_value_is_reported_and_not_served() {
    let Some(etcd) = Etcd::start().await else {
        return;
    };
    let place = "/tenure/registry/coordination.k8s.io/leases/ns/odd";
    let store = etcd.store().await;
    etcd.raw_put(place, "{}").await;
    until("the damage is told", async || {
        store
            .failure()
            .is_some_and(|why| why.contains("leases ns/odd in etcd is damaged"))
    })
    .await;
    etcd.raw_delete_all(place).await;
    until("it works again", async || store.failure().is_none()).await;
    create(&*store, "x", 1).await;
}
