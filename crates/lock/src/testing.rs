//! Generators of arbitrary values for property tests.

use proptest::prelude::*;
use serde_json::{Map, Value};
use tenure_core::{Place, Process, Record, WallTime};

/// Generates any JSON, with the names of record fields among the keys.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-9:.+Zz-]{0,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key(), inner), 0..9)
                .prop_map(|entries| Value::Object(Map::from_iter(entries))),
        ]
    })
}

/// Generates any record that a lock with whole seconds can store.
pub(crate) fn record() -> impl Strategy<Value = Record> {
    let seconds = prop::option::of(0..4_000_000_000_i64);
    let time = seconds.prop_map(|time| time.map(|time| WallTime::from_micros(time * 1_000_000)));
    let count = 0..i32::MAX.unsigned_abs();
    let names = (any::<String>(), any::<String>(), any::<String>());
    (names, count.clone(), (time.clone(), time), count).prop_map(
        |(
            (holder, strategy, preferred_holder),
            duration,
            (acquire_time, renew_time),
            transitions,
        )| {
            Record {
                holder,
                lease_duration_seconds: duration,
                acquire_time,
                renew_time,
                transitions,
                strategy,
                preferred_holder,
            }
        },
    )
}

/// Generates any place with processes.
pub(crate) fn place() -> impl Strategy<Value = Place> {
    let process = (any::<String>(), any::<u64>(), any::<u32>(), any::<u64>());
    let process = process.prop_map(|(boot, namespace, pid, started)| Process {
        boot,
        pid_namespace: namespace,
        time_namespace: namespace,
        pid,
        started,
    });
    let processes = prop::collection::vec(process, 0..3);
    (prop::option::of(any::<String>()), processes).prop_map(|(machine, processes)| Place {
        machine,
        processes,
        ..Place::default()
    })
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("metadata".to_owned()),
        Just("annotations".to_owned()),
        Just(crate::LEADER_ANNOTATION.to_owned()),
        Just("spec".to_owned()),
        Just("holderIdentity".to_owned()),
        Just("leaseDurationSeconds".to_owned()),
        Just("LEADERTRANSITIONS".to_owned()),
        Just("leaseTransitions".to_owned()),
        Just("renewTime".to_owned()),
        any::<String>(),
    ]
}
