//! One request, with placeholders for values that each server generates.

use std::fmt;

use http::Method;
use serde_json::json;

use super::bodies::{Kind, word};
use crate::nemesis::seed::Seeded;

const JSON: &str = "application/json";

/// A request.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its method.
    pub method: Method,
    /// Its path and query.
    pub path: String,
    /// The type of its body.
    pub content: &'static str,
    /// Its body.
    pub body: String,
    /// Resource that it concerns, as in paths.
    pub resource: &'static str,
}

impl Op {
    /// Returns a watch of all events of a kind since the beginning of the sequence.
    pub(super) fn watch(kind: &Kind) -> Self {
        let query = kind.query("?watch=true&resourceVersion=@start&timeoutSeconds=1");
        let path = kind.path() + &query;
        Self::new(kind, Method::GET, path, JSON, String::new())
    }

    /// Returns a random operation on objects of two kinds.
    pub(super) fn random(seeded: &mut Seeded, kinds: [&Kind; 2]) -> Self {
        let kind = *seeded.pick(&kinds);
        let short = *seeded.pick(&["a", "b", "c"]);
        let name = &kind.name(short);
        match seeded.below(100) {
            68..83 if !kind.deletable => list(seeded, kind),
            0..28 => create(seeded, kind, name),
            28..48 => update(seeded, kind, name),
            48..60 => patch(seeded, kind, name),
            60..68 => apply(seeded, kind, name),
            68..80 => delete(seeded, kind, name),
            80..83 => delete_collection(seeded, kind),
            83..90 => {
                let name = if seeded.percent(20) {
                    "@generated"
                } else {
                    name.as_str()
                };
                let path = format!("{}/{name}", kind.path());
                Self::new(kind, Method::GET, path, JSON, String::new())
            }
            _ => list(seeded, kind),
        }
    }

    fn new(kind: &Kind, method: Method, path: String, content: &'static str, body: String) -> Self {
        Self {
            method,
            path,
            content,
            body,
            resource: kind.resource,
        }
    }
}

fn create(seeded: &mut Seeded, kind: &Kind, name: &str) -> Op {
    let mut object = kind.object(seeded, name);
    if seeded.percent(12) {
        // Lists are sorted by name, so the random suffix must not decide the order.
        object["metadata"]["generateName"] = json!(format!("gen-{:04}-", seeded.below(10_000)));
        if seeded.percent(80) {
            object["metadata"]["name"] = json!("");
        }
    }
    let query = write_query(seeded);
    Op::new(
        kind,
        Method::POST,
        format!("{}{query}", kind.path()),
        JSON,
        body(seeded, &object),
    )
}

fn update(seeded: &mut Seeded, kind: &Kind, name: &str) -> Op {
    let mut object = kind.object(seeded, name);
    let key = format!("{}/{name}", kind.resource);
    let version = match seeded.below(10) {
        0..6 => Some(format!("@rv({key})")),
        6 => Some(format!("@old({key})")),
        7 => Some("0".to_owned()),
        _ => None,
    };
    if let Some(version) = version {
        object["metadata"]["resourceVersion"] = json!(version);
    }
    if seeded.percent(20) {
        object["metadata"]["uid"] = json!(format!("@uid({key})"));
    }
    let query = write_query(seeded);
    let path = format!("{}/{name}{query}", kind.path());
    Op::new(kind, Method::PUT, path, JSON, body(seeded, &object))
}

fn patch(seeded: &mut Seeded, kind: &Kind, name: &str) -> Op {
    let key = format!("{}/{name}", kind.resource);
    let (content, text) = match seeded.below(3) {
        0 => {
            let steps = [
                json!({"op": "add", "path": "/metadata/labels/size", "value": word(seeded)}),
                json!({"op": "remove", "path": "/metadata/labels/size"}),
                json!({"op": "replace", "path": "/metadata/labels/color", "value": word(seeded)}),
                json!({"op": "test", "path": "/metadata/labels/color", "value": "red"}),
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": format!("@rv({key})")}),
                json!({"op": "remove", "path": "/metadata/finalizers"}),
                json!({"op": "add", "path": "/nowhere/at/all", "value": 1}),
                json!({"op": "dance", "path": "/metadata"}),
                json!({"op": "replace", "path": "/metadata/name", "value": "other"}),
            ];
            let count = 1 + seeded.below(2);
            let chosen: Vec<_> = (0..count).map(|_| seeded.pick(&steps).clone()).collect();
            ("application/json-patch+json", json!(chosen))
        }
        which => {
            let mut change = kind.change(seeded);
            if seeded.percent(25) {
                let version = if seeded.percent(70) { "rv" } else { "old" };
                change["metadata"]["resourceVersion"] = json!(format!("@{version}({key})"));
            }
            let content = match which {
                1 => "application/merge-patch+json",
                _ => "application/strategic-merge-patch+json",
            };
            (content, change)
        }
    };
    let query = write_query(seeded);
    let path = format!("{}/{name}{query}", kind.path());
    Op::new(kind, Method::PATCH, path, content, body(seeded, &text))
}

