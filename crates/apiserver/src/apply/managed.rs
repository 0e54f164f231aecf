//! Reads and writes `metadata.managedFields`, the owners of fields.

use std::cmp::Ordering;
use std::fmt;

use serde_json::{Map, Value, json};

use super::set::Set;

/// Maximum number of update entries; older ones are merged.
const MOST_UPDATERS: usize = 10;
/// Manager name of the merged entry.
const ANCIENT: &str = "ancient-changes";

/// The operation of an entry. Apply sorts first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Apply,
    Update,
}

/// Identity of an entry: manager, operation, version and subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) manager: String,
    pub(crate) operation: Operation,
    /// The API version of the paths.
    pub(crate) api_version: String,
    pub(crate) subresource: String,
}

/// The entry of one writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) writer: Writer,
    /// Time in whole seconds; `None` if the writer never changed anything.
    pub(super) time: Option<String>,
    pub(super) fields: Set,
}

/// All entries of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Managed {
    pub(super) entries: Vec<Entry>,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

impl fmt::Display for Writer {
    /// Formats the writer for conflict messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.manager)?;
        if !self.subresource.is_empty() {
            write!(f, " with subresource {:?}", self.subresource)?;
        }
        match self.operation {
            Operation::Apply => Ok(()),
            Operation::Update => write!(f, " using {}", self.api_version),
        }
    }
}

impl Managed {
    /// Parses the list. Returns `None` if an entry is malformed.
    pub(crate) fn decode(list: Option<&Value>) -> Option<Self> {
        let mut entries = Vec::new();
        for entry in list.and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return None,
            };
            if text("fieldsType") != "FieldsV1" || !entry.get("fieldsV1")?.is_object() {
                return None;
            }
            entries.push(Entry {
                writer: Writer {
                    manager: text("manager").to_owned(),
                    operation,
                    api_version: text("apiVersion").to_owned(),
                    subresource: text("subresource").to_owned(),
                },
                time: Some(text("time").to_owned()).filter(|time| !time.is_empty()),
                fields: Set::from_fields(&entry["fieldsV1"]),
            });
        }
        Some(Self { entries })
    }

    /// Serialises the list in its canonical order. Returns `None` if it is empty.
    pub(crate) fn encode(mut self) -> Option<Value> {
        self.entries.retain(|entry| !entry.fields.is_empty());
        self.entries.sort_by(Entry::order);
        let list: Vec<Value> = self.entries.into_iter().map(Entry::encode).collect();
        (!list.is_empty()).then_some(Value::Array(list))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn get(&self, writer: &Writer) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.writer == *writer)
    }

    /// Returns the entry of a writer, and creates it if it does not exist.
    pub(super) fn entry(&mut self, writer: &Writer) -> &mut Entry {
        let at = self
            .entries
            .iter()
            .position(|entry| entry.writer == *writer);
        let at = at.unwrap_or_else(|| {
            self.entries.push(Entry {
                writer: writer.clone(),
                time: None,
                fields: Set::default(),
            });
            self.entries.len() - 1
        });
        &mut self.entries[at]
    }

    /// Merges the oldest update entries if there are too many.
    pub(super) fn cap(&mut self) {
        let is_update = |entry: &Entry| entry.writer.operation == Operation::Update;
        let mut updaters: Vec<Entry> = Vec::new();
        if self.entries.iter().filter(|entry| is_update(entry)).count() <= MOST_UPDATERS {
            return;
        }
        for entry in std::mem::take(&mut self.entries) {
            if is_update(&entry) {
                updaters.push(entry);
            } else {
                self.entries.push(entry);
            }
        }
        updaters.sort_by(Entry::order);
        let mut count = updaters.len();
        let mut firsts: Vec<Entry> = Vec::new();
        let mut rest = updaters.into_iter();
        while count > MOST_UPDATERS
            && let Some(entry) = rest.next()
        {
            let version = entry.writer.api_version.clone();
            let first = firsts
                .iter_mut()
                .find(|first| first.writer.api_version == version);
            let Some(first) = first else {
                firsts.push(entry);
                continue;
            };
            first.writer.manager = ANCIENT.to_owned();
            first.writer.subresource = String::new();
            first.fields = std::mem::take(&mut first.fields).union(&entry.fields);
            first.time = entry.time;
            count -= 1;
        }
        self.entries.extend(firsts.into_iter().chain(rest));
    }
}

