//! CustomResourceDefinition: defaults, validation and status.

use std::borrow::Cow;
use std::collections::HashSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::path::Path;
use super::schema::Structural;
use super::{approval, structural, value};
use crate::json::{items, text};
use crate::names;
use crate::status::{Cause, shortened};
use crate::timestamp::rfc3339;

/// Maximum number of selectable fields.
const SELECTABLE: usize = 8;

pub(crate) fn default_definition(definition: &mut Value) {
    let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let conversion = spec.entry("conversion").or_insert(Value::Null);
    if conversion.is_null() {
        *conversion = json!({"strategy": "None"});
    }
    let names = spec.entry("names").or_insert_with(|| json!({}));
    let kind = text(names, "/kind").to_owned();
    let Some(names) = names.as_object_mut() else {
        return;
    };
    let mut fill = |name: &str, value: String| {
        if names
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .is_empty()
            && !value.is_empty()
        {
            names.insert(name.to_owned(), json!(value));
        }
    };
    fill("singular", kind.to_lowercase());
    if !kind.is_empty() {
        fill("listKind", format!("{kind}List"));
    }
}

/// Prepares a new definition. It is established immediately unless another definition owns one of its names.
pub(crate) fn prepare_definition(definition: &mut Value) {
    definition["status"] = json!({});
    update_status(definition, None);
}

/// Updates the status for the spec. `taken` describes a name that another definition owns.
pub(crate) fn update_status(definition: &mut Value, taken: Option<&str>) {
    let names = definition
        .pointer("/spec/names")
        .cloned()
        .unwrap_or_default();
    note_storage(definition);
    approval::note(definition);
    let status = &mut definition["status"];
    if taken.is_none() {
        status["acceptedNames"] = names;
    } else if status.get("acceptedNames").is_none() {
        status["acceptedNames"] = json!({"plural": "", "kind": ""});
    }
    match taken {
        None => {
            set_condition(
                status,
                "NamesAccepted",
                "True",
                "NoConflicts",
                "no conflicts found",
            );
            let message = "the initial names have been accepted";
            set_condition(
                status,
                "Established",
                "True",
                "InitialNamesAccepted",
                message,
            );
        }
        Some(name) => {
            let message = in_use(name);
            set_condition(status, "NamesAccepted", "False", "NamesConflict", &message);
            let established = is_established(definition);
            let status = &mut definition["status"];
            if !established {
                let message = "not all names are accepted";
                set_condition(status, "Established", "False", "NotAccepted", message);
            }
        }
    }
}

/// Adds the current storage version to `status.storedVersions`.
pub(crate) fn note_storage(definition: &mut Value) {
    let versions = items(definition, "/spec/versions");
    let storage = versions.iter().find(|version| version["storage"] == true);
    let storage = storage.map(|version| version["name"].clone());
    if !definition["status"].is_object() {
        definition["status"] = json!({});
    }
    let stored = &mut definition["status"]["storedVersions"];
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let (Some(list), Some(storage)) = (stored.as_array_mut(), storage)
        && !list.contains(&storage)
    {
        list.push(storage);
    }
}

/// Returns the message about a name that another definition owns.
pub(crate) fn in_use(name: &str) -> String {
    format!("{name:?} is already in use")
}

/// Returns the reason for which the names of a definition were refused.
pub(crate) fn refusal(definition: &Value) -> Option<&str> {
    let refused = items(definition, "/status/conditions")
        .iter()
        .find(|condition| condition["type"] == "NamesAccepted" && condition["status"] == "False");
    refused.map(|condition| text(condition, "/message"))
}

/// Whether another definition owns one of its names.
fn is_refused(definition: &Value) -> bool {
    refusal(definition).is_some()
}

/// Returns the definition with its accepted names instead of the requested ones.
pub(crate) fn accepted(definition: &Value) -> Cow<'_, Value> {
    let names = definition.pointer("/status/acceptedNames");
    match names.filter(|_| is_refused(definition)) {
        Some(names) => {
            let mut definition = definition.clone();
            definition["spec"]["names"] = names.clone();
            Cow::Owned(definition)
        }
        None => Cow::Borrowed(definition),
    }
}

