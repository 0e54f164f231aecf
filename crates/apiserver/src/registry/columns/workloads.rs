//! Columns of workloads, disruption budgets and device claims.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{AGE_COLUMN, Column, list, or_none, scalar, since, size, string, text, wide};

const CONTAINERS: Column = wide("Containers", |o, _| members(o, POD, "name"))
    .described("Names of each container in the template.");
const IMAGES: Column = wide("Images", |o, _| members(o, POD, "image"))
    .described("Images referenced by each container in the template.");
const SELECTOR: Column = wide("Selector", |o, _| selector(o, "/spec/selector"));

const POD: &str = "/spec/template/spec/containers";
const TEMPLATE: &str = "/template/spec/containers";
const CRON_POD: &str = "/spec/jobTemplate/spec/template/spec/containers";

const fn number(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column {
        kind: "integer",
        ..text(name, cell)
    }
}

pub(in crate::registry) const DEPLOYMENT: &[Column] = &[
    text("Ready", |o, _| ready(o)).described("Number of the pod with ready state"),
    text("Up-to-date", |o, _| count(o, "/status/updatedReplicas"))
        .field("apps/v1.DeploymentStatus", "updatedReplicas"),
    text("Available", |o, _| count(o, "/status/availableReplicas"))
        .field("apps/v1.DeploymentStatus", "availableReplicas"),
    AGE_COLUMN,
    CONTAINERS,
    IMAGES,
    SELECTOR.field("apps/v1.DeploymentSpec", "selector"),
];

pub(in crate::registry) const REPLICA_SET: &[Column] =
    &replicas("apps/v1.ReplicaSetSpec", "apps/v1.ReplicaSetStatus");

pub(in crate::registry) const REPLICATION_CONTROLLER: &[Column] = &replicas(
    "core/v1.ReplicationControllerSpec",
    "core/v1.ReplicationControllerStatus",
);

const fn replicas(spec: &'static str, status: &'static str) -> [Column; 7] {
    [
        number("Desired", |o, _| count(o, "/spec/replicas")).field(spec, "replicas"),
        number("Current", |o, _| count(o, "/status/replicas")).field(status, "replicas"),
        number("Ready", |o, _| count(o, "/status/readyReplicas")).field(status, "readyReplicas"),
        AGE_COLUMN,
        CONTAINERS,
        IMAGES,
        SELECTOR.field(spec, "selector"),
    ]
}

pub(in crate::registry) const POD_TEMPLATE: &[Column] = &[
    text("Containers", |o, _| members(o, TEMPLATE, "name"))
        .described("Names of each container in the template."),
    text("Images", |o, _| members(o, TEMPLATE, "image"))
        .described("Images referenced by each container in the template."),
    text("Pod Labels", |o, _| {
        selector(o, "/template/metadata/labels")
    })
    .described("The labels for the pod template."),
];

pub(in crate::registry) const CONTROLLER_REVISION: &[Column] = &[
    text("Controller", |o, _| json!(controller(o))).described("Controller of the object"),
    text("Revision", |o, _| count(o, "/revision")).field("apps/v1.ControllerRevision", "revision"),
    AGE_COLUMN,
];

pub(in crate::registry) const STATEFUL_SET: &[Column] = &[
    text("Ready", |o, _| ready(o)).described("Number of the pod with ready state"),
    AGE_COLUMN,
    CONTAINERS,
    IMAGES,
];

