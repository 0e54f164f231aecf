//! Jobs and CronJobs: their defaults and validation. This server runs no jobs.

use serde_json::{Value, json};

use super::apps::{check_carried, check_pods, clear_status, not_negative};
use super::{child, immutable, set_default, set_default_text, text};
use crate::status::Cause;

/// Labels that identify the pods of a job. The unqualified ones are deprecated.
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];

/// Maximum length of the name of a CronJob: its jobs append 11 of the 63 characters.
const CRON_NAME: usize = 52;

pub(in crate::registry) fn default_job(job: &mut Value) {
    let labels = job.pointer("/spec/template/metadata/labels");
    let labels = labels.filter(|labels| !labels.is_null()).cloned();
    let Some(spec) = child(job, "spec") else {
        return;
    };
    let absent = |spec: &serde_json::Map<String, Value>, member: &str| {
        spec.get(member).is_none_or(Value::is_null)
    };
    if absent(spec, "completions") && absent(spec, "parallelism") {
        set_default(spec, "completions", 1);
    }
    set_default(spec, "parallelism", 1);
    let by_index = !absent(spec, "backoffLimitPerIndex");
    set_default(spec, "backoffLimit", if by_index { i32::MAX } else { 6 });
    set_default(spec, "completionMode", "NonIndexed");
    set_default(spec, "suspend", false);
    let policy = if absent(spec, "podFailurePolicy") {
        "TerminatingOrFailed"
    } else {
        "Failed"
    };
    set_default(spec, "podReplacementPolicy", policy);
    set_default(spec, "manualSelector", false);
    default_pods(job);
    if let Some(labels) = labels
        && let Some(metadata) = child(job, "metadata")
        && metadata
            .get("labels")
            .and_then(Value::as_object)
            .is_none_or(serde_json::Map::is_empty)
    {
        metadata.insert("labels".into(), labels);
    }
}

/// Generates a unique selector for a job that does not set its own.
pub(in crate::registry) fn prepare_job(job: &mut Value) {
    clear_status(job);
    // Copies the labels of the template to the job before the generated labels are added.
    default_job(job);
    if job.pointer("/spec/manualSelector") == Some(&json!(true)) {
        return;
    }
    let name = text(job, "/metadata/name").to_owned();
    let uid = text(job, "/metadata/uid").to_owned();
    let spec = &mut job["spec"];
    let template = &mut spec["template"];
    if child(template, "metadata").is_some()
        && let Some(labels) = child(&mut template["metadata"], "labels")
    {
        for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
            for key in keys {
                labels.entry(key).or_insert_with(|| json!(value));
            }
        }
    }
    if child(spec, "selector").is_some()
        && let Some(labels) = child(&mut spec["selector"], "matchLabels")
    {
        labels.entry(UID_LABELS[1]).or_insert_with(|| json!(uid));
    }
}

pub(in crate::registry) fn default_cron_job(cron: &mut Value) {
    let Some(spec) = child(cron, "spec") else {
        return;
    };
    set_default_text(spec, "concurrencyPolicy", "Allow");
    set_default(spec, "suspend", false);
    set_default(spec, "successfulJobsHistoryLimit", 3);
    set_default(spec, "failedJobsHistoryLimit", 1);
    if let Some(job) = spec.get_mut("jobTemplate") {
        default_pods(job);
    }
}

pub(in crate::registry) fn validate_job(job: &Value, causes: &mut Vec<Cause>) {
    let spec = job.get("spec").unwrap_or(&Value::Null);
    let selects = spec.get("selector").is_some_and(|it| !it.is_null());
    if selects && spec.get("manualSelector") != Some(&json!(true)) {
        check_generated(job, causes);
    }
    check_job(spec, causes);
    if !selects {
        causes.push(Cause::required("spec.selector", ""));
    }
    check_carried(spec, causes);
}

pub(in crate::registry) fn validate_job_update(old: &Value, new: &Value, causes: &mut Vec<Cause>) {
    let indexed = text(new, "/spec/completionMode") == "Indexed";
    for member in [
        "completions",
        "selector",
        "template",
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ] {
        // An indexed job may change its completions together with its parallelism.
        let elastic = member == "completions"
            && indexed
            && new.pointer("/spec/completions") == new.pointer("/spec/parallelism");
        // The template of a suspended job may still change.
        let open = member == "template" && old.pointer("/spec/suspend") == Some(&json!(true));
        if !elastic && !open {
            let (pointer, field) = (format!("/spec/{member}"), format!("spec.{member}"));
            immutable(old, new, &pointer, &field, causes);
        }
    }
}

