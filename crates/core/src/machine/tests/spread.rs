//! Elections of one process that begin together must not renew together.

use std::time::Duration;

use super::{Table, config};
use crate::time::LocalTime;

const WON: &str = "0 start
    0.5 read1 absent
    0.5 ok2 5";

fn at(millis: u64) -> LocalTime {
    LocalTime::default() + Duration::from_millis(millis)
}

/// When each of many elections, won in the same instant, renews first.
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
fn a_busy_moment_does_not_bring_them_together() {
    let dues = first_renewals().into_iter().map(|(mut table, due)| {
        // Everybody is sent late, in the same instant, and answered.
        table.line("2.5 tick");
        table.line("2.6 ok3 6");
        let next = table.election.deadline().expect("a leader renews");
        assert!(next <= at(4_500), "a retry period after it was sent");
        (due, next)
    });
    let kept = dues
        .filter(|(due, next)| *next == *due + Duration::from_secs(2))
        .count();
    // Those that were late by more than half a period start anew.
    assert!(kept >= 150, "{kept} of 400 keep their place");
}

#[test]
fn a_renewal_may_wait_a_little_and_nothing_else_may() {
    let mut table = Table::new(config());
    let mut leeways = |lines: &[&str]| -> Vec<Duration> {
        let leeway = |line: &&str| {
            table.line(line);
            table.election.leeway()
        };
        lines.iter().map(leeway).collect()
    };
    let none = Duration::ZERO;
    // A 32nd of two seconds would be more than the most.
    let some = Duration::from_millis(50);
    // Looking and winning, then leading.
    assert_eq!(
        leeways(&["0 start", "0.5 read1 absent", "0.5 ok2 5"]),
        [none, none, some]
    );
    // The time of a request is measured, and so is the pause after a failure.
    assert_eq!(
        leeways(&["2.5 tick", "2.6 unknown3", "2.6 tick"]),
        [none, none, none]
    );
    assert_eq!(leeways(&["2.7 ok4 6"]), [some]);
}

#[test]
fn those_that_wait_keep_their_place() {
    for (mut table, due) in first_renewals() {
        let latest = due + table.election.leeway();
        let seconds = latest.as_nanos() as f64 / 1e9;
        table.line(&format!("{seconds} tick"));
        table.line(&format!("{seconds} ok3 6"));
        let next = table.election.deadline().expect("a leader renews");
        assert_eq!(next, due + Duration::from_secs(2));
    }
}
