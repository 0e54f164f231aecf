//! Tests of field sets, merges and conflicts.

#![allow(
    clippy::needless_pass_by_value,
    reason = "tests pass temporary configurations by value"
)]

use super::*;
use crate::schema::message_by_name;

const NOW: &str = "2026-01-01T00:00:00Z";

/// An object that several managers write, with the owners of its fields.
struct Scenario {
    shape: Shape<'static>,
    object: Value,
    managed: Managed,
    /// Number of applies that the fast path handled.
    shortcuts: usize,
}

impl Scenario {
    fn of(message: &str) -> Self {
        Self {
            shape: Shape::Struct(message_by_name(message).expect("there")),
            object: json!({}),
            managed: Managed::default(),
            shortcuts: 0,
        }
    }

    fn apply(&mut self, manager: &str, config: Value, force: bool) -> Result<(), Refusal> {
        let writer = Writer {
            manager: manager.to_owned(),
            operation: Operation::Apply,
            api_version: "v1".to_owned(),
            subresource: String::new(),
        };
        let apply = Apply {
            shape: self.shape,
            live: &self.object,
            empty: &json!({}),
            config: &config,
            writer: &writer,
            reset: &Set::default(),
            force,
        };
        let short = match self.managed.clone().encode() {
            Some(owners) => apply.again(&owners)?.map(|object| (object, owners)),
            None => None,
        };
        let (object, managed) = apply.run(self.managed.clone(), &|_, _| None, NOW)?;
        // The fast path must have the same result.
        if let Some((short, owners)) = short {
            let renewed = Owners::Renewed(NOW.to_owned());
            let kept = if short == self.object {
                Owners::Kept
            } else {
                renewed
            };
            assert_eq!(kept.into_list(Some(owners)), managed.clone().encode());
            assert_eq!(short, object);
            self.shortcuts += 1;
        }
        self.object = object;
        self.managed = managed;
        Ok(())
    }

    fn update(&mut self, manager: &str, object: Value) {
        let writer = Writer {
            manager: manager.to_owned(),
            operation: Operation::Update,
            api_version: "v1".to_owned(),
            subresource: String::new(),
        };
        let change = compare(self.shape, &self.object, &object);
        let before = self.managed.clone().encode();
        self.managed = update(self.managed.clone(), &writer, &change, &|_| None, NOW);
        // The fast path must have the same result.
        if let Some(before) = before.filter(|before| renews(before, &writer, &change)) {
            let short = Owners::Renewed(NOW.to_owned()).into_list(Some(before));
            assert_eq!(short, self.managed.clone().encode());
        }
        self.object = object;
    }

    fn owners(&self) -> Vec<(String, Value)> {
        let entries = self.managed.entries.iter();
        entries
            .map(|entry| {
                (
                    entry.writer.manager.clone(),
                    entry.fields.clone().into_fields(),
                )
            })
            .collect()
    }
}

fn conflicts(result: Result<(), Refusal>) -> Vec<String> {
    match result {
        Err(Refusal::Conflicts(list)) => list
            .into_iter()
            .map(|c| format!("{} {}", c.owner, c.field))
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn field_that_is_no_longer_applied_is_removed() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    play.apply("a", json!({"data": {"x": "1", "y": "2"}}), false)
        .expect("applied");
    play.apply("b", json!({"data": {"y": "2", "z": "3"}}), false)
        .expect("shared");
    play.apply("a", json!({"data": {"x": "1"}}), false)
        .expect("applied");
    assert_eq!(play.object, json!({"data": {"x": "1", "y": "2", "z": "3"}}));
    play.apply("b", json!({"data": {"z": "3"}}), false)
        .expect("applied");
    assert_eq!(play.object, json!({"data": {"x": "1", "z": "3"}}));
    play.apply("a", json!({}), false).expect("applied");
    assert_eq!(play.object, json!({"data": {"z": "3"}}));
    assert_eq!(
        play.owners(),
        [("b".to_owned(), json!({"f:data": {"f:z": {}}}))]
    );
}

#[test]
fn conflicts_name_every_field_and_force_takes_them() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    play.apply("a", json!({"data": {"x": "1", "y": "2"}}), false)
        .expect("applied");
    play.update("u", json!({"data": {"x": "1", "y": "2", "z": "3"}}));
    let wanted = json!({"data": {"x": "9", "y": "2", "z": "9"}});
    assert_eq!(
        conflicts(play.apply("b", wanted.clone(), false)),
        ["\"a\" .data.x", "\"u\" using v1 .data.z"]
    );
    play.apply("b", wanted.clone(), true).expect("forced");
    assert_eq!(play.object, wanted);
    assert_eq!(
        play.owners(),
        [
            ("a".to_owned(), json!({"f:data": {"f:y": {}}})),
            (
                "b".to_owned(),
                json!({"f:data": {"f:x": {}, "f:y": {}, "f:z": {}}})
            ),
        ]
    );
}

