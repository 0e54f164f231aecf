//! Byte formats of keys, records and batches, and the fingerprint over all objects.
//!
//! Every value starts with a CRC-32C of its key and of the rest of the value. It detects a changed record, and a record
//! under a wrong key. Every batch contains the number of objects after it and the sum of their fingerprints, which
//! detects a missing object.
//!
//! An encrypted record has the marker `ENCRYPTED` in place of the length of its labels. Revision and term stay in clear
//! text, because folding reads the revision of a record without its key. They are part of the associated data.

use std::collections::BTreeMap;
use std::io;
use std::iter;
use std::sync::Arc;

use bytes::Bytes;

use super::trouble::Trouble;
use crate::store::batch::{Commit, Entry};
use crate::store::encryption::{DecryptError, Encryption, KeyId};
use crate::store::{Key, Object};

/// The newest format. Records may be encrypted.
pub(super) const FORMAT: u32 = 2;
/// The format of stores without keys, which earlier versions can read.
const PLAIN_FORMAT: u32 = 1;

const CRC: usize = 4;
/// End of the CRC, revision and term of a record.
const RECORD_VERSION: usize = CRC + 8 + 8;
const RECORD_HEADER: usize = RECORD_VERSION + 4;
const BATCH_HEADER: usize = CRC + 4 + 8 * 4 + 1;
/// Stored in place of the length of the labels. No labels are that long.
const ENCRYPTED: [u8; 4] = [0xff; 4];

/// Count and fingerprint of a set of objects, for completeness checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Summary {
    /// Number of objects.
    pub(in crate::store) count: u64,
    /// Sum of their fingerprints.
    pub(in crate::store) sum: u64,
}

impl Summary {
    /// Adds an object.
    pub(in crate::store) fn add(&mut self, object: &Object) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(fingerprint(object));
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, object: &Object) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(fingerprint(object));
    }
}

/// State of the whole store after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The last committed revision.
    pub(super) revision: u64,
    /// The last reserved revision. The next process must start after it unless the store was closed cleanly.
    pub(super) ceiling: u64,
    /// Summary of all objects.
    pub(super) objects: Summary,
    /// Whether the store was closed cleanly.
    pub(super) closed: bool,
}

impl State {
    /// Returns the revision at which the next process starts.
    pub(super) fn next_start(&self) -> u64 {
        if self.closed {
            self.revision
        } else {
            self.ceiling
        }
    }

    fn encode(&self, format: u32, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&format.to_le_bytes());
        for number in [
            self.revision,
            self.ceiling,
            self.objects.count,
            self.objects.sum,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.push(u8::from(self.closed));
    }
}

/// One change of a batch: an encoded key, and a record unless it is a removal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub(super) key: &'a [u8],
    pub(super) record: Option<&'a [u8]>,
}

/// `crc32c, format, state`, then per change `key length, record length, key, record`; a removal has
/// record length 0. The number of the batch is in the checksum.
pub(super) fn encode_batch(
    number: u64,
    state: &State,
    commits: &[Commit],
    encryption: &Encryption,
) -> io::Result<Vec<u8>> {
    let size = |commit: &Commit| {
        let key = &commit.event.object.key;
        let names = key.resource.len() + key.namespace.len() + key.name.len();
        8 + names + 2 + RECORD_HEADER + commit.event.object.json.len()
    };
    let mut bytes = Vec::with_capacity(BATCH_HEADER + commits.iter().map(size).sum::<usize>());
    bytes.extend_from_slice(&[0; CRC]);
    let format = if encryption.has_keys() {
        FORMAT
    } else {
        PLAIN_FORMAT
    };
    state.encode(format, &mut bytes);
    for commit in commits {
        let key = encode_key(&commit.event.object.key);
        let record = match &commit.entry {
            Some(entry) => encode_record(&key, entry, encryption)?,
            None => Vec::new(),
        };
        bytes.extend_from_slice(&length(&key));
        bytes.extend_from_slice(&length(&record));
        bytes.extend_from_slice(&key);
        bytes.extend_from_slice(&record);
    }
    seal(&number.to_le_bytes(), &mut bytes);
    Ok(bytes)
}