/// Sets a condition. Its transition time changes only if its status changes.
pub(crate) fn set_condition(
    status: &mut Value,
    kind: &str,
    state: &str,
    reason: &str,
    message: &str,
) {
    let list = &mut status["conditions"];
    if !list.is_array() {
        *list = json!([]);
    }
    let Some(list) = list.as_array_mut() else {
        return;
    };
    let at = list.iter().position(|condition| condition["type"] == kind);
    let since = at
        .filter(|at| list[*at]["status"] == state)
        .map(|at| list[at]["lastTransitionTime"].clone());
    let condition = json!({"type": kind, "status": state, "reason": reason, "message": message,
        "lastTransitionTime": since.unwrap_or_else(|| json!(rfc3339(Timestamp::now())))});
    match at {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
}

/// Whether objects of the kind are served.
pub(crate) fn is_established(definition: &Value) -> bool {
    items(definition, "/status/conditions")
        .iter()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

pub(crate) fn validate_definition(definition: &Value, causes: &mut Vec<Cause>) {
    // The patterns are compiled below, so their total cost is checked first.
    if !super::pattern::check_all(definition, causes) {
        return;
    }
    let spec = definition.get("spec").unwrap_or(&Value::Null);
    let (group, plural) = (text(spec, "/group"), text(spec, "/names/plural"));
    let name = text(definition, "/metadata/name");
    if name != format!("{plural}.{group}") {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &json!(name), why));
    }
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else {
        let problems = names::dns1123_subdomain(group);
        if !problems.is_empty() {
            causes.push(Cause::invalid(
                "spec.group",
                &json!(group),
                &problems.join(","),
            ));
        } else if !group.contains('.') {
            let why = "should be a domain with at least one dot";
            causes.push(Cause::invalid("spec.group", &json!(group), why));
        }
    }
    let scope = text(spec, "/scope");
    let known = ["Cluster", "Namespaced"];
    if scope.is_empty() {
        causes.push(Cause::required("spec.scope", ""));
    } else if !known.contains(&scope) {
        causes.push(Cause::unsupported("spec.scope", &json!(scope), &known));
    }
    if spec.get("preserveUnknownFields") == Some(&json!(true)) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                   spec.versions[*].schema instead";
        causes.push(Cause::invalid(
            "spec.preserveUnknownFields",
            &json!(true),
            why,
        ));
        let schemas = items(spec, "/versions").iter();
        if schemas
            .filter_map(|version| version.pointer("/schema/openAPIV3Schema"))
            .any(structural::has_default)
        {
            let why = "must be false in order to use defaults in the schema";
            let field = "spec.preserveUnknownFields";
            causes.push(Cause::invalid(field, &json!(true), why));
        }
    }
    validate_versions(spec, causes);
    validate_names(spec, causes);
    let strategy = text(spec, "/conversion/strategy");
    let known = ["None", "Webhook"];
    if !known.contains(&strategy) {
        let field = "spec.conversion.strategy";
        causes.push(Cause::unsupported(field, &json!(strategy), &known));
    } else if strategy == "Webhook" && spec.pointer("/conversion/webhook/clientConfig").is_none() {
        let why = "required when strategy is set to Webhook";
        causes.push(Cause::required("spec.conversion.webhookClientConfig", why));
    }
    if strategy == "Webhook"
        && items(spec, "/conversion/webhook/conversionReviewVersions").is_empty()
    {
        let field = "spec.conversion.conversionReviewVersions";
        causes.push(Cause::required(field, ""));
    }
    validate_stored_versions(definition, causes);
    approval::validate(definition, group, causes);
}

