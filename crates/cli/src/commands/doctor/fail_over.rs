//! Checks how fast another candidate leads after a crash on this machine.

use std::fmt::Display;
use std::time::Duration;

use serde_json::json;
use tenure_lock::duration::format as span;

use super::{Finding, Level};

/// `lease` is the maximum wait without a proof. `host` says whether the kernel can prove the end of a process here, and
/// if so, whether it can prove a restart of the machine.
pub(super) fn check(lease: Duration, host: Result<bool, impl Display>) -> Finding {
    let waits = format!(
        "after a crash another candidate leads within {}",
        span(lease)
    );
    let released = "a killed tenure run is released by its watchdog, without that wait";
    let figures = json!({
        "withoutProofSeconds": lease.as_secs_f64(),
        "processEnd": host.is_ok(),
        "machineRestart": matches!(host, Ok(true)),
    });
    let (proof, advice) = match host {
        Ok(true) => (
            "with --confirm-death=host, candidates on this machine do not wait after the end of the \
             process or a restart of the machine",
            None,
        ),
        Ok(false) => (
            "with --confirm-death=host, candidates in this pid namespace do not wait after the end of \
             the process",
            Some("a restart cannot be proved here: the machine has no unique id, or this is a container".to_owned()),
        ),
        Err(why) => ("--confirm-death=host cannot be used here", Some(why.to_string())),
    };
    let summary = format!("{waits}; {released}; {proof}");
    let finding = Finding::new("fail-over", Level::Ok, summary).figures(figures);
    match advice {
        Some(advice) => finding.advice(advice),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_names_the_proofs_that_are_available() {
        let lease = Duration::from_secs(17);
        let check = |host: Result<bool, &str>| check(lease, host);
        let all = check(Ok(true));
        assert!(
            all.summary.contains("within 17s") && all.summary.ends_with("restart of the machine")
        );
        assert_eq!(all.advice, None);
        assert!(check(Ok(false)).advice.unwrap().contains("container"));
        let none = check(Err("no /proc"));
        assert!(none.summary.ends_with("cannot be used here"));
        assert_eq!(none.advice.as_deref(), Some("no /proc"));
    }
}
