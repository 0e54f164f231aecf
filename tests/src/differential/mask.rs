//! What is known about the objects of one server, and what of its answers is left out of the comparison.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::op::Op;
use crate::wire::Answer;

/// Names for what each server makes up: `R3` is the third revision that showed up, whatever its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Mask {
    /// The latest uid and revision by `resource/name`, and the one before.
    seen: BTreeMap<String, Vec<(String, String)>>,
    revisions: Vec<String>,
    uids: Vec<String>,
    generated: Vec<String>,
    start: String,
}

impl Mask {
    /// The moment from which watches tell.
    pub(super) fn start(&mut self, namespace: &Value) {
        let version = &namespace["metadata"]["resourceVersion"];
        version.as_str().unwrap_or("0").clone_into(&mut self.start);
    }

    /// Fills in what an operation says about objects: `@rv(R/N)`, `@old(R/N)`, `@uid(R/N)`, `@generated`, `@start`.
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

    /// An answer without what differs by nature.
    pub(super) fn answer(&mut self, answer: &Answer, op: &Op) -> Value {
        let mut body = answer.body.clone();
        if let Value::String(text) = &body {
            // A watch: one event for each line.
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

    /// Remembers the object that an operation gave back. A dry run changes nothing, so it teaches nothing.
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
                // The revision of a list is that of the whole store, where others write too.
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
                        ("creationTimestamp" | "deletionTimestamp", Value::String(_)) => {
                            *value = json!("T");
                        }
                        // Both are the server's own choice.
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

/// Leaves out what is said in other words, on purpose: docs/wire.md lists it.
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
    // What is invalid is compared by its causes, of which the message is the sum.
    if matches!(reason, "BadRequest" | "Invalid") || stored {
        body["message"] = json!("(in other words)");
    }
    if let Some(Value::Array(causes)) = body.pointer_mut("/details/causes") {
        for cause in &mut *causes {
            if cause["field"] == "patch" {
                cause["message"] = json!("(in other words)");
            }
            // What comes after the sentence shows the structs of the real server's source.
            let message = cause["message"].as_str().unwrap_or_default();
            if let Some((sentence, _)) = message.split_once(", but isn't: ") {
                // Which mistake it is, the libraries for patterns tell in their own words.
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
                // So do whole objects and lists of them.
                cause["message"] = json!(format!("Invalid value: {sentence}"));
            }
        }
        // The real server checks some things twice and then says them twice.
        causes.sort_by_key(ToString::to_string);
        causes.dedup();
    }
}

/// The version that ours follows has a status there, and shows it even if it is empty.
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

/// The place of a text among those that showed up.
fn index(seen: &mut Vec<String>, text: &str) -> usize {
    seen.iter()
        .position(|known| known == text)
        .unwrap_or_else(|| {
            seen.push(text.to_owned());
            seen.len() - 1
        })
}
