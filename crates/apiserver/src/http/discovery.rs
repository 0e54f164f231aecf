//! Discovery of groups, versions and resources, as separate documents and in the aggregated form.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::accept::{Form, negotiate};
use super::{Body, respond};
use crate::registry::{self, Kind, Subresource, Version, group_version};
use crate::status::Failure;

const VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// The members of discovery documents in the order of the real server: of the document itself, and below it.
const TOP: &[&str] = &[
    "kind",
    "apiVersion",
    "metadata",
    "name",
    "groupVersion",
    "versions",
    "preferredVersion",
];
const INNER: &[&str] = &[
    "metadata",
    "name",
    "singularName",
    "namespaced",
    "groupVersion",
    "group",
    "version",
    "kind",
    "resource",
    "subresource",
    "responseKind",
    "scope",
    "singularResource",
    "verbs",
    "shortNames",
    "categories",
    "storageVersionHash",
    "subresources",
    "resources",
    "freshness",
    "versions",
    "preferredVersion",
];

/// Returns the text of a discovery document.
fn text(document: &Value) -> String {
    crate::json::ordered(document, TOP, INNER) + "\n"
}

/// Answers `/api`, `/apis` and the paths of groups and versions below them; `None` for other paths.
pub(super) fn answer<'k>(
    path: &str,
    headers: &HeaderMap,
    kinds: &dyn Fn() -> Vec<&'k Kind>,
) -> Option<Result<Response<Body>, Failure>> {
    if !path.starts_with("/api") {
        return None;
    }
    let kinds = kinds();
    let kinds = kinds.as_slice();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let document = match segments.as_slice() {
        ["api"] => return Some(root(kinds, headers, true)),
        ["apis"] => return Some(root(kinds, headers, false)),
        ["api", version] => match resource_list(kinds, "", version) {
            Some(list) => list,
            None => return Some(Err(Failure::no_resource())),
        },
        ["apis", group] if !group.is_empty() => group_document(kinds, group)?,
        ["apis", group, version] if group_entry(kinds, group).is_some() => {
            match resource_list(kinds, group, version) {
                Some(list) => list,
                None => return Some(Err(Failure::no_resource())),
            }
        }
        _ => return None,
    };
    let accepted = negotiate(headers);
    Some(accepted.map(|_| respond::json(StatusCode::OK, text(&document))))
}

fn root(kinds: &[&Kind], headers: &HeaderMap, core: bool) -> Result<Response<Body>, Failure> {
    let (document, kind) = match negotiate(headers)? {
        Form::Discovery(version) => {
            let kind = match version {
                "v2" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                _ => "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
            };
            (
                aggregated(kinds, core, version),
                HeaderValue::from_static(kind),
            )
        }
        _ if core => {
            let address = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}]);
            let document = json!({"kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": address});
            (document, respond::JSON)
        }
        _ => {
            let groups: Vec<Value> = registry::groups(kinds)
                .iter()
                .filter(|(group, _)| !group.is_empty())
                .filter_map(|(group, _)| group_entry(kinds, group))
                .collect();
            let list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups});
            (list, respond::JSON)
        }
    };
    let text = text(&document);
    let tag = format!("\"{}\"", hash(&text));
    let known = headers
        .get(IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    let mut response = if known == Some(tag.as_str()) {
        let mut response = Response::new(respond::full(""));
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        respond::json(StatusCode::OK, text)
    };
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

fn group_entry(kinds: &[&Kind], group: &str) -> Option<Value> {
    let (_, versions) = registry::groups(kinds)
        .into_iter()
        .find(|(name, _)| *name == group)?;
    let entry =
        |version: &&str| json!({"groupVersion": group_version(group, version), "version": version});
    Some(json!({
        "name": group,
        "versions": versions.iter().map(entry).collect::<Vec<_>>(),
        "preferredVersion": entry(versions.first()?),
    }))
}

fn group_document(kinds: &[&Kind], group: &str) -> Option<Value> {
    let mut document = group_entry(kinds, group)?;
    document["kind"] = json!("APIGroup");
    document["apiVersion"] = json!("v1");
    Some(document)
}

/// Returns the kinds of a group and version, sorted by plural name.
fn kinds_of<'a>(kinds: &[&'a Kind], group: &str, version: &str) -> Vec<(&'a Kind, &'a Version)> {
    let mut kinds: Vec<_> = kinds
        .iter()
        .copied()
        .filter(|kind| kind.group() == group)
        .filter_map(|kind| Some((kind, kind.version(version)?)))
        .collect();
    kinds.sort_by_key(|(kind, _)| kind.plural());
    kinds
}

