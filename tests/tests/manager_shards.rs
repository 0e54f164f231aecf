//! Shards over processes: one that is killed leaves its shards to the others, and none has two owners.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::process::Process;

use crate::manager_process::{ends, managed, runs_once};

const LIMIT: Duration = Duration::from_secs(180);

const SHARDS: usize = 9;

/// The shards that a replica works on, by what it has said.
fn owned(replica: &Process) -> BTreeSet<String> {
    let mut owned = BTreeSet::new();
    for line in replica.text() {
        match line.rsplit_once(' ') {
            Some((shard, "starts")) => assert!(owned.insert(shard.to_owned()), "{line} twice"),
            Some((shard, "stopped")) => assert!(owned.remove(shard), "{line} before it starts"),
            _ => {}
        }
    }
    owned
}

/// Waits until every shard has an owner among these replicas, and they have so many.
fn even(replicas: &[Process], wanted: &[usize]) {
    let is_even = || {
        let owned: Vec<_> = replicas.iter().map(owned).collect();
        let all: BTreeSet<_> = owned.iter().flatten().collect();
        let mut counts: Vec<_> = owned.iter().map(BTreeSet::len).collect();
        counts.sort_unstable();
        (counts == wanted && all.len() == SHARDS).then_some(())
    };
    let text = || replicas.iter().map(Process::transcript).collect::<String>();
    assert!(poll(LIMIT, is_even).is_some(), "not even:\n{}", text());
}

#[test]
fn manager_shards_of_a_killed_replica_are_taken_over_and_none_has_two_owners() {
    let server = Embedded::start().unwrap();
    let mut replicas = vec![managed(&server, "shards", &[])];
    even(&replicas, &[9]);
    replicas.extend([(); 2].map(|()| managed(&server, "shards", &[])));
    even(&replicas, &[3, 3, 3]);
    let mut killed = replicas.remove(0);
    killed.kill();
    even(&replicas, &[4, 5]);
    for replica in &mut replicas {
        replica.terminate();
        assert_eq!(ends(replica).code(), Some(0), "{}", replica.transcript());
    }
    // Each holds a lock of the kernel while it works on a shard, the killed one until its end.
    replicas.iter().chain([&killed]).for_each(runs_once);
}
