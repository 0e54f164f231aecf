//! Checks whether a schema is structural: every value has a type, and `allOf`, `anyOf`, `oneOf` and `not` only restrict
//! values.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::pattern;
use super::schema::members;
use crate::status::{Cause, MOST_FOUND, shortened};

/// The position of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

/// Finds the violations of the structural rules, in the order of the real server.
pub(super) fn check(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let before = causes.len();
    forbidden(schema, at, causes);
    if let Some(metadata) = schema.pointer("/properties/metadata")
        && metadata.get("default").is_some()
    {
        let field = format!("{at}.properties[metadata].default");
        causes.push(Cause::forbidden(
            field,
            "must not be set in top-level metadata",
        ));
    }
    if causes.len() > before {
        return;
    }
    let mut found = Vec::new();
    walk(schema, Level::Root, at, &mut found);
    found.sort_by(|a, b| (&a.field, &a.message).cmp(&(&b.field, &b.message)));
    found.dedup();
    causes.extend(found);
}

/// Whether a schema contains a default.
pub(super) fn has_default(schema: &Value) -> bool {
    schema.get("default").is_some()
        || inner_schemas(schema, "").any(|(inner, _)| has_default(inner))
}

/// Reports members of JSON schema that definitions must not use.
fn forbidden(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let refuse = |causes: &mut Vec<Cause>, member: &str, why: &str| {
        causes.push(Cause::forbidden(format!("{at}.{member}"), why));
    };
    if schema.get("uniqueItems") == Some(&json!(true)) {
        let why =
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        refuse(causes, "uniqueItems", why);
    }
    let additional = schema.get("additionalProperties");
    if additional.is_some_and(|additional| *additional != json!(true))
        && members(schema, "properties").is_some()
    {
        let why = "additionalProperties and properties are mutual exclusive";
        refuse(causes, "additionalProperties", why);
    }
    for (member, shown) in [
        ("$ref", "$ref"),
        ("definitions", "definitions"),
        ("dependencies", "dependencies"),
        ("id", "id"),
        ("patternProperties", "patternProperties"),
        ("additionalItems", "additionalItems"),
    ] {
        if schema.get(member).is_some_and(|value| !value.is_null()) {
            refuse(causes, member, &format!("{shown} is not supported"));
        }
    }
    if schema.get("items").is_some_and(Value::is_array) {
        refuse(
            causes,
            "items",
            "items must be a schema object and not an array",
        );
    }
    let kind = schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let known = ["array", "boolean", "integer", "number", "object", "string"];
    if !kind.is_empty() && !known.contains(&kind) {
        let field = format!("{at}.type");
        causes.push(Cause::unsupported(field, &json!(kind), &known));
    }
    if kind == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        refuse(causes, "type", why);
    }
    let map = schema.get("x-kubernetes-map-type").and_then(Value::as_str);
    let known = ["atomic", "granular"];
    if let Some(map) = map.filter(|map| !known.contains(map)) {
        let field = format!("{at}.x-kubernetes-map-type");
        causes.push(Cause::unsupported(field, &json!(map), &known));
    }
    list_rules(schema, at, causes);
    expression_rules(schema, at, causes);
    for (inner, place) in inner_schemas(schema, at) {
        if causes.len() > MOST_FOUND {
            return;
        }
        forbidden(inner, &place, causes);
    }
}

