//! Damaged files: an error that names the file, or the right content, and nothing else.

use std::panic;

use proptest::test_runner::TestRng;
use rand::Rng as _;
use serde_json::json;

use super::super::testing::{key, set};
use super::super::{OpenError, RedbStore, Store};
use super::durable::content;
use super::medium::{Medium, small};

/// A closed store of a few hundred objects.
async fn sample() -> (Medium, RedbStore) {
    let medium = Medium::default();
    let store = RedbStore::on(medium.media(), small()).unwrap();
    for n in 0..200 {
        let text = "some text ".repeat(n % 40);
        set(
            &store,
            &key("ns", &format!("object-{n}")),
            json!({"n": n, "text": text}),
        )
        .await;
    }
    store.close();
    (medium, store)
}

fn open(bytes: Vec<u8>) -> Result<RedbStore, OpenError> {
    RedbStore::on(Medium::of(bytes).media(), small())
}

#[tokio::test]
async fn flipped_bits_are_found_or_harmless() {
    let (medium, store) = sample().await;
    let (good, expected, revision) = (medium.bytes(), content(&store), store.revision());
    let mut rng = TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    let used = good.iter().rposition(|byte| *byte != 0).unwrap();
    let mut found = 0;
    for round in 0..600 {
        let mut bad = good.clone();
        // The header and the pages that hold something; the rest of the file is zeroes.
        let within = if round % 4 == 0 { 512 } else { used };
        let at = usize::try_from(rng.next_u64()).unwrap() % within;
        bad[at] ^= 1 << (rng.next_u32() % 8);
        let medium = Medium::of(bad);
        match RedbStore::on(medium.media(), small()) {
            Err(_) => found += 1,
            Ok(store) => {
                assert_eq!(content(&store), expected, "flip at {at}");
                assert!(store.revision() >= revision, "flip at {at}");
                // What redb believes about free pages must not cost what is there.
                for n in 0..20 {
                    set(&store, &key("ns", &format!("new-{n}")), json!({"n": n})).await;
                }
                let after = content(&store);
                store.close();
                match open(medium.bytes()) {
                    Err(_) => {}
                    Ok(again) => assert_eq!(content(&again), after, "flip at {at}, then writes"),
                }
            }
        }
    }
    assert!(found > 50, "only {found} of 600 flips were found");
}

#[tokio::test]
async fn a_flipped_bit_in_a_value_names_the_object() {
    let (medium, _store) = sample().await;
    let mut bytes = medium.bytes();
    let value = br#""n":117,"#;
    let mut hits = 0;
    for at in 0..bytes.len() - value.len() {
        if bytes[at..].starts_with(value) {
            bytes[at + 5] ^= 1;
            hits += 1;
        }
    }
    assert!(hits > 0);
    let Err(error) = open(bytes) else {
        panic!("damage was served")
    };
    assert!(matches!(error, OpenError::Corrupt { .. }));
    println!("{error}");
    assert!(
        error.to_string().starts_with("medium is damaged: "),
        "{error}"
    );
    assert!(error.to_string().contains("ns/object-117"), "{error}");
}

#[tokio::test]
async fn truncated_files_are_found() {
    let (medium, store) = sample().await;
    let (good, expected) = (medium.bytes(), content(&store));
    for cut in (1..200)
        .map(|n| good.len() * n / 200)
        .chain([1, 9, 63, 64, 319, 320, 4095, 4096])
    {
        let result = panic::catch_unwind(|| open(good[..cut].to_vec()));
        match result.unwrap_or_else(|_| panic!("cut at {cut} panics")) {
            Err(_) => {}
            Ok(store) => assert_eq!(content(&store), expected, "cut at {cut}"),
        }
    }
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused() {
    for bytes in [
        b"not a database".to_vec(),
        vec![0; 4096],
        vec![0xff; 1 << 16],
    ] {
        let Err(error) = open(bytes) else {
            panic!("garbage was opened")
        };
        assert!(
            matches!(error, OpenError::Corrupt { .. } | OpenError::Io { .. }),
            "{error}"
        );
    }
}
