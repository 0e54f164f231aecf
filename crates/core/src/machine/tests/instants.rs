//! Tests of exact instants: the state at the end of a wait, and one nanosecond before or after it.

use std::time::Duration;

use expect_test::expect;

use super::super::lead::next_renewal;
use super::play;
use crate::time::LocalTime;

#[test]
fn term_begins_if_half_of_its_guard_is_left_and_not_with_less() {
    // The winning write is sent at 0.5 s, and its guard lasts ten seconds.
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        3.0     tick                     read#3
        5.5     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz", read#4
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         3.0 tick
         5.5 ok2 5",
    ));
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        3.0     tick                     read#3
        6       ok2 5                    read#4
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         3.0 tick
         6 ok2 5",
    ));
}

#[test]
fn term_begins_when_the_time_to_sit_out_ends() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 bing/15 v4         leader "bing"
        0.6     watching                 -
        1       stepdown                 -
        20      watch /1 v5              leader ""
        30.5    tick                     -
        31      tick                     acquire#2 over 5 baz/15 t1
        31      ok2 6                    LEAD token=6 t1 until=41.00, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 bing/15 v4
         0.6 watching
         1 stepdown
         20 watch /1 v5
         30.5 tick
         31 tick
         31 ok2 6",
    ));
}

#[test]
fn late_renewal_keeps_its_place_up_to_half_a_period() {
    let at = |millis| LocalTime::default() + Duration::from_millis(millis);
    let retry = Duration::from_secs(2);
    for (due, sent, expected) in [
        (5_000, 5_000, 7_000),
        (5_000, 5_999, 7_000),
        (5_000, 6_000, 7_000),
        (5_000, 6_001, 8_001),
        (5_000, 9_000, 11_000),
        (5_000, 4_000, 6_000),
    ] {
        let next = next_renewal(at(due), at(sent), retry);
        assert_eq!(next, at(expected), "due {due}, sent {sent}");
    }
}
