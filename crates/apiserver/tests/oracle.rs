//! Compares this crate with the real libraries on generated input.
//!
//! `peers/schemagen/oracle` writes the fixtures. `TENURE_ORACLE` names another folder of fixtures, written with another
//! seed or a larger factor.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::{env, fs};

use base64::Engine as _;
use serde_json::Value;
use tenure_apiserver::canonical::canonicalise;
use tenure_apiserver::schema::{self, Message};
use tenure_apiserver::selector::{FieldSelector, LabelSelector};
use tenure_apiserver::{names, patch, protobuf, quantity, strict, timestamp};

/// Runs a check over every line of a topic. The check returns the difference.
fn each(topic: &str, check: impl Fn(&Value) -> Result<(), String>) {
    let folder = env::var_os("TENURE_ORACLE").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle"),
        PathBuf::from,
    );
    let text = fs::read_to_string(folder.join(format!("{topic}.jsonl"))).unwrap();
    let mut wrong = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let case: Value = serde_json::from_str(line).unwrap();
        if let Err(problem) = check(&case) {
            wrong.push(format!("line {}: {problem}", number + 1));
        }
    }
    let first: Vec<_> = wrong.iter().take(8).cloned().collect();
    assert!(
        wrong.is_empty(),
        "{topic}: {} lines differ\n{}",
        wrong.len(),
        first.join("\n")
    );
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, theirs: &T) -> Result<(), String> {
    if ours == theirs {
        Ok(())
    } else {
        Err(format!("{what}\n  ours   {ours:?}\n  theirs {theirs:?}"))
    }
}

fn text<'a>(case: &'a Value, name: &str) -> &'a str {
    case[name].as_str().unwrap_or_default()
}

fn message(case: &Value) -> &'static Message {
    let api_version = text(case, "apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    schema::message(group, version, text(case, "kind")).unwrap()
}

#[test]
fn objects_in_both_encodings_equal_the_oracle() {
    each("objects", |case| {
        let kind = text(case, "kind");
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text(case, "protobuf"))
            .unwrap();
        let decoded = protobuf::decode(&bytes).map_err(|error| format!("{kind}: {error}"))?;
        compare(
            &format!("{kind} from protobuf"),
            &decoded.value,
            &case["stored"],
        )?;
        let written = canonicalise(message(case), case["written"].clone());
        let written = written.map_err(|error| format!("{kind}: {error}"))?;
        compare(&format!("{kind} from JSON"), &written, &case["stored"])
    });
}

/// Every object in the recorded responses of the real server is already canonical.
#[test]
fn recorded_answers_are_canonical() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/cases");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let text = text.replace("<time:us>", "2026-01-02T03:04:05.000006Z");
        let case: Value =
            serde_json::from_str(&text.replace("<time:s>", "2026-01-02T03:04:05Z")).unwrap();
        for step in case["steps"].as_array().unwrap() {
            check_recorded(&step["answer"], &mut seen)
                .unwrap_or_else(|problem| panic!("{}: {problem}", path.display()));
        }
    }
    assert!(seen > 200, "only {seen} objects");
}

fn check_recorded(value: &Value, seen: &mut usize) -> Result<(), String> {
    let Some(map) = value.as_object() else {
        return value
            .as_array()
            .into_iter()
            .flatten()
            .try_for_each(|v| check_recorded(v, seen));
    };
    let api_version = text(value, "apiVersion");
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // A value without metadata is a reference to an object.
    let message = schema::message(group, version, text(value, "kind"));
    if let Some(message) = message.filter(|_| map.contains_key("metadata")) {
        *seen += 1;
        let ours = canonicalise(message, value.clone()).map_err(|error| error.to_string())?;
        return compare(text(value, "kind"), &ours, value);
    }
    map.values().try_for_each(|v| check_recorded(v, seen))
}

/// Like [`same`], but reports the path of the first difference.
fn compare(what: &str, ours: &Value, theirs: &Value) -> Result<(), String> {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            keys.into_iter()
                .try_for_each(|key| match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => compare(&format!("{what}.{key}"), a, b),
                    (a, b) => same(&format!("{what}.{key}"), &a, &b),
                })
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => a
            .iter()
            .zip(b)
            .enumerate()
            .try_for_each(|(at, (a, b))| compare(&format!("{what}[{at}]"), a, b)),
        _ => same(what, ours, theirs),
    }
}

