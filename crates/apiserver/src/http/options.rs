//! Query parameters of the verbs, validated like in the real server.

use http::HeaderMap;
use serde_json::{Value, json};

use crate::registry::{Fields, Target, WriteOptions};
use crate::request::Query;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::{Cause, Failure};
use crate::store::{Fence, Key, Object};
use crate::strict::{Problem, strict_error};

/// Name of the header that makes a write conditional on a lease.
pub(super) const FENCE_HEADER: &str = "tenure-fence";

/// Maximum length of the name of a field manager in bytes.
const MANAGER_LENGTH: usize = 128;

/// Handling of unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl FieldValidation {
    /// Returns the warnings about these problems.
    ///
    /// # Errors
    /// Strict validation rejects a body with problems. `reject` creates the failure from the text.
    pub(super) fn warnings(
        self,
        problems: &[Problem],
        reject: impl FnOnce(String) -> Failure,
    ) -> Result<Vec<String>, Failure> {
        match self {
            Self::Strict if !problems.is_empty() => Err(reject(strict_error(problems))),
            Self::Warn => Ok(problems.iter().map(ToString::to_string).collect()),
            Self::Strict | Self::Ignore => Ok(Vec::new()),
        }
    }
}

/// The selectors of a list, watch or collection delete.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    pub(super) labels: LabelSelector,
    pub(super) fields: FieldSelector,
    /// The fields that selectors may use in addition to name and namespace.
    known: Fields,
}

/// Meaning of a resourceVersion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    Exact,
    NotOlderThan,
}

/// Parameters of list and watch.
#[derive(Clone, Debug, Default)]
pub(super) struct ListOptions {
    pub(super) selection: Selection,
    /// `None` if not given.
    pub(super) revision: Option<u64>,
    pub(super) revision_match: Option<Match>,
    pub(super) limit: usize,
    pub(super) continue_token: Option<String>,
    pub(super) timeout_seconds: Option<u64>,
    pub(super) bookmarks: bool,
    pub(super) initial_events: Option<bool>,
}