fn validate_stored_versions(definition: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "status.storedVersions";
    let stored = items(definition, "/status/storedVersions");
    if stored.is_empty() {
        let why = "must have at least one stored version";
        causes.push(Cause::invalid(FIELD, &Value::Null, why));
    }
    let mut missing: Vec<&Value> = stored.iter().collect();
    for version in items(definition, "/spec/versions") {
        let name = &version["name"];
        let known = missing.iter().position(|stored| *stored == name);
        match known {
            Some(at) => _ = missing.remove(at),
            None if version["storage"] == true => {
                let why = format!("must have the storage version {}", text(version, "/name"));
                causes.push(Cause::invalid(FIELD, &json!(stored), &why));
            }
            None => {}
        }
    }
    for (index, name) in stored
        .iter()
        .enumerate()
        .filter(|(_, name)| missing.contains(name))
    {
        let version = name.as_str().unwrap_or_default();
        let why = format!(
            "missing from spec.versions; {version} was previously a storage version, and must \
             remain in spec.versions until a storage migration ensures no data remains persisted in \
             {version} and removes {version} from status.storedVersions"
        );
        causes.push(Cause::invalid(format!("{FIELD}[{index}]"), name, &why));
    }
}

fn validate_versions(spec: &Value, causes: &mut Vec<Cause>) {
    let versions = items(spec, "/versions");
    let schema = |version: &Value| version.pointer("/schema/openAPIV3Schema").cloned();
    for (index, version) in versions.iter().enumerate() {
        if schema(version).is_none() {
            let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
            causes.push(Cause::required(field, ""));
        }
    }
    // Schemas that are equal in all versions were once written at the top level, and errors still report that path.
    let same = |member: &dyn Fn(&Value) -> Option<Value>| {
        let first = versions.first().map(member);
        versions
            .iter()
            .all(|version| Some(member(version)) == first)
    };
    let same_schema = same(&schema);
    let same_columns = same(&|version| version.get("additionalPrinterColumns").cloned());
    let same_fields = same(&|version| version.get("selectableFields").cloned());
    let same_subresources = same(&|version| version.get("subresources").cloned());
    let mut seen = HashSet::new();
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = text(version, "/name");
        let problems = names::dns1035_label(name);
        if !problems.is_empty() {
            let field = format!("{at}.name");
            let why = problems.join(",");
            causes.push(Cause::invalid(field, &json!(name), &why));
            if index == 0 {
                // The first version was once the only one, and errors still report its field.
                causes.push(Cause::invalid("spec.version", &json!(name), &why));
            }
        }
        let first = index == 0;
        let place = |same: bool, hoisted: &str, own: &str| {
            if same {
                hoisted.to_owned()
            } else {
                format!("{at}.{own}")
            }
        };
        if let Some(schema) = schema(version).filter(|_| first || !same_schema) {
            let at = place(same_schema, "spec.validation", "schema");
            let at = format!("{at}.openAPIV3Schema");
            let root = text(&schema, "/type");
            let status = version.pointer("/subresources/status");
            if status.is_some_and(|it| !it.is_null()) && !matches!(root, "" | "object") {
                let why = "only \"object\" is allowed as the type at the root of the schema if the \
                           status subresource is enabled";
                causes.push(Cause::invalid(format!("{at}.type"), &json!(root), why));
            }
            validate_schema(&schema, &at, causes);
        }
        if first || !same_subresources {
            let at = place(same_subresources, "spec.subresources", "subresources");
            validate_scale(version.pointer("/subresources/scale"), &at, causes);
        }
        if first || !same_columns {
            let at = place(
                same_columns,
                "spec.additionalPrinterColumns",
                "additionalPrinterColumns",
            );
            for (index, column) in items(version, "/additionalPrinterColumns")
                .iter()
                .enumerate()
            {
                validate_column(column, &format!("{at}[{index}]"), causes);
            }
        }
        if first || !same_fields {
            let at = place(same_fields, "spec.selectableFields", "selectableFields");
            validate_selectable(version, &at, causes);
        }
        if !seen.insert(name) {
            let why = "must contain unique version names";
            causes.push(Cause::invalid("spec.versions", &json!(name), why));
        }
    }
    if versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count()
        != 1
    {
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", &json!(versions), why));
    }
}

fn validate_schema(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let before = causes.len();
    structural::check(schema, at, causes);
    if causes.len() == before {
        validate_defaults(schema, at, causes);
    }
}

