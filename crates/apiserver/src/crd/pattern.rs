//! Regular expressions of schemas. Each text is compiled only once, and within limits.
//!
//! A few characters can compile to megabytes (`\w{1000}`), and a definition can repeat them thousands of times.
//! Therefore a single pattern has a limit, the distinct patterns of a definition have a common limit, and equal
//! patterns share one compiled form.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::status::Cause;

/// Size limits of one compiled pattern in bytes, in the order of attempts. The first sufficient one is its cost.
const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Maximum cost of the distinct patterns of one definition, in bytes.
const MOST_IN_DEFINITION: usize = 16 << 20;

/// Maximum size of the cache of compiled patterns, in bytes.
const MOST_KEPT: usize = 32 << 20;

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

#[derive(Default)]
struct Kept {
    patterns: HashMap<String, Compiled>,
    cost: usize,
}

/// A pattern with its cost, or its error.
type Compiled = Result<(Regex, usize), String>;

/// Compiles a pattern.
///
/// # Errors
/// Returns an error if the pattern is not a regular expression, or is too large.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    cost(pattern).map(|(regex, _)| regex)
}

fn cost(pattern: &str) -> Compiled {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(found) = kept.patterns.get(pattern) {
        return found.clone();
    }
    let compiled = compile_anew(pattern);
    // A cached error costs the memory of its text.
    let cost = pattern.len() + compiled.as_ref().map_or(1_024, |(_, cost)| *cost);
    if kept.cost + cost > MOST_KEPT {
        *kept = Kept::default();
    }
    kept.cost += cost;
    kept.patterns.insert(pattern.to_owned(), compiled.clone());
    compiled
}

fn compile_anew(pattern: &str) -> Compiled {
    let mut last = String::new();
    for size in SIZES {
        match RegexBuilder::new(pattern).size_limit(size).build() {
            Ok(regex) => return Ok((regex, size)),
            Err(error @ regex::Error::CompiledTooBig(_)) => last = error.to_string(),
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(last)
}

/// Checks the total cost of all patterns of a definition. Returns false and adds a cause if it is too high.
pub(super) fn check_all(definition: &Value, causes: &mut Vec<Cause>) -> bool {
    let mut patterns = HashSet::new();
    collect(definition, &mut patterns);
    let mut sum = 0;
    for pattern in patterns {
        // Invalid patterns are reported later, with their paths.
        sum += cost(pattern).map_or(0, |(_, cost)| cost);
        if sum > MOST_IN_DEFINITION {
            let why = format!(
                "its patterns take more than {} MiB when they are compiled; use fewer or shorter ones",
                MOST_IN_DEFINITION >> 20
            );
            causes.push(Cause::forbidden("spec.versions", &why));
            return false;
        }
    }
    true
}

/// Collects every text under a member named `pattern`.
fn collect<'a>(value: &'a Value, patterns: &mut HashSet<&'a str>) {
    match value {
        Value::Array(list) => list.iter().for_each(|value| collect(value, patterns)),
        Value::Object(map) => {
            for (member, value) in map {
                match value {
                    Value::String(text) if member == "pattern" => _ = patterns.insert(text),
                    other => collect(other, patterns),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn definition(patterns: &[String]) -> Value {
        let text = |pattern: &String| json!({ "type": "string", "pattern": pattern });
        let texts = patterns.iter().enumerate();
        let properties: serde_json::Map<String, Value> =
            texts.map(|(n, p)| (format!("p{n}"), text(p))).collect();
        json!({ "spec": { "versions": [{ "schema": { "openAPIV3Schema": {
            "type": "object", "properties": properties } } }] } })
    }

    #[test]
    fn a_pattern_that_is_too_large_is_refused() {
        assert!(compile("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$").is_ok());
        let error = compile(r"(\w{1000}){10}").unwrap_err();
        assert!(error.contains("size limit"), "{error}");
        assert!(compile("(").is_err());
    }

    #[test]
    fn equal_patterns_of_a_definition_cost_once_and_different_ones_add_up() {
        let mut causes = Vec::new();
        let same = vec![r"^\w{20}$".to_owned(); 1_000];
        assert!(check_all(&definition(&same), &mut causes));
        let different: Vec<String> = (0..1_000).map(|n| format!(r"^\w{{20}}{n}$")).collect();
        assert!(!check_all(&definition(&different), &mut causes));
        assert_eq!(causes.len(), 1);
    }
}