/// Validates the members of CEL rules other than the expressions, which are stored without evaluation.
fn expression_rules(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let rules = schema
        .get("x-kubernetes-validations")
        .and_then(Value::as_array);
    for (index, rule) in rules.into_iter().flatten().enumerate() {
        let at = format!("{at}.x-kubernetes-validations[{index}]");
        let text = |name: &str| rule.get(name).and_then(Value::as_str).unwrap_or_default();
        let blank = |name: &str| text(name).trim().is_empty();
        let breaks = |name: &str| text(name).trim().contains('\n');
        let invalid =
            |name: &str, why: &str| Cause::invalid(format!("{at}.{name}"), &json!(text(name)), why);
        let given = "must be non-empty if specified";
        if blank("rule") {
            let field = format!("{at}.rule");
            causes.push(Cause::required(field, "rule is not specified"));
        } else if !text("message").is_empty() && blank("message") {
            causes.push(invalid("message", given));
        } else if breaks("message") {
            causes.push(invalid("message", "must not contain line breaks"));
        } else if breaks("rule") && blank("message") {
            let why = "message must be specified if rule contains line breaks";
            causes.push(Cause::required(format!("{at}.message"), why));
        }
        if !text("messageExpression").is_empty() && blank("messageExpression") {
            let why = format!("messageExpression {given}");
            let field = format!("{at}.messageExpression");
            causes.push(Cause::required(field, &why));
        }
        let known = [
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ];
        if let Some(reason) = rule
            .get("reason")
            .filter(|_| !known.contains(&text("reason")))
        {
            causes.push(Cause::unsupported(format!("{at}.reason"), reason, &known));
        }
        if !text("fieldPath").is_empty() && blank("fieldPath") {
            causes.push(invalid("fieldPath", given));
        }
    }
}

fn list_rules(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let text = |name: &str| schema.get(name).and_then(Value::as_str).unwrap_or_default();
    let list = text("x-kubernetes-list-type");
    let keys = schema
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array);
    let keys = keys.map(Vec::as_slice).unwrap_or_default();
    let known = ["atomic", "set", "map"];
    if !list.is_empty() {
        if text("type") != "array" {
            let why = "must be array if x-kubernetes-list-type is specified";
            causes.push(Cause::invalid(
                format!("{at}.type"),
                &json!(text("type")),
                why,
            ));
        }
        if !known.contains(&list) {
            let field = format!("{at}.x-kubernetes-list-type");
            causes.push(Cause::unsupported(field, &json!(list), &known));
        }
    }
    let item = schema.get("items").unwrap_or(&Value::Null);
    let item_text = |name: &str| item.get(name).and_then(Value::as_str).unwrap_or_default();
    for (kind, marker) in [
        ("object", "x-kubernetes-map-type"),
        ("array", "x-kubernetes-list-type"),
    ] {
        let marked = match item_text(marker) {
            "" => kind == "array",
            mark => mark == "atomic",
        };
        if list == "set" && item_text("type") == kind && !marked {
            let value = item.get(marker).unwrap_or(&Value::Null);
            let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
            causes.push(Cause::invalid(format!("{at}.items.{marker}"), value, why));
        }
    }
    let field = format!("{at}.x-kubernetes-list-map-keys");
    if list == "map" && keys.is_empty() {
        let why = "must not be empty if x-kubernetes-list-type is map";
        causes.push(Cause::required(field, why));
    } else if list != "map" && !keys.is_empty() {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        let field = format!("{at}.x-kubernetes-list-type");
        causes.push(if list.is_empty() {
            Cause::required(field, why)
        } else {
            Cause::invalid(field, &json!(list), why)
        });
    } else if list == "map" {
        let items = schema.get("items").unwrap_or(&Value::Null);
        let required = items.get("required").and_then(Value::as_array);
        let required: HashSet<&Value> = required.into_iter().flatten().collect();
        let all_keys = json!(keys);
        for key in keys {
            let name = key.as_str().unwrap_or_default();
            let Some(property) = items.pointer(&format!("/properties/{name}")) else {
                let why = "entries must all be names of item properties";
                causes.push(Cause::invalid(field.clone(), &all_keys, why));
                continue;
            };
            let is_required = required.contains(key);
            if property.get("default").is_none() && !is_required {
                let why = "this property is in x-kubernetes-list-map-keys, so it must have a default \
                           or be a required property";
                let field = format!("{at}.items.properties[{name}].default");
                causes.push(Cause::required(field, why));
            }
        }
    }
}

