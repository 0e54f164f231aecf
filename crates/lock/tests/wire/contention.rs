//! Many contenders, every order of requests: no two contenders hold the lock at the same time.
//!
//! The contenders run against an API with versions like the real one, in an order that a seed decides request by
//! request. Responses get lost. There is no time: a record may be taken over as soon as no contender claims the lock,
//! which models the earliest possible expiry. Writes in flight at that moment are too late to win, because a guard
//! starts at the send time.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use tenure_core::WriteKind;
use tenure_lock::{Lock, LockKind};

use crate::record;
use crate::store::{Dice, Store, client};

/// The contender that claims the lock, the number of claims, and the number of expired leases.
#[derive(Default)]
struct Claims {
    now: RefCell<Vec<String>>,
    ever: Cell<u32>,
    expiries: Cell<u32>,
}

async fn contend(lock: Arc<dyn Lock>, me: String, dice: Dice, claims: Rc<Claims>) {
    for _ in 0..10 {
        dice.pause().await;
        let Ok(seen) = lock.read().await else {
            continue;
        };
        let kind = match &seen {
            None => WriteKind::Create,
            Some(seen) => {
                if !seen.observation().record.is_free() {
                    if !claims.now.borrow().is_empty() || dice.below(4) > 0 {
                        continue;
                    }
                    claims.expiries.set(claims.expiries.get() + 1);
                }
                WriteKind::Acquire(seen.observation().version.clone())
            }
        };
        let sent = claims.expiries.get();
        let won = lock.write(&kind, &record(&me, 0), seen.as_ref()).await;
        let Some(won) = won.ok().filter(|_| sent == claims.expiries.get()) else {
            continue;
        };
        claims.now.borrow_mut().push(me.clone());
        claims.ever.set(claims.ever.get() + 1);
        assert_eq!(
            claims.now.borrow().len(),
            1,
            "two contenders hold the lock: {:?}",
            claims.now.borrow()
        );
        for _ in 0..dice.below(60) {
            dice.pause().await;
        }
        claims.now.borrow_mut().retain(|holder| *holder != me);
        let release = WriteKind::Release(won.observation().version.clone(), None);
        let released = record(&me, 0).released(tenure_core::WallTime::from_micros(crate::NOON));
        let _ = lock.write(&release, &released, Some(&won)).await;
    }
}

/// Number of request orders for each set of contenders.
const SEEDS: u32 = 40;

/// Runs one contender per kind against each other, and returns how often the lock was won.
fn run(seed: u32, kinds: &[LockKind]) -> u32 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let claims = Rc::new(Claims::default());
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let dice = Dice::new(seed);
        let store = Arc::new(Mutex::new(Store::default()));
        let tasks: Vec<_> = (kinds.iter().enumerate())
            .map(|(n, kind)| {
                let client = client(store.clone(), dice.clone(), 16);
                let lock = kind.open(client, "foo", "bar", &BTreeMap::new()).unwrap();
                let me = format!("{kind}-{n}");
                tokio::task::spawn_local(contend(lock, me, dice.clone(), claims.clone()))
            })
            .collect();
        for task in tasks {
            if let Err(error) = task.await {
                panic!("seed {seed} of {kinds:?}: {error}");
            }
        }
    });
    claims.ever.get()
}

fn check(kinds: &[LockKind]) {
    let won: u32 = (1..=SEEDS).map(|seed| run(seed, kinds)).sum();
    assert!(won > SEEDS, "the lock was won too rarely: {won}");
}

#[test]
fn leases_have_one_holder() {
    check(&[LockKind::Leases; 3]);
}

#[test]
fn multi_locks_have_one_holder() {
    check(&[LockKind::EndpointsLeases; 3]);
    check(&[LockKind::ConfigMapsLeases; 3]);
}

#[test]
fn multi_locks_and_clients_of_the_old_kind_have_one_holder() {
    use LockKind::{ConfigMaps, ConfigMapsLeases, Endpoints, EndpointsLeases};
    check(&[EndpointsLeases, EndpointsLeases, Endpoints]);
    check(&[ConfigMapsLeases, ConfigMaps, ConfigMaps]);
}

#[test]
fn multi_locks_and_clients_of_leases_have_one_holder() {
    use LockKind::{ConfigMapsLeases, EndpointsLeases, Leases};
    check(&[EndpointsLeases, EndpointsLeases, Leases]);
    check(&[ConfigMapsLeases, Leases, Leases]);
}
