//! Property test: a user may write roles and bindings but has neither `escalate` nor `bind`. No random sequence of its
//! writes gives any user more than that writer had at the start.
//!
//! The test drives the policy without a store. `incremental_policy_equals_full_read` checks that the authorizer has the same
//! policy as its store.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::Grant;
use super::policy::{Policy, RESOURCES};
use crate::auth::{Attributes, Target, User};
use crate::store::{Key, Object};

/// Number of sequences, divided among the processors. `TENURE_RBAC_SEQUENCES` overrides it.
const SEQUENCES: u64 = 5_000;
const STEPS: usize = 12;

const USERS: [&str; 3] = ["eve", "bob", "carol"];
const SCOPES: [&str; 2] = ["", "a"];
const VERBS: [&str; 2] = ["get", "list"];
const KINDS: [&str; 2] = ["pods", "secrets"];
const NAMES: [&str; 3] = ["0", "1", "2"];

/// Set of permissions. Bits 0 to 3 are the verbs and kinds for the whole cluster, bits 4 to 7 those in a namespace.
type Rights = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    None,
    P,
    Q,
}

#[derive(Clone, Copy, Debug)]
enum Selector {
    Is(Label),
    IsNot(Label),
}

impl Selector {
    fn matches(self, label: Label) -> bool {
        match self {
            Self::Is(wanted) => label == wanted,
            Self::IsNot(other) => label != other,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Role {
    rights: Rights,
    label: Label,
    selector: Option<Selector>,
}

#[derive(Clone, Copy, Debug)]
struct Binding {
    /// Whether the binding names a Role instead of a ClusterRole.
    local: bool,
    role: usize,
    /// Bit set of users.
    users: u8,
}

#[derive(Clone, Copy, Debug)]
enum Item {
    Role(Role),
    Binding(Binding),
}

/// The model: objects by kind (index into `RESOURCES`) and name, with the JSON that the policy gets.
#[derive(Debug, Default)]
struct Objects([[Option<(Item, Value)>; 3]; 4]);

impl Objects {
    fn role(&self, kind: usize, name: usize) -> Option<Role> {
        match self.0[kind][name] {
            Some((Item::Role(role), _)) => Some(role),
            _ => None,
        }
    }

    /// Computes what the objects grant from the documented rules of Kubernetes, independently of the policy.
    fn rights(&self, user: usize) -> Rights {
        let mut rights = 0;
        for kind in [2, 3] {
            for item in self.0[kind].iter().flatten() {
                let Item::Binding(binding) = item.0 else {
                    continue;
                };
                if binding.users & 1 << user == 0 {
                    continue;
                }
                let granted = if binding.local {
                    self.role(1, binding.role).map_or(0, |role| role.rights)
                } else {
                    self.gather(binding.role, &mut 0)
                };
                rights |= granted << 4;
                if kind == 2 {
                    rights |= granted;
                }
            }
        }
        rights
    }

    fn gather(&self, name: usize, seen: &mut u8) -> Rights {
        let Some(role) = self.role(0, name).filter(|_| *seen & 1 << name == 0) else {
            return 0;
        };
        *seen |= 1 << name;
        let Some(selector) = role.selector else {
            return role.rights;
        };
        let selected = |other: &usize| {
            let role = self.role(0, *other);
            role.is_some_and(|role| selector.matches(role.label))
        };
        let others = (0..NAMES.len()).filter(selected);
        others.fold(0, |rights, other| rights | self.gather(other, seen))
    }
}

fn pick<T: Copy>(rng: &mut SmallRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())]
}

fn role(rng: &mut SmallRng, cluster: bool, old: Option<&(Item, Value)>) -> (Item, Value) {
    let (mut role, mut json) = match old {
        // Half of the updates keep the rules.
        Some((Item::Role(role), json)) if rng.random_bool(0.5) => (*role, json.clone()),
        _ => {
            let mut rights = 0;
            let rules: Vec<Value> = (0..rng.random_range(0..3))
                .map(|_| {
                    let group = if rng.random_bool(0.1) { "*" } else { "" };
                    let (verb, kind) = (rng.random_range(0..3), rng.random_range(0..3));
                    let verbs = [0b0011, 0b1100, 0b1111][verb];
                    let kinds = [0b0101, 0b1010, 0b1111][kind];
                    rights |= verbs & kinds;
                    let verb = ["get", "list", "*"][verb];
                    let kind = ["pods", "secrets", "*"][kind];
                    json!({ "apiGroups": [group], "verbs": [verb], "resources": [kind] })
                })
                .collect();
            let role = Role {
                rights,
                label: Label::None,
                selector: None,
            };
            (role, json!({ "metadata": {}, "rules": rules }))
        }
    };
    role.label = pick(rng, &[Label::P, Label::Q, Label::None]);
    json["metadata"]["labels"] = match role.label {
        Label::P => json!({ "x": "p" }),
        Label::Q => json!({ "x": "q" }),
        Label::None => json!({}),
    };
    if cluster && rng.random_bool(0.25) {
        let selectors = [
            Selector::Is(Label::P),
            Selector::Is(Label::Q),
            Selector::IsNot(Label::P),
        ];
        let selector = pick(rng, &selectors);
        role.selector = Some(selector);
        let selector = match selector {
            Selector::Is(Label::P) => json!({ "matchLabels": { "x": "p" } }),
            Selector::Is(_) => json!({ "matchLabels": { "x": "q" } }),
            Selector::IsNot(_) => {
                json!({ "matchExpressions": [{ "key": "x", "operator": "NotIn", "values": ["p"] }] })
            }
        };
        json["aggregationRule"] = json!({ "clusterRoleSelectors": [selector] });
    }
    (Item::Role(role), json)
}

fn binding(rng: &mut SmallRng, in_namespace: bool) -> (Item, Value) {
    let binding = Binding {
        local: in_namespace && rng.random_bool(0.5),
        role: rng.random_range(0..NAMES.len()),
        users: (0..USERS.len()).fold(0, |set, user| set | u8::from(rng.random_bool(0.4)) << user),
    };
    let kind = if binding.local { "Role" } else { "ClusterRole" };
    let users = USERS.iter().enumerate();
    let subjects: Vec<Value> = users
        .filter(|(user, _)| binding.users & 1 << user != 0)
        .map(|(_, name)| json!({ "kind": "User", "name": name }))
        .collect();
    let json = json!({ "metadata": {}, "subjects": subjects,
        "roleRef": { "kind": kind, "name": NAMES[binding.role] } });
    (Item::Binding(binding), json)
}

/// One write: kind, name and content. `None` deletes the object.
fn write(rng: &mut SmallRng, objects: &Objects) -> (usize, usize, Option<(Item, Value)>) {
    let (kind, name) = (rng.random_range(0..4), rng.random_range(0..NAMES.len()));
    let old = objects.0[kind][name].as_ref();
    if old.is_some() && rng.random_bool(0.15) {
        return (kind, name, None);
    }
    let (item, mut json) = match kind {
        0 | 1 => role(rng, kind == 0, old),
        _ => binding(rng, kind == 3),
    };
    json["metadata"]["name"] = json!(NAMES[name]);
    (kind, name, Some((item, json)))
}

fn apply(policy: &mut Policy, kind: usize, name: usize, json: Option<&Value>) {
    let labels = json.and_then(|json| json["metadata"]["labels"].as_object());
    let labels = labels.into_iter().flatten();
    let label = |(key, value): (&String, &Value)| {
        let value = value.as_str().unwrap_or_default();
        (key.clone(), value.to_owned())
    };
    let object = Object {
        key: Key {
            resource: RESOURCES[kind].into(),
            namespace: SCOPES[kind % 2].into(),
            name: NAMES[name].into(),
        },
        revision: 1,
        labels: labels.map(label).collect::<BTreeMap<_, _>>(),
        json: json.map(Value::to_string).unwrap_or_default().into(),
    };
    policy.apply(RESOURCES[kind], &object, json.is_none());
    policy.finish();
}

/// Returns the permissions of a user according to the policy.
fn allowed(policy: &Policy, user: &User) -> Rights {
    let mut rights = 0;
    for (scope, namespace) in SCOPES.into_iter().enumerate() {
        for (v, verb) in VERBS.into_iter().enumerate() {
            for (k, resource) in KINDS.into_iter().enumerate() {
                let target = Target::Resource {
                    group: "",
                    resource,
                    subresource: "",
                    namespace,
                    name: "",
                };
                if policy.allows(user, &Attributes { verb, target }) {
                    rights |= 1 << (scope * 4 + v * 2 + k);
                }
            }
        }
    }
    rights
}

/// Returns the number of allowed and of refused writes of the attacker.
fn sequence(seed: u64) -> [usize; 2] {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let mut policy = Policy::default();
    let mut objects = Objects::default();
    for _ in 0..10 {
        let (kind, name, item) = write(rng, &objects);
        if let Some((_, json)) = &item {
            apply(&mut policy, kind, name, Some(json));
            objects.0[kind][name] = item;
        }
    }
    let users = USERS.map(|user| User::new(user, []));
    let before = [0, 1, 2].map(|user| objects.rights(user));
    let mut counts = [0, 0];
    for step in 0..STEPS {
        let (kind, name, item) = write(rng, &objects);
        if let Some((_, json)) = &item {
            let plural = RESOURCES[kind].split_once('/').unwrap().1;
            let old = objects.0[kind][name].as_ref().map(|(_, json)| json);
            let grant = Grant::of(plural, SCOPES[kind % 2], old, json);
            let refused = grant
                .is_some_and(|grant| policy.claim(&users[0], &grant).check(&users[0]).is_err());
            if refused {
                counts[1] += 1;
                continue;
            }
        }
        counts[0] += 1;
        apply(&mut policy, kind, name, item.as_ref().map(|(_, json)| json));
        objects.0[kind][name] = item;
        for (index, user) in users.iter().enumerate() {
            let now = objects.rights(index);
            let gained = now & !before[index] & !before[0];
            let who = &user.name;
            assert_eq!(
                gained, 0,
                "seed {seed}, step {step}: {who} gained {gained:#b}"
            );
            // The model agrees with the policy.
            let may = allowed(&policy, user);
            assert_eq!(
                may, now,
                "seed {seed}, step {step}: {who} {may:#b} {now:#b}"
            );
        }
    }
    counts
}

#[test]
fn user_without_escalate_and_bind_grants_no_more_than_it_has() {
    let given = std::env::var("TENURE_RBAC_SEQUENCES").ok();
    let sequences = given.map_or(SEQUENCES, |given| given.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let parts = (0..threads).map(|thread| {
        std::thread::spawn(move || {
            let seeds = (0..sequences).filter(|seed| seed % threads == thread);
            seeds
                .map(sequence)
                .fold([0, 0], |[allowed, refused], [a, r]| {
                    [allowed + a, refused + r]
                })
        })
    });
    let running: Vec<_> = parts.collect();
    let parts = running.into_iter().map(|part| part.join().unwrap());
    let [allowed, refused] = parts.fold([0, 0], |[allowed, refused], [a, r]| {
        [allowed + a, refused + r]
    });
    // Otherwise the test would not have exercised anything.
    let least = usize::try_from(sequences).unwrap();
    assert!(allowed > least && refused > least, "{allowed} {refused}");
}
