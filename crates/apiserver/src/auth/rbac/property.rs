//! Property test: a user may write roles and bindings but has neither `escalate` nor `bind`. No random sequence of its
//! writes gives any user more than that writer had at the start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::FutureExt as _;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use super::policy::RESOURCES;
use super::{Authorizer, Grant};
use crate::auth::{Attributes, Target, User};
use crate::store::{Change, Expected, Key, MemoryStore, Store, Write};

const SEQUENCES: u64 = 2_000;
const STEPS: usize = 12;

const USERS: [&str; 3] = ["eve", "bob", "carol"];
const SCOPES: [&str; 2] = ["", "a"];
const VERBS: [&str; 2] = ["get", "list"];
const KINDS: [&str; 2] = ["pods", "secrets"];

/// A permission: scope, verb, resource.
type Rights = BTreeSet<(&'static str, &'static str, &'static str)>;

/// Objects by kind (index into `RESOURCES`), namespace and name.
type Objects = BTreeMap<(usize, &'static str, String), Value>;

/// Computes what the objects grant from the documented rules of Kubernetes, independently of the authorizer.
fn rights(objects: &Objects, user: &str) -> Rights {
    let mut rights = Rights::new();
    for ((kind, namespace, _), binding) in objects.iter().filter(|((kind, ..), _)| *kind >= 2) {
        let names_user = |subject: &Value| subject["name"] == user;
        if !binding["subjects"]
            .as_array()
            .unwrap()
            .iter()
            .any(names_user)
        {
            continue;
        }
        let name = binding["roleRef"]["name"].as_str().unwrap();
        let mut rules = Vec::new();
        if binding["roleRef"]["kind"] == "Role" {
            let role = objects.get(&(1, *namespace, name.to_owned()));
            rules.extend(role.map(|role| role["rules"].clone()));
        } else {
            gather(objects, name, &mut BTreeSet::new(), &mut rules);
        }
        let scopes = if *kind == 2 {
            &SCOPES[..]
        } else {
            &SCOPES[1..]
        };
        for rule in rules.iter().flat_map(|rules| rules.as_array().unwrap()) {
            let has = |member: &str, wanted: &str| {
                let list = rule[member].as_array().unwrap();
                list.iter().any(|item| item == "*" || item == wanted)
            };
            for scope in scopes {
                for verb in VERBS.into_iter().filter(|verb| has("verbs", verb)) {
                    let kinds = KINDS.into_iter().filter(|kind| has("resources", kind));
                    rights.extend(kinds.map(|kind| (*scope, verb, kind)));
                }
            }
        }
    }
    rights
}

fn gather(objects: &Objects, name: &str, seen: &mut BTreeSet<String>, rules: &mut Vec<Value>) {
    let Some(role) = objects.get(&(0, "", name.to_owned())) else {
        return;
    };
    if !seen.insert(name.to_owned()) {
        return;
    }
    let Some(selector) = role.pointer("/aggregationRule/clusterRoleSelectors/0") else {
        rules.push(role["rules"].clone());
        return;
    };
    for ((kind, _, other), role) in objects {
        let label = role.pointer("/metadata/labels/x").and_then(Value::as_str);
        let matches = match selector.pointer("/matchLabels/x") {
            Some(wanted) => label == wanted.as_str(),
            // The selectors of this test contain no other expression.
            None => label != Some("p"),
        };
        if *kind == 0 && matches {
            gather(objects, other, seen, rules);
        }
    }
}

fn pick<T: Clone>(rng: &mut SmallRng, from: &[T]) -> T {
    from[rng.random_range(0..from.len())].clone()
}

fn role(rng: &mut SmallRng, cluster: bool, old: Option<&Value>) -> Value {
    let mut role = match old {
        // Half of the updates keep the rules.
        Some(old) if rng.random_bool(0.5) => old.clone(),
        _ => {
            let rules: Vec<Value> = (0..rng.random_range(0..3))
                .map(|_| {
                    let everything = rng.random_bool(0.1);
                    let group = if everything { "*" } else { "" };
                    json!({ "apiGroups": [group], "verbs": [pick(rng, &["get", "list", "*"])],
                        "resources": [pick(rng, &["pods", "secrets", "*"])] })
                })
                .collect();
            json!({ "metadata": {}, "rules": rules })
        }
    };
    role["metadata"]["labels"] = match rng.random_range(0..3) {
        0 => json!({ "x": "p" }),
        1 => json!({ "x": "q" }),
        _ => json!({}),
    };
    if cluster && rng.random_bool(0.25) {
        let selector = match rng.random_range(0..3) {
            0 => json!({ "matchLabels": { "x": "p" } }),
            1 => json!({ "matchLabels": { "x": "q" } }),
            _ => {
                json!({ "matchExpressions": [{ "key": "x", "operator": "NotIn", "values": ["p"] }] })
            }
        };
        role["aggregationRule"] = json!({ "clusterRoleSelectors": [selector] });
    }
    role
}

fn binding(rng: &mut SmallRng, local: bool) -> Value {
    let kind = if local && rng.random_bool(0.5) {
        "Role"
    } else {
        "ClusterRole"
    };
    let name = pick(rng, &["0", "1", "2"]);
    let mut users = USERS.to_vec();
    users.retain(|_| rng.random_bool(0.4));
    let subjects: Vec<Value> = users
        .iter()
        .map(|u| json!({ "kind": "User", "name": u }))
        .collect();
    json!({ "metadata": {}, "roleRef": { "kind": kind, "name": name }, "subjects": subjects })
}

/// One write: location and content. No write removes an object.
fn write(rng: &mut SmallRng, objects: &Objects) -> ((usize, &'static str, String), Option<Value>) {
    let kind = rng.random_range(0..4usize);
    let scope = if kind % 2 == 0 { "" } else { "a" };
    let key = (kind, scope, pick(rng, &["0", "1", "2"]).to_owned());
    let old = objects.get(&key);
    if old.is_some() && rng.random_bool(0.15) {
        return (key, None);
    }
    let mut object = match kind {
        0 | 1 => role(rng, kind == 0, old),
        _ => binding(rng, kind == 3),
    };
    object["metadata"]["name"] = json!(key.2);
    (key, Some(object))
}

fn put(store: &dyn Store, (kind, namespace, name): &(usize, &str, String), object: Option<Value>) {
    let key = Key {
        resource: RESOURCES[*kind].into(),
        namespace: (*namespace).into(),
        name: name.clone(),
    };
    let expected = store
        .get(&key)
        .map_or(Expected::Absent, |o| Expected::Revision(o.revision));
    let change = object.map_or(Change::Delete, |object| Change::Put(object.into()));
    let written = store
        .write(Write::new(key, expected, change))
        .now_or_never();
    written.unwrap().unwrap();
}

/// Returns the number of allowed writes of the attacker.
fn sequence(seed: u64) -> usize {
    let rng = &mut SmallRng::seed_from_u64(seed);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let authorizer = Authorizer::new(Arc::clone(&store));
    let mut objects = Objects::new();
    for _ in 0..10 {
        let (key, object) = write(rng, &objects);
        if let Some(object) = object {
            put(store.as_ref(), &key, Some(object.clone()));
            objects.insert(key, object);
        }
    }
    let eve = User::new("eve", []);
    let had = rights(&objects, "eve");
    let before: Vec<Rights> = USERS.iter().map(|user| rights(&objects, user)).collect();
    let mut allowed = 0;
    for step in 0..STEPS {
        let (key, object) = write(rng, &objects);
        let plural = RESOURCES[key.0].split_once('/').unwrap().1;
        if let Some(object) = &object {
            let grant = Grant::of(plural, key.1, objects.get(&key), object);
            if grant.is_some_and(|grant| authorizer.check_grant(&eve, &grant).is_err()) {
                continue;
            }
        }
        allowed += 1;
        put(store.as_ref(), &key, object.clone());
        match object {
            Some(object) => objects.insert(key, object),
            None => objects.remove(&key),
        };
        for (user, before) in USERS.iter().zip(&before) {
            let now = rights(&objects, user);
            let gained: Vec<_> = now
                .difference(before)
                .filter(|right| !had.contains(right))
                .collect();
            assert!(
                gained.is_empty(),
                "seed {seed}, step {step}: {user} gained {gained:?}"
            );
            // The model agrees with the authorizer.
            for scope in SCOPES {
                for (verb, resource) in VERBS.into_iter().flat_map(|v| KINDS.map(|k| (v, k))) {
                    let target = Target::Resource {
                        group: "",
                        resource,
                        subresource: "",
                        namespace: scope,
                        name: "",
                    };
                    let may =
                        authorizer.allows(&User::new(*user, []), &Attributes { verb, target });
                    let model = now.contains(&(scope, verb, resource));
                    assert_eq!(
                        may, model,
                        "seed {seed}, step {step}: {user} {verb} {resource} {scope:?}"
                    );
                }
            }
        }
    }
    allowed
}

#[test]
fn writes_without_escalate_and_bind_give_nobody_more_than_the_writer_had() {
    let allowed: usize = (0..SEQUENCES).map(sequence).sum();
    // Otherwise the test would not have exercised anything.
    assert!(allowed > usize::try_from(SEQUENCES).unwrap(), "{allowed}");
}
