//! Recorded pairs of JSON and protobuf, and malformed bytes.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::*;

/// The recorded pairs: (file name, JSON, protobuf).
fn pairs() -> Vec<(String, Value, Vec<u8>)> {
    use base64::Engine as _;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/protobuf");
    let mut pairs = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let pair: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let bytes = pair["protobuf"].as_str().unwrap();
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(bytes)
            .unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        pairs.push((name, pair["json"].clone(), bytes));
    }
    pairs
}

#[test]
fn every_recorded_pair_decodes_to_its_json() {
    let pairs = pairs();
    assert_eq!(pairs.len(), 21);
    for (name, json, bytes) in pairs {
        let object = decode(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(object.kind, json["kind"], "{name}");
        assert_eq!(object.api_version, json["apiVersion"], "{name}");
        assert_eq!(object.value, json, "{name}");
    }
}

#[test]
fn every_recorded_json_is_canonical_and_known() {
    for (name, json, _) in pairs() {
        let api_version = json["apiVersion"].as_str().unwrap();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let message = schema::message(group, version, json["kind"].as_str().unwrap()).unwrap();
        assert_eq!(crate::strict::unknown_fields(message, &json), [], "{name}");
        assert_eq!(canonicalise(message, json.clone()).unwrap(), json, "{name}");
    }
}

#[test]
fn truncated_body_never_panics() {
    for (_, _, bytes) in pairs() {
        for length in 0..bytes.len() {
            let _ = decode(&bytes[..length]);
        }
    }
}

fn body(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| {
        let mut out = vec![number << 3 | 2];
        let mut length = bytes.len();
        while length >= 0x80 {
            out.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
            length >>= 7;
        }
        out.push(u8::try_from(length).unwrap());
        out.extend_from_slice(bytes);
        out
    };
    let mut meta = field(1, api_version.as_bytes());
    meta.extend(field(2, kind.as_bytes()));
    let mut body = MAGIC.to_vec();
    body.extend(field(1, &meta));
    body.extend(field(2, raw));
    body
}

#[test]
fn delete_options_are_decoded_with_any_group() {
    // gracePeriodSeconds: 0, preconditions.uid: "u", propagationPolicy: "Background"
    let raw = b"\x08\x00\x12\x03\x0a\x01u\x22\x0aBackground";
    for api_version in ["v1", "coordination.k8s.io/v1", "meta.k8s.io/v1"] {
        let object = decode(&body(api_version, "DeleteOptions", raw)).unwrap();
        let expected = json!({
            "apiVersion": api_version, "kind": "DeleteOptions", "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u"}, "propagationPolicy": "Background",
        });
        assert_eq!(object.value, expected);
    }
}

#[test]
fn an_envelope_without_a_kind_takes_the_default() {
    let lease = schema::message("coordination.k8s.io", "v1", "Lease");
    let bytes = body("", "", b"\x0a\x03\x0a\x01l");
    assert_eq!(
        decode_as(&bytes, lease).unwrap().value,
        json!({"metadata": {"name": "l"}, "spec": {}})
    );
    assert!(matches!(decode(&bytes), Err(Error::UnknownKind { .. })));
}

#[test]
fn body_without_protobuf_prefix_is_rejected() {
    assert_eq!(decode(b""), Err(Error::Magic));
    assert_eq!(decode(b"{\"kind\":\"Lease\"}"), Err(Error::Magic));
    let unknown = decode(&body("example.com/v1", "Thing", b"")).unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "no kind \"Thing\" is registered for version \"example.com/v1\""
    );
    assert_eq!(
        decode(&body("v1", "ConfigMap", b"\x0a\x02\x0a")),
        Err(Error::Truncated)
    );
    assert_eq!(
        decode(&body("v1", "ConfigMap", b"\x08\x01")),
        Err(Error::WireType)
    );
    assert_eq!(
        decode(&body("v1", "ConfigMap", b"\x0a\x03\x0a\x01\xff")),
        Err(Error::Utf8)
    );
}

#[test]
fn deep_and_wide_messages_are_refused() {
    // JSONSchemaProps.not (field 28) inside itself.
    let mut schema = Vec::new();
    for _ in 0..60 {
        let mut outer = vec![0xe2, 0x01];
        let length = schema.len();
        outer.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        outer.push(u8::try_from(length >> 7).unwrap());
        outer.extend(schema);
        schema = outer;
    }
    let props = schema::message_by_name("apiextensions/v1.JSONSchemaProps").unwrap();
    assert_eq!(decode_message(props, &schema), Err(Error::TooDeep));
    let finalizers = b"\x72\x00".repeat(MAX_VALUES + 1);
    let meta = schema::message_by_name("meta/v1.ObjectMeta").unwrap();
    assert_eq!(decode_message(meta, &finalizers), Err(Error::TooMany));
}

#[test]
fn unknown_fields_are_skipped_and_repeated_messages_merge() {
    let bytes = b"\x0a\x03\x0a\x01l\x0a\x03\x1a\x01n\xf8\x07\x01";
    let object = decode(&body("v1", "ConfigMap", bytes)).unwrap();
    assert_eq!(
        object.value["metadata"],
        json!({"name": "l", "namespace": "n"})
    );
}
