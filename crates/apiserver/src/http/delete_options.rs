//! Options of deletions.

use http::HeaderMap;
use serde_json::{Value, json};

use super::options;
use crate::registry::DeleteOptions;
use crate::registry::rules::text;
use crate::request::Query;
use crate::status::{Cause, Failure};

const POLICIES: &[&str] = &["Foreground", "Background", "Orphan"];

/// Reads the options from a body and a query. The body takes precedence.
pub(super) fn parse(
    body: &Value,
    query: &Query<'_>,
    headers: &HeaderMap,
) -> Result<DeleteOptions, Failure> {
    let mut write = options::write_options(query, headers, "DeleteOptions")?;
    let in_body = body
        .get("dryRun")
        .and_then(Value::as_array)
        .map(Vec::as_slice);
    let in_body = in_body.unwrap_or_default().iter().filter_map(Value::as_str);
    write.dry_run |= options::dry_run(in_body, "DeleteOptions")?;
    let invalid = |cause| Failure::invalid_options("DeleteOptions", cause);

    let asked = query.text("gracePeriodSeconds").map(|text| {
        text.parse::<i64>().map_err(|_| {
            Failure::bad_request(format!(
                "strconv.ParseInt: parsing {text:?}: invalid syntax"
            ))
        })
    });
    let grace_seconds = match body.get("gracePeriodSeconds").and_then(Value::as_i64) {
        Some(seconds) => Some(seconds),
        None => asked.transpose()?,
    };

    let orphan = body.get("orphanDependents").and_then(Value::as_bool);
    let orphan = orphan.or_else(|| query.tristate("orphanDependents"));
    let policy = [
        text(body, "/propagationPolicy"),
        query.text("propagationPolicy").unwrap_or(""),
    ]
    .into_iter()
    .find(|policy| !policy.is_empty());
    if let Some(policy) = policy {
        if !POLICIES.contains(&policy) {
            let supported = [POLICIES, &["nil"]].concat();
            let cause = Cause::unsupported("propagationPolicy", &json!(policy), &supported);
            return Err(invalid(cause));
        }
        if orphan.is_some() {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            return Err(invalid(Cause::invalid(
                "propagationPolicy",
                &json!(policy),
                why,
            )));
        }
    }
    let propagation = policy.or(orphan.map(|keep| if keep { "Orphan" } else { "Background" }));
    let precondition = |name: &str| {
        let in_body = text(body, &format!("/preconditions/{name}"));
        let value = if in_body.is_empty() {
            query.text(name)
        } else {
            Some(in_body)
        };
        value.map(str::to_owned)
    };
    Ok(DeleteOptions {
        grace_seconds,
        uid: precondition("uid"),
        resource_version: precondition("resourceVersion"),
        propagation: propagation.map(str::to_owned),
        cascade_in_old_way: orphan == Some(false),
        write,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(body: &Value, query: &str) -> Result<DeleteOptions, u16> {
        parse(body, &Query::new(query), &HeaderMap::new()).map_err(|failure| failure.code)
    }

    #[test]
    fn delete_options_of_the_body_take_precedence_over_the_query() {
        let body = json!({"gracePeriodSeconds": 5, "propagationPolicy": "Orphan"});
        let read = options(&body, "gracePeriodSeconds=9&dryRun=All").expect("good");
        assert_eq!(read.grace_seconds, Some(5));
        assert_eq!(read.propagation.as_deref(), Some("Orphan"));
        assert!(read.write.dry_run);
        let body = json!({"preconditions": {"uid": "u"}});
        let read = options(&body, "uid=other&resourceVersion=5").expect("good");
        assert_eq!(read.uid.as_deref(), Some("u"));
        assert_eq!(read.resource_version.as_deref(), Some("5"));
    }

    #[test]
    fn contradictions_are_refused() {
        for body in [
            json!({"orphanDependents": true, "propagationPolicy": "Orphan"}),
            json!({"propagationPolicy": "Sometimes"}),
            json!({"dryRun": ["Some"]}),
        ] {
            assert_eq!(options(&body, "").err(), Some(422), "{body}");
        }
        assert_eq!(options(&json!({}), "gracePeriodSeconds=x").err(), Some(400));
    }
}
