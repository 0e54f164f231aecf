//! Bytes: keys, records, the state row, and the fingerprint over all records.
//!
//! Every value starts with a CRC-32C of its key and the rest of it, so a record that was changed, or
//! that sits at another's key, is found. The state row counts the records and sums their fingerprints,
//! so a record that went missing is found too.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use crate::store::batch::Entry;
use crate::store::{Key, Object};

/// The newest format, and the only one so far.
pub(super) const FORMAT: u32 = 1;

const CRC: usize = 4;
const RECORD_HEADER: usize = CRC + 8 + 8;
const STATE_LEN: usize = CRC + 4 + 8 * 4 + 1;

/// Says whether a set of objects is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::store) struct Summary {
    /// How many there are.
    pub(in crate::store) count: u64,
    /// The sum of their fingerprints.
    pub(in crate::store) sum: u64,
}

impl Summary {
    /// Counts an object in.
    pub(in crate::store) fn add(&mut self, object: &Object) {
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(fingerprint(object));
    }

    /// Counts an object out.
    pub(super) fn remove(&mut self, object: &Object) {
        self.count = self.count.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(fingerprint(object));
    }
}

/// The one row about the whole store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// The last committed revision.
    pub(super) revision: u64,
    /// No revision up to this one may be used by the next process, unless this one closed in order.
    pub(super) ceiling: u64,
    /// Which objects there are.
    pub(super) objects: Summary,
    /// The store was closed in order.
    pub(super) closed: bool,
}

impl State {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; CRC];
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        for number in [
            self.revision,
            self.ceiling,
            self.objects.count,
            self.objects.sum,
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.push(u8::from(self.closed));
        seal(b"state", &mut bytes);
        bytes
    }

    /// The row, or the format that it has instead, or what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Result<Self, u32>, String> {
        let format = number(bytes, CRC, 4).ok_or("the state row is too short")?;
        if u32::try_from(format) != Ok(FORMAT) && sealed(b"state", bytes) {
            return Ok(Err(u32::try_from(format).unwrap_or(u32::MAX)));
        }
        if bytes.len() != STATE_LEN || !sealed(b"state", bytes) {
            return Err("the checksum of the state row is wrong".to_owned());
        }
        let at = |n: usize| number(bytes, CRC + 4 + 8 * n, 8).ok_or("the state row is too short");
        Ok(Ok(Self {
            revision: at(0)?,
            ceiling: at(1)?,
            objects: Summary {
                count: at(2)?,
                sum: at(3)?,
            },
            closed: bytes[STATE_LEN - 1] == 1,
        }))
    }
}

/// `resource NUL namespace NUL name`; none of them holds a NUL.
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

/// `crc32c, revision, term, JSON`; numbers are little endian.
pub(in crate::store) fn encode_record(key: &[u8], entry: &Entry) -> Vec<u8> {
    let json = &entry.object.json;
    let mut bytes = Vec::with_capacity(RECORD_HEADER + json.len());
    bytes.extend_from_slice(&[0; CRC]);
    bytes.extend_from_slice(&entry.object.revision.to_le_bytes());
    bytes.extend_from_slice(&entry.term.to_le_bytes());
    bytes.extend_from_slice(json);
    seal(key, &mut bytes);
    bytes
}

/// Checks and reads one record; `resources` keeps one copy of each resource name.
pub(in crate::store) fn decode_record(
    key_bytes: &[u8],
    record: &[u8],
    resources: &mut Vec<Arc<str>>,
) -> Result<Entry, String> {
    let key = decode_key(key_bytes, resources)?;
    if !sealed(key_bytes, record) {
        return Err(format!("the checksum of {key} is wrong"));
    }
    let short = || format!("the record of {key} is too short");
    let revision = number(record, CRC, 8).ok_or_else(short)?;
    let term = number(record, CRC + 8, 8).ok_or_else(short)?;
    let json = Bytes::copy_from_slice(record.get(RECORD_HEADER..).ok_or_else(short)?);
    let labels = labels(&json).map_err(|error| format!("{key} is not an object: {error}"))?;
    Ok(Entry {
        object: Arc::new(Object {
            key,
            revision,
            labels,
            json,
        }),
        term,
    })
}

fn decode_key(bytes: &[u8], resources: &mut Vec<Arc<str>>) -> Result<Key, String> {
    let damaged = || format!("the key {:?} is not one", String::from_utf8_lossy(bytes));
    let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
    let (resource, rest) = text.split_once('\0').ok_or_else(damaged)?;
    let (namespace, name) = rest.split_once('\0').ok_or_else(damaged)?;
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

/// Differs for two versions of an object and for the same revision of two objects.
fn fingerprint(object: &Object) -> u64 {
    let key = &object.key;
    let mut crc = crc32c::crc32c(key.resource.as_bytes());
    crc = crc32c::crc32c_append(crc, key.namespace.as_bytes());
    crc = crc32c::crc32c_append(crc, &[0]);
    crc = crc32c::crc32c_append(crc, key.name.as_bytes());
    // The finaliser of splitmix64, so that neighbouring revisions do not cancel out in a sum.
    let mut z = object.revision ^ (u64::from(crc) << 32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
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

/// Reads `metadata.labels` and skips the rest, which is most of the time that a start takes.
fn labels(json: &[u8]) -> serde_json::Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Object {
        #[serde(default)]
        metadata: Metadata,
    }
    #[derive(Default, Deserialize)]
    struct Metadata {
        #[serde(default)]
        labels: Value,
    }
    let Value::Object(labels) = serde_json::from_slice::<Object>(json)?.metadata.labels else {
        return Ok(BTreeMap::new());
    };
    Ok(labels
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.as_str()?.into())))
        .collect())
}
