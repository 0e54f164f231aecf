//! The least OpenAPI that makes kubectl validate on the server.
//!
//! kubectl refuses to apply, create or edit where it finds no schema document at all. What it needs
//! to know is that PATCH takes `fieldValidation` and `dryRun`; the schemas themselves it has built in.

use http::header::{ACCEPT, CACHE_CONTROL, ETAG};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::discovery::hash;
use super::{Body, respond, version};
use crate::registry::{self, Kind, group_version};

const V2_PROTOBUF: HeaderValue =
    HeaderValue::from_static("application/com.github.proto-openapi.spec.v2.v1.0+protobuf");

/// Query parameters that clients look for before they use them.
const PARAMETERS: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];

/// Answers the paths below `/openapi`; `None` for what is not there.
pub(super) fn answer(
    path: &str,
    headers: &HeaderMap,
    kinds: &[&'static Kind],
) -> Option<Response<Body>> {
    match path.trim_matches('/') {
        "openapi/v2" => Some(v2(kinds, headers)),
        "openapi/v3" => Some(respond::json(StatusCode::OK, index(kinds).to_string())),
        other => {
            let document = document(kinds, other.strip_prefix("openapi/v3/")?)?.to_string();
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

fn v2(kinds: &[&'static Kind], headers: &HeaderMap) -> Response<Body> {
    let accept = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if accept.contains("protobuf") {
        return respond::bytes(StatusCode::OK, V2_PROTOBUF, v2_protobuf(kinds));
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
    let document = json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": {}});
    respond::json(StatusCode::OK, document.to_string())
}

fn index(kinds: &[&'static Kind]) -> Value {
    let mut paths = Map::new();
    for (group, versions) in registry::groups(kinds) {
        for version in versions {
            let path = gv_path(group, version);
            if let Some(document) = document(kinds, &path) {
                let hash = hash(&document.to_string());
                let hash: String = hash.chars().filter(char::is_ascii_alphanumeric).collect();
                let url = format!("/openapi/v3/{path}?hash={hash}");
                paths.insert(path, json!({"serverRelativeURL": url}));
            }
        }
    }
    json!({"paths": paths})
}

fn document(kinds: &[&'static Kind], gv: &str) -> Option<Value> {
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
    let mut document = json!({"openapi": "3.0.0", "info": info(), "paths": paths});
    let schemas = schemas(kinds, gv);
    if !schemas.is_empty() {
        document["components"] = json!({"schemas": schemas});
    }
    (!paths.is_empty()).then_some(document)
}

/// The schemas of custom kinds, which clients cannot know from elsewhere.
fn schemas(kinds: &[&'static Kind], gv: &str) -> Map<String, Value> {
    let mut out = Map::new();
    for kind in kinds {
        for version in kind.versions {
            let Some(custom) = version
                .custom
                .filter(|_| gv_path(kind.group, version.name) == gv)
            else {
                continue;
            };
            let mut schema = custom.openapi.clone();
            schema["type"] = json!("object");
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": kind.group, "version": version.name, "kind": kind.kind}]);
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
            let group: Vec<&str> = kind.group.rsplit('.').collect();
            let name = format!("{}.{}.{}", group.join("."), version.name, kind.kind);
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
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
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

/// Path of one object, group, version and kind of all that is served.
fn served(
    kinds: &[&'static Kind],
) -> impl Iterator<Item = (String, &'static str, &'static str, &'static str)> {
    kinds.iter().flat_map(|kind| {
        kind.versions.iter().map(move |version| {
            let prefix = if kind.group.is_empty() { "api" } else { "apis" };
            let gv = group_version(kind.group, version.name);
            let scope = if kind.namespaced {
                "namespaces/{namespace}/"
            } else {
                ""
            };
            let path = format!("/{prefix}/{gv}/{scope}{}/{{name}}", kind.plural);
            (path, kind.group, version.name, kind.kind)
        })
    })
}

/// The v2 document in protobuf: `swagger`, and one PATCH per kind with its parameters.
/// Field numbers: gnostic OpenAPIv2.proto.
fn v2_protobuf(kinds: &[&'static Kind]) -> Vec<u8> {
    let mut paths = Vec::new();
    for (path, group, version, kind) in served(kinds) {
        let mut operation = Vec::new();
        for name in PARAMETERS {
            let mut query = Vec::new();
            field(&mut query, 2, b"query");
            field(&mut query, 4, name.as_bytes());
            field(&mut operation, 8, &nested(&[1, 2, 3], query));
        }
        let gvk = format!("group: {group:?}\nversion: {version}\nkind: {kind}\n");
        let mut extension = Vec::new();
        field(&mut extension, 1, b"x-kubernetes-group-version-kind");
        field(&mut extension, 2, &nested(&[2], gvk.into_bytes()));
        field(&mut operation, 13, &extension);
        let mut item = Vec::new();
        field(&mut item, 1, path.as_bytes());
        field(&mut item, 2, &nested(&[8], operation));
        field(&mut paths, 2, &item);
    }
    let mut document = Vec::new();
    field(&mut document, 1, b"2.0");
    field(&mut document, 8, &paths);
    document
}

/// Wraps bytes into messages, the outermost field first.
fn nested(numbers: &[u8], bytes: Vec<u8>) -> Vec<u8> {
    numbers.iter().rev().fold(bytes, |inner, number| {
        let mut outer = Vec::with_capacity(inner.len() + 4);
        field(&mut outer, *number, &inner);
        outer
    })
}

/// Appends a length-delimited field.
fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(u8::try_from(length & 0x7f).unwrap_or(0) | 0x80);
        length >>= 7;
    }
    out.push(u8::try_from(length).unwrap_or(0));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_version_has_a_document_with_its_kinds() {
        let index = index(registry::all());
        let paths = index["paths"].as_object().expect("map");
        assert!(paths.contains_key("api/v1"));
        let leases = document(registry::all(), "apis/coordination.k8s.io/v1").expect("there");
        let path = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}";
        let names: Vec<_> = leases["paths"][path]["patch"]["parameters"]
            .as_array()
            .expect("list")
            .iter()
            .map(|parameter| parameter["name"].as_str().expect("text"))
            .collect();
        assert_eq!(names, PARAMETERS);
        assert!(document(registry::all(), "apis/nope/v1").is_none());
    }

    #[test]
    fn protobuf_lengths_are_varints() {
        let mut out = Vec::new();
        field(&mut out, 1, &[7; 300]);
        assert_eq!(out[..3], [0x0a, 0xac, 0x02]);
        assert_eq!(out.len(), 303);
        assert!(v2_protobuf(registry::all()).starts_with(b"\x0a\x032.0\x42"));
    }
}
