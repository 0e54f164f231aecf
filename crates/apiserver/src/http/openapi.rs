//! OpenAPI documents. `kubectl explain` prints them. kubectl also reads from them that the server validates fields.
//!
//! kubectl refuses to apply, create or edit if it finds no document for a kind. The document must declare the
//! parameters `fieldValidation` and `dryRun` of PATCH. A document is built for each request and not cached, so that a
//! server without such requests needs no memory for it.

mod protobuf;
mod schemas;

use std::collections::HashMap;
use std::sync::OnceLock;

use http::header::{ACCEPT, CACHE_CONTROL, ETAG};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::discovery::hash;
use super::{Body, respond, version};
use crate::registry::{self, Kind, group_version};
use crate::schema::Descriptions;
use schemas::{Dialect, GVK, Schemas};

const V2_PROTOBUF: HeaderValue =
    HeaderValue::from_static("application/com.github.proto-openapi.spec.v2.v1.0+protobuf");

/// Query parameters that clients use only if the document declares them.
const PARAMETERS: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];

/// Answers the paths below `/openapi`; `None` if there is no such document.
pub(super) fn answer(path: &str, headers: &HeaderMap, kinds: &[&Kind]) -> Option<Response<Body>> {
    match path.trim_matches('/') {
        "openapi/v2" => Some(v2(kinds, headers)),
        "openapi/v3" => Some(respond::json(StatusCode::OK, index(kinds).to_string())),
        other => {
            let path = other.strip_prefix("openapi/v3/")?;
            let document = document(kinds, path, &Descriptions::read())?.to_string();
            let tag = format!("\"{}\"", hash(&document));
            let mut response = respond::json(StatusCode::OK, document);
            let cache = HeaderValue::from_static("public, immutable");
            response.headers_mut().insert(CACHE_CONTROL, cache);
            if let Ok(tag) = HeaderValue::from_str(&tag) {
                response.headers_mut().insert(ETAG, tag);
            }
            Some(response)
        }
    }
}

fn v2(kinds: &[&Kind], headers: &HeaderMap) -> Response<Body> {
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if accept.contains("protobuf") {
        let document = protobuf::document(kinds, &definitions(kinds));
        return respond::bytes(StatusCode::OK, V2_PROTOBUF, document);
    }
    let mut paths = Map::new();
    for (path, group, version, kind) in served(kinds) {
        let parameters: Vec<Value> = PARAMETERS
            .iter()
            .map(|name| json!({"name": name, "in": "query", "type": "string"}))
            .collect();
        let operation = operation(&parameters, group, version, kind);
        paths.insert(path, json!({"patch": operation}));
    }
    let definitions = definitions(kinds);
    let document =
        json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions});
    respond::json(StatusCode::OK, document.to_string())
}

/// Returns the schemas of all built-in kinds. The schemas of custom kinds are in the v3 documents only.
fn definitions(kinds: &[&Kind]) -> Map<String, Value> {
    let descriptions = Descriptions::read();
    let mut schemas = Schemas::new(Dialect::V2, &descriptions);
    for kind in kinds {
        for version in kind.versions().iter().filter(|v| v.custom.is_none()) {
            schemas.add(kind.group(), version.name(), kind.kind());
        }
    }
    schemas.finish()
}