/// Checks a batch and reads its state. The error names a damaged object.
pub(super) fn decode_batch(number: u64, bytes: &[u8]) -> Result<State, Trouble> {
    let damaged = |what: String| Trouble::Damaged(format!("batch {number}: {what}"));
    if !sealed(&number.to_le_bytes(), bytes) {
        for change in changes(bytes) {
            let Change { key, record } = change.map_err(damaged)?;
            if let Some(record) = record {
                check_record(key, record, &mut Vec::new()).map_err(damaged)?;
            }
        }
        return Err(damaged("the checksum is wrong".to_owned()));
    }
    let short = || damaged("it is too short".to_owned());
    let format = self::number(bytes, CRC, 4).ok_or_else(short)?;
    if !(u64::from(PLAIN_FORMAT)..=u64::from(FORMAT)).contains(&format) {
        return Err(Trouble::Format(u32::try_from(format).unwrap_or(u32::MAX)));
    }
    let at = |n: usize| self::number(bytes, CRC + 4 + 8 * n, 8).ok_or_else(short);
    Ok(State {
        revision: at(0)?,
        ceiling: at(1)?,
        objects: Summary {
            count: at(2)?,
            sum: at(3)?,
        },
        closed: *bytes.get(BATCH_HEADER - 1).ok_or_else(short)? == 1,
    })
}

/// Returns the changes of a batch.
pub(super) fn changes(batch: &[u8]) -> impl Iterator<Item = Result<Change<'_>, String>> {
    let mut rest = batch.get(BATCH_HEADER..).unwrap_or_default();
    iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let next = next_change(rest);
        rest = next.map_or(&[], |(_, rest)| rest);
        Some(
            next.map(|(change, _)| change)
                .ok_or_else(|| "a change is cut off".to_owned()),
        )
    })
}

fn next_change(bytes: &[u8]) -> Option<(Change<'_>, &[u8])> {
    let len = |at| usize::try_from(number(bytes, at, 4)?).ok();
    let (key, rest) = bytes.get(8..)?.split_at_checked(len(0)?)?;
    let (record, rest) = rest.split_at_checked(len(4)?)?;
    let record = Some(record).filter(|record| !record.is_empty());
    Some((Change { key, record }, rest))
}

/// Returns the revision of a record.
pub(super) fn revision(record: &[u8]) -> Option<u64> {
    number(record, CRC, 8)
}

/// Encodes a key as `resource NUL namespace NUL name`. No part contains NUL.
pub(in crate::store) fn encode_key(key: &Key) -> Vec<u8> {
    let mut bytes =
        Vec::with_capacity(key.resource.len() + key.namespace.len() + key.name.len() + 2);
    bytes.extend_from_slice(key.resource.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.namespace.as_bytes());
    bytes.push(0);
    bytes.extend_from_slice(key.name.as_bytes());
    bytes
}

/// Encodes a record: `crc32c, revision, term, length of the labels, labels as JSON, JSON`. Numbers are little endian.
/// The labels are repeated in front, so that a start need not parse the whole JSON. In an encrypted record, the marker
/// `ENCRYPTED` and the encrypted value replace everything after the term.
///
/// # Errors
/// Fails if the record cannot be encrypted.
pub(in crate::store) fn encode_record(
    key: &[u8],
    entry: &Entry,
    encryption: &Encryption,
) -> io::Result<Vec<u8>> {
    let Object {
        key: Key { resource, .. },
        json,
        labels,
        revision,
    } = &*entry.object;
    let labels = if labels.is_empty() {
        Vec::new()
    } else {
        serde_json::to_vec(labels).expect("strings serialise into memory")
    };
    let mut bytes = Vec::with_capacity(RECORD_HEADER + labels.len() + json.len());
    bytes.extend_from_slice(&[0; CRC]);
    bytes.extend_from_slice(&revision.to_le_bytes());
    bytes.extend_from_slice(&entry.term.to_le_bytes());
    bytes.extend_from_slice(&length(&labels));
    bytes.extend_from_slice(&labels);
    bytes.extend_from_slice(json);
    if encryption.key_for(resource).is_some() {
        let (version, value) = bytes.split_at(RECORD_VERSION);
        let sealed = encryption.seal(resource, &associated(key, version), value)?;
        if let Some(sealed) = sealed {
            bytes.truncate(RECORD_VERSION);
            bytes.extend_from_slice(&ENCRYPTED);
            bytes.extend_from_slice(&sealed);
        }
    }
    seal(key, &mut bytes);
    Ok(bytes)
}

