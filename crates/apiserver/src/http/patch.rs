//! PATCH: applies the change in the body to the stored object.

use std::sync::Mutex;

use http::Response;
use serde_json::{Value, json};

use super::Body;
use super::body;
use super::options::{self, FieldValidation};
use super::resource::{Call, check_name};
use super::yaml;
use crate::patch;
use crate::registry::rules::text;
use crate::registry::{Configuration, Source, Target, WriteOptions};
use crate::schema::{self, Message};
use crate::status::{Cause, Failure};
use crate::strict::{self, Problem};

/// Media types of patches, without `application/`.
const KINDS: &[&str] = &[
    "json-patch+json",
    "merge-patch+json",
    "strategic-merge-patch+json",
    APPLY,
];
/// The media type of server-side apply.
pub(super) const APPLY: &str = "apply-patch+yaml";

/// A patch before it is applied.
struct Change<'a> {
    kind: &'a str,
    bytes: &'a [u8],
}

impl Call<'_> {
    /// Applies a patch. Repeats it if another client writes the object concurrently.
    pub(super) async fn patch<B>(&mut self, body: B) -> Result<Response<Body>, Failure>
    where
        B: hyper::body::Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.form()?;
        let (short, options) = self.patch_options()?;
        let validation = options::field_validation(&self.query, "PatchOptions")?;
        let bytes = body::read(body, &self.parts.headers).await?;
        if short == APPLY {
            return self.apply(&bytes, &options, validation).await;
        }
        let change = Change {
            kind: short,
            bytes: &bytes,
        };
        let target = self.target;
        let warnings = Mutex::new(Vec::new());
        let apply = |old: &Value| {
            let (new, found) = apply(&target, &change, old, validation)?;
            if let Ok(mut warnings) = warnings.lock() {
                *warnings = found;
            }
            Ok(new)
        };
        let heavy = short == "json-patch+json" && patch::is_heavy(&bytes);
        let tenant = self.tenant;
        let write = self.store(Source::Patch(&apply), &options);
        let answer = match tenant.filter(|_| heavy) {
            Some(tenant) => tenant.off_workers(Box::pin(write)).await.flatten(),
            None => write.await,
        };
        self.warnings
            .extend(warnings.into_inner().unwrap_or_default());
        answer
    }
}

impl Call<'_> {
    /// Returns the kind of the patch and the options of the write.
    pub(super) fn patch_options(&self) -> Result<(&'static str, WriteOptions), Failure> {
        let content_type = body::content_type(&self.parts.headers);
        let short = content_type.strip_prefix("application/");
        let mut kinds = KINDS.iter().copied();
        let Some(kind) = kinds.find(|kind| short == Some(*kind)) else {
            return Err(unsupported());
        };
        let options = options::write_options(&self.query, &self.parts.headers, "PatchOptions")?;
        let refuse = |cause| Err(Failure::invalid_options("PatchOptions", cause));
        if kind == APPLY && self.query.text("fieldManager").is_none() {
            let why = "is required for apply patch";
            return refuse(Cause::required("fieldManager", why));
        }
        if kind != APPLY && self.query.get("force").is_some() {
            let why = "may not be specified for non-apply patch";
            return refuse(Cause::forbidden("force", why));
        }
        Ok((kind, options))
    }

    /// Applies a configuration: the fields that the manager wants an object to have. The object may be absent.
    async fn apply(
        &mut self,
        bytes: &[u8],
        options: &WriteOptions,
        validation: FieldValidation,
    ) -> Result<Response<Body>, Failure> {
        let target = self.target;
        let (mut object, problem) = configuration(bytes)?;
        let stated = |pointer: &str| text(&object, pointer).to_owned();
        let place = stated("/metadata/namespace") + "/" + &stated("/metadata/name");
        let mut member = |name: &str| take_member(&mut object, name);
        let store = |object: Value| {
            // `check` has already rejected unknown fields, so only values remain to be checked.
            let finished = finish(&target, object, FieldValidation::Ignore);
            let (mut value, _) = finished.map_err(|failure| match target.version.custom {
                Some(_) => failure,
                None => unconverted(&target, &place, &failure),
            })?;
            // The configuration may omit the name.
            let metadata = crate::registry::meta::metadata(&mut value);
            metadata.entry("name").or_insert_with(|| json!(target.name));
            check_name(&target, &value)?;
            Ok(value)
        };
        let configuration = Configuration {
            api_version: member("apiVersion"),
            kind: member("kind"),
            object,
            force: self.query.flag("force"),
            store: &store,
        };
        let strict = validation == FieldValidation::Strict;
        if let Some(problem) = problem.as_ref().filter(|_| strict) {
            let start = match problem {
                Problem::Repeated { .. } => {
                    "error converting YAML to JSON: yaml: unmarshal errors:\n  "
                }
                _ => "",
            };
            let message = format!("error strict decoding YAML: {start}{problem}");
            return Err(Failure::bad_request(message));
        }
        let warned = problem.filter(|_| validation == FieldValidation::Warn);
        self.warnings
            .extend(warned.map(|problem| problem.to_string()));
        self.store(Source::Apply(configuration), options).await
    }
}

/// Removes a member from an object and returns its text.
pub(super) fn take_member(object: &mut Value, name: &str) -> String {
    let member = object.as_object_mut().and_then(|map| map.remove(name));
    body::take_text(member)
}

