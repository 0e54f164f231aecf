//! The embedded API server returns the same responses as the real one to random requests.

use tenure_tests::Skip;
use tenure_tests::differential::{LENGTH, Side, compare, kinds, play};
use tenure_tests::embedded::Embedded;
use tenure_tests::nemesis::campaign::say;
use tenure_tests::nemesis::seed::{self, Seeded};
use tenure_tests::real::shared;
use tenure_tests::wire::Wire;

const SEQUENCES: usize = 20;

#[test]
fn random_requests_get_the_same_responses() {
    let Some(cluster) = Skip::unless(shared()) else {
        return;
    };
    let embedded = Embedded::start().unwrap();
    let mut ours = Side::new(Wire::connect(&embedded.kubeconfig()).unwrap());
    let mut real = Side::new(cluster.wire().unwrap());
    let first = seed::of_tests();
    let (mut seeds, mut seed) = (Seeded::new(first), first);
    let mut found = Vec::new();
    assert!(
        2 * SEQUENCES >= kinds().len(),
        "not every kind has its turn"
    );
    for number in 0..SEQUENCES {
        found.extend(play(&mut ours, &mut real, number, seed).unwrap());
        seed = seeds.number() >> 32;
    }
    say(&format!(
        "TENURE_SEED={first}: {SEQUENCES} sequences of {LENGTH} requests to both servers"
    ));
    let text: String = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{text}");
}

#[test]
fn definitions_and_their_objects_get_the_same_responses() {
    let Some(cluster) = Skip::unless(shared()) else {
        return;
    };
    let embedded = Embedded::start().unwrap();
    let mut ours = Side::new(Wire::connect(&embedded.kubeconfig()).unwrap());
    let mut real = Side::new(cluster.wire().unwrap());
    let found = compare(&mut ours, &mut real).unwrap();
    let text: String = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "{} differences\n{text}", found.len());
}
