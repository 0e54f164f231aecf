//! The structure of a value for apply: a leaf, a map of members, or a list of elements with an identity.
//!
//! The facts come from the schema table, which strategic merge patch and protobuf use too.

use serde_json::Value;

use crate::crd::{ListKind, Structural, ValueKind, keyed};
use crate::schema::{Field, ListType, Message, Type, message_by_name};

/// Schema of the value at a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape<'a> {
    /// A struct of the table.
    Struct(&'static Message),
    /// A map with values of this type.
    Map(&'static Type),
    /// A list of elements of this type that have an identity.
    List(&'static Type, &'static ListType),
    /// An atomic value.
    Leaf(Option<&'static Type>),
    /// A value of a custom resource.
    Custom(&'a Structural),
    /// A value without a schema: maps merge by name, lists are atomic.
    Free,
}

/// The parts of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueParts {
    One,
    Members,
    Elements,
}

impl Shape<'_> {
    fn of_field(field: &'static Field) -> Self {
        match &field.ty {
            ty if field.atomic => Self::Leaf(Some(ty)),
            Type::Message(message) if field.granular => Self::Struct(message),
            ty @ Type::List(of) => match &field.list_type {
                ListType::Unset | ListType::Atomic => Self::Leaf(Some(ty)),
                kind => Self::List(of, kind),
            },
            ty => Self::of_type(ty),
        }
    }

    fn of_type(ty: &'static Type) -> Self {
        match ty {
            Type::Message(message) if !message.atomic() => Self::Struct(message),
            Type::Map(of) => Self::Map(of),
            ty => Self::Leaf(Some(ty)),
        }
    }

    /// Returns the kind of parts, which depends on the value if there is no schema.
    pub(super) fn parts(self, value: &Value) -> ValueParts {
        match (self, value) {
            (Self::Custom(schema), Value::Object(_)) if !schema.atomic => ValueParts::Members,
            (Self::Custom(schema), Value::Null) if schema.kind == ValueKind::Object => {
                ValueParts::Members
            }
            (Self::Custom(schema), Value::Array(_)) if schema.list != ListKind::Atomic => {
                ValueParts::Elements
            }
            (Self::Struct(_) | Self::Map(_), Value::Object(_) | Value::Null)
            | (Self::Free, Value::Object(_)) => ValueParts::Members,
            (Self::List(..), Value::Array(_) | Value::Null) => ValueParts::Elements,
            _ => ValueParts::One,
        }
    }

    /// Returns whether the name is a member of a struct and not a key of a map.
    pub(super) fn names(self, name: &str) -> bool {
        match self {
            Self::Struct(message) => message.field(name).is_some(),
            Self::Custom(schema) => {
                schema.properties.contains_key(name) || (schema.resource && name == "metadata")
            }
            _ => false,
        }
    }

    /// Returns the shape of a member or map value.
    pub(super) fn member(self, name: &str) -> Self {
        match self {
            Self::Struct(message) => message.field(name).map_or(Self::Free, Self::of_field),
            Self::Map(of) => Self::of_type(of),
            Self::Custom(schema) if schema.resource && name == "metadata" => {
                message_by_name("meta/v1.ObjectMeta").map_or(Self::Free, Self::Struct)
            }
            Self::Custom(schema) => schema.member(name).map_or(Self::Free, Self::Custom),
            _ => Self::Free,
        }
    }

    /// Returns the shape of a list element.
    pub(super) fn item(self) -> Self {
        match self {
            Self::List(of, _) => Self::of_type(of),
            Self::Custom(schema) => schema.items.as_deref().map_or(Self::Free, Self::Custom),
            _ => Self::Free,
        }
    }

    /// Returns the identity of an element as a path element.
    pub(super) fn element(self, item: &Value) -> Result<String, String> {
        match self {
            Self::List(of, ListType::Map(keys)) => {
                let default = |key: &str| {
                    let field = of.as_message().and_then(|message| message.field(key))?;
                    match field.default {
                        Some(text) => serde_json::from_str(text).ok(),
                        // A member that is always serialised defaults to its zero value.
                        None if field.pointer || field.omitempty => None,
                        None => match field.ty {
                            Type::String => Some(Value::from("")),
                            Type::Int32 | Type::Int64 => Some(Value::from(0)),
                            Type::Bool => Some(Value::from(false)),
                            _ => None,
                        },
                    }
                };
                keyed(item, keys.iter().copied(), default)
            }
            Self::Custom(Structural {
                list: ListKind::Map(keys),
                items,
                ..
            }) => {
                let default = |key: &str| items.as_ref()?.properties.get(key)?.default.clone();
                keyed(item, keys.iter().map(String::as_str), default)
            }
            _ => scalar(item),
        }
    }

    /// Returns whether the schema allows an unknown member of this name.
    pub(super) fn admits(self, name: &str) -> bool {
        match self {
            Self::Struct(_) => self.names(name),
            Self::Custom(schema) => {
                schema.preserve
                    || schema.member(name).is_some()
                    || (schema.resource && matches!(name, "apiVersion" | "kind" | "metadata"))
            }
            _ => true,
        }
    }
}

/// Returns the path element of an element of a set.
pub(super) fn scalar(item: &Value) -> Result<String, String> {
    match item {
        Value::Null => Err("associative list without keys has an element that's null".to_owned()),
        Value::Array(_) | Value::Object(_) => {
            Err("associative list without keys has an element that's a map or list".to_owned())
        }
        value => Ok(format!("v:{value}")),
    }
}
