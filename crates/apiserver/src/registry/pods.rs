//! A new pod depends on its ServiceAccount, on the limit ranges of its namespace, on its priority class and on its runtime
//! class.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::accounts;
use super::engine::{Registry, Target, WriteOptions, parsed};
use super::rules::{at, entries, items, limits, pod, scheduling, text};
use crate::auth::User;
use crate::limits::MAX_STORED_BYTES;
use crate::status::Failure;
use crate::store::{Given, Key, Object, Range, WriteError};

/// Objects that a decision used, as preconditions of its write.
type Used = Vec<Given>;

/// Maximum number of limit ranges, and of quotas, in a namespace.
const MOST_BOUNDS: usize = 100;

/// Sets the account, the resources, the priority and the overhead of a new pod, or rejects it.
pub(super) fn admit(
    registry: &Registry,
    target: &Target<'_>,
    pod: &mut Value,
) -> Result<Used, Failure> {
    pod::default_pod(pod);
    accounts::admit(registry, pod);
    let mut used = Used::new();
    let ranges = read_all(
        registry,
        "",
        "limitranges",
        Some(target.namespace),
        &mut used,
    );
    let mut room = MAX_STORED_BYTES;
    for range in &ranges {
        if !limits::apply_defaults(range, pod, &mut room) {
            let why = "the pod is too large with the defaults of the limit ranges in its namespace";
            return Err(Failure::generic(413, "RequestEntityTooLarge", why));
        }
    }
    set_priority(registry, target, pod, &mut used)?;
    set_runtime(registry, target, pod, &mut used)?;
    let problems = ranges
        .iter()
        .flat_map(|range| limits::pod_problems(range, pod));
    refuse(target, pod, &problems.collect::<Vec<_>>())?;
    Ok(used)
}

/// Rejects a new claim that requests more or less than a limit range allows.
pub(super) fn check_claim(
    registry: &Registry,
    target: &Target<'_>,
    claim: &Value,
    used: &mut Used,
) -> Result<(), Failure> {
    let ranges = read_all(registry, "", "limitranges", Some(target.namespace), used);
    let problems = ranges
        .iter()
        .flat_map(|range| limits::claim_problems(range, claim));
    refuse(target, claim, &problems.collect::<Vec<_>>())
}

/// Rejects a new object if its namespace has too many of the kind. Each create of a pod reads all of them.
pub(super) fn admit_bounded(
    registry: &Registry,
    target: &Target<'_>,
    object: &mut Value,
) -> Result<Used, Failure> {
    let range = Range {
        resource: target.kind.storage_key(),
        namespace: Some(target.namespace.to_owned()),
        name: None,
    };
    let listing = registry.store.list(&range, None);
    if listing.is_ok_and(|listing| listing.objects.len() < MOST_BOUNDS) {
        return Ok(Used::new());
    }
    let plural = target.kind.plural();
    let why = format!("a namespace can have at most {MOST_BOUNDS} {plural}");
    Err(forbidden(target, name_of(object), &why))
}

/// Preserves the priority of a pod if an update omits it.
pub(super) fn preserve_priority(old: &Value, new: &mut Value) {
    for member in ["priority", "preemptionPolicy"] {
        let was = at(old, "/spec").and_then(|spec| spec.get(member));
        if let (Some(was), Some(spec)) = (was, new.get_mut("spec").and_then(Value::as_object_mut)) {
            let slot = spec.entry(member).or_insert(Value::Null);
            if slot.is_null() {
                *slot = was.clone();
            }
        }
    }
}

/// Rejects a second default class.
pub(super) fn admit_priority_class(
    registry: &Registry,
    target: &Target<'_>,
    class: &mut Value,
) -> Result<Used, Failure> {
    check_default(registry, target, class, "")?;
    Ok(Used::new())
}

/// Rejects a change that makes a second default class.
pub(super) fn check_priority_class(
    registry: &Registry,
    target: &Target<'_>,
    _: &Value,
    class: &Value,
) -> Result<(), Failure> {
    check_default(registry, target, class, target.name)
}

/// Rejects the deletion of a class that every cluster has.
pub(super) fn check_priority_class_deletion(target: &Target<'_>) -> Result<(), Failure> {
    let system = scheduling::SYSTEM_CLASSES.iter();
    if system.clone().all(|(name, ..)| *name != target.name) {
        return Ok(());
    }
    let why = "this is a system priority class and cannot be deleted";
    Err(forbidden(target, target.name, why))
}