/// Returns the schemas inside a schema that describe separate values.
fn inner_schemas<'a>(schema: &'a Value, at: &'a str) -> impl Iterator<Item = (&'a Value, String)> {
    let properties = members(schema, "properties").into_iter().flatten();
    let properties = properties
        .map(move |(name, inner)| (inner, format!("{at}.properties[{}]", shortened(name))));
    let others = ["additionalProperties", "items"].into_iter();
    let others = others.filter_map(move |member| {
        let inner = schema.get(member).filter(|inner| inner.is_object())?;
        Some((inner, format!("{at}.{member}")))
    });
    properties.chain(others)
}

fn walk(schema: &Value, level: Level, at: &str, causes: &mut Vec<Cause>) {
    let flag = |name: &str| schema.get(name) == Some(&json!(true));
    let kind = schema
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let int_or_string = flag("x-kubernetes-int-or-string");
    let preserve = flag("x-kubernetes-preserve-unknown-fields");
    let embedded = flag("x-kubernetes-embedded-resource");
    if kind == "array" && schema.get("items").is_none() {
        causes.push(Cause::required(format!("{at}.items"), "must be specified"));
    }
    if level == Level::Root && schema.get("additionalProperties").is_some() {
        let why = "must not be used at the root";
        causes.push(Cause::forbidden(format!("{at}.additionalProperties"), why));
    }
    for (inner, place) in inner_schemas(schema, at) {
        if causes.len() > MOST_FOUND {
            return;
        }
        let below = if place.ends_with(".items") {
            Level::Item
        } else {
            Level::Field
        };
        walk(inner, below, &place, causes);
    }
    if int_or_string && preserve {
        let why = "must be false if x-kubernetes-int-or-string is true";
        let field = format!("{at}.x-kubernetes-preserve-unknown-fields");
        causes.push(Cause::invalid(field, &json!(true), why));
    }
    let field = format!("{at}.type");
    if embedded && kind != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        causes.push(if kind.is_empty() {
            Cause::required(field.clone(), why)
        } else {
            Cause::invalid(field.clone(), &json!(kind), why)
        });
    } else if kind.is_empty() && !int_or_string && !preserve {
        let place = match level {
            Level::Root => "at the root",
            Level::Field => "for specified object fields",
            Level::Item => "for specified array items",
        };
        let why = format!("must not be empty {place}");
        causes.push(Cause::required(field.clone(), &why));
    }
    if embedded && !preserve && members(schema, "properties").is_none() {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without \
                   x-kubernetes-preserve-unknown-fields";
        causes.push(Cause::required(format!("{at}.properties"), why));
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        causes.push(Cause::invalid(
            field,
            &json!(kind),
            "must be object at the root",
        ));
    }
    if let Some(metadata) = schema.pointer("/properties/metadata")
        && level == Level::Root
    {
        metadata_only_names(metadata, &format!("{at}.properties[metadata]"), causes);
    }
    nested(schema, int_or_string, at, causes);
    let pattern = schema
        .get("pattern")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if let Err(error) = pattern::compile(pattern) {
        let why = format!("must be a valid regular expression, but isn't: {error}");
        causes.push(Cause::invalid(
            format!("{at}.pattern"),
            &json!(pattern),
            &why,
        ));
    }
}

/// Reports restrictions of the metadata of the root, except of `name` and `generateName`.
fn metadata_only_names(metadata: &Value, at: &str, causes: &mut Vec<Cause>) {
    let mut rest = metadata.clone();
    if let Some(map) = rest.as_object_mut() {
        map.remove("type");
        map.remove("description");
        let names = map.get("properties").and_then(Value::as_object);
        if names.is_some_and(|names| {
            names
                .keys()
                .all(|name| name == "name" || name == "generateName")
        }) {
            map.remove("properties");
        }
    }
    if rest.as_object().is_some_and(|map| !map.is_empty()) {
        let why = "must not specify anything other than name and generateName, but metadata is \
                   implicitly specified";
        causes.push(Cause::forbidden(at, why));
    }
}

