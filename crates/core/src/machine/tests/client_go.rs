//! The cases of client-go's `leaderelection_test.go` that concern the machine, numbered as in our list of those cases.
//! Where our behaviour differs on purpose, the test name or the comment says so.

use expect_test::expect;

use super::{Table, config, play};

#[test]
fn case_01_no_object_is_created_with_transitions_0() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5",
    ));
}

#[test]
fn case_02_an_object_with_an_empty_spec_is_taken_with_transitions_1() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 /0 v4              acquire#2 over 4 baz/15 t1
        0.02    ok2 5                    LEAD token=5 t1 until=10.01, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 /0 v4
         0.02 ok2 5",
    ));
}

#[test]
fn case_03_the_recorded_duration_counts_not_our_own() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/3 v4          leader "bing"
        0.02    watching                 -
        3.0     tick                     -
        3.02    tick                     acquire#2 over 4 baz/15 t1
        3.03    ok2 5                    LEAD token=5 t1 until=13.02, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/3 v4
         0.02 watching
         3.0 tick
         3.02 tick
         3.03 ok2 5",
    ));
}

#[test]
fn case_04_an_all_zero_record_is_taken_at_once() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 /0 v4 renew=0      acquire#2 over 4 baz/15 t1
        0.02    ok2 5                    LEAD token=5 t1 until=10.01, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 /0 v4 renew=0
         0.02 ok2 5",
    ));
}

#[test]
fn case_05_a_holder_observed_long_ago_is_replaced() {
    expect![[r#"
        0       start                    read#1
        0.01    watch bing/15 v4 t=7     leader "bing"
        0.02    watching                 -
        0.03    read1 bing/15 v4 t=7     -
        900     tick                     acquire#2 over 4 baz/15 t8
        900.1   ok2 5                    LEAD token=5 t8 until=910.00, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 watch bing/15 v4 t=7
         0.02 watching
         0.03 read1 bing/15 v4 t=7
         900 tick
         900.1 ok2 5",
    ));
}

#[test]
fn case_06_an_empty_holder_is_taken_regardless_of_its_times() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 /15 v4 renew=9999999999999999 t=3 acquire#2 over 4 baz/15 t4
        0.02    ok2 5                    LEAD token=5 t4 until=10.01, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 /15 v4 renew=9999999999999999 t=3
         0.02 ok2 5",
    ));
}

#[test]
fn case_07_a_fresh_holder_is_waited_for_and_reported_once() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/15 v4         leader "bing"
        0.5     watch bing/15 v6 renew=5 -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/15 v4
         0.5 watch bing/15 v6 renew=5",
    ));
}

/// client-go renews any record with its name, regardless of the writer. We wait as for another candidate, because
/// another process with our name may hold the record (duty 9).
#[test]
fn case_08_our_own_name_at_the_start_counts_as_another_holder() {
    expect![[r#"
        0       start                    read#1
        0.01    watch baz/15 v4          leader "baz"
        0.02    watching                 -
        0.03    read1 baz/15 v4          -
        14.9    tick                     -
        15.1    tick                     acquire#2 over 4 baz/15 t1
        15.2    ok2 5                    LEAD token=5 t1 until=25.10
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 watch baz/15 v4
         0.02 watching
         0.03 read1 baz/15 v4
         14.9 tick
         15.1 tick
         15.2 ok2 5",
    ));
}

#[test]
fn case_09_coordinated_a_foreign_holder_is_left_alone_even_when_expired() {
    let mut config = config();
    config.coordinated = true;
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/5 v4          leader "bing"
        0.02    watching                 -
        99      tick                     -
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 bing/5 v4
                 0.02 watching
                 99 tick",
            )
            .log,
    );
}

/// client-go and the controller both keep the number of transitions, so without this write no component would count the
/// terms.
#[test]
fn case_10_coordinated_an_assigned_lease_is_taken_up_with_transitions_raised() {
    let mut config = config();
    config.coordinated = true;
    expect![[r#"
        0       start                    read#1
        0.01    read1 baz/5 v4 t=2       leader "baz", acquire#2 over 4 baz/15 t3
        0.02    ok2 5                    LEAD token=5 t3 until=10.01
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 baz/5 v4 t=2
                 0.02 ok2 5",
            )
            .log,
    );
}

#[test]
fn case_12_and_13_a_release_reads_first_empties_the_holder_and_keeps_transitions() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 /0 v4 t=6          acquire#2 over 4 baz/15 t7
        0.02    ok2 5                    LEAD token=5 t7 until=10.01, leader "baz"
        1       shutdown                 STOP shutdown by=14.51
        1.1     worked                   read#3
        1.2     read3 wrote2 v5          release#4 over 5 /1 t7
        1.3     ok4 9                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 /0 v4 t=6
         0.02 ok2 5
         1 shutdown
         1.1 worked
         1.2 read3 wrote2 v5
         1.3 ok4 9",
    ));
}

#[test]
fn case_14_a_release_that_conflicts_reads_again_and_succeeds() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       shutdown                 STOP shutdown by=14.51
        1.1     worked                   read#3
        1.2     read3 wrote2 v5          release#4 over 5 /1 t0
        1.3     refused4                 read#5
        1.4     read5 wrote2 v6          release#6 over 6 /1 t0
        1.5     ok6 9                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 shutdown
         1.1 worked
         1.2 read3 wrote2 v5
         1.3 refused4
         1.4 read5 wrote2 v6
         1.5 ok6 9",
    ));
}

#[test]
fn case_15_a_renewal_in_flight_at_shutdown_does_not_prevent_the_release() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    shutdown                 STOP shutdown by=14.51
        2.03    worked                   -
        2.1     unknown3                 read#4
        2.2     read4 wrote3 v6          release#5 over 6 /1 t0
        2.3     ok5 9                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 shutdown
         2.03 worked
         2.1 unknown3
         2.2 read4 wrote3 v6
         2.3 ok5 9",
    ));
}

#[test]
fn case_16_a_read_in_flight_at_shutdown_does_not_prevent_the_release() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    refused3                 read#4
        2.03    shutdown                 STOP shutdown by=14.51
        2.04    worked                   -
        2.1     readfail4                read#5
        2.2     read5 wrote2 v5          release#6 over 5 /1 t0
        2.3     ok6 9                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 refused3
         2.03 shutdown
         2.04 worked
         2.1 readfail4
         2.2 read5 wrote2 v5
         2.3 ok6 9",
    ));
}

#[test]
fn case_18_leading_is_one_write_per_retry_period_and_no_read() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    ok3 6                    extend until=12.01
        4.01    tick                     renew#4 over 6 baz/15 t0
        4.02    ok4 7                    extend until=14.01
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 ok3 6
         4.01 tick
         4.02 ok4 7",
    ));
}

#[test]
fn case_19_after_a_conflict_a_read_and_a_renewal_follow_immediately() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    ok3 6                    extend until=12.01
        4.01    tick                     renew#4 over 6 baz/15 t0
        4.02    refused4                 read#5
        4.03    read5 wrote3 v7          renew#6 over 7 baz/15 t0
        4.04    ok6 8                    extend until=14.03
        6.03    tick                     renew#7 over 8 baz/15 t0
        6.04    ok7 9                    extend until=16.03
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 ok3 6
         4.01 tick
         4.02 refused4
         4.03 read5 wrote3 v7
         4.04 ok6 8
         6.03 tick
         6.04 ok7 9",
    ));
}
