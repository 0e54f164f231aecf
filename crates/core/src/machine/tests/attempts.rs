//! Writes whose outcome is open: which of them may still be applied, and which record is ours.

use std::time::Duration;

use expect_test::expect;

use super::{Config, Table, config, play};
use crate::time::LocalTime;

fn whole_seconds() -> Config {
    Config {
        whole_seconds: true,
        ..config()
    }
}

#[test]
fn winning_write_on_the_current_version_may_still_be_applied() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 bing/3 v4          leader "bing"
        5       tick                     acquire#2 over 4 baz/15 t1
        5.1     unknown2                 read#3
        5.2     read3 bing/3 v4          acquire#4 over 4 baz/15 t1
        5.3     ok2 5                    LEAD token=5 t1 until=15.00, leader "baz"
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 bing/3 v4
         5 tick
         5.1 unknown2
         5.2 read3 bing/3 v4
         5.3 ok2 5",
    ));
}

#[test]
fn renewal_on_the_current_version_is_recognised_later() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    ok3 6                    extend until=12.01
        4.01    tick                     renew#4 over 6 baz/15 t0
        4.1     refused4                 read#5
        4.2     read5 wrote3 v6          renew#6 over 6 baz/15 t0
        4.3     watch wrote4 v7          -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 ok3 6
         4.01 tick
         4.1 refused4
         4.2 read5 wrote3 v6
         4.3 watch wrote4 v7",
    ));
}

/// A time in whole seconds is not proof of the writer, but the version that a read showed during the term is.
#[test]
fn record_that_a_read_during_the_term_showed_is_ours_after_the_term() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        0.03    watching                 -
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.1     refused3                 read#4
        2.2     read4 wrote3 v6          extend until=12.01
        12.02   tick                     STOP guard-expired by=16.51
        12.1    worked                   acquire#5 over 6 baz/15 t1
    "#]]
    .assert_eq(
        &Table::new(whole_seconds())
            .play(
                "0 start
                 0.01 read1 absent
                 0.02 ok2 5
                 0.03 watching
                 2.01 tick
                 2.1 refused3
                 2.2 read4 wrote3 v6
                 12.02 tick
                 12.1 worked",
            )
            .log,
    );
}

#[test]
fn edited_label_does_not_end_the_pause_after_failures() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 5                    LEAD token=5 t0 until=10.01, leader "baz"
        2.01    tick                     renew#3 over 5 baz/15 t0
        2.02    unknown3                 renew#4 over 5 baz/15 t0
        2.03    unknown4                 -
        2.04    watch wrote2 v6          -
        2.5     tick                     renew#5 over 6 baz/15 t0
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 5
         2.01 tick
         2.02 unknown3
         2.03 unknown4
         2.04 watch wrote2 v6
         2.5 tick",
    ));
}

#[test]
fn two_writes_in_one_instant_have_different_times() {
    for config in [config(), whole_seconds()] {
        let table = Table::new(config).play(
            "0 start
             0.01 read1 absent
             0.02 ok2 5
             2.01 tick
             2.01 unknown3
             2.01 unknown4
             2.3 tick",
        );
        let times: Vec<_> = table.writes.iter().map(|(_, r)| r.renew_time).collect();
        assert_eq!(times.len(), 4, "{}", table.log);
        assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
    }
}

#[test]
fn pause_after_failures_doubles_up_to_the_retry_period() {
    let mut table = Table::new(config()).play("0 start");
    let mut now = 0.0;
    for (id, millis) in (1..).zip([0, 125, 250, 500, 1_000, 2_000, 2_000]) {
        table.line(&format!("{now} readfail{id}"));
        let base = LocalTime::default() + Duration::from_secs_f64(now);
        let delay = Duration::from_millis(millis);
        if millis > 0 {
            let next = table.election.deadline().expect("another read");
            assert!(next >= base + delay, "{id}: {next:?}");
            assert!(next <= base + delay * 5 / 4, "{id}: {next:?}");
            now = next.as_nanos() as f64 / 1e9 + 0.001;
            table.line(&format!("{now} tick"));
        }
        assert!(
            table.log.ends_with(&format!("read#{}\n", id + 1)),
            "{}",
            table.log
        );
    }
}

#[test]
fn answer_to_a_write_before_the_release_begins_no_term() {
    // The answer to write 4 is late. The release is applied without an answer, and a stale read hides it.
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    unknown2                 read#3
        0.03    read3 wrote2 v5          leader "baz", acquire#4 over 5 baz/15 t1
        0.04    watching                 -
        0.05    ok2 5                    LEAD token=5 t0 until=10.01
        0.06    worked                   STOP work-ended by=14.51
        2.53    tick                     read#5
        2.54    read5 wrote4 v6          release#6 over 6 /1 t1
        2.55    unknown6                 read#7
        2.56    read7 wrote2 v5          -
        2.60    ok4 6                    -
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 unknown2
         0.03 read3 wrote2 v5
         0.04 watching
         0.05 ok2 5
         0.06 worked
         2.53 tick
         2.54 read5 wrote4 v6
         2.55 unknown6
         2.56 read7 wrote2 v5
         2.60 ok4 6",
    ));
}