fn index(kinds: &[&Kind]) -> Value {
    let built_in = built_in_hashes();
    // Groups the kinds by path, so that the cost is linear in the number of custom kinds.
    let mut custom: HashMap<String, Vec<&Kind>> = HashMap::new();
    for kind in kinds {
        for version in kind.versions().iter().filter(|v| v.custom.is_some()) {
            let path = gv_path(kind.group(), version.name());
            custom.entry(path).or_default().push(kind);
        }
    }
    let mut paths = Map::new();
    for (group, versions) in registry::groups(kinds) {
        for version in versions {
            let path = gv_path(group, version);
            let built_in = built_in.get(&path);
            let hash = match (built_in, custom.get(&path)) {
                (Some(hash), None) => hash.clone(),
                (_, custom) => {
                    let custom = custom.map(Vec::as_slice).unwrap_or_default();
                    let (operations, schemas) =
                        (operations(custom, &path), custom_schemas(custom, &path));
                    url_hash(&json!([built_in, operations, schemas]).to_string())
                }
            };
            let url = format!("/openapi/v3/{path}?hash={hash}");
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// Returns the hashes of the documents of built-in kinds, which never change. The documents are not cached.
fn built_in_hashes() -> &'static HashMap<String, String> {
    static HASHES: OnceLock<HashMap<String, String>> = OnceLock::new();
    HASHES.get_or_init(|| {
        let (kinds, descriptions) = (registry::all(), Descriptions::read());
        let versions = registry::groups(kinds)
            .into_iter()
            .flat_map(|(group, all)| {
                let paths = all.into_iter().map(move |version| gv_path(group, version));
                paths.collect::<Vec<_>>()
            });
        let hashes = versions.filter_map(|path| {
            let document = document(kinds, &path, &descriptions)?;
            Some((path, url_hash(&document.to_string())))
        });
        hashes.collect()
    })
}

fn url_hash(text: &str) -> String {
    let hash = hash(text);
    hash.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// Returns the v3 operations of one group and version, by path.
fn operations(kinds: &[&Kind], gv: &str) -> Map<String, Value> {
    let mut paths = Map::new();
    for (path, group, version, kind) in served(kinds) {
        if gv_path(group, version) == gv {
            let parameters: Vec<Value> = PARAMETERS
                .iter()
                .map(|name| json!({"name": name, "in": "query", "schema": {"type": "string"}}))
                .collect();
            let operation = operation(&parameters, group, version, kind);
            paths.insert(path, json!({"patch": operation}));
        }
    }
    paths
}

/// Returns the v3 document of one group and version; `None` if it is not served.
fn document(kinds: &[&Kind], gv: &str, descriptions: &Descriptions) -> Option<Value> {
    let paths = operations(kinds, gv);
    if paths.is_empty() {
        return None;
    }
    let mut built_in = Schemas::new(Dialect::V3, descriptions);
    for kind in kinds {
        for version in kind.versions().iter().filter(|v| v.custom.is_none()) {
            if gv_path(kind.group(), version.name()) == gv {
                built_in.add(kind.group(), version.name(), kind.kind());
            }
        }
    }
    let mut schemas = built_in.finish();
    schemas.append(&mut custom_schemas(kinds, gv));
    let components = json!({"schemas": schemas});
    Some(json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": components}))
}

/// Returns the schemas of the custom kinds of one group and version.
fn custom_schemas(kinds: &[&Kind], gv: &str) -> Map<String, Value> {
    let mut out = Map::new();
    for kind in kinds {
        for version in kind.versions() {
            let Some(custom) =
                (version.custom.as_ref()).filter(|_| gv_path(kind.group(), version.name()) == gv)
            else {
                continue;
            };
            let mut schema = custom.openapi.clone();
            schema["type"] = json!("object");
            schema[GVK] =
                json!([{"group": kind.group(), "version": version.name(), "kind": kind.kind()}]);
            for (member, kind) in [
                ("apiVersion", "string"),
                ("kind", "string"),
                ("metadata", "object"),
            ] {
                let known = &mut schema["properties"][member];
                if !known.is_object() {
                    *known = json!({"type": kind});
                }
                if known.get("description").is_none() {
                    known["description"] = json!(described(member));
                }
            }
            let group: Vec<&str> = kind.group().rsplit('.').collect();
            let name = format!("{}.{}.{}", group.join("."), version.name(), kind.kind());
            out.insert(name, schema);
        }
    }
    out
}

fn described(member: &str) -> &'static str {
    match member {
        "apiVersion" => "The group and version of this representation of the object.",
        "kind" => "The kind of the object.",
        _ => "Standard object's metadata.",
    }
}

fn operation(parameters: &[Value], group: &str, version: &str, kind: &str) -> Value {
    json!({
        "parameters": parameters,
        "responses": {},
        GVK: {"group": group, "version": version, "kind": kind},
    })
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": version::GIT_VERSION})
}

fn gv_path(group: &str, version: &str) -> String {
    if group.is_empty() {
        format!("api/{version}")
    } else {
        format!("apis/{group}/{version}")
    }
}

/// Returns the path of an object, the group, the version and the kind of everything that is served.
fn served<'a>(kinds: &[&'a Kind]) -> impl Iterator<Item = (String, &'a str, &'a str, &'a str)> {
    kinds.iter().copied().flat_map(|kind| {
        kind.versions().iter().map(move |version| {
            let prefix = if kind.group().is_empty() {
                "api"
            } else {
                "apis"
            };
            let gv = group_version(kind.group(), version.name());
            let scope = if kind.namespaced {
                "namespaces/{namespace}/"
            } else {
                ""
            };
            let path = format!("/{prefix}/{gv}/{scope}{}/{{name}}", kind.plural());
            (path, kind.group(), version.name(), kind.kind())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_version_has_a_document_with_its_kinds() {
        let index = index(registry::all());
        let paths = index["paths"].as_object().expect("map");
        assert!(paths.contains_key("api/v1"));
        let descriptions = Descriptions::read();
        let document = |path| document(registry::all(), path, &descriptions);
        let leases = document("apis/coordination.k8s.io/v1").expect("there");
        let path = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}";
        let names: Vec<_> = leases["paths"][path]["patch"]["parameters"]
            .as_array()
            .expect("list")
            .iter()
            .map(|parameter| parameter["name"].as_str().expect("text"))
            .collect();
        assert_eq!(names, PARAMETERS);
        assert!(document("apis/nope/v1").is_none());
    }

    /// `kubectl explain` finds a schema by its group, version and kind.
    #[test]
    fn every_built_in_kind_has_a_schema_with_a_description() {
        let descriptions = Descriptions::read();
        for (_, group, version, kind) in served(registry::all()) {
            let path = gv_path(group, version);
            let document = document(registry::all(), &path, &descriptions).expect("there");
            let schemas = document["components"]["schemas"].as_object().expect("map");
            let wanted = json!([{"group": group, "version": version, "kind": kind}]);
            let mut found = schemas.values().filter(|schema| schema[GVK] == wanted);
            let schema = found.next().unwrap_or_else(|| panic!("{path} {kind}"));
            assert!(schema["description"].is_string(), "{path} {kind}");
            assert!(found.next().is_none(), "{path} {kind}");
        }
    }
}
