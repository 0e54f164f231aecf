//! Request bodies: reads them within a limit, decodes them by content type, and converts them to the stored form.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Value, json};

use super::options::FieldValidation;
use super::yaml;
use crate::fairness::TooLarge;
use crate::limits::MAX_BODY;
use crate::registry::rules::text;
use crate::registry::{CustomVersion, Kind, Version, group_version};
use crate::schema::{self, Message};
use crate::status::{Cause, Failure};
use crate::{canonical, protobuf, strict};

/// Format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media {
    Json,
    Yaml,
    Protobuf,
}

/// A decoded object without `kind` and `apiVersion`, in the version that the client sent.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) value: Value,
    /// Texts of the `Warning` headers.
    pub(super) warnings: Vec<String>,
}

/// Reads a whole body.
pub(super) async fn read<B>(body: B, headers: &HeaderMap) -> Result<Bytes, Failure>
where
    B: hyper::body::Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let too_large = || {
        let message = format!("Request entity too large: limit is {MAX_BODY}");
        Failure::new(413, "RequestEntityTooLarge", message)
    };
    let length = headers
        .get(http::header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok());
    if length
        .and_then(|text| text.parse::<usize>().ok())
        .is_some_and(|length| length > MAX_BODY)
    {
        return Err(too_large());
    }
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() || error.is::<TooLarge>() => Err(too_large()),
        Err(error) => Err(Failure::bad_request(format!(
            "the body of the request could not be read: {error}"
        ))),
    }
}

/// Returns the format of a request body; JSON if there is no content type.
pub(super) fn media(headers: &HeaderMap) -> Result<Media, Failure> {
    match content_type(headers) {
        "" | "application/json" => Ok(Media::Json),
        "application/yaml" => Ok(Media::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Media::Protobuf),
        _ => Err(Failure::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: \
             application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )),
    }
}

/// Returns the media type without parameters.
pub(super) fn content_type(headers: &HeaderMap) -> &str {
    let value = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// Decodes an object of a kind.
pub(super) fn decode(
    kind: &Kind,
    version: &Version,
    media: Media,
    bytes: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Failure> {
    let known = (kind.group(), version.name(), kind.kind());
    if let Some(custom) = &version.custom {
        return decode_custom(custom, known, media, bytes, validation);
    }
    decode_as(known, media, bytes, validation)
}

/// Decodes a custom resource with the schema of its definition.
fn decode_custom(
    custom: &CustomVersion,
    (group, version, kind): (&str, &str, &str),
    media: Media,
    bytes: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Failure> {
    if media == Media::Protobuf {
        return Err(Failure::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: \
             application/json, application/yaml",
        ));
    }
    let (mut value, mut problems) = match media {
        Media::Json => strict::decode(None, bytes)
            .map(|decoded| (decoded.value, decoded.problems))
            .map_err(|error| Failure::bad_request(format!("couldn't get version/kind; {error}")))?,
        _ => yaml::parse(bytes)
            .map(|(value, problem)| (value, problem.into_iter().collect()))
            .map_err(|error| Failure::bad_request(format!("couldn't get version/kind; {error}")))?,
    };
    let Some(map) = value.as_object_mut() else {
        return Err(Failure::bad_request("the body is not an object"));
    };
    let sent_version = take_text(map.remove("apiVersion"));
    let sent_kind = take_text(map.remove("kind"));
    if sent_kind.is_empty() || sent_version.is_empty() {
        let missing = if sent_kind.is_empty() {
            "Kind"
        } else {
            "apiVersion"
        };
        return Err(Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): Object '{missing}' is \
             missing"
        )));
    }
    if sent_kind != kind {
        let cause = Cause::invalid("kind", &json!(sent_kind), &format!("must be {kind}"));
        let name = map.get("metadata").map(|m| text(m, "/name").to_owned());
        let name = name.unwrap_or_default();
        return Err(Failure::invalid((group, &sent_kind), &name, vec![cause]));
    }
    check_kind((group, version, kind), &sent_version, &sent_kind)?;
    let (value, unknown) = custom.schema.canonical(value).map_err(|error| {
        Failure::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {error}"
        ))
    })?;
    problems.extend(unknown.into_iter().map(strict::Problem::Unknown));
    let warnings = validation.warnings(&problems, Failure::bad_request)?;
    Ok(Decoded { value, warnings })
}

