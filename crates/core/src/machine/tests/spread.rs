//! Tests that elections of one process that begin together do not renew together.

use std::time::Duration;

use super::{Table, config};
use crate::time::LocalTime;
use crate::timing::Timing;

const WON: &str = "0 start
    0.5 read1 absent
    0.5 ok2 5";

fn at(millis: u64) -> LocalTime {
    LocalTime::default() + Duration::from_millis(millis)
}

/// Returns when each of many elections, won at the same instant, renews first.
fn first_renewals() -> Vec<(Table, LocalTime)> {
    let elections = (0..400).map(|seed| {
        let mut config = config();
        config.seed = seed;
        let table = Table::new(config).play(WON);
        let due = table.election.deadline().expect("a leader renews");
        (table, due)
    });
    elections.collect()
}

#[test]
fn first_renewals_spread_over_the_retry_period_and_none_is_later() {
    let mut per_quarter = [0; 4];
    for (_, due) in first_renewals() {
        // The winning write was sent at 0.5 s, and the retry period is 2 s.
        assert!(due >= at(500) && due <= at(2_500), "{due:?}");
        let since = due.since(at(500)).as_millis();
        per_quarter[usize::try_from(since / 500).unwrap_or(3).min(3)] += 1;
    }
    assert!(
        per_quarter.iter().all(|count| (60..=140).contains(count)),
        "{per_quarter:?} of 400"
    );
}

#[test]
fn late_renewals_of_many_elections_stay_spread() {
    let dues = first_renewals().into_iter().map(|(mut table, due)| {
        // All renewals are sent late, at the same instant, and answered.
        table.line("2.5 tick");
        table.line("2.6 ok3 6");
        let next = table.election.deadline().expect("a leader renews");
        assert!(next <= at(4_500), "a retry period after it was sent");
        (due, next)
    });
    let kept = dues
        .filter(|(due, next)| *next == *due + Duration::from_secs(2))
        .count();
    // Elections that were late by more than half a period get a new offset.
    assert!(kept >= 150, "{kept} of 400 keep their place");
}

#[test]
fn only_a_renewal_has_leeway() {
    let mut table = Table::new(config());
    let mut leeways = |lines: &[&str]| -> Vec<Duration> {
        let leeway = |line: &&str| {
            table.line(line);
            table.election.leeway()
        };
        lines.iter().map(leeway).collect()
    };
    let none = Duration::ZERO;
    // A 32nd of the retry period of two seconds would exceed the upper limit.
    let some = Duration::from_millis(50);
    // The read and the winning write have no leeway; the first renewal of the term has.
    assert_eq!(
        leeways(&["0 start", "0.5 read1 absent", "0.5 ok2 5"]),
        [none, none, some]
    );
    // Neither the timeout of a request nor the backoff after a failure has any leeway.
    assert_eq!(
        leeways(&["2.5 tick", "2.6 unknown3", "2.6 tick"]),
        [none, none, none]
    );
    assert_eq!(leeways(&["2.7 ok4 6"]), [some]);
}

#[test]
fn renewal_does_not_wait_during_the_pause_after_failures() {
    let script = format!("{WON}\n2.5 tick\n2.6 unknown3\n2.7 unknown4");
    let table = Table::new(config()).play(&script);
    assert_eq!(table.election.leeway(), Duration::ZERO, "{}", table.log);
}

#[test]
fn leeway_is_a_part_of_a_short_retry_period() {
    let mut config = config();
    config.timing = Timing::builder()
        .retry_period(Duration::from_secs(1))
        .build()
        .unwrap();
    let table = Table::new(config).play(WON);
    assert_eq!(table.election.leeway(), Duration::from_secs(1) / 32);
}

/// client-go accepts these durations. The guard, which the margin cuts to 750 ms, may end soon after a renewal is due.
#[test]
fn leeway_is_at_most_half_of_what_is_left_of_the_guard() {
    let timing = Timing::builder()
        .lease_duration(Duration::from_secs(1))
        .renew_deadline(Duration::from_millis(990))
        .retry_period(Duration::from_millis(820))
        .client_go_compat(true)
        .build()
        .unwrap();
    let mut short = 0;
    for seed in 0..400 {
        let mut config = config();
        (config.seed, config.timing) = (seed, timing.clone());
        let table = Table::new(config).play(WON);
        let due = table.election.deadline().expect("a leader renews");
        let until = table.election.guard().expect("it leads").until();
        let left = until.since(due);
        let expected = (timing.retry_period() / 32).min(left / 2);
        assert_eq!(table.election.leeway(), expected, "{}", table.log);
        short += usize::from(!left.is_zero() && left < Duration::from_millis(50));
    }
    assert!(short > 5, "{short} of 400");
}

#[test]
fn followers_spread_more_after_a_release_than_after_an_expiry() {
    let latest = |freshness: &str, due: LocalTime| {
        let delays = (0..400).map(|seed| {
            let mut config = config();
            config.seed = seed;
            let script = format!("0 start\n0.1 read1 bing/15 v4\n0.2 watching\n1 {freshness}");
            let table = Table::new(config).play(&script);
            let wanted = table.election.deadline().expect("a tick");
            assert!(wanted >= due, "{}", table.log);
            wanted.since(due)
        });
        delays.max().expect("400 of them")
    };
    let (herd, expiry) = (Duration::from_millis(50), Duration::from_millis(20));
    let released = latest("watch /1 v5", at(1_000));
    assert!(released > expiry && released < herd, "{released:?}");
    for (freshness, due) in [
        ("watch bing/15 v5 renew=2", 16_000),
        ("watch /15 v5 garbage", 16_000),
    ] {
        let expired = latest(freshness, at(due));
        assert!(expired > expiry / 2 && expired < expiry, "{expired:?}");
    }
}

#[test]
fn late_renewal_within_its_leeway_does_not_move_the_next_one() {
    for (mut table, due) in first_renewals() {
        let latest = due + table.election.leeway();
        let seconds = latest.as_nanos() as f64 / 1e9;
        table.line(&format!("{seconds} tick"));
        table.line(&format!("{seconds} ok3 6"));
        let next = table.election.deadline().expect("a leader renews");
        assert_eq!(next, due + Duration::from_secs(2));
    }
}
