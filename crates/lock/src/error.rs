//! Errors of requests, in three classes that the elector acts on.

use std::fmt;

use serde_json::Value;
use tenure_core::Outcome;

use crate::object::ObjectName;
use crate::words::in_words;

/// Start of the text of an error without a connection.
pub const NO_CONNECTION: &str = "cannot connect to";

/// A request that failed. Reads have errors of these classes too, but never change anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request was definitely not applied, because another writer was first. Read again.
    #[error("cannot {attempt}: {why}")]
    Refused {
        /// The attempted request.
        attempt: Attempt,
        /// Reason for the rejection.
        why: Refusal,
    },
    /// It is unknown whether the request was or will be applied.
    #[error("{}: {why}", attempt.in_doubt(why))]
    Unknown {
        /// The attempted request.
        attempt: Attempt,
        /// Reason why the result is unknown.
        why: Doubt,
    },
    /// The request was not applied. A retry cannot succeed until permissions or configuration change.
    #[error("cannot {attempt}: {why}")]
    Unusable {
        /// The attempted request.
        attempt: Attempt,
        /// The problem to solve.
        why: Obstacle,
    },
}

impl Error {
    /// Returns the class.
    pub fn class(&self) -> Class {
        match self {
            Self::Refused { .. } => Class::Refused,
            Self::Unknown { .. } => Class::Unknown,
            Self::Unusable { .. } => Class::Unusable,
        }
    }

    /// Returns the attempted request and its object.
    pub fn attempt(&self) -> &Attempt {
        match self {
            Self::Refused { attempt, .. }
            | Self::Unknown { attempt, .. }
            | Self::Unusable { attempt, .. } => attempt,
        }
    }

    /// Converts the error of a write to the outcome type of `tenure-core`.
    pub fn outcome(&self) -> Outcome {
        self.class().into()
    }

    pub(crate) fn refused(verb: Verb, object: &ObjectName, why: Refusal) -> Self {
        let attempt = Attempt::new(verb, object);
        Self::Refused { attempt, why }
    }

    pub(crate) fn unknown(verb: Verb, object: &ObjectName, why: Doubt) -> Self {
        let attempt = Attempt::new(verb, object);
        Self::Unknown { attempt, why }
    }

    pub(crate) fn unusable(verb: Verb, object: &ObjectName, why: Obstacle) -> Self {
        let attempt = Attempt::new(verb, object);
        Self::Unusable { attempt, why }
    }

    /// Creates an error from a response, of the API server or of a proxy in front of it, that is not the object.
    pub(crate) fn from_answer(verb: Verb, object: &ObjectName, code: u16, body: &str) -> Self {
        let status = Status::parse(body);
        let message = status.message.clone();
        let refused = |why| Self::refused(verb, object, why);
        let unusable = |why| Self::unusable(verb, object, why);
        let doubt = Doubt::Answer {
            code,
            message: message.clone(),
        };
        match code {
            409 if status.reason == "AlreadyExists" => refused(Refusal::Exists),
            409 => refused(Refusal::Conflict(message)),
            401 => unusable(Obstacle::Unauthorized {
                missing: Permission::of(verb, object),
                message,
            }),
            403 if status.cause("NamespaceTerminating") => {
                unusable(Obstacle::NamespaceEnds(object.namespace().to_owned()))
            }
            403 => unusable(Obstacle::Forbidden {
                missing: Permission::of(verb, object),
                message,
            }),
            // Without a Status the sender of the response is unknown. A proxy could have sent it, so it proves nothing.
            404 if status.reason != "NotFound" => Self::unknown(verb, object, doubt),
            404 if verb == Verb::Create || status.kind == "namespaces" => {
                unusable(Obstacle::NoNamespace(object.namespace().to_owned()))
            }
            404 => refused(Refusal::Gone),
            400 | 405 | 406 | 413 | 415 | 422 => unusable(Obstacle::Rejected { code, message }),
            _ => Self::unknown(verb, object, doubt),
        }
    }

    /// Creates an error from a request without a response.
    pub(crate) fn from_client(verb: Verb, object: &ObjectName, error: kube::Error) -> Self {
        use kube::Error as E;
        match error {
            // These errors occur before anything is sent.
            error @ (E::Auth(_)
            | E::TlsRequired
            | E::BuildRequest(_)
            | E::HttpError(_)
            | E::ProxyProtocolUnsupported { .. }
            | E::ProxyProtocolDisabled { .. }
            | E::RustlsTls(_)
            | E::InferConfig(_)
            | E::InferKubeconfig(_)) => {
                Self::unusable(verb, object, Obstacle::Client(Box::new(error)))
            }
            error => Self::unknown(verb, object, Doubt::NoAnswer(Box::new(error))),
        }
    }
}

/// Class of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Definitely not applied. Read again.
    Refused,
    /// May have been applied.
    Unknown,
    /// Not applied. A retry cannot succeed until permissions or configuration change.
    Unusable,
}

impl From<Class> for Outcome {
    fn from(class: Class) -> Self {
        match class {
            Class::Refused => Self::Refused,
            Class::Unknown => Self::Unknown,
            Class::Unusable => Self::Unusable,
        }
    }
}

/// An attempted request and its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The verb as used in permissions.
    pub verb: Verb,
    /// The object.
    pub object: ObjectName,
}

impl Attempt {
    fn new(verb: Verb, object: &ObjectName) -> Self {
        let object = object.clone();
        Self { verb, object }
    }