impl Registry {
    /// Returns the size of the limit ranges and quotas of a namespace.
    pub(crate) fn bound_bytes(&self, namespace: &str) -> usize {
        let bytes = |plural: &str| -> usize {
            let Some(kind) = super::find("", plural) else {
                return 0;
            };
            let range = Range {
                resource: kind.storage_key(),
                namespace: Some(namespace.to_owned()),
                name: None,
            };
            let listing = self.store.list(&range, None);
            let objects = listing.map(|listing| listing.objects).unwrap_or_default();
            objects.iter().map(|object| object.json.len()).sum()
        };
        bytes("limitranges") + bytes("resourcequotas")
    }

    /// Creates the priority classes that every cluster has.
    pub(super) async fn open_priority_classes(&self) -> Result<(), WriteError> {
        let Some(kind) = super::find(PRIORITY, "priorityclasses") else {
            return Ok(());
        };
        let made = scheduling::SYSTEM_CLASSES.map(async |(name, value, description)| {
            let target = Target {
                kind,
                version: &kind.versions()[0],
                namespace: "",
                name,
            };
            if self.store.get(&target.key()).is_some() {
                return Ok(());
            }
            let class = json!({"metadata": {"name": name}, "value": value,
                "description": description});
            let (user, options) = (User::default(), WriteOptions::default());
            match self.create(&target, class, &user, &options).await {
                Err(failure) if self.store.get(&target.key()).is_none() => {
                    Err(WriteError::Failed(failure.message))
                }
                _ => Ok(()),
            }
        });
        join_all(made).await.into_iter().collect()
    }
}

fn check_default(
    registry: &Registry,
    target: &Target<'_>,
    class: &Value,
    own_name: &str,
) -> Result<(), Failure> {
    if class["globalDefault"] != true {
        return Ok(());
    }
    match default_priority(registry, &mut Used::new()) {
        Some(other) if text(&other, "/metadata/name") != own_name => {
            let name = text(&other, "/metadata/name");
            let why = format!(
                "PriorityClass {name} is already marked as default. Only one default can exist"
            );
            Err(forbidden(target, text(class, "/metadata/name"), &why))
        }
        _ => Ok(()),
    }
}

/// Returns the default class. If concurrent requests made several, the one with the lowest value is used.
fn default_priority(registry: &Registry, used: &mut Used) -> Option<Value> {
    let mut all = Used::new();
    let classes = read_all(registry, PRIORITY, "priorityclasses", None, &mut all);
    let classes = classes
        .into_iter()
        .filter(|class| class["globalDefault"] == true);
    let class = classes.min_by_key(|class| class["value"].as_i64().unwrap_or(0))?;
    let name = text(&class, "/metadata/name");
    used.extend(all.into_iter().filter(|given| given.key.name == name));
    Some(class)
}

const PRIORITY: &str = "scheduling.k8s.io";

fn set_priority(
    registry: &Registry,
    target: &Target<'_>,
    pod: &mut Value,
    used: &mut Used,
) -> Result<(), Failure> {
    let wanted = text(pod, "/spec/priorityClassName").to_owned();
    let class = if wanted.is_empty() {
        default_priority(registry, used)
    } else {
        let class = read(registry, PRIORITY, "priorityclasses", &wanted, used);
        if class.is_none() {
            let why = format!("no PriorityClass with name {wanted} was found");
            return Err(forbidden(target, name_of(pod), &why));
        }
        class
    };
    let class = class.unwrap_or_else(|| json!({}));
    let priority = class["value"].as_i64().unwrap_or(0);
    let policy = match text(&class, "/preemptionPolicy") {
        "" => "PreemptLowerPriority",
        policy => policy,
    };
    let sent = at(pod, "/spec/priority").and_then(Value::as_i64);
    if let Some(sent) = sent.filter(|sent| *sent != priority) {
        let why = format!(
            "the integer value of priority ({sent}) must not be provided in pod spec; priority \
             admission controller computed {priority} from the given PriorityClass name"
        );
        return Err(forbidden(target, name_of(pod), &why));
    }
    let sent = text(pod, "/spec/preemptionPolicy");
    if !sent.is_empty() && sent != policy {
        let why = format!(
            "the string value of PreemptionPolicy ({sent}) must not be provided in pod spec; \
             priority admission controller computed {policy} from the given PriorityClass name"
        );
        return Err(forbidden(target, name_of(pod), &why));
    }
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("priority".into(), json!(priority));
        spec.insert("preemptionPolicy".into(), json!(policy));
        let name = text(&class, "/metadata/name");
        if !name.is_empty() {
            spec.insert("priorityClassName".into(), json!(name));
        }
    }
    Ok(())
}

