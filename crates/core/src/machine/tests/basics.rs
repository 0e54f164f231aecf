//! Tests of following, polling, orders of operators, and the end of an election.

use expect_test::expect;

use super::{Table, config, play};

#[test]
fn a_follower_that_watches_sends_nothing() {
    let table = Table::new(config()).play(
        "0 start
         0.1 read1 bing/15 v4
         0.2 watching
         2 watch bing/15 v5 renew=1
         4 watch bing/15 v6 renew=2",
    );
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4         leader "bing"
        0.2     watching                 -
        2       watch bing/15 v5 renew=1 -
        4       watch bing/15 v6 renew=2 -
    "#]]
    .assert_eq(&table.log);
}

#[test]
fn a_follower_without_a_watch_polls() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4         leader "bing"
        4.4     tick                     read#2
        4.5     read2 bing/15 v5 renew=1 -
        8.9     tick                     read#3
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4
         4.4 tick
         4.5 read2 bing/15 v5 renew=1
         8.9 tick",
    ));
}

#[test]
fn a_paused_election_is_not_won() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v4 paused       -
        0.2     watching                 -
        99      tick                     -
        100     watch /1 v5 t=1          acquire#2 over 5 baz/15 t2
        100.1   tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v4 paused
         0.2 watching
         99 tick
         100 watch /1 v5 t=1
         100.1 tick",
    ));
}

#[test]
fn an_order_to_step_down_is_obeyed_once_by_the_term_it_names() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watching                 -
        0.2     watch wrote2 v6 order=7  -
        0.4     watch wrote2 v7 order=0  STOP ordered by=14.51
        0.5     worked                   read#3
        0.6     read3 wrote2 v7 order=0  release#4 over 7 /1 t0
        0.7     ok4 8                    leader "", released
        0.8     tick                     -
        5.5     tick                     acquire#5 over 8 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.03 watching
         0.2 watch wrote2 v6 order=7
         0.4 watch wrote2 v7 order=0
         0.5 worked
         0.6 read3 wrote2 v7 order=0
         0.7 ok4 8
         0.8 tick
         5.5 tick",
    ));
}

/// The order names the term that began at 0.01 s, which is 1000.01 s of wall time.
#[test]
fn an_order_with_holder_and_time_is_obeyed_only_by_the_term_that_has_both() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.1     watch wrote2 v6 order=0/baz@1000009999 -
        0.2     watch wrote2 v7 order=0/bing@1000010000 -
        0.3     watch wrote2 v8 order=1/baz@1000010000 -
        0.4     watch wrote2 v9 order=0/baz@1000010000 STOP ordered by=14.51
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.1 watch wrote2 v6 order=0/baz@1000009999
         0.2 watch wrote2 v7 order=0/bing@1000010000
         0.3 watch wrote2 v8 order=1/baz@1000010000
         0.4 watch wrote2 v9 order=0/baz@1000010000",
    ));
}

/// An edit by hand has reset the number of transitions, so that the next term has the number of an earlier one.
#[test]
fn term_with_the_number_of_an_earlier_one_begins_despite_the_order_to_the_earlier_one() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 /1 v5 order=1/baz@7 acquire#2 over 5 baz/15 t1
        0.02    ok2 6                    LEAD token=6 t1 until=10.01, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 /1 v5 order=1/baz@7
         0.02 ok2 6",
    ));
    expect![[r#"
        0       start                    read#1
        0.01    read1 /1 v5 order=1      acquire#2 over 5 baz/15 t1
        0.02    ok2 6                    read#3
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 /1 v5 order=1
         0.02 ok2 6",
    ));
}

/// The released record shows neither the holder nor the time of the term that the order has ended.
#[test]
fn followers_wait_for_the_named_successor_if_the_order_states_the_time_of_the_term() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v5         leader "bing"
        0.2     watching                 -
        1       watch /1 v6 order=0/bing@7:foo leader ""
        2.9     tick                     -
        3.1     tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v5
         0.2 watching
         1 watch /1 v6 order=0/bing@7:foo
         2.9 tick
         3.1 tick",
    ));
}

#[test]
fn former_holder_holds_back_like_others_when_an_order_names_another() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watching                 -
        0.4     watch wrote2 v7 order=0:bing STOP ordered by=14.51
        0.5     worked                   read#3
        0.6     read3 wrote2 v7 order=0:bing release#4 over 7 /1 t0
        0.7     ok4 8                    leader "", released
        2.6     tick                     -
        2.7     tick                     acquire#5 over 8 baz/15 t1
        2.8     ok5 9                    LEAD token=9 t1 until=12.70, leader "baz"
        2.9     watch wrote5 v10 order=0:bing -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         0.03 watching
         0.4 watch wrote2 v7 order=0:bing
         0.5 worked
         0.6 read3 wrote2 v7 order=0:bing
         0.7 ok4 8
         2.6 tick
         2.7 tick
         2.8 ok5 9
         2.9 watch wrote5 v10 order=0:bing",
    ));
}

#[test]
fn candidate_that_an_order_names_does_not_hold_back() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v5         leader "bing"
        0.2     watching                 -
        1       watch /1 v6 order=0:baz  leader ""
        1.1     tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v5
         0.2 watching
         1 watch /1 v6 order=0:baz
         1.1 tick",
    ));
}

#[test]
fn a_preferred_holder_ends_a_coordinated_term() {
    let mut config = config();
    config.coordinated = true;
    expect![[r#"
        0       start                    read#1
        0.01    read1 baz/15 v4          leader "baz", acquire#2 over 4 baz/15 t1
        0.02    ok2 5                    LEAD token=5 t1 until=10.01
        1       watch wrote2 v6 preferred=bing STOP preferred-holder by=14.51
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.01 read1 baz/15 v4
                 0.02 ok2 5
                 1 watch wrote2 v6 preferred=bing",
            )
            .log,
    );
}

#[test]
fn shutdown_of_a_follower_finishes_immediately() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4         leader "bing"
        1       shutdown                 finished
        2       tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4
         1 shutdown
         2 tick",
    ));
}

#[test]
fn shutdown_reads_whether_an_unanswered_write_won() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     shutdown                 -
        2.7     unknown2                 read#3
        2.8     read3 wrote2 v5          leader "baz"
        2.81    tick                     read#4
        2.9     read4 wrote2 v5          release#5 over 5 /1 t0
        3.0     ok5 6                    leader "", released, finished
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 absent
         0.2 shutdown
         2.7 unknown2
         2.8 read3 wrote2 v5
         2.81 tick
         2.9 read4 wrote2 v5
         3.0 ok5 6",
    ));
}

#[test]
fn term_without_release_is_left_to_expire() {
    let mut config = config();
    config.release_on_cancel = false;
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     ok2 5                    LEAD token=5 t0 until=10.10, leader "baz"
        1       shutdown                 STOP shutdown by=14.60
        1.1     worked                   finished
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.1 read1 absent
                 0.2 ok2 5
                 1 shutdown
                 1.1 worked",
            )
            .log,
    );
}

#[test]
fn missing_permissions_are_retried_with_backoff() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     unusable2                read#3
        0.3     read3 absent             create#4 baz/15 t0
        0.4     unusable4                -
        0.5     tick                     -
        0.6     tick                     read#5
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 absent
         0.2 unusable2
         0.3 read3 absent
         0.4 unusable4
         0.5 tick
         0.6 tick",
    ));
}
