//! The error body of the API: a `Status`.
//!
//! Invariant: the HTTP code equals `code`, and `reason`, `details` and `causes` equal those of the real server for the
//! same error, because clients branch on them. The real server omits `details` for some errors; therefore
//! [`Failure::details`] is an `Option`.

use std::collections::HashSet;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value, json};

/// A failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// HTTP code.
    pub code: u16,
    /// CamelCase reason, which clients compare. Empty for failures that have none.
    pub reason: &'static str,
    /// Human-readable message.
    pub message: String,
    /// The object that the failure is about, and its causes.
    pub details: Option<Box<Details>>,
    /// A token to continue an expired list, without consistency.
    pub continue_token: Option<String>,
}

/// The object that a failure is about, and its causes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// Object name, may be empty.
    pub name: String,
    /// API group, empty for core.
    pub group: String,
    /// Plural resource, or the kind for validation errors.
    pub kind: String,
    /// Object uid, may be empty.
    pub uid: String,
    /// One entry per invalid field.
    pub causes: Vec<Cause>,
    /// Seconds after which a retry may succeed.
    pub retry_after_seconds: Option<u32>,
}

/// One invalid field.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// Machine-readable reason, for example `FieldValueInvalid`.
    pub reason: &'static str,
    /// Description of the error.
    pub message: String,
    /// Path of the field, empty if there is none.
    pub field: String,
}

/// Returns the text of a `Status` object, with its members in the order of the real server.
pub(crate) fn status_text(status: &Value) -> String {
    const TOP: &[&str] = &[
        "kind",
        "apiVersion",
        "metadata",
        "status",
        "message",
        "reason",
        "details",
        "code",
    ];
    const INNER: &[&str] = &[
        "name", "group", "kind", "uid", "causes", "reason", "message",
    ];
    crate::json::ordered(status, TOP, INNER) + "\n"
}

/// Returns the name of a resource for messages: `leases.coordination.k8s.io`, `configmaps`.
#[must_use]
pub fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() {
        name.to_owned()
    } else {
        format!("{name}.{group}")
    }
}

