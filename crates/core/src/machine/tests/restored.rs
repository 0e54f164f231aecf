//! Tests with a store that was restored and whose revision moved back: no watch event looks new.

use expect_test::expect;

use super::{Config, Table, config, play};

#[test]
fn follower_of_a_paused_election_reads_after_a_list_below_its_observation() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v90             acquire#2 over 90 baz/15 t1
        0.2     refused2                 read#3
        0.3     read3 /1 v100 paused     -
        0.4     watching                 -
        9       unwatched                -
        9.1     watch /1 v90             -
        9.2     listed v91               read#4
        9.2     watching                 -
        9.3     read4 /1 v90             acquire#5 over 90 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v90
         0.2 refused2
         0.3 read3 /1 v100 paused
         0.4 watching
         9 unwatched
         9.1 watch /1 v90
         9.2 listed v91
         9.2 watching
         9.3 read4 /1 v90",
    ));
}

#[test]
fn list_at_or_above_the_observed_revision_needs_no_read() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v100       leader "bing"
        0.2     listed v100              -
        0.3     watching                 -
        9       listed v101              -
        9.1     listed vunordered        -
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 bing/15 v100
         0.2 listed v100
         0.3 watching
         9 listed v101
         9.1 listed vunordered",
    ));
}

#[test]
fn assignment_in_a_restored_store_is_taken_up() {
    let config = Config {
        coordinated: true,
        ..config()
    };
    let script = "0 start
         0.1 read1 bing/15 v100
         0.2 watching
         9 watch baz/15 v90
         9.1 listed v91
         9.2 read2 baz/15 v90";
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v100       leader "bing"
        0.2     watching                 -
        9       watch baz/15 v90         -
        9.1     listed v91               read#2
        9.2     read2 baz/15 v90         leader "baz", acquire#3 over 90 baz/15 t1
    "#]]
    .assert_eq(&Table::new(config).play(script).log);
}

/// An absence has no revision, so the revision of the list is used. The object that the controller creates next is
/// therefore not stale.
#[test]
fn assignment_created_in_a_restored_store_without_the_object_is_taken_up() {
    let config = Config {
        coordinated: true,
        ..config()
    };
    let script = "0 start
         0.1 read1 bing/15 v100
         0.2 watching
         9 watch absent v80
         9.1 listed v80
         9.2 read2 absent
         9.3 watch baz/15 v83
         9.4 tick";
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v100       leader "bing"
        0.2     watching                 -
        9       watch absent v80         -
        9.1     listed v80               read#2
        9.2     read2 absent             -
        9.3     watch baz/15 v83         leader "baz", acquire#3 over 83 baz/15 t1
        9.4     tick                     -
    "#]]
    .assert_eq(&Table::new(config).play(script).log);
}

