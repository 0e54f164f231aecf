//! Verb and target of a request, parsed from its method, path and query.
//!
//! Paths of all kinds have the same structure. The registry decides later whether the resource exists.
//!
//! Invariant: authorization and handling use the same [`RequestInfo`], so that no request is authorized as another.

mod query;
mod verb;

use http::Method;

pub use verb::Verb;

pub(crate) use query::{Query, percent_decode, query_value};

/// The parts of a request line that authorization uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// The verb as roles write it: [`Verb::as_str`], or any text that an access review asks about, for example
    /// `impersonate`.
    pub verb: &'a str,
    /// The object or path of the request.
    pub target: Target<'a>,
}

/// The object of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        /// Name, empty for a collection.
        name: &'a str,
    },
    /// Any other path.
    Path(&'a str),
}

/// The parsed line of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// The verb of the request.
    pub verb: Verb,
    /// The parsed path.
    pub route: Route,
}

/// The path of a request: a resource path, or any other path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// `/api/v1/...`, `/apis/GROUP/VERSION/...` with a resource.
    Resource(ResourcePath),
    /// Everything else: discovery, health, metrics.
    Other(String),
}

/// The parts of a resource path; absent parts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePath {
    /// API group, empty for core.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, empty for cluster scope or all namespaces.
    pub namespace: String,
    /// Plural name.
    pub resource: String,
    /// Object name from the path.
    pub name: String,
    /// Subresource, with further segments joined by `/`.
    pub subresource: String,
    /// The name in a `metadata.name=x` field selector of a list or watch. Authorization treats it as the name of the
    /// object.
    pub selected_name: String,
}

impl RequestInfo {
    /// Parses a request line. A path that is not a resource path becomes [`Route::Other`].
    #[must_use]
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Self {
        match resource_path(path) {
            Some((mut resource, legacy_watch)) => {
                let query = Query::new(query.unwrap_or_default());
                let verb = resource_verb(method, &resource, legacy_watch, &query);
                let collection = matches!(verb, Verb::List | Verb::Watch | Verb::DeleteCollection);
                if collection && resource.name.is_empty() {
                    resource.selected_name = selected_name(&query);
                }
                Self {
                    verb,
                    route: Route::Resource(resource),
                }
            }
            None => Self {
                verb: Verb::of_method(method),
                route: Route::Other(path.to_owned()),
            },
        }
    }

    /// Returns the attributes that must be authorized for this request.
    #[must_use]
    pub fn attributes(&self) -> Attributes<'_> {
        let target = match &self.route {
            Route::Other(path) => Target::Path(path),
            Route::Resource(path) => Target::Resource {
                group: &path.group,
                resource: &path.resource,
                subresource: &path.subresource,
                namespace: &path.namespace,
                name: if path.name.is_empty() {
                    &path.selected_name
                } else {
                    &path.name
                },
            },
        };
        Attributes {
            verb: self.verb.as_str(),
            target,
        }
    }

    /// Returns whether the response is a stream without a time limit.
    #[must_use]
    pub fn is_long_running(&self) -> bool {
        self.verb == Verb::Watch
    }
}

/// Splits a resource path. The flag is true for the legacy `/watch/` prefix.
fn resource_path(path: &str) -> Option<(ResourcePath, bool)> {
    let mut segments = path.trim_matches('/').split('/');
    let mut out = ResourcePath::default();
    match segments.next()? {
        "api" => out.version = decoded(segments.next()?)?,
        "apis" => {
            out.group = decoded(segments.next()?)?;
            out.version = decoded(segments.next()?)?;
        }
        _ => return None,
    }
    let mut rest: Vec<String> = segments.map(decoded).collect::<Option<_>>()?;
    if rest.iter().any(String::is_empty) || out.version.is_empty() {
        return None;
    }
    let legacy_watch = rest.first().is_some_and(|s| s == "watch");
    if legacy_watch {
        rest.remove(0);
    }
    // A third segment is either a subresource of the namespace (`finalize`, `status`) or a resource in it.
    if rest.first().is_some_and(|s| s == "namespaces") && rest.len() >= 2 {
        out.namespace.clone_from(&rest[1]);
        if rest.len() > 2 && !matches!(rest[2].as_str(), "status" | "finalize") {
            rest.drain(..2);
        }
    }
    let mut rest = rest.into_iter();
    out.resource = rest.next()?;
    out.name = rest.next().unwrap_or_default();
    out.subresource = rest.collect::<Vec<_>>().join("/");
    Some((out, legacy_watch))
}