/// Returns the associated data of an encrypted record: its key, revision and term. The last two have a fixed length.
fn associated(key: &[u8], version: &[u8]) -> Vec<u8> {
    [key, version.get(CRC..).unwrap_or_default()].concat()
}

/// Reason why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::store) enum Unreadable {
    /// The record is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The key of the record is missing.
    #[error("{0}")]
    Locked(String),
}

impl Unreadable {
    /// Creates the error for an object that cannot be decrypted.
    pub(in crate::store) fn encrypted(key: &Key, error: &DecryptError) -> Self {
        let what = format!("{key} {error}");
        if error.needs_key() {
            Self::Locked(what)
        } else {
            Self::Damaged(what)
        }
    }
}

/// Reads records: checks and decrypts them.
#[derive(Debug)]
pub(in crate::store) struct Records<'a> {
    encryption: &'a Encryption,
    /// One copy of each resource name.
    resources: Vec<Arc<str>>,
}

impl<'a> Records<'a> {
    pub(in crate::store) fn new(encryption: &'a Encryption) -> Self {
        Self {
            encryption,
            resources: Vec::new(),
        }
    }

    /// Checks and reads one record. Also returns the key that it was encrypted with.
    pub(in crate::store) fn decode(
        &mut self,
        key_bytes: &[u8],
        record: &[u8],
    ) -> Result<(Entry, Option<KeyId>), Unreadable> {
        let key = check_record(key_bytes, record, &mut self.resources);
        let key = key.map_err(Unreadable::Damaged)?;
        let marker = record.get(RECORD_VERSION..RECORD_HEADER);
        let (id, fields) = if marker == Some(&ENCRYPTED) {
            let (version, sealed) = record.split_at(RECORD_VERSION);
            let opened = self
                .encryption
                .open(&associated(key_bytes, version), &sealed[ENCRYPTED.len()..]);
            let (id, value) = opened.map_err(|error| Unreadable::encrypted(&key, &error))?;
            (Some(id), decode_fields(record, &value))
        } else {
            let value = record.get(RECORD_VERSION..).unwrap_or_default();
            (None, decode_fields(record, value))
        };
        let Some((revision, term, labels, json)) = fields else {
            return Err(Unreadable::Damaged(format!(
                "the record of {key} is malformed although its checksum is right"
            )));
        };
        let object = Arc::new(Object {
            key,
            revision,
            labels,
            json,
        });
        Ok((Entry { object, term }, id))
    }
}

/// Checks the checksum of a record and returns its key; `resources` keeps one copy of each resource name.
fn check_record(
    key_bytes: &[u8],
    record: &[u8],
    resources: &mut Vec<Arc<str>>,
) -> Result<Key, String> {
    let key = decode_key(key_bytes, resources)?;
    if !sealed(key_bytes, record) {
        return Err(format!("the checksum of {key} is wrong"));
    }
    Ok(key)
}

/// Reads revision and term from a record, and labels and JSON from its decrypted value.
fn decode_fields(
    record: &[u8],
    value: &[u8],
) -> Option<(u64, u64, BTreeMap<String, String>, Bytes)> {
    let revision = revision(record)?;
    let term = number(record, CRC + 8, 8)?;
    let len = usize::try_from(number(value, 0, 4)?).ok()?;
    let (labels, json) = value.get(4..)?.split_at_checked(len)?;
    let labels = match labels {
        [] => BTreeMap::new(),
        labels => serde_json::from_slice(labels).ok()?,
    };
    Some((revision, term, labels, Bytes::copy_from_slice(json)))
}

/// Splits an encoded key into resource, namespace and name.
pub(super) fn split_key(bytes: &[u8]) -> Option<(&str, &str, &str)> {
    let (resource, rest) = std::str::from_utf8(bytes).ok()?.split_once('\0')?;
    let (namespace, name) = rest.split_once('\0')?;
    Some((resource, namespace, name))
}

fn decode_key(bytes: &[u8], resources: &mut Vec<Arc<str>>) -> Result<Key, String> {
    let damaged = || format!("malformed key {:?}", String::from_utf8_lossy(bytes));
    let (resource, namespace, name) = split_key(bytes).ok_or_else(damaged)?;
    let known = resources
        .iter()
        .rev()
        .find(|known| ***known == *resource)
        .cloned();
    let resource = known.unwrap_or_else(|| {
        resources.push(resource.into());
        resource.into()
    });
    Ok(Key {
        resource,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    })
}

