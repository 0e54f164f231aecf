//! CSI migration: our translations are those of csi-translation-lib, for random classes and volumes.

use tenure_tests::Skip;
use tenure_tests::nemesis::campaign::say;
use tenure_tests::nemesis::seed::{self, Seeded};
use tenure_tests::real::{Peer, available, build};
use tenure_tests::translation::{compare, request};

const REQUESTS: usize = 20_000;

#[test]
fn real_migration_random_objects_are_translated_alike() {
    if Skip::unless(available(&[Peer::Translation])).is_none() {
        return;
    }
    let program = build(Peer::Translation).unwrap();
    let seed = seed::of_tests();
    let mut seeded = Seeded::new(seed);
    let requests = (0..REQUESTS).map(|_| request(&mut seeded)).collect();
    let found = compare(&program, requests).unwrap();
    let counts = found.counts.values();
    let (accepted, rejected) = counts.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    say(&format!(
        "TENURE_SEED={seed}: {accepted} objects translated by both, {rejected} rejected by both"
    ));
    let text: String = found
        .differences
        .iter()
        .take(10)
        .map(ToString::to_string)
        .collect();
    assert!(
        found.differences.is_empty(),
        "{} differences, the first:\n{text}",
        found.differences.len()
    );
    // Seven plugins and one that does not exist, in three directions.
    assert_eq!(found.counts.len(), 24, "{:?}", found.counts);
    for ((plugin, operation), (accepted, _)) in &found.counts {
        let exists = *plugin != "kubernetes.io/none";
        assert_eq!(*accepted > 100, exists, "{plugin} {operation:?}");
    }
    assert!(rejected > REQUESTS / 20, "{:?}", found.counts);
}
