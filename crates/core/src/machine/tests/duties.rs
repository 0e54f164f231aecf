//! The duties of an elector, one test per duty. Each test fails without its duty. Duty 12 (no hidden retries) and the
//! second half of duty 13 (a timer outside the runtime) belong to the driver.

use std::time::Duration;

use expect_test::expect;

use super::{Table, config, order, play};
use crate::command::Command;
use crate::machine::Config;
use crate::time::WallTime;
use crate::timing::Timing;

const LEADING: &str = "0 start
    0.5 read1 absent
    1.0 ok2 5";

fn after_leading(script: &str) -> String {
    play(&format!("{LEADING}\n{script}"))
}

#[test]
fn duty_05_work_that_goes_on_after_its_main_part_is_joined_before_the_release() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        1       working-on               STOP work-ended by=14.51
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    ok3 6                    drain by=16.51
        4       worked                   read#4
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         1 working-on
         2.01 tick
         2.02 ok3 6
         4 worked",
    ));
}

#[test]
fn duty_01_the_guard_counts_from_the_send_and_requests_fit_into_it() {
    let table = Table::new(config()).play(&format!(
        "{LEADING}
         2.5 tick
         5.0 tick
         7.6 tick
         9.0 tick
         10.4 tick
         10.5 tick"
    ));
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        5.0     tick                     renew#4 over 5 baz/15 t0
        7.6     tick                     -
        9.0     tick                     renew#5 over 5 baz/15 t0
        10.4    tick                     -
        10.5    tick                     STOP guard-expired by=15.00
    "#]]
    .assert_eq(&table.log);
    let timeouts = table.commands.iter().filter_map(|command| match command {
        Command::Write { timeout, .. } | Command::Read { timeout, .. } => Some(timeout.as_millis()),
        _ => None,
    });
    // The last request gets the remaining time of the guard.
    let expected = [2_500, 2_500, 2_500, 2_500, 1_500];
    assert_eq!(timeouts.collect::<Vec<_>>(), expected);
    assert!(Timing::default().request_timeout() <= Timing::default().guard() / 2);
}

#[test]
fn duty_02_an_unknown_outcome_extends_nothing_until_a_read_shows_its_record() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        3       unknown3                 renew#4 over 5 baz/15 t0
        3.5     refused4                 -
        3.8     tick                     read#5
        4       read5 wrote3 v6          extend until=12.50, renew#6 over 6 baz/15 t0
    "#]]
    .assert_eq(&after_leading(
        "2.5 tick
         3 unknown3
         3.5 refused4
         3.8 tick
         4 read5 wrote3 v6",
    ));
}

#[test]
fn duty_03_a_conflict_may_be_our_own_write() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     refused3                 read#4
        2.7     read4 wrote3 v6          extend until=12.50
    "#]]
    .assert_eq(&after_leading(
        "2.5 tick
         2.6 refused3
         2.7 read4 wrote3 v6",
    ));
}

#[test]
fn duty_04_a_foreign_holder_ends_the_term_at_once() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     watch bing/15 v6 t=1     leader "bing", STOP foreign-holder by=6.00
    "#]]
    .assert_eq(&after_leading("1.5 watch bing/15 v6 t=1"));
}

#[test]
fn duty_04_an_empty_holder_ends_the_term_at_once() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     watch /1 v6              leader "", STOP emptied by=6.00
    "#]]
    .assert_eq(&after_leading("1.5 watch /1 v6"));
}

#[test]
fn duty_04_a_missing_object_ends_the_term_at_once() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     watch absent v6          STOP deleted by=6.00
    "#]]
    .assert_eq(&after_leading("1.5 watch absent v6"));
}

#[test]
fn duty_04_another_uid_ends_the_term_at_once() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     watch wrote2 v6 uid=other STOP recreated by=6.00
    "#]]
    .assert_eq(&after_leading("1.5 watch wrote2 v6 uid=other"));
}

#[test]
fn duty_04_a_revision_that_went_back_ends_the_term_at_once() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     refused3                 read#4
        2.7     read4 wrote2 v3          STOP went-back by=7.20
    "#]]
    .assert_eq(&after_leading(
        "2.5 tick
         2.6 refused3
         2.7 read4 wrote2 v3",
    ));
}

#[test]
fn duty_04_the_watch_never_extends() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     watch wrote3 v6          -
        10.5    tick                     STOP guard-expired by=15.00
    "#]]
    .assert_eq(&after_leading(
        "2.5 tick
         2.6 watch wrote3 v6
         10.5 tick",
    ));
}