pub(in crate::registry) fn validate_cron_job(cron: &Value, causes: &mut Vec<Cause>) {
    let spec = cron.get("spec").unwrap_or(&Value::Null);
    let schedule = text(spec, "/schedule");
    if schedule.is_empty() {
        causes.push(Cause::required("spec.schedule", ""));
    } else if let Some(why) = schedule_problem(schedule) {
        causes.push(Cause::invalid("spec.schedule", &json!(schedule), &why));
    }
    not_negative(spec, "spec", &["startingDeadlineSeconds"], causes);
    let policy = text(spec, "/concurrencyPolicy");
    let known = ["Allow", "Forbid", "Replace"];
    if !known.contains(&policy) {
        let field = "spec.concurrencyPolicy";
        causes.push(Cause::unsupported(field, &json!(policy), &known));
    }
    let mut inner = Vec::new();
    check_job(
        spec.pointer("/jobTemplate/spec").unwrap_or(&Value::Null),
        &mut inner,
    );
    causes.extend(inner.into_iter().map(|cause| Cause {
        field: format!("spec.jobTemplate.{}", cause.field),
        ..cause
    }));
    let limits = ["successfulJobsHistoryLimit", "failedJobsHistoryLimit"];
    not_negative(spec, "spec", &limits, causes);
    let name = text(cron, "/metadata/name");
    if name.len() > CRON_NAME {
        let why = "must be no more than 52 characters";
        causes.push(Cause::invalid("metadata.name", &json!(name), why));
    }
}

/// Applies the defaults that jobs and job templates share.
fn default_pods(job: &mut Value) {
    let rules = job.pointer_mut("/spec/podFailurePolicy/rules");
    for rule in rules.and_then(Value::as_array_mut).into_iter().flatten() {
        let patterns = rule
            .get_mut("onPodConditions")
            .and_then(Value::as_array_mut);
        let patterns = patterns.into_iter().flatten();
        patterns
            .filter_map(Value::as_object_mut)
            .for_each(|pattern| {
                set_default_text(pattern, "status", "True");
            });
    }
    if let Some(template) = job.pointer_mut("/spec/template") {
        super::pod::default_template(template);
    }
}

/// Validates the parts that jobs and job templates share.
fn check_job(spec: &Value, causes: &mut Vec<Cause>) {
    let counts = [
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ];
    not_negative(spec, "spec", &counts, causes);
    let there = |member: &str| spec.get(member).is_some_and(|value| !value.is_null());
    let known = ["NonIndexed", "Indexed"];
    match text(spec, "/completionMode") {
        "Indexed" if !there("completions") => {
            let why = "when completion mode is Indexed";
            causes.push(Cause::required("spec.completions", why));
        }
        "" | "NonIndexed" => {
            for member in ["backoffLimitPerIndex", "maxFailedIndexes", "successPolicy"] {
                if there(member) {
                    let why = "requires indexed completion mode";
                    causes.push(Cause::invalid(format!("spec.{member}"), &spec[member], why));
                }
            }
        }
        "Indexed" => {}
        other => {
            let field = "spec.completionMode";
            causes.push(Cause::unsupported(field, &json!(other), &known));
        }
    }
    check_pods(spec, causes);
    let restart = text(spec, "/template/spec/restartPolicy");
    let field = "spec.template.spec.restartPolicy";
    match restart {
        "" | "Always" => {
            let why = "valid values: \"OnFailure\", \"Never\"";
            causes.push(Cause::required(field, why));
        }
        "OnFailure" | "Never" => {}
        other => {
            let known = ["OnFailure", "Never"];
            causes.push(Cause::unsupported(field, &json!(other), &known));
        }
    }
}

/// Checks the labels that a generated selector requires.
fn check_generated(job: &Value, causes: &mut Vec<Cause>) {
    let labels = job.pointer("/spec/template/metadata/labels");
    let at = "spec.template.metadata.labels";
    for (index, label) in [UID_LABELS[0], NAME_LABELS[0], UID_LABELS[1], NAME_LABELS[1]]
        .into_iter()
        .enumerate()
    {
        let member = if index % 2 == 0 { "uid" } else { "name" };
        let expected = text(job, &format!("/metadata/{member}"));
        let found = labels.and_then(|labels| labels.get(label));
        if found.and_then(Value::as_str) != Some(expected) {
            let shown = labels.unwrap_or(&Value::Null);
            let why = format!("must be '{expected}'");
            causes.push(match found {
                None => Cause::required(format!("{at}.{label}"), &why),
                Some(_) => Cause::invalid(format!("{at}.{label}"), shown, &why),
            });
        }
    }
}