/// Checks alternatives (`allOf` and similar): they may restrict values, but types and defaults belong to the enclosing
/// schema.
fn nested(schema: &Value, int_or_string: bool, at: &str, causes: &mut Vec<Cause>) {
    for member in ["allOf", "anyOf", "oneOf"] {
        let list = schema.get(member).and_then(Value::as_array);
        for (index, inner) in list.into_iter().flatten().enumerate() {
            // An int-or-string schema contains alternatives of its two types.
            let pattern = int_or_string && member != "oneOf";
            restricts_only(inner, pattern, &format!("{at}.{member}[{index}]"), causes);
        }
    }
    if let Some(inner) = schema.get("not") {
        restricts_only(inner, false, &format!("{at}.not"), causes);
    }
}

fn restricts_only(schema: &Value, typed: bool, at: &str, causes: &mut Vec<Cause>) {
    for (member, what) in [
        ("type", "empty"),
        ("additionalProperties", "undefined"),
        ("default", "undefined"),
        ("title", "empty"),
        ("description", "empty"),
        ("nullable", "false"),
    ] {
        if schema.get(member).is_some() && !(typed && member == "type") {
            let why = format!("must be {what} to be structural");
            causes.push(Cause::forbidden(format!("{at}.{member}"), &why));
        }
    }
    for (inner, place) in inner_schemas(schema, at) {
        if !place.ends_with(".additionalProperties") {
            restricts_only(inner, false, &place, causes);
        }
    }
    nested(schema, typed, at, causes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(schema: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        check(schema, "s", &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn violations_of_structural_rules_are_reported() {
        assert_eq!(fields(&json!({})), ["s.type"]);
        assert_eq!(
            fields(&json!({"type": "array", "items": {}})),
            ["s.items.type", "s.type"]
        );
        assert_eq!(
            fields(
                &json!({"type": "object", "properties": {"a": {"items": {"type": "string"}},
                "b": {"type": "array"}, "c": {"type": "string", "pattern": "("},
                "d": {"type": "object", "oneOf": [{"type": "string"}]},
                "metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}})
            ),
            [
                "s.properties[a].type",
                "s.properties[b].items",
                "s.properties[c].pattern",
                "s.properties[d].oneOf[0].type",
                "s.properties[metadata]",
            ]
        );
        assert_eq!(
            fields(&json!({"type": "object", "properties": {
                "p": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                "q": {"x-kubernetes-preserve-unknown-fields": true},
                "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}}}}})),
            [""; 0]
        );
    }

    #[test]
    fn incomplete_validation_rules_are_reported() {
        let rules = |rules: Value| json!({"type": "object", "x-kubernetes-validations": rules});
        let good =
            json!([{"rule": "self.a > 1", "message": "too small", "reason": "FieldValueInvalid"}]);
        assert_eq!(fields(&rules(good)), [""; 0]);
        let bad = json!([{"rule": " "}, {"rule": "a", "message": " "}, {"rule": "a\nb"},
            {"rule": "a", "reason": "Why"}, {"rule": "a", "messageExpression": " "}]);
        let at = "s.x-kubernetes-validations";
        let wanted = [
            format!("{at}[0].rule"),
            format!("{at}[1].message"),
            format!("{at}[2].message"),
            format!("{at}[3].reason"),
            format!("{at}[4].messageExpression"),
        ];
        assert_eq!(fields(&rules(bad)), wanted);
    }

    #[test]
    fn lists_that_are_maps_have_keys() {
        let list = |keys: Value, items: Value| {
            json!({"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": keys, "items": items}}})
        };
        let item = json!({"type": "object", "properties": {"k": {"type": "string"}}});
        let at = "s.properties[l]";
        assert_eq!(
            fields(&list(json!([]), item.clone())),
            [format!("{at}.x-kubernetes-list-map-keys")]
        );
        assert_eq!(
            fields(&list(json!(["x"]), item.clone())),
            [format!("{at}.x-kubernetes-list-map-keys")]
        );
        assert_eq!(
            fields(&list(json!(["k"]), item)),
            [format!("{at}.items.properties[k].default")]
        );
    }
}
