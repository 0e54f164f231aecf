//! Tests of terms for life.

use std::time::Duration;

use expect_test::expect;

use super::{Config, Table, config};
use crate::record::MAX_LEASE;
use crate::timing::Timing;

/// In these tests a lease duration of 15 s identifies a term for life.
fn play(script: &str) -> String {
    let config = Config {
        for_life: true,
        ..config()
    };
    Table::new(config).play(script).log
}

#[test]
fn a_term_of_another_for_life_is_never_taken_over_until_it_is_emptied() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v5         leader "bing"
        0.2     watching                 -
        16      tick                     -
        1000    tick                     -
        1001    watch /1 v6              leader ""
        1002    tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v5
         0.2 watching
         16 tick
         1000 tick
         1001 watch /1 v6
         1002 tick",
    ));
}

#[test]
fn term_of_another_mode_expires() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/14 v5         leader "bing"
        0.2     watching                 -
        14      tick                     -
        15      tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/14 v5
         0.2 watching
         14 tick
         15 tick",
    ));
}

/// Durations are limited to two days, which is also the duration that `tenure elect --mode=for-life` writes.
#[test]
fn longer_duration_is_reduced_and_is_not_a_term_for_life() {
    let timing = Timing::builder()
        .lease_duration(MAX_LEASE)
        .renew_deadline(Duration::from_secs(10))
        .build()
        .unwrap();
    let config = Config {
        for_life: true,
        timing,
        ..config()
    };
    let week = "0 start\n0.1 read1 bing/604800 v5\n0.2 watching\n400000 tick";
    let log = Table::new(config).play(week).log;
    assert!(log.contains("acquire#2 over 5"), "{log}");
}

#[test]
fn term_of_an_earlier_incarnation_is_continued() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 baz/15 v5          leader "baz", acquire#2 over 5 baz/15 t1
        0.2     ok2 6                    LEAD token=6 t1 until=10.10
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 baz/15 v5
         0.2 ok2 6",
    ));
    expect![[r#"
        0       start                    read#1
        0.1     read1 baz/15 v5 paused   leader "baz"
        0.2     watching                 -
        1       watch absent v6          -
        2       tick                     create#2 baz/15 t0
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 baz/15 v5 paused
         0.2 watching
         1 watch absent v6
         2 tick",
    ));
}

#[test]
fn edited_term_ends_and_a_new_one_begins() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     ok2 5                    LEAD token=5 t0 until=10.10, leader "baz"
        1       watch baz/15 v6 renew=7  STOP edited by=5.50
        1.1     worked                   acquire#3 over 6 baz/15 t1
        1.2     ok3 7                    LEAD token=7 t1 until=11.10
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 absent
         0.2 ok2 5
         1 watch baz/15 v6 renew=7
         1.1 worked
         1.2 ok3 7",
    ));
}

#[test]
fn term_for_life_is_kept_at_shutdown_and_released_by_order() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     ok2 5                    LEAD token=5 t0 until=10.10, leader "baz"
        1       shutdown                 STOP shutdown by=14.60
        1.1     worked                   finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 absent
         0.2 ok2 5
         1 shutdown
         1.1 worked",
    ));
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     ok2 5                    LEAD token=5 t0 until=10.10, leader "baz"
        1       stepdown                 STOP step-down by=14.60
        1.1     worked                   read#3
        1.2     read3 wrote2 v5          release#4 over 5 /1 t0
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 absent
         0.2 ok2 5
         1 stepdown
         1.1 worked
         1.2 read3 wrote2 v5",
    ));
}
