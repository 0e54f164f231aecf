//! Entry points about access: roles, audit policies, fences and credentials.

use std::sync::LazyLock;

use http::{HeaderMap, HeaderValue};
use rustls::pki_types::CertificateDer;

use crate::auth::rbac::{self, Rule};
use crate::auth::token::{AUDIENCE, Issuer, SigningKey};
use crate::auth::{Attributes, MASTERS, Target, TokenFile, User};
use crate::store::MemoryStore;
use crate::{audit, tls};

/// Maximum number of names of one list of a rule that are tested.
const TRIED: usize = 4;

/// Two lists of rules, one on each line: if the first covers the second, it allows every request that the second
/// allows.
pub fn roles(bytes: &[u8]) {
    let end = bytes
        .iter()
        .position(|&b| b == b'\n')
        .unwrap_or(bytes.len());
    let (had, wanted) = bytes.split_at(end);
    let rules = |text: &[u8]| serde_json::from_slice::<Vec<Rule>>(text).unwrap_or_default();
    let (had, wanted) = (rules(had), rules(wanted));
    // Only a comparison with too many steps may fail here.
    let small = |rules: &[Rule]| rules.len() <= 20 && rules.iter().all(|rule| sizes(rule) <= 40);
    if small(&had) {
        assert!(rbac::covers(&had, &had), "rules cover themselves: {had:?}");
    }
    if !rbac::covers(&had, &wanted) {
        return;
    }
    for rule in wanted.iter().take(16) {
        each_request(rule, |attributes| {
            let allows = |rules: &[Rule]| rules.iter().any(|rule| rule.matches(attributes));
            let granted = allows(&wanted) && !allows(&had);
            assert!(
                !granted,
                "{attributes:?}: {wanted:?} is not covered by {had:?}"
            );
        });
    }
}

fn sizes(rule: &Rule) -> usize {
    [
        &rule.verbs,
        &rule.api_groups,
        &rule.resources,
        &rule.resource_names,
        &rule.non_resource_urls,
    ]
    .iter()
    .map(|list| list.len())
    .sum()
}

/// Calls a function with requests that the names of a rule suggest. A wildcard stands for a name that no rule lists.
fn each_request(rule: &Rule, mut check: impl FnMut(&Attributes<'_>)) {
    let other = "other";
    let concrete = |name: &str| {
        if name == "*" {
            other.to_owned()
        } else {
            name.to_owned()
        }
    };
    let some = |list: &[String]| -> Vec<String> {
        list.iter().take(TRIED).map(|name| concrete(name)).collect()
    };
    let mut names = some(&rule.resource_names);
    names.extend([String::new(), other.to_owned()]);
    for verb in some(&rule.verbs) {
        for url in rule.non_resource_urls.iter().take(TRIED) {
            let path = url.replace('*', other);
            let target = Target::Path(&path);
            check(&Attributes {
                verb: &verb,
                target,
            });
        }
        for group in some(&rule.api_groups) {
            for whole in rule.resources.iter().take(TRIED) {
                let (resource, subresource) = whole.split_once('/').unwrap_or((whole, ""));
                let resource = concrete(resource);
                for name in &names {
                    for subresource in [subresource, "", "status"] {
                        let target = Target::Resource {
                            group: &group,
                            resource: &resource,
                            subresource,
                            namespace: "n",
                            name,
                        };
                        check(&Attributes {
                            verb: &verb,
                            target,
                        });
                    }
                }
            }
        }
    }
}

/// An audit policy: an accepted one decides about every request, and an error is not much longer than its policy.
pub fn audit(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let policy = match audit::Policy::parse(text) {
        Ok(policy) => policy,
        Err(error) => {
            let length = error.to_string().len();
            assert!(length <= 4_096 + 8 * text.len(), "{length} bytes: {error}");
            return;
        }
    };
    let again = audit::Policy::parse(text).expect("the policy was accepted before");
    let users = [
        User::anonymous(),
        User::admin(),
        User::new("a", ["b".to_owned()]),
    ];
    let users = users.iter().map(Some).chain([None]);
    for user in users {
        for path in ["", "/", "/healthz", "/a/b"] {
            let target = Target::Path(path);
            let attributes = Attributes {
                verb: "get",
                target,
            };
            let level = policy.level(user, &attributes);
            assert_eq!(level, again.level(user, &attributes));
        }
        for (resource, subresource) in [("pods", ""), ("pods", "status"), ("leases", "")] {
            let target = Target::Resource {
                group: "",
                resource,
                subresource,
                namespace: "n",
                name: "x",
            };
            let attributes = Attributes {
                verb: "update",
                target,
            };
            let level = policy.level(user, &attributes);
            assert_eq!(level, again.level(user, &attributes));
        }
    }
}

/// A fence header: an accepted one names one Lease, and its canonical form is accepted as the same fence.
pub fn fence(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|&b| b == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else {
            return;
        };
        headers.append("tenure-fence", value);
    }
    let Ok(Some(fence)) = crate::http::parse_fence(&headers) else {
        return;
    };
    assert_eq!(headers.len(), 1, "a repeated fence header must be rejected");
    let lease = &fence.lease;
    assert!(!lease.namespace.is_empty() && !lease.name.is_empty() && !fence.holder.is_empty());
    assert!(!lease.namespace.contains('/') && !lease.name.contains('/'));
    let holder: String = fence.holder.bytes().map(|b| format!("%{b:02X}")).collect();
    let text = format!(
        "{}/{}; holder={holder}; token={}",
        lease.namespace, lease.name, fence.token
    );
    let Ok(value) = HeaderValue::from_str(&text) else {
        return;
    };
    let again = HeaderMap::from_iter([(http::HeaderName::from_static("tenure-fence"), value)]);
    let again = crate::http::parse_fence(&again).ok().flatten();
    let again = again.expect("the canonical form is accepted");
    assert_eq!(
        (&again.lease, again.token, &again.holder),
        (lease, fence.token, &fence.holder)
    );
}

/// Certificates, tokens and token files. None of them authenticates a user: the key of the test signs only a token for
/// an account that does not exist.
pub fn credentials(bytes: &[u8]) {
    static ISSUER: LazyLock<Option<Issuer>> =
        LazyLock::new(|| SigningKey::generate().ok().map(Issuer::new));
    if let Some(user) = tls::certificate_user(&CertificateDer::from(bytes)) {
        assert!(!user.name.is_empty());
    }
    let store = MemoryStore::new();
    if let Some(issuer) = &*ISSUER {
        let signed = issuer
            .sign_payload(bytes)
            .expect("the system has random numbers");
        issuer
            .verify(&signed, AUDIENCE, &store)
            .expect_err("the account does not exist");
        if let Ok(token) = std::str::from_utf8(bytes) {
            issuer
                .verify(token, AUDIENCE, &store)
                .expect_err("another key signed it");
            // A changed token is rejected too.
            let changed = signed.replacen('.', token, 1);
            let verified = issuer.verify(&changed, AUDIENCE, &store);
            assert!(verified.is_err(), "{changed}");
        }
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(file) = TokenFile::parse(text) {
        assert_eq!(file.user(""), None, "an empty token has no user");
        // A user is an administrator only if the file assigns the group.
        let first = text.split(',').next().unwrap_or_default().trim();
        if let Some(user) = file.user(first) {
            assert!(!user.name.is_empty());
            assert!(!user.is_in(MASTERS) || text.contains(MASTERS));
        }
    }
}
