//! One policy rule: the requests that it matches and the rules that it covers.

use serde::Deserialize;

use crate::auth::{Attributes, Target};

/// A `PolicyRule`. Empty lists grant nothing, except that empty `resource_names` stands for every name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// Verbs, or `*`.
    #[serde(deserialize_with = "null_is_empty")]
    pub verbs: Vec<String>,
    /// API groups, or `*`; core is the empty string.
    #[serde(deserialize_with = "null_is_empty")]
    pub api_groups: Vec<String>,
    /// `resource`, `resource/sub`, `*/sub` or `*`.
    #[serde(deserialize_with = "null_is_empty")]
    pub resources: Vec<String>,
    /// Names to which the rule is limited.
    #[serde(deserialize_with = "null_is_empty")]
    pub resource_names: Vec<String>,
    /// Non-resource paths; a trailing `*` matches any suffix.
    #[serde(rename = "nonResourceURLs", deserialize_with = "null_is_empty")]
    pub non_resource_urls: Vec<String>,
}

impl Rule {
    /// Returns the rules of `cluster-admin`: every verb on every resource and path.
    pub(crate) fn everything() -> [Self; 2] {
        let all = || vec!["*".to_owned()];
        [
            Self {
                verbs: all(),
                api_groups: all(),
                resources: all(),
                ..Self::default()
            },
            Self {
                verbs: all(),
                non_resource_urls: all(),
                ..Self::default()
            },
        ]
    }

    /// Whether the rule grants the request.
    #[must_use]
    pub fn matches(&self, attributes: &Attributes<'_>) -> bool {
        if !has(&self.verbs, attributes.verb) {
            return false;
        }
        match attributes.target {
            Target::Path(path) => self
                .non_resource_urls
                .iter()
                .any(|url| url_covers(url, path)),
            Target::Resource {
                group,
                resource,
                subresource,
                name,
                ..
            } => {
                has(&self.api_groups, group)
                    && self
                        .resources
                        .iter()
                        .any(|r| resource_covers(r, resource, subresource))
                    && (self.resource_names.is_empty()
                        || self.resource_names.iter().any(|n| n == name))
            }
        }
    }

    /// Number of names that the rule lists, and one more.
    pub(super) fn size(&self) -> usize {
        let lists = [
            &self.verbs,
            &self.api_groups,
            &self.resources,
            &self.resource_names,
            &self.non_resource_urls,
        ];
        lists.iter().map(|list| list.len()).sum::<usize>() + 1
    }

    /// Whether this rule grants everything that `other`, an [atom](Self::atoms), grants.
    #[cfg(test)]
    pub(super) fn covers(&self, other: &Self) -> bool {
        let all = |mine: &[String], theirs: &[String]| theirs.iter().all(|t| has(mine, t));
        let resources = other.resources.iter().all(|theirs| {
            let (resource, sub) = theirs.split_once('/').unwrap_or((theirs, ""));
            self.resources
                .iter()
                .any(|mine| mine == theirs || resource_covers(mine, resource, sub))
        });
        // An empty list of names stands for every name. Only another empty list covers it.
        let names = self.resource_names.is_empty()
            || (!other.resource_names.is_empty()
                && other
                    .resource_names
                    .iter()
                    .all(|n| self.resource_names.contains(n)));
        let urls = other.non_resource_urls.iter().all(|theirs| {
            self.non_resource_urls
                .iter()
                .any(|mine| url_covers(mine, theirs))
        });
        all(&self.verbs, &other.verbs)
            && all(&self.api_groups, &other.api_groups)
            && resources
            && names
            && urls
    }

    /// Splits the rule into single grants (atoms): one verb on one resource of one group with at most one name, or on
    /// one path. Several rules together may cover a rule, but only a single rule can cover an atom.
    #[cfg(test)]
    pub(super) fn atoms(&self) -> Vec<Self> {
        let mut atoms = Vec::new();
        for verb in &self.verbs {
            for url in &self.non_resource_urls {
                atoms.push(Self {
                    verbs: vec![verb.clone()],
                    non_resource_urls: vec![url.clone()],
                    ..Self::default()
                });
            }
            for group in &self.api_groups {
                for resource in &self.resources {
                    let atom = Self {
                        verbs: vec![verb.clone()],
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        ..Self::default()
                    };
                    if self.resource_names.is_empty() {
                        atoms.push(atom);
                        continue;
                    }
                    atoms.extend(self.resource_names.iter().map(|n| Self {
                        resource_names: vec![n.clone()],
                        ..atom.clone()
                    }));
                }
            }
        }
        atoms
    }
}

pub(super) fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|item| item == "*" || item == wanted)
}

pub(super) fn resource_covers(rule: &str, resource: &str, subresource: &str) -> bool {
    if rule == "*" {
        return true;
    }
    match rule.split_once('/') {
        None => subresource.is_empty() && rule == resource,
        Some((_, "")) => false,
        Some((r, s)) => s == subresource && (r == "*" || r == resource),
    }
}