pub(in crate::registry) const DAEMON_SET: &[Column] = &[
    number("Desired", |o, _| count(o, "/status/desiredNumberScheduled"))
        .field("apps/v1.DaemonSetStatus", "desiredNumberScheduled"),
    number("Current", |o, _| count(o, "/status/currentNumberScheduled"))
        .field("apps/v1.DaemonSetStatus", "currentNumberScheduled"),
    number("Ready", |o, _| count(o, "/status/numberReady"))
        .field("apps/v1.DaemonSetStatus", "numberReady"),
    number("Up-to-date", |o, _| {
        count(o, "/status/updatedNumberScheduled")
    })
    .field("apps/v1.DaemonSetStatus", "updatedNumberScheduled"),
    number("Available", |o, _| count(o, "/status/numberAvailable"))
        .field("apps/v1.DaemonSetStatus", "numberAvailable"),
    text("Node Selector", |o, _| {
        selector(o, "/spec/template/spec/nodeSelector")
    })
    .field("core/v1.PodSpec", "nodeSelector"),
    AGE_COLUMN,
    CONTAINERS,
    IMAGES,
    SELECTOR.field("apps/v1.DaemonSetSpec", "selector"),
];

pub(in crate::registry) const JOB: &[Column] = &[
    text("Status", job_status).described("Status of the job."),
    text("Completions", |o, _| {
        let done = count(o, "/status/succeeded");
        let several = o.pointer("/spec/parallelism").and_then(Value::as_i64);
        match (o.pointer("/spec/completions"), several.unwrap_or(0)) {
            (Some(wanted), _) => json!(format!("{done}/{wanted}")),
            (None, several) if several > 1 => json!(format!("{done}/1 of {several}")),
            (None, _) => json!(format!("{done}/1")),
        }
    })
    .field("batch/v1.JobStatus", "succeeded"),
    text("Duration", |o, now| {
        let moment = |pointer| o.pointer(pointer).and_then(Value::as_str);
        let end = moment("/status/completionTime").and_then(|end| end.parse().ok());
        match moment("/status/startTime") {
            None => json!(""),
            start => json!(since(start, end.unwrap_or(now))),
        }
    })
    .described("Time required to complete the job."),
    AGE_COLUMN,
    CONTAINERS,
    IMAGES,
    SELECTOR.field("batch/v1.JobSpec", "selector"),
];

pub(in crate::registry) const CRON_JOB: &[Column] = &[
    text("Schedule", |o, _| string(o, "/spec/schedule")).field("batch/v1.CronJobSpec", "schedule"),
    text("Timezone", |o, _| or_none(o, "/spec/timeZone")).field("batch/v1.CronJobSpec", "timeZone"),
    text("Suspend", |o, _| {
        json!(match o.pointer("/spec/suspend") {
            Some(Value::Bool(true)) => "True",
            Some(Value::Bool(false)) => "False",
            _ => "<unset>",
        })
    })
    .field("batch/v1.CronJobSpec", "suspend"),
    number("Active", |o, _| json!(size(o, "/status/active")))
        .field("batch/v1.CronJobStatus", "active"),
    text("Last Schedule", |o, now| {
        match o
            .pointer("/status/lastScheduleTime")
            .and_then(Value::as_str)
        {
            None => json!("<none>"),
            last => json!(since(last, now)),
        }
    })
    .field("batch/v1.CronJobStatus", "lastScheduleTime"),
    AGE_COLUMN,
    wide("Containers", |o, _| members(o, CRON_POD, "name"))
        .described("Names of each container in the template."),
    wide("Images", |o, _| members(o, CRON_POD, "image"))
        .described("Images referenced by each container in the template."),
    wide("Selector", |o, _| {
        selector(o, "/spec/jobTemplate/spec/selector")
    })
    .field("batch/v1.JobSpec", "selector"),
];

pub(in crate::registry) const BUDGET: &[Column] = &[
    text("Min Available", |o, _| share(o, "/spec/minAvailable"))
        .described("The minimum number of pods that must be available."),
    text("Max Unavailable", |o, _| share(o, "/spec/maxUnavailable"))
        .described("The maximum number of pods that may be unavailable."),
    number("Allowed Disruptions", |o, _| {
        count(o, "/status/disruptionsAllowed")
    })
    .described("Calculated number of pods that may be disrupted at this time."),
    AGE_COLUMN,
];