/// Returns a fingerprint that differs between versions of an object and between objects.
fn fingerprint(object: &Object) -> u64 {
    let key = &object.key;
    let mut crc = crc32c::crc32c(key.resource.as_bytes());
    crc = crc32c::crc32c_append(crc, key.namespace.as_bytes());
    crc = crc32c::crc32c_append(crc, &[0]);
    crc = crc32c::crc32c_append(crc, key.name.as_bytes());
    // The finaliser of splitmix64 prevents consecutive revisions from cancelling out in the sum.
    let mut z = object.revision ^ (u64::from(crc) << 32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Encodes a length. Objects have a few megabytes at most, because the HTTP layer rejects larger ones.
fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len())
        .expect("an object is shorter than 4 GiB")
        .to_le_bytes()
}

fn seal(key: &[u8], bytes: &mut [u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), &bytes[CRC..]);
    bytes[..CRC].copy_from_slice(&crc.to_le_bytes());
}

fn sealed(key: &[u8], bytes: &[u8]) -> bool {
    let Some((crc, rest)) = bytes.split_at_checked(CRC) else {
        return false;
    };
    crc == crc32c::crc32c_append(crc32c::crc32c(key), rest).to_le_bytes()
}

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..len].copy_from_slice(bytes.get(at..at + len)?);
    Some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::store::encryption::Scope;
    use crate::store::record::Draft;
    use crate::store::testing::key;

    /// A record, and its key.
    fn record(encryption: &Encryption) -> (Vec<u8>, Vec<u8>) {
        let name = key("ns", "x");
        let value = json!({"metadata": {"labels": {"a": "b"}}, "data": {"x": "hunter2"}});
        let object = Draft::new(&name, &value).unwrap().finish(name.clone(), 7);
        let key = encode_key(&name);
        let record = encode_record(&key, &Entry { object, term: 3 }, encryption).unwrap();
        (key, record)
    }

    #[test]
    fn encrypted_record_belongs_to_its_key_revision_and_term() {
        let encryption = Encryption::of(&[1], Scope::All);
        let (name, record) = record(&encryption);
        assert!(!record.windows(7).any(|part| part == b"hunter2"));
        let mut records = Records::new(&encryption);
        let (entry, id) = records.decode(&name, &record).unwrap();
        assert_eq!(id, encryption.writing_key());
        assert_eq!((entry.object.revision, entry.term), (7, 3));
        assert_eq!(entry.object.labels["a"], "b");
        assert_eq!(revision(&record), Some(7));

        // A forger can compute checksums.
        let mut rejected = |name: &[u8], mut record: Vec<u8>| {
            seal(name, &mut record);
            let error = records.decode(name, &record).unwrap_err();
            assert!(matches!(error, Unreadable::Damaged(_)), "{error}");
            error.to_string()
        };
        let other = encode_key(&key("ns", "y"));
        let error = rejected(&other, record.clone());
        assert!(error.contains("leases ns/y cannot be decrypted"), "{error}");
        assert!(error.contains("belongs to another object"), "{error}");
        for at in (CRC..RECORD_VERSION).chain(RECORD_HEADER + 9..record.len()) {
            let mut changed = record.clone();
            changed[at] ^= 1;
            rejected(&name, changed);
        }
        for length in RECORD_HEADER + 9..record.len() {
            rejected(&name, record[..length].to_vec());
        }
        // The ciphertext is not a record in clear text.
        let mut plain = record.clone();
        plain[RECORD_VERSION..RECORD_HEADER].fill(0);
        seal(&name, &mut plain);
        let read = records.decode(&name, &plain).unwrap().0;
        assert!(!read.object.json.starts_with(b"{"));
    }

    #[test]
    fn plain_record_is_read_with_and_without_keys() {
        let (name, record) = record(&Encryption::OFF);
        for encryption in [Encryption::OFF, Encryption::of(&[1], Scope::All)] {
            let (entry, id) = Records::new(&encryption).decode(&name, &record).unwrap();
            assert_eq!((entry.object.revision, entry.term, id), (7, 3, None));
        }
    }
}
