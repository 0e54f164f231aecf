//! Tests of two processes with one configured name on a lock that stores whole seconds. Within the same second they
//! write the same text, so the text proves nothing (duty 9).

use expect_test::expect;

use super::{Config, Table, config};

fn whole_seconds() -> Config {
    Config {
        whole_seconds: true,
        ..config()
    }
}

fn play(script: &str) -> String {
    Table::new(whole_seconds()).play(script).log
}

#[test]
fn loser_of_a_race_within_one_second_does_not_treat_the_record_as_its_own() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/3 v4          leader "bing"
        0.02    watching                 -
        5       tick                     acquire#2 over 4 baz/15 t1
        5.01    refused2                 read#3
        5.02    read3 wrote2 v5          leader "baz"
        5.5     tick                     -
        20.9    tick                     -
        21.1    tick                     acquire#4 over 5 baz/15 t2
        21.2    ok4 6                    LEAD token=6 t2 until=31.10
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/3 v4
         0.02 watching
         5 tick
         5.01 refused2
         5.02 read3 wrote2 v5
         5.5 tick
         20.9 tick
         21.1 tick
         21.2 ok4 6",
    ));
}

#[test]
fn lost_response_proves_nothing_and_late_response_is_proof() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/3 v4          leader "bing"
        0.02    watching                 -
        5       tick                     acquire#2 over 4 baz/15 t1
        5.01    unknown2                 read#3
        5.02    read3 wrote2 v5          leader "baz"
        5.03    tick                     -
        6       ok2 5                    LEAD token=5 t1 until=15.00, renew#4 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/3 v4
         0.02 watching
         5 tick
         5.01 unknown2
         5.02 read3 wrote2 v5
         5.03 tick
         6 ok2 5",
    ));
}

#[test]
fn write_that_may_be_of_another_process_with_the_name_is_not_released_at_shutdown() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/3 v4          leader "bing"
        0.02    watching                 -
        5       tick                     acquire#2 over 4 baz/15 t1
        5.01    shutdown                 -
        5.02    unknown2                 read#3
        5.03    read3 wrote2 v5          leader "baz", finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/3 v4
         0.02 watching
         5 tick
         5.01 shutdown
         5.02 unknown2
         5.03 read3 wrote2 v5",
    ));
}

/// Nobody may replace our record while our guard is valid. A renewal whose response was lost is therefore recognized by
/// its text, as on any other lock.
#[test]
fn during_a_term_a_renewal_without_an_answer_is_recognised() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.1     unknown3                 renew#4 over 5 baz/15 t0
        2.2     refused4                 -
        2.5     tick                     read#5
        2.6     read5 wrote3 v6          extend until=12.01
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.1 unknown3
         2.2 refused4
         2.5 tick
         2.6 read5 wrote3 v6",
    ));
}

#[test]
fn an_edited_label_during_a_term_changes_nothing() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watch wrote2 v6          -
        2.01    tick                     renew#3 over 6 baz/15 t0
        2.02    ok3 7                    extend until=12.01
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.03 watch wrote2 v6
         2.01 tick
         2.02 ok3 7",
    ));
}

/// The object was deleted, and a process with the same name created it again within the same second.
#[test]
fn recreated_object_with_an_equal_record_is_not_ours() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1.5     watch wrote2 v6 uid=other STOP recreated by=6.00
        1.6     worked                   read#3
        5       tick                     read#4
        17.4    tick                     -
        17.6    tick                     read#5
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1.5 watch wrote2 v6 uid=other
         1.6 worked
         5 tick
         17.4 tick
         17.6 tick",
    ));
}

/// With times in microseconds the record of an attempt is sufficient proof, so nobody waits.
#[test]
fn on_a_lease_the_record_of_an_attempt_is_proof() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/3 v4          leader "bing"
        0.02    watching                 -
        5       tick                     acquire#2 over 4 baz/15 t1
        5.01    unknown2                 read#3
        5.02    read3 wrote2 v5          leader "baz", acquire#4 over 5 baz/15 t2
        5.03    ok4 6                    LEAD token=6 t2 until=15.02
    "#]]
    .assert_eq(
        &Table::new(config())
            .play(
                "0 start
                 0.01 read1 bing/3 v4
                 0.02 watching
                 5 tick
                 5.01 unknown2
                 5.02 read3 wrote2 v5
                 5.03 ok4 6",
            )
            .log,
    );
}
