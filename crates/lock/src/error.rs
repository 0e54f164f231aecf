//! What can go wrong, in three classes that the elector acts on.

use std::error::Error as StdError;
use std::fmt;

use serde_json::Value;
use tenure_core::Outcome;

use crate::object::ObjectName;

/// A request that was not served. Reads have errors of these classes too; they change nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Definitely not applied: somebody else was first. Look again.
    #[error("cannot {attempt}: {why}")]
    Refused {
        /// What was asked.
        attempt: Attempt,
        /// What came in the way.
        why: Refusal,
    },
    /// May have been applied, may still be, or not.
    #[error("{}: {why}", attempt.in_doubt())]
    Unknown {
        /// What was asked.
        attempt: Attempt,
        /// Why there is no clear answer.
        why: Doubt,
    },
    /// Not applied, and will not be until somebody changes permissions or configuration.
    #[error("cannot {attempt}: {why}")]
    Unusable {
        /// What was asked.
        attempt: Attempt,
        /// What has to be changed.
        why: Obstacle,
    },
}

impl Error {
    /// The class.
    pub fn class(&self) -> Class {
        match self {
            Self::Refused { .. } => Class::Refused,
            Self::Unknown { .. } => Class::Unknown,
            Self::Unusable { .. } => Class::Unusable,
        }
    }

    /// What was asked of which object.
    pub fn attempt(&self) -> &Attempt {
        match self {
            Self::Refused { attempt, .. }
            | Self::Unknown { attempt, .. }
            | Self::Unusable { attempt, .. } => attempt,
        }
    }

    /// The error of a write in the words of `tenure-core`.
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

    /// An answer of the API server, or of something before it, that is not the object.
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
            // Without a Status nobody knows who answered: a proxy in the way proves nothing.
            404 if status.reason != "NotFound" => Self::unknown(verb, object, doubt),
            404 if verb == Verb::Create || status.kind == "namespaces" => {
                unusable(Obstacle::NoNamespace(object.namespace().to_owned()))
            }
            404 => refused(Refusal::Gone),
            400 | 405 | 406 | 413 | 415 | 422 => unusable(Obstacle::Rejected { code, message }),
            _ => Self::unknown(verb, object, doubt),
        }
    }

    /// A request that brought no answer.
    pub(crate) fn from_client(verb: Verb, object: &ObjectName, error: kube::Error) -> Self {
        use kube::Error as E;
        match error {
            // These happen before anything is sent.
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

/// The three classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Definitely not applied; look again.
    Refused,
    /// May have been applied.
    Unknown,
    /// Not applied until somebody changes permissions or configuration.
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

/// What was asked of which object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The verb, as permissions name it.
    pub verb: Verb,
    /// The object.
    pub object: ObjectName,
}

impl Attempt {
    fn new(verb: Verb, object: &ObjectName) -> Self {
        let object = object.clone();
        Self { verb, object }
    }

    fn in_doubt(&self) -> String {
        match self.verb {
            Verb::Get => format!("cannot {self}"),
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
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::Create => "create",
            Self::Update => "update",
        })
    }
}

/// Why a request was definitely not applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// 409: another version, or another object of the same name, is there now.
    #[error("it was changed by somebody else ({0})")]
    Conflict(String),
    /// 409: it was to be created and is there already.
    #[error("it exists already")]
    Exists,
    /// 404: it was to be changed and is not there any more.
    #[error("it does not exist any more")]
    Gone,
    /// Nothing was sent: the version to be replaced is not the one that was handed over.
    #[error("the version to be replaced was not seen")]
    Unseen,
}

/// Why nobody can say whether a request was applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Doubt {
    /// The server, or something before it, could not serve it now: 429, 5xx and the like.
    #[error("the server answered {code}{}", after_colon(message))]
    Answer {
        /// The HTTP status.
        code: u16,
        /// Its words.
        message: String,
    },
    /// No answer: timeout, connection refused or reset.
    #[error("no answer: {}", chain(&**.0))]
    NoAnswer(Box<kube::Error>),
    /// An answer of success that is not the object.
    #[error("the answer is not such an object ({0})")]
    Undecodable(String),
    /// A multi lock wrote its primary object and not its secondary one.
    #[error("the primary object was written, but then: {0}")]
    HalfWritten(Box<Error>),
}

/// What has to be changed before a request can succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// 401: the credentials are not accepted.
    #[error(
        "the credentials are not accepted; needed is {missing}{}",
        after_colon(message)
    )]
    Unauthorized {
        /// What they must permit.
        missing: Permission,
        /// The server's words.
        message: String,
    },
    /// 403: a permission is missing.
    #[error("missing is {missing}{}", after_colon(message))]
    Forbidden {
        /// The missing permission.
        missing: Permission,
        /// The server's words.
        message: String,
    },
    /// 404 on create: there is no such namespace.
    #[error("namespace {0} does not exist; create it first")]
    NoNamespace(String),
    /// 403 on create: the namespace is being deleted.
    #[error("namespace {0} is being deleted")]
    NamespaceEnds(String),
    /// 400, 422 and the like: the server will not take such an object.
    #[error("the server rejects it with {code}{}", after_colon(message))]
    Rejected {
        /// The HTTP status.
        code: u16,
        /// The server's words.
        message: String,
    },
    /// The name cannot be used.
    #[error("{0}")]
    Name(String),
    /// The client could not even send it.
    #[error("the client is not usable: {}", chain(&**.0))]
    Client(Box<kube::Error>),
}

/// A permission: a verb on a resource in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The verb.
    pub verb: Verb,
    /// The object; permissions can be limited to its name, except to create.
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

/// The parts of a Status that tell answers apart. A body that is none has no reason.
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

/// An error with everything that caused it: kube's own text often ends at "client error (Connect)".
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
}