/// Validates defaults: each must match its schema and contain no unknown fields.
fn validate_defaults(schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    if let Some(default) = schema.get("default") {
        let compiled = Structural::root(&json!({"properties": {"default": schema}}));
        let mut object = json!({"default": default});
        let mut found = Vec::new();
        value::check(&compiled, &object, &mut found);
        for mut cause in found {
            cause.field = format!("{at}.{}", cause.field);
            causes.push(cause);
        }
        let mut unknown = Vec::new();
        compiled.prune(&mut object, "", &mut unknown);
        if !unknown.is_empty() {
            let why = "must not have unknown fields";
            causes.push(Cause::invalid(format!("{at}.default"), default, why));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, inner) in properties.into_iter().flatten() {
        let name = shortened(name);
        validate_defaults(inner, &format!("{at}.properties[{name}]"), causes);
    }
    for member in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get(member).filter(|inner| inner.is_object()) {
            validate_defaults(inner, &format!("{at}.{member}"), causes);
        }
    }
}

fn validate_scale(scale: Option<&Value>, at: &str, causes: &mut Vec<Cause>) {
    let Some(scale) = scale.filter(|scale| !scale.is_null()) else {
        return;
    };
    let cases: [(&str, &[&str], &str); 3] = [
        ("specReplicasPath", &[".spec."], ".spec"),
        ("statusReplicasPath", &[".status."], ".status"),
        (
            "labelSelectorPath",
            &[".spec.", ".status."],
            "either .spec or .status",
        ),
    ];
    for (member, prefixes, place) in cases {
        let path = text(scale, &format!("/{member}"));
        let field = format!("{at}.scale.{member}");
        if path.is_empty() {
            if member != "labelSelectorPath" {
                causes.push(Cause::required(field, ""));
            }
        } else if !path.starts_with('.') {
            let why = "must be a simple json path starting with .";
            causes.push(Cause::invalid(field, &json!(path), why));
        } else if Path::parse(path).is_none() {
            let why = "is an invalid path: must be a simple path of field names";
            causes.push(Cause::invalid(field, &json!(path), why));
        } else if !prefixes.iter().any(|prefix| path.starts_with(prefix)) {
            let why = format!("should be a json path under {place}");
            causes.push(Cause::invalid(field, &json!(path), &why));
        }
    }
}

fn validate_column(column: &Value, at: &str, causes: &mut Vec<Cause>) {
    if text(column, "/name").is_empty() {
        causes.push(Cause::required(format!("{at}.name"), ""));
    }
    let kinds = ["boolean", "date", "integer", "number", "string"];
    let formats = [
        "binary",
        "byte",
        "date",
        "date-time",
        "double",
        "float",
        "int32",
        "int64",
        "password",
    ];
    let kind = text(column, "/type");
    let why = format!("must be one of {}", kinds.join(","));
    if kind.is_empty() {
        causes.push(Cause::required(format!("{at}.type"), &why));
    } else if !kinds.contains(&kind) {
        causes.push(Cause::invalid(format!("{at}.type"), &json!(kind), &why));
    }
    let format = text(column, "/format");
    if !format.is_empty() && !formats.contains(&format) {
        let why = format!("must be one of {}", formats.join(","));
        causes.push(Cause::invalid(format!("{at}.format"), &json!(format), &why));
    }
    let path = text(column, "/jsonPath");
    let field = format!("{at}.JSONPath");
    if path.is_empty() {
        causes.push(Cause::required(field, ""));
    } else if Path::parse(path).is_none() {
        let why = "is an invalid path: not a path of field names, indices and filters";
        causes.push(Cause::invalid(field, &json!(path), why));
    }
}

