//! Shard groups whose replicas have different numbers of shards.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tenure_apiserver::TestServer;
use tenure_manager::shard::{Shards, Standing};
use tenure_manager::{Builder, Manager, Runnable};

use super::site::get;
use super::{Running, quick, until};

const AGREEMENT: &str = "queue.shards";

/// The number of workers of each key at this instant, and whether it ever exceeded one.
#[derive(Clone, Default)]
struct Keys(Arc<Mutex<(BTreeMap<String, u32>, bool)>>);

/// Work on some keys, until dropped.
struct AtWork(Keys, Vec<String>);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.change(&self.1, |count| *count -= 1);
    }
}

impl Keys {
    fn worker(&self, name: &str) -> Runnable {
        let keys = self.clone();
        Runnable::new(name, move |scope| {
            let keys = keys.clone();
            async move {
                let names = (0..32).map(|n| format!("key-{n}"));
                let owned: Vec<String> = names.filter(|key| scope.owns(key)).collect();
                keys.change(&owned, |count| *count += 1);
                let _at_work = AtWork(keys, owned);
                scope.cancelled().await;
            }
        })
    }

    fn change(&self, owned: &[String], change: impl Fn(&mut u32)) {
        let (counts, twice) = &mut *self.0.lock().unwrap();
        for key in owned {
            let count = counts.entry(key.clone()).or_default();
            change(count);
            *twice |= *count > 1;
        }
    }

    fn all_owned(&self) -> bool {
        let (counts, _) = &*self.0.lock().unwrap();
        counts.values().filter(|count| **count == 1).count() == 32
    }

    fn check(&self) {
        assert!(!self.0.lock().unwrap().1, "a key had two owners");
    }
}

struct Replica {
    running: Running,
    shards: Shards,
}

fn start(manager: Manager) -> Replica {
    let shards = manager.shards("queue").unwrap();
    Replica {
        running: Running::start(manager),
        shards,
    }
}

/// Long leases that are not lost on a busy machine, because no replica dies in these tests.
async fn patient(server: &TestServer) -> Builder {
    let manager = quick(server).await.hand_over_every(Duration::ZERO);
    manager.elections(|election| {
        election
            .lease_duration(Duration::from_secs(10))
            .renew_deadline(Duration::from_secs(7))
            .retry_period(Duration::from_millis(500))
            .events(false)
    })
}

async fn replica(server: &TestServer, keys: &Keys, of: u32, may_change: bool) -> Replica {
    let manager = patient(server).await;
    let manager = manager.shard("queue", of, keys.worker("worker"));
    let manager = match may_change {
        true => manager.change_shards("queue"),
        false => manager,
    };
    start(manager.build().unwrap())
}

fn leases(server: &TestServer) -> Api<Lease> {
    Api::namespaced(server.client().unwrap(), "default")
}

/// Returns the number of shards of the group, and the one that it is open for.
async fn agreed(server: &TestServer) -> Option<(String, String)> {
    let lease = leases(server).get_opt(AGREEMENT).await.unwrap()?;
    let annotations = lease.metadata.annotations.unwrap_or_default();
    let number = |key: &str| annotations.get(key).cloned().unwrap_or_default();
    Some((
        number("tenure.dev/shards"),
        number("tenure.dev/shards-open"),
    ))
}

/// Writes another number into the agreement, as a person would.
async fn edit(server: &TestServer, number: &str) {
    let edit = json!({"metadata": {"annotations": {"tenure.dev/shards": number}}});
    let parameters = PatchParams::default();
    let leases = leases(server);
    let patch = Patch::Merge(&edit);
    let patched = leases.patch(AGREEMENT, &parameters, &patch).await;
    patched.unwrap();
}