/// Returns the error in the five fields of a schedule.
fn schedule_problem(schedule: &str) -> Option<String> {
    if schedule.contains("TZ") {
        let why = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        return Some(why.to_owned());
    }
    if let Some(named) = schedule.strip_prefix('@') {
        let known = [
            "yearly", "annually", "monthly", "weekly", "daily", "midnight", "hourly",
        ];
        let every = named.starts_with("every ");
        let unknown = || format!("unrecognized descriptor: {schedule}");
        return (!every && !known.contains(&named)).then(unknown);
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        let (count, found) = (fields.len(), fields.join(" "));
        return Some(format!(
            "expected exactly 5 fields, found {count}: [{found}]"
        ));
    };
    let bounds = [
        (minute, 0, 59, &[][..]),
        (hour, 0, 23, &[]),
        (day, 1, 31, &[]),
        (month, 1, 12, &MONTHS),
        (weekday, 0, 6, &DAYS),
    ];
    let mut terms = bounds.iter().flat_map(|(field, least, most, words)| {
        let terms = field.split(',');
        terms.map(move |term| term_problem(term, *least, *most, words))
    });
    terms.find_map(|problem| problem)
}

const MONTHS: [&str; 12] = [
    "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Returns the error in one term of a schedule: `*`, `a` or `a-b`, each with an optional `/step`.
fn term_problem(term: &str, least: u64, most: u64, words: &[&str]) -> Option<String> {
    let number = |text: &str| -> Result<u64, String> {
        let word = words
            .iter()
            .position(|word| text.eq_ignore_ascii_case(word));
        match word {
            Some(at) => Ok(at as u64 + least),
            None => text
                .parse()
                .map_err(|_| format!("failed to parse int from {text}")),
        }
    };
    let (range, step) = match term.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (term, None),
    };
    let check = || -> Result<(), String> {
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (least, most),
            Some((from, to)) => (number(from)?, number(to)?),
            None => {
                let only = number(range)?;
                (only, if step.is_some() { most } else { only })
            }
        };
        if step.map(number).transpose()? == Some(0) {
            return Err(format!("step of range should be a positive number: {term}"));
        }
        if from < least {
            return Err(format!(
                "beginning of range ({from}) below minimum ({least}): {term}"
            ));
        }
        if to > most {
            return Err(format!(
                "end of range ({to}) above maximum ({most}): {term}"
            ));
        }
        if from > to {
            return Err(format!(
                "beginning of range ({from}) beyond end of range ({to}): {term}"
            ));
        }
        Ok(())
    };
    check().err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Value {
        json!({"metadata": {"name": "j", "uid": "u"}, "spec": {"template": {"metadata": {"labels": {"a": "b"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
    }

    fn fields(validate: fn(&Value, &mut Vec<Cause>), object: &Value) -> Vec<String> {
        let mut causes = Vec::new();
        validate(object, &mut causes);
        causes.into_iter().map(|cause| cause.field).collect()
    }

    #[test]
    fn a_job_selects_its_own_pods() {
        let mut job = job();
        prepare_job(&mut job);
        default_job(&mut job);
        assert_eq!(fields(validate_job, &job), [""; 0]);
        let selector = json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}});
        assert_eq!(job["spec"]["selector"], selector);
        assert_eq!(job["metadata"]["labels"], json!({"a": "b"}));
        let labels = job["spec"]["template"]["metadata"]["labels"].as_object();
        assert_eq!(labels.unwrap().len(), 5);
    }

    #[test]
    fn job_template_is_validated_and_immutable() {
        let mut job = job();
        prepare_job(&mut job);
        let mut other = job.clone();
        other["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
        assert_eq!(
            fields(validate_job, &other),
            ["spec.template.spec.restartPolicy"]
        );
        let mut causes = Vec::new();
        validate_job_update(&job, &other, &mut causes);
        assert_eq!(causes[0].field, "spec.template");
        other = job.clone();
        other["spec"]["parallelism"] = json!(4);
        causes.clear();
        validate_job_update(&job, &other, &mut causes);
        assert_eq!(causes, []);
    }

    #[test]
    fn schedules_have_five_fields() {
        for good in [
            "* * * * *",
            "*/5 1-3 1,15 jan-mar MON",
            "@daily",
            "@every 1h",
            "0 0 ? * 6",
        ] {
            assert_eq!(schedule_problem(good), None, "{good}");
        }
        for bad in [
            "* * * *",
            "60 * * * *",
            "*/0 * * * *",
            "5-1 * * * *",
            "x * * * *",
            "@never",
            "TZ=UTC * * * * *",
        ] {
            assert!(schedule_problem(bad).is_some(), "{bad}");
        }
        let cron = json!({"metadata": {"name": "x".repeat(53)}, "spec": {"schedule": "* * * * *",
            "concurrencyPolicy": "Allow", "jobTemplate": job()}});
        assert_eq!(fields(validate_cron_job, &cron), ["metadata.name"]);
    }
}