#[test]
fn leader_for_life_that_a_restore_removed_does_not_block_the_election() {
    let config = Config {
        for_life: true,
        ..config()
    };
    let script = "0 start
         0.1 read1 bing/15 v100
         0.2 watching
         9000 watch /1 v90
         9000.1 listed v91
         9000.2 read2 /1 v90";
    expect![[r#"
        0       start                    read#1
        0.1     read1 bing/15 v100       leader "bing"
        0.2     watching                 -
        9000    watch /1 v90             -
        9000.1  listed v91               read#2
        9000.2  read2 /1 v90             leader "", acquire#3 over 90 baz/15 t1
    "#]]
    .assert_eq(&Table::new(config).play(script).log);
}

#[test]
fn leader_reads_when_a_list_is_below_its_own_write_and_stops_if_the_store_went_back() {
    expect![[r#"
        0       start                    read#1
        0.01    read1 absent             create#2 baz/15 t0
        0.02    ok2 50                   LEAD token=50 t0 until=10.01, leader "baz"
        0.5     listed v45               read#3
        0.6     read3 bing/15 v44        leader "bing", STOP went-back by=5.10
    "#]]
    .assert_eq(&play(
        "0 start
         0.01 read1 absent
         0.02 ok2 50
         0.5 listed v45
         0.6 read3 bing/15 v44",
    ));
}

/// Writes of other objects may have moved the restored store past the observed revision.
#[test]
fn list_with_an_older_version_causes_a_read_even_if_its_revision_is_high_enough() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v100 paused     -
        0.2     watching                 -
        9       watch /1 v90             -
        9.1     listed v300              read#2
        9.2     read2 /1 v90             acquire#3 over 90 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v100 paused
         0.2 watching
         9 watch /1 v90
         9.1 listed v300
         9.2 read2 /1 v90",
    ));
}

#[test]
fn repeated_revision_of_a_restored_store_causes_a_read() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v100 paused     -
        0.2     watching                 -
        5       watch /1 v100 paused     -
        5.1     listed v100              -
        9       watch /1 v100            -
        9.1     listed v100              read#2
        9.2     read2 /1 v100            acquire#3 over 100 baz/15 t1
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v100 paused
         0.2 watching
         5 watch /1 v100 paused
         5.1 listed v100
         9 watch /1 v100
         9.1 listed v100
         9.2 read2 /1 v100",
    ));
}

#[test]
fn two_versions_that_seem_stale_cause_one_read() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 /1 v100 paused     -
        0.2     watching                 -
        9       watch /1 v90             -
        9.05    watch /1 v91             -
        9.1     listed v300              read#2
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 /1 v100 paused
         0.2 watching
         9 watch /1 v90
         9.05 watch /1 v91
         9.1 listed v300",
    ));
}

#[test]
fn absence_at_an_observed_revision_causes_a_read() {
    for script in [
        "9 watch absent v80\n9.1 listed v300",
        "9 watch absent v80\n9.05 watch absent v81\n9.1 listed v300",
    ] {
        let log = play(&format!(
            "0 start\n0.1 read1 bing/15 v100\n0.2 watching\n{script}"
        ));
        assert!(log.ends_with("read#2\n"), "{log}");
    }
}

#[test]
fn other_record_at_the_known_revision_causes_a_read() {
    expect![[r#"
        0       start                    read#1
        0.1     read1 ann/15 v100        leader "ann"
        0.2     watching                 -
        9       watch bing/15 v100       -
        9.1     listed v100              read#2
    "#]]
    .assert_eq(&play(
        "0 start
         0.1 read1 ann/15 v100
         0.2 watching
         9 watch bing/15 v100
         9.1 listed v100",
    ));
}

/// An input that asks for a read must not cancel a read that is already due.
#[test]
fn list_and_unordered_revision_during_the_pause_after_a_failed_read_leave_that_read_due() {
    for freshness in ["listed v60", "watch /1 vx7"] {
        let log = play(&format!(
            "0 start
             0.1 read1 bing/15 v100
             0.2 watching
             1 listed v50
             1.1 readfail2
             1.2 readfail3
             1.25 {freshness}
             2 tick"
        ));
        assert!(log.ends_with("read#4\n"), "{log}");
    }
}

/// After a restore, or if another object has the name, the candidate waits the whole lease duration again.
#[test]
fn same_record_in_a_restored_store_or_in_another_object_is_waited_for_again() {
    for (freshness, seen) in [
        ("10 listed v80\n10 read2 bing/15 v70 renew=1", 10.0),
        ("10 watch bing/15 v101 renew=1 uid=other", 10.0),
    ] {
        let table = Table::new(config()).play(&format!(
            "0 start\n0.1 read1 bing/15 v100 renew=1\n0.2 watching\n{freshness}\n16 tick"
        ));
        assert!(table.log.ends_with("-\n"), "{}", table.log);
        let wanted = table.election.deadline().expect("the end of the lease");
        assert!(wanted >= table.now(seen + 15.0).local, "{}", table.log);
    }
}
