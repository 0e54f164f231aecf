//! Encoding of objects in etcd.
//!
//! A key is `PREFIX/registry/GROUP/PLURAL/NAMESPACE/NAME`, with empty parts where there is no group or
//! no namespace. A value is one line about the object and its JSON:
//!
//! ```text
//! tenure1 term=self
//! {"metadata":{"resourceVersion":"","name":"x",...},...}
//! ```
//!
//! The revision is etcd's, so the JSON has a gap for it that is filled when it is read. The term is
//! the revision that won the present term of a lease: a number, `self` for the revision of this very
//! value, or 0 where no token is valid.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;

use super::super::batch::Entry;
use super::super::{Key, Object};

const FORMAT: &[u8] = b"tenure1 term=";
const SELF: &str = "self";
/// How the JSON of every stored version begins, up to its revision.
const HEAD: &[u8] = b"{\"metadata\":{\"resourceVersion\":\"";

/// The keys below a prefix.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    prefix: String,
}

impl Layout {
    pub(super) fn new(prefix: &str) -> Self {
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// Returns the range of all our keys.
    pub(super) fn everything(&self) -> (Bytes, Bytes) {
        Self::range(format!("{}/", self.prefix))
    }

    /// Returns the range of all objects.
    pub(super) fn objects(&self) -> (Bytes, Bytes) {
        Self::range(format!("{}/registry/", self.prefix))
    }

    /// Returns a key that is not the key of an object.
    pub(super) fn other(&self, name: &str) -> Bytes {
        format!("{}/{name}", self.prefix).into()
    }

    /// Returns the key whose write advances a quiet watch.
    pub(super) fn nudge(&self) -> Bytes {
        self.other("nudge")
    }

    /// Returns the etcd key of an object.
    pub(super) fn object(&self, key: &Key) -> Result<Bytes, String> {
        let Key {
            resource,
            namespace,
            name,
        } = key;
        let slashes = |part: &str| part.bytes().filter(|byte| *byte == b'/').count();
        if (slashes(resource), slashes(namespace), slashes(name)) != (1, 0, 0) {
            return Err(format!("the name {key:?} holds a slash"));
        }
        let prefix = &self.prefix;
        Ok(format!("{prefix}/registry/{resource}/{namespace}/{name}").into())
    }

    /// Parses an etcd key; `None` if it is not the key of an object.
    pub(super) fn key(&self, place: &[u8], names: &mut Names) -> Option<Result<Key, String>> {
        let rest = place.strip_prefix(self.prefix.as_bytes())?;
        let rest = rest.strip_prefix(b"/registry/")?;
        let parsed = str::from_utf8(rest).ok().and_then(|rest| {
            let (plural_end, _) = rest.match_indices('/').nth(1)?;
            let (namespace, name) = rest[plural_end + 1..].split_once('/')?;
            (!name.contains('/')).then(|| Key {
                resource: names.shared(&rest[..plural_end]),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            })
        });
        let what = || format!("the key {:?} is not one of ours", shown(place));
        Some(parsed.ok_or_else(what))
    }

    fn range(from: String) -> (Bytes, Bytes) {
        let mut end = from.clone().into_bytes();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        (from.into(), end.into())
    }
}

/// Interned names of resources.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<Arc<str>>);

impl Names {
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.0.insert(Arc::clone(&name));
        name
    }
}

/// Encodes a version. `term` is `None` for the revision of the write itself.
pub(super) fn encode(term: Option<u64>, json: &[u8], gap: usize) -> Bytes {
    debug_assert_eq!(gap, HEAD.len(), "the gap is after the head");
    let term = term.map_or_else(|| SELF.to_owned(), |term| term.to_string());
    let mut value = BytesMut::with_capacity(FORMAT.len() + term.len() + 1 + json.len());
    value.put_slice(FORMAT);
    value.put_slice(term.as_bytes());
    value.put_u8(b'\n');
    value.put_slice(json);
    value.freeze()
}

/// Decodes a version. The error describes a foreign value.
pub(super) fn decode(key: Key, revision: u64, value: &[u8]) -> Result<Entry, String> {
    let wrong = |what: &str| format!("the value of {key} in etcd is damaged: {what}");
    let rest = value
        .strip_prefix(FORMAT)
        .ok_or_else(|| wrong("it does not start as values of this version do"))?;
    let end = rest.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| wrong("it has one line only"))?;
    let term = match str::from_utf8(&rest[..end]) {
        Ok(SELF) => Some(revision),
        Ok(number) => number.parse().ok(),
        Err(_) => None,
    };
    let term = term.ok_or_else(|| wrong("its term is no number"))?;
    let tail = rest[end + 1..].strip_prefix(HEAD);
    let tail = tail.ok_or_else(|| wrong("its JSON has no place for the revision"))?;
    let json = stamped(revision, tail);
    let labels = labels(&json).map_err(|error| wrong(&error.to_string()))?;
    let object = Arc::new(Object {
        key,
        revision,
        labels,
        json,
    });
    Ok(Entry { object, term })
}

