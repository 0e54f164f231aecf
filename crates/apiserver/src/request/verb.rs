//! Verbs of requests.

use http::Method;

/// The verb of an API request, or the method of a request to a path that is not a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// Reads one object, or GET of a path that is not a resource.
    Get,
    /// Reads a collection.
    List,
    /// Follows changes.
    Watch,
    /// Creates an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes an object.
    Patch,
    /// Deletes an object.
    Delete,
    /// Deletes a collection.
    DeleteCollection,
    /// HEAD of a path that is not a resource.
    Head,
    /// POST to a path that is not a resource.
    Post,
    /// PUT to a path that is not a resource.
    Put,
    /// OPTIONS of any path.
    Options,
    /// Any other method.
    Unknown,
}

impl Verb {
    /// Returns the verb as roles, audit policies and audit events write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Head => "head",
            Self::Post => "post",
            Self::Put => "put",
            Self::Options => "options",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the verb changes nothing.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch | Self::Head)
    }

    /// Returns the verb of a request to a path that is not a resource.
    pub(super) fn of_method(method: &Method) -> Self {
        match *method {
            Method::GET => Self::Get,
            Method::HEAD => Self::Head,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            Method::PATCH => Self::Patch,
            Method::DELETE => Self::Delete,
            Method::OPTIONS => Self::Options,
            _ => Self::Unknown,
        }
    }
}
