//! Compiles a definition into an entry of the table of kinds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::path::Path;
use super::schema::Structural;
use crate::registry::columns::{AGE, Column, Description};
use crate::registry::rules::{items, text};
use crate::registry::{Field, Generation, Kind, Subresource, Version, custom_base};

/// One served version of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    /// Structural schema of the objects.
    pub(crate) schema: Structural,
    /// The schema as the definition contains it, for OpenAPI documents.
    pub(crate) openapi: Value,
    /// Columns of the Table form, after the name.
    pub(crate) columns: &'static [Column],
    /// Subresources of an object.
    pub(crate) subresources: &'static [Subresource],
    /// Field selectors.
    pub(crate) fields: &'static [Field],
    /// Locations of the values of the scale subresource.
    pub(crate) scale: Option<Scale>,
}

/// JSON pointers of a scale.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    pub(crate) replicas: String,
    pub(crate) status: String,
    pub(crate) selector: Option<String>,
}

/// Compiles a definition. Returns `None` if no version is served.
pub(crate) fn compile(definition: &Value) -> Option<&'static Kind> {
    static KNOWN: Mutex<Option<HashMap<String, Option<&'static Kind>>>> = Mutex::new(None);
    let spec = definition.get("spec")?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_with(HashMap::new);
    let text = spec.to_string();
    if let Some(kind) = known.get(&text) {
        return *kind;
    }
    let kind = entry(spec).map(|kind| -> &'static Kind { Box::leak(Box::new(kind)) });
    known.insert(text, kind);
    kind
}

fn keep(value: &str) -> &'static str {
    Box::leak(value.to_owned().into_boxed_str())
}

fn keep_all<T>(list: Vec<T>) -> &'static [T] {
    Box::leak(list.into_boxed_slice())
}

fn entry(spec: &Value) -> Option<Kind> {
    let name = |member: &str| text(spec, &format!("/names/{member}"));
    let names = |member: &str| -> &'static [&'static str] {
        let list = items(spec, &format!("/names/{member}")).iter();
        keep_all(list.filter_map(Value::as_str).map(keep).collect())
    };
    let group = text(spec, "/group");
    let mut versions: Vec<&Value> = items(spec, "/versions")
        .iter()
        .filter(|v| v["served"] == true)
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(preference(text(version, "/name"))));
    if versions.is_empty() {
        return None;
    }
    Some(Kind {
        group: keep(group),
        versions: keep_all(
            versions
                .iter()
                .map(|version| served(spec, version))
                .collect(),
        ),
        kind: keep(name("kind")),
        plural: keep(name("plural")),
        singular: keep(name("singular")),
        short: names("shortNames"),
        categories: names("categories"),
        namespaced: text(spec, "/scope") == "Namespaced",
        storage: keep(&format!("{group}/{}", name("plural"))),
        unconditional_update: false,
        generation: Generation::Content,
        ..custom_base()
    })
}

/// Sort key of versions: stable, then beta, then alpha, each with larger numbers first. Other names come last, in
/// alphabetical order.
fn preference(name: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let parse = || -> Option<(u8, u64, u64)> {
        let rest = name.strip_prefix('v')?;
        let end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let major = rest[..end].parse().ok()?;
        let (level, minor) = match &rest[end..] {
            "" => (3, 0),
            rest => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
                (Some(minor), _) => (2, minor.parse().ok()?),
                (_, Some(minor)) => (1, minor.parse().ok()?),
                _ => return None,
            },
        };
        Some((level, major, minor))
    };
    let (level, major, minor) = parse().unwrap_or_default();
    (level, major, minor, std::cmp::Reverse(name.to_owned()))
}

