//! Transcodes Kubernetes protobuf request bodies to JSON, using the schema table.
//!
//! A body consists of the four bytes `k8s\0` and a message `Unknown` that names kind and version and contains the
//! object. On the wire, an absent field differs from a zero one only if it is a pointer field. [`canonicalise`]
//! resolves both cases, so that a protobuf body and the same body in JSON give the same value.
//!
//! Invariant: any input gives a value or an error, within bounded depth and memory.

mod leaf;
mod wire;

use serde_json::{Map, Value};

use crate::canonical::{self, canonicalise};
use crate::limits::{self, MAX_VALUES};
use crate::schema::{self, Field, Message, Type};
use wire::{Fields, Payload};

/// The four bytes at the start of every body.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Maximum nesting of messages; real objects are far below.
const MAX_DEPTH: usize = 40;

/// A body that cannot be decoded; the response is 400.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The body does not start with [`MAGIC`].
    #[error(
        "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"
    )]
    Magic,
    /// The table does not contain the kind.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// The version in the envelope.
        api_version: String,
        /// The kind in the envelope.
        kind: String,
    },
    /// The object is encoded neither as protobuf nor as JSON.
    #[error("unsupported content in protobuf envelope: type {0:?}")]
    ContentType(String),
    /// The bytes end inside a field.
    #[error("protobuf: unexpected end of data")]
    Truncated,
    /// A number that is longer than ten bytes or 64 bits.
    #[error("protobuf: varint overflow")]
    Varint,
    /// A field number or wire type that does not exist.
    #[error("protobuf: illegal tag")]
    Tag,
    /// A field has a wire type that its type does not allow.
    #[error("protobuf: wrong wire type")]
    WireType,
    /// A text is not UTF-8.
    #[error("protobuf: string field contains invalid UTF-8")]
    Utf8,
    /// Messages are nested too deeply.
    #[error("protobuf: message is nested too deeply")]
    TooDeep,
    /// The object has too many values.
    #[error("protobuf: too many values in one object")]
    TooMany,
    /// JSON inside the object does not parse.
    #[error("protobuf: embedded JSON: {0}")]
    Json(String),
    /// A field has a value that is invalid for its type.
    #[error(transparent)]
    Value(#[from] canonical::Error),
}

/// A decoded body.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Object {
    /// The version in the envelope, such as `coordination.k8s.io/v1`; may be empty.
    pub api_version: String,
    /// The kind in the envelope; may be empty when the caller gave a default.
    pub kind: String,
    /// The object in its canonical form, with `apiVersion` and `kind`.
    pub value: Value,
}

/// The envelope of a body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope<'a> {
    /// The version of the object.
    pub api_version: &'a str,
    /// The kind of the object.
    pub kind: &'a str,
    /// The object's bytes.
    pub raw: &'a [u8],
    /// How `raw` is encoded; empty means protobuf.
    pub content_type: &'a str,
}

/// Decodes a body.
///
/// # Errors
/// Returns an error if the bytes are not Kubernetes protobuf, or if the kind in the envelope is not in the table.
pub fn decode(body: &[u8]) -> Result<Object, Error> {
    decode_as(body, None)
}

/// Decodes a body. `default` is the kind to use if the envelope names none.
///
/// # Errors
/// See [`decode`].
pub fn decode_as(body: &[u8], default: Option<&'static Message>) -> Result<Object, Error> {
    let envelope = envelope(body)?;
    let Envelope {
        api_version,
        kind,
        raw,
        content_type,
    } = envelope;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let unnamed = if kind.is_empty() { default } else { None };
    let message = schema::message(group, version, kind)
        .or(unnamed)
        .ok_or_else(|| Error::UnknownKind {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        })?;
    let mut object = match content_type {
        "" | "application/vnd.kubernetes.protobuf" => decode_message(message, raw)?,
        "application/json" => leaf::json(raw)?,
        other => return Err(Error::ContentType(other.to_owned())),
    };
    if let Value::Object(map) = &mut object {
        for (name, text) in [("apiVersion", api_version), ("kind", kind)] {
            map.insert(name.to_owned(), Value::from(text));
        }
    }
    let value = canonicalise(message, object)?;
    if limits::depth(&value) > limits::MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    Ok(Object {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        value,
    })
}

/// Parses the envelope of a body without decoding the object.
///
/// # Errors
/// Returns an error if the bytes are not Kubernetes protobuf.
pub fn envelope(body: &[u8]) -> Result<Envelope<'_>, Error> {
    let unknown = body.strip_prefix(MAGIC).ok_or(Error::Magic)?;
    let mut envelope = Envelope::default();
    let mut fields = Fields::new(unknown);
    while let Some((number, payload)) = fields.next()? {
        match number {
            1 => {
                let mut fields = Fields::new(payload.bytes()?);
                while let Some((number, payload)) = fields.next()? {
                    match number {
                        1 => envelope.api_version = payload.text()?,
                        2 => envelope.kind = payload.text()?,
                        _ => {}
                    }
                }
            }
            2 => envelope.raw = payload.bytes()?,
            4 => envelope.content_type = payload.text()?,
            _ => {}
        }
    }
    Ok(envelope)
}

/// Decodes the bytes of one message to JSON, which is not canonical yet.
fn decode_message(message: &'static Message, bytes: &[u8]) -> Result<Value, Error> {
    let mut decoder = Decoder {
        values: 0,
        depth: 0,
    };
    let mut map = Map::new();
    decoder.message(message, bytes, &mut map)?;
    Ok(Value::Object(map))
}

