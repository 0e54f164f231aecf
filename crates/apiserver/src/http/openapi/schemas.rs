//! Schemas of the built-in kinds, from the table of fields and its descriptions.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::schema::{
    Descriptions, Field, FieldText, ListType, Message, Type, message, message_by_name,
};

/// A version of OpenAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Swagger 2.0: members next to a reference are allowed, and defaults are omitted, as the real server does.
    V2,
    /// OpenAPI 3.0: a reference with other members is the only element of `allOf`.
    V3,
}

/// The message with the descriptions of `apiVersion` and `kind`.
const TYPE_META: &str = "meta/v1.TypeMeta";

/// Collects the schemas of kinds, and of everything that they refer to.
pub(super) struct Schemas<'a> {
    dialect: Dialect,
    descriptions: &'a Descriptions,
    /// Referenced names of the table whose schemas are not written yet.
    queue: Vec<&'static str>,
    seen: HashSet<&'static str>,
    out: Map<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(dialect: Dialect, descriptions: &'a Descriptions) -> Self {
        Self {
            dialect,
            descriptions,
            queue: Vec::new(),
            seen: HashSet::new(),
            out: Map::new(),
        }
    }

    /// Adds a kind. Does nothing for a kind that is not in the table.
    pub(super) fn add(&mut self, group: &str, version: &str, kind: &str) {
        let Some(message) = message(group, version, kind) else {
            return;
        };
        self.enqueue(message.name());
        while let Some(name) = self.queue.pop() {
            let schema = match message_by_name(name) {
                Some(message) => self.message(message),
                None => self.leaf(name),
            };
            self.out.insert(public_name(name), schema);
        }
        if let Some(schema) = self.out.get_mut(&public_name(message.name())) {
            let this = json!({"group": group, "version": version, "kind": kind});
            match schema.get_mut(GVK).and_then(Value::as_array_mut) {
                Some(all) => all.push(this),
                None => schema[GVK] = json!([this]),
            }
        }
    }

    pub(super) fn finish(self) -> Map<String, Value> {
        self.out
    }

    fn enqueue(&mut self, name: &'static str) {
        if self.seen.insert(name) {
            self.queue.push(name);
        }
    }

    fn message(&mut self, message: &'static Message) -> Value {
        let texts = self.descriptions.message(message.name());
        let fields = texts.map(|text| text.fields()).unwrap_or_default();
        let shared = self.descriptions.message(TYPE_META);
        let shared = shared.map(|text| text.fields()).unwrap_or_default();
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in message.json_fields() {
            let text = match field.number {
                0 => fields.get(field.json).or_else(|| shared.get(field.json)),
                _ => fields.get(field.json),
            };
            if text.is_some_and(|text| text.required) {
                required.push(field.json);
            }
            properties.insert(field.json.to_owned(), self.property(field, text));
        }
        let mut schema = json!({"type": "object"});
        if let Some(text) = texts {
            schema["description"] = json!(text.description());
        }
        if !properties.is_empty() {
            schema["properties"] = Value::Object(properties);
        }
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if message.atomic() {
            schema["x-kubernetes-map-type"] = json!("atomic");
        }
        schema
    }

    fn property(&mut self, field: &'static Field, text: Option<&FieldText<'_>>) -> Value {
        let values = text.map(|text| &*text.values).unwrap_or_default();
        let mut schema = self.of_type(&field.ty, values);
        let mut members = Map::new();
        let description = text.map(FieldText::description).unwrap_or_default();
        if !description.is_empty() {
            members.insert("description".to_owned(), json!(description));
        }
        if self.dialect == Dialect::V3
            && let Some(default) = default_of(field)
        {
            members.insert("default".to_owned(), default);
        }
        extensions(field, &mut members);
        let Value::Object(object) = &mut schema else {
            return schema;
        };
        if self.dialect == Dialect::V3 && object.contains_key("$ref") && !members.is_empty() {
            let reference = std::mem::take(object);
            object.insert("allOf".to_owned(), json!([reference]));
        }
        object.append(&mut members);
        schema
    }

    fn of_type(&mut self, ty: &'static Type, values: &[&str]) -> Value {
        match ty {
            Type::String if !values.is_empty() => json!({"type": "string", "enum": values}),
            Type::String => json!({"type": "string"}),
            Type::Bool => json!({"type": "boolean"}),
            Type::Int32 => json!({"type": "integer", "format": "int32"}),
            Type::Int64 => json!({"type": "integer", "format": "int64"}),
            Type::Float64 => json!({"type": "number", "format": "double"}),
            Type::Bytes => json!({"type": "string", "format": "byte"}),
            Type::Time => self.reference("Time"),
            Type::MicroTime => self.reference("MicroTime"),
            Type::Quantity => self.reference("Quantity"),
            Type::IntOrString => self.reference("IntOrString"),
            Type::Raw => self.reference("Raw"),
            Type::FieldsV1 => self.reference("FieldsV1"),
            Type::Json => self.reference("JSON"),
            Type::SchemaOrArray => self.reference("SchemaOrArray"),
            Type::SchemaOrBool => self.reference("SchemaOrBool"),
            Type::SchemaOrStrings => self.reference("SchemaOrStrings"),
            Type::Message(message) => self.reference(message.name()),
            Type::List(of) | Type::WrappedList(of) => {
                json!({"type": "array", "items": self.of_type(of, values)})
            }
            Type::Map(of) => {
                json!({"type": "object", "additionalProperties": self.of_type(of, values)})
            }
        }
    }

    fn reference(&mut self, name: &'static str) -> Value {
        self.enqueue(name);
        let place = match self.dialect {
            Dialect::V2 => "definitions",
            Dialect::V3 => "components/schemas",
        };
        json!({"$ref": format!("#/{place}/{}", public_name(name))})
    }

    /// Returns the schema of a type with a separate JSON form.
    fn leaf(&self, name: &str) -> Value {
        let mut schema = match (name, self.dialect) {
            ("Time" | "MicroTime", _) => json!({"type": "string", "format": "date-time"}),
            ("Quantity", Dialect::V3) => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            ("Quantity", Dialect::V2) => json!({"type": "string"}),
            ("IntOrString", Dialect::V3) => json!({
                "format": "int-or-string",
                "oneOf": [{"type": "integer"}, {"type": "string"}],
            }),
            ("IntOrString", Dialect::V2) => json!({"type": "string", "format": "int-or-string"}),
            ("Raw" | "FieldsV1", _) => json!({"type": "object"}),
            _ => json!({}),
        };
        if let Some(text) = self.descriptions.message(name) {
            schema["description"] = json!(text.description());
        }
        schema
    }
}

