//! Known objects of one server, and the parts of its responses that are excluded from the comparison.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::op::Op;
use crate::wire::Answer;

/// Placeholders for values that each server generates: `R3` is the third revision that occurred, regardless of its
/// number.
#[derive(Clone, Debug, Default)]
pub(super) struct Mask {
    /// The latest uid and revision by `resource/name`, and the previous one.
    seen: BTreeMap<String, Vec<(String, String)>>,
    revisions: Vec<String>,
    uids: Vec<String>,
    generated: Vec<String>,
    start: String,
}

impl Mask {
    /// Sets the revision at which watches start.
    pub(super) fn start(&mut self, namespace: &Value) {
        let version = &namespace["metadata"]["resourceVersion"];
        version.as_str().unwrap_or("0").clone_into(&mut self.start);
    }

    /// Replaces the placeholders in an operation: `@rv(R/N)`, `@old(R/N)`, `@uid(R/N)`, `@generated`, `@start`.
    pub(super) fn resolve(&self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('@') {
            out += &rest[..at];
            rest = &rest[at..];
            let filled = ["@rv(", "@old(", "@uid("].iter().find_map(|word| {
                let inner = rest.strip_prefix(word)?;
                let (key, after) = inner.split_once(')')?;
                Some((self.known(word, key), after))
            });
            if let Some((value, after)) = filled {
                out += &value;
                rest = after;
            } else if let Some(after) = rest.strip_prefix("@generated") {
                out += self.generated.last().map_or("none", String::as_str);
                rest = after;
            } else if let Some(after) = rest.strip_prefix("@start") {
                out += &self.start;
                rest = after;
            } else {
                out.push('@');
                rest = &rest[1..];
            }
        }
        out + rest
    }

    fn known(&self, word: &str, key: &str) -> String {
        let versions = self.seen.get(key).map(Vec::as_slice).unwrap_or_default();
        let latest = versions.last();
        let value = match word {
            "@uid(" => latest.map(|(uid, _)| uid),
            "@old(" => versions.first().map(|(_, version)| version),
            _ => latest.map(|(_, version)| version),
        };
        value.cloned().unwrap_or_else(|| "1".to_owned())
    }

    /// Returns a response without the parts that always differ.
    pub(super) fn answer(&mut self, answer: &Answer, op: &Op) -> Value {
        let mut body = answer.body.clone();
        if let Value::String(text) = &body {
            // A watch: one event per line.
            let events: Vec<Value> = text
                .lines()
                .map(|line| serde_json::from_str(line).unwrap_or_else(|_| json!(line)))
                .collect();
            body = json!(events);
        }
        self.learn(&body, op);
        if op.resource == "csinodes" {
            without_empty_status(&mut body);
        }
        reword(&mut body);
        self.mask(&mut body);
        json!({"code": answer.status.as_u16(), "body": body})
    }

    /// Remembers the object in the response to an operation. A dry run changes nothing, so it is ignored.
    fn learn(&mut self, body: &Value, op: &Op) {
        let metadata = &body["metadata"];
        for name in [&metadata["name"], &body["details"]["name"]] {
            if let Some(name) = name.as_str()
                && name.starts_with("gen-")
                && !self.generated.iter().any(|known| known == name)
            {
                self.generated.push(name.to_owned());
            }
        }
        let text = |field: &str| metadata[field].as_str().map(str::to_owned);
        let (Some(name), Some(uid), Some(version)) =
            (text("name"), text("uid"), text("resourceVersion"))
        else {
            return;
        };
        if op.path.contains("dryRun") {
            return;
        }
        let versions = self
            .seen
            .entry(format!("{}/{name}", op.resource))
            .or_default();
        if versions.last().is_none_or(|(_, last)| *last != version) {
            versions.push((uid, version));
        }
    }

