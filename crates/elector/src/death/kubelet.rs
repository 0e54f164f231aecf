//! Evidence in the status of a pod. Only ends that the kubelet has observed count, not conclusions of other components.
//!
//! | status | evidence |
//! |---|---|
//! | a terminated container with an id and an end, as the container runtime reported it | that run has ended |
//! | reason `ContainerStatusUnknown` or `Unknown`, exit code 137 or 255 | none: the kubelet or the runtime has lost the container, and its processes may run |
//! | phase Failed or Succeeded, and the condition that the kubelet writes with it, and every container terminated | the pod has ended |
//! | phase Failed without that condition | none: PodGC sets it for pods whose node is gone or out of service |
//! | reason `NodeLost`, a deletion time, or no pod object | none: the kubelet does not answer |
//!
//! Invariant: without knowledge of every container of the pod, the pod has not ended.

use serde_json::Value;
use tenure_core::WallTime;
use tenure_core::death::{ContainerEnd, Evidence};

/// The containers of a pod, and where their statuses are.
const LISTS: [(&str, &str); 3] = [
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    ("ephemeralContainers", "ephemeralContainerStatuses"),
];

/// Reasons for the end of a pod with which the kubelet ends its containers before it reports the phase. With other
/// reasons, such as `NodeAffinity` or `OutOfcpu`, it rejects a pod whose containers it may not know.
const ENDED_BY_KUBELET: [&str; 5] = [
    "",
    "DeadlineExceeded",
    "Evicted",
    "Preempting",
    "Terminated",
];

/// Reasons of a container that its kubelet or its runtime could not find.
const LOST: [&str; 2] = ["ContainerStatusUnknown", "Unknown"];

/// Returns the evidence in the status of a pod.
pub(super) fn evidence(pod: &Value) -> Vec<Evidence> {
    let Some(uid) = pod["metadata"]["uid"]
        .as_str()
        .filter(|uid| !uid.is_empty())
    else {
        return Vec::new();
    };
    let statuses = LISTS
        .iter()
        .flat_map(|(_, list)| items(&pod["status"][*list]));
    let ends = statuses.flat_map(|status| ends(uid, status));
    let mut evidence: Vec<_> = ends.map(Evidence::ContainerEnded).collect();
    if has_ended(pod) {
        evidence.push(Evidence::PodEnded {
            uid: uid.to_owned(),
        });
    }
    evidence
}

/// Returns the runs of a container that have ended: the current one and the one before.
fn ends(uid: &str, status: &Value) -> Vec<ContainerEnd> {
    let (state, last) = (&status["state"], &status["lastState"]);
    let name = status["name"].as_str().unwrap_or_default();
    // A lost run may be followed by others while it still runs, so times do not distinguish these runs.
    if [state, last]
        .iter()
        .any(|state| is_lost(&state["terminated"]))
    {
        return Vec::new();
    }
    let current = end(uid, name, &state["terminated"], None);
    let next = [&state["running"], &state["terminated"]]
        .into_iter()
        .find(|state| state.is_object())
        .map(|state| time(&state["startedAt"]));
    let before = match next {
        None => end(uid, name, &last["terminated"], None),
        Some(Some(next)) => end(uid, name, &last["terminated"], Some(next)),
        // The next run has started at an unknown time.
        Some(None) => None,
    };
    current.into_iter().chain(before).collect()
}

fn end(
    uid: &str,
    name: &str,
    terminated: &Value,
    next_started: Option<WallTime>,
) -> Option<ContainerEnd> {
    let id = terminated["containerID"].as_str()?;
    let finished = time(&terminated["finishedAt"])?;
    (!id.is_empty() && !name.is_empty()).then(|| ContainerEnd {
        uid: uid.to_owned(),
        name: name.to_owned(),
        id: id.to_owned(),
        started: time(&terminated["startedAt"]),
        finished: Some(finished),
        next_started,
    })
}

/// Returns whether the kubelet states that the pod has ended with all of its containers.
fn has_ended(pod: &Value) -> bool {
    let status = &pod["status"];
    // The kubelet writes this reason in the same request as the containers that it sees. Nobody else does.
    let signature = match status["phase"].as_str() {
        Some("Failed") => "PodFailed",
        Some("Succeeded") => "PodCompleted",
        _ => return false,
    };
    let conditions = items(&status["conditions"]);
    let signed = conditions.iter().any(|condition| {
        condition["type"] == "ContainersReady"
            && condition["status"] == "False"
            && condition["reason"] == signature
    });
    let collected = conditions.iter().any(|condition| {
        condition["type"] == "DisruptionTarget" && condition["reason"] == "DeletionByPodGC"
    });
    let reason = status["reason"].as_str().unwrap_or_default();
    let whole = items(&pod["spec"]["containers"]);
    signed
        && !collected
        && ENDED_BY_KUBELET.contains(&reason)
        && !whole.is_empty()
        && LISTS.iter().all(|(containers, statuses)| {
            let statuses = items(&status[*statuses]);
            let mut containers = items(&pod["spec"][*containers]).iter();
            containers.all(|container| is_over(container, statuses))
        })
}