fn both(number: &str) -> Option<(String, String)> {
    Some((number.to_owned(), number.to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_that_start_together_with_different_numbers_agree_on_one() {
    let server = TestServer::start().await.unwrap();
    let keys = Keys::default();
    let (eight, six) = tokio::join!(
        replica(&server, &keys, 8, false),
        replica(&server, &keys, 6, false)
    );
    let is_member = |replica: &Replica| replica.shards.standing() == Standing::Member;
    until("one takes part", || is_member(&eight) || is_member(&six)).await;
    let (winner, loser, text) = match is_member(&eight) {
        true => (eight, six, "has agreed on 8 shards, not 6"),
        false => (six, eight, "has agreed on 6 shards, not 8"),
    };
    let error = loser.running.end().await.unwrap_err().to_string();
    assert!(error.contains(text), "{error}");
    assert!(error.contains("change_shards(\"queue\")"), "{error}");
    until("it owns all", || keys.all_owned()).await;
    winner.running.stop().await.unwrap();
    keys.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_agreement_is_written_again_while_shards_are_held() {
    let server = TestServer::start().await.unwrap();
    let keys = Keys::default();
    let owner = replica(&server, &keys, 6, false).await;
    until("it owns all", || keys.all_owned()).await;
    let parameters = DeleteParams::default();
    leases(&server)
        .delete(AGREEMENT, &parameters)
        .await
        .unwrap();
    let mut other = replica(&server, &keys, 8, false).await;
    let error = other.running.end().await.unwrap_err().to_string();
    assert!(error.contains("has agreed on 6 shards, not 8"), "{error}");
    // An invalid number is replaced like a missing agreement.
    edit(&server, "many").await;
    while agreed(&server).await != both("6") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    other = replica(&server, &keys, 6, false).await;
    until("both own some", || !other.shards.owned().is_empty()).await;
    other.running.stop().await.unwrap();
    until("one owns all", || keys.all_owned()).await;
    owner.running.stop().await.unwrap();
    assert_eq!(agreed(&server).await, both("6"), "it outlives the replicas");
    keys.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_may_change_the_number_waits_reports_it_and_continues() {
    let server = TestServer::start().await.unwrap();
    let keys = Keys::default();
    let old = replica(&server, &keys, 6, false).await;
    until("the old one owns all", || keys.all_owned()).await;
    let manager = patient(&server).await;
    let manager = manager
        .shard("queue", 8, keys.worker("worker"))
        .change_shards("queue")
        .probe_address("127.0.0.1:0".parse().unwrap());
    let manager = manager.build().unwrap();
    let mut addresses = manager.addresses();
    let new = start(manager);
    let waits = || {
        matches!(
            new.shards.standing(),
            Standing::Waiting {
                agreed: Some(6),
                ..
            }
        )
    };
    until("the new one waits", waits).await;
    let address = addresses.wait_for(|all| !all.is_empty()).await.unwrap()[0];
    // The waiting replica is ready, so a rolling update continues.
    assert_eq!(get(address, "/readyz").await, (200, "ok".into()));
    let (status, text) = get(address, "/readyz/shards-queue").await;
    let note = "ok: waiting to change the number of shards from 6 to 8:";
    assert!(status == 200 && text.starts_with(note), "{status} {text}");
    assert!(new.shards.owned().is_empty());
    old.running.stop().await.unwrap();
    until("the new one owns all", || {
        new.shards.owned().len() == 8 && keys.all_owned()
    })
    .await;
    assert_eq!(agreed(&server).await, both("8"));
    assert_eq!(
        get(address, "/readyz/shards-queue").await,
        (200, "ok".into())
    );
    // Change back: the number can change in both directions.
    let back = replica(&server, &keys, 6, true).await;
    until("it waits", || {
        matches!(back.shards.standing(), Standing::Waiting { .. })
    })
    .await;
    new.running.stop().await.unwrap();
    until("six again", || back.shards.owned().len() == 6).await;
    back.running.stop().await.unwrap();
    keys.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn number_edited_by_hand_makes_replicas_leave_before_others_start() {
    let server = TestServer::start().await.unwrap();
    let keys = Keys::default();
    let old = replica(&server, &keys, 6, false).await;
    until("the old one owns all", || keys.all_owned()).await;
    let new = replica(&server, &keys, 8, true).await;
    until("it waits", || {
        matches!(new.shards.standing(), Standing::Waiting { .. })
    })
    .await;
    edit(&server, "8").await;
    let error = old.running.end().await.unwrap_err().to_string();
    assert!(error.contains("has agreed on 8 shards, not 6"), "{error}");
    until("the new one owns all", || new.shards.owned().len() == 8).await;
    new.running.stop().await.unwrap();
    keys.check();
}

#[tokio::test]
async fn change_of_a_group_without_shards_is_refused_by_name() {
    let server = TestServer::start().await.unwrap();
    let none = quick(&server).await.change_shards("queue");
    assert_eq!(
        none.build().unwrap_err().to_string(),
        "shard group queue: change_shards needs a shard group, and this group has no shards"
    );
}
