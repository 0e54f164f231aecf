//! The lane of a request.

use crate::auth::{MASTERS, User};
use crate::request::{RequestInfo, Route, Verb, query_value};

/// Largest body of a request in the lane of elections.
pub(super) const ELECTION_BODY: u64 = 16 * 1024;

/// A group of requests with separate seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Requests for one Lease, with a small body.
    Elections,
    /// Requests of administrators, among them the server's controllers.
    System,
    /// All other requests.
    Workload,
    /// Processor-intensive parts of requests. They need a seat in this lane in addition to the lane of the request.
    Heavy,
}

impl Lane {
    pub(crate) const ALL: [Self; 4] = [Self::Elections, Self::System, Self::Workload, Self::Heavy];

    /// Returns the name for messages and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Elections => "elections",
            Self::System => "system",
            Self::Workload => "workload",
            Self::Heavy => "heavy",
        }
    }
}

/// Returns the lane of a request, or `None` if it does not need a seat. `length` is the size of its body, if known.
pub(super) fn lane(
    info: &RequestInfo,
    user: &User,
    length: Option<u64>,
    query: Option<&str>,
) -> Option<Lane> {
    let small = length.is_some_and(|length| length <= ELECTION_BODY);
    match &info.route {
        Route::Other(path) if is_health(path) => return None,
        Route::Resource(path)
            if path.resource == "leases"
                && path.group == "coordination.k8s.io"
                && path.subresource.is_empty()
                && !path.namespace.is_empty()
                && small =>
        {
            let single = match info.verb {
                Verb::Get | Verb::List if names_revision(query) => false,
                Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => !path.name.is_empty(),
                Verb::List | Verb::Watch => !path.selected_name.is_empty(),
                Verb::Create => path.name.is_empty(),
                _ => false,
            };
            if single {
                return Some(Lane::Elections);
            }
        }
        _ => {}
    }
    Some(if user.is_in(MASTERS) {
        Lane::System
    } else {
        Lane::Workload
    })
}

/// Returns whether a read may wait for a future revision.
fn names_revision(query: Option<&str>) -> bool {
    query.is_some_and(|query| {
        query_value(query, "continue").is_some()
            || query_value(query, "resourceVersion").is_some_and(|value| value != "0")
    })
}

fn is_health(path: &str) -> bool {
    ["/healthz", "/livez", "/readyz", "/version"]
        .iter()
        .any(|probe| {
            path.strip_prefix(probe)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
}

/// Returns whether a request is heavy work regardless of its size. Schemas and roles are compiled and compared, access
/// reviews search all rules of a user, and OpenAPI documents are large.
pub(super) fn is_heavy(info: &RequestInfo) -> bool {
    match &info.route {
        Route::Other(path) => path.starts_with("/openapi/"),
        Route::Resource(path) => {
            !info.verb.is_read()
                && matches!(
                    path.group.as_str(),
                    "apiextensions.k8s.io" | "rbac.authorization.k8s.io" | "authorization.k8s.io"
                )
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    fn lane_of(method: &Method, path: &str, user: &User, length: u64) -> Option<Lane> {
        let (path, query) = match path.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (path, None),
        };
        let info = RequestInfo::parse(method, path, query);
        lane(&info, user, Some(length), query)
    }

    #[test]
    fn work_that_searches_roles_and_schemas_is_heavy() {
        let heavy = |method: &Method, path: &str| is_heavy(&RequestInfo::parse(method, path, None));
        let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        assert!(heavy(&Method::POST, roles) && heavy(&Method::POST, reviews));
        assert!(heavy(&Method::GET, "/openapi/v3"));
        let maps = "/api/v1/namespaces/n/configmaps";
        assert!(!heavy(&Method::GET, roles) && !heavy(&Method::POST, maps));
    }

    #[test]
    fn lane_follows_the_request_and_its_user() {
        let user = User::new("alice", []);
        let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
        let one = format!("{leases}/l");
        let named = format!("{leases}?fieldSelector=metadata.name%3Dl");
        for (method, path) in [
            (Method::GET, &*one),
            (Method::PUT, &one),
            (Method::PATCH, &one),
            (Method::DELETE, &one),
            (Method::POST, leases),
            (Method::GET, &named),
        ] {
            let found = lane_of(&method, path, &user, 500);
            assert_eq!(found, Some(Lane::Elections), "{method} {path}");
            let found = lane_of(&method, path, &User::admin(), 500);
            assert_eq!(found, Some(Lane::Elections), "{method} {path}");
            let found = lane_of(&method, path, &user, 500_000);
            assert_eq!(found, Some(Lane::Workload), "{method} {path}");
        }
        for (suffix, expected) in [
            ("resourceVersion=0", Lane::Elections),
            ("resourceVersion=", Lane::Elections),
            ("watch=true&resourceVersion=7", Lane::Elections),
            ("resourceVersion=7", Lane::Workload),
            ("resource%56ersion=7", Lane::Workload),
            ("continue=x", Lane::Workload),
        ] {
            let path = format!("{named}&{suffix}");
            let found = lane_of(&Method::GET, &path, &user, 0);
            assert_eq!(found, Some(expected), "{path}");
        }
        let found = lane_of(&Method::GET, &format!("{one}?resourceVersion=7"), &user, 0);
        assert_eq!(found, Some(Lane::Workload));
        let all = "/apis/coordination.k8s.io/v1/leases";
        for (method, path) in [
            (Method::GET, leases),
            (Method::DELETE, leases),
            (Method::GET, all),
            (Method::GET, "/api/v1/namespaces/n/configmaps/l"),
            (Method::GET, "/metrics"),
            (Method::GET, "/healthzz"),
        ] {
            let found = lane_of(&method, path, &user, 0);
            assert_eq!(found, Some(Lane::Workload), "{method} {path}");
            let found = lane_of(&method, path, &User::admin(), 0);
            assert_eq!(found, Some(Lane::System), "{method} {path}");
        }
        for path in ["/healthz", "/readyz/ping", "/livez", "/version"] {
            assert_eq!(lane_of(&Method::GET, path, &user, 0), None, "{path}");
        }
    }
}