/// Returns the last state of a removed object, with the revision of its removal.
pub(super) fn removed(last: &Object, revision: u64) -> Arc<Object> {
    // Every version came out of `decode`, so the digits of its own revision follow the head.
    let digits = HEAD.len() + last.revision.to_string().len();
    Arc::new(Object {
        key: last.key.clone(),
        revision,
        labels: last.labels.clone(),
        json: stamped(revision, last.json.get(digits..).unwrap_or_default()),
    })
}

fn stamped(revision: u64, tail: &[u8]) -> Bytes {
    let digits = revision.to_string();
    let mut json = BytesMut::with_capacity(HEAD.len() + digits.len() + tail.len());
    json.put_slice(HEAD);
    json.put_slice(digits.as_bytes());
    json.put_slice(tail);
    json.freeze()
}

/// Reads `metadata.labels`, and checks that the rest is valid JSON.
fn labels(json: &[u8]) -> Result<BTreeMap<String, String>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Stored {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        labels: Option<BTreeMap<String, serde_json::Value>>,
    }
    let stored: Stored = serde_json::from_slice(json)?;
    let labels = stored.metadata.labels.unwrap_or_default();
    Ok(labels
        .into_iter()
        .filter_map(|(name, value)| match value {
            serde_json::Value::String(text) => Some((name, text)),
            _ => None,
        })
        .collect())
}

pub(super) fn shown(place: &[u8]) -> String {
    String::from_utf8_lossy(place).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::record::Draft;
    use super::*;
    use crate::store::testing::key;

    #[test]
    fn an_object_comes_back_at_the_revision_of_its_write() {
        let value =
            json!({"metadata": {"name": "x", "labels": {"a": "b", "n": 3}}, "spec": {"n": 1}});
        let draft = Draft::new(&key("ns", "x"), &value).unwrap();
        let (json, gap) = draft.parts();
        for (term, expected) in [(None, 77), (Some(0), 0), (Some(12), 12)] {
            let entry = decode(key("ns", "x"), 77, &encode(term, json, gap)).unwrap();
            assert_eq!((entry.term, entry.object.revision), (expected, 77));
            let written = draft.finish(key("ns", "x"), 77);
            assert_eq!(entry.object.json, written.json);
            assert_eq!(entry.object.labels, written.labels);
            let gone = removed(&entry.object, 123_456);
            assert_eq!(gone.json, draft.finish(key("ns", "x"), 123_456).json);
        }
    }

    #[test]
    fn every_key_has_one_place() {
        let layout = Layout::new("/tenure");
        let mut names = Names::default();
        for (resource, namespace, name) in [
            ("/configmaps", "ns", "x"),
            ("/namespaces", "", "default"),
            (
                "rbac.authorization.k8s.io/clusterroles",
                "",
                "system:node:a",
            ),
        ] {
            let key = Key {
                resource: resource.into(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            let place = layout.object(&key).unwrap();
            assert_eq!(layout.key(&place, &mut names).unwrap().unwrap(), key);
        }
        assert_eq!(
            layout.object(&key("ns", "x")).unwrap(),
            "/tenure/registry/coordination.k8s.io/leases/ns/x"
        );
        assert!(layout.object(&key("ns", "x/y")).is_err());
        assert!(layout.key(b"/tenure/nudge", &mut names).is_none());
        assert!(layout.key(b"/other/registry/a/b/c/d", &mut names).is_none());
        for odd in ["a/b/c/d/e", "a/b/c", ""] {
            let place = format!("/tenure/registry/{odd}");
            assert!(
                layout
                    .key(place.as_bytes(), &mut names)
                    .is_some_and(|k| k.is_err())
            );
        }
    }

    #[test]
    fn what_nobody_here_wrote_is_named() {
        for bad in [
            "",
            "{}",
            "tenure2 term=0\n{}",
            "tenure1 term=0",
            "tenure1 term=x\n{}",
            "tenure1 term=0\n{}",
            "tenure1 term=0\n{\"metadata\":{\"resourceVersion\":\"\",",
        ] {
            let why = decode(key("ns", "x"), 7, bad.as_bytes()).unwrap_err();
            assert!(why.contains("leases ns/x in etcd is damaged"), "{why}");
        }
    }
}
