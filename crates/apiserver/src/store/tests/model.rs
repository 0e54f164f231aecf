//! Compares both engines with a model: the list of all writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::durable::Config;
use super::super::encryption::{Encryption, Scope};
use super::super::testing::{delete, put};
use super::super::{
    EventKind, Expected, Key, Listing, MemoryStore, Object, Range, RedbStore, Retention, Store,
    Watch, Window, Write, WriteError,
};
use super::medium::Medium;

const KEPT: usize = 7;
const RETENTION: Retention = Retention {
    min_events: 3,
    max_events: KEPT,
    age: std::time::Duration::from_secs(3600),
    max_bytes: usize::MAX,
};

/// Returns a configuration whose log holds a few batches, so that most batches are folded.
fn config(encryption: Encryption) -> Config {
    Config {
        retention: RETENTION,
        log_bytes: 600,
        queue_bytes: 1 << 20,
        encryption,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        key: usize,
        value: Option<u8>,
        expect: Expect,
    },
    List {
        range: usize,
        back: u64,
    },
    Watch {
        range: usize,
        back: u64,
    },
    Jump(u64),
    Restart {
        in_order: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    Right,
    Absent,
    Older(u64),
}

fn keys() -> Vec<Key> {
    let mut keys = Vec::new();
    for resource in ["/configmaps", "coordination.k8s.io/leases"] {
        for namespace in ["a", "ab", ""] {
            for name in ["x", "y"] {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                keys.push(Key {
                    resource: resource.into(),
                    namespace,
                    name,
                });
            }
        }
    }
    keys
}

fn ranges() -> Vec<Range> {
    let mut ranges = Vec::new();
    for resource in ["/configmaps", "coordination.k8s.io/leases"] {
        for namespace in [None, Some("a"), Some("")] {
            for name in [None, Some("x")] {
                ranges.push(Range {
                    resource: resource.into(),
                    namespace: namespace.map(str::to_owned),
                    name: name.map(str::to_owned),
                });
            }
        }
    }
    ranges
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let expect = prop_oneof![
        6 => Just(Expect::Right),
        1 => Just(Expect::Absent),
        1 => (1..6_u64).prop_map(Expect::Older),
    ];
    let write = (
        0..keys().len(),
        prop::option::weighted(0.75, any::<u8>()),
        expect,
    )
        .prop_map(|(key, value, expect)| Step::Write { key, value, expect });
    let look = || (0..ranges().len(), 0..25_u64);
    prop::collection::vec(
        prop_oneof![
            12 => write,
            3 => look().prop_map(|(range, back)| Step::List { range, back }),
            3 => look().prop_map(|(range, back)| Step::Watch { range, back }),
            1 => (1..5_u64).prop_map(Step::Jump),
            1 => any::<bool>().prop_map(|in_order| Step::Restart { in_order }),
        ],
        1..80,
    )
}

/// All writes, and the oldest revision that can be read.
#[derive(Default)]
struct Model {
    revision: u64,
    floor: u64,
    log: Vec<(u64, Key, Option<Value>)>,
}

impl Model {
    fn at(&self, range: &Range, revision: u64) -> BTreeMap<Key, (u64, Value)> {
        let mut state = BTreeMap::new();
        for (at, key, value) in self.log.iter().filter(|(at, ..)| *at <= revision) {
            match value {
                Some(value) => state.insert(key.clone(), (*at, value.clone())),
                None => state.remove(key),
            };
        }
        state.retain(|key, _| range.covers(key));
        state
    }

    fn present(&self, key: &Key) -> Option<(u64, Value)> {
        let range = Range {
            resource: key.resource.clone(),
            namespace: Some(key.namespace.clone()),
            name: Some(key.name.clone()),
        };
        self.at(&range, u64::MAX).remove(key)
    }

    /// Returns the oldest revision whose successors are all retained.
    fn oldest(&self, range: &Range) -> u64 {
        let events = self
            .log
            .iter()
            .filter(|(_, key, _)| key.resource == range.resource);
        let revisions: Vec<_> = events
            .map(|(at, ..)| *at)
            .filter(|at| *at > self.floor)
            .collect();
        revisions
            .iter()
            .rev()
            .nth(KEPT)
            .copied()
            .unwrap_or(self.floor)
    }
}

/// The engine under test. A restart replaces it.
enum Engine {
    Memory(MemoryStore),
    Redb(Medium, RedbStore),
}

impl Engine {
    fn store(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => store,
            Self::Redb(_, store) => store,
        }
    }
}

