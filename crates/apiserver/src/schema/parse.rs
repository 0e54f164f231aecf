//! Parses `fields.txt`. The text is part of the program, so a line that does not parse is a bug of the generator. The
//! tests parse every line.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::{Field, ListType, Message, Parsed, PatchStrategy, Table, Type, message_by_name};

/// Finds the kinds and the location of every message, without parsing the messages.
pub(super) fn table(text: &'static str) -> Table {
    let (head, rest) = text.split_once("\n@").unwrap_or((text, ""));
    let kinds = head.lines().filter_map(kind).collect();
    let messages = rest.split("\n@").map(|part| {
        let (name, body) = part.split_once('\n').unwrap_or((part, ""));
        (
            name,
            Message {
                name,
                body,
                parsed: OnceLock::new(),
            },
        )
    });
    Table {
        kinds,
        messages: messages.collect::<HashMap<_, _>>(),
    }
}

fn kind(line: &'static str) -> Option<(super::KindKey, &'static str)> {
    let (key, name) = line.strip_prefix('=')?.split_once(' ')?;
    let mut parts = key.split('/');
    Some(((parts.next()?, parts.next()?, parts.next()?), name))
}

/// Parses the lines of one message.
pub(super) fn message(body: &'static str) -> Parsed {
    let atomic = body.lines().any(|line| line == "!s=atomic");
    let lines = body
        .lines()
        .filter(|line| !line.starts_with('!') && !line.is_empty());
    let fields = lines.map(|line| field(line).expect("fields.txt has only well-formed lines"));
    Parsed {
        fields: fields.collect(),
        by_json: OnceLock::new(),
        always_shown: OnceLock::new(),
        atomic,
    }
}

fn field(line: &'static str) -> Option<Field> {
    let mut words = line.split(' ');
    let (json, number, ty) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let pointer = ty.starts_with('*');
    let mut field = Field {
        json,
        number,
        ty: type_of(ty.trim_start_matches('*'))?,
        pointer,
        omitempty: false,
        omitzero: false,
        inline: false,
        patch: PatchStrategy::default(),
        merge_key: None,
        list_type: ListType::Unset,
        atomic: false,
        granular: false,
        default: None,
    };
    for word in words {
        match word.split_once('=') {
            None if word == "e" => field.omitempty = true,
            None if word == "z" => field.omitzero = true,
            None if word == "i" => field.inline = true,
            Some(("p", strategies)) => field.patch = patch_strategy(strategies)?,
            Some(("k", key)) => field.merge_key = Some(key),
            Some(("l", list)) => field.list_type = list_type(list)?,
            Some(("s", how)) => {
                field.atomic = how == "atomic";
                field.granular = how == "granular";
            }
            Some(("d", default)) => field.default = Some(default),
            _ => return None,
        }
    }
    Some(field)
}

fn type_of(text: &'static str) -> Option<Type> {
    if let Some(of) = text.strip_prefix("[]") {
        return Some(Type::List(Box::new(type_of(of)?)));
    }
    if let Some(of) = text.strip_prefix("{}") {
        return Some(Type::Map(Box::new(type_of(of)?)));
    }
    if let Some(of) = text.strip_prefix("<>") {
        return Some(Type::WrappedList(Box::new(type_of(of)?)));
    }
    Some(match text {
        "string" => Type::String,
        "bool" => Type::Bool,
        "int32" => Type::Int32,
        "int64" => Type::Int64,
        "float64" => Type::Float64,
        "bytes" => Type::Bytes,
        "Time" => Type::Time,
        "MicroTime" => Type::MicroTime,
        "Quantity" => Type::Quantity,
        "IntOrString" => Type::IntOrString,
        "Raw" => Type::Raw,
        "FieldsV1" => Type::FieldsV1,
        "JSON" => Type::Json,
        "SchemaOrArray" => Type::SchemaOrArray,
        "SchemaOrBool" => Type::SchemaOrBool,
        "SchemaOrStrings" => Type::SchemaOrStrings,
        name => Type::Message(message_by_name(name)?),
    })
}

fn patch_strategy(text: &str) -> Option<PatchStrategy> {
    let mut strategy = PatchStrategy::default();
    for word in text.split(',') {
        match word {
            "merge" => strategy.merge = true,
            "replace" => strategy.replace = true,
            "retainKeys" => strategy.retain_keys = true,
            _ => return None,
        }
    }
    Some(strategy)
}

fn list_type(text: &'static str) -> Option<ListType> {
    Some(match text.split_once(':') {
        None if text == "atomic" => ListType::Atomic,
        None if text == "set" => ListType::Set,
        Some(("map", keys)) => ListType::Map(keys.split(',').collect()),
        _ => return None,
    })
}