#[test]
fn strategic_merge_patches_equal_the_oracle() {
    let pod = schema::message("", "v1", "Pod").unwrap();
    each("strategic", |case| {
        let place = format!("target {}\n  patch {}", case["target"], case["patch"]);
        let patched = patch::strategic(pod, case["target"].clone(), case["patch"].clone());
        match (patched, text(case, "error")) {
            (Ok(patched), "") => {
                let ours =
                    canonicalise(pod, patched).map_err(|error| format!("{error}\n  {place}"))?;
                let theirs = canonicalise(pod, case["result"].clone()).unwrap();
                compare("", &ours, &theirs).map_err(|problem| format!("{problem}\n  {place}"))
            }
            (Err(error), "") => Err(format!("refused: {error}\n  {place}")),
            (Ok(_), theirs) => Err(format!("should be refused: {theirs}\n  {place}")),
            (Err(_), _) => Ok(()),
        }
    });
}

#[test]
fn merge_and_json_patches_equal_the_oracle() {
    each("patches", |case| {
        let patched = match text(case, "type") {
            "merge" => patch::merge(case["target"].clone(), case["patch"].clone()),
            _ => patch::json(case["target"].clone(), case["patch"].to_string().as_bytes()),
        };
        match (patched, text(case, "error")) {
            (Ok(ours), "") => compare(&case.to_string(), &ours, &case["result"]),
            (Err(error), "") => Err(format!("refused: {error}: {case}")),
            (Ok(_), theirs) => Err(format!("should be refused: {theirs}: {case}")),
            (Err(_), _) => Ok(()),
        }
    });
}

#[test]
fn selectors() {
    let sets = [
        &[][..],
        &[("a", "1")],
        &[("a", "2"), ("b", "")],
        &[("a", "x"), ("in", "y")],
        &[("x.io/y", "1"), ("b", "z")],
        &[("a", "-3"), ("notin", "in")],
    ];
    let sets = sets.map(|set| {
        set.iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>()
    });
    each("selectors", |case| {
        let given = text(case, "text");
        let ours = if text(case, "check") == "labels" {
            given
                .parse::<LabelSelector>()
                .map(|s| sets.iter().map(|set| s.matches(set)).collect::<Vec<_>>())
        } else {
            given.parse::<FieldSelector>().map(|s| {
                let field = |set: &BTreeMap<String, String>, name: &str| {
                    set.get(name).cloned().unwrap_or_default()
                };
                sets.iter()
                    .map(|set| s.matches(|name| field(set, name)))
                    .collect()
            })
        };
        let ours = ours
            .map(|matches| serde_json::json!(matches))
            .map_err(|error| error.to_string());
        let theirs = match text(case, "error") {
            "" => Ok(case["matches"].clone()),
            error => Err(error.to_owned()),
        };
        same(&format!("{given:?}"), &ours, &theirs)
    });
}

#[test]
fn names_quantities_and_times_equal_the_oracle() {
    each("texts", |case| {
        let given = text(case, "text");
        let check: names::Check = match text(case, "check") {
            "subdomain" => names::dns1123_subdomain,
            "label" => names::dns1123_label,
            "label1035" => names::dns1035_label,
            "qualified" => names::qualified_name,
            "value" => names::label_value,
            "key" => names::config_map_key,
            "segment" => names::path_segment,
            "generated" => |name| names::generated(names::dns1123_subdomain, name),
            other => {
                let ours = match other {
                    "quantity" => quantity::canonical(given).map_err(|error| error.to_string()),
                    "time" => json_text(timestamp::normalise_seconds(given)),
                    _ => json_text(timestamp::normalise_micros(given)),
                };
                let theirs = match text(case, "error") {
                    "" => Ok(text(case, "result").to_owned()),
                    error => Err(error.to_owned()),
                };
                return same(&format!("{other} {given:?}"), &ours, &theirs);
            }
        };
        let theirs: Vec<String> =
            serde_json::from_value(case["errors"].clone()).unwrap_or_default();
        same(
            &format!("{} {given:?}", text(case, "check")),
            &check(given),
            &theirs,
        )
    });
}

fn json_text(time: Result<Option<String>, String>) -> Result<String, String> {
    time.map(|time| time.map_or("null".to_owned(), |time| format!("{time:?}")))
}

#[test]
fn errors_about_invalid_bodies_equal_the_oracle() {
    each("bodies", |case| {
        let (message, body) = (message(case), text(case, "body"));
        let decoded = strict::decode(Some(message), body.as_bytes()).map_err(|e| e.to_string())?;
        let ours = canonicalise(message, decoded.value);
        match (ours, text(case, "error")) {
            (Ok(ours), "") => {
                let complaints = if decoded.problems.is_empty() {
                    String::new()
                } else {
                    strict::strict_error(&decoded.problems)
                };
                same(body, &complaints.as_str(), &text(case, "strict"))?;
                let theirs = canonicalise(message, case["result"].clone()).unwrap();
                compare(body, &ours, &theirs)
            }
            (Err(error), "") => Err(format!("refused: {error}: {body}")),
            // If there are several errors, the first reported one may differ.
            (Err(_), _) => Ok(()),
            (Ok(_), theirs) => Err(format!("should be refused: {theirs}: {body}")),
        }
    });
}