/// Returns an apply of one of two managers for the same objects, sometimes without a name or with force.
fn apply(seeded: &mut Seeded, kind: &Kind, name: &str) -> Op {
    let object = kind.object(seeded, name);
    let query = *seeded.pick(&[
        "",
        "?fieldManager=one",
        "?fieldManager=one&force=true",
        "?fieldManager=two",
        "?fieldManager=two&force=true",
        "?fieldManager=two&dryRun=All",
    ]);
    let path = format!("{}/{name}{query}", kind.path());
    let content = "application/apply-patch+yaml";
    Op::new(kind, Method::PATCH, path, content, object.to_string())
}

fn delete(seeded: &mut Seeded, kind: &Kind, name: &str) -> Op {
    let key = format!("{}/{name}", kind.resource);
    let options = match seeded.below(10) {
        0 => json!({"preconditions": {"resourceVersion": format!("@rv({key})")}}),
        1 => json!({"preconditions": {"resourceVersion": format!("@old({key})")}}),
        2 => json!({"preconditions": {"uid": format!("@uid({key})")}}),
        3 => json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}}),
        4 => {
            json!({"propagationPolicy": seeded.pick(&["Background", "Foreground", "Orphan", "Sideways"])})
        }
        5 => json!({"dryRun": ["All"]}),
        6 => json!({"gracePeriodSeconds": 0}),
        _ => json!(null),
    };
    let text = if options.is_null() {
        String::new()
    } else {
        options.to_string()
    };
    // A dry run in the body counts too: the mask searches for the word.
    let query = if text.contains("dryRun") {
        "?dryRun=All"
    } else {
        ""
    };
    let path = format!("{}/{name}{query}", kind.path());
    Op::new(kind, Method::DELETE, path, JSON, text)
}

fn delete_collection(seeded: &mut Seeded, kind: &Kind) -> Op {
    let query = *seeded.pick(&[
        "?labelSelector=color%3Dred",
        "?labelSelector=color+in+(green,blue)",
        "?fieldSelector=metadata.name%3Da",
        "?labelSelector=!color&dryRun=All",
    ]);
    let path = kind.path() + &kind.query(query);
    Op::new(kind, Method::DELETE, path, JSON, String::new())
}

fn list(seeded: &mut Seeded, kind: &Kind) -> Op {
    let query = *seeded.pick(&[
        "",
        "?labelSelector=color%3Dred",
        "?labelSelector=color!%3Dred",
        "?labelSelector=color+notin+(red,green)",
        "?labelSelector=%3D%3Dx",
        "?labelSelector=size",
        "?fieldSelector=metadata.name%3Da",
        "?fieldSelector=metadata.name!%3Da,metadata.namespace%3D@namespace",
        "?fieldSelector=spec.nothing%3Dx",
        "?limit=1",
        "?limit=2",
        "?resourceVersion=0&resourceVersionMatch=Exact",
        "?resourceVersionMatch=NotOlderThan",
        "?resourceVersion=@start&resourceVersionMatch=Exact",
    ]);
    let path = kind.path() + &kind.query(query);
    Op::new(kind, Method::GET, path, JSON, String::new())
}

fn write_query(seeded: &mut Seeded) -> &'static str {
    match seeded.below(20) {
        0..2 => "?dryRun=All",
        2 => "?fieldValidation=Strict",
        3 => "?fieldValidation=Ignore",
        4 => "?dryRun=Some",
        5 => "?fieldValidation=Sometimes",
        6 => "?fieldManager=me",
        _ => "",
    }
}

/// Returns the text of a body, sometimes truncated or empty.
fn body(seeded: &mut Seeded, value: &serde_json::Value) -> String {
    let text = value.to_string();
    match seeded.below(50) {
        0 => text[..text.len() / 2].to_owned(),
        1 => String::new(),
        _ => text,
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)?;
        if self.content != JSON {
            write!(f, " ({})", self.content)?;
        }
        if !self.body.is_empty() {
            write!(f, " {}", self.body)?;
        }
        Ok(())
    }
}
