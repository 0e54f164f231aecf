//! Tests of work that is stopping: how long its lease is renewed, and what changes its deadline.

use std::time::Duration;

use expect_test::expect;

use super::{Table, config, play};
use crate::input::{Input, Outcome};
use crate::time::{LocalTime, Now};

const LEADING: &str = "0 start
    0.5 read1 absent
    1.0 ok2 5";

fn after_leading(script: &str) -> Table {
    Table::new(config()).play(&format!("{LEADING}\n{script}"))
}

fn at(millis: u64) -> LocalTime {
    LocalTime::default() + Duration::from_millis(millis)
}

#[test]
fn renewal_while_work_stops_has_the_number_of_the_term_that_the_object_shows() {
    let table = Table::new(config()).play(
        "0 start
         0.01 read1 absent
         2.6 unknown2
         2.7 read3 wrote2 v5
         2.8 ok2 5
         2.85 stepdown
         2.9 ok4 6
         4.9 tick",
    );
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        2.6     unknown2                 read#3
        2.7     read3 wrote2 v5          leader "baz", acquire#4 over 5 baz/15 t1
        2.8     ok2 5                    LEAD token=5 t0 until=10.01
        2.85    stepdown                 STOP step-down by=14.51
        2.9     ok4 6                    drain by=17.20
        4.9     tick                     renew#5 over 6 baz/15 t1
    "#]]
    .assert_eq(&table.log);
    let acquired = |id: u64| {
        let (_, record) = table.writes.iter().find(|(number, _)| *number == id)?;
        record.acquire_time
    };
    assert_eq!(
        acquired(5),
        acquired(4),
        "as the second winning write had it"
    );
    assert_ne!(acquired(5), acquired(2));
}

#[test]
fn observation_of_a_confirmed_renewal_does_not_move_the_deadline() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     stepdown                 STOP step-down by=15.00
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     refused3                 read#4
        2.7     read4 wrote2 v6          renew#5 over 6 baz/15 t0
    "#]]
    .assert_eq(
        &after_leading(
            "1.5 stepdown
             2.5 tick
             2.6 refused3
             2.7 read4 wrote2 v6",
        )
        .log,
    );
}

/// The loss of a term sets the deadline of its work once. Only a voluntary stop can later turn into a loss.
#[test]
fn loss_after_a_loss_does_not_move_the_deadline() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.2     expired 5                STOP guard-expired by=15.00
        2.5     watch bing/15 v6 t=1     leader "bing"
    "#]]
    .assert_eq(
        &after_leading(
            "1.2 expired 5
             2.5 watch bing/15 v6 t=1",
        )
        .log,
    );
}

#[test]
fn loss_that_leaves_as_much_time_does_not_set_the_deadline_again() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     stepdown                 STOP step-down by=15.00
        10.5    watch bing/15 v6 t=1     leader "bing"
    "#]]
    .assert_eq(
        &after_leading(
            "1.5 stepdown
             10.5 watch bing/15 v6 t=1",
        )
        .log,
    );
}

#[test]
fn lease_is_renewed_for_one_renew_deadline_after_the_stop() {
    let table = after_leading(
        "2.5 stepdown
         2.6 ok3 6
         4.5 tick
         4.6 ok4 7
         10.5 tick
         10.6 ok5 8
         12.5 tick",
    );
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     stepdown                 STOP step-down by=15.00, renew#3 over 5 baz/15 t0
        2.6     ok3 6                    drain by=17.00
        4.5     tick                     renew#4 over 6 baz/15 t0
        4.6     ok4 7                    drain by=19.00
        10.5    tick                     renew#5 over 7 baz/15 t0
        10.6    ok5 8                    drain by=25.00
        12.5    tick                     -
    "#]]
    .assert_eq(&table.log);
}

#[test]
fn no_tick_is_requested_when_the_lease_is_no_longer_renewed() {
    // This renewal is sent more than half a retry period late, so the next one is due two seconds after it. The lease
    // is no longer renewed by then.
    let table = after_leading(
        "1.0 stepdown
         9.0 tick
         9.0 ok3 6",
    );
    assert_eq!(table.election.deadline(), Some(at(23_500)), "{}", table.log);
}

#[test]
fn no_tick_is_requested_for_a_renewal_at_the_end_of_the_guard() {
    // The delay after the second failure does not depend on the time of that failure.
    let fail = |table: &mut Table, nanos: u64| {
        let now = Now {
            local: LocalTime::from_nanos(nanos),
            ..table.now(nanos as f64 / 1e9)
        };
        table
            .election
            .step(now, Input::Written(4, Outcome::Unknown));
        table.election.deadline().map(LocalTime::as_nanos)
    };
    let mut probe = after_leading("1.0 stepdown\n2.5 tick\n2.6 unknown3");
    let failed = 4_000_000_000;
    let delay = fail(&mut probe, failed).expect("a renewal") - failed;
    assert!((125_000_000..200_000_000).contains(&delay), "{delay}");
    // The guard expires at 10.5 s.
    let mut late = after_leading("1.0 stepdown\n8.1 tick\n8.2 unknown3");
    assert_eq!(
        fail(&mut late, 10_500_000_000 - delay),
        Some(15_000_000_000),
        "the work must have ended"
    );
    let mut earlier = after_leading("1.0 stepdown\n8.1 tick\n8.2 unknown3");
    assert_eq!(
        fail(&mut earlier, 10_499_999_999 - delay),
        Some(10_499_999_999)
    );
}

#[test]
fn renewal_that_is_answered_during_the_release_extends_the_time_for_it() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        8.5     tick                     renew#3 over 5 baz/15 t0
        8.6     stepdown                 STOP step-down by=15.00
        8.7     worked                   -
        8.8     ok3 6                    release#4 over 6 /1 t0
        8.9     unknown4                 read#5
        10.6    tick                     -
        10.7    read5 wrote3 v6          release#6 over 6 /1 t0
        11      ok6 7                    leader "", released, read#7
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         1.0 ok2 5
         8.5 tick
         8.6 stepdown
         8.7 worked
         8.8 ok3 6
         8.9 unknown4
         10.6 tick
         10.7 read5 wrote3 v6
         11 ok6 7",
    ));
}