/// The extension that names the kinds of a schema.
pub(super) const GVK: &str = "x-kubernetes-group-version-kind";

/// Returns the declared default of a field, or the zero value if the field is always present in JSON.
fn default_of(field: &Field) -> Option<Value> {
    if let Some(declared) = field.default {
        return serde_json::from_str(declared).ok();
    }
    if field.pointer {
        return None;
    }
    match field.ty {
        Type::Message(_) => Some(json!({})),
        _ if field.omitempty => None,
        Type::String => Some(json!("")),
        Type::Bool => Some(json!(false)),
        Type::Int32 | Type::Int64 | Type::Float64 => Some(json!(0)),
        _ => None,
    }
}

/// Adds the extensions by which clients merge patches and applied objects.
fn extensions(field: &Field, members: &mut Map<String, Value>) {
    let mut add = |name: &str, value: Value| {
        members.insert(format!("x-kubernetes-{name}"), value);
    };
    match &field.list_type {
        ListType::Unset => {}
        ListType::Atomic => add("list-type", json!("atomic")),
        ListType::Set => add("list-type", json!("set")),
        ListType::Map(keys) => {
            add("list-type", json!("map"));
            add("list-map-keys", json!(keys));
        }
    }
    if field.atomic {
        add("map-type", json!("atomic"));
    }
    if field.granular {
        add("map-type", json!("granular"));
    }
    if let Some(key) = field.merge_key {
        add("patch-merge-key", json!(key));
    }
    let strategies = [
        (field.patch.merge, "merge"),
        (field.patch.replace, "replace"),
        (field.patch.retain_keys, "retainKeys"),
    ];
    let strategies: Vec<&str> = strategies
        .iter()
        .filter(|(wanted, _)| *wanted)
        .map(|(_, name)| *name)
        .collect();
    if !strategies.is_empty() {
        add("patch-strategy", json!(strategies.join(",")));
    }
}

