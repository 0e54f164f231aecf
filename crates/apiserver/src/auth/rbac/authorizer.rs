//! Keeps the policy in sync with the store.
//!
//! There is no background task. Each decision first applies the changes that were committed since the previous
//! decision. If nothing was committed, this costs one comparison of two numbers. Therefore a role is in force as soon
//! as its write is acknowledged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures_util::FutureExt as _;

use super::Rule;
use super::policy::{Policy, RESOURCES};
use crate::auth::{Attributes, Decision, MASTERS, User};
use crate::store::{EventKind, Range, Store, Watch};

/// Authorizes requests by the roles and bindings in a store.
pub(crate) struct Authorizer {
    store: Arc<dyn Store>,
    policy: RwLock<Policy>,
    /// The store revision up to which `policy` is known to be current.
    revision: AtomicU64,
    /// Grows with every change of `policy`.
    generation: AtomicU64,
    watches: Mutex<Vec<Option<Box<dyn Watch>>>>,
}

impl Authorizer {
    /// Reads the current roles and bindings of the store.
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        let this = Self {
            store,
            policy: RwLock::default(),
            revision: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            watches: Mutex::new(Vec::new()),
        };
        this.refresh();
        this
    }

    /// Whether one request is allowed.
    pub(crate) fn allows(&self, user: &User, attributes: &Attributes<'_>) -> bool {
        // No role restricts the members of `system:masters`, so the policy need not be updated first.
        user.is_in(MASTERS) || self.read(|policy| policy.allows(user, attributes))
    }

    /// Whether one request is allowed; `None` if the user has so many rules that the decision is heavy work.
    pub(crate) fn allows_briefly(&self, user: &User, attributes: &Attributes<'_>) -> Option<bool> {
        if user.is_in(MASTERS) {
            return Some(true);
        }
        self.read(|policy| policy.allows_briefly(user, attributes))
            .ok()
    }

    /// Decides one request, with the reason.
    pub(crate) fn decide(&self, user: &User, attributes: &Attributes<'_>) -> Decision {
        self.read(|policy| policy.decide(user, attributes))
    }

    /// Returns every rule that the user has in a namespace.
    pub(crate) fn rules(&self, user: &User, namespace: &str) -> Vec<Rule> {
        self.read(|policy| policy.rules(user, namespace))
    }

    /// A number that grows with every change of the roles and bindings.
    pub(crate) fn generation(&self) -> u64 {
        self.refresh();
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn read<T>(&self, with: impl FnOnce(&Policy) -> T) -> T {
        self.refresh();
        with(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn refresh(&self) {
        let now = self.store.revision();
        // A new store and an authorizer that has read nothing are both at revision 0.
        if self.revision.load(Ordering::Acquire) == now {
            return;
        }
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if watches.is_empty() {
            watches.resize_with(RESOURCES.len(), || None);
        }
        let lost = watches
            .iter_mut()
            .zip(RESOURCES)
            .any(|(watch, resource)| match watch {
                // Most writes do not concern roles. Comparing the revision is cheaper than polling the watch.
                Some(watch) if watch.revision() >= now => false,
                Some(watch) => !self.drain(watch.as_mut(), resource),
                None => true,
            });
        if lost {
            self.reload(&mut watches);
        }
        self.revision.fetch_max(now, Ordering::AcqRel);
    }

    /// Applies the pending events. Returns false if events were lost.
    fn drain(&self, watch: &mut dyn Watch, resource: &str) -> bool {
        let mut policy = None;
        let kept = loop {
            match watch.next().now_or_never() {
                None => break true,
                Some(Err(_)) => break false,
                Some(Ok(event)) => {
                    let removed = event.kind == EventKind::Deleted;
                    let policy = policy.get_or_insert_with(|| {
                        self.policy.write().unwrap_or_else(PoisonError::into_inner)
                    });
                    policy.apply(resource, &event.object, removed);
                    self.generation.fetch_add(1, Ordering::AcqRel);
                }
            }
        };
        if let Some(policy) = &mut policy {
            policy.finish();
        }
        kept
    }

    /// Lists everything again and starts watches at that revision. A watch that fails to start is retried with the next
    /// decision.
    fn reload(&self, watches: &mut [Option<Box<dyn Watch>>]) {
        let mut fresh = Policy::default();
        for (watch, resource) in watches.iter_mut().zip(RESOURCES) {
            let range = Range {
                resource: resource.into(),
                namespace: None,
                name: None,
            };
            let Ok(listing) = self.store.list(&range, None) else {
                *watch = None;
                continue;
            };
            for object in &listing.objects {
                fresh.apply(resource, object, false);
            }
            *watch = self.store.watch(range, listing.revision).ok();
        }
        fresh.finish();
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        self.generation.fetch_add(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::auth::Target;
    use crate::store::{Change, Expected, MemoryStore, Write};

    const NAMESPACES: [&str; 3] = ["", "a", "b"];
    const NAMES: [&str; 3] = ["x", "y", "z"];
    const USERS: [&str; 3] = ["u", "v", "system:serviceaccount:a:s"];

    /// One write: kind, location and content (`None` removes the object).
    #[derive(Clone, Debug)]
    struct Step {
        kind: usize,
        namespace: &'static str,
        name: &'static str,
        object: Option<Value>,
    }

    fn role() -> impl Strategy<Value = Value> {
        let verb = prop::sample::select(vec!["get", "list", "*"]);
        let label = prop::sample::select(vec!["p", "q"]);
        (verb, label, any::<u8>()).prop_map(|(verb, label, shape)| {
            let rule = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] });
            let mut role = json!({ "metadata": { "labels": { "l": label } }, "rules": [rule] });
            if shape.is_multiple_of(4) {
                let selector =
                    json!({ "matchLabels": { "l": if shape > 127 { "p" } else { "q" } } });
                role["aggregationRule"] = json!({ "clusterRoleSelectors": [selector] });
            }
            role
        })
    }

    fn binding() -> impl Strategy<Value = Value> {
        let subject = prop::sample::select(vec![
            json!({ "kind": "User", "name": "u" }),
            json!({ "kind": "Group", "name": "g" }),
            json!({ "kind": "ServiceAccount", "name": "s", "namespace": "a" }),
        ]);
        let kind = prop::sample::select(vec!["Role", "ClusterRole"]);
        let role = prop::sample::select(NAMES.to_vec());
        (prop::collection::vec(subject, 0..3), kind, role).prop_map(|(subjects, kind, role)| {
            json!({ "roleRef": { "kind": kind, "name": role }, "subjects": subjects })
        })
    }

    fn step() -> impl Strategy<Value = Step> {
        let name = prop::sample::select(NAMES.to_vec());
        let namespace = prop::sample::select(NAMESPACES[1..].to_vec());
        let object = (role(), binding());
        (
            0..4usize,
            namespace,
            name,
            object,
            any::<bool>(),
            any::<bool>(),
        )
            .prop_map(
                |(kind, namespace, name, (role, binding), keep, more)| Step {
                    kind,
                    namespace: if kind.is_multiple_of(2) {
                        ""
                    } else {
                        namespace
                    },
                    name,
                    object: (keep || more).then_some(if kind < 2 { role } else { binding }),
                },
            )
    }

    fn write(store: &dyn Store, step: &Step) {
        let key = crate::store::Key {
            resource: RESOURCES[step.kind].into(),
            namespace: step.namespace.into(),
            name: step.name.into(),
        };
        let present = store.get(&key).map(|object| object.revision);
        let change = match (&step.object, present) {
            (None, None) => return,
            (None, Some(_)) => Change::Delete,
            (Some(object), _) => Change::Put(object.clone().into()),
        };
        let expected = present.map_or(Expected::Absent, Expected::Revision);
        let write = Write::new(key, expected, change);
        store.write(write).now_or_never().unwrap().unwrap();
    }

    #[test]
    fn decision_about_very_many_rules_is_heavy_work() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let authorizer = Authorizer::new(Arc::clone(&store));
        let rules: Value = (0..5_000)
            .map(|n| {
                json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"],
                "resourceNames": [format!("p{n}")] })
            })
            .collect();
        let subject = |name: &str| json!({ "kind": "User", "name": name });
        let few = json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["list"] }]);
        for (name, user, rules) in [("x", "u", rules), ("y", "v", few)] {
            let objects = [
                json!({ "metadata": {}, "rules": rules }),
                json!({ "roleRef": { "kind": "ClusterRole", "name": name }, "subjects": [subject(user)] }),
            ];
            for (kind, object) in [0, 2].into_iter().zip(objects) {
                let object = Some(object);
                write(
                    store.as_ref(),
                    &Step {
                        kind,
                        namespace: "",
                        name,
                        object,
                    },
                );
            }
        }
        let list = |user: &str, groups: &[&str]| {
            let user = User::new(user, groups.iter().map(|group| (*group).to_owned()));
            let target = Target::Resource {
                group: "",
                resource: "pods",
                subresource: "",
                namespace: "a",
                name: "",
            };
            let attributes = Attributes {
                verb: "list",
                target,
            };
            (
                authorizer.allows_briefly(&user, &attributes),
                authorizer.allows(&user, &attributes),
            )
        };
        assert_eq!(list("u", &[]), (None, false));
        assert_eq!(list("v", &[]), (Some(true), true));
        assert_eq!(list("w", &[]), (Some(false), false));
        assert_eq!(list("u", &[MASTERS]), (Some(true), true));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Incremental updates give the same policy as a full read.
        #[test]
        fn incremental_policy_equals_full_read(steps in prop::collection::vec(step(), 1..30)) {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let following = Authorizer::new(Arc::clone(&store));
            for (number, step) in steps.iter().enumerate() {
                write(store.as_ref(), step);
                if number == 20 {
                    store.jump(100).now_or_never().unwrap().unwrap();
                }
                let anew = Authorizer::new(Arc::clone(&store));
                for (user, verb) in USERS.iter().flat_map(|u| ["get", "list"].map(|v| (u, v))) {
                    let user = User::new(*user, ["g".to_owned()]);
                    for namespace in NAMESPACES {
                        let target = Target::Resource {
                            group: "", resource: "pods", subresource: "", namespace, name: "",
                        };
                        let attributes = Attributes { verb, target };
                        let decision = following.decide(&user, &attributes);
                        prop_assert_eq!(&decision, &anew.decide(&user, &attributes));
                        prop_assert_eq!(decision.allowed, following.allows(&user, &attributes));
                    }
                }
            }
        }
    }
}
