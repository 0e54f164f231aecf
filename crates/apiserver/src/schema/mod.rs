//! The single table of field facts: names, wire numbers, types, merge keys, list types.
//!
//! Protobuf decoding, canonicalisation, strict field validation and strategic merge patch all read this table, so that
//! they cannot disagree about a field. `peers/schemagen` generates the table, `fields.txt`, from the Go types of the
//! kinds. This module indexes the text on first use, and parses the lines of a message when it is first requested.
//!
//! The format of `fields.txt`:
//!
//! ```text
//! =GROUP/VERSION/KIND MESSAGE      a kind and its message
//! @MESSAGE                         starts a message
//! !s=atomic                        the message is replaced as a whole by apply
//! NAME NUMBER TYPE FLAGS...        a field; NAME is "-" for a member inlined in JSON
//! ```
//!
//! `TYPE` is a leaf or a message name after any of `*` (pointer), `[]` (list), `{}` (map with string keys) and `<>` (a
//! list that is a separate message on the wire). Flags: `e` omitempty, `z` omitzero, `i` inlined, `p=` patch
//! strategies, `k=` patch merge key, `l=` list type with its keys, `s=` struct or map type, `d=` default.

mod descriptions;
mod parse;

use std::collections::HashMap;
use std::fmt;
use std::sync::{LazyLock, OnceLock};

pub(crate) use descriptions::{Descriptions, FieldText};

/// Returns the message of a kind, or `None` for kinds outside the table such as custom resources.
///
/// Option kinds (`DeleteOptions` and similar) and `Status` are found under any group and version. Clients send them
/// with the version of the resource that they act on.
pub fn message(group: &str, version: &str, kind: &str) -> Option<&'static Message> {
    let table = table();
    let found = table.kinds.get(&(group, version, kind));
    let shared = || {
        table
            .kinds
            .get(&("meta.k8s.io", "v1", kind))
            .filter(|_| is_shared_kind(kind))
    };
    found.or_else(shared).and_then(|name| message_by_name(name))
}

/// Returns the message with this name in the table, such as `core/v1.Pod` or `meta/v1.ObjectMeta`.
pub fn message_by_name(name: &str) -> Option<&'static Message> {
    table().messages.get(name)
}

/// Returns every kind of the table as (group, version, kind), in no particular order.
pub fn kinds() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    table().kinds.keys().copied()
}

fn is_shared_kind(kind: &str) -> bool {
    matches!(
        kind,
        "DeleteOptions" | "CreateOptions" | "UpdateOptions" | "PatchOptions" | "Status"
    )
}

/// One struct of the API.
pub struct Message {
    name: &'static str,
    body: &'static str,
    parsed: OnceLock<Parsed>,
}

struct Parsed {
    fields: Vec<Field>,
    by_json: OnceLock<Vec<&'static Field>>,
    always_shown: OnceLock<Vec<&'static Field>>,
    atomic: bool,
}