impl From<crate::store::Unavailable> for Failure {
    fn from(error: crate::store::Unavailable) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl Failure {
    /// Creates a failure without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: None,
            continue_token: None,
        }
    }

    /// Creates a failure with empty details, which the real server sends in some cases.
    pub fn generic(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            details: Some(Box::default()),
            ..Self::new(code, reason, message)
        }
    }

    /// Creates a failure about one object of a resource.
    pub fn about(
        code: u16,
        reason: &'static str,
        (group, kind): (&str, &str),
        name: &str,
        message: impl Into<String>,
    ) -> Self {
        let details = Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        };
        Self {
            details: Some(Box::new(details)),
            ..Self::new(code, reason, message)
        }
    }

    /// 400: the request is malformed.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 401: the credentials are invalid.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// 403: authorization denied the request.
    #[must_use]
    pub fn forbidden(user: &str, attributes: &crate::request::Attributes<'_>, why: &str) -> Self {
        use crate::request::Target;
        let tail = if why.is_empty() {
            String::new()
        } else {
            format!(": {why}")
        };
        let verb = attributes.verb;
        match attributes.target {
            Target::Path(path) => Self::generic(
                403,
                "Forbidden",
                format!("forbidden: User {user:?} cannot {verb} path {path:?}{tail}"),
            ),
            Target::Resource {
                group,
                resource,
                subresource,
                namespace,
                name,
            } => {
                let mut message = qualified(resource, group);
                if !name.is_empty() {
                    _ = write!(message, " {name:?}");
                }
                let full = if subresource.is_empty() {
                    resource.to_owned()
                } else {
                    format!("{resource}/{subresource}")
                };
                _ = write!(
                    message,
                    " is forbidden: User {user:?} cannot {verb} resource {full:?} in API group \
                     {group:?} "
                );
                if namespace.is_empty() {
                    message.push_str("at the cluster scope");
                } else {
                    _ = write!(message, "in the namespace {namespace:?}");
                }
                message.push_str(&tail);
                Self::about(403, "Forbidden", (group, resource), name, message)
            }
        }
    }

    /// 404: the object does not exist.
    #[must_use]
    pub fn not_found((group, resource): (&str, &str), name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(resource, group));
        Self::about(404, "NotFound", (group, resource), name, message)
    }

    /// 404: the resource does not exist in an existing group.
    #[must_use]
    pub fn no_resource() -> Self {
        Self::generic(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    /// 405: the resource does not support the method.
    #[must_use]
    pub fn method_not_allowed() -> Self {
        Self::generic(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// 409: the object already exists.
    #[must_use]
    pub fn already_exists((group, resource): (&str, &str), name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(resource, group));
        Self::about(409, "AlreadyExists", (group, resource), name, message)
    }

    /// 409: a precondition failed.
    #[must_use]
    pub fn conflict((group, resource): (&str, &str), name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {name:?}: {why}",
            qualified(resource, group)
        );
        Self::about(409, "Conflict", (group, resource), name, message)
    }

    /// 409: another client wrote first.
    #[must_use]
    pub fn modified(resource: (&str, &str), name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and \
             try again",
        )
    }

    /// 422: fields are invalid. `causes` must not be empty.
    #[must_use]
    pub fn invalid((group, kind): (&str, &str), name: &str, causes: Vec<Cause>) -> Self {
        let mut causes = causes;
        let more = causes.len().saturating_sub(MOST_CAUSES);
        causes.truncate(MOST_CAUSES);
        let texts = causes.iter();
        let mut list: Vec<String> = texts
            .map(|cause| format!("{}: {}", cause.field, cause.message))
            .collect();
        let mut seen = HashSet::new();
        list.retain(|text| seen.insert(text.clone()));
        if more > 0 {
            list.push(format!("and {more} more errors"));
        }
        let list = if list.len() == 1 {
            list.remove(0)
        } else {
            format!("[{}]", list.join(", "))
        };
        let message = format!("{} {name:?} is invalid: {list}", qualified(kind, group));
        let mut failure = Self::about(422, "Invalid", (group, kind), name, message);
        if let Some(details) = &mut failure.details {
            details.causes = causes;
        }
        failure
    }

    /// 422: a query parameter is invalid; `options` is `ListOptions`, `CreateOptions` and so on.
    #[must_use]
    pub fn invalid_options(options: &str, cause: Cause) -> Self {
        Self::invalid(("meta.k8s.io", options), "", vec![cause])
    }

    /// 410: the requested revision is no longer available.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 503: the storage is unavailable; nothing was changed.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut failure = Self::generic(503, "ServiceUnavailable", message);
        if let Some(details) = &mut failure.details {
            details.retry_after_seconds = Some(1);
        }
        failure
    }

    /// 429: nothing was done, and a retry may succeed soon. Clients retry on their own.
    pub fn try_again(message: impl Into<String>) -> Self {
        let mut failure = Self::generic(429, "TooManyRequests", message);
        if let Some(details) = &mut failure.details {
            details.retry_after_seconds = Some(1);
        }
        failure
    }

    /// 500: an internal error.
    pub fn internal(message: impl Into<String>) -> Self {
        let message = message.into();
        let mut failure = Self::generic(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        );
        if let Some(details) = &mut failure.details {
            details.causes = vec![Cause {
                reason: "",
                message,
                field: String::new(),
            }];
        }
        failure
    }

    /// Returns the `Status` object.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(token) = &self.continue_token {
            metadata.insert("continue".into(), json!(token));
        }
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(details) = &self.details {
            status["details"] = details.to_value();
        }
        status
    }
}

impl Details {
    /// Returns the JSON form without empty members.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        let texts = [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
        ];
        for (key, text) in texts.into_iter().chain([("uid", &self.uid)]) {
            if !text.is_empty() {
                out.insert(key.into(), json!(text));
            }
        }
        if !self.causes.is_empty() {
            out.insert(
                "causes".into(),
                self.causes.iter().map(Cause::to_value).collect(),
            );
        }
        if let Some(seconds) = self.retry_after_seconds {
            out.insert("retryAfterSeconds".into(), json!(seconds));
        }
        Value::Object(out)
    }
}

impl Cause {
    /// An invalid value.
    pub fn invalid(field: impl Into<String>, value: &Value, why: &str) -> Self {
        let message = format!("Invalid value: {}: {why}", shown(value));
        Self {
            reason: "FieldValueInvalid",
            message,
            field: field.into(),
        }
    }

    /// A required value that is missing.
    pub fn required(field: impl Into<String>, why: &str) -> Self {
        let message = if why.is_empty() {
            "Required value".to_owned()
        } else {
            format!("Required value: {why}")
        };
        Self {
            reason: "FieldValueRequired",
            message,
            field: field.into(),
        }
    }

    /// A value that is not allowed here.
    pub fn forbidden(field: impl Into<String>, why: &str) -> Self {
        let message = format!("Forbidden: {why}");
        Self {
            reason: "FieldValueForbidden",
            message,
            field: field.into(),
        }
    }

