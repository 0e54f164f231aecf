//! Evictions: deletions of pods that PodDisruptionBudgets allow.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::delete::DeleteOptions;
use super::engine::{ATTEMPTS, Registry, Target, parsed};
use super::rules::{apps, items, text};
use super::update::Source;
use super::{Subresource, meta};
use crate::auth::User;
use crate::status::{Cause, Failure};
use crate::store::{Object, Range};

const BUDGETS: (&str, &str) = ("policy", "poddisruptionbudgets");
/// Seconds after which a client should evict again if a budget is not up to date.
const RETRY_SECONDS: u32 = 10;
/// Maximum number of evictions that the controller of a budget has not confirmed yet.
const MOST_DISRUPTED: usize = 2_000;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl Registry {
    /// Deletes a pod, if its budget allows that. Counts the eviction in the budget.
    pub(crate) async fn evict(
        self: &Arc<Self>,
        target: &Target<'_>,
        options: &DeleteOptions,
    ) -> Result<(), Failure> {
        for _ in 0..ATTEMPTS {
            let current = self.get(target)?;
            let pod = parsed(&current)?;
            let mut options = options.clone();
            let mut budget_name = None;
            // The pod may have become ready since it was read, so its budget must be checked.
            let mut pins_version = false;
            match text(&pod, "/status/phase") {
                "Succeeded" | "Failed" => {}
                _ if meta::is_deleting(&pod) => {}
                "Pending" => pins_version = true,
                _ => {
                    if let Some(budget) = self.budget_of(target, &pod)? {
                        let budget = parsed(&budget)?;
                        budget_name = Some(text(&budget, "/metadata/name").to_owned());
                        pins_version = is_free(&budget, &pod);
                        if !pins_version {
                            self.spend(target, &budget, &options).await?;
                        }
                    }
                }
            }
            let is_own = pins_version && options.resource_version.is_none();
            if is_own {
                options.resource_version = Some(current.revision.to_string());
            }
            match self.mark_and_delete(target, options).await {
                Err(failure) if is_own && is_conflict(&failure) => {
                    if let Some(name) = budget_name {
                        return Err(outdated(&name));
                    }
                }
                done => return done,
            }
        }
        Err(Failure::modified(target.kind.resource(), target.name))
    }

    /// Adds the condition that explains the deletion, and deletes the pod.
    async fn mark_and_delete(
        self: &Arc<Self>,
        target: &Target<'_>,
        mut options: DeleteOptions,
    ) -> Result<(), Failure> {
        if !options.write.dry_run {
            let current = self.get(target)?;
            super::delete::check_preconditions(target, &options, &current, &parsed(&current)?)?;
            let version = current.revision.to_string();
            let pins_version = options.resource_version.is_some();
            let mark = |old: &Value| {
                if pins_version && *text(old, "/metadata/resourceVersion") != version {
                    return Err(Failure::modified(target.kind.resource(), target.name));
                }
                let mut new = old.clone();
                set_condition(
                    &mut new,
                    json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
                        "message": "Eviction API: evicting", "lastProbeTime": null}),
                );
                Ok(new)
            };
            let (source, system) = (Source::Patch(&mark), User::default());
            let part = Some(Subresource::Status);
            let marked = self.update(target, part, source, &system, &options.write);
            let (marked, _) = marked.await?;
            if pins_version {
                let marked: Value = serde_json::from_slice(&marked).unwrap_or_default();
                let version = text(&marked, "/metadata/resourceVersion").to_owned();
                options.resource_version = Some(version);
            }
        }
        self.delete(target, &options).await.map(|_| ())
    }

    /// Returns the budget that selects a pod.
    fn budget_of(&self, target: &Target<'_>, pod: &Value) -> Result<Option<Arc<Object>>, Failure> {
        let Some(kind) = super::find(BUDGETS.0, BUDGETS.1) else {
            return Ok(None);
        };
        let range = Range {
            resource: kind.storage_key(),
            namespace: Some(target.namespace.to_owned()),
            name: None,
        };
        let listing = self.store.list(&range, None);
        let budgets = listing.map(|listing| listing.objects).unwrap_or_default();
        let labels = pod.pointer("/metadata/labels");
        let selects = |budget: &Arc<Object>| {
            let budget = parsed(budget).unwrap_or_default();
            let selector = budget.pointer("/spec/selector");
            selector.is_some_and(|it| it.is_object() && apps::selects(it, labels))
        };
        let mut found = budgets.into_iter().filter(selects);
        match (found.next(), found.next()) {
            (Some(_), Some(_)) => Err(Failure::new(
                500,
                "",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does \
                 not support.",
            )),
            (first, _) => Ok(first),
        }
    }

    /// Checks that a budget allows a disruption, and counts it.
    async fn spend(
        self: &Arc<Self>,
        target: &Target<'_>,
        budget: &Value,
        options: &DeleteOptions,
    ) -> Result<(), Failure> {
        let kind = super::find(BUDGETS.0, BUDGETS.1).expect("budgets are in the table");
        let now = meta::rfc3339(Timestamp::now());
        // The check runs on the version that the write replaces.
        let spend = |old: &Value| {
            check_budget(old)?;
            let mut new = old.clone();
            let left = number(old, "/status/disruptionsAllowed") - 1;
            new["status"]["disruptionsAllowed"] = json!(left);
            if left == 0 {
                let observed = number(old, "/status/observedGeneration");
                set_condition(
                    &mut new,
                    json!({"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods",
                        "message": "", "observedGeneration": observed}),
                );
            }
            let pods = &mut new["status"]["disruptedPods"];
            if !pods.is_object() {
                *pods = json!({});
            }
            pods[target.name] = json!(now);
            Ok(new)
        };
        let budget = Target {
            kind,
            version: &kind.versions()[0],
            namespace: target.namespace,
            name: text(budget, "/metadata/name"),
        };
        let (source, system) = (Source::Patch(&spend), User::default());
        let part = Some(Subresource::Status);
        let spent = self.update(&budget, part, source, &system, &options.write);
        spent.await.map(|_| ())
    }
}

