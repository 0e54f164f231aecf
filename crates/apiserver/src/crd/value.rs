//! Validates values against their schema, with the error texts of the real server.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use super::format::has_format;
use super::schema::{Kind, ListKind, Structural};
use crate::status::{Cause, MOST_FOUND, shortened};

/// Finds all errors in an object of the root schema.
pub(crate) fn check(schema: &Structural, object: &Value, causes: &mut Vec<Cause>) {
    check_value(schema, object, None, "", causes);
    check_lists(schema, object, "", causes);
}

/// Finds the errors in the changed parts of an object.
pub(crate) fn check_change(schema: &Structural, old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    if content(old).eq(content(new)) {
        return;
    }
    check_value(schema, new, Some(old), "", causes);
    let mut known = Vec::new();
    check_lists(schema, old, "", &mut known);
    if known.is_empty() {
        check_lists(schema, new, "", causes);
    }
}

/// Returns the members that the schema describes. Metadata changes with every write and is validated separately.
fn content(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let members = object.as_object().into_iter().flatten();
    members.filter(|(name, _)| *name != "metadata")
}

/// Returns the elements of the previous version by identity. Only elements of lists of type `map` have keys.
fn elements_before<'a>(schema: &Structural, old: Option<&'a Value>) -> HashMap<String, &'a Value> {
    let mut known = HashMap::new();
    if matches!(schema.list, ListKind::Map(_)) {
        for item in old.and_then(Value::as_array).into_iter().flatten() {
            if let Some(identity) = identity(schema, item) {
                known.entry(identity).or_insert(item);
            }
        }
    }
    known
}

