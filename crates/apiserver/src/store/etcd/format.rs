//! Encoding of objects in etcd.
//!
//! A key is `PREFIX/registry/GROUP/PLURAL/NAMESPACE/NAME`. The group or the namespace may be empty. A value is a
//! header line followed by the JSON of the object:
//!
//! ```text
//! tenure1 term=self
//! {"metadata":{"resourceVersion":"","name":"x",...},...}
//! ```
//!
//! An encrypted value starts with `tenure2` instead of `tenure1`, and the encrypted JSON follows the line. The key of
//! the object and the line are its associated data.
//!
//! The revision is etcd's, so the JSON has a gap for it that is filled when the value is read. `term` is the revision
//! that won the current term of a lease: a number, `self` for the revision of the value itself, or 0 if no token is
//! valid.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::Deserialize;

use super::super::batch::Entry;
use super::super::durable::format::{Unreadable, encode_key};
use super::super::encryption::{Encryption, KeyId};
use super::super::{Key, Object, WriteError};

const FORMAT: &[u8] = b"tenure1 term=";
const ENCRYPTED: &[u8] = b"tenure2 term=";
/// Start of an encrypted value that is not an object.
const ENCRYPTED_OTHER: &[u8] = b"tenure2\n";
const SELF: &str = "self";
/// Start of the JSON of every stored version, up to its revision.
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
            return Err(format!("the name {key:?} contains a slash"));
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
        let what = || format!("unknown key {:?} below the prefix", shown(place));
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
///
/// # Errors
/// Fails if the version cannot be encrypted; nothing was changed.
pub(super) fn encode(
    key: &Key,
    term: Option<u64>,
    json: &[u8],
    encryption: &Encryption,
) -> Result<Bytes, WriteError> {
    debug_assert!(json.starts_with(HEAD), "the gap is after the head");
    let term = term.map_or_else(|| SELF.to_owned(), |term| term.to_string());
    let format = match encryption.key_for(&key.resource) {
        Some(_) => ENCRYPTED,
        None => FORMAT,
    };
    let mut value = BytesMut::with_capacity(format.len() + term.len() + 1 + json.len());
    value.put_slice(format);
    value.put_slice(term.as_bytes());
    value.put_u8(b'\n');
    let sealed = encryption.seal(&key.resource, &associated(key, &value), json);
    let sealed = sealed.map_err(|error| WriteError::Unavailable(error.to_string()))?;
    value.put_slice(sealed.as_deref().unwrap_or(json));
    Ok(value.freeze())
}

/// Returns the associated data of an encrypted version. The line is last and has no NUL, so that the parts are
/// unambiguous.
fn associated(key: &Key, line: &[u8]) -> Vec<u8> {
    [&encode_key(key), b"\0".as_slice(), line].concat()
}

/// A decrypted version.
#[derive(Debug)]
pub(super) struct Version {
    /// The revision that won the current term; zero if there is none.
    pub(super) term: u64,
    /// The JSON with a gap for the revision.
    pub(super) json: Bytes,
    /// The key that it was encrypted with.
    pub(super) id: Option<KeyId>,
}

/// Decrypts a version. The error describes a foreign value or names the missing key.
pub(super) fn open(
    key: &Key,
    revision: u64,
    value: &Bytes,
    encryption: &Encryption,
) -> Result<Version, Unreadable> {
    let wrong = |what: &str| damaged(key, what);
    let encrypted = value.starts_with(ENCRYPTED);
    // `ENCRYPTED` and `FORMAT` have the same length.
    if !encrypted && !value.starts_with(FORMAT) {
        return Err(wrong("unknown format"));
    }
    let rest = &value[FORMAT.len()..];
    let end = rest.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or_else(|| wrong("the line with the JSON is missing"))?;
    let term = match str::from_utf8(&rest[..end]) {
        Ok(SELF) => Some(revision),
        Ok(number) => number.parse().ok(),
        Err(_) => None,
    };
    let term = term.ok_or_else(|| wrong("its term is not a number"))?;
    let (line, rest) = value.split_at(FORMAT.len() + end + 1);
    if !encrypted {
        let (json, id) = (value.slice_ref(rest), None);
        return Ok(Version { term, json, id });
    }
    let opened = encryption.open(&associated(key, line), rest);
    let (id, json) = opened.map_err(|error| Unreadable::encrypted(key, &error))?;
    Ok(Version {
        term,
        json: json.into(),
        id: Some(id),
    })
}

