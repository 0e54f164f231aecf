//! Who is asking, and may they.

use std::collections::BTreeMap;

/// An authenticated caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Login name (`kubernetes-admin`, `system:serviceaccount:NS:NAME`, `system:anonymous`).
    pub name: String,
    /// Opaque id; may be empty.
    pub uid: String,
    /// Groups, `system:authenticated` or `system:unauthenticated` among them.
    pub groups: Vec<String>,
    /// Further claims, for reviews.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What a request wants to do, as authorization sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or for
    /// non-resource paths the lower-case HTTP method.
    pub verb: &'a str,
    /// What it wants to do it to.
    pub target: Target<'a>,
}

/// The object of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// An API resource.
    Resource {
        /// API group, empty for core.
        group: &'a str,
        /// Plural name.
        resource: &'a str,
        /// Subresource, empty for none.
        subresource: &'a str,
        /// Namespace, empty for cluster scope or all namespaces.
        namespace: &'a str,
        /// Name, empty where the request names none.
        name: &'a str,
    },
    /// Any other path.
    Path(&'a str),
}
