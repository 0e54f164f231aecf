//! Tests of terms that the record no longer shows (duty 8), because client-go emptied it or the controller of a
//! coordinated election assigned it to another candidate. The mark names the term to wait for.

use expect_test::expect;

use super::{Config, Table, config, play};

fn coordinated() -> Config {
    Config {
        coordinated: true,
        ..config()
    }
}

#[test]
fn duty_08_a_marked_term_that_another_emptied_is_waited_out() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=7 mark=bing/15@7 leader "bing"
        0.2     watching                 -
        5       watch /1 v5 renew=9 mark=bing/15@7 leader ""
        6       tick                     -
        15.0    tick                     -
        15.2    tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4 renew=7 mark=bing/15@7
         0.2 watching
         5 watch /1 v5 renew=9 mark=bing/15@7
         6 tick
         15.0 tick
         15.2 tick",
    ));
}

#[test]
fn duty_08_a_renewal_that_was_not_seen_starts_the_wait_anew() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=7 mark=bing/15@7 leader "bing"
        0.2     watching                 -
        5       watch /1 v6 renew=9 mark=bing/15@8 leader ""
        15.2    tick                     -
        20.1    tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4 renew=7 mark=bing/15@7
         0.2 watching
         5 watch /1 v6 renew=9 mark=bing/15@8
         15.2 tick
         20.1 tick",
    ));
}

#[test]
fn duty_08_a_candidate_that_never_saw_the_term_waits_for_its_mark() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v5 renew=9 mark=bing/30@7 -
        0.2     watching                 -
        15.2    tick                     -
        30.2    tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v5 renew=9 mark=bing/30@7
         0.2 watching
         15.2 tick
         30.2 tick",
    ));
}

#[test]
fn a_marked_release_is_taken_immediately() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=7 mark=bing/15@7 leader "bing"
        0.2     watching                 -
        5       watch /1 v5 renew=9 mark=/1@9 leader ""
        5.06    tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4 renew=7 mark=bing/15@7
         0.2 watching
         5 watch /1 v5 renew=9 mark=/1@9
         5.06 tick",
    ));
}

#[test]
fn a_release_by_a_holder_without_marks_is_taken_immediately() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 old/15 v4 renew=7 mark=old/15@7 leader "old"
        0.2     watching                 -
        15.05   watch go/15 v5 renew=9 mark=old/15@7 leader "go"
        16      watch /1 v6 renew=11 mark=old/15@7 leader ""
        16.06   tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 old/15 v4 renew=7 mark=old/15@7
         0.2 watching
         15.05 watch go/15 v5 renew=9 mark=old/15@7
         16 watch /1 v6 renew=11 mark=old/15@7
         16.06 tick",
    ));
}

#[test]
fn our_own_term_that_another_emptied_is_not_waited_for() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     watch /1 v6 renew=77 mark=baz/15@1000500000 leader "", STOP emptied by=6.00
        2       worked                   acquire#3 over 6 baz/15 t1
        2.1     tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         1.0 ok2 5
         1.5 watch /1 v6 renew=77 mark=baz/15@1000500000
         2 worked
         2.1 tick",
    ));
}

#[test]
fn duty_08_an_assignment_waits_for_the_term_that_it_replaced() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=7 mark=bing/15@7 leader "bing"
        0.2     watching                 -
        12      watch baz/5 v5 renew=9 mark=bing/15@7 leader "baz"
        12.5    tick                     -
        15.2    tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 bing/15 v4 renew=7 mark=bing/15@7
                 0.2 watching
                 12 watch baz/5 v5 renew=9 mark=bing/15@7
                 12.5 tick
                 15.2 tick",
            )
            .log,
    );
}