fn check(mut engine: Engine, steps: Vec<Step>) {
    let (keys, ranges) = (keys(), ranges());
    let mut model = Model {
        revision: 1,
        floor: 1,
        log: Vec::new(),
    };
    let mut open = Vec::new();
    for step in steps {
        match step {
            Step::Write { key, value, expect } => {
                write(engine.store(), &mut model, &keys[key], value, expect);
            }
            Step::List { range, back } => list(engine.store(), &model, &ranges[range], back),
            Step::Watch { range, back } => {
                let range = &ranges[range];
                let after = model.revision.saturating_sub(back);
                match engine.store().watch(range.clone(), after) {
                    Ok(watch) => {
                        assert!(after >= model.oldest(range), "{after} is too old");
                        open.push((range.clone(), after, watch));
                    }
                    Err(expired) => {
                        assert!(after < model.oldest(range), "{expired}");
                        assert_eq!(expired.oldest, model.oldest(range));
                    }
                }
            }
            Step::Jump(by) => {
                let revision = engine.store().jump(by);
                model.revision = futures(revision).unwrap();
                model.floor = model.revision;
                for (_, _, mut watch) in open.drain(..) {
                    assert!(futures(watch.next()).is_err(), "no watch survives a jump");
                }
            }
            Step::Restart { in_order } => {
                open.clear();
                engine = match engine {
                    Engine::Memory(store) => Engine::Memory(store),
                    Engine::Redb(medium, store) => {
                        let crashed = Medium::of(medium.bytes());
                        store.close();
                        let medium = if in_order { medium } else { crashed };
                        let config = config(store.encryption().clone());
                        let store = RedbStore::on(medium.media(), config).unwrap();
                        assert!(store.revision() >= model.revision);
                        assert!(!in_order || store.revision() == model.revision);
                        model.revision = store.revision();
                        model.floor = model.revision;
                        Engine::Redb(medium, store)
                    }
                };
            }
        }
        assert_eq!(engine.store().revision(), model.revision);
    }
    for range in &ranges {
        list(engine.store(), &model, range, 0);
    }
    for (range, after, mut watch) in open {
        follow(&model, &range, after, &mut *watch);
    }
}

fn write(store: &dyn Store, model: &mut Model, key: &Key, value: Option<u8>, expect: Expect) {
    let present = model.present(key);
    let expected = match (expect, &present) {
        (Expect::Right, None) | (Expect::Absent, _) => Expected::Absent,
        (Expect::Right, Some((revision, _))) => Expected::Revision(*revision),
        (Expect::Older(by), _) => Expected::Revision(model.revision.saturating_sub(by)),
    };
    let holds = match (expected, &present) {
        (Expected::Absent, None) => true,
        (Expected::Revision(revision), Some((present, _))) => revision == *present,
        _ => false,
    };
    let write = match value {
        Some(n) => put(key, expected, json!({"n": n})),
        None => Write {
            expected,
            ..delete(key, 0)
        },
    };
    match futures(store.write(write)) {
        Ok(object) => {
            assert!(holds && (value.is_some() || present.is_some()));
            assert!(object.revision > model.revision);
            model.revision = object.revision;
            let stored = serde_json::from_slice(&object.json).unwrap();
            model.log.push((
                object.revision,
                key.clone(),
                value.is_some().then_some(stored),
            ));
        }
        Err(WriteError::Conflict(found)) => {
            assert!(!holds || (value.is_none() && present.is_none()));
            assert_eq!(
                found.map(|o| o.revision),
                present.map(|(revision, _)| revision)
            );
        }
        Err(error) => panic!("{error}"),
    }
    let found = store
        .get(key)
        .map(|o| (o.revision, serde_json::from_slice(&o.json).unwrap()));
    assert_eq!(found, model.present(key));
}