fn resource_verb(
    method: &Method,
    path: &ResourcePath,
    legacy_watch: bool,
    query: &Query<'_>,
) -> Verb {
    let named = !path.name.is_empty();
    let watching = legacy_watch || (!named && query.flag("watch"));
    match *method {
        Method::GET | Method::HEAD if watching => Verb::Watch,
        Method::GET | Method::HEAD if named => Verb::Get,
        Method::GET | Method::HEAD => Verb::List,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ => Verb::of_method(method),
    }
}

/// Returns the value of a `metadata.name=x` term.
fn selected_name(query: &Query<'_>) -> String {
    let Some(selector) = query.get("fieldSelector") else {
        return String::new();
    };
    for term in selector.split(',') {
        let value = term
            .strip_prefix("metadata.name==")
            .or_else(|| term.strip_prefix("metadata.name="))
            .filter(|value| !value.is_empty() && !value.contains('\\'));
        if let Some(value) = value {
            return value.to_owned();
        }
    }
    String::new()
}

fn decoded(segment: &str) -> Option<String> {
    percent_decode(segment, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(method: &Method, target: &str) -> RequestInfo {
        let (path, query) = target
            .split_once('?')
            .map_or((target, None), |(p, q)| (p, Some(q)));
        RequestInfo::parse(method, path, query)
    }

    fn parts(method: &Method, target: &str) -> (&'static str, String) {
        let info = info(method, target);
        let Route::Resource(p) = info.route else {
            return (info.verb.as_str(), "path".into());
        };
        let text = [
            p.group,
            p.version,
            p.namespace,
            p.resource,
            p.name,
            p.subresource,
        ]
        .join("|");
        (info.verb.as_str(), text)
    }

    #[test]
    fn resource_paths_are_split_into_their_parts() {
        let cases = [
            ("/api/v1/pods", "list", "|v1||pods||"),
            ("/api/v1/namespaces/n/pods/p/log", "get", "|v1|n|pods|p|log"),
            ("/api/v1/namespaces/n", "get", "|v1|n|namespaces|n|"),
            (
                "/api/v1/namespaces/n/finalize",
                "get",
                "|v1|n|namespaces|n|finalize",
            ),
            (
                "/api/v1/namespaces/n/status/x",
                "get",
                "|v1|n|namespaces|n|status/x",
            ),
            ("/apis/g.io/v1/things/a%2Fb", "get", "g.io|v1||things|a/b|"),
            ("/api/v1/watch/pods", "watch", "|v1||pods||"),
            (
                "/apis/g.io/v1/namespaces/n/things?watch=1",
                "watch",
                "g.io|v1|n|things||",
            ),
            (
                "/apis/g.io/v1/namespaces/n/things?watch=false",
                "list",
                "g.io|v1|n|things||",
            ),
            ("/apis", "get", "path"),
            ("/apis/g.io/v1", "get", "path"),
            ("/apis/g.io/v1/", "get", "path"),
            ("/api/v1/pods/%ff", "get", "path"),
            ("/api/v1//pods", "get", "path"),
            ("/", "get", "path"),
            ("", "get", "path"),
        ];
        for (target, verb, want) in cases {
            assert_eq!(
                parts(&Method::GET, target),
                (verb, want.to_owned()),
                "{target}"
            );
        }
    }

    #[test]
    fn verbs_follow_method_and_name() {
        let lease = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
        assert_eq!(info(&Method::DELETE, lease).verb, Verb::DeleteCollection);
        assert_eq!(
            info(&Method::DELETE, &format!("{lease}/l")).verb,
            Verb::Delete
        );
        assert_eq!(info(&Method::PUT, &format!("{lease}/l")).verb, Verb::Update);
        assert_eq!(info(&Method::POST, "/healthz").verb, Verb::Post);
    }

    #[test]
    fn list_with_name_selector_is_authorized_with_the_name() {
        let target = "/api/v1/namespaces/n/pods?fieldSelector=a%3Db%2Cmetadata.name%3Dx";
        let info = info(&Method::GET, target);
        let Target::Resource { name, .. } = info.attributes().target else {
            panic!("resource")
        };
        assert_eq!(name, "x");
    }
}