    fn in_doubt(&self, why: &Doubt) -> String {
        match self.verb {
            Verb::Get | Verb::List => format!("cannot {self}"),
            // Nothing was sent.
            _ if why.is_without_connection() => format!("cannot {self}"),
            verb => format!(
                "the request to {verb} {} may or may not have been applied",
                self.object
            ),
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.object)
    }
}

/// The verbs that locks use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// GET.
    Get,
    /// POST.
    Create,
    /// PUT.
    Update,
    /// GET of many objects.
    List,
    /// DELETE.
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::Create => "create",
            Self::Update => "update",
            Self::List => "list",
            Self::Delete => "delete",
        })
    }
}

/// Reason why a request was definitely not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// 409: the object now has another version, or is another object with the same name.
    #[error("another client changed it ({0})")]
    Conflict(String),
    /// 409: the object that was to be created already exists.
    #[error("it already exists")]
    Exists,
    /// 404: the object that was to be changed no longer exists.
    #[error("it no longer exists")]
    Gone,
    /// Nothing was sent, because the version to be replaced differs from the one passed by the caller.
    #[error("its current version was not read before")]
    Unseen,
}

/// Reason why it is unknown whether a request was applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Doubt {
    /// The server, or a proxy in front of it, could not serve the request now: 429, 5xx and similar.
    #[error("the server answered {code}{}", after_colon(message))]
    Answer {
        /// The HTTP status.
        code: u16,
        /// Message of the server.
        message: String,
    },
    /// No response: timeout, connection refused or reset.
    #[error("{}{}", if self.is_without_connection() { "" } else { "no answer: " }, in_words(&**.0))]
    NoAnswer(Box<kube::Error>),
    /// A successful response whose body is not the object.
    #[error("the response is not a valid object ({0})")]
    Undecodable(String),
    /// A multi lock wrote its primary object but not its secondary one.
    #[error("the primary object was written, but the secondary object was not: {0}")]
    HalfWritten(Box<Error>),
}

impl Doubt {
    /// Returns whether there was no connection, as the clients of `tenure` report it.
    fn is_without_connection(&self) -> bool {
        matches!(self, Self::NoAnswer(error) if in_words(&**error).starts_with(NO_CONNECTION))
    }
}

/// Problem to solve before a request can succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// 401: the credentials are not accepted.
    #[error(
        "the credentials are not accepted; they must grant {missing}{}",
        after_colon(message)
    )]
    Unauthorized {
        /// The permission that the credentials must grant.
        missing: Permission,
        /// Message of the server.
        message: String,
    },
    /// 403: a permission is missing.
    #[error("{missing} is missing{}", after_colon(message))]
    Forbidden {
        /// The missing permission.
        missing: Permission,
        /// Message of the server.
        message: String,
    },
    /// 404 on create: the namespace does not exist.
    #[error("namespace {0} does not exist; create it first")]
    NoNamespace(String),
    /// 403 on create: the namespace is being deleted.
    #[error("namespace {0} is being deleted")]
    NamespaceEnds(String),
    /// 400, 422 and similar: the server does not accept such an object.
    #[error("the server rejects it with {code}{}", after_colon(message))]
    Rejected {
        /// The HTTP status.
        code: u16,
        /// Message of the server.
        message: String,
    },
    /// The name is invalid.
    #[error("{0}")]
    Name(String),
    /// The client could not send the request.
    #[error("the client is not usable: {}", in_words(&**.0))]
    Client(Box<kube::Error>),
}

/// A permission: a verb on a resource in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The verb.
    pub verb: Verb,
    /// The object. Permissions can be limited to its name, except for create.
    pub object: ObjectName,
}

impl Permission {
    fn of(verb: Verb, object: &ObjectName) -> Self {
        let object = object.clone();
        Self { verb, object }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (resource, namespace) = (self.object.resource().qualified(), self.object.namespace());
        write!(
            f,
            "the permission to {} {resource} in namespace {namespace}",
            self.verb
        )
    }
}

/// The fields of a Status that distinguish responses. A body that is not a Status has no reason.
struct Status {
    message: String,
    reason: String,
    kind: String,
    causes: Vec<String>,
}

impl Status {
    fn parse(body: &str) -> Self {
        let parsed = serde_json::from_str::<Value>(body).unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut message = text(&parsed["message"]);
        if message.is_empty() {
            message = body.trim().chars().take(200).collect();
        }
        let causes = parsed["details"]["causes"].as_array();
        Self {
            message,
            reason: text(&parsed["reason"]),
            kind: text(&parsed["details"]["kind"]),
            causes: causes.map_or_else(Vec::new, |causes| {
                causes.iter().map(|cause| text(&cause["reason"])).collect()
            }),
        }
    }

    fn cause(&self, reason: &str) -> bool {
        self.causes.iter().any(|cause| cause == reason)
    }
}

fn after_colon(message: &str) -> String {
    if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Resource;

    #[test]
    fn write_without_a_connection_is_reported_as_not_sent() {
        let name = ObjectName::new(Resource::LEASE, "foo", "bar");
        let report = |cause: &str| {
            let error = kube::Error::Service(cause.into());
            Error::from_client(Verb::Update, &name, error).to_string()
        };
        let unconnected = format!("{NO_CONNECTION} 10.0.0.1:6443: connection refused");
        assert_eq!(
            report(&unconnected),
            "cannot update lease foo/bar: cannot connect to 10.0.0.1:6443: connection refused"
        );
        assert_eq!(
            report("connection reset"),
            "the request to update lease foo/bar may or may not have been applied: \
             no answer: connection reset"
        );
    }
}