fn list(store: &dyn Store, model: &Model, range: &Range, back: u64) {
    let at = model.revision.saturating_sub(back);
    match store.list(range, (back > 0).then_some(at)) {
        Ok(listing) => {
            assert!(back == 0 || at >= model.oldest(range));
            assert_eq!(listing.revision, at);
            let objects = listing.objects.iter();
            let found: Vec<_> = objects
                .map(|o| {
                    (
                        o.key.clone(),
                        (o.revision, serde_json::from_slice(&o.json).unwrap()),
                    )
                })
                .collect();
            in_pages(store, range, (back > 0).then_some(at), &listing);
            assert_eq!(
                found,
                model
                    .at(range, at)
                    .into_iter()
                    .collect::<Vec<(Key, (u64, Value))>>()
            );
        }
        Err(expired) => {
            assert!(at < model.oldest(range));
            assert_eq!(expired.oldest, model.oldest(range));
        }
    }
}

/// Checks that a list in pages equals the whole list.
fn in_pages(store: &dyn Store, range: &Range, at: Option<u64>, whole: &Listing) {
    let place = |o: &Arc<Object>| (o.key.namespace.clone(), o.key.name.clone());
    for limit in 1..4 {
        let mut taken: Vec<Arc<Object>> = Vec::new();
        loop {
            let last = taken.last().map(place);
            let window = Window {
                after: last
                    .as_ref()
                    .map(|(namespace, name)| (&**namespace, &**name)),
                limit: Some(limit),
            };
            let page = store.page(range, at, &window).unwrap();
            assert_eq!(page.revision, whole.revision);
            assert!(page.objects.len() <= limit);
            taken.extend(page.objects);
            assert_eq!(taken.len() + page.remaining, whole.objects.len());
            if page.remaining == 0 {
                break;
            }
        }
        let all = |objects: &[Arc<Object>]| objects.iter().map(place).collect::<Vec<_>>();
        assert_eq!(all(&taken), all(&whole.objects));
        let same = |(a, b): (&Arc<Object>, &Arc<Object>)| Arc::ptr_eq(a, b);
        assert!(taken.iter().zip(&whole.objects).all(same));
    }
}

/// Reads a watch to its end and compares it with the log.
fn follow(model: &Model, range: &Range, after: u64, watch: &mut dyn Watch) {
    let events = model
        .log
        .iter()
        .filter(|(at, key, _)| *at > after && range.covers(key));
    let mut expected: Vec<_> = events.collect();
    expected.reverse();
    loop {
        let Some(next) = watch.next().now_or_never() else {
            assert!(expected.is_empty(), "events are missing: {expected:?}");
            assert_eq!(watch.revision(), model.revision.max(after));
            return;
        };
        let Ok(event) = next else {
            let (lost, ..) = expected
                .last()
                .expect("a watch without missing events must not expire");
            assert!(
                *lost <= model.oldest(range),
                "event {lost} is retained and must be delivered"
            );
            return;
        };
        let (at, key, value) = expected.pop().expect("an event that was never written");
        assert_eq!((event.revision, &event.object.key), (*at, key));
        assert_eq!(event.object.revision, *at);
        let before = model.at(range, at - 1).remove(key);
        let previous = event.previous.as_ref();
        let previous = previous.map(|o| {
            (
                o.revision,
                serde_json::from_slice::<Value>(&o.json).unwrap(),
            )
        });
        assert_eq!(previous, before);
        let kind = match (value, before) {
            (None, _) => EventKind::Deleted,
            (Some(_), None) => EventKind::Added,
            (Some(_), Some(_)) => EventKind::Modified,
        };
        assert_eq!(event.kind, kind);
        if let Some(value) = value {
            assert_eq!(
                serde_json::from_slice::<Value>(&event.object.json).unwrap(),
                *value
            );
        }
    }
}

fn futures<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_engine_equals_the_model(steps in steps()) {
        check(Engine::Memory(MemoryStore::with(RETENTION)), steps);
    }

    #[test]
    fn durable_engine_equals_the_model(steps in steps()) {
        let medium = Medium::default();
        let store = RedbStore::on(medium.media(), config(Encryption::OFF)).unwrap();
        check(Engine::Redb(medium, store), steps);
    }

    #[test]
    fn encrypted_durable_engine_equals_the_model(steps in steps()) {
        let medium = Medium::default();
        let encryption = Encryption::of(&[1], Scope::All);
        let store = RedbStore::on(medium.media(), config(encryption)).unwrap();
        check(Engine::Redb(medium, store), steps);
    }
}