/// Returns whether the eviction of a pod disrupts nothing that its budget protects.
fn is_free(budget: &Value, pod: &Value) -> bool {
    let mut conditions = items(pod, "/status/conditions").iter();
    let is_ready = conditions.any(|it| it["type"] == "Ready" && it["status"] == "True");
    let desired = number(budget, "/status/desiredHealthy");
    let has_enough = desired > 0 && number(budget, "/status/currentHealthy") >= desired;
    let always = text(budget, "/spec/unhealthyPodEvictionPolicy") == "AlwaysAllow";
    !is_ready && (always || has_enough)
}

/// Returns whether a write failed because of the version of the object, and not because of a stale fence.
fn is_conflict(failure: &Failure) -> bool {
    let mut causes = failure.details.iter().flat_map(|details| &details.causes);
    failure.code == 409 && causes.next().is_none()
}

fn check_budget(budget: &Value) -> Result<(), Failure> {
    let name = text(budget, "/metadata/name");
    let status = |member: &str| number(budget, &format!("/status/{member}"));
    if status("observedGeneration") < number(budget, "/metadata/generation") {
        return Err(outdated(name));
    }
    let forbidden = |why: &str| {
        let message = format!("poddisruptionbudgets.policy {name:?} is forbidden: {why}");
        Err(Failure::about(403, "Forbidden", BUDGETS, name, message))
    };
    if status("disruptionsAllowed") < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    let disrupted = budget.pointer("/status/disruptedPods");
    let disrupted = disrupted
        .and_then(Value::as_object)
        .map_or(0, serde_json::Map::len);
    if disrupted > MOST_DISRUPTED {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return forbidden(why);
    }
    if status("disruptionsAllowed") > 0 {
        return Ok(());
    }
    let mut conditions = items(budget, "/status/conditions").iter();
    let refusal =
        conditions.find(|it| it["type"] == "DisruptionAllowed" && it["status"] == "False");
    let (reason, message) =
        refusal.map_or(("", ""), |it| (text(it, "/reason"), text(it, "/message")));
    let (desired, current) = (status("desiredHealthy"), status("currentHealthy"));
    let start = format!("The disruption budget {name}");
    let why = if reason == "SyncFailed" && !message.is_empty() {
        format!("{start} does not allow evicting pods currently because it failed sync: {message}")
    } else if current <= desired {
        format!("{start} needs {desired} healthy pods and has {current} currently")
    } else if !message.is_empty() {
        format!("{start} does not allow evicting pods currently ({reason}): {message}")
    } else {
        format!("{start} does not allow evicting pods currently")
    };
    Err(refused(why, None))
}

/// Returns the error for a budget that its controller has not processed yet.
fn outdated(name: &str) -> Failure {
    let why = format!("The disruption budget {name} is still being processed by the server.");
    refused(why, Some(RETRY_SECONDS))
}

fn refused(why: String, retry_after_seconds: Option<u32>) -> Failure {
    let mut failure = Failure::generic(429, "TooManyRequests", REFUSED);
    if let Some(details) = &mut failure.details {
        details.retry_after_seconds = retry_after_seconds;
        details.causes.push(Cause {
            reason: "DisruptionBudget",
            message: why,
            field: String::new(),
        });
    }
    failure
}

fn number(object: &Value, pointer: &str) -> i64 {
    object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0)
}

/// Adds a condition or replaces the one of its type. Its time changes only with its status.
fn set_condition(object: &mut Value, mut condition: Value) {
    let status = &mut object["status"];
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(list) = status["conditions"].as_array_mut() else {
        return;
    };
    condition["lastTransitionTime"] = json!(meta::rfc3339(Timestamp::now()));
    match list
        .iter_mut()
        .find(|known| known["type"] == condition["type"])
    {
        Some(known) => {
            if known["status"] == condition["status"] {
                condition["lastTransitionTime"] = known["lastTransitionTime"].take();
            }
            *known = condition;
        }
        None => list.push(condition),
    }
}
