//! Tests of the state that an election exposes, and of the time of the next tick.

use std::time::Duration;

use expect_test::expect;

use super::{Table, config, play};
use crate::time::LocalTime;

fn at(millis: u64) -> LocalTime {
    LocalTime::default() + Duration::from_millis(millis)
}

#[test]
fn leader_shows_its_guard_token_record_and_version() {
    let mut table = Table::new(config()).play("0 start\n0.5 read1 absent");
    assert!(table.election.guard().is_none() && table.election.token().is_none());
    assert!(table.election.record().is_none() && table.election.version().is_none());
    table.line("0.6 ok2 5");
    let guard = table.election.guard().map(|guard| guard.until());
    assert_eq!(guard, Some(at(10_500)));
    let token = |table: &Table| {
        table
            .election
            .token()
            .map(|token| token.as_str().to_owned())
    };
    assert_eq!(token(&table).as_deref(), Some("5"));
    let holder = table.election.record().map(|record| record.holder.as_str());
    assert_eq!(holder, Some("baz"));
    let version = table.election.version();
    assert_eq!(version.map(|v| v.revision.as_str()), Some("5"));
    table.line("0.7 stepdown");
    assert!(table.election.guard().is_none());
    assert_eq!(
        token(&table).as_deref(),
        Some("5"),
        "until its work has ended"
    );
}

#[test]
fn follower_wants_a_tick_when_the_lease_runs_out_and_none_while_a_term_for_life_lasts() {
    let script = "0 start\n0.1 read1 bing/15 v5\n0.2 watching";
    let table = Table::new(config()).play(script);
    assert_eq!(table.election.deadline(), Some(at(15_100)));
    let mut for_life = config();
    for_life.for_life = true;
    assert_eq!(Table::new(for_life).play(script).election.deadline(), None);
}

#[test]
fn work_that_is_stopping_gets_ticks_for_renewals_and_its_deadline() {
    let won = "0 start\n0.5 read1 absent\n0.5 ok2 5\n0.6 stepdown";
    let mut table = Table::new(config()).play(won);
    let due = table.election.deadline().expect("the next renewal");
    assert!(due <= at(2_500), "{due:?}");
    table.line("2.5 tick");
    table.line("2.6 watch bing/15 v9");
    assert_eq!(
        table.election.deadline(),
        Some(at(5_000)),
        "the request expires"
    );
    table.line("5.1 tick");
    assert_eq!(
        table.election.deadline(),
        Some(at(7_100)),
        "the work must have ended"
    );
    table.line("7.2 tick");
    assert!(table.log.contains("OVERRUN"), "{}", table.log);
    assert_eq!(table.election.deadline(), None, "{}", table.log);
}

#[test]
fn revision_without_an_order_from_the_watch_is_only_a_hint_to_read() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v5         leader "bing"
        0.2     watching                 -
        1       watch /1 vx7             read#2
        1.1     read2 bing/15 v5         -
        1.2     watch absent vx8         read#3
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v5
         0.2 watching
         1 watch /1 vx7
         1.1 read2 bing/15 v5
         1.2 watch absent vx8",
    ));
}

#[test]
fn response_to_another_read_is_ignored() {
    expect![[r#"
        0       start                    read#1
        0.1     read7 /1 v5              -
        0.2     read7 absent             -
        0.3     readfail7                -
        0.4     refused1                 -
        0.5     read1 bing/15 v5         leader "bing"
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read7 /1 v5
         0.2 read7 absent
         0.3 readfail7
         0.4 refused1
         0.5 read1 bing/15 v5",
    ));
}

#[test]
fn candidate_that_does_not_rejoin_finishes_after_its_term() {
    let mut config = config();
    config.rejoin = false;
    let log = Table::new(config)
        .play(
            "0 start
             0.01 read1 absent
             0.02 ok2 5
             0.1 worked
             0.2 read3 wrote2 v5
             0.3 ok4 6",
        )
        .log;
    assert!(log.ends_with("leader \"\", released, finished\n"), "{log}");
}
