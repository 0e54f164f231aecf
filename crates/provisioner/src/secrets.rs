//! Resolves the secrets that a class names for a claim.
//!
//! This module handles references only. The contents of a secret go from the API server to the driver.

use std::collections::BTreeMap;

use crate::names::RESERVED_PREFIX;
use crate::objects::Claim;
use crate::template::expand;

/// Namespace and name of a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretRef {
    pub(crate) name: String,
    pub(crate) namespace: String,
}

/// One use of a secret, and the class parameters that name it.
#[derive(Debug)]
pub(crate) struct Kind {
    /// The part of the parameter between the reserved prefix and `-name`.
    pub(crate) prefix: &'static str,
    /// The older parameter without a prefix, without `Name` and `Namespace`.
    deprecated: Option<&'static str>,
}

pub(crate) static PROVISIONER: Kind = Kind::new("provisioner-secret", Some("csiProvisionerSecret"));
pub(crate) static CONTROLLER_PUBLISH: Kind = Kind::new(
    "controller-publish-secret",
    Some("csiControllerPublishSecret"),
);
pub(crate) static NODE_STAGE: Kind = Kind::new("node-stage-secret", Some("csiNodeStageSecret"));
pub(crate) static NODE_PUBLISH: Kind =
    Kind::new("node-publish-secret", Some("csiNodePublishSecret"));
pub(crate) static CONTROLLER_EXPAND: Kind = Kind::new("controller-expand-secret", None);
pub(crate) static NODE_EXPAND: Kind = Kind::new("node-expand-secret", None);
pub(crate) static CONTROLLER_MODIFY: Kind = Kind::new("controller-modify-secret", None);

/// All uses.
pub(crate) static KINDS: [&Kind; 7] = [
    &PROVISIONER,
    &CONTROLLER_PUBLISH,
    &NODE_STAGE,
    &NODE_PUBLISH,
    &CONTROLLER_EXPAND,
    &NODE_EXPAND,
    &CONTROLLER_MODIFY,
];

impl Kind {
    const fn new(prefix: &'static str, deprecated: Option<&'static str>) -> Self {
        Self { prefix, deprecated }
    }
}

/// The resolved secrets of one claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Secrets {
    pub(crate) provisioner: Option<SecretRef>,
    pub(crate) controller_publish: Option<SecretRef>,
    pub(crate) node_stage: Option<SecretRef>,
    pub(crate) node_publish: Option<SecretRef>,
    pub(crate) controller_expand: Option<SecretRef>,
    pub(crate) node_expand: Option<SecretRef>,
    pub(crate) controller_modify: Option<SecretRef>,
}

impl Secrets {
    /// Resolves all secrets, so that an error is found before the volume is created.
    pub(crate) fn resolve(
        parameters: &BTreeMap<String, String>,
        volume: &str,
        claim: &Claim,
    ) -> Result<Self, String> {
        let resolve = |kind| resolve(kind, parameters, volume, claim);
        Ok(Self {
            provisioner: resolve(&PROVISIONER)?,
            controller_publish: resolve(&CONTROLLER_PUBLISH)?,
            node_stage: resolve(&NODE_STAGE)?,
            node_publish: resolve(&NODE_PUBLISH)?,
            controller_expand: resolve(&CONTROLLER_EXPAND)?,
            node_expand: resolve(&NODE_EXPAND)?,
            controller_modify: resolve(&CONTROLLER_MODIFY)?,
        })
    }
}

/// Resolves the secret for one use: the specific one, else the default of the class, else none.
pub(crate) fn resolve(
    kind: &Kind,
    parameters: &BTreeMap<String, String>,
    volume: &str,
    claim: &Claim,
) -> Result<Option<SecretRef>, String> {
    let pair = pair(parameters, kind.prefix, kind.deprecated)?;
    let Some((name, namespace)) =
        pair.map_or_else(|| self::pair(parameters, "secret", None), |p| Ok(Some(p)))?
    else {
        return Ok(None);
    };
    let expanded_namespace = expand(namespace, |token| match token {
        "pv.name" => Some(volume.to_owned()),
        "pvc.namespace" => Some(claim.namespace().to_owned()),
        _ => None,
    });
    let namespace_of = expanded_namespace.map_err(|token| {
        format!(
            "the namespace {namespace:?} of the {}: unknown token {token:?}; use pv.name or pvc.namespace",
            kind.prefix
        )
    })?;
    let expanded_name = expand(name, |token| match token {
        "pv.name" => Some(volume.to_owned()),
        "pvc.name" => Some(claim.name().to_owned()),
        "pvc.namespace" => Some(claim.namespace().to_owned()),
        _ => {
            let key = token
                .strip_prefix("pvc.annotations['")?
                .strip_suffix("']")?;
            claim.annotation(key).map(str::to_owned)
        }
    });
    let name_of = expanded_name.map_err(|token| {
        format!(
            "the name {name:?} of the {}: unknown token {token:?}; use pv.name, pvc.name, pvc.namespace or pvc.annotations['KEY'] of an existing annotation",
            kind.prefix
        )
    })?;
    if !is_label(&namespace_of) {
        return Err(format!(
            "{namespace:?} results in {namespace_of:?}, which is not a valid namespace name"
        ));
    }
    if !is_subdomain(&name_of) {
        return Err(format!(
            "{name:?} results in {name_of:?}, which is not a valid secret name"
        ));
    }
    Ok(Some(SecretRef {
        name: name_of,
        namespace: namespace_of,
    }))
}