/// Returns the name of a schema for clients, such as `io.k8s.api.core.v1.Pod` for `core/v1.Pod`.
fn public_name(name: &str) -> String {
    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
    const DEFINITIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";
    match name {
        "Time" | "MicroTime" | "FieldsV1" => format!("{META}.{name}"),
        "Quantity" => "io.k8s.apimachinery.pkg.api.resource.Quantity".to_owned(),
        "IntOrString" => "io.k8s.apimachinery.pkg.util.intstr.IntOrString".to_owned(),
        "Raw" => "io.k8s.apimachinery.pkg.runtime.RawExtension".to_owned(),
        "JSON" => format!("{DEFINITIONS}.JSON"),
        "SchemaOrArray" => format!("{DEFINITIONS}.JSONSchemaPropsOrArray"),
        "SchemaOrBool" => format!("{DEFINITIONS}.JSONSchemaPropsOrBool"),
        "SchemaOrStrings" => format!("{DEFINITIONS}.JSONSchemaPropsOrStringArray"),
        _ => {
            let path = name.replace('/', ".");
            if let Some(rest) = name.strip_prefix("meta/v1.") {
                format!("{META}.{rest}")
            } else if let Some(rest) = name.strip_prefix("apiextensions/v1.") {
                format!("{DEFINITIONS}.{rest}")
            } else {
                format!("io.k8s.api.{path}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemas(dialect: Dialect, kinds: &[(&str, &str, &str)]) -> Value {
        let descriptions = Descriptions::read();
        let mut schemas = Schemas::new(dialect, &descriptions);
        for (group, version, kind) in kinds {
            schemas.add(group, version, kind);
        }
        Value::Object(schemas.finish())
    }

    /// Every reference of every built-in kind has a schema in the same document.
    #[test]
    fn references_of_all_kinds_are_resolved() {
        let kinds: Vec<_> = crate::registry::all()
            .iter()
            .flat_map(|kind| {
                let versions = kind.versions().iter();
                versions.map(|version| (kind.group(), version.name(), kind.kind()))
            })
            .collect();
        for (dialect, place) in [
            (Dialect::V2, "#/definitions/"),
            (Dialect::V3, "#/components/schemas/"),
        ] {
            let all = schemas(dialect, &kinds);
            let text = all.to_string();
            let mut references = 0;
            for part in text.split("\"$ref\":\"").skip(1) {
                let name = part.split('"').next().expect("a reference");
                let name = name
                    .strip_prefix(place)
                    .expect("a reference within the document");
                assert!(all.get(name).is_some(), "{name}");
                references += 1;
            }
            assert!(references > 500, "{references}");
        }
    }

    /// The schemas have the same properties as in the document of the real server.
    #[test]
    fn fields_have_types_defaults_and_extensions() {
        let all = schemas(Dialect::V3, &[("", "v1", "Pod")]);
        let pod = &all["io.k8s.api.core.v1.Pod"];
        assert_eq!(
            pod[GVK],
            json!([{"group": "", "version": "v1", "kind": "Pod"}])
        );
        let metadata = &pod["properties"]["metadata"];
        let reference = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        assert_eq!(metadata["allOf"], json!([{"$ref": reference}]));
        assert_eq!(metadata["default"], json!({}));
        let spec = &all["io.k8s.api.core.v1.PodSpec"];
        assert_eq!(spec["required"], json!(["containers"]));
        let containers = &spec["properties"]["containers"];
        assert_eq!(containers["type"], "array");
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
        let restart = &spec["properties"]["restartPolicy"];
        assert_eq!(restart["enum"], json!(["Always", "Never", "OnFailure"]));
        let port = &all["io.k8s.api.core.v1.ContainerPort"]["properties"];
        assert_eq!(port["containerPort"]["default"], 0);
        assert_eq!(port["protocol"]["default"], "TCP");
        let kind = &pod["properties"]["kind"]["description"];
        assert!(
            kind.as_str()
                .is_some_and(|text| text.starts_with("Kind is a"))
        );
    }
}
