//! Lease and LeaseCandidate.

use serde_json::{Value, json};

use super::{at, immutable, text};
use crate::names;
use crate::status::Cause;

const STRATEGY: &str = "OldestEmulationVersion";

pub(in crate::registry) fn validate_lease(lease: &Value, causes: &mut Vec<Cause>) {
    let number = |pointer| at(lease, pointer).and_then(Value::as_i64);
    if let Some(seconds) = number("/spec/leaseDurationSeconds").filter(|n| *n <= 0) {
        let field = "spec.leaseDurationSeconds";
        causes.push(Cause::invalid(
            field,
            &json!(seconds),
            "must be greater than 0",
        ));
    }
    if let Some(transitions) = number("/spec/leaseTransitions").filter(|n| *n < 0) {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid(
            "spec.leaseTransitions",
            &json!(transitions),
            why,
        ));
    }
    let strategy = at(lease, "/spec/strategy").and_then(Value::as_str);
    if let Some(strategy) = strategy {
        check_strategy(strategy, "spec.strategy.strategy", causes);
    }
    let preferred = text(lease, "/spec/preferredHolder");
    if !preferred.is_empty() && strategy.is_none_or(str::is_empty) {
        let why = "can only be specified when `strategy` is defined";
        causes.push(Cause::forbidden("spec.preferredHolder", why));
    }
}

pub(in crate::registry) fn validate_candidate(candidate: &Value, causes: &mut Vec<Cause>) {
    if text(candidate, "/spec/leaseName").is_empty() {
        causes.push(Cause::required("spec.leaseName", ""));
    }
    let emulation = text(candidate, "/spec/emulationVersion");
    let strategy = text(candidate, "/spec/strategy");
    if strategy == STRATEGY && emulation.is_empty() {
        let why = "must be specified when `strategy` is 'OldestEmulationVersion'";
        causes.push(Cause::required("spec.emulationVersion", why));
    }
    let binary = text(candidate, "/spec/binaryVersion");
    if binary.is_empty() {
        causes.push(Cause::required("spec.binaryVersion", ""));
    } else {
        check_version(binary, "spec.binaryVersion", causes);
    }
    if !emulation.is_empty() {
        check_version(emulation, "spec.emulationVersion", causes);
        if let (Some(emulated), Some(real)) = (version(emulation), version(binary))
            && emulated > real
        {
            let why = "must be less than or equal to `binaryVersion`";
            causes.push(Cause::invalid("spec.binaryVersion", &json!(binary), why));
        }
    }
    if strategy.is_empty() {
        causes.push(Cause::required("spec.strategy", ""));
    } else {
        check_strategy(strategy, "spec.strategy.strategy", causes);
    }
}

pub(in crate::registry) fn validate_candidate_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/spec/leaseName", "spec.leaseName", causes);
}

/// Checks a strategy: known strategies contain no `/`, others must be qualified names, which contain one.
fn check_strategy(strategy: &str, field: &str, causes: &mut Vec<Cause>) {
    if strategy.contains('/') {
        for why in names::qualified_name(strategy) {
            causes.push(Cause::invalid(field, &json!(strategy), &why));
        }
    } else if strategy != STRATEGY {
        causes.push(Cause::unsupported(field, &json!(strategy), &[STRATEGY]));
    }
}

fn check_version(text: &str, field: &str, causes: &mut Vec<Cause>) {
    if version(text).is_none() {
        causes.push(Cause::invalid(
            field,
            &json!(text),
            "must be a valid semantic version",
        ));
    }
}

/// Parses `MAJOR.MINOR.PATCH`. Anything after `-` or `+` does not affect the order.
fn version(text: &str) -> Option<(u64, u64, u64)> {
    let core = text.split(['-', '+']).next()?;
    let mut parts = core.split('.').map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        let plain = part == "0" || !part.starts_with('0');
        if digits && plain {
            part.parse::<u64>().ok()
        } else {
            None
        }
    });
    let out = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(check: fn(&Value, &mut Vec<Cause>), object: &Value) -> Vec<(String, &'static str)> {
        let mut causes = Vec::new();
        check(object, &mut causes);
        causes
            .into_iter()
            .map(|cause| (cause.field, cause.reason))
            .collect()
    }

    #[test]
    fn lease_strategy_and_preferred_holder_are_validated() {
        let ok = json!({"spec": {"strategy": "OldestEmulationVersion", "preferredHolder": "x"}});
        assert_eq!(causes(validate_lease, &ok), []);
        let lonely = json!({"spec": {"preferredHolder": "x"}});
        let want = [("spec.preferredHolder".to_owned(), "FieldValueForbidden")];
        assert_eq!(causes(validate_lease, &lonely), want);
        let odd = json!({"spec": {"strategy": "x"}});
        let want = [(
            "spec.strategy.strategy".to_owned(),
            "FieldValueNotSupported",
        )];
        assert_eq!(causes(validate_lease, &odd), want);
        assert_eq!(
            causes(validate_lease, &json!({"spec": {"strategy": "a.io/own"}})),
            []
        );
    }

    #[test]
    fn versions_are_three_plain_numbers() {
        assert_eq!(version("1.37.0"), Some((1, 37, 0)));
        assert_eq!(version("1.37.0-alpha.1+x"), Some((1, 37, 0)));
        for bad in ["v1", "1", "1.2", "1.2.3.4", "1.02.3", "a.b.c", ""] {
            assert_eq!(version(bad), None, "{bad}");
        }
    }

    #[test]
    fn candidate_cannot_emulate_newer_version() {
        let spec = json!({"leaseName": "l", "binaryVersion": "1.36.0", "strategy": STRATEGY,
            "emulationVersion": "1.37.0"});
        let got = causes(validate_candidate, &json!({"spec": spec}));
        assert_eq!(
            got,
            [("spec.binaryVersion".to_owned(), "FieldValueInvalid")]
        );
    }
}