#[test]
fn duty_08_an_assignment_waits_for_a_holder_that_leaves_no_marks_as_far_as_it_was_seen() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 go/15 v4 renew=7   leader "go"
        0.2     watching                 -
        12      watch baz/5 v5 renew=9   leader "baz"
        12.1    watch baz/5 v6 renew=9   -
        12.5    tick                     -
        15.2    tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 go/15 v4 renew=7
                 0.2 watching
                 12 watch baz/5 v5 renew=9
                 12.1 watch baz/5 v6 renew=9
                 12.5 tick
                 15.2 tick",
            )
            .log,
    );
}

#[test]
fn an_assignment_after_a_marked_release_is_taken_up_immediately() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=7 mark=bing/15@7 leader "bing"
        0.2     watching                 -
        2       watch baz/5 v6 renew=9 mark=/1@8 leader "baz", acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 bing/15 v4 renew=7 mark=bing/15@7
                 0.2 watching
                 2 watch baz/5 v6 renew=9 mark=/1@8",
            )
            .log,
    );
}

#[test]
fn assignment_with_another_preferred_holder_is_left_to_the_controller_at_first() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 baz/5 v4 renew=7 preferred=bing leader "baz"
        0.2     watching                 -
        5.2     tick                     -
        35.2    tick                     acquire#2 over 4 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 baz/5 v4 renew=7 preferred=bing
                 0.2 watching
                 5.2 tick
                 35.2 tick",
            )
            .log,
    );
}

#[test]
fn duty_08_an_assignment_that_the_controller_edits_is_waited_for_as_before() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 go/15 v4 renew=7   leader "go"
        0.2     watching                 -
        12      watch baz/5 v5 renew=9   leader "baz"
        12.1    watch baz/5 v6 renew=10  -
        12.5    tick                     -
        15.2    tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 go/15 v4 renew=7
                 0.2 watching
                 12 watch baz/5 v5 renew=9
                 12.1 watch baz/5 v6 renew=10
                 12.5 tick
                 15.2 tick",
            )
            .log,
    );
}

#[test]
fn duty_08_a_mark_that_is_removed_is_waited_for_as_before() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v5 renew=9 mark=bing/15@7 -
        0.2     watching                 -
        1       watch /1 v6 renew=9      -
        2       tick                     -
        15.2    tick                     acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v5 renew=9 mark=bing/15@7
         0.2 watching
         1 watch /1 v6 renew=9
         2 tick
         15.2 tick",
    ));
}

#[test]
fn an_assignment_after_a_release_without_a_mark_is_taken_up_immediately() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 go/15 v4 renew=7   leader "go"
        0.2     watching                 -
        2       watch /1 v5 renew=8      leader ""
        2.5     watch baz/5 v6 renew=9   leader "baz", acquire#2 over 6 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 go/15 v4 renew=7
                 0.2 watching
                 2 watch /1 v5 renew=8
                 2.5 watch baz/5 v6 renew=9",
            )
            .log,
    );
}

/// Without a controller, every holder has waited until the term of the previous holder ended.
#[test]
fn holder_with_a_short_lease_is_waited_for_by_its_own_duration() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 go/15 v4 renew=7   leader "go"
        0.2     watching                 -
        1       watch ann/3 v5 renew=8   leader "ann"
        4.1     tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 go/15 v4 renew=7
         0.2 watching
         1 watch ann/3 v5 renew=8
         4.1 tick",
    ));
}

#[test]
fn our_own_renewal_that_another_emptied_before_it_was_seen_is_not_waited_for() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     watch /1 v7 renew=77 mark=baz/15@1002500000 leader "", STOP emptied by=7.10
        3       unknown3                 -
        3.1     worked                   acquire#4 over 7 baz/15 t1
        3.2     tick                     -
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         1.0 ok2 5
         2.5 tick
         2.6 watch /1 v7 renew=77 mark=baz/15@1002500000
         3 unknown3
         3.1 worked
         3.2 tick",
    ));
}