/// Reports duplicate elements of sets and maps. This check runs last, as in the real server.
fn check_lists(schema: &Structural, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    if causes.len() > MOST_FOUND {
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if let Some(inner) = schema.member(name) {
                    check_lists(inner, value, &below(at, name), causes);
                }
            }
        }
        Value::Array(list) => {
            check_unique(schema, list, at, causes);
            if let Some(items) = &schema.items {
                for (index, item) in list.iter().enumerate() {
                    check_lists(items, item, &format!("{at}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

/// Validates a value. If the previous value is known, unchanged parts are skipped.
fn check_value(
    schema: &Structural,
    value: &Value,
    old: Option<&Value>,
    at: &str,
    causes: &mut Vec<Cause>,
) {
    if causes.len() > MOST_FOUND {
        return;
    }
    if old == Some(value) || (value.is_null() && schema.nullable) {
        return;
    }
    if !fits(schema.kind, value) {
        causes.push(mistyped(schema.kind, value, at));
        return;
    }
    check_rules(schema, value, at, causes);
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                if schema.resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    continue;
                }
                if let Some(inner) = schema.member(name) {
                    let old = old.and_then(|old| old.get(name));
                    check_value(inner, value, old, &below(at, name), causes);
                }
            }
            for name in &schema.rules.required {
                let implied = schema.resource && name == "metadata";
                if !implied && !map.contains_key(name) && causes.len() <= MOST_FOUND {
                    causes.push(Cause::required(below(at, name), ""));
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &schema.items {
                let known = elements_before(schema, old);
                for (index, item) in list.iter().enumerate() {
                    let old = match known.is_empty() {
                        true => None,
                        false => identity(schema, item).and_then(|key| known.get(&key).copied()),
                    };
                    check_value(items, item, old, &format!("{at}[{index}]"), causes);
                }
            }
        }
        _ => {}
    }
}

fn below(at: &str, name: &str) -> String {
    if at.is_empty() {
        shortened(name).to_owned()
    } else {
        format!("{at}.{}", shortened(name))
    }
}

fn fits(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Any => true,
        Kind::Object => value.is_object(),
        Kind::Array => value.is_array(),
        Kind::String => value.is_string(),
        Kind::Integer => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        Kind::Number => value.is_number(),
        Kind::Boolean => value.is_boolean(),
        Kind::IntOrString => value.is_string() || value.is_i64() || value.is_u64(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn mistyped(kind: Kind, value: &Value, at: &str) -> Cause {
    let wanted = match kind {
        Kind::Any => "any",
        Kind::Object => "object",
        Kind::Array => "array",
        Kind::String => "string",
        Kind::Integer => "integer",
        Kind::Number => "number",
        Kind::Boolean => "boolean",
        Kind::IntOrString => "integer,string",
    };
    let found = type_name(value);
    let why = format!("{at} in body must be of type {wanted}: {found:?}");
    let cause = Cause::invalid(at, &json!(found), &why);
    Cause {
        reason: "FieldValueTypeInvalid",
        ..cause
    }
}

fn check_rules(schema: &Structural, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    let rules = &schema.rules;
    let invalid = |causes: &mut Vec<Cause>, why: String| {
        causes.push(Cause::invalid(at, value, &format!("{at} in body {why}")));
    };
    if let Some(number) = value.as_f64() {
        if let Some((least, exclusive)) = rules.minimum
            && (number < least || (exclusive && number <= least))
        {
            let or_equal = if exclusive { "" } else { " or equal to" };
            invalid(causes, format!("should be greater than{or_equal} {least}"));
        }
        if let Some((most, exclusive)) = rules.maximum
            && (number > most || (exclusive && number >= most))
        {
            let or_equal = if exclusive { "" } else { " or equal to" };
            invalid(causes, format!("should be less than{or_equal} {most}"));
        }
        if let Some(unit) = rules.multiple_of.filter(|unit| *unit != 0.0)
            && (number / unit).fract() != 0.0
        {
            invalid(causes, format!("should be a multiple of {unit}"));
        }
    }
    if let Value::String(text) = value {
        // Only the first error of a text is reported.
        let length = text.chars().count() as u64;
        if let Some(most) = rules.max_length.filter(|most| length > *most) {
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            causes.push(Cause::too_long(at, most));
        } else if let Some(least) = rules.min_length.filter(|least| length < *least) {
            invalid(causes, format!("should be at least {least} chars long"));
        } else if let Some(pattern) = rules.pattern.as_ref().filter(|p| !p.is_match(text)) {
            let pattern = shortened(pattern.as_str());
            invalid(causes, format!("should match '{pattern}'"));
        }
        if let Some(format) = rules.format.as_deref().filter(|f| !has_format(f, text)) {
            let why = format!("{at} in body must be of type {format}: {text:?}");
            causes.push(Cause {
                reason: "FieldValueTypeInvalid",
                ..Cause::invalid(at, value, &why)
            });
        }
    }
    let items = value.as_array().map(|list| list.len() as u64);
    if let (Some(least), Some(items)) = (rules.min_items, items)
        && items < least
    {
        invalid(causes, format!("should have at least {least} items"));
    }
    let members = value.as_object().map(|map| map.len() as u64);
    if let (Some(least), Some(members)) = (rules.min_properties, members)
        && members < least
    {
        invalid(causes, format!("should have at least {least} properties"));
    }
    for (found, most, what) in [
        (items, rules.max_items, "items"),
        (members, rules.max_properties, "items"),
    ] {
        if let (Some(found), Some(most)) = (found, most)
            && found > most
        {
            causes.push(Cause {
                reason: "FieldValueTooMany",
                message: format!("Too many: {found}: must have at most {most} {what}"),
                field: at.to_owned(),
            });
        }
    }
    if let Some(allowed) = &rules.allowed
        && !allowed.contains(value)
    {
        let texts: Vec<String> = allowed
            .values
            .iter()
            .map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        causes.push(Cause::unsupported(at, value, &texts));
    }
    check_alternatives(schema, value, at, causes);
}

fn check_alternatives(schema: &Structural, value: &Value, at: &str, causes: &mut Vec<Cause>) {
    let rules = &schema.rules;
    let holds = |inner: &Structural| {
        let mut found = Vec::new();
        check_value(inner, value, None, at, &mut found);
        found.is_empty()
    };
    for inner in &rules.all_of {
        check_value(inner, value, None, at, causes);
    }
    let invalid = |causes: &mut Vec<Cause>, why: &str| {
        // The real server reports `<nil>` as the path here.
        causes.push(Cause::invalid(
            "<nil>",
            &json!(""),
            &format!("{at:?} {why}"),
        ));
    };
    if !rules.any_of.is_empty() && !rules.any_of.iter().any(holds) {
        invalid(causes, "must validate at least one schema (anyOf)");
    }
    if !rules.one_of.is_empty() {
        let matching = rules.one_of.iter().filter(|inner| holds(inner)).count();
        if matching != 1 {
            let why = format!(
                "must validate one and only one schema (oneOf). Found {}",
                if matching == 0 {
                    "none valid".to_owned()
                } else {
                    format!("{matching} valid alternatives")
                }
            );
            invalid(causes, &why);
            if let Some(first) = rules.one_of.first().filter(|_| matching == 0) {
                check_value(first, value, None, at, causes);
            }
        }
    }
    if rules.not.as_deref().is_some_and(holds) {
        invalid(causes, "must not validate the schema (not)");
    }
}

fn check_unique(schema: &Structural, list: &[Value], at: &str, causes: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (index, item) in list.iter().enumerate() {
        let field = format!("{at}[{index}]");
        let Some(identity) = identity(schema, item) else {
            continue;
        };
        let shown = match &schema.list {
            ListKind::Map(_) => serde_json::from_str(&identity).unwrap_or_default(),
            _ => item.clone(),
        };
        if !seen.insert(identity) && causes.len() <= MOST_FOUND {
            causes.push(Cause::duplicate(field, &shown));
        }
    }
}

/// Returns the identity of an element within its set or map.
fn identity(schema: &Structural, item: &Value) -> Option<String> {
    match &schema.list {
        ListKind::Atomic => None,
        ListKind::Set => Some(item.to_string()),
        ListKind::Map(keys) => {
            let defaults = |key: &str| {
                let items = schema.items.as_ref()?;
                items.properties.get(key)?.default.clone()
            };
            let element = keyed(item, keys.iter().map(String::as_str), defaults);
            let element = element.ok()?;
            Some(element.trim_start_matches("k:").to_owned())
        }
    }
}

/// Returns the path element of an element that is identified by keys.
pub(crate) fn keyed<'a>(
    item: &Value,
    keys: impl Iterator<Item = &'a str>,
    default: impl Fn(&str) -> Option<Value>,
) -> Result<String, String> {
    let Value::Object(map) = item else {
        return Err("associative list with keys may not have non-map elements".to_owned());
    };
    let mut found = Map::new();
    let mut names = Vec::new();
    for key in keys {
        if let Some(value) = map.get(key).cloned().or_else(|| default(key)) {
            found.insert(key.to_owned(), value);
        }
        names.push(key);
    }
    if found.is_empty() {
        return Err(format!(
            "associative list with keys has an element that omits all key fields {names:?} (and \
             doesn't have default values for any key fields)"
        ));
    }
    Ok(format!("k:{}", Value::Object(found)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_invalid_parts_are_accepted() {
        let schema = json!({"type": "object", "required": ["must"], "properties": {"spec":
            {"type": "object", "required": ["must"], "properties": {
            "n": {"type": "integer", "maximum": 1}, "o": {"type": "integer", "maximum": 1},
            "l": {"type": "array", "items": {"type": "integer", "maximum": 1}},
            "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"},
                    "v": {"type": "integer", "maximum": 1}}}}}}}});
        let schema = Structural::root(&schema);
        let old = json!({"metadata": {"name": "x"}, "spec": {"n": 5, "l": [5],
            "m": [{"k": "a", "v": 5}, {"k": "b", "v": 5}]}});
        let changed = |change: &dyn Fn(&mut Value)| {
            let (mut new, mut causes) = (old.clone(), Vec::new());
            change(&mut new);
            check_change(&schema, &old, &new, &mut causes);
            causes.into_iter().map(|c| c.field).collect::<Vec<_>>()
        };
        assert_eq!(changed(&|new| new["metadata"] = json!({})), [""; 0]);
        let found = changed(&|new| new["spec"]["o"] = json!(5));
        assert_eq!(found, ["spec.o", "spec.must", "must"]);
        let found = changed(&|new| {
            let list = new["spec"]["m"].as_array_mut().expect("list");
            list.swap(0, 1);
            list[0]["v"] = json!(6);
        });
        assert_eq!(found, ["spec.m[0].v", "spec.must", "must"]);
        let found = changed(&|new| new["spec"]["l"] = json!([5, 1]));
        assert_eq!(
            found,
            ["spec.l[0]", "spec.must", "must"],
            "elements have no names"
        );
    }

    fn problems(schema: &Value, value: &Value) -> Vec<(String, &'static str)> {
        let mut causes = Vec::new();
        check(&Structural::root(schema), value, &mut causes);
        causes.into_iter().map(|c| (c.field, c.reason)).collect()
    }

    #[test]
    fn every_violation_is_reported_with_its_reason() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
            "required": ["must"], "properties": {
            "n": {"type": "integer", "minimum": 1, "multipleOf": 2},
            "s": {"type": "string", "maxLength": 2, "pattern": "^a"},
            "t": {"type": "string", "format": "date-time"},
            "e": {"type": "string", "enum": ["x"]},
            "l": {"type": "array", "maxItems": 1, "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string", "default": "d"}}}},
            "o": {"x-kubernetes-int-or-string": true},
            "one": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
            "b": {"type": "boolean"}}}}});
        let bad = json!({"spec": {"n": -3, "s": "bcd", "t": "no", "e": "y", "l": ["a", "a"],
            "m": [{"k": "d"}, {}], "o": true, "one": {}, "b": null}});
        assert_eq!(
            problems(&schema, &bad),
            [
                ("spec.b", "FieldValueTypeInvalid"),
                ("spec.e", "FieldValueNotSupported"),
                ("spec.l", "FieldValueTooMany"),
                ("spec.n", "FieldValueInvalid"),
                ("spec.n", "FieldValueInvalid"),
                ("spec.o", "FieldValueTypeInvalid"),
                ("<nil>", "FieldValueInvalid"),
                ("spec.one.a", "FieldValueRequired"),
                ("spec.s", "FieldValueTooLong"),
                ("spec.t", "FieldValueTypeInvalid"),
                ("spec.must", "FieldValueRequired"),
                ("spec.l[1]", "FieldValueDuplicate"),
                ("spec.m[1]", "FieldValueDuplicate"),
            ]
            .map(|(field, reason)| (field.to_owned(), reason))
        );
        let good = json!({"spec": {"must": 1, "n": 4, "s": "ab", "t": "2026-01-01T00:00:00Z", "e": "x",
            "l": ["a"], "m": [{"k": "1"}, {}], "o": "5%", "one": {"a": ""}}});
        assert_eq!(problems(&schema, &good), []);
    }
}