fn served(spec: &Value, version: &Value) -> Version {
    let openapi = version
        .pointer("/schema/openAPIV3Schema")
        .cloned()
        .unwrap_or_else(|| json!({}));
    let scale = version
        .pointer("/subresources/scale")
        .filter(|scale| !scale.is_null());
    let pointer =
        |scale: &Value, member: &str| Path::parse(text(scale, &format!("/{member}")))?.pointer();
    let custom = CustomVersion {
        schema: Structural::root(&openapi),
        openapi,
        columns: columns(version),
        subresources: keep_all(subresources(version)),
        fields: selectable(version),
        scale: scale.and_then(|scale| {
            Some(Scale {
                replicas: pointer(scale, "specReplicasPath")?,
                status: pointer(scale, "statusReplicasPath")?,
                selector: pointer(scale, "labelSelectorPath"),
            })
        }),
    };
    let name = text(version, "/name");
    let deprecated =
        (version["deprecated"] == true).then(|| match text(version, "/deprecationWarning") {
            "" => keep(&format!(
                "{}/{name} {} is deprecated",
                text(spec, "/group"),
                text(spec, "/names/kind")
            )),
            warning => keep(warning),
        });
    Version {
        name: keep(name),
        deprecated,
        conversion: None,
        custom: Some(Box::leak(Box::new(custom))),
    }
}

fn subresources(version: &Value) -> Vec<Subresource> {
    let known = [Subresource::Scale, Subresource::Status].into_iter();
    let has = |sub: &Subresource| {
        let member = version.pointer(&format!("/subresources/{}", sub.name()));
        member.is_some_and(|member| !member.is_null())
    };
    known.filter(has).collect()
}

fn columns(version: &Value) -> &'static [Column] {
    let defined = items(version, "/additionalPrinterColumns");
    if defined.is_empty() {
        return AGE;
    }
    let columns = defined.iter().filter_map(|column| {
        let path = text(column, "/jsonPath");
        let parsed = Path::parse(path)?;
        let description = match text(column, "/description") {
            "" => format!("Custom resource definition column (in JSONPath format): {path}"),
            own => own.to_owned(),
        };
        Some(Column {
            name: keep(text(column, "/name")),
            kind: keep(text(column, "/type")),
            format: keep(text(column, "/format")),
            description: Description::Text(keep(&description)),
            priority: column
                .get("priority")
                .and_then(Value::as_i64)
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or(0),
            path: Some(Box::leak(Box::new(parsed))),
            ..AGE[0]
        })
    });
    keep_all(columns.collect())
}

fn selectable(version: &Value) -> &'static [Field] {
    let fields = items(version, "/selectableFields")
        .iter()
        .filter_map(|field| {
            let path = Path::parse(text(field, "/jsonPath"))?;
            let label = path.names()?.join(".");
            let pointers: &'static [&'static str] = keep_all(vec![keep(&path.pointer()?)]);
            Some(Field::new(keep(&label), pointers))
        });
    keep_all(fields.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_by_preference() {
        let mut names = [
            "foo1",
            "v1alpha1",
            "v10",
            "v2",
            "v1beta2",
            "bar",
            "v1beta1",
            "v11alpha2",
        ];
        names.sort_by_key(|name| std::cmp::Reverse(preference(name)));
        assert_eq!(
            names,
            [
                "v10",
                "v2",
                "v1beta2",
                "v1beta1",
                "v11alpha2",
                "v1alpha1",
                "bar",
                "foo1"
            ]
        );
    }

    #[test]
    fn the_same_spec_is_compiled_once() {
        let definition = json!({"spec": {"group": "t.example", "scope": "Cluster",
            "names": {"plural": "ones", "singular": "one", "kind": "One", "shortNames": ["o"]},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "selectableFields": [{"jsonPath": ".spec.color"}],
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]}]}});
        let kind = compile(&definition).expect("served");
        assert!(std::ptr::eq(kind, compile(&definition).expect("served")));
        assert_eq!(
            (kind.kind, kind.namespaced, kind.short),
            ("One", false, &["o"][..])
        );
        let custom = kind.versions[0].custom.expect("custom");
        assert_eq!(custom.fields[0].label, "spec.color");
        assert_eq!(custom.columns[0].name, "Size");
        assert_eq!(
            custom.scale.as_ref().expect("scale").replicas,
            "/spec/replicas"
        );
        let mut none = definition;
        none["spec"]["versions"][0]["served"] = json!(false);
        assert!(compile(&none).is_none());
    }
}