/// Returns whether the kubelet states that a container of the specification has terminated.
fn is_over(container: &Value, statuses: &[Value]) -> bool {
    let name = &container["name"];
    let mut own = statuses.iter().filter(|status| status["name"] == *name);
    let (Some(status), None) = (own.next(), own.next()) else {
        return false;
    };
    let terminated = &status["state"]["terminated"];
    terminated.is_object() && !is_lost(terminated) && !is_lost(&status["lastState"]["terminated"])
}

/// Returns whether a container is reported as terminated because nobody found it.
fn is_lost(terminated: &Value) -> bool {
    let reason = terminated["reason"].as_str().unwrap_or_default();
    terminated.is_object() && LOST.contains(&reason)
}

/// Parses a time of the kubelet. A run that never started has the zero time of Unix or of Go.
fn time(value: &Value) -> Option<WallTime> {
    let time: jiff::Timestamp = value.as_str()?.parse().ok()?;
    let micros = time.as_microsecond();
    (micros > 0).then(|| WallTime::from_micros(micros))
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tenure_core::death::{Inquest, Rules};
    use tenure_core::{Container, Incarnation, Place, Record};

    use super::*;

    const ID: &str = "containerd://8f3c5e";
    const EARLIER: &str = "containerd://11a0b2";

    /// A term that was acquired at 10:00:05.25 in the container `elector` of the pod `u1`.
    fn proves(pod: &Value, id: Option<&str>) -> bool {
        let acquired: jiff::Timestamp = "2026-03-04T10:00:05.25Z".parse().unwrap();
        let record = Record {
            holder: "a".to_owned(),
            acquire_time: Some(WallTime::from_micros(acquired.as_microsecond())),
            ..Record::default()
        };
        let container = Container {
            namespace: "shop".to_owned(),
            pod: "web-0".to_owned(),
            uid: "u1".to_owned(),
            name: "elector".to_owned(),
            id: id.map(str::to_owned),
        };
        let place = Place {
            container: Some(container),
            ..Place::default()
        };
        let mut inquest = Inquest::new(Incarnation::of(&record, place), Rules::default());
        evidence(pod).iter().any(|evidence| inquest.add(evidence))
    }

    fn has_pod_end(pod: &Value) -> bool {
        let uid = || "u1".to_owned();
        evidence(pod).contains(&Evidence::PodEnded { uid: uid() })
    }

    fn running(at: &str) -> Value {
        json!({ "running": { "startedAt": at } })
    }

    fn terminated(id: &str, reason: &str, code: u8, from: &str, to: &str) -> Value {
        json!({ "terminated": {
            "containerID": id, "exitCode": code, "reason": reason, "startedAt": from, "finishedAt": to,
        } })
    }

    /// The end of the run in which the term was acquired.
    fn ended(reason: &str, code: u8) -> Value {
        terminated(
            ID,
            reason,
            code,
            "2026-03-04T09:59:58Z",
            "2026-03-04T10:03:11Z",
        )
    }

    /// As the kubelet writes it if it cannot find a container.
    fn lost() -> Value {
        json!({ "terminated": {
            "exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": null, "finishedAt": null,
            "message": "The container could not be located when the pod was terminated",
        } })
    }

    fn back_off() -> Value {
        let message = "back-off 10s restarting failed container=elector pod=web-0_shop(u1)";
        json!({ "waiting": { "reason": "CrashLoopBackOff", "message": message } })
    }

    /// The pod with an init container that is complete, and two containers.
    fn pod(phase: &str, state: Value, last: Value) -> Value {
        let reason = match phase {
            "Failed" => json!("PodFailed"),
            "Succeeded" => json!("PodCompleted"),
            _ => Value::Null,
        };
        let ready = json!({ "type": "ContainersReady", "status": "False", "reason": reason });
        let setup = terminated(
            "containerd://77",
            "Completed",
            0,
            "2026-03-04T09:59:50Z",
            "2026-03-04T09:59:51Z",
        );
        let mut pod = json!({
            "metadata": { "name": "web-0", "namespace": "shop", "uid": "u1" },
            "spec": {
                "nodeName": "n1",
                "initContainers": [{ "name": "setup" }],
                "containers": [{ "name": "elector" }, { "name": "proxy" }],
            },
            "status": {
                "phase": phase,
                "conditions": [{ "type": "Initialized", "status": "True" }, ready],
                "initContainerStatuses": [{ "name": "setup", "state": setup, "lastState": {} }],
                "containerStatuses": [
                    { "name": "elector", "containerID": ID },
                    { "name": "proxy", "state": ended("Completed", 0), "lastState": {} },
                ],
            },
        });
        let own = &mut pod["status"]["containerStatuses"][0];
        own["state"] = state;
        own["lastState"] = last;
        pod
    }

    #[test]
    fn status_of_the_container_proves_the_end_of_the_run_that_holds_the_lock() {
        let before = terminated(
            EARLIER,
            "Error",
            1,
            "2026-03-04T09:00:00Z",
            "2026-03-04T09:59:57Z",
        );
        // The container was created, and its command could not be started.
        let not_started = terminated(
            EARLIER,
            "StartError",
            128,
            "1970-01-01T00:00:00Z",
            "2026-03-04T10:04:00Z",
        );
        let same_second = terminated(
            EARLIER,
            "Error",
            1,
            "2026-03-04T09:00:00Z",
            "2026-03-04T10:00:05Z",
        );
        let runtime_lost = terminated(
            ID,
            "Unknown",
            255,
            "2026-03-04T09:59:58Z",
            "2026-03-04T10:03:11Z",
        );
        let none = || json!({});
        for (name, state, last, expected) in [
            ("running", running("2026-03-04T09:59:58Z"), none(), false),
            ("terminated", ended("Error", 1), none(), true),
            ("killed", ended("OOMKilled", 137), none(), true),
            (
                "restarted",
                running("2026-03-04T10:03:12Z"),
                ended("Error", 1),
                true,
            ),
            ("CrashLoopBackOff", back_off(), ended("Error", 1), true),
            (
                "an earlier run",
                running("2026-03-04T09:59:58Z"),
                before.clone(),
                false,
            ),
            (
                "an earlier run, and this one",
                ended("Error", 1),
                before.clone(),
                true,
            ),
            ("an earlier run, stale", before, none(), false),
            ("an earlier run in that second", same_second, none(), false),
            (
                "clock set back between two runs",
                running("2026-03-04T09:59:58Z"),
                terminated(
                    EARLIER,
                    "Error",
                    1,
                    "2026-03-04T09:00:00Z",
                    "2026-03-04T10:20:00Z",
                ),
                false,
            ),
            (
                "a later run",
                terminated(
                    EARLIER,
                    "Error",
                    1,
                    "2026-03-04T10:01:00Z",
                    "2026-03-04T10:02:00Z",
                ),
                none(),
                false,
            ),
            ("never started", not_started, none(), false),
            ("ContainerStatusUnknown", lost(), none(), false),
            (
                "ContainerStatusUnknown, restarted",
                running("2026-03-04T10:03:12Z"),
                lost(),
                false,
            ),
            (
                "ContainerStatusUnknown, then another end",
                ended("Error", 1),
                lost(),
                false,
            ),
            ("lost by the runtime", runtime_lost, none(), false),
            (
                "waiting",
                json!({ "waiting": { "reason": "PodInitializing" } }),
                none(),
                false,
            ),
            ("no state", none(), none(), false),
        ] {
            let pod = pod("Running", state, last);
            assert_eq!(proves(&pod, None), expected, "{name}");
            assert!(!has_pod_end(&pod), "{name}");
        }
    }

    #[test]
    fn known_id_identifies_the_run_whatever_its_times_are() {
        let short = terminated(
            ID,
            "Error",
            1,
            "2026-03-04T10:00:05Z",
            "2026-03-04T10:00:05Z",
        );
        let pod = pod("Running", short, json!({}));
        assert!(proves(&pod, Some(ID)));
        assert!(!proves(&pod, Some(EARLIER)));
        assert!(!proves(&pod, None), "in the second of the acquisition");
    }

    #[test]
    fn status_of_another_pod_or_container_is_not_about_the_holder() {
        let mut other = pod("Running", ended("Error", 1), json!({}));
        other["metadata"]["uid"] = "u2".into();
        assert!(!proves(&other, None));
        other["metadata"]["uid"] = Value::Null;
        assert_eq!(evidence(&other), []);
        let mut neighbour = pod("Running", running("2026-03-04T09:59:58Z"), json!({}));
        assert!(!proves(&neighbour, None), "proxy has ended");
        neighbour["status"]["containerStatuses"][1]["name"] = "elector".into();
        assert!(proves(&neighbour, None));
    }

    #[test]
    fn holder_in_an_init_container_or_an_ephemeral_one_is_found() {
        for list in ["initContainerStatuses", "ephemeralContainerStatuses"] {
            let mut pod = pod("Running", running("2026-03-04T09:59:58Z"), json!({}));
            let own = json!([{ "name": "elector", "state": ended("Error", 1), "lastState": {} }]);
            pod["status"]["containerStatuses"] = json!([]);
            pod["status"][list] = own;
            assert!(proves(&pod, None), "{list}");
        }
    }

    #[test]
    fn pod_has_ended_if_its_kubelet_states_it_with_every_container() {
        // The holder's last run started after the term, so that only the end of the pod is a proof.
        let later = || {
            terminated(
                EARLIER,
                "Error",
                1,
                "2026-03-04T10:01:00Z",
                "2026-03-04T10:02:00Z",
            )
        };
        for phase in ["Failed", "Succeeded"] {
            let pod = pod(phase, later(), json!({}));
            assert!(has_pod_end(&pod) && proves(&pod, None), "{phase}");
        }
        for reason in ["DeadlineExceeded", "Evicted", "Terminated"] {
            let mut pod = pod("Failed", later(), json!({}));
            pod["status"]["reason"] = reason.into();
            assert!(proves(&pod, None), "{reason}");
        }
    }

    #[test]
    fn pod_whose_end_nobody_saw_is_no_proof() {
        let later = || {
            terminated(
                EARLIER,
                "Error",
                1,
                "2026-03-04T10:01:00Z",
                "2026-03-04T10:02:00Z",
            )
        };
        let failed = || pod("Failed", later(), json!({}));
        type Change = fn(&mut Value);
        let changes: [(&str, Change); 13] = [
            ("out-of-service pod, marked by PodGC", |pod| {
                pod["status"]["conditions"] = json!([
                    { "type": "ContainersReady", "status": "True" },
                ]);
            }),
            ("orphaned pod, marked by PodGC", |pod| {
                let by = json!({
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                });
                let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
                conditions.push(by);
            }),
            ("NodeLost", |pod| {
                pod["status"]["reason"] = "NodeLost".into();
            }),
            ("rejected after a restart of the kubelet", |pod| {
                pod["status"]["reason"] = "NodeAffinity".into();
            }),
            ("evicted, as old kubelets report it", |pod| {
                pod["status"] = json!({
                    "phase": "Failed", "reason": "Evicted", "startTime": "2026-03-04T09:59:49Z",
                    "message": "The node was low on resource: memory.",
                });
            }),
            ("DeadlineExceeded, and still stopping", |pod| {
                pod["status"]["reason"] = "DeadlineExceeded".into();
                pod["status"]["containerStatuses"][1]["state"] = running("2026-03-04T09:59:58Z");
            }),
            ("a container was lost", |pod| {
                pod["status"]["containerStatuses"][1]["state"] = lost();
            }),
            ("a container was lost before", |pod| {
                pod["status"]["containerStatuses"][1]["lastState"] = lost();
            }),
            ("a container without a status", |pod| {
                let containers = pod["spec"]["containers"].as_array_mut().unwrap();
                containers.push(json!({ "name": "third" }));
            }),
            ("a sidecar runs", |pod| {
                pod["status"]["initContainerStatuses"][0]["state"] =
                    running("2026-03-04T09:59:58Z");
            }),
            ("an ephemeral container runs", |pod| {
                pod["spec"]["ephemeralContainers"] = json!([{ "name": "debug" }]);
                pod["status"]["ephemeralContainerStatuses"] =
                    json!([{ "name": "debug", "state": running("2026-03-04T10:01:30Z") }]);
            }),
            ("an unknown container", |pod| {
                pod["spec"]["containers"] = json!([]);
            }),
            ("phase Unknown", |pod| {
                pod["status"]["phase"] = "Unknown".into();
            }),
        ];
        assert!(has_pod_end(&failed()));
        for (name, change) in changes {
            let mut pod = failed();
            change(&mut pod);
            assert!(!has_pod_end(&pod) && !proves(&pod, None), "{name}");
        }
    }

    #[test]
    fn pod_deleted_by_force_was_running() {
        let mut pod = pod("Running", running("2026-03-04T09:59:58Z"), json!({}));
        pod["metadata"]["deletionTimestamp"] = "2026-03-04T10:03:00Z".into();
        pod["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        assert!(!proves(&pod, None));
    }

    #[test]
    fn malformed_status_is_no_evidence() {
        for status in [
            json!(null),
            json!([]),
            json!({ "containerStatuses": "x" }),
            json!({ "containerStatuses": [7, { "state": [] }] }),
            json!({ "phase": "Failed", "conditions": {} }),
        ] {
            let pod = json!({ "metadata": { "uid": "u1" }, "status": status });
            assert_eq!(evidence(&pod), [], "{pod}");
        }
        let mut pod = pod("Running", ended("Error", 1), json!({}));
        for field in ["containerID", "finishedAt"] {
            let mut bare = pod.clone();
            bare["status"]["containerStatuses"][0]["state"]["terminated"][field] = Value::Null;
            assert!(!proves(&bare, None), "{field}");
        }
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = "soon".into();
        assert!(!proves(&pod, None));
    }
}