    fn mask(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.remove("managedFields");
                // The revision of a list is that of the whole store, which other clients write too.
                if map.contains_key("items")
                    && let Some(Value::Object(metadata)) = map.get_mut("metadata")
                {
                    metadata.remove("resourceVersion");
                }
                for (key, value) in map.iter_mut() {
                    match (key.as_str(), &*value) {
                        ("resourceVersion", Value::String(version)) if !version.is_empty() => {
                            let short = index(&mut self.revisions, version);
                            *value = json!(format!("R{short}"));
                        }
                        ("uid", Value::String(uid)) if uid.len() == 36 => {
                            let short = index(&mut self.uids, uid);
                            *value = json!(format!("U{short}"));
                        }
                        (
                            "creationTimestamp" | "deletionTimestamp" | "lastPhaseTransitionTime",
                            Value::String(_),
                        ) => {
                            *value = json!("T");
                        }
                        // The server chooses both values.
                        ("continue" | "clusterIP", Value::String(text))
                            if !text.is_empty() && text != "None" =>
                        {
                            *value = json!("C");
                        }
                        ("clusterIPs", Value::Array(_)) => *value = json!("C"),
                        _ => self.mask(value),
                    }
                }
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.mask(value)),
            Value::String(text) => {
                for (number, name) in self.generated.iter().enumerate() {
                    if text.contains(name.as_str()) {
                        *text = text.replace(name.as_str(), &format!("G{number}"));
                    }
                }
                for (number, uid) in self.uids.iter().enumerate() {
                    if text.contains(uid.as_str()) {
                        *text = text.replace(uid.as_str(), &format!("U{number}"));
                    }
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Removes texts that differ on purpose, as listed in docs/book/reference/wire.md.
fn reword(body: &mut Value) {
    if body["kind"] != "Status" {
        return;
    }
    let reason = body["reason"].as_str().unwrap_or_default();
    let message = body["message"].as_str().unwrap_or_default();
    let stored = [
        "StorageError",
        "Precondition failed",
        "in the precondition (",
    ]
    .iter()
    .any(|start| message.contains(start));
    // Invalid objects are compared by their causes. The message is the sum of the causes.
    if matches!(reason, "BadRequest" | "Invalid") || stored {
        body["message"] = json!("(in other words)");
    } else if let Some((sentence, _)) = message.split_once(", got &value.") {
        // This text is the source of a Go struct, which differs between versions of structured-merge-diff.
        body["message"] = json!(sentence);
    } else if let Some((sentence, _)) = message.split_once(" to proper version: ") {
        // Go's decoders describe the mistake in their own words.
        body["message"] = json!(sentence);
    }
    if let Some(Value::Array(causes)) = body.pointer_mut("/details/causes") {
        for cause in &mut *causes {
            if cause["field"] == "patch" {
                cause["message"] = json!("(in other words)");
            }
            // The text after the sentence shows structs of the real server's source.
            let message = cause["message"].as_str().unwrap_or_default();
            if let Some((sentence, _)) = message.split_once(", but isn't: ") {
                // The pattern libraries describe the mistake in their own words.
                cause["message"] = json!(sentence);
            } else if let Some((sentence, _)) = message.split_once('\n') {
                cause["message"] = json!(sentence);
            } else if let Some(rest) = message.strip_prefix("Invalid value: ")
                && let Some((_, sentence)) = match rest.as_bytes().first() {
                    Some(b'{') => rest.rsplit_once("}: "),
                    Some(b'[') => rest.rsplit_once("]: "),
                    _ => None,
                }
            {
                // The same applies to whole objects and lists of them.
                cause["message"] = json!(format!("Invalid value: {sentence}"));
            }
        }
        // The real server checks some properties twice and reports them twice.
        causes.sort_by_key(ToString::to_string);
        causes.dedup();
    }
}

/// Removes an empty status. The version that ours follows has a status and shows it even if it is empty.
fn without_empty_status(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if map.get("status") == Some(&json!({})) {
                map.remove("status");
            }
            map.values_mut().for_each(without_empty_status);
        }
        Value::Array(list) => list.iter_mut().for_each(without_empty_status),
        _ => {}
    }
}

/// Returns the index of a text among those that occurred.
fn index(seen: &mut Vec<String>, text: &str) -> usize {
    seen.iter()
        .position(|known| known == text)
        .unwrap_or_else(|| {
            seen.push(text.to_owned());
            seen.len() - 1
        })
}