fn resource_list(kinds: &[&Kind], group: &str, version: &str) -> Option<Value> {
    let kinds = kinds_of(kinds, group, version);
    if kinds.is_empty() {
        return None;
    }
    let mut resources = Vec::new();
    for (kind, known) in kinds {
        let mut entry = Map::new();
        entry.insert("name".into(), json!(kind.plural()));
        entry.insert("singularName".into(), json!(kind.singular()));
        entry.insert("namespaced".into(), json!(kind.namespaced));
        entry.insert("kind".into(), json!(kind.kind()));
        entry.insert("verbs".into(), json!(verbs(kind)));
        if !kind.short().is_empty() {
            entry.insert("shortNames".into(), json!(kind.short()));
        }
        if !kind.categories().is_empty() {
            entry.insert("categories".into(), json!(kind.categories()));
        }
        if kind.review.is_none() {
            let (group, version) = kind.stored_version();
            let hash = hash(&format!("{group}/{version}/{}", kind.kind()));
            entry.insert("storageVersionHash".into(), json!(hash));
        }
        resources.push(Value::Object(entry));
        for sub in kind.subresources(known) {
            let (group, version, name) = sub_kind(kind, version, *sub);
            let mut entry = json!({
                "name": format!("{}/{}", kind.plural(), sub.name()),
                "singularName": "",
                "namespaced": kind.namespaced,
                "kind": name,
                "verbs": sub_verbs(*sub),
            });
            if group != kind.group() {
                entry["group"] = json!(group);
                entry["version"] = json!(version);
            }
            resources.push(entry);
        }
    }
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": resources,
    }))
}

fn aggregated(kinds: &[&Kind], core: bool, version: &str) -> Value {
    let groups = registry::groups(kinds);
    let wanted = groups.iter().filter(|(group, _)| group.is_empty() == core);
    let items: Vec<Value> = wanted
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let kinds = kinds_of(kinds, group, version).into_iter();
                    let resources: Vec<Value> = kinds
                        .map(|(kind, version)| aggregated_resource(kind, version))
                        .collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !group.is_empty() {
                metadata["name"] = json!(group);
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn aggregated_resource(kind: &Kind, known: &Version) -> Value {
    let version = known.name();
    let mut entry = json!({
        "resource": kind.plural(),
        "responseKind": {"group": kind.group(), "version": version, "kind": kind.kind()},
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular(),
        "verbs": verbs(kind),
    });
    if !kind.short().is_empty() {
        entry["shortNames"] = json!(kind.short());
    }
    if !kind.categories().is_empty() {
        entry["categories"] = json!(kind.categories());
    }
    let subs: Vec<Value> = kind
        .subresources(known)
        .iter()
        .map(|sub| {
            let (group, version, name) = sub_kind(kind, version, *sub);
            json!({
                "subresource": sub.name(),
                "responseKind": {"group": group, "version": version, "kind": name},
                "verbs": sub_verbs(*sub),
            })
        })
        .collect();
    if !subs.is_empty() {
        entry["subresources"] = json!(subs);
    }
    entry
}

fn verbs(kind: &Kind) -> &'static [&'static str] {
    match kind.review {
        Some(_) => &["create"],
        None => VERBS,
    }
}

fn sub_verbs(sub: Subresource) -> &'static [&'static str] {
    match sub {
        Subresource::Status | Subresource::EphemeralContainers | Subresource::Scale => {
            &["get", "patch", "update"]
        }
        Subresource::Finalize => &["update"],
        Subresource::Token | Subresource::Binding | Subresource::Eviction => &["create"],
    }
}

fn sub_kind<'a>(kind: &'a Kind, version: &'a str, sub: Subresource) -> (&'a str, &'a str, &'a str) {
    match sub {
        Subresource::Token => ("authentication.k8s.io", "v1", "TokenRequest"),
        Subresource::Eviction => ("policy", "v1", "Eviction"),
        Subresource::Scale => ("autoscaling", "v1", "Scale"),
        Subresource::Binding => (kind.group(), version, "Binding"),
        _ => (kind.group(), version, kind.kind()),
    }
}

/// Returns a short hash of a text in base64.
pub(super) fn hash(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    STANDARD.encode(&digest.as_ref()[..8])
}
