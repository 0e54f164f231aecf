//! Checks how `tenure run` on this machine can end all processes that a command starts.

use serde_json::json;

use super::{Finding, Level};

/// `cgroup` is the place where a control group can be created, or the reason why this is impossible.
pub(super) fn check(cgroup: Result<String, String>) -> Finding {
    match cgroup {
        Ok(place) => {
            let summary = format!("tenure run contains commands by process tree and {place}");
            let figures = json!({ "processTree": true, "cgroup": place });
            Finding::new("containment", Level::Ok, summary).figures(figures)
        }
        Err(why) => {
            let summary = "tenure run contains commands by process tree";
            let figures = json!({ "processTree": true, "cgroup": null, "reason": why });
            Finding::new("containment", Level::Ok, summary)
                .advice(format!(
                    "cannot create a control group ({why}); with one, tenure run can also end a \
                     command that forks faster than /proc can be read"
                ))
                .figures(figures)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_names_the_containment_that_is_active() {
        let with = check(Ok("cgroup v2 below /c".to_owned()));
        assert!(with.summary.ends_with("and cgroup v2 below /c"), "{with:?}");
        assert_eq!(with.advice, None);
        let without = check(Err("/c: read-only".to_owned()));
        assert_eq!(without.level, Level::Ok);
        assert!(without.advice.unwrap().contains("/c: read-only"));
    }
}