pub(in crate::registry) const RESOURCE_CLAIM: &[Column] = &[
    text("State", |o, _| {
        let deleted = crate::registry::meta::is_deleting(o);
        let allocated = o.pointer("/status/allocation").is_some();
        let reserved = allocated && size(o, "/status/reservedFor") > 0;
        let states = [
            (deleted, "deleted"),
            (!allocated && !deleted, "pending"),
            (allocated, "allocated"),
            (reserved, "reserved"),
        ];
        let states: Vec<&str> = states
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, state)| *state)
            .collect();
        json!(states.join(","))
    })
    .described("A summary of the current state (allocated, pending, reserved, etc.)."),
    AGE_COLUMN,
];

pub(in crate::registry) const RESOURCE_SLICE: &[Column] = &[
    text("Node", |o, _| string(o, "/spec/nodeName"))
        .field("resource/v1.ResourceSliceSpec", "nodeName"),
    text("Driver", |o, _| string(o, "/spec/driver"))
        .field("resource/v1.ResourceSliceSpec", "driver"),
    text("Pool", |o, _| string(o, "/spec/pool/name")).field("resource/v1.ResourcePool", "name"),
    AGE_COLUMN,
];

/// Returns the controller in the form `statefulset.apps/web`.
fn controller(object: &Value) -> String {
    let owners = object
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array);
    let mut owners = owners.into_iter().flatten();
    let Some(owner) = owners.find(|owner| owner["controller"] == true) else {
        return "<none>".to_owned();
    };
    let version = scalar(owner.get("apiVersion"));
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let kind = crate::status::qualified(&scalar(owner.get("kind")), group);
    format!("{}/{}", kind.to_lowercase(), scalar(owner.get("name")))
}

fn ready(object: &Value) -> Value {
    let (ready, wanted) = (
        count(object, "/status/readyReplicas"),
        count(object, "/spec/replicas"),
    );
    json!(format!("{ready}/{wanted}"))
}

fn members(object: &Value, containers: &str, member: &str) -> Value {
    json!(match member {
        "name" => list(object, containers, |c| scalar(c.get("name"))),
        _ => list(object, containers, |c| scalar(c.get("image"))),
    })
}

/// Returns the labels of a selector in either of its forms.
fn selector(object: &Value, pointer: &str) -> Value {
    let selector = object.pointer(pointer);
    let labels = selector
        .and_then(|selector| selector.get("matchLabels"))
        .or(selector);
    let labels = labels.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<String> = labels
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
        .collect();
    json!(if pairs.is_empty() {
        "<none>".to_owned()
    } else {
        pairs.join(",")
    })
}

fn count(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0))
}

fn share(object: &Value, pointer: &str) -> Value {
    match object.pointer(pointer) {
        Some(value) => json!(scalar(Some(value))),
        None => json!("N/A"),
    }
}

fn job_status(job: &Value, _: Timestamp) -> Value {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array);
    let has = |kind: &str| {
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    json!(if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if crate::registry::meta::is_deleting(job) {
        "Terminating"
    } else {
        let others = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
        let other = others.into_iter().find(|kind| has(kind));
        other.unwrap_or("Running")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(columns: &[Column], object: &Value) -> Vec<Value> {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        columns
            .iter()
            .map(|column| (column.cell)(object, now))
            .collect()
    }

    #[test]
    fn cells_of_jobs_and_stateful_sets_have_the_expected_text() {
        let job = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"completions": 3, "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}},
            "status": {"succeeded": 1, "startTime": "2026-01-01T00:00:30Z"}});
        assert_eq!(
            cells(JOB, &job),
            ["Running", "1/3", "30s", "60s", "c", "i", "a=b"]
        );
        let controller = json!({"spec": {"replicas": 2, "selector": {"x": "y"}}});
        let row = cells(REPLICATION_CONTROLLER, &controller);
        assert_eq!(row[..3], [json!(2), json!(0), json!(0)]);
        assert_eq!(row[6], "x=y");
    }
}