fn set_runtime(
    registry: &Registry,
    target: &Target<'_>,
    pod: &mut Value,
    used: &mut Used,
) -> Result<(), Failure> {
    let name = text(pod, "/spec/runtimeClassName").to_owned();
    let refuse = |pod: &Value, why: &str| Err(forbidden(target, name_of(pod), why));
    let class = if at(pod, "/spec/runtimeClassName").is_none_or(Value::is_null) {
        json!({})
    } else {
        match read(registry, "node.k8s.io", "runtimeclasses", &name, used) {
            Some(class) => class,
            None => {
                let why = format!("pod rejected: RuntimeClass {name:?} not found");
                return refuse(pod, &why);
            }
        }
    };
    let sent = limits::amounts(pod, "/spec/overhead");
    let overhead = at(&class, "/overhead").filter(|overhead| !overhead.is_null());
    match overhead {
        None if at(pod, "/spec/overhead").is_some_and(|sent| !sent.is_null()) => {
            let why = "pod rejected: Pod Overhead set without corresponding RuntimeClass defined \
                       Overhead";
            return refuse(pod, why);
        }
        Some(_) if !sent.is_empty() && sent != limits::amounts(&class, "/overhead/podFixed") => {
            let why = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";
            return refuse(pod, why);
        }
        _ => {}
    }
    for (key, value) in entries(&class, "/scheduling/nodeSelector") {
        let selector = at(pod, "/spec/nodeSelector");
        if let Some(own) = selector
            .and_then(|selector| selector.get(key))
            .filter(|own| *own != value)
        {
            let [value, own] = [value, own].map(|value| value.as_str().unwrap_or_default());
            let why = format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}; \
                 pod.spec.nodeSelector[{key}] = {own}"
            );
            return refuse(pod, &why);
        }
    }
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return Ok(());
    };
    if let Some(fixed) = overhead.and_then(|overhead| overhead.get("podFixed")) {
        spec.insert("overhead".into(), fixed.clone());
    }
    let selector: Vec<_> = entries(&class, "/scheduling/nodeSelector").collect();
    if !selector.is_empty() {
        let own = spec.entry("nodeSelector").or_insert_with(|| json!({}));
        for (key, value) in selector {
            own[key.as_str()] = value.clone();
        }
    }
    let tolerations = items(&class, "/scheduling/tolerations");
    let own = spec.entry("tolerations").or_insert_with(|| json!([]));
    if let Some(own) = own.as_array_mut() {
        let missing: Vec<Value> = tolerations
            .iter()
            .filter(|one| !own.contains(one))
            .cloned()
            .collect();
        own.extend(missing);
    }
    Ok(())
}

/// Returns 403 with the bounds that an object violates, if there are any.
fn refuse(target: &Target<'_>, object: &Value, problems: &[String]) -> Result<(), Failure> {
    let why = match problems {
        [] => return Ok(()),
        [only] => only.clone(),
        several => format!("[{}]", several.join(", ")),
    };
    Err(forbidden(target, name_of(object), &why))
}

/// Returns the name of a new object, or the prefix of the name that it will get.
pub(super) fn name_of(object: &Value) -> &str {
    let names = ["/metadata/name", "/metadata/generateName"].map(|member| text(object, member));
    names
        .into_iter()
        .find(|name| !name.is_empty())
        .unwrap_or_default()
}

/// Returns 403 for an object that admission rejects.
pub(super) fn forbidden(target: &Target<'_>, name: &str, why: &str) -> Failure {
    let (group, plural) = target.kind.resource();
    let resource = crate::status::qualified(plural, group);
    let message = format!("{resource} {name:?} is forbidden: {why}");
    Failure::about(403, "Forbidden", (group, plural), name, message)
}

/// Reads a cluster-scoped object, and adds its version to `used`.
fn read(
    registry: &Registry,
    group: &str,
    plural: &str,
    name: &str,
    used: &mut Used,
) -> Option<Value> {
    let key = Key {
        resource: super::find(group, plural)?.storage_key(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let object = registry.store.get(&key)?;
    used.push(given(&object));
    parsed(&object).ok()
}

/// Reads all objects of a kind, and adds their versions to `used`.
fn read_all(
    registry: &Registry,
    group: &str,
    plural: &str,
    namespace: Option<&str>,
    used: &mut Used,
) -> Vec<Value> {
    let Some(kind) = super::find(group, plural) else {
        return Vec::new();
    };
    let range = Range {
        resource: kind.storage_key(),
        namespace: namespace.map(str::to_owned),
        name: None,
    };
    let listing = registry.store.list(&range, None);
    let objects = listing.map(|listing| listing.objects).unwrap_or_default();
    used.extend(objects.iter().map(|object| given(object)));
    objects
        .iter()
        .filter_map(|object| parsed(object).ok())
        .collect()
}

/// Returns a version as a precondition.
pub(super) fn given(object: &Object) -> Given {
    Given {
        key: object.key.clone(),
        revision: object.revision,
    }
}
