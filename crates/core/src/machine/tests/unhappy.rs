//! Cases that client-go's tests lack (`extra_1` to `extra_9`; 7 is among the duties, 8 in the driver's tests), and bugs
//! that the simulator and the model check found in this crate.

use expect_test::expect;

use super::{Table, config, play};

#[test]
fn extra_1_a_partition_longer_than_the_lease_ends_the_term_at_its_guard_and_releases_nothing() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        4.52    tick                     renew#4 over 5 baz/15 t0
        7.1     tick                     -
        9.7     tick                     renew#5 over 5 baz/15 t0
        10.02   tick                     STOP guard-expired by=14.51
        10.1    worked                   read#6
        12.7    tick                     -
        15.5    tick                     read#7
        16      read7 bing/15 v9 t=1     leader "bing"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         4.52 tick
         7.1 tick
         9.7 tick
         10.02 tick
         10.1 worked
         12.7 tick
         15.5 tick
         16 read7 bing/15 v9 t=1",
    ));
}

#[test]
fn extra_2_a_foreign_holder_seen_in_the_middle_of_a_term_ends_it_without_waiting() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    refused3                 read#4
        2.03    read4 bing/15 v9 t=1     leader "bing", STOP foreign-holder by=6.53
        2.04    worked                   read#5
        2.05    tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 refused3
         2.03 read4 bing/15 v9 t=1
         2.04 worked
         2.05 tick",
    ));
}

#[test]
fn extra_3_a_loss_and_regain_is_a_new_term_with_a_new_token() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watching                 -
        1       watch bing/15 v6 t=1     leader "bing", STOP foreign-holder by=5.50
        1.1     worked                   -
        1.2     watch /1 v7 t=1          leader ""
        1.3     tick                     acquire#3 over 7 baz/15 t2
        1.4     ok3 8                    LEAD token=8 t2 until=11.30, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.03 watching
         1 watch bing/15 v6 t=1
         1.1 worked
         1.2 watch /1 v7 t=1
         1.3 tick
         1.4 ok3 8",
    ));
}

#[test]
fn extra_4_a_release_that_races_a_take_over_leaves_the_successor_alone() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       shutdown                 STOP shutdown by=14.51
        1.1     worked                   read#3
        1.2     read3 wrote2 v5          release#4 over 5 /1 t0
        1.3     refused4                 read#5
        1.4     read5 bing/15 v6 t=1     leader "bing", finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 shutdown
         1.1 worked
         1.2 read3 wrote2 v5
         1.3 refused4
         1.4 read5 bing/15 v6 t=1",
    ));
}

#[test]
fn extra_5_a_lease_deleted_under_the_leader_is_won_again_as_a_new_term() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       watch absent v6          STOP deleted by=5.50
        1.1     worked                   create#3 baz/15 t0
        1.2     tick                     -
        1.3     ok3 7                    LEAD token=7 t0 until=11.10
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 watch absent v6
         1.1 worked
         1.2 tick
         1.3 ok3 7",
    ));
}

#[test]
fn extra_6_a_suspend_ends_the_term_on_the_first_step_after_it() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        3600    tick                     STOP guard-expired by=3600.10
        3600.05 worked                   acquire#3 over 5 baz/15 t1
        3600.06 tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         3600 tick
         3600.05 worked
         3600.06 tick",
    ));
}

#[test]
fn extra_9_callbacks_come_in_order_leader_after_lead_and_each_stop_after_its_lead() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/15 v4         leader "bing"
        0.5     watch /1 v5 t=1          leader ""
        0.6     tick                     acquire#2 over 5 baz/15 t2
        0.7     ok2 6                    LEAD token=6 t2 until=10.60, leader "baz"
        0.8     stepdown                 STOP step-down by=15.10
        0.9     worked                   read#3
        1.0     read3 wrote2 v6          release#4 over 6 /1 t2
        1.1     ok4 7                    leader "", released, read#5
        1.2     watch bing/15 v8 t=3     leader "bing"
        1.3     watch bing/15 v9 t=3 renew=9 -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/15 v4
         0.5 watch /1 v5 t=1
         0.6 tick
         0.7 ok2 6
         0.8 stepdown
         0.9 worked
         1.0 read3 wrote2 v6
         1.1 ok4 7
         1.2 watch bing/15 v8 t=3
         1.3 watch bing/15 v9 t=3 renew=9",
    ));
}

