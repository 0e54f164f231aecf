//! A damaged file either fails to open with an error that names it, or has the right content.

use std::panic;

use proptest::test_runner::TestRng;
use rand::Rng as _;
use serde_json::json;

use super::super::testing::{key, set};
use super::super::{OpenError, RedbStore, Store};
use super::durable::content;
use super::medium::{Medium, small};

/// The bytes of a store, and the content that may be read from them.
struct Image {
    bytes: Vec<u8>,
    /// The acknowledged content, with and without the last batch. After a crash and with a damaged header, redb treats
    /// the last batch as unfinished.
    content: [Content; 2],
    /// The highest revision that was acknowledged.
    revision: u64,
}

type Content = std::collections::BTreeMap<String, (u64, Vec<u8>)>;

/// How the process that wrote the file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    InOrder,
    Killed,
}

/// Returns the image of a store with a few hundred objects.
async fn sample(end: End) -> Image {
    let medium = Medium::default();
    let store = RedbStore::on(medium.media(), small()).unwrap();
    let mut before = Content::default();
    for n in 0..200 {
        before = content(&store);
        let text = "some text ".repeat(n % 40);
        set(
            &store,
            &key("ns", &format!("object-{n}")),
            json!({"n": n, "text": text}),
        )
        .await;
    }
    if end == End::InOrder {
        store.close();
        before = content(&store);
    }
    Image {
        bytes: medium.bytes(),
        content: [content(&store), before],
        revision: store.revision(),
    }
}

impl Image {
    /// Checks that the content was acknowledged and that no revision can be reused.
    fn check(&self, found: &RedbStore, what: &str) {
        let (content, revision) = (content(found), found.revision());
        assert!(
            self.content.contains(&content),
            "{what}: the content differs"
        );
        assert!(revision >= self.revision, "{what}: {revision}");
    }
}

fn open(bytes: Vec<u8>) -> Result<RedbStore, OpenError> {
    RedbStore::on(Medium::of(bytes).media(), small())
}

#[tokio::test]
async fn flipped_bits_are_detected_or_harmless() {
    flip(End::InOrder, 600).await;
}

#[tokio::test]
async fn flipped_bits_after_a_crash_are_detected_or_harmless() {
    flip(End::Killed, 300).await;
}

async fn flip(end: End, rounds: usize) {
    let image = sample(end).await;
    let mut rng = TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    let used = image.bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let (mut found, mut torn) = (0, 0);
    for round in 0..rounds {
        let mut bad = image.bytes.clone();
        // Flips a bit in the header or in the used pages, because the rest of the file is zeroes.
        let within = if round % 4 == 0 { 512 } else { used };
        let at = usize::try_from(rng.next_u64()).unwrap() % within;
        bad[at] ^= 1 << (rng.next_u32() % 8);
        let medium = Medium::of(bad);
        match RedbStore::on(medium.media(), small()) {
            Err(_) => found += 1,
            Ok(store) => {
                image.check(&store, &format!("{end:?}, flip at {at}"));
                torn += usize::from(content(&store) != image.content[0]);
                // A damaged list of free pages must not let new writes overwrite existing objects.
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
    println!("{end:?}: {found} of {rounds} flips were detected, {torn} lost the last write");
    assert!(
        found > rounds / 12,
        "only {found} of {rounds} flips were detected"
    );
}

#[tokio::test]
async fn a_flipped_bit_in_a_value_names_the_object() {
    let mut bytes = sample(End::InOrder).await.bytes;
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
        panic!("a damaged object was returned")
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
async fn truncated_files_are_detected() {
    for end in [End::InOrder, End::Killed] {
        let image = sample(end).await;
        let good = &image.bytes;
        for cut in (1..200)
            .map(|n| good.len() * n / 200)
            .chain([1, 9, 63, 64, 319, 320, 4095, 4096])
        {
            let result = panic::catch_unwind(|| open(good[..cut].to_vec()));
            match result.unwrap_or_else(|_| panic!("{end:?}, cut at {cut} panics")) {
                Err(_) => {}
                Ok(store) => image.check(&store, &format!("{end:?}, cut at {cut}")),
            }
        }
    }
}

#[tokio::test]
async fn file_without_store_is_rejected() {
    for bytes in [
        b"not a database".to_vec(),
        vec![0; 4096],
        vec![0xff; 1 << 16],
    ] {
        let Err(error) = open(bytes) else {
            panic!("a file without a store was opened")
        };
        assert!(
            matches!(error, OpenError::Corrupt { .. } | OpenError::Io { .. }),
            "{error}"
        );
    }
}
