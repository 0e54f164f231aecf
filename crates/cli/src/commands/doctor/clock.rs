//! Checks whether the clocks agree. Elections do not need that, but people who read times do.

use serde_json::json;

use super::pace::Measured;
use super::{Finding, Level};
use crate::elections::Seen;
use crate::output;

/// Difference in seconds that is reported.
const NOTEWORTHY: f64 = 1.0;

pub(super) fn check(measured: &Measured, seen: &[Seen]) -> Finding {
    if !measured.clock.is_known() {
        let summary = "unknown: no response of the API server contained a time";
        return Finding::new("clock", Level::Warn, summary);
    }
    let ahead = measured.clock.ahead().as_secs_f64();
    let figures = json!({ "serverAheadSeconds": ahead });
    let skewed: Vec<&str> = seen
        .iter()
        .filter(|seen| seen.skewed)
        .map(|seen| seen.holder.as_str())
        .collect();
    if !skewed.is_empty() {
        let holders = skewed.join(", ");
        return Finding::new(
            "clock",
            Level::Warn,
            format!("the renewal times of {holders} are ahead of the API server's clock"),
        )
        .advice("check NTP on the holder's machine; elections do not depend on it")
        .figures(figures);
    }
    if ahead.abs() > NOTEWORTHY {
        let word = if ahead > 0.0 { "ahead of" } else { "behind" };
        let by = output::span(ahead.abs());
        return Finding::new(
            "clock",
            Level::Warn,
            format!("the API server's clock is {by} {word} this machine's"),
        )
        .advice("check NTP on both machines; displayed times are wrong, but elections do not depend on them")
        .figures(figures);
    }
    let summary = "the clocks of this machine and of the API server agree within a second";
    Finding::new("clock", Level::Ok, summary).figures(figures)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::api::Clock;

    #[test]
    fn clock_without_a_response_is_unknown() {
        let finding = check(&Measured::default(), &[]);
        assert_eq!(finding.level, Level::Warn);
        assert!(finding.summary.starts_with("unknown"), "{finding:?}");
    }

    #[test]
    fn clock_difference_of_seconds_is_reported() {
        for (date, words) in [
            (15, Some("4.9s ahead of this machine's")),
            (10, None),
            (5, Some("4.0s behind this machine's")),
        ] {
            let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
            let mut measured = Measured::default();
            measured.clock = Clock::of(at(date * 1000), at(10_000), at(10_100));
            let finding = check(&measured, &[]);
            let level = words.map_or(Level::Ok, |_| Level::Warn);
            assert_eq!(finding.level, level, "{finding:?}");
            let said = finding.summary.as_str();
            assert!(said.ends_with(words.unwrap_or("within a second")), "{said}");
        }
    }
}