fn validate_selectable(version: &Value, at: &str, causes: &mut Vec<Cause>) {
    let fields = items(version, "/selectableFields");
    let mut seen = HashSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = text(field, "/jsonPath");
        let at = format!("{at}[{index}].jsonPath");
        if path.is_empty() {
            causes.push(Cause::required(at, ""));
            continue;
        }
        let parsed = Path::parse(path);
        let Some(names) = parsed.as_ref().and_then(Path::names) else {
            let why = "is an invalid path: must be a simple path of field names";
            causes.push(Cause::invalid(at, &json!(path), why));
            continue;
        };
        let schema = version.pointer("/schema/openAPIV3Schema");
        let found = names
            .iter()
            .try_fold(schema.unwrap_or(&Value::Null), |schema, name| {
                schema.get("properties")?.get(name)
            });
        if names.first() == Some(&"metadata") {
            let why = "must not point to fields in metadata";
            causes.push(Cause::invalid(at, &json!(path), why));
            continue;
        }
        let Some(found) = found else {
            let why = "is an invalid path: does not refer to a valid field";
            causes.push(Cause::invalid(at, &json!(path), why));
            continue;
        };
        if !matches!(text(found, "/type"), "string" | "boolean" | "integer") {
            let why = "must point to a field of type string, boolean or integer. Enum string fields \
                       and strings with formats are allowed.";
            causes.push(Cause::invalid(at.clone(), &json!(path), why));
        }
        if !seen.insert(path) {
            causes.push(Cause::duplicate(at, &json!(path)));
        }
    }
    if fields.len() > SELECTABLE {
        causes.push(Cause {
            reason: "FieldValueTooMany",
            message: format!(
                "Too many: {}: must have at most {SELECTABLE} items",
                fields.len()
            ),
            field: at.to_owned(),
        });
    }
}

fn validate_names(spec: &Value, causes: &mut Vec<Cause>) {
    let name = |member: &str| text(spec, &format!("/names/{member}"));
    for member in ["plural", "singular", "kind", "listKind"] {
        if name(member).is_empty() {
            causes.push(Cause::required(format!("spec.names.{member}"), ""));
        }
    }
    let mut check = |field: String, value: &str, prefix: &str| {
        let problems = names::dns1035_label(&value.to_lowercase());
        let mixed = prefix.is_empty() && value != value.to_lowercase();
        if !value.is_empty() && (!problems.is_empty() || mixed) {
            let problems = if mixed {
                names::dns1035_label(value)
            } else {
                problems
            };
            let why = format!("{prefix}{}", problems.join(","));
            causes.push(Cause::invalid(field, &json!(value), &why));
        }
    };
    let mixed = "may have mixed case, but should otherwise match: ";
    check("spec.names.plural".into(), name("plural"), "");
    check("spec.names.singular".into(), name("singular"), "");
    check("spec.names.kind".into(), name("kind"), mixed);
    check("spec.names.listKind".into(), name("listKind"), mixed);
    for member in ["shortNames", "categories"] {
        for (index, value) in items(spec, &format!("/names/{member}")).iter().enumerate() {
            let field = format!("spec.names.{member}[{index}]");
            check(field, value.as_str().unwrap_or_default(), "");
        }
    }
    if !name("kind").is_empty() && name("kind") == name("listKind") {
        let why = "kind and listKind may not be the same";
        causes.push(Cause::invalid(
            "spec.names.listKind",
            &json!(name("listKind")),
            why,
        ));
    }
}

/// Rejects changes of the properties that determine the storage name, because objects may exist.
pub(crate) fn validate_definition_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let mut fixed = vec!["group"];
    if is_established(old) {
        fixed.extend(["scope", "names.kind", "names.plural"]);
    }
    for member in fixed {
        let pointer = format!("/spec/{}", member.replace('.', "/"));
        if old.pointer(&pointer) != new.pointer(&pointer) {
            let value = new.pointer(&pointer).unwrap_or(&Value::Null);
            let field = format!("spec.{member}");
            causes.push(Cause::invalid(field, value, "field is immutable"));
        }
    }
    // The name is derived from names that cannot change, so it is not reported.
    let name = |object: &Value| {
        let (plural, group) = (
            text(object, "/spec/names/plural"),
            text(object, "/spec/group"),
        );
        format!("{plural}.{group}")
    };
    if is_established(old) && name(old) != name(new) {
        causes.retain(|cause| cause.field != "metadata.name");
    }
}