/// Parses a configuration in JSON or YAML. Also returns the first strict decoding error, if there is one.
pub(super) fn configuration(bytes: &[u8]) -> Result<(Value, Option<Problem>), Failure> {
    let bad =
        |why: &dyn std::fmt::Display| Failure::bad_request(format!("error decoding YAML: {why}"));
    let (value, problem) = match strict::decode(None, bytes) {
        Ok(decoded) => (decoded.value, decoded.problems.into_iter().next()),
        Err(_) => yaml::parse(bytes).map_err(|error| bad(&error))?,
    };
    if value.is_object() {
        Ok((value, problem))
    } else {
        Err(bad(&"the document is not an object"))
    }
}

impl Change<'_> {
    fn apply(&self, message: Option<&'static Message>, object: Value) -> Result<Value, Failure> {
        if self.kind == "json-patch+json" {
            return patch::json(object, self.bytes).map_err(|error| failure(&error));
        }
        let change: Value = serde_json::from_slice(self.bytes)
            .map_err(|error| Failure::bad_request(format!("error decoding patch: {error}")))?;
        if !change.is_object() {
            return Err(Failure::bad_request(
                "error decoding patch: it is not an object",
            ));
        }
        let patched = match (self.kind, message) {
            ("merge-patch+json", _) => patch::merge(object, change),
            (_, Some(message)) => patch::strategic(message, object, change),
            (_, None) => {
                return Err(Failure::new(
                    415,
                    "UnsupportedMediaType",
                    "the body of the request was in an unknown format - accepted media types \
                     include: application/json-patch+json, application/merge-patch+json, \
                     application/apply-patch+yaml",
                ));
            }
        };
        patched.map_err(|error| failure(&error))
    }
}

/// Returns 422: the patched object is not a valid object of its kind.
fn unfit(why: &str) -> Failure {
    let cause = Cause::invalid("patch", &json!("the patched object"), why);
    Failure::invalid(("", ""), "", vec![cause])
}

/// Returns the error about a configuration whose types fit the schema, but which has an invalid value: for example a time
/// or a quantity. The real server finds it late, and responds as if it were its own mistake.
///
/// `place` is the namespace and the name that the configuration states.
fn unconverted(target: &Target<'_>, place: &str, failure: &Failure) -> Failure {
    let Target { kind, version, .. } = target;
    let causes = failure.details.iter().flat_map(|details| &details.causes);
    let whys: Vec<&str> = causes.map(|cause| cause.message.as_str()).collect();
    let what = format!("{}/{}, Kind={}", kind.group(), version.name(), kind.kind());
    let message = format!(
        "failed to convert new object ({place}; {what}) to proper version: unable to \
         convert unstructured object to {what}: {}",
        whys.join("; ")
    );
    Failure::new(500, "", message)
}

fn failure(error: &patch::Error) -> Failure {
    match error.code() {
        413 => Failure::new(413, "RequestEntityTooLarge", error.to_string()),
        422 => Failure::generic(422, "Invalid", error.to_string()),
        _ => Failure::bad_request(error.to_string()),
    }
}

fn unsupported() -> Failure {
    Failure::generic(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: \
         application/json-patch+json, application/merge-patch+json, \
         application/strategic-merge-patch+json, application/apply-patch+yaml",
    )
}

/// Returns the stored form after the change, and warnings about unknown fields.
fn apply(
    target: &Target<'_>,
    change: &Change<'_>,
    old: &Value,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Failure> {
    let Target { kind, version, .. } = *target;
    let message = schema::message(kind.group(), version.name(), kind.kind());
    let mut object = match version.conversion {
        Some(conversion) => (conversion.from_stored)(old.clone()),
        None => old.clone(),
    };
    let api_version = kind.api_version(version);
    object["kind"] = json!(kind.kind());
    object["apiVersion"] = json!(api_version);
    let object = change.apply(message, object)?;
    let (now_kind, now_version) = (object.get("kind"), object.get("apiVersion"));
    let same = |value: Option<&Value>, want: &str| value.is_none_or(|v| v == want || v.is_null());
    if !same(now_kind, kind.kind()) || !same(now_version, &api_version) {
        return Err(unfit("a patch cannot change kind or apiVersion"));
    }
    let (value, warnings) = finish(target, object, validation)?;
    check_name(target, &value)?;
    Ok((value, warnings))
}

/// Returns the stored form of a patched object, and warnings about it.
pub(super) fn finish(
    target: &Target<'_>,
    object: Value,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), Failure> {
    let Target { kind, version, .. } = *target;
    let message = schema::message(kind.group(), version.name(), kind.kind());
    let (object, problems) = match (&version.custom, message) {
        (Some(custom), _) => {
            let found = custom.schema.canonical(object);
            let (value, unknown) = found.map_err(|error| unfit(&error.to_string()))?;
            let unknown = unknown.into_iter().map(Problem::Unknown);
            (value, unknown.collect())
        }
        (None, Some(message)) => {
            let problems = strict::unknown_fields(message, &object);
            (object, problems)
        }
        (None, None) => (object, Vec::new()),
    };
    let mut warnings = validation.warnings(&problems, |why| unfit(&why))?;
    let mut value = body::canonical(message, object).map_err(|error| unfit(&error.to_string()))?;
    if let Some(conversion) = version.conversion {
        value = (conversion.to_stored)(value);
    }
    warnings.extend(crate::registry::meta::unique_owners(&mut value));
    Ok((value, warnings))
}
