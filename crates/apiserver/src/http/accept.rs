//! Content negotiation.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::status::Failure;

/// The requested form of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Form {
    /// The complete object.
    #[default]
    Full,
    /// Only `metadata`.
    Partial,
    /// A list of objects with only `metadata`. Not valid for a single object.
    PartialList,
    /// A Table of this version.
    Table(&'static str),
    /// Aggregated discovery of this version.
    Discovery(&'static str),
}

/// Returns the form of the first clause of `Accept` that this server supports. Responses are JSON.
pub(super) fn negotiate(headers: &HeaderMap) -> Result<Form, Failure> {
    select(headers, |_| true)
}

/// Like [`negotiate`], for a response that has no Table form.
pub(super) fn negotiate_object(headers: &HeaderMap) -> Result<Form, Failure> {
    select(headers, |form| !matches!(form, Form::Table(_)))
}

fn select(headers: &HeaderMap, allowed: fn(Form) -> bool) -> Result<Form, Failure> {
    let (mut any, mut transformed) = (false, false);
    for value in headers.get_all(ACCEPT) {
        let Ok(text) = value.to_str() else { continue };
        for clause in text.split(',') {
            any |= !clause.trim().is_empty();
            transformed |= clause.contains(";as=");
            if let Some(form) = acceptable(clause).filter(|form| allowed(*form)) {
                return Ok(form);
            }
        }
    }
    match (any, transformed) {
        (false, _) => Ok(Form::Full),
        (true, false) => Err(not_acceptable()),
        (true, true) => Err(Failure {
            details: None,
            ..not_acceptable()
        }),
    }
}

pub(super) fn not_acceptable() -> Failure {
    Failure::generic(
        406,
        "NotAcceptable",
        "only the following media types are accepted: application/json, \
         application/json;stream=watch",
    )
}

fn acceptable(clause: &str) -> Option<Form> {
    let mut parts = clause.split(';').map(str::trim);
    if !matches!(parts.next()?, "application/json" | "application/*" | "*/*") {
        return None;
    }
    let (mut group, mut version, mut shape) = ("", "", "");
    for (key, value) in parts.filter_map(|part| part.split_once('=')) {
        match key.trim() {
            "g" => group = value.trim(),
            "v" => version = value.trim(),
            "as" => shape = value.trim(),
            _ => {}
        }
    }
    match (shape, group, version) {
        ("", ..) => Some(Form::Full),
        ("Table", "meta.k8s.io", "v1") => Some(Form::Table("v1")),
        ("Table", "meta.k8s.io", "v1beta1") => Some(Form::Table("v1beta1")),
        ("PartialObjectMetadata", "meta.k8s.io", "v1") => Some(Form::Partial),
        ("PartialObjectMetadataList", "meta.k8s.io", "v1") => Some(Form::PartialList),
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2") => Some(Form::Discovery("v2")),
        ("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2beta1") => {
            Some(Form::Discovery("v2beta1"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &str) -> Result<Form, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().expect("header"));
        negotiate(&headers).map_err(|failure| failure.code)
    }

    #[test]
    fn the_first_acceptable_clause_wins() {
        let cases = [
            ("", Ok(Form::Full)),
            ("*/*", Ok(Form::Full)),
            ("application/vnd.kubernetes.protobuf, */*", Ok(Form::Full)),
            ("application/xml, */*;q=0.1", Ok(Form::Full)),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Ok(Form::Table("v1")),
            ),
            (
                "application/json;as=Nope;v=v1;g=meta.k8s.io,application/json",
                Ok(Form::Full),
            ),
            (
                "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
                Ok(Form::Partial),
            ),
            ("application/json;stream=watch", Ok(Form::Full)),
            ("text/html", Err(406)),
            ("application/vnd.kubernetes.protobuf", Err(406)),
        ];
        for (accept, want) in cases {
            assert_eq!(form(accept), want, "{accept}");
        }
        assert_eq!(negotiate(&HeaderMap::new()).ok(), Some(Form::Full));
        let mut headers = HeaderMap::new();
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        headers.insert(ACCEPT, table.parse().expect("header"));
        assert_eq!(negotiate_object(&headers).unwrap_err().code, 406);
        let either = format!("{table},application/json");
        headers.insert(ACCEPT, either.parse().expect("header"));
        assert_eq!(negotiate_object(&headers).ok(), Some(Form::Full));
    }
}