/// Returns the names that a definition claims in its group.
pub(crate) fn claimed_names(names: &Value) -> Map<String, Value> {
    let mut out = Map::new();
    for member in ["plural", "singular", "kind", "listKind"] {
        let name = text(names, &format!("/{member}"));
        if !name.is_empty() {
            out.insert(name.to_owned(), json!(member));
        }
    }
    for short in items(names, "/shortNames") {
        out.insert(
            short.as_str().unwrap_or_default().to_owned(),
            json!("shortNames"),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(change: impl Fn(&mut Value)) -> Value {
        let mut definition = json!({"metadata": {"name": "things.t.example"}, "spec": {
            "group": "t.example", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema":
                {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object",
                    "properties": {"n": {"type": "integer"}}}}}}}]}});
        change(&mut definition);
        default_definition(&mut definition);
        prepare_definition(&mut definition);
        definition
    }

    fn fields(change: impl Fn(&mut Value)) -> Vec<String> {
        let mut causes = Vec::new();
        validate_definition(&definition(change), &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn every_mistake_in_a_definition_is_reported() {
        let version = "/spec/versions/0";
        assert_eq!(fields(|_| {}), [""; 0]);
        assert_eq!(
            fields(|d| d["spec"]["group"] = json!("x")),
            ["metadata.name", "spec.group"]
        );
        assert_eq!(
            fields(|d| d["spec"]["names"]["kind"] = json!("a b")),
            [
                "spec.names.singular",
                "spec.names.kind",
                "spec.names.listKind"
            ]
        );
        assert_eq!(
            fields(|d| d["spec"]["versions"][0]["storage"] = json!(false)),
            ["spec.versions", "status.storedVersions"]
        );
        assert_eq!(
            fields(|d| d["spec"]["versions"][0]["name"] = json!("V1")),
            ["spec.versions[0].name", "spec.version"]
        );
        assert_eq!(
            fields(|d| d["spec"]["versions"][0]["additionalPrinterColumns"] =
                json!([{"name": "A", "type": "x", "jsonPath": "a"}])),
            [
                "spec.additionalPrinterColumns[0].type",
                "spec.additionalPrinterColumns[0].JSONPath"
            ]
        );
        assert_eq!(
            fields(|d| d["spec"]["versions"][0]["subresources"] =
                json!({"scale": {"specReplicasPath": ".x.y"}})),
            [
                "spec.subresources.scale.specReplicasPath",
                "spec.subresources.scale.statusReplicasPath"
            ]
        );
        assert_eq!(
            fields(|d| d["spec"]["versions"][0]["selectableFields"] =
                json!([{"jsonPath": ".spec"}, {"jsonPath": ".spec.x"}])),
            [
                "spec.selectableFields[0].jsonPath",
                "spec.selectableFields[1].jsonPath"
            ]
        );
        let bad_default = |d: &mut Value| {
            let at = format!("{version}/schema/openAPIV3Schema/properties/spec/properties/n");
            if let Some(schema) = d.pointer_mut(&at) {
                schema["default"] = json!("text");
            }
        };
        assert_eq!(
            fields(bad_default),
            ["spec.validation.openAPIV3Schema.properties[spec].properties[n].default"]
        );
    }

    #[test]
    fn a_new_definition_is_established() {
        let mut definition = definition(|_| {});
        prepare_definition(&mut definition);
        assert!(is_established(&definition));
        assert_eq!(definition["status"]["storedVersions"], json!(["v1"]));
        assert_eq!(definition["status"]["acceptedNames"]["singular"], "thing");
        let mut other = definition.clone();
        other["status"] = json!({});
        update_status(&mut other, Some("things"));
        assert!(!is_established(&other));
    }

    #[test]
    fn established_names_cannot_change() {
        let mut old = definition(|_| {});
        prepare_definition(&mut old);
        let mut new = old.clone();
        new["spec"]["scope"] = json!("Cluster");
        let mut causes = Vec::new();
        validate_definition_update(&old, &new, &mut causes);
        let fields: Vec<_> = causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!(fields, ["spec.scope"]);
    }
}