#[test]
fn duty_05_work_is_cancelled_and_joined_before_the_release() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     stepdown                 STOP step-down by=15.00
        1.6     tick                     -
        2.0     worked                   read#3
        2.1     read3 wrote2 v5          release#4 over 5 /1 t0
        2.2     ok4 6                    leader "", released, read#5
    "#]]
    .assert_eq(&after_leading(
        "1.5 stepdown
         1.6 tick
         2.0 worked
         2.1 read3 wrote2 v5
         2.2 ok4 6",
    ));
}

#[test]
fn duty_05_work_that_does_not_end_is_overrun_and_nothing_is_released() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     stepdown                 STOP step-down by=15.00
        2.5     tick                     renew#3 over 5 baz/15 t0
        2.6     unknown3                 renew#4 over 5 baz/15 t0
        2.7     unknown4                 -
        11      tick                     -
        15      tick                     OVERRUN
        15.1    worked                   read#5
    "#]]
    .assert_eq(&after_leading(
        "1.5 stepdown
         2.5 tick
         2.6 unknown3
         2.7 unknown4
         11 tick
         15 tick
         15.1 worked",
    ));
}

#[test]
fn duty_05_a_shutdown_after_an_overrun_releases_nothing_either() {
    // An observation that went back in time ended the term, and it shows the write with which the term began. The
    // shutdown must not treat that write as one whose term never began.
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.2     watch wrote2 v6          -
        1.5     stepdown                 STOP step-down by=15.00
        2.5     tick                     renew#3 over 6 baz/15 t0
        2.6     refused3                 read#4
        2.7     read4 wrote2 v5          drain by=7.20
        7.2     tick                     OVERRUN
        7.3     worked                   read#5
        7.4     shutdown                 finished
        7.5     read5 wrote2 v6          -
    "#]]
    .assert_eq(&after_leading(
        "1.2 watch wrote2 v6
         1.5 stepdown
         2.5 tick
         2.6 refused3
         2.7 read4 wrote2 v5
         7.2 tick
         7.3 worked
         7.4 shutdown
         7.5 read5 wrote2 v6",
    ));
}

#[test]
fn duty_06_a_release_requires_our_own_record_in_what_was_just_read() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     stepdown                 STOP step-down by=15.00
        2.0     worked                   read#3
        2.1     read3 bing/15 v6 t=1     leader "bing", read#4
    "#]]
    .assert_eq(&after_leading(
        "1.5 stepdown
         2.0 worked
         2.1 read3 bing/15 v6 t=1",
    ));
}

#[test]
fn duty_06_nothing_is_released_after_the_guard_expired() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     stepdown                 STOP step-down by=15.00
        2.0     worked                   read#3
        10.5    read3 wrote2 v5          -
    "#]]
    .assert_eq(&after_leading(
        "1.5 stepdown
         2.0 worked
         10.5 read3 wrote2 v5",
    ));
}

#[test]
fn duty_07_a_renewal_starts_the_wait_anew() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=1 leader "bing"
        0.2     watching                 -
        14      watch bing/15 v5 renew=2 -
        15.2    tick                     -
        28.9    tick                     -
        29.1    tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4 renew=1
         0.2 watching
         14 watch bing/15 v5 renew=2
         15.2 tick
         28.9 tick
         29.1 tick",
    ));
}

#[test]
fn duty_07_an_edit_of_labels_does_not_restart_the_wait() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=1 leader "bing"
        0.2     watching                 -
        14      watch bing/15 v5 renew=1 -
        15.2    tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4 renew=1
         0.2 watching
         14 watch bing/15 v5 renew=1
         15.2 tick",
    ));
}

fn with_lock_delay(seconds: u64) -> Table {
    let timing = Timing::builder().lock_delay(Duration::from_secs(seconds));
    Table::new(Config {
        timing: timing.build().expect("a valid lock delay"),
        ..config()
    })
}

#[test]
fn duty_07_a_lock_delay_extends_the_wait_for_an_expired_term() {
    let table = with_lock_delay(30).play(
        "0 start
         0.1 read1 bing/15 v4 renew=1
         0.2 watching
         15.2 tick
         45.0 tick
         45.2 tick",
    );
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=1 leader "bing"
        0.2     watching                 -
        15.2    tick                     -
        45.0    tick                     -
        45.2    tick                     acquire#2 over 4 baz/15 t1
    "#]]
    .assert_eq(&table.log);
}

#[test]
fn duty_07_a_lock_delay_does_not_apply_to_a_released_term() {
    let table = with_lock_delay(30).play(
        "0 start
         0.1 read1 bing/15 v4 renew=1
         0.2 watching
         5 watch /15 v5
         5.1 tick",
    );
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4 renew=1 leader "bing"
        0.2     watching                 -
        5       watch /15 v5             leader ""
        5.1     tick                     acquire#2 over 5 baz/15 t1
    "#]]
    .assert_eq(&table.log);
}

