//! Entry points of the fuzz targets in `fuzz/`. The normal tests call them as well.
//!
//! Each function accepts any bytes, and panics only if an invariant of this crate is violated.

mod security;

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Map, Value};

use crate::auth::Target;
use crate::canonical::canonicalise;
use crate::limits::{MAX_DEPTH, depth};
use crate::request::{RequestInfo, Route, Verb};
use crate::schema::{self, Message};
use crate::selector::{FieldSelector, LabelSelector};
use crate::{patch, protobuf, strict};
pub use security::{audit, credentials, fence, roles};

/// A protobuf body: every decoded object is canonical and can be stored.
pub fn protobuf(bytes: &[u8]) {
    if let Ok(object) = protobuf::decode(bytes) {
        let api_version = &object.api_version;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let message = schema::message(group, version, &object.kind);
        assert_canonical(
            message.expect("only kinds of the table decode"),
            &object.value,
        );
    }
}

/// A JSON body: canonicalising a decoded object gives a fixed point, and every unknown field is reported.
pub fn json(bytes: &[u8]) {
    for message in messages() {
        let Ok(decoded) = strict::decode(Some(message), bytes) else {
            return;
        };
        assert!(strict::unknown_fields(message, &decoded.value).is_empty());
        // Skipped values may contain escapes that a full parse rejects.
        if let Ok(plain) = serde_json::from_slice::<Value>(bytes) {
            let unknown = !strict::unknown_fields(message, &plain).is_empty();
            assert!(
                !unknown || !decoded.problems.is_empty(),
                "an unknown field was not reported"
            );
        }
        if let Ok(value) = canonicalise(message, decoded.value) {
            assert_canonical(message, &value);
        }
    }
}

/// A patch: the first line is the object, the rest the patch.
pub fn patch(bytes: &[u8]) {
    let end = bytes
        .iter()
        .position(|&b| b == b'\n')
        .unwrap_or(bytes.len());
    let (target, patch) = bytes.split_at(end);
    let target = serde_json::from_slice(target).unwrap_or(Value::Object(Map::new()));
    if let Ok(patched) = patch::json(target.clone(), patch) {
        assert!(depth(&patched) <= MAX_DEPTH);
    }
    let Ok(decoded) = strict::decode(None, patch) else {
        return;
    };
    if let Ok(once) = patch::merge(target.clone(), decoded.value.clone()) {
        let twice = patch::merge(once.clone(), decoded.value.clone());
        assert_eq!(twice, Ok(once), "a merge patch is idempotent");
    }
    for message in messages() {
        if let Ok(Value::Object(target)) = canonicalise(message, target.clone()) {
            let patched = patch::strategic(message, Value::Object(target), decoded.value.clone());
            let Ok(patched) = patched else { continue };
            if let Ok(value) = canonicalise(message, patched) {
                assert_canonical(message, &value);
            }
        }
    }
}

/// Label and field selectors: the text form parses to the same selector.
pub fn selector(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let labels = BTreeMap::from([
        ("a".to_owned(), "1".to_owned()),
        ("b".to_owned(), String::new()),
    ]);
    if let Ok(selector) = text.parse::<LabelSelector>() {
        let again: LabelSelector = selector
            .to_string()
            .parse()
            .expect("the text form must parse");
        assert_eq!(again, selector, "{text:?}");
        assert_eq!(again.matches(&labels), selector.matches(&labels));
    }
    if let Ok(selector) = text.parse::<FieldSelector>() {
        let again: FieldSelector = selector
            .to_string()
            .parse()
            .expect("the text form must parse");
        let mut terms = (again.terms().to_vec(), selector.terms().to_vec());
        terms
            .0
            .sort_by(|a, b| a.field.cmp(&b.field).then_with(|| a.value.cmp(&b.value)));
        terms
            .1
            .sort_by(|a, b| a.field.cmp(&b.field).then_with(|| a.value.cmp(&b.value)));
        assert_eq!(terms.0, terms.1, "{text:?}");
    }
}

/// A request line, `METHOD TARGET`: the authorized resource equals that of the path, for every spelling of the path.
pub fn path(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (method, target) = text.split_once(' ').unwrap_or(("GET", text));
    let Ok(method) = Method::from_bytes(method.as_bytes()) else {
        return;
    };
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    let info = RequestInfo::parse(&method, path, query);
    let Route::Resource(parts) = &info.route else {
        assert_eq!(info.attributes().target, Target::Path(path));
        return;
    };
    assert!(!parts.resource.is_empty() && !parts.version.is_empty());
    assert!(parts.subresource.is_empty() || !parts.name.is_empty());
    let Target::Resource {
        resource,
        namespace,
        name,
        subresource,
        ..
    } = info.attributes().target
    else {
        panic!("a resource path must be authorized as a resource");
    };
    assert_eq!(resource, parts.resource);
    assert_eq!(namespace, parts.namespace);
    assert_eq!(subresource, parts.subresource);
    if !parts.name.is_empty() {
        assert_eq!(
            name, parts.name,
            "a selector must not replace the name in the path"
        );
    }

    // The canonical spelling of the same path gives the same request.
    let mut plain = vec![
        if parts.group.is_empty() {
            "api"
        } else {
            "apis"
        }
        .to_owned(),
    ];
    plain.extend((!parts.group.is_empty()).then(|| parts.group.clone()));
    plain.push(parts.version.clone());
    plain.extend((info.verb == Verb::Watch).then(|| "watch".to_owned()));
    if !parts.namespace.is_empty() && parts.resource != "namespaces" {
        plain.extend(["namespaces".to_owned(), parts.namespace.clone()]);
    }
    plain.push(parts.resource.clone());
    plain.extend([&parts.name, &parts.subresource].into_iter().cloned());
    let odd = |segment: &String| segment.contains(['/', '%', '?']);
    if plain.iter().any(odd) || parts.resource == "watch" || parts.resource == "namespaces" {
        return;
    }
    plain.retain(|segment| !segment.is_empty());
    let again = RequestInfo::parse(&method, &format!("/{}", plain.join("/")), query);
    assert_eq!(again, info, "{plain:?}");
}

fn messages() -> impl Iterator<Item = &'static Message> {
    let kinds = [
        ("", "v1", "Pod"),
        ("coordination.k8s.io", "v1", "Lease"),
        ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
    ];
    kinds
        .into_iter()
        .filter_map(|(group, version, kind)| schema::message(group, version, kind))
}

fn assert_canonical(message: &'static Message, value: &Value) {
    let again = canonicalise(message, value.clone());
    assert_eq!(
        again.as_ref(),
        Ok(value),
        "the canonical form is a fixed point"
    );
    let text = serde_json::to_vec(value).expect("a JSON value can be written");
    assert!(
        depth(value) > MAX_DEPTH || serde_json::from_slice::<Value>(&text).is_ok(),
        "a stored object must parse"
    );
}