#[test]
fn list_elements_have_separate_owners() {
    let mut play = Scenario::of("core/v1.Service");
    let port = |port: u16, name: &str| json!({"port": port, "name": name, "protocol": "TCP"});
    play.apply("a", json!({"spec": {"ports": [port(80, "http")]}}), false)
        .expect("applied");
    play.apply("b", json!({"spec": {"ports": [port(443, "https")]}}), false)
        .expect("applied");
    assert_eq!(
        play.object,
        json!({"spec": {"ports": [port(80, "http"), port(443, "https")]}})
    );
    assert_eq!(
        conflicts(play.apply("b", json!({"spec": {"ports": [port(80, "x")]}}), false)),
        ["\"a\" .spec.ports[port=80,protocol=\"TCP\"].name"]
    );
    play.apply("a", json!({"spec": {"type": "ClusterIP"}}), false)
        .expect("applied");
    assert_eq!(
        play.object,
        json!({"spec": {"ports": [port(443, "https")], "type": "ClusterIP"}})
    );
}

#[test]
fn sets_are_shared_by_element() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    let meta = |list: &[&str]| json!({"metadata": {"finalizers": list}});
    play.apply("a", meta(&["x/a", "x/c"]), false)
        .expect("applied");
    play.apply("b", meta(&["x/b", "x/c"]), false)
        .expect("applied");
    play.apply("a", meta(&["x/a"]), false).expect("applied");
    assert_eq!(play.object, meta(&["x/a", "x/b", "x/c"]));
    play.apply("b", meta(&["x/b"]), false).expect("applied");
    assert_eq!(play.object, meta(&["x/a", "x/b"]));
}

#[test]
fn an_update_that_removes_a_field_removes_its_owners() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    play.apply("a", json!({"data": {"x": "1", "y": "2"}}), false)
        .expect("applied");
    play.update("u", json!({"data": {"y": "3"}}));
    assert_eq!(
        play.owners(),
        [("u".to_owned(), json!({"f:data": {"f:y": {}}}))]
    );
    play.apply("a", json!({"data": {"x": "1"}}), false)
        .expect("applied");
    assert_eq!(play.object, json!({"data": {"x": "1", "y": "3"}}));
}

#[test]
fn fields_without_recorded_owner_belong_to_manager_before_first_apply() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    play.object = json!({"data": {"x": "1"}, "metadata": {"name": "n"}});
    assert_eq!(
        conflicts(play.apply("a", json!({"data": {"x": "2"}}), false)),
        ["\"before-first-apply\" using v1 .data.x"]
    );
}

#[test]
fn apply_without_change_records_no_time() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    play.update("u", json!({"data": {"x": "1"}}));
    play.apply("a", json!({"data": {"x": "1"}}), false)
        .expect("applied");
    let list = play.managed.clone().encode().expect("some");
    assert_eq!(list[0]["manager"], "a");
    assert_eq!(list[0].get("time"), None);
    assert_eq!(list[1]["time"], NOW);
}

#[test]
fn renewal_by_the_only_owner_changes_only_the_time() {
    const LATER: &str = "2026-01-01T00:00:09Z";
    let lease = |holder: &str, renewed: &str| json!({"spec": {"holderIdentity": holder, "renewTime": renewed}});
    let mut play = Scenario::of("coordination/v1.Lease");
    let first = lease("a", "2026-01-01T00:00:00.000000Z");
    play.update("m", first.clone());
    let owners = play.managed.clone().encode().expect("one");
    let writer = |manager: &str| Writer {
        manager: manager.to_owned(),
        operation: Operation::Update,
        api_version: "v1".to_owned(),
        subresource: String::new(),
    };
    let short = |manager: &str, new: &Value| {
        let change = compare(play.shape, &first, new);
        let renews = renews(&owners, &writer(manager), &change);
        let renewed = Owners::Renewed(LATER.to_owned());
        renews.then(|| renewed.into_list(Some(owners.clone())).expect("one"))
    };
    let second = lease("a", "2026-01-01T00:00:09.000000Z");
    let mut expected = owners.clone();
    expected[0]["time"] = json!(LATER);
    assert_eq!(short("m", &second), Some(expected));
    assert_eq!(short("n", &second), None, "another writer");
    assert_eq!(short("m", &first), None, "nothing changed");
    let more = json!({"spec": {"holderIdentity": "a", "leaseTransitions": 1}});
    assert_eq!(short("m", &more), None, "one field added and one removed");
    play.update("m", second);
    play.update("n", lease("b", "2026-01-01T00:00:10.000000Z"));
}

#[test]
fn applying_the_same_fields_again_keeps_their_owner() {
    let mut play = Scenario::of("core/v1.ConfigMap");
    let of = |x: &str, y: &str| {
        json!({"metadata": {"name": "n", "labels": {"l": "1"}, "finalizers": ["a/b"]},
            "data": {"x": x, "y": y}})
    };
    for (round, config) in [of("1", "1"), of("1", "1"), of("2", "1"), of("2", "3")]
        .into_iter()
        .enumerate()
    {
        play.apply("a", config.clone(), false).expect("applied");
        assert_eq!(play.object, config);
        assert_eq!(play.shortcuts, round);
    }
    let less = json!({"metadata": {"name": "n"}, "data": {"x": "2"}});
    play.apply("a", less.clone(), false).expect("applied");
    assert_eq!((&play.object, play.shortcuts), (&less, 3), "fewer fields");
    let more = json!({"metadata": {"name": "n"}, "data": {"x": "2", "z": "1"}});
    play.apply("a", more.clone(), false).expect("applied");
    assert_eq!((&play.object, play.shortcuts), (&more, 3), "one more field");
    play.apply("b", json!({"data": {"z": "1"}}), false)
        .expect("shared");
    play.apply("a", more, false).expect("applied");
    assert_eq!(play.shortcuts, 3, "another owner");
}