#[test]
fn duty_08_a_term_of_another_that_followed_ours_and_was_emptied_is_waited_out() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.1     watching                 -
        1.5     watch /1 v7 renew=77 mark=bing/15@8 leader "", STOP emptied by=6.00
        2       worked                   -
        16.4    tick                     -
        16.6    tick                     acquire#3 over 7 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.5 read1 absent
         1.0 ok2 5
         1.1 watching
         1.5 watch /1 v7 renew=77 mark=bing/15@8
         2 worked
         16.4 tick
         16.6 tick",
    ));
}

/// Two processes with the same name can write the same whole seconds, so the mark may be that of the other process.
#[test]
fn duty_08_a_mark_in_whole_seconds_is_ours_only_if_our_write_is_known_to_be_applied() {
    let config = || Config {
        whole_seconds: true,
        ..config()
    };
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.1     watching                 -
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     watch /1 v7 renew=77 mark=baz/15@1002000000 leader "", STOP emptied by=7.10
        3       unknown3                 -
        3.1     worked                   -
        3.2     tick                     -
        18.7    tick                     acquire#4 over 7 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(config())
            .play(
                "0 start
                 0.5 read1 absent
                 1.0 ok2 5
                 1.1 watching
                 2.5 tick
                 2.6 watch /1 v7 renew=77 mark=baz/15@1002000000
                 3 unknown3
                 3.1 worked
                 3.2 tick
                 18.7 tick",
            )
            .log,
    );
    // The watch has shown the renewal during the term.
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     watch wrote3 v6 mark=baz/15@1002000000 -
        2.7     watch /1 v7 renew=77 mark=baz/15@1002000000 leader "", STOP emptied by=7.20
        3       unknown3                 -
        3.1     worked                   acquire#4 over 7 baz/15 t1
        3.2     tick                     -
    "#]]
    .assert_eq(
        &Table::new(config())
            .play(
                "0 start
                 0.5 read1 absent
                 1.0 ok2 5
                 2.5 tick
                 2.6 watch wrote3 v6 mark=baz/15@1002000000
                 2.7 watch /1 v7 renew=77 mark=baz/15@1002000000
                 3 unknown3
                 3.1 worked
                 3.2 tick",
            )
            .log,
    );
}

#[test]
fn our_own_term_for_life_that_another_incarnation_marked_is_not_waited_for() {
    let config = Config {
        for_life: true,
        ..config()
    };
    expect![[r#"
        0       start                    read#1
        0.1     read1 baz/15 v5 renew=7 mark=baz/15@7 paused leader "baz"
        0.2     watching                 -
        1       watch absent v6          -
        2       tick                     create#2 baz/15 t0
    "#]]
    .assert_eq(
        &Table::new(config)
            .play(
                "0 start
                 0.1 read1 baz/15 v5 renew=7 mark=baz/15@7 paused
                 0.2 watching
                 1 watch absent v6
                 2 tick",
            )
            .log,
    );
}

#[test]
fn only_another_preferred_holder_ends_a_coordinated_term() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 baz/5 v4 renew=7   leader "baz", acquire#2 over 4 baz/15 t1
        0.2     ok2 5                    LEAD token=5 t1 until=10.10
        0.3     watch wrote2 v6          -
        0.4     watch wrote2 v7 preferred=baz -
        0.5     watch wrote2 v8 preferred=bing STOP preferred-holder by=14.60
    "#]]
    .assert_eq(
        &Table::new(coordinated())
            .play(
                "0 start
                 0.1 read1 baz/5 v4 renew=7
                 0.2 ok2 5
                 0.3 watch wrote2 v6
                 0.4 watch wrote2 v7 preferred=baz
                 0.5 watch wrote2 v8 preferred=bing",
            )
            .log,
    );
    expect![[r#"
        0       start                    read#1
        0.1     read1 absent             create#2 baz/15 t0
        0.2     ok2 5                    LEAD token=5 t0 until=10.10, leader "baz"
        0.3     watch wrote2 v6 preferred=bing -
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 absent
         0.2 ok2 5
         0.3 watch wrote2 v6 preferred=bing",
    ));
}
