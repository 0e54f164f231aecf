//! PodTemplate and ControllerRevision: data that controllers of pods keep.

use serde_json::Value;

use super::apps::moved;
use super::{immutable, pod};
use crate::status::Cause;

pub(in crate::registry) fn default_template(object: &mut Value) {
    if let Some(template) = object.get_mut("template") {
        pod::default_template(template);
    }
}

pub(in crate::registry) fn validate_template(object: &Value, causes: &mut Vec<Cause>) {
    let template = object.get("template").unwrap_or(&Value::Null);
    let mut inner = Vec::new();
    pod::validate_pod(template, &mut inner);
    moved(inner, "template", causes);
}

pub(in crate::registry) fn validate_revision(revision: &Value, causes: &mut Vec<Cause>) {
    let number = revision.get("revision").unwrap_or(&Value::Null);
    if number.as_i64().unwrap_or(0) < 0 {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid("revision", number, why));
    }
}

/// Rejects a new revision without data.
pub(in crate::registry) fn validate_new_revision(revision: &Value, causes: &mut Vec<Cause>) {
    let why = match revision.get("data") {
        Some(Value::Object(_)) => return,
        None | Some(Value::Null) => "data is mandatory",
        Some(_) => "data must be a valid JSON object",
    };
    causes.push(Cause::required("data", why));
}

/// Rejects a change of the data.
pub(in crate::registry) fn validate_revision_update(
    old: &Value,
    new: &Value,
    causes: &mut Vec<Cause>,
) {
    immutable(old, new, "/data", "data", causes);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn revision_needs_an_object_as_data_and_a_number() {
        let fields = |revision: Value| -> Vec<String> {
            let mut causes = Vec::new();
            validate_revision(&revision, &mut causes);
            validate_new_revision(&revision, &mut causes);
            causes.into_iter().map(|cause| cause.field).collect()
        };
        assert_eq!(fields(json!({"data": {}, "revision": 1})), [""; 0]);
        assert_eq!(fields(json!({"revision": -1})), ["revision", "data"]);
        assert_eq!(fields(json!({"data": [], "revision": 0})), ["data"]);
    }

    #[test]
    fn errors_of_a_template_name_its_place() {
        let mut causes = Vec::new();
        let mut object = json!({"template": {"spec": {}}});
        default_template(&mut object);
        validate_template(&object, &mut causes);
        assert_eq!(causes[0].field, "template.spec.containers");
    }
}
