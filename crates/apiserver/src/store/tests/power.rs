//! Power cuts: synced writes are kept. Any part of the later writes may be kept, and each may be torn.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rand::Rng as _;
use serde_json::{Value, json};

use super::super::testing::{key, set};
use super::super::{RedbStore, Store};
use super::medium::{Medium, Op, apply, small};

/// Returns one of the images that a power cut may leave.
fn image(medium: &Medium, rng: &mut TestRng, halfway: &mut usize) -> Vec<u8> {
    let (mut bytes, pending) = medium.photo();
    *halfway += usize::from(!pending.is_empty());
    let lose = rng.next_u32() % 4;
    for op in &pending {
        let dice = rng.next_u32() % 4;
        match op {
            _ if dice < lose => {}
            Op::Write(at, data) if data.len() > 512 && dice == 3 => {
                let cut = data.len().min(512 * (1 + rng.next_u32() as usize % 7));
                apply(&mut bytes, &Op::Write(*at, data[..cut].to_vec()));
            }
            op => apply(&mut bytes, op),
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_acknowledged_write_is_lost_at_a_power_cut() {
    let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let medium = Medium::default();
    let store = Arc::new(RedbStore::on(medium.media(), small()).unwrap());
    let mut acked: BTreeMap<u64, u64> = BTreeMap::new();
    let mut halfway = 0;
    for round in 1..=250 {
        medium.photo_after(1 + rng.next_u32() as usize % 12);
        let writers = (0..1 + rng.next_u64() % 6).map(|n| {
            let (store, text) = (store.clone(), "some text ".repeat(round % 50 * 4));
            tokio::spawn(async move {
                let lease = key("a", &n.to_string());
                (
                    n,
                    set(&*store, &lease, json!({"round": round, "text": text}))
                        .await
                        .revision,
                )
            })
        });
        let writers: Vec<_> = writers.collect();
        let answers = join_all(writers).await;
        // The power cut precedes the last acknowledgements, so only earlier writes must be kept.
        check(image(&medium, &mut rng, &mut halfway), &acked, round);
        acked.extend(answers.into_iter().map(Result::unwrap));
        check(image(&medium, &mut rng, &mut halfway), &acked, round);
    }
    println!("{halfway} of 500 power cuts hit an unfinished commit");
    assert!(
        halfway > 100,
        "only {halfway} power cuts hit an unfinished commit"
    );
}

fn check(cut: Vec<u8>, acked: &BTreeMap<u64, u64>, round: usize) {
    let medium = Medium::of(cut);
    let store = RedbStore::on(medium.media(), small())
        .unwrap_or_else(|error| panic!("round {round}: {error}"));
    for (n, revision) in acked {
        let object = store.get(&key("a", &n.to_string()));
        let object = object.unwrap_or_else(|| panic!("round {round}: {n} is lost"));
        assert!(object.revision >= *revision, "round {round}: {n} went back");
        let value: Value = serde_json::from_slice(&object.json).unwrap();
        assert!(value["round"].as_u64().unwrap() <= round as u64);
        assert!(
            store.revision() > object.revision,
            "a revision would be reused"
        );
    }
}