    /// A value outside a fixed set.
    pub fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let mut list = String::new();
        for (index, text) in supported.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            if list.len() > MOST_SHOWN {
                list.push_str(", ...");
                break;
            }
            list.push_str(&format!("{comma}{:?}", shortened(text)));
        }
        let message = format!(
            "Unsupported value: {}: supported values: {list}",
            shown(value)
        );
        Self {
            reason: "FieldValueNotSupported",
            message,
            field: field.into(),
        }
    }

    /// A duplicate value.
    pub fn duplicate(field: impl Into<String>, value: &Value) -> Self {
        let message = format!("Duplicate value: {}", shown(value));
        Self {
            reason: "FieldValueDuplicate",
            message,
            field: field.into(),
        }
    }

    /// A value that is too large.
    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        let message = format!("Too long: may not be more than {limit} bytes");
        Self {
            reason: "FieldValueTooLong",
            message,
            field: field.into(),
        }
    }

    fn to_value(&self) -> Value {
        let mut out = Map::new();
        let texts = [
            ("reason", self.reason),
            ("message", &self.message),
            ("field", self.field.as_str()),
        ];
        for (key, text) in texts {
            if !text.is_empty() {
                out.insert(key.into(), json!(text));
            }
        }
        Value::Object(out)
    }
}

/// Maximum number of causes in a response.
const MOST_CAUSES: usize = 100;

/// Number of errors after which a check of an object ends, because one error can repeat many bytes of the request.
pub(crate) const MOST_FOUND: usize = 2 * MOST_CAUSES;

/// Maximum number of characters of a name that a response repeats.
const MOST_OF_NAME: usize = 253;

/// Shortens a text that is too long for a valid name. Otherwise, the path of each member of a map would repeat it.
pub(crate) fn shortened(text: &str) -> &str {
    match text.char_indices().nth(MOST_OF_NAME) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// Maximum number of bytes of a value that a response repeats.
const MOST_SHOWN: usize = 4_096;

/// Returns a value as JSON, truncated if it is long.
fn shown(value: &Value) -> String {
    struct Beginning(String);
    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let rest = MOST_SHOWN.saturating_sub(self.0.len());
            if text.len() <= rest {
                self.0.push_str(text);
                return Ok(());
            }
            let end = (0..=rest).rev().find(|end| text.is_char_boundary(*end));
            self.0.push_str(&text[..end.unwrap_or(0)]);
            // Stops the serializer, so that the rest of the value is not visited.
            Err(fmt::Error)
        }
    }
    let mut beginning = Beginning(String::new());
    match fmt::write(&mut beginning, format_args!("{value}")) {
        Ok(()) => beginning.0,
        Err(fmt::Error) => beginning.0 + "...",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Attributes, Target};

    #[test]
    fn details_appear_only_where_the_real_server_sends_them() {
        assert!(
            Failure::bad_request("x")
                .to_value()
                .get("details")
                .is_none()
        );
        assert_eq!(Failure::no_resource().to_value()["details"], json!({}));
        let lease = ("coordination.k8s.io", "leases");
        assert_eq!(
            Failure::not_found(lease, "l").to_value(),
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "leases.coordination.k8s.io \"l\" not found", "reason": "NotFound",
                "details": {"name": "l", "group": "coordination.k8s.io", "kind": "leases"},
                "code": 404})
        );
    }

    #[test]
    fn several_causes_are_bracketed_without_repetitions() {
        let causes = vec![
            Cause::required("spec.a", ""),
            Cause::required("spec.b", "why"),
        ];
        let failure = Failure::invalid(("", "Pod"), "p", causes);
        assert_eq!(
            failure.message,
            "Pod \"p\" is invalid: [spec.a: Required value, spec.b: Required value: why]"
        );
        let one = Failure::invalid(("", "Pod"), "p", vec![Cause::required("a", ""); 2]);
        assert_eq!(one.message, "Pod \"p\" is invalid: a: Required value");
    }

    #[test]
    fn forbidden_names_verb_resource_and_scope() {
        let target = Target::Resource {
            group: "",
            resource: "nodes",
            subresource: "",
            namespace: "",
            name: "",
        };
        let failure = Failure::forbidden(
            "alice",
            &Attributes {
                verb: "list",
                target,
            },
            "",
        );
        assert_eq!(
            failure.message,
            "nodes is forbidden: User \"alice\" cannot list resource \"nodes\" in API group \"\" \
             at the cluster scope"
        );
    }
}