impl Message {
    /// Name in the table, such as `core/v1.Pod`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Name of the Go type, such as `Pod`; decode errors contain it.
    pub fn go_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// The fields as in the Go struct: inlined members are one field with [`Field::inline`].
    pub fn fields(&'static self) -> &'static [Field] {
        &self.parsed().fields
    }

    /// The fields as in JSON, sorted by name: inlined members are replaced by their fields.
    pub fn json_fields(&'static self) -> &'static [&'static Field] {
        self.parsed().by_json.get_or_init(|| {
            let mut flat = Vec::with_capacity(self.fields().len());
            self.flatten(&mut flat);
            flat.sort_by_key(|f| f.json);
            flat
        })
    }

    /// The fields that JSON contains even if they are absent in the input; see [`Field::shown_when_absent`].
    pub fn always_shown(&'static self) -> &'static [&'static Field] {
        self.parsed().always_shown.get_or_init(|| {
            let fields = self.json_fields().iter().copied();
            fields.filter(|field| field.shown_when_absent()).collect()
        })
    }

    /// Returns the field with this JSON name, including the fields of inlined members.
    pub fn field(&'static self, json: &str) -> Option<&'static Field> {
        let fields = self.json_fields();
        fields
            .binary_search_by_key(&json, |f| f.json)
            .ok()
            .map(|at| fields[at])
    }

    /// Returns the field with this protobuf number; an inlined member is one field here.
    pub fn by_number(&'static self, number: u32) -> Option<&'static Field> {
        self.fields()
            .iter()
            .find(|f| f.number == number && number != 0)
    }

    /// Whether apply treats the whole message as one value.
    pub fn atomic(&'static self) -> bool {
        self.parsed().atomic
    }

    fn parsed(&'static self) -> &'static Parsed {
        self.parsed.get_or_init(|| parse::message(self.body))
    }

    fn flatten(&'static self, into: &mut Vec<&'static Field>) {
        for field in self.fields() {
            match (&field.ty, field.inline) {
                (Type::Message(inner), true) => inner.flatten(into),
                _ => into.push(field),
            }
        }
    }
}

impl fmt::Debug for Message {
    /// Prints only the name, because messages refer to each other and some to themselves.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({})", self.name)
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// One field of a [`Message`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Field {
    /// The name in JSON; `-` for an inlined member.
    pub json: &'static str,
    /// The protobuf field number; 0 for fields that are not on the wire (`kind`, `apiVersion`).
    pub number: u32,
    /// The type, without the pointer.
    pub ty: Type,
    /// Whether the Go type is a pointer, so that a present zero value differs from an absent one.
    pub pointer: bool,
    /// Whether JSON omits empty values.
    pub omitempty: bool,
    /// Whether JSON omits a zero struct.
    pub omitzero: bool,
    /// Whether the fields of the member appear next to its siblings in JSON; in protobuf they are nested.
    pub inline: bool,
    /// How strategic merge patch treats the field.
    pub patch: PatchStrategy,
    /// The key by which strategic merge patch matches list elements.
    pub merge_key: Option<&'static str>,
    /// How apply treats the list.
    pub list_type: ListType,
    /// Whether apply treats the map or struct in this field as one value.
    pub atomic: bool,
    /// Whether apply tracks the struct's fields separately although its type is atomic.
    pub granular: bool,
    /// The default as JSON text, if the type declares one; apply needs it for list keys.
    pub default: Option<&'static str>,
}

impl Field {
    /// Whether JSON contains the field when it is absent: as null, as a zero value, or as an empty struct.
    pub fn shown_when_absent(&self) -> bool {
        match (self.pointer, self.omitempty) {
            (true, omitempty) => !omitempty,
            (false, true) => self.ty.is_struct() && !self.omitzero,
            (false, false) => !self.omitzero,
        }
    }
}

/// The types of the table.
#[derive(Debug, PartialEq)]
#[non_exhaustive]
pub enum Type {
    /// A string, including named string types.
    String,
    /// A boolean.
    Bool,
    /// A 32-bit integer.
    Int32,
    /// A 64-bit integer.
    Int64,
    /// A 64-bit float.
    Float64,
    /// Bytes, base64 in JSON.
    Bytes,
    /// A point in time to the second, RFC 3339 in JSON.
    Time,
    /// A point in time to the microsecond, RFC 3339 with six digits in JSON.
    MicroTime,
    /// A resource quantity such as `1536Mi`.
    Quantity,
    /// A number or a string.
    IntOrString,
    /// Any JSON object, stored unchanged (`RawExtension`).
    Raw,
    /// The field set of a managedFields entry, stored unchanged.
    FieldsV1,
    /// Any JSON value, stored unchanged (apiextensions `JSON`).
    Json,
    /// A JSON schema or a list of them.
    SchemaOrArray,
    /// A JSON schema or a boolean.
    SchemaOrBool,
    /// A JSON schema or a list of names.
    SchemaOrStrings,
    /// Another message.
    Message(&'static Message),
    /// A list.
    List(Box<Type>),
    /// A list that protobuf wraps in a separate message.
    WrappedList(Box<Type>),
    /// A map with string keys.
    Map(Box<Type>),
}

impl Type {
    /// Whether the Go type is a struct, which `omitempty` never omits.
    pub fn is_struct(&self) -> bool {
        use Type::{IntOrString, Json, Message, MicroTime, Quantity, Raw, Time};
        matches!(
            self,
            Message(_) | Quantity | IntOrString | Time | MicroTime | Raw | Json
        )
    }

    /// Returns the type of the elements of a list or of the values of a map.
    pub fn element(&self) -> Option<&Type> {
        match self {
            Self::List(of) | Self::WrappedList(of) | Self::Map(of) => Some(of),
            _ => None,
        }
    }

    /// Returns the message of this type or of its elements.
    pub fn as_message(&self) -> Option<&'static Message> {
        match self {
            Self::Message(message) => Some(message),
            _ => None,
        }
    }
}

/// The patch strategy tag of a field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PatchStrategy {
    /// Whether lists are merged by element instead of replaced.
    pub merge: bool,
    /// Whether structs are replaced instead of merged.
    pub replace: bool,
    /// Whether writers of patches are expected to add a `$retainKeys` directive.
    pub retain_keys: bool,
}

/// The list type marker of a field.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ListType {
    /// No marker: apply treats the list as atomic.
    #[default]
    Unset,
    /// Replaced as a whole.
    Atomic,
    /// A set of scalars.
    Set,
    /// Elements are identified by the values of these fields.
    Map(Vec<&'static str>),
}

type KindKey = (&'static str, &'static str, &'static str);

struct Table {
    kinds: HashMap<KindKey, &'static str>,
    messages: HashMap<&'static str, Message>,
}

fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| parse::table(include_str!("fields.txt")));
    &TABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_parses() {
        let mut fields = 0;
        for (group, version, kind) in kinds() {
            assert!(
                message(group, version, kind).is_some(),
                "{group}/{version} {kind}"
            );
        }
        for message in table().messages.values() {
            fields += message.fields().len();
            let names: Vec<_> = message.json_fields().iter().map(|f| f.json).collect();
            let mut unique = names.clone();
            unique.dedup();
            assert_eq!(names, unique, "{message:?} has a name twice");
        }
        assert!(fields > 1500, "only {fields} fields");
    }

    #[test]
    fn lease_spec_distinguishes_pointers_from_plain_fields() {
        let lease = message("coordination.k8s.io", "v1", "Lease").unwrap();
        let spec = lease.field("spec").unwrap();
        assert!(!spec.pointer && spec.omitempty);
        let spec = spec.ty.as_message().unwrap();
        assert_eq!(spec.go_name(), "LeaseSpec");
        let holder = spec.field("holderIdentity").unwrap();
        assert!(holder.pointer && holder.number == 1 && holder.ty == Type::String);
        assert_eq!(spec.field("renewTime").unwrap().ty, Type::MicroTime);
        assert!(spec.field("bogus").is_none());
    }

    #[test]
    fn inlined_members_are_flat_in_json_and_nested_on_the_wire() {
        let volume = message_by_name("core/v1.Volume").unwrap();
        assert!(volume.field("emptyDir").is_some());
        assert!(volume.by_number(2).unwrap().inline);
        assert!(volume.by_number(0).is_none());
    }

    #[test]
    fn merge_keys_and_list_types_are_parsed() {
        let meta = message_by_name("meta/v1.ObjectMeta").unwrap();
        let owners = meta.field("ownerReferences").unwrap();
        assert_eq!(owners.merge_key, Some("uid"));
        assert!(owners.patch.merge);
        let finalizers = meta.field("finalizers").unwrap();
        assert!(finalizers.patch.merge && finalizers.merge_key.is_none());
        assert_eq!(finalizers.list_type, ListType::Set);
        let container = message_by_name("core/v1.Container").unwrap();
        let ports = container.field("ports").unwrap();
        assert_eq!(
            ports.list_type,
            ListType::Map(vec!["containerPort", "protocol"])
        );
        let port = ports.ty.element().unwrap().as_message().unwrap();
        assert_eq!(port.field("protocol").unwrap().default, Some("\"TCP\""));
        assert!(message_by_name("meta/v1.LabelSelector").unwrap().atomic());
    }

    #[test]
    fn options_are_found_under_any_group() {
        let options = message("coordination.k8s.io", "v1", "DeleteOptions").unwrap();
        assert_eq!(options.name(), "meta/v1.DeleteOptions");
        assert!(message("coordination.k8s.io", "v9", "Lease").is_none());
    }
}
