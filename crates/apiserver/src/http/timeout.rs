//! The query parameter `timeout`, a duration in the format of Go.

use crate::request::Query;
use crate::status::Failure;

/// Rejects a duration that is not valid. Requests end long before any timeout, so its value has no effect.
pub(super) fn check(query: Option<&str>) -> Result<(), Failure> {
    // Most requests have no query, so nothing is parsed for them.
    let Some(query) = query.filter(|query| query.contains("timeout=")) else {
        return Ok(());
    };
    let query = Query::new(query);
    match query.text("timeout").and_then(problem) {
        None => Ok(()),
        Some(why) => {
            let why = format!("invalid timeout specified in the request URL - time: {why}");
            Err(Failure::bad_request(why))
        }
    }
}

/// Returns the error in a duration such as `1h30m` or `-1.5s`.
fn problem(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return None;
    }
    let invalid = || Some(format!("invalid duration {text:?}"));
    if rest.is_empty() {
        return invalid();
    }
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let end = rest.find(|c| !is_number(c)).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let has_digit = number.bytes().any(|b| b.is_ascii_digit());
        if !has_digit || number.matches('.').count() > 1 {
            return invalid();
        }
        let end = after.find(is_number).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        if unit.is_empty() {
            return Some(format!("missing unit in duration {text:?}"));
        }
        if !["ns", "us", "µs", "μs", "ms", "s", "m", "h"].contains(&unit) {
            return Some(format!("unknown unit {unit:?} in duration {text:?}"));
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_go_are_accepted_and_others_explained() {
        for good in ["0", "-0", "30s", "1h30m", "1.5s", ".5m", "100µs"] {
            assert_eq!(problem(good), None, "{good}");
        }
        for (bad, why) in [
            ("invalid", "invalid duration \"invalid\""),
            ("", "invalid duration \"\""),
            ("-", "invalid duration \"-\""),
            ("1.2.3s", "invalid duration \"1.2.3s\""),
            (".s", "invalid duration \".s\""),
            ("5", "missing unit in duration \"5\""),
            ("5d", "unknown unit \"d\" in duration \"5d\""),
        ] {
            assert_eq!(problem(bad).as_deref(), Some(why), "{bad}");
        }
        assert!(check(Some("limit=1")).is_ok());
        assert_eq!(check(Some("timeout=x")).unwrap_err().code, 400);
    }
}
