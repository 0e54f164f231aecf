//! Take-over from a holder whose death is confirmed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{
    BuildError, DeathProof, Elector, Event, Evidence, Incarnation, Lock, MemoryLock, Place,
};
use tenure_core::{Record, WallTime, WriteKind};
use tenure_lock::{BoxFuture, HOLDER_ANNOTATION};
use tokio::sync::Notify;

/// A source that the test notifies when the node of the holder was shut down.
#[derive(Clone, Debug, Default)]
struct Hypervisor {
    stopped: Arc<Notify>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl DeathProof for Hypervisor {
    fn describe(&self, place: &mut Place) {
        place.node = Some("own".to_owned());
    }

    fn watch(&self, holder: &Arc<Incarnation>) -> Option<BoxFuture<'static, Vec<Evidence>>> {
        let node = holder.place.node.clone()?;
        self.asked.lock().unwrap().push(node.clone());
        let stopped = self.stopped.clone();
        Some(Box::pin(async move {
            stopped.notified().await;
            vec![Evidence::NodeOutOfService { node }]
        }))
    }
}

fn held(renewed: i64) -> Record {
    Record {
        holder: "dead".to_owned(),
        lease_duration_seconds: 3_600,
        acquire_time: Some(WallTime::from_micros(1_000_000)),
        renew_time: Some(WallTime::from_micros(renewed)),
        transitions: 4,
        ..Record::default()
    }
}

/// Describes the holder of the lock as running on node "n".
fn describe(lock: &MemoryLock) {
    lock.edit(|object| {
        let text = concat!(
            r#"{"identity":"dead","acquireTime":"1970-01-01T00:00:01.000000Z","#,
            r#""transitions":4,"node":"n"}"#
        );
        object["metadata"]["annotations"][HOLDER_ANNOTATION] = text.into();
    });
}

#[tokio::test]
async fn follower_leads_when_its_source_proves_the_death_of_the_holder() {
    let lock = MemoryLock::new("x");
    lock.write(&WriteKind::Create, &held(2_000_000), None)
        .await
        .unwrap();
    describe(&lock);
    let source = Hypervisor::default();
    let elector = Elector::builder(Arc::new(lock.clone())).confirm_death(source.clone());
    let mut candidate = elector.identity("next").build().unwrap().start();
    assert!(matches!(
        candidate.next().await,
        Some(Event::NewLeader(holder)) if holder == "dead"
    ));
    assert_eq!(*source.asked.lock().unwrap(), ["n"]);
    // A renewal that was sent before the holder died creates another version of the same term.
    let seen = lock.read().await.unwrap().unwrap();
    let renew = WriteKind::Renew(seen.observation().version.clone());
    lock.write(&renew, &held(3_000_000), Some(&seen))
        .await
        .unwrap();
    source.stopped.notify_one();
    let led = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            match candidate.next().await {
                Some(Event::Lead(term)) => return term,
                Some(_) => {}
                None => panic!("the election ended"),
            }
        }
    });
    let term = led.await.expect("leads long before the lease expires");
    assert_eq!(term.tenure().transitions(), 5);
    assert_eq!(*source.asked.lock().unwrap(), ["n"], "once per term");
}

#[tokio::test]
async fn holder_that_does_not_describe_itself_is_not_watched() {
    let lock = MemoryLock::new("x");
    lock.write(&WriteKind::Create, &held(2_000_000), None)
        .await
        .unwrap();
    let source = Hypervisor::default();
    let elector = Elector::builder(Arc::new(lock)).confirm_death(source.clone());
    let mut candidate = elector.identity("next").build().unwrap().start();
    assert!(matches!(candidate.next().await, Some(Event::NewLeader(_))));
    assert!(source.asked.lock().unwrap().is_empty());
}

#[test]
fn confirmed_death_is_rejected_for_elections_without_expiry() {
    let elector = Elector::builder(Arc::new(MemoryLock::new("x")))
        .confirm_death(Hypervisor::default())
        .for_life(true);
    let error: BuildError = elector.build().unwrap_err();
    assert!(error.to_string().contains("confirmed death"), "{error}");
}
