//! Custom kinds: definitions that are compiled into entries of the table of kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use ring::digest::{Digest, SHA256, digest};
use serde_json::{Value, json};

use super::{BASE, Kind, Version};
use crate::crd::{Path, Structural};
use crate::registry::columns::CustomColumn;
use crate::registry::rules::{items, text};
use crate::registry::{Generation, Subresource};

/// The texts of a custom kind.
pub(crate) struct CustomKind {
    pub(super) group: String,
    pub(super) kind: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) short: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) storage: Arc<str>,
    /// Name of the version that is marked as stored.
    pub(super) stored: String,
    pub(super) versions: Vec<Version>,
    /// Digest of the spec that the kind was compiled from.
    pub(super) spec: Digest,
}

/// One served version of a custom kind.
#[derive(Debug)]
pub(crate) struct CustomVersion {
    pub(super) name: String,
    pub(super) deprecated: Option<String>,
    /// Structural schema of the objects.
    pub(crate) schema: Structural,
    /// The schema as the definition contains it, for OpenAPI documents.
    pub(crate) openapi: Value,
    /// Columns of the Table form, after the name. Empty if the definition has none.
    pub(crate) columns: Vec<CustomColumn>,
    /// Subresources of an object.
    pub(crate) subresources: Vec<Subresource>,
    /// JSON pointers of field selectors, by label.
    pub(crate) fields: BTreeMap<String, String>,
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

/// Compiles a definition. Returns `None` if no version is served. A `known` kind of the same spec is used again.
pub(crate) fn compile(
    definition: &Value,
    known: impl FnOnce(&str) -> Option<Arc<Kind>>,
) -> Option<Arc<Kind>> {
    let spec = definition.get("spec")?;
    let name = |member: &str| text(spec, &format!("/names/{member}")).to_owned();
    let names = |member: &str| {
        let list = items(spec, &format!("/names/{member}")).iter();
        let list = list.filter_map(Value::as_str).map(str::to_owned);
        list.collect()
    };
    let (group, plural) = (text(spec, "/group"), name("plural"));
    let storage = format!("{group}/{plural}");
    let digest = digest(&SHA256, spec.to_string().as_bytes());
    let known = known(&storage).filter(|known| known.spec() == Some(digest.as_ref()));
    if known.is_some() {
        return known;
    }
    let mut versions: Vec<&Value> = items(spec, "/versions")
        .iter()
        .filter(|v| v["served"] == true)
        .collect();
    versions.sort_by_key(|version| std::cmp::Reverse(preference(text(version, "/name"))));
    if versions.is_empty() {
        return None;
    }
    let custom = CustomKind {
        group: group.to_owned(),
        kind: name("kind"),
        plural,
        singular: name("singular"),
        short: names("shortNames"),
        categories: names("categories"),
        storage: storage.into(),
        stored: items(spec, "/versions")
            .iter()
            .find(|version| version["storage"] == true)
            .map_or_else(String::new, |version| text(version, "/name").to_owned()),
        versions: versions
            .iter()
            .map(|version| served(spec, version))
            .collect(),
        spec: digest,
    };
    Some(Arc::new(Kind {
        namespaced: text(spec, "/scope") == "Namespaced",
        unconditional_update: false,
        generation: Generation::Content,
        custom: Some(Box::new(custom)),
        ..BASE
    }))
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
    let name = text(version, "/name");
    let deprecated =
        (version["deprecated"] == true).then(|| match text(version, "/deprecationWarning") {
            "" => format!(
                "{}/{name} {} is deprecated",
                text(spec, "/group"),
                text(spec, "/names/kind")
            ),
            warning => warning.to_owned(),
        });
    let custom = CustomVersion {
        name: name.to_owned(),
        deprecated,
        schema: Structural::root(&openapi),
        openapi,
        columns: items(version, "/additionalPrinterColumns")
            .iter()
            .filter_map(CustomColumn::parse)
            .collect(),
        subresources: subresources(version),
        fields: selectable(version),
        scale: scale.and_then(|scale| {
            Some(Scale {
                replicas: pointer(scale, "specReplicasPath")?,
                status: pointer(scale, "statusReplicasPath")?,
                selector: pointer(scale, "labelSelectorPath"),
            })
        }),
    };
    Version {
        custom: Some(Arc::new(custom)),
        ..super::V1
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

fn selectable(version: &Value) -> BTreeMap<String, String> {
    let fields = items(version, "/selectableFields").iter();
    let fields = fields.filter_map(|field| {
        let path = Path::parse(text(field, "/jsonPath"))?;
        Some((path.names()?.join("."), path.pointer()?))
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_sorted_by_preference() {
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
        let kind = compile(&definition, |_| None).expect("served");
        let known = |storage: &str| {
            assert_eq!(storage, "t.example/ones");
            Some(Arc::clone(&kind))
        };
        let again = compile(&definition, known).expect("served");
        assert!(Arc::ptr_eq(&kind, &again));
        assert_eq!(
            (kind.kind(), kind.namespaced, kind.short()),
            ("One", false, vec!["o"])
        );
        let custom = kind.versions()[0].custom.as_ref().expect("custom");
        assert_eq!(custom.fields["spec.color"], "/spec/color");
        assert_eq!(custom.columns[0].name, "Size");
        assert_eq!(
            custom.scale.as_ref().expect("scale").replicas,
            "/spec/replicas"
        );
        let mut none = definition;
        none["spec"]["versions"][0]["served"] = json!(false);
        assert!(compile(&none, known).is_none());
    }
}