/// Decodes an object. Its `apiVersion` and `kind` may be absent, but must not differ from these.
pub(super) fn decode_as(
    (group, version, kind): (&str, &str, &str),
    media: Media,
    bytes: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Failure> {
    let message = schema::message(group, version, kind);
    let unrecognized = |why: &dyn std::fmt::Display| {
        Failure::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): {why}"
        ))
    };
    let (mut value, problems) = match media {
        Media::Json => {
            let decoded = strict::decode(message, bytes)
                .map_err(|error| unrecognized(&format!("couldn't get version/kind; {error}")))?;
            (decoded.value, decoded.problems)
        }
        Media::Yaml => {
            let (value, repeated) = yaml::parse(bytes).map_err(|error| unrecognized(&error))?;
            let unknown = message.map(|message| strict::unknown_fields(message, &value));
            let problems = repeated.into_iter().chain(unknown.into_iter().flatten());
            (value, problems.collect())
        }
        Media::Protobuf => {
            let object =
                protobuf::decode_as(bytes, message).map_err(|error| unrecognized(&error))?;
            (object.value, Vec::new())
        }
    };
    let Some(map) = value.as_object_mut() else {
        return Err(unrecognized(
            &"couldn't get version/kind; the body is not an object",
        ));
    };
    let sent_version = take_text(map.remove("apiVersion"));
    let sent_kind = take_text(map.remove("kind"));
    check_kind((group, version, kind), &sent_version, &sent_kind)?;
    let refuse = |why: &dyn std::fmt::Display| {
        Failure::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
        ))
    };
    let warnings = validation.warnings(&problems, |why| refuse(&why))?;
    let value = canonical(message, value).map_err(|error| refuse(&error))?;
    Ok(Decoded { value, warnings })
}

/// Returns the canonical form of an object, without `kind` and `apiVersion`.
pub(super) fn canonical(
    message: Option<&'static Message>,
    value: Value,
) -> Result<Value, canonical::Error> {
    let mut value = match message {
        Some(message) => canonical::canonicalise(message, value)?,
        None => value,
    };
    if let Some(map) = value.as_object_mut() {
        map.remove("kind");
        map.remove("apiVersion");
    }
    Ok(value)
}

/// Clients send this kind with the API version of the object that they delete.
pub(super) const DELETE_OPTIONS: &str = "DeleteOptions";

/// Checks that `kind` and `apiVersion` of an object are absent or as expected.
fn check_kind(
    (group, version, kind): (&str, &str, &str),
    sent_version: &str,
    sent_kind: &str,
) -> Result<(), Failure> {
    let expected = group_version(group, version);
    if !sent_kind.is_empty() && sent_kind != kind {
        let short = sent_version.rsplit('/').next().unwrap_or(sent_version);
        return Err(Failure::bad_request(format!(
            "{sent_kind} in version {short:?} cannot be handled as a {kind}: unknown conversion"
        )));
    }
    if !sent_version.is_empty() && sent_version != expected && kind != DELETE_OPTIONS {
        let short = sent_version.rsplit('/').next().unwrap_or(sent_version);
        return Err(Failure::bad_request(format!(
            "{kind} in version {short:?} cannot be handled as a {kind}: the API version in the data \
             ({sent_version}) does not match the expected API version ({expected})"
        )));
    }
    Ok(())
}

/// Returns the text of a string value, or an empty text for any other value.
pub(super) fn take_text(value: Option<Value>) -> String {
    match value {
        Some(Value::String(text)) => text,
        _ => String::new(),
    }
}
