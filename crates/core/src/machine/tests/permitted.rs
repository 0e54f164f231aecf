//! S5, asserted before every write: which versions may be replaced. The election never tries another one, so the
//! assertion is tested by itself.

use super::{Config, Table, config, version};
use crate::command::WriteKind;

/// Whether version `revision`, or with `None` an object that does not exist, may be replaced after a script.
fn may_replace(config: Config, script: &str, seconds: f64, revision: Option<&str>) -> bool {
    let table = Table::new(config).play(script);
    let kind = revision.map_or(WriteKind::Create, |revision| {
        WriteKind::Acquire(version(revision))
    });
    table.election.may_replace(table.now(seconds), &kind)
}

fn coordinated() -> Config {
    Config {
        coordinated: true,
        ..config()
    }
}

fn for_life() -> Config {
    Config {
        for_life: true,
        ..config()
    }
}

#[test]
fn record_of_another_may_be_replaced_from_the_end_of_its_lease() {
    let held = "0 start\n1 read1 bing/15 v4";
    for (seconds, expected) in [(15.5, false), (16.0, true), (17.0, true)] {
        assert_eq!(
            may_replace(config(), held, seconds, Some("4")),
            expected,
            "{seconds}"
        );
    }
    assert!(!may_replace(config(), held, 17.0, Some("5")), "not seen");
    assert!(!may_replace(config(), held, 17.0, None), "it exists");
    assert!(!may_replace(for_life(), held, 17.0, Some("4")), "for life");
    assert!(
        !may_replace(config(), "0 start", 17.0, Some("4")),
        "nothing is known"
    );
}

#[test]
fn free_record_may_be_replaced_and_unreadable_record_may_not() {
    let free = "0 start\n1 read1 /15 v4 paused";
    assert!(may_replace(config(), free, 1.0, Some("4")));
    let garbage = "0 start\n1 read1 /15 v4 garbage";
    assert!(!may_replace(config(), garbage, 1.0, Some("4")));
    assert!(may_replace(config(), garbage, 16.0, Some("4")));
}

#[test]
fn assignment_may_be_replaced_in_a_coordinated_election_only() {
    let assigned = "0 start\n1 read1 baz/15 v4 paused";
    assert!(may_replace(coordinated(), assigned, 1.0, Some("4")));
    assert!(!may_replace(config(), assigned, 1.0, Some("4")));
    let other = "0 start\n1 read1 bing/15 v4";
    assert!(!may_replace(coordinated(), other, 1.0, Some("4")));
}

#[test]
fn term_that_the_record_does_not_show_is_waited_for() {
    let emptied = "0 start\n1 read1 /1 v4 renew=9 mark=bing/15@7";
    for (seconds, expected) in [(15.5, false), (16.0, true)] {
        assert_eq!(
            may_replace(config(), emptied, seconds, Some("4")),
            expected,
            "{seconds}"
        );
    }
    // Its own lease ends before that of the term that it replaced.
    let assigned = "0 start\n1 read1 bing/3 v4 renew=9 mark=bong/15@7";
    assert!(!may_replace(config(), assigned, 5.0, Some("4")));
    assert!(may_replace(config(), assigned, 16.0, Some("4")));
    let deleted = "0 start\n1 read1 bing/15 v4\n2 watch absent v5";
    assert!(!may_replace(config(), deleted, 15.5, None));
    assert!(may_replace(config(), deleted, 16.0, None));
    assert!(!may_replace(config(), deleted, 16.0, Some("4")));
}

#[test]
fn own_record_may_be_replaced_regardless_of_earlier_terms() {
    let own = "0 start\n1 read1 absent\n1.1 ok2 5";
    assert!(may_replace(config(), own, 1.2, Some("5")));
    let inherited = "0 start\n1 read1 baz/15 v4 paused";
    assert!(may_replace(for_life(), inherited, 1.2, Some("4")));
}
