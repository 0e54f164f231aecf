//! The audit policy: the first rule that matches a request decides what is recorded.

use serde::Deserialize;

use crate::auth::{Attributes, Target, User};

/// The level of detail of a recorded request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// The request line, the users, the decision and the status.
    Metadata,
    /// Like `Metadata`, with the request body.
    Request,
}

impl Level {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
        }
    }
}

/// The stage of a request at which an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Stage {
    /// The user is known, and the request is not handled yet.
    RequestReceived,
    /// The head of the response to a watch is ready.
    ResponseStarted,
    /// The response is ready, or the watch has ended.
    ResponseComplete,
    /// Accepted in `omitStages`; this server does not record this stage.
    Panic,
}

impl Stage {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// Error of reading a policy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The text is not YAML or JSON of a policy.
    #[error("the audit policy is invalid: {0}")]
    Syntax(String),
    /// The document is of another kind.
    #[error(
        "the audit policy is of kind {kind:?} in {version:?}; it must be a Policy of audit.k8s.io/v1"
    )]
    Kind {
        /// The `kind` of the document.
        kind: String,
        /// The `apiVersion` of the document.
        version: String,
    },
    /// A policy without rules records nothing.
    #[error("the audit policy has no rules, so that nothing would be recorded")]
    NoRules,
    /// A rule cannot be used.
    #[error("the audit policy is invalid: rules[{index}]: {why}")]
    Rule {
        /// Position of the rule.
        index: usize,
        /// The reason, with the correction.
        why: String,
    },
}

/// An audit policy.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// The decision of a policy about one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) omit: Stages,
    pub(super) omit_managed_fields: bool,
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stages(u8);

impl Stages {
    fn of(stages: &[Stage]) -> Self {
        Self(
            stages
                .iter()
                .fold(0, |set, stage| set | 1 << (*stage as u8)),
        )
    }

