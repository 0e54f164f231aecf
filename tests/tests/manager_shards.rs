//! Shards across processes: the others take over the shards of a killed process, and no shard has two owners.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::process::Process;

use crate::manager_process::{ends, managed, runs_once, says, spawn};

const LIMIT: Duration = Duration::from_secs(180);

const SHARDS: usize = 9;

/// Returns the shards that a replica works on, according to its output.
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

/// Waits until these replicas together work on all sixteen keys.
fn keys(replicas: &[Process]) {
    let all = || {
        let all: BTreeSet<_> = replicas.iter().flat_map(owned).collect();
        (all.len() == 16).then_some(())
    };
    let text = || replicas.iter().map(Process::transcript).collect::<String>();
    assert!(poll(LIMIT, all).is_some(), "not all keys:\n{}", text());
}

/// Waits until every shard has an owner among these replicas, and each replica has the wanted number.
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
    // Each replica holds a kernel lock while it works on a shard, and the killed one until its end.
    replicas.iter().chain([&killed]).for_each(runs_once);
}

#[test]
fn manager_shards_of_another_count_are_refused_and_no_key_has_two_owners() {
    let server = Embedded::start().unwrap();
    let mut replicas = vec![spawn(&server, &["keys", "64"], &[])];
    keys(&replicas);
    let mut other = spawn(&server, &["keys", "128"], &[]);
    // Without an agreement, the process would work on keys of the first one and would not exit.
    let done = poll(LIMIT, || {
        (other.has_ended() || !owned(&other).is_empty()).then_some(())
    });
    let said = other.transcript();
    assert!(done.is_some() && other.has_ended(), "{said}");
    assert_eq!(ends(&mut other).code(), Some(1), "{said}");
    says(&other, "the group has agreed on 64 shards, not 128");
    assert_eq!(owned(&replicas[0]).len(), 16, "the first is not disturbed");
    replicas.push(other);
    replicas.iter().for_each(runs_once);
}

#[test]
fn manager_shards_change_their_count_in_a_rolling_update_and_no_key_has_two_owners() {
    let server = Embedded::start().unwrap();
    let mut old = [(); 2].map(|()| spawn(&server, &["keys", "16"], &[]));
    keys(&old);
    let mut new = [(); 2].map(|()| spawn(&server, &["keys", "change-24"], &[]));
    for replica in &new {
        says(
            replica,
            "waiting to change the number of shards from 16 to 24",
        );
    }
    old[0].terminate();
    assert_eq!(ends(&mut old[0]).code(), Some(0), "{}", old[0].transcript());
    keys(&old[1..]);
    assert!(new.iter().all(|replica| owned(replica).is_empty()));
    // The last of the old replicas is killed without a release.
    old[1].kill();
    keys(&new);
    // A replica that returns with the old number is rejected now.
    let mut late = spawn(&server, &["keys", "16"], &[]);
    assert_eq!(ends(&mut late).code(), Some(1), "{}", late.transcript());
    says(&late, "the group has agreed on 24 shards, not 16");
    for replica in &mut new {
        replica.terminate();
        assert_eq!(ends(replica).code(), Some(0), "{}", replica.transcript());
    }
    old.iter().chain(&new).chain([&late]).for_each(runs_once);
}