impl Entry {
    /// Compares two entries. Times are compared as text, because they have a fixed format.
    fn order(&self, other: &Self) -> Ordering {
        let key = |entry: &Self| (entry.writer.operation, entry.time.clone());
        key(self).cmp(&key(other)).then_with(|| {
            let key = |entry: &Self| {
                let Writer {
                    manager,
                    api_version,
                    subresource,
                    ..
                } = entry.writer.clone();
                (manager, api_version, subresource)
            };
            key(self).cmp(&key(other))
        })
    }

    fn encode(self) -> Value {
        let mut out = Map::new();
        let writer = self.writer;
        out.insert("manager".into(), json!(writer.manager));
        out.insert("operation".into(), json!(writer.operation.name()));
        out.insert("apiVersion".into(), json!(writer.api_version));
        out.extend(self.time.map(|time| ("time".to_owned(), json!(time))));
        out.insert("fieldsType".into(), json!("FieldsV1"));
        out.insert("fieldsV1".into(), self.fields.into_fields());
        if !writer.subresource.is_empty() {
            out.insert("subresource".into(), json!(writer.subresource));
        }
        Value::Object(out)
    }
}

/// Returns whether the client resets all owners with a list of one empty entry.
pub(crate) fn is_reset(list: Option<&Value>) -> bool {
    let list = list.and_then(Value::as_array).map(Vec::as_slice);
    matches!(list, Some([entry]) if entry.as_object().is_some_and(Map::is_empty))
}

/// Returns whether two lists are equal except for their times.
pub(super) fn same_but_times(one: &Value, other: &Value) -> bool {
    let lists = one.as_array().zip(other.as_array());
    lists.is_some_and(|(one, other)| {
        one.len() == other.len()
            && one
                .iter()
                .zip(other)
                .all(|(one, other)| timeless(one).eq(timeless(other)))
    })
}

fn timeless(entry: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let members = entry.as_object().into_iter().flatten();
    members.filter(|(name, _)| *name != "time")
}

/// Returns the fields if the list has only an entry of this writer.
pub(super) fn alone<'a>(list: &'a Value, writer: &Writer) -> Option<&'a Value> {
    let [entry] = list.as_array()?.as_slice() else {
        return None;
    };
    let is = |name: &str, text: &str| {
        let value = entry.get(name).and_then(Value::as_str);
        value.unwrap_or_default() == text
    };
    let same_writer = is("manager", &writer.manager)
        && is("operation", writer.operation.name())
        && is("apiVersion", &writer.api_version)
        && is("subresource", &writer.subresource)
        && is("fieldsType", "FieldsV1");
    entry.get("fieldsV1").filter(|_| same_writer)
}

/// Replaces the time of the only entry.
pub(super) fn renewed(mut list: Value, now: String) -> Value {
    if let Some([entry]) = list.as_array_mut().map(Vec::as_mut_slice) {
        entry["time"] = Value::String(now);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(count: usize) -> Value {
        let entry = |number: usize| {
            json!({"manager": format!("m{number:02}"), "operation": "Update", "apiVersion": "v1",
                "time": format!("2026-01-01T00:00:{number:02}Z"), "fieldsType": "FieldsV1",
                "fieldsV1": {"f:data": {format!("f:{number}"): {}}}})
        };
        Value::Array((0..count).map(entry).collect())
    }

    #[test]
    fn managed_fields_round_trip() {
        let list = list(3);
        let managed = Managed::decode(Some(&list)).expect("read");
        assert_eq!(managed.encode(), Some(list));
        assert!(Managed::decode(Some(&json!([{"operation": "x"}]))).is_none());
        assert!(Managed::decode(None).expect("nothing").is_empty());
        assert!(is_reset(Some(&json!([{}]))) && !is_reset(Some(&json!([]))));
    }

    #[test]
    fn entries_above_the_limit_of_updaters_are_merged() {
        let mut managed = Managed::decode(Some(&list(12))).expect("read");
        managed.cap();
        let list = managed.encode().expect("some");
        let list = list.as_array().expect("list");
        assert_eq!(list.len(), 10);
        assert_eq!(list[0]["manager"], ANCIENT);
        assert_eq!(list[0]["time"], "2026-01-01T00:00:02Z");
        assert_eq!(
            list[0]["fieldsV1"],
            json!({"f:data": {"f:0": {}, "f:1": {}, "f:2": {}}})
        );
        assert_eq!(list[1]["manager"], "m03");
    }

    #[test]
    fn lists_that_differ_only_in_times_are_equal() {
        let mut other = list(2);
        other[1]["time"] = json!("2027-01-01T00:00:00Z");
        assert!(same_but_times(&list(2), &other));
        other[1]["manager"] = json!("else");
        assert!(!same_but_times(&list(2), &other));
        assert!(!same_but_times(&list(2), &list(3)));
    }
}