pub(super) fn url_covers(rule: &str, path: &str) -> bool {
    match rule.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => rule == path,
    }
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `verbs groups resources names`, comma separated; `-` is an empty list, `core` the empty group.
    fn rule(text: &str) -> Rule {
        let mut parts = text.split(' ').map(|list| {
            let items = list.split(',').filter(|i| *i != "-");
            items
                .map(|i| if i == "core" { "" } else { i }.to_owned())
                .collect()
        });
        let mut next = || parts.next().unwrap_or_default();
        Rule {
            verbs: next(),
            api_groups: next(),
            resources: next(),
            resource_names: next(),
            non_resource_urls: next(),
        }
    }

    /// `verb group resource[/sub] [name]`.
    fn request(text: &str) -> Attributes<'_> {
        let mut parts = text.split(' ');
        let verb = parts.next().unwrap();
        let group = parts.next().unwrap();
        if group.starts_with('/') {
            return Attributes {
                verb,
                target: Target::Path(group),
            };
        }
        let (resource, subresource) = {
            let whole = parts.next().unwrap();
            whole.split_once('/').unwrap_or((whole, ""))
        };
        let group = if group == "core" { "" } else { group };
        let name = parts.next().unwrap_or("");
        Attributes {
            verb,
            target: Target::Resource {
                group,
                resource,
                subresource,
                namespace: "d",
                name,
            },
        }
    }

    #[test]
    fn rule_matches_requests_of_the_table() {
        let yes = [
            ("get core pods", "get core pods x"),
            ("* core pods", "deletecollection core pods"),
            ("get * pods", "get apps pods"),
            ("get core *", "get core pods/status x"),
            ("get core *", "get core pods x"),
            ("get core pods/status", "get core pods/status x"),
            ("get core */status", "get core pods/status x"),
            ("get,update core,apps pods,leases", "update apps leases l"),
            ("get core pods a,b", "get core pods b"),
            ("list core pods a", "list core pods a"),
            ("get - - - /healthz", "get /healthz"),
            ("get - - - /healthz*", "get /healthz/ping"),
            ("get - - - *", "get /metrics"),
        ];
        let no = [
            ("get core pods", "list core pods"),
            ("get core pods", "get apps pods"),
            ("get core pods", "get core pods/status x"),
            ("get core pods/status", "get core pods x"),
            ("get core */status", "get core pods/log x"),
            ("get core */", "get core pods x"),
            ("get core pods a", "get core pods c"),
            ("create core pods a", "create core pods"),
            ("list core pods a", "list core pods"),
            ("- core pods", "get core pods"),
            ("get - pods", "get core pods"),
            ("get core -", "get core pods"),
            ("* * *", "get /metrics"),
            ("get - - - /healthz", "get /healthz/ping"),
            ("get - - - *", "get core pods"),
            ("get - - - *", "post /metrics"),
        ];
        for (r, a) in yes {
            assert!(rule(r).matches(&request(a)), "{r:?} should grant {a:?}");
        }
        for (r, a) in no {
            assert!(
                !rule(r).matches(&request(a)),
                "{r:?} should not grant {a:?}"
            );
        }
    }

    #[test]
    fn rule_covers_rules_of_the_table() {
        let yes = [
            ("* * *", "get core pods"),
            ("* * *", "* * *"),
            ("get core *", "get core pods/status"),
            ("get core */status", "get core pods/status"),
            ("get core pods", "get core pods a"),
            ("get core pods a,b", "get core pods a"),
            ("get - - - /api*", "get - - - /api/*"),
        ];
        let no = [
            ("get core pods", "* core pods"),
            ("get core pods", "get * pods"),
            ("get core pods", "get core *"),
            ("get core pods a", "get core pods"),
            ("get core pods a", "get core pods b"),
            ("get core pods/status", "get core */status"),
            ("get - - - /api", "get - - - /api*"),
        ];
        for (mine, theirs) in yes {
            assert!(
                rule(mine).covers(&rule(theirs)),
                "{mine:?} should cover {theirs:?}"
            );
        }
        for (mine, theirs) in no {
            assert!(
                !rule(mine).covers(&rule(theirs)),
                "{mine:?} should not cover {theirs:?}"
            );
        }
    }

    #[test]
    fn atoms_are_every_single_grant() {
        assert_eq!(rule("get,list core,apps pods a,b").atoms().len(), 8);
        assert_eq!(rule("get,list - - - /a,/b").atoms().len(), 4);
        assert_eq!(rule("get core - -").atoms(), []);
    }

    #[test]
    fn null_lists_are_empty_lists() {
        let rule: Rule = serde_json::from_str(r#"{"verbs":["get"],"resources":null}"#).unwrap();
        assert_eq!(rule.resources, Vec::<String>::new());
    }
}