    pub(super) fn contains(self, stage: Stage) -> bool {
        self.0 & 1 << (stage as u8) != 0
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    #[expect(dead_code, reason = "a policy may have a name, which means nothing")]
    metadata: serde::de::IgnoredAny,
    #[serde(default)]
    rules: Vec<FileRule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileRule {
    #[serde(default)]
    level: String,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GroupResources {
    #[serde(default)]
    group: String,
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    resource_names: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct Rule {
    verdict: Verdict,
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    paths: Vec<String>,
}

impl Default for Policy {
    /// Records the metadata of every request, except reads of the health endpoints.
    fn default() -> Self {
        let omit = Stages::of(&[Stage::RequestReceived]);
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let health = Rule {
            verbs: texts(&["get", "head"]),
            paths: texts(&["/healthz*", "/livez*", "/readyz*"]),
            ..Rule::default()
        };
        let rest = Rule {
            verdict: Verdict {
                level: Level::Metadata,
                omit,
                omit_managed_fields: false,
            },
            ..Rule::default()
        };
        Self {
            rules: vec![health, rest],
        }
    }
}

impl Policy {
    /// Parses a policy in YAML or JSON.
    ///
    /// # Errors
    /// Returns an error that names the invalid rule.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let file: File =
            serde_saphyr::from_str(text).map_err(|error| PolicyError::Syntax(error.to_string()))?;
        if file.kind != "Policy" || file.api_version != "audit.k8s.io/v1" {
            return Err(PolicyError::Kind {
                kind: file.kind,
                version: file.api_version,
            });
        }
        if file.rules.is_empty() {
            return Err(PolicyError::NoRules);
        }
        let all = Stages::of(&file.omit_stages);
        let rules = file.rules.into_iter().enumerate().map(|(index, rule)| {
            let mut rule = Rule::of(rule, file.omit_managed_fields)
                .map_err(|why| PolicyError::Rule { index, why })?;
            rule.verdict.omit = rule.verdict.omit.union(all);
            Ok(rule)
        });
        Ok(Self {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the level of detail of a request.
    pub(crate) fn level(&self, user: Option<&User>, attributes: &Attributes<'_>) -> Level {
        self.verdict(user, attributes).level
    }

    /// Applies the policy to a request. `user` is `None` if authentication failed.
    pub(super) fn verdict(&self, user: Option<&User>, attributes: &Attributes<'_>) -> Verdict {
        let rule = self.rules.iter().find(|rule| rule.fits(user, attributes));
        rule.map_or_else(Verdict::default, |rule| rule.verdict)
    }
}

impl Rule {
    fn of(rule: FileRule, omit_managed_fields: bool) -> Result<Self, String> {
        let level = match rule.level.as_str() {
            "None" => Level::None,
            "Metadata" => Level::Metadata,
            "Request" => Level::Request,
            "RequestResponse" => {
                return Err(
                    "level RequestResponse is not supported, because response bodies are not \
                     recorded; use Request"
                        .into(),
                );
            }
            other => {
                return Err(format!(
                    "level {other:?} is unknown; use None, Metadata or Request"
                ));
            }
        };
        let of_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
        if of_resources && !rule.non_resource_urls.is_empty() {
            return Err(
                "nonResourceURLs cannot be combined with resources or namespaces; use two rules"
                    .into(),
            );
        }
        for path in &rule.non_resource_urls {
            let inner = path.strip_suffix('*').unwrap_or(path);
            if path != "*" && (!path.starts_with('/') || inner.contains('*')) {
                return Err(format!(
                    "nonResourceURLs: {path:?} must begin with a slash, and may have * only at its end"
                ));
            }
        }
        let named =
            |group: &GroupResources| !group.resource_names.is_empty() && group.resources.is_empty();
        if rule.resources.iter().any(named) {
            return Err("resourceNames need at least one entry in resources".into());
        }
        Ok(Self {
            verdict: Verdict {
                level,
                omit: Stages::of(&rule.omit_stages),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(omit_managed_fields),
            },
            users: rule.users,
            groups: rule.user_groups,
            verbs: rule.verbs,
            resources: rule.resources,
            namespaces: rule.namespaces,
            paths: rule.non_resource_urls,
        })
    }

    fn fits(&self, user: Option<&User>, attributes: &Attributes<'_>) -> bool {
        let among = |list: &[String], text: &str| list.iter().any(|item| item == text);
        if !self.users.is_empty() && !user.is_some_and(|user| among(&self.users, &user.name)) {
            return false;
        }
        let member = |user: &User| user.groups.iter().any(|group| among(&self.groups, group));
        if !self.groups.is_empty() && !user.is_some_and(member) {
            return false;
        }
        if !self.verbs.is_empty() && !among(&self.verbs, attributes.verb) {
            return false;
        }
        let resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        match attributes.target {
            Target::Path(_) if resources => false,
            Target::Path(path) => {
                self.paths.is_empty() || self.paths.iter().any(|wanted| path_fits(wanted, path))
            }
            Target::Resource { namespace, .. } => {
                self.paths.is_empty()
                    && (self.namespaces.is_empty() || among(&self.namespaces, namespace))
                    && (self.resources.is_empty()
                        || self.resources.iter().any(|r| r.fits(&attributes.target)))
            }
        }
    }
}

impl GroupResources {
    fn fits(&self, target: &Target<'_>) -> bool {
        let Target::Resource {
            group,
            resource,
            subresource,
            name,
            ..
        } = *target
        else {
            return false;
        };
        if self.group != group {
            return false;
        }
        if !self.resource_names.is_empty() && !self.resource_names.iter().any(|n| n == name) {
            return false;
        }
        self.resources.is_empty()
            || self
                .resources
                .iter()
                .any(|wanted| match wanted.split_once('/') {
                    None => wanted == "*" || (subresource.is_empty() && wanted == resource),
                    Some(("*", wanted)) => !subresource.is_empty() && wanted == subresource,
                    Some((wanted, "*")) => wanted == resource,
                    Some((wanted, part)) => wanted == resource && part == subresource,
                })
    }
}

fn path_fits(wanted: &str, path: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => wanted == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on<'a>(verb: &'a str, group: &'a str, full: &'a str, name: &'a str) -> Attributes<'a> {
        let (resource, subresource) = full.split_once('/').unwrap_or((full, ""));
        let target = Target::Resource {
            group,
            resource,
            subresource,
            namespace: "n",
            name,
        };
        Attributes { verb, target }
    }

    fn path<'a>(verb: &'a str, path: &'a str) -> Attributes<'a> {
        let target = Target::Path(path);
        Attributes { verb, target }
    }

    #[test]
    fn default_policy_records_metadata_except_of_health_reads() {
        let policy = Policy::default();
        let level = |attributes| policy.verdict(None, &attributes).level;
        assert_eq!(level(path("get", "/readyz/ping")), Level::None);
        assert_eq!(level(path("post", "/readyz")), Level::Metadata);
        assert_eq!(level(path("get", "/metrics")), Level::Metadata);
        let verdict = policy.verdict(None, &on("create", "", "secrets", ""));
        assert_eq!(verdict.level, Level::Metadata);
        assert!(verdict.omit.contains(Stage::RequestReceived));
        assert!(!verdict.omit.contains(Stage::ResponseStarted));
    }

    #[test]
    fn first_matching_rule_decides() {
        let policy = Policy::parse(
            r#"
apiVersion: audit.k8s.io/v1
kind: Policy
metadata: { name: mine }
omitStages: ["RequestReceived"]
rules:
- level: None
  users: ["system:apiserver"]
  verbs: ["get"]
- level: Metadata
  resources: [{ group: "", resources: ["secrets", "*/token"] }]
- level: Request
  userGroups: ["devs"]
  namespaces: ["n"]
  omitStages: ["ResponseStarted"]
  omitManagedFields: true
- level: None
  nonResourceURLs: ["/api*", "/version"]
- level: Metadata
  resources: [{ group: "apps", resources: ["deployments/*"], resourceNames: ["web"] }]
"#,
        )
        .unwrap();
        let anna = User::new("anna", ["devs".to_owned()]);
        let robot = User::new("system:apiserver", []);
        let level = |user, attributes| policy.verdict(Some(user), &attributes).level;
        assert_eq!(level(&robot, on("get", "", "secrets", "s")), Level::None);
        assert_eq!(
            level(&robot, on("list", "", "secrets", "")),
            Level::Metadata
        );
        // A plain resource does not include its subresources.
        assert_eq!(level(&robot, on("get", "", "secrets/x", "s")), Level::None);
        let token = on("create", "", "serviceaccounts/token", "s");
        assert_eq!(level(&anna, token), Level::Metadata);
        let verdict = policy.verdict(Some(&anna), &on("create", "", "pods", "p"));
        assert_eq!(verdict.level, Level::Request);
        assert!(verdict.omit.contains(Stage::RequestReceived));
        assert!(verdict.omit.contains(Stage::ResponseStarted));
        assert!(verdict.omit_managed_fields);
        // After a failed authentication the user is unknown, so a rule with users does not match.
        let verdict = policy.verdict(None, &on("create", "", "pods", "p"));
        assert_eq!(verdict.level, Level::None);
        let scale = |name| on("update", "apps", "deployments/scale", name);
        assert_eq!(level(&robot, scale("web")), Level::Metadata);
        assert_eq!(level(&robot, scale("other")), Level::None);
        assert_eq!(level(&anna, path("get", "/apis")), Level::None);
    }

    #[test]
    fn unusable_policies_name_the_rule() {
        let parse = |rules: &str| {
            let text = format!("{{apiVersion: audit.k8s.io/v1, kind: Policy, rules: {rules}}}");
            Policy::parse(&text).unwrap_err().to_string()
        };
        let error = parse("[{level: None}, {level: RequestResponse}]");
        assert!(
            error.contains("rules[1]") && error.contains("use Request"),
            "{error}"
        );
        assert!(parse("[]").contains("no rules"));
        assert!(parse("[{level: Some}]").contains("unknown"));
        assert!(parse("[{level: None, user: [a]}]").contains("user"));
        assert!(parse("[{level: None, nonResourceURLs: [x]}]").contains("slash"));
        assert!(parse("[{level: None, nonResourceURLs: [/a*b]}]").contains("end"));
        let both = "[{level: None, nonResourceURLs: [/x], namespaces: [n]}]";
        assert!(parse(both).contains("two rules"));
        let named = "[{level: None, resources: [{resourceNames: [n]}]}]";
        assert!(parse(named).contains("resourceNames"));
        let other = Policy::parse("{apiVersion: v1, kind: ConfigMap}").unwrap_err();
        assert!(other.to_string().contains("ConfigMap"), "{other}");
    }
}