struct Decoder {
    values: usize,
    depth: usize,
}

impl Decoder {
    /// Adds the fields of a message to a map. A repeated field is merged, as protobuf requires.
    fn message(
        &mut self,
        message: &'static Message,
        bytes: &[u8],
        map: &mut Map<String, Value>,
    ) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::TooDeep);
        }
        let mut fields = Fields::new(bytes);
        while let Some((number, payload)) = fields.next()? {
            self.count()?;
            // Clients may be newer than the table; their additional fields are skipped.
            if let Some(field) = message.by_number(number) {
                self.field(field, payload, map)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    fn field(
        &mut self,
        field: &'static Field,
        payload: Payload<'_>,
        map: &mut Map<String, Value>,
    ) -> Result<(), Error> {
        match &field.ty {
            Type::Message(inner) if field.inline => self.message(inner, payload.bytes()?, map),
            Type::Message(inner) => match slot(map, field.json, || Value::Object(Map::new())) {
                Value::Object(nested) => self.message(inner, payload.bytes()?, nested),
                _ => Err(Error::WireType),
            },
            Type::List(of) => match slot(map, field.json, || Value::Array(Vec::new())) {
                Value::Array(list) => self.element(of, payload, list),
                _ => Err(Error::WireType),
            },
            Type::Map(of) => match slot(map, field.json, || Value::Object(Map::new())) {
                Value::Object(entries) => self.entry(of, payload.bytes()?, entries),
                _ => Err(Error::WireType),
            },
            ty => {
                let value = self.value(ty, payload)?;
                *slot(map, field.json, || Value::Null) = value;
                Ok(())
            }
        }
    }

    /// One element of a list, or a packed run of numbers.
    fn element(
        &mut self,
        of: &'static Type,
        payload: Payload<'_>,
        list: &mut Vec<Value>,
    ) -> Result<(), Error> {
        if let (Type::Int32 | Type::Int64, Payload::Bytes(packed)) = (of, payload) {
            for number in leaf::packed(packed)? {
                self.count()?;
                list.push(leaf::scalar(of, Payload::Varint(number))?);
            }
            return Ok(());
        }
        list.push(self.value(of, payload)?);
        Ok(())
    }

    /// One entry of a map: a message {1: key, 2: value}, in which either may be absent.
    fn entry(
        &mut self,
        of: &'static Type,
        bytes: &[u8],
        map: &mut Map<String, Value>,
    ) -> Result<(), Error> {
        let (mut key, mut value) = ("", Value::Null);
        let mut fields = Fields::new(bytes);
        while let Some((number, payload)) = fields.next()? {
            match number {
                1 => key = payload.text()?,
                2 => value = self.value(of, payload)?,
                _ => {}
            }
        }
        map.insert(key.to_owned(), value);
        Ok(())
    }

    fn value(&mut self, ty: &'static Type, payload: Payload<'_>) -> Result<Value, Error> {
        match ty {
            Type::Message(inner) => {
                let mut map = Map::new();
                self.message(inner, payload.bytes()?, &mut map)?;
                Ok(Value::Object(map))
            }
            Type::WrappedList(of) => {
                let mut list = Vec::new();
                let mut fields = Fields::new(payload.bytes()?);
                while let Some((number, payload)) = fields.next()? {
                    self.count()?;
                    if number == 1 {
                        list.push(self.value(of, payload)?);
                    }
                }
                Ok(Value::Array(list))
            }
            Type::SchemaOrArray | Type::SchemaOrBool | Type::SchemaOrStrings => {
                self.schema_or(ty, payload.bytes()?)
            }
            ty => leaf::scalar(ty, payload),
        }
    }

    /// The unions around JSON schemas: {schema, schemas}, {allows, schema} and {schema, names}.
    fn schema_or(&mut self, ty: &Type, bytes: &[u8]) -> Result<Value, Error> {
        let props = schema::message_by_name("apiextensions/v1.JSONSchemaProps");
        let props = props.expect("the table has JSON schemas");
        let schema_number = if matches!(ty, Type::SchemaOrBool) {
            2
        } else {
            1
        };
        let (mut schema, mut others, mut allows) = (None, Vec::new(), false);
        let mut fields = Fields::new(bytes);
        while let Some((number, payload)) = fields.next()? {
            self.count()?;
            if number == schema_number || matches!(ty, Type::SchemaOrArray) && number == 2 {
                let mut map = Map::new();
                self.message(props, payload.bytes()?, &mut map)?;
                if number == schema_number {
                    schema = Some(Value::Object(map));
                } else {
                    others.push(Value::Object(map));
                }
            } else if number == 1 {
                allows = payload.number()? != 0;
            } else if number == 2 {
                others.push(Value::from(payload.text()?));
            }
        }
        Ok(match ty {
            Type::SchemaOrBool => schema.unwrap_or(Value::Bool(allows)),
            _ if !others.is_empty() => Value::Array(others),
            _ => schema.unwrap_or(Value::Null),
        })
    }

    fn count(&mut self) -> Result<(), Error> {
        self.values += 1;
        if self.values > MAX_VALUES {
            Err(Error::TooMany)
        } else {
            Ok(())
        }
    }
}

/// Returns the slot of a field, created on first use because elements of a list arrive one by one.
fn slot<'m>(map: &'m mut Map<String, Value>, name: &str, new: fn() -> Value) -> &'m mut Value {
    if !map.contains_key(name) {
        map.insert(name.to_owned(), new());
    }
    map.get_mut(name).expect("the field was just inserted")
}

#[cfg(test)]
mod tests;
