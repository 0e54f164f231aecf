//! Shutdown of a follower: a read shows whether a winning write without a response was applied. If so, the lock is
//! released.

use expect_test::expect;

use super::{Table, config, play};

#[test]
fn shutdown_during_the_winning_write_releases_without_leading() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    shutdown                 -
        0.03    ok2 5                    read#3
        0.04    read3 wrote2 v5          leader "baz", release#4 over 5 /1 t0
        0.05    ok4 6                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 shutdown
         0.03 ok2 5
         0.04 read3 wrote2 v5
         0.05 ok4 6",
    ));
}

#[test]
fn step_down_during_the_winning_write_releases_without_leading() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.015   watching                 -
        0.02    stepdown                 -
        0.03    ok2 5                    read#3
        0.04    read3 wrote2 v5          leader "baz", release#4 over 5 /1 t0
        0.05    ok4 6                    leader "", released
        30.01   tick                     -
        30.02   tick                     acquire#5 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.015 watching
         0.02 stepdown
         0.03 ok2 5
         0.04 read3 wrote2 v5
         0.05 ok4 6
         30.01 tick
         30.02 tick",
    ));
}

/// In a coordinated election, an order may name a term before a candidate has taken it up. This order does not keep the
/// former holder from campaigning again.
#[test]
fn order_for_the_term_that_was_just_won_releases_it_without_leading() {
    let mut config = config();
    config.coordinated = true;
    expect![[r#"
        0       start                    read#1
        0.01    read1 baz/5 v4 t=2 order=3:bing leader "baz", acquire#2 over 4 baz/15 t3
        0.02    ok2 5                    read#3
        0.03    read3 wrote2 v5 order=3:bing release#4 over 5 /1 t3
        0.04    ok4 6                    leader "", released, read#5
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 baz/5 v4 t=2 order=3:bing
                 0.02 ok2 5
                 0.03 read3 wrote2 v5 order=3:bing
                 0.04 ok4 6",
            )
            .log,
    );
}

#[test]
fn shutdown_looks_for_an_open_winning_write_until_the_third_failure() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unknown2                 read#3
        0.03    shutdown                 -
        0.04    tick                     -
        0.05    readfail3                -
        0.06    tick                     -
        0.3     tick                     read#4
        0.4     readfail4                finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 unknown2
         0.03 shutdown
         0.04 tick
         0.05 readfail3
         0.06 tick
         0.3 tick
         0.4 readfail4",
    ));
}

#[test]
fn shutdown_releases_an_open_winning_write_that_was_applied() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unknown2                 read#3
        0.03    shutdown                 -
        0.04    read3 wrote2 v5          leader "baz"
        0.04    tick                     read#4
        0.05    read4 wrote2 v5          release#5 over 5 /1 t0
        0.06    ok5 6                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 unknown2
         0.03 shutdown
         0.04 read3 wrote2 v5
         0.04 tick
         0.05 read4 wrote2 v5
         0.06 ok5 6",
    ));
}

#[test]
fn shutdown_does_not_look_for_an_open_winning_write_if_nothing_is_released() {
    let mut config = config();
    config.release_on_cancel = false;
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unknown2                 read#3
        0.03    shutdown                 finished
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 absent
                 0.02 unknown2
                 0.03 shutdown",
            )
            .log,
    );
}

/// The record of another holder is newer than the version that our write names, so our write cannot be applied.
#[test]
fn shutdown_does_not_look_for_a_winning_write_that_another_holder_overtook() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unknown2                 read#3
        0.03    read3 bing/15 v5         leader "bing"
        5       tick                     read#4
        5.1     shutdown                 finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 unknown2
         0.03 read3 bing/15 v5
         5 tick
         5.1 shutdown",
    ));
}

#[test]
fn shutdown_does_not_look_for_a_winning_write_that_the_server_rejected_for_good() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unusable2                read#3
        0.03    shutdown                 finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 unusable2
         0.03 shutdown",
    ));
}

#[test]
fn shutdown_during_a_release_waits_for_it() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       stepdown                 STOP step-down by=14.51
        1.1     worked                   read#3
        1.2     shutdown                 -
        1.3     read3 wrote2 v5          release#4 over 5 /1 t0
        1.4     ok4 6                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 stepdown
         1.1 worked
         1.2 shutdown
         1.3 read3 wrote2 v5
         1.4 ok4 6",
    ));
}

#[test]
fn shutdown_while_work_winds_down_still_releases() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       stepdown                 STOP step-down by=14.51
        1.1     shutdown                 -
        1.2     worked                   read#3
        1.3     read3 wrote2 v5          release#4 over 5 /1 t0
        1.4     ok4 6                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 stepdown
         1.1 shutdown
         1.2 worked
         1.3 read3 wrote2 v5
         1.4 ok4 6",
    ));
}

#[test]
fn release_whose_answer_was_lost_is_not_repeated() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       shutdown                 STOP shutdown by=14.51
        1.1     worked                   read#3
        1.2     read3 wrote2 v5          release#4 over 5 /1 t0
        1.3     unknown4                 read#5
        1.4     read5 wrote4 v6          leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 shutdown
         1.1 worked
         1.2 read3 wrote2 v5
         1.3 unknown4
         1.4 read5 wrote4 v6",
    ));
}