#[test]
fn work_that_ends_by_itself_releases_the_lease() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watching                 -
        1       worked                   STOP work-ended by=14.51, read#3
        1.1     read3 wrote2 v5          release#4 over 5 /1 t0
        1.2     ok4 6                    leader "", released
        1.3     tick                     -
        3.1     tick                     acquire#5 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.03 watching
         1 worked
         1.1 read3 wrote2 v5
         1.2 ok4 6
         1.3 tick
         3.1 tick",
    ));
}

/// Found by the simulator: the second write was attributed to another candidate and ended the term.
#[test]
fn late_response_does_not_invalidate_the_following_write() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        2.6     unknown2                 read#3
        2.7     read3 wrote2 v5          leader "baz", acquire#4 over 5 baz/15 t1
        2.8     ok2 5                    LEAD token=5 t0 until=10.01
        2.9     ok4 6                    extend until=12.70
        4.9     tick                     renew#5 over 6 baz/15 t1
        5.0     ok5 7                    extend until=14.90
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         2.6 unknown2
         2.7 read3 wrote2 v5
         2.8 ok2 5
         2.9 ok4 6
         4.9 tick
         5.0 ok5 7",
    ));
}

/// Found by the simulator: the record in the object was forgotten, and the S5 assertion failed.
#[test]
fn many_lost_responses_never_make_our_own_record_foreign() {
    let mut table = Table::new(config()).play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 unknown3
         2.03 refused4
         2.04 read5 wrote3 v6",
    );
    for id in 6..16 {
        table.line(&format!("{} unknown{id}", 2.0 + 0.1 * id as f64));
        table.line(&format!("{} tick", 2.09 + 0.1 * id as f64));
    }
    assert!(!table.log.contains("STOP"), "{}", table.log);
}

/// Found by the simulator: a leader whose writes were applied but never answered retried forever. Later it treated the
/// effect of its oldest attempt as an edit by another writer.
#[test]
fn leader_without_responses_reads_the_result_of_its_writes() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    unknown3                 renew#4 over 5 baz/15 t0
        2.03    unknown4                 -
        2.3     tick                     renew#5 over 5 baz/15 t0
        2.4     unknown5                 -
        3       tick                     read#6
        3.1     read6 wrote3 v6          extend until=12.01
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 unknown3
         2.03 unknown4
         2.3 tick
         2.4 unknown5
         3 tick
         3.1 read6 wrote3 v6",
    ));
}

/// Found by the simulator: after the lease was no longer renewed, the next tick was requested for an instant in the
/// past.
#[test]
fn stopping_term_requests_no_tick_in_the_past() {
    let table = Table::new(config()).play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 ok3 6
         2.1 stepdown
         4.01 tick
         4.02 ok4 7
         6.01 tick
         6.02 ok5 8
         8.01 tick
         8.02 ok6 9
         10.01 tick
         10.02 ok7 10
         12.01 tick
         12.2 tick",
    );
    let now = table.now(12.2).local;
    assert!(
        table.election.deadline().is_some_and(|at| at > now),
        "{}",
        table.log
    );
}

/// The controller does not repeat an assignment to the same candidate, so an assignment that was not taken up in time
/// must not be lost.
#[test]
fn an_expired_assignment_is_taken_up_after_the_sit_out() {
    let mut config = config();
    config.coordinated = true;
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             -
        0.02    watching                 -
        1       stepdown                 -
        1.1     watch baz/5 v4           leader "baz"
        10      tick                     -
        40      tick                     acquire#2 over 4 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 absent
                 0.02 watching
                 1 stepdown
                 1.1 watch baz/5 v4
                 10 tick
                 40 tick",
            )
            .log,
    );
}