#[test]
fn duty_08_a_lock_delay_extends_the_wait_after_a_deletion() {
    let table = with_lock_delay(30).play(
        "0 start
         0.1 read1 bing/15 v4
         0.2 watching
         5 watch absent v5
         45.0 tick
         45.2 tick",
    );
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4         leader "bing"
        0.2     watching                 -
        5       watch absent v5          -
        45.0    tick                     -
        45.2    tick                     create#2 baz/15 t0
    "#]]
    .assert_eq(&table.log);
}

#[test]
fn duty_08_a_live_term_is_waited_out_after_a_deletion() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v4         leader "bing"
        0.2     watching                 -
        5       watch absent v5          -
        6       tick                     -
        15.0    tick                     -
        15.2    tick                     create#2 baz/15 t0
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v4
         0.2 watching
         5 watch absent v5
         6 tick
         15.0 tick
         15.2 tick",
    ));
}

#[test]
fn duty_08_unreadable_record_may_hide_a_live_term() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /0 v4 garbage      -
        0.2     watching                 -
        5       watch absent v5          -
        6       tick                     -
        15.2    tick                     create#2 baz/15 t0
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /0 v4 garbage
         0.2 watching
         5 watch absent v5
         6 tick
         15.2 tick",
    ));
}

#[test]
fn duty_09_the_name_alone_proves_nothing_even_during_a_term() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.5     watch baz/15 v6 renew=77 STOP edited by=6.00
    "#]]
    .assert_eq(&after_leading("1.5 watch baz/15 v6 renew=77"));
}

#[test]
fn duty_10_and_extra_7_fractions_and_timings_without_margin_are_refused() {
    let timing = |lease, renew, retry| {
        Timing::builder()
            .lease_duration(Duration::from_millis(lease))
            .renew_deadline(Duration::from_millis(renew))
            .retry_period(Duration::from_millis(retry))
            .build()
    };
    assert!(timing(1_900, 1_500, 500).is_err());
    assert!(timing(15_000, 10_000, 5_000).is_err());
    assert!(timing(15_000, 10_000, 2_000).is_ok());
}

#[test]
fn duty_11_a_forward_jump_of_the_wall_clock_ends_the_term_early() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.1     tick                     STOP guard-expired by=15.00
    "#]]
    .assert_eq(&after_leading(
        "2 wall 60
         2.1 tick",
    ));
}

#[test]
fn duty_11_a_backward_jump_changes_nothing() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.1     tick                     renew#3 over 5 baz/15 t0
        2.5     tick                     -
        2.6     ok3 6                    extend until=12.10
    "#]]
    .assert_eq(&after_leading(
        "2 wall -3600
         2.1 tick
         2.5 tick
         2.6 ok3 6",
    ));
}

#[test]
fn duty_13_after_a_long_pause_the_first_step_ends_the_term_for_every_input() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        2.5     tick                     renew#3 over 5 baz/15 t0
        60      ok3 6                    STOP guard-expired by=60.10
        60.1    worked                   acquire#4 over 6 baz/15 t1
    "#]]
    .assert_eq(&after_leading(
        "2.5 tick
         60 ok3 6
         60.1 worked",
    ));
}

/// The deadline thread checks four times a second. It may detect a jump that happens between two steps of the machine.
/// The work is cancelled in that case, so the term must not continue.
#[test]
fn duty_11_a_jump_that_was_detected_and_undone_still_ends_the_term() {
    expect![[r#"
        0       start                    read#1
        0.5     read1 absent             create#2 baz/15 t0
        1.0     ok2 5                    LEAD token=5 t0 until=10.50, leader "baz"
        1.1     expired 4                -
        1.2     expired 5                STOP guard-expired by=15.00
        1.3     worked                   acquire#3 over 5 baz/15 t1
        1.4     expired 5                -
    "#]]
    .assert_eq(&after_leading(
        "1.1 expired 4
         1.2 expired 5
         1.3 worked
         1.4 expired 5",
    ));
}

#[test]
fn duty_15_order_that_names_another_term_must_not_end_this_one() {
    let table = Table::new(config());
    let acquired = Some(WallTime::from_micros(5));
    for (text, ours) in [
        ("3", true),
        ("3/baz@5", true),
        ("3/bing@5", false),
        ("3/baz@6", false),
    ] {
        let assert = || table.election.assert_addressed(&order(text), acquired);
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(assert)).is_ok();
        assert_eq!(passed, ours, "{text}");
    }
}
