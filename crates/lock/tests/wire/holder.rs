//! The description of the holder, on every kind of lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tenure_core::{Place, WallTime, WriteKind};
use tenure_lock::{HOLDER_ANNOTATION, Lock, LockKind, Snapshot};

use crate::store::{Dice, Store, client};
use crate::{NOON, record};

fn open(kind: LockKind, store: &Arc<Mutex<Store>>, place: Option<Place>) -> Arc<dyn Lock> {
    let client = client(store.clone(), Dice::new(1), u64::MAX);
    kind.open_at(
        client,
        "foo",
        "bar",
        &BTreeMap::new(),
        place.map(Arc::new).as_ref(),
    )
    .unwrap()
}

fn is_annotated(snapshot: &Snapshot) -> bool {
    let described = |object: &serde_json::Value| {
        object["metadata"]["annotations"][HOLDER_ANNOTATION].is_string()
    };
    let second = snapshot.secondary();
    described(&snapshot.object()) && second.as_ref().is_none_or(described)
}

#[tokio::test]
async fn holder_with_a_place_describes_itself_until_it_releases() {
    for kind in LockKind::ALL {
        let store = Arc::new(Mutex::new(Store::default()));
        let place = Place {
            machine: Some("m".to_owned()),
            ..Place::default()
        };
        let lock = open(kind, &store, Some(place.clone()));
        let mut mine = record("a", 0);
        let won = lock.write(&WriteKind::Create, &mine, None).await.unwrap();
        mine.renew_time = Some(WallTime::from_micros(NOON + 4_000_000));
        let renew = WriteKind::Renew(won.observation().version.clone());
        let renewed = lock.write(&renew, &mine, Some(&won)).await.unwrap();
        for snapshot in [won, renewed, lock.read().await.unwrap().unwrap()] {
            assert!(is_annotated(&snapshot), "{kind}");
            let incarnation = snapshot.observation().incarnation();
            assert_eq!(incarnation.unwrap().place, place, "{kind}");
            assert!(snapshot.warnings().is_empty(), "{kind}");
        }
        let held = lock.read().await.unwrap().unwrap();
        let released = mine.released(WallTime::from_micros(NOON + 5_000_000));
        let release = WriteKind::Release(held.observation().version.clone(), None);
        let free = lock.write(&release, &released, Some(&held)).await.unwrap();
        assert_eq!(free.observation().described, None, "{kind}");
        assert!(!is_annotated(&free), "{kind}");
    }
}

#[tokio::test]
async fn holder_without_a_place_writes_no_description() {
    for kind in LockKind::ALL {
        let store = Arc::new(Mutex::new(Store::default()));
        let lock = open(kind, &store, None);
        let mine = record("a", 0);
        let won = lock.write(&WriteKind::Create, &mine, None).await.unwrap();
        assert!(!is_annotated(&won), "{kind}");
        assert_eq!(won.observation().described, None, "{kind}");
    }
}