/// Decodes a version. The error describes a foreign value or names the missing key.
pub(super) fn decode(
    key: Key,
    revision: u64,
    value: &Bytes,
    encryption: &Encryption,
) -> Result<Entry, Unreadable> {
    let Version { term, json, .. } = open(&key, revision, value, encryption)?;
    let tail = json.strip_prefix(HEAD);
    let tail = tail.ok_or_else(|| damaged(&key, "its JSON has no gap for the revision"))?;
    let json = stamped(revision, tail);
    let labels = labels(&json).map_err(|error| damaged(&key, &error.to_string()))?;
    let object = Arc::new(Object {
        key,
        revision,
        labels,
        json,
    });
    Ok(Entry { object, term })
}

fn damaged(key: &Key, what: &str) -> Unreadable {
    Unreadable::Damaged(format!("the value of {key} in etcd is damaged: {what}"))
}

/// Encodes a value that is not an object.
pub(super) fn encode_other(
    name: &str,
    value: &[u8],
    encryption: &Encryption,
) -> std::io::Result<Bytes> {
    let sealed = encryption.seal_shared(name.as_bytes(), value)?;
    Ok(match sealed {
        None => Bytes::copy_from_slice(value),
        Some(sealed) => [ENCRYPTED_OTHER, &sealed].concat().into(),
    })
}

/// Decodes a value that is not an object. Also returns the key that it was encrypted with.
pub(super) fn decode_other(
    name: &str,
    value: &[u8],
    encryption: &Encryption,
) -> Result<(Option<KeyId>, Vec<u8>), Unreadable> {
    let Some(sealed) = value.strip_prefix(ENCRYPTED_OTHER) else {
        return Ok((None, value.to_vec()));
    };
    match encryption.open(name.as_bytes(), sealed) {
        Ok((id, value)) => Ok((Some(id), value)),
        Err(error) if error.needs_key() => Err(Unreadable::Locked(format!("{name} {error}"))),
        Err(error) => Err(Unreadable::Damaged(format!("{name} {error}"))),
    }
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
    fn encoded_version_decodes_with_its_revision_and_term() {
        let value =
            json!({"metadata": {"name": "x", "labels": {"a": "b", "n": 3}}, "spec": {"n": 1}});
        let draft = Draft::new(&key("ns", "x"), &value).unwrap();
        let json = draft.json();
        for (term, expected) in [(None, 77), (Some(0), 0), (Some(12), 12)] {
            let key = key("ns", "x");
            let value = encode(&key, term, json, &Encryption::OFF).unwrap();
            let entry = decode(key, 77, &value, &Encryption::OFF).unwrap();
            assert_eq!((entry.term, entry.object.revision), (expected, 77));
            let key = &entry.object.key;
            let written = draft.finish(key.clone(), 77);
            assert_eq!(entry.object.json, written.json);
            assert_eq!(entry.object.labels, written.labels);
            let gone = removed(&entry.object, 123_456);
            assert_eq!(gone.json, draft.finish(key.clone(), 123_456).json);
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
    fn malformed_value_is_reported() {
        for bad in [
            "",
            "{}",
            "tenure2 term=0\n{}",
            "tenure2 term=0\n",
            "tenure3 term=0\n{}",
            "tenure1 term=0",
            "tenure1 term=x\n{}",
            "tenure1 term=0\n{}",
            "tenure1 term=0\n{\"metadata\":{\"resourceVersion\":\"\",",
        ] {
            let value = Bytes::from_static(bad.as_bytes());
            let why = decode(key("ns", "x"), 7, &value, &Encryption::OFF).unwrap_err();
            let why = why.to_string();
            let unknown = "leases ns/x is encrypted in a way that this version does not know";
            assert!(
                why.contains("leases ns/x in etcd is damaged") || why.ends_with(unknown),
                "{why}"
            );
        }
    }
}