fn pair<'a>(
    parameters: &'a BTreeMap<String, String>,
    prefix: &str,
    deprecated: Option<&str>,
) -> Result<Option<(&'a str, &'a str)>, String> {
    let value = |suffix: &str, old_suffix: &str| {
        let newer = format!("{RESERVED_PREFIX}{prefix}-{suffix}");
        let older = deprecated.map(|old| format!("{old}{old_suffix}"));
        let old_value = older.as_ref().and_then(|older| parameters.get(older));
        match (parameters.get(&newer), old_value) {
            (Some(_), Some(_)) => Err(format!(
                "{newer} and {} have the same meaning: set only one of them",
                older.unwrap_or_default()
            )),
            (Some(value), None) | (None, Some(value)) if value.is_empty() => {
                Err(format!("{newer} is empty"))
            }
            (newer, older) => Ok(newer.or(older).map(String::as_str)),
        }
    };
    match (value("name", "Name")?, value("namespace", "Namespace")?) {
        (Some(name), Some(namespace)) => Ok(Some((name, namespace))),
        (None, None) => Ok(None),
        _ => Err(format!(
            "a secret needs a name and a namespace: one of {RESERVED_PREFIX}{prefix}-name and -namespace is missing"
        )),
    }
}

/// Returns whether the text is a DNS-1123 label.
fn is_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|b| *b == b'-' || b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Returns whether the text is a DNS-1123 subdomain, whose parts may be longer than a label.
fn is_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let bytes = part.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes
                .iter()
                .all(|b| *b == b'-' || b.is_ascii_lowercase() || b.is_ascii_digit())
    };
    text.len() <= 253 && text.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        let mut claim = Claim::default();
        claim.metadata.name = Some("data".to_owned());
        claim.metadata.namespace = Some("team".to_owned());
        let annotations = BTreeMap::from([("example.com/color".to_owned(), "blue".to_owned())]);
        claim.metadata.annotations = Some(annotations);
        claim
    }

    fn check(kind: &Kind, pairs: &[(&str, &str)]) -> Result<Option<String>, String> {
        let parameters: BTreeMap<_, _> = pairs
            .iter()
            .map(|(key, value)| (key.replace('~', RESERVED_PREFIX), (*value).to_owned()))
            .collect();
        let found = resolve(kind, &parameters, "pvc-1", &claim())?;
        Ok(found.map(|secret| format!("{}/{}", secret.namespace, secret.name)))
    }

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn secret_references_of_a_class_are_resolved() {
        let good: &[(&Kind, Pairs<'_>, Option<&str>)] = &[
            (&PROVISIONER, &[], None),
            (
                &PROVISIONER,
                &[
                    ("~provisioner-secret-name", "s"),
                    ("~provisioner-secret-namespace", "n"),
                ],
                Some("n/s"),
            ),
            (
                &PROVISIONER,
                &[
                    ("csiProvisionerSecretName", "s"),
                    ("csiProvisionerSecretNamespace", "n"),
                ],
                Some("n/s"),
            ),
            (
                &NODE_STAGE,
                &[
                    ("csiNodeStageSecretName", "s"),
                    ("~node-stage-secret-namespace", "n"),
                ],
                Some("n/s"),
            ),
            (
                &CONTROLLER_EXPAND,
                &[("~secret-name", "d"), ("~secret-namespace", "n")],
                Some("n/d"),
            ),
            (
                &NODE_PUBLISH,
                &[
                    ("~secret-name", "d"),
                    ("~secret-namespace", "n"),
                    ("~node-publish-secret-name", "${pvc.name}.${pv.name}"),
                    ("~node-publish-secret-namespace", "${pvc.namespace}-x"),
                ],
                Some("team-x/data.pvc-1"),
            ),
            (
                &NODE_EXPAND,
                &[
                    (
                        "~node-expand-secret-name",
                        "k-${pvc.annotations['example.com/color']}",
                    ),
                    ("~node-expand-secret-namespace", "${pv.name}"),
                ],
                Some("pvc-1/k-blue"),
            ),
        ];
        for (kind, pairs, expected) in good {
            let expected = expected.map(str::to_owned);
            assert_eq!(check(kind, pairs), Ok(expected), "{pairs:?}");
        }
    }

    #[test]
    fn invalid_secret_parameters_of_a_class_are_reported() {
        let name = "~provisioner-secret-name";
        let namespace = "~provisioner-secret-namespace";
        let bad: &[(Pairs<'_>, &str)] = &[
            (&[(name, "s")], "missing"),
            (&[(namespace, "n")], "missing"),
            (&[(name, ""), (namespace, "n")], "is empty"),
            (&[(name, "s"), (namespace, "")], "is empty"),
            (
                &[
                    (name, "s"),
                    (namespace, "n"),
                    ("csiProvisionerSecretName", "s"),
                ],
                "have the same meaning",
            ),
            (
                &[(name, "${pod.name}"), (namespace, "n")],
                "unknown token \"pod.name\"",
            ),
            (
                &[(name, "s"), (namespace, "${pvc.name}")],
                "unknown token \"pvc.name\"",
            ),
            (
                &[(name, "${pvc.annotations['no']}"), (namespace, "n")],
                "unknown token",
            ),
            (&[(name, "S"), (namespace, "n")], "not a valid secret name"),
            (
                &[(name, "s"), (namespace, "a.b")],
                "not a valid namespace name",
            ),
            (
                &[(name, "${}"), (namespace, "n")],
                "not a valid secret name",
            ),
            (&[("~secret-name", "d")], "missing"),
        ];
        for (pairs, text) in bad {
            let error = check(&PROVISIONER, pairs).unwrap_err();
            assert!(error.contains(text), "{pairs:?}: {error}");
        }
    }
}