#[test]
fn a_version_that_the_server_gives_twice_begins_no_second_term() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        10.5    tick                     STOP guard-expired by=15.00
        11      worked                   acquire#3 over 5 baz/15 t1
        11.1    ok3 5                    -
        13.1    tick                     acquire#4 over 5 baz/15 t2
        13.2    ok4 5                    -
        15.2    tick                     acquire#5 over 5 baz/15 t3
        15.3    ok5 6                    LEAD token=6 t3 until=25.20
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         1.0 ok2 5
         10.5 tick
         11 worked
         11.1 ok3 5
         13.1 tick
         13.2 ok4 5
         15.2 tick
         15.3 ok5 6",
    ));
}

/// Found by the model check: a repeated response began a second term with the token of the first one.
#[test]
fn an_answer_that_is_repeated_does_not_win_a_second_term() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       watch absent v6          STOP deleted by=5.50
        1.1     worked                   create#3 baz/15 t0
        1.2     ok2 5                    -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 watch absent v6
         1.1 worked
         1.2 ok2 5",
    ));
}

/// The controller never increments the number of transitions, so the order that ended the last term stays on the
/// object. It names a term that has ended.
#[test]
fn a_coordinated_term_is_not_ended_by_the_order_for_the_last_one() {
    let mut config = config();
    config.coordinated = true;
    expect![[r#"
        0       start                    read#1
        0.01    read1 baz/5 v4 t=2 order=2 leader "baz", acquire#2 over 4 baz/15 t3
        0.02    ok2 5                    LEAD token=5 t3 until=10.01
        0.03    watch wrote2 v6 order=3  STOP ordered by=14.51
        0.04    worked                   read#3
        0.05    read3 wrote2 v6 order=3  release#4 over 6 /1 t3
        0.06    ok4 7                    leader "", released, read#5
        0.07    watch baz/5 v8 t=3 order=3 leader "baz"
        6       tick                     read#6
        6.01    read6 baz/5 v8 t=3 order=3 acquire#7 over 8 baz/15 t4
        6.02    ok7 9                    LEAD token=9 t4 until=16.01
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 baz/5 v4 t=2 order=2
                 0.02 ok2 5
                 0.03 watch wrote2 v6 order=3
                 0.04 worked
                 0.05 read3 wrote2 v6 order=3
                 0.06 ok4 7
                 0.07 watch baz/5 v8 t=3 order=3
                 6 tick
                 6.01 read6 baz/5 v8 t=3 order=3
                 6.02 ok7 9",
            )
            .log,
    );
}

#[test]
fn an_order_names_the_term_that_the_object_shows() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unknown2                 read#3
        0.03    read3 wrote2 v5          leader "baz", acquire#4 over 5 baz/15 t1
        0.04    ok2 5                    LEAD token=5 t0 until=10.01
        0.05    unknown4                 renew#5 over 5 baz/15 t0
        0.06    watch wrote4 v6 order=1  STOP ordered by=14.51
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 unknown2
         0.03 read3 wrote2 v5
         0.04 ok2 5
         0.05 unknown4
         0.06 watch wrote4 v6 order=1",
    ));
}

#[test]
fn our_own_write_keeps_the_orders_of_the_replaced_version_despite_a_stale_read() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watch wrote2 v8 paused   -
        2.01    tick                     renew#3 over 8 baz/15 t0
        2.1     unknown3                 renew#4 over 8 baz/15 t0
        2.2     refused4                 -
        2.5     tick                     read#5
        2.6     read5 wrote2 v5          STOP went-back by=7.10
        2.7     ok3 9                    -
        2.8     worked                   read#6
        3.9     tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.03 watch wrote2 v8 paused
         2.01 tick
         2.1 unknown3
         2.2 refused4
         2.5 tick
         2.6 read5 wrote2 v5
         2.7 ok3 9
         2.8 worked
         3.9 tick",
    ));
}