impl Selection {
    /// Reads the selectors of a query.
    pub(super) fn parse(known: Fields, query: &Query<'_>) -> Result<Self, Failure> {
        let bad = |error: crate::selector::Error| Failure::bad_request(error.to_string());
        let labels = query
            .text("labelSelector")
            .unwrap_or_default()
            .parse()
            .map_err(|error| {
                let error: crate::selector::Error = error;
                Failure::bad_request(format!("unable to parse requirement: {error}"))
            })?;
        let fields: FieldSelector = query
            .text("fieldSelector")
            .unwrap_or_default()
            .parse()
            .map_err(bad)?;
        fields
            .check(&known.labels(), known.has_namespace())
            .map_err(bad)?;
        Ok(Self {
            labels,
            fields,
            known,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Returns whether the selectors require stored objects to be parsed.
    pub(super) fn parses(&self) -> bool {
        let known = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
        !self.fields.terms().iter().all(|term| known(&term.field))
    }

    /// Returns whether the selectors match an object.
    pub(super) fn matches(&self, object: &Object) -> bool {
        if !self.labels.matches(&object.labels) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        let parsed = std::cell::OnceCell::new();
        self.fields.matches(|label| match label {
            "metadata.name" => object.key.name.clone(),
            "metadata.namespace" => object.key.namespace.clone(),
            _ => {
                let value: &Value =
                    parsed.get_or_init(|| serde_json::from_slice(&object.json).unwrap_or_default());
                self.known.value(label, value)
            }
        })
    }
}

impl ListOptions {
    /// Reads and checks the parameters.
    pub(super) fn parse(known: Fields, query: &Query<'_>, watch: bool) -> Result<Self, Failure> {
        let selection = Selection::parse(known, query)?;
        let version = query.text("resourceVersion");
        let initial_events = query.tristate("sendInitialEvents");
        let revision_match = query.text("resourceVersionMatch");
        let token = query.text("continue");
        let wanted = match revision_match {
            Some("Exact") => Some(Match::Exact),
            Some("NotOlderThan") => Some(Match::NotOlderThan),
            _ => None,
        };
        let mut causes = Vec::new();
        let mut refuse = |field: &str, why: &str| causes.push(Cause::forbidden(field, why));
        const MATCH: &str = "resourceVersionMatch";
        if revision_match.is_some() && token.is_some() {
            let why = "resourceVersionMatch is forbidden when continue is provided";
            refuse(MATCH, why);
        }
        if watch {
            if initial_events.is_some() && wanted != Some(Match::NotOlderThan) {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                refuse(MATCH, why);
            }
            if initial_events.is_none() && revision_match.is_some() {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is \
                           provided";
                refuse(MATCH, why);
            }
        } else {
            if initial_events.is_some() {
                refuse(
                    "sendInitialEvents",
                    "sendInitialEvents is forbidden for list",
                );
            }
            if revision_match.is_some() && version.is_none() {
                let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                refuse(MATCH, why);
            }
            if wanted == Some(Match::Exact) && version == Some("0") {
                let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                refuse(MATCH, why);
            }
        }
        let known: &[&str] = match watch {
            true => &["NotOlderThan"],
            false => &["Exact", "NotOlderThan", ""],
        };
        if let Some(other) = revision_match.filter(|other| !known.contains(other)) {
            causes.push(Cause::unsupported(MATCH, &json!(other), known));
        }
        if !causes.is_empty() {
            return Err(Failure::invalid(("meta.k8s.io", "ListOptions"), "", causes));
        }
        if token.is_some() && version.is_some_and(|version| version != "0") {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(Self {
            selection,
            revision: version.map(revision).transpose()?,
            revision_match: wanted,
            limit: usize::try_from(number(query, "limit")?.unwrap_or(0)).unwrap_or(0),
            continue_token: token.map(str::to_owned),
            timeout_seconds: number(query, "timeoutSeconds")?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0),
            bookmarks: query.flag("allowWatchBookmarks"),
            initial_events,
        })
    }
}

/// Parses a resourceVersion.
pub(super) fn revision(text: &str) -> Result<u64, Failure> {
    text.parse().map_err(|_| {
        Failure::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: \
             strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

fn number(query: &Query<'_>, name: &str) -> Result<Option<i64>, Failure> {
    let Some(text) = query.text(name) else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        Failure::bad_request(format!(
            "strconv.ParseInt: parsing {text:?}: invalid syntax"
        ))
    })
}

/// Parses `fieldValidation`. Errors name the kind of options, `options`.
pub(super) fn field_validation(
    query: &Query<'_>,
    options: &str,
) -> Result<FieldValidation, Failure> {
    match query.get("fieldValidation") {
        None | Some("" | "Warn") => Ok(FieldValidation::Warn),
        Some("Strict") => Ok(FieldValidation::Strict),
        Some("Ignore") => Ok(FieldValidation::Ignore),
        Some(other) => {
            let known = ["", "Ignore", "Strict", "Warn"];
            let cause = Cause::unsupported("fieldValidation", &json!(other), &known);
            Err(Failure::invalid_options(options, cause))
        }
    }
}

/// Parses the `dryRun` values of a query or a body. The only valid value is `All`.
pub(super) fn dry_run<'a>(
    values: impl Iterator<Item = &'a str>,
    options: &str,
) -> Result<bool, Failure> {
    let values: Vec<&str> = values.collect();
    if let Some(other) = values.iter().find(|value| **value != "All") {
        let cause = Cause::unsupported("dryRun", &json!([other]), &["All"]);
        return Err(Failure::invalid_options(options, cause));
    }
    Ok(!values.is_empty())
}

/// Reads the options of a write from the query and the headers.
pub(super) fn write_options(
    query: &Query<'_>,
    headers: &HeaderMap,
    options: &str,
) -> Result<WriteOptions, Failure> {
    if let Some(manager) = query.text("fieldManager")
        && manager.len() > MANAGER_LENGTH
    {
        let cause = Cause::too_long("fieldManager", MANAGER_LENGTH);
        return Err(Failure::invalid_options(options, cause));
    }
    Ok(WriteOptions {
        dry_run: dry_run(query.all("dryRun"), options)?,
        fence: fence(headers)?,
        manager: manager(query, headers),
    })
}

/// Returns the field manager: `fieldManager`, or otherwise the program name in the user agent.
fn manager(query: &Query<'_>, headers: &HeaderMap) -> String {
    if let Some(manager) = query.text("fieldManager") {
        return manager.to_owned();
    }
    let agent = headers
        .get(http::header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .unwrap_or_default();
    let name: String = agent
        .chars()
        .take_while(|c| *c != '/')
        .filter(|c| !c.is_control())
        .take(MANAGER_LENGTH)
        .collect();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name
    }
}

/// Parses `Tenure-Fence: NAMESPACE/LEASE; holder=ID; token=DECIMAL`, in which the holder is percent-encoded.
///
/// Rejects a repeated header, holder or token, because the intended one is unknown.
pub(crate) fn fence(headers: &HeaderMap) -> Result<Option<Fence>, Failure> {
    let bad = || {
        Failure::bad_request(
            "the Tenure-Fence header must occur once, in the form NAMESPACE/LEASE; holder=IDENTITY; \
             token=DECIMAL, with the identity percent-encoded",
        )
    };
    let mut values = headers.get_all(FENCE_HEADER).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value,
        (Some(_), Some(_)) => return Err(bad()),
    };
    let text = value.to_str().map_err(|_| bad())?;
    let mut parts = text.split(';').map(str::trim);
    let (namespace, name) = parts
        .next()
        .and_then(|lease| lease.split_once('/'))
        .ok_or_else(bad)?;
    let (mut holder, mut token) = (None, None);
    for part in parts {
        match part.split_once('=').ok_or_else(bad)? {
            ("holder", id) if holder.is_none() => {
                holder = Some(crate::request::percent_decode(id, false).ok_or_else(bad)?);
            }
            ("token", decimal) if token.is_none() => {
                token = Some(decimal.parse::<u64>().map_err(|_| bad())?);
            }
            _ => return Err(bad()),
        }
    }
    if namespace.is_empty() || name.is_empty() || name.contains('/') {
        return Err(bad());
    }
    let leases = crate::registry::find("coordination.k8s.io", "leases").ok_or_else(bad)?;
    let target = Target {
        kind: leases,
        version: &leases.versions()[0],
        namespace,
        name,
    };
    let lease: Key = target.key();
    let fence = Fence {
        lease,
        token: token.ok_or_else(bad)?,
        holder: holder.filter(|holder| !holder.is_empty()).ok_or_else(bad)?,
    };
    Ok(Some(fence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: &str, watch: bool) -> Result<ListOptions, (u16, Option<String>)> {
        let kind = crate::registry::find("coordination.k8s.io", "leases").expect("there");
        ListOptions::parse(kind.fields(&kind.versions()[0]), &Query::new(query), watch).map_err(
            |failure| {
                let details = failure.details.filter(|details| !details.causes.is_empty());
                (
                    failure.code,
                    details.map(|details| details.causes[0].field.clone()),
                )
            },
        )
    }

    #[test]
    fn invalid_combinations_of_list_options_are_rejected() {
        let field = |name: &str| Some(name.to_owned());
        let cases = [
            (
                "resourceVersionMatch=Exact",
                false,
                422,
                field("resourceVersionMatch"),
            ),
            (
                "resourceVersion=0&resourceVersionMatch=Exact",
                false,
                422,
                field("resourceVersionMatch"),
            ),
            (
                "resourceVersion=5&resourceVersionMatch=x",
                false,
                422,
                field("resourceVersionMatch"),
            ),
            (
                "sendInitialEvents=true",
                false,
                422,
                field("sendInitialEvents"),
            ),
            (
                "sendInitialEvents=true",
                true,
                422,
                field("resourceVersionMatch"),
            ),
            (
                "resourceVersion=5&resourceVersionMatch=NotOlderThan",
                true,
                422,
                field("resourceVersionMatch"),
            ),
            ("resourceVersion=abc", false, 400, None),
            ("resourceVersion=-1", false, 400, None),
            ("limit=x", false, 400, None),
            ("continue=x&resourceVersion=5", false, 400, None),
            ("labelSelector=a%20in%20(", false, 400, None),
            ("fieldSelector=spec.x%3D1", false, 400, None),
        ];
        for (query, watch, code, cause) in cases {
            assert_eq!(
                list(query, watch).map(|_| ()),
                Err((code, cause)),
                "{query}"
            );
        }
        assert!(list("continue=x&resourceVersion=0&limit=-1", false).is_ok());
    }

    #[test]
    fn fence_header_is_parsed_or_rejected() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(FENCE_HEADER, text.parse().expect("header"));
            fence(&headers).map_err(|failure| failure.code)
        };
        let good = read("ns/l; holder=a%3Bb; token=17")
            .expect("good")
            .expect("there");
        assert_eq!((good.holder.as_str(), good.token), ("a;b", 17));
        assert_eq!(
            (good.lease.namespace.as_str(), good.lease.name.as_str()),
            ("ns", "l")
        );
        for bad in [
            "",
            "l; holder=a; token=1",
            "ns/l; holder=a",
            "ns/l; holder=; token=1",
            "ns/l; holder=a; token=x",
            "ns/l; holder=a; token=1; more=1",
            "ns/l/m; holder=a; token=1",
            "ns/l; holder=a; token=1; token=1",
            "ns/l; holder=a; token=1; token=2",
            "ns/l; holder=a; holder=b; token=1",
        ] {
            assert_eq!(read(bad), Err(400), "{bad}");
        }
        let mut twice = HeaderMap::new();
        for token in ["1", "2"] {
            let text = format!("ns/l; holder=a; token={token}");
            twice.append(FENCE_HEADER, text.parse().expect("header"));
        }
        assert_eq!(fence(&twice).map_err(|failure| failure.code), Err(400));
        assert_eq!(fence(&HeaderMap::new()).ok(), Some(None));
    }
}
