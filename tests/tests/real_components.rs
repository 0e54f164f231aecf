//! kube-controller-manager and kube-scheduler, with their own elections, and tenure on one Lease.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::candidate::Election;
use tenure_tests::clock::{self, Nanos};
use tenure_tests::event::Kind;
use tenure_tests::process::Process;
use tenure_tests::real::{Cluster, Peer, available, build, own_cluster, shared};
use tenure_tests::wire::{Wire, lease_path};
use tenure_tests::{Skip, tools};

const LIMIT: Duration = Duration::from_secs(60);

struct Component {
    peer: Peer,
    flags: &'static [&'static str],
    /// Whether it releases the lease on SIGTERM.
    releases: bool,
}

#[test]
fn kube_scheduler() {
    hand_overs(&Component {
        peer: Peer::KubeScheduler,
        flags: &[],
        releases: true,
    });
}

#[test]
fn kube_controller_manager() {
    hand_overs(&Component {
        peer: Peer::KubeControllerManager,
        flags: &["--controllers=token-cleaner-controller"],
        releases: false,
    });
}

/// Alternating hand-overs, with every way in which either candidate ends.
fn hand_overs(component: &Component) {
    // On a cluster in use, the component itself holds this lease.
    let programs = own_cluster().and_then(|()| available(&[component.peer]));
    let programs = programs.and(tools::candidate());
    let Some(cluster) = Skip::unless(programs.and_then(|_| shared())) else {
        return;
    };
    let wire = cluster.wire().unwrap();
    let mut election = Election::new(cluster.kubeconfig(), component.peer.name()).quick();
    election.namespace = "kube-system".to_owned();
    let path = lease_path(&election.namespace, &election.name);

    let ours = election.library("tenure-0", &[]).unwrap();
    ours.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let record = spec(&wire, &path);
    assert_eq!(
        (&record["holderIdentity"], &record["leaseTransitions"]),
        (&json!("tenure-0"), &json!(0))
    );
    let form_of_ours = form(&record);

    // tenure ends gracefully, and the component takes over.
    let mut theirs = start(component, cluster, &election);
    std::thread::sleep(2 * election.retry_period);
    ours.terminate();
    let holder = next_holder(&wire, &path, "tenure-0", &theirs);
    let record = spec(&wire, &path);
    assert_eq!(record["leaseTransitions"], 1, "{record}");
    assert_eq!(form(&record), form_of_ours, "{record}");

    // The component ends, and tenure takes over: immediately if the lease was released, otherwise when it has expired.
    let ours = election.library("tenure-1", &[]).unwrap();
    let seen = |event: &tenure_tests::event::Event| {
        event.event == Kind::Observed && event.leader == holder
    };
    ours.wait_until("sight of the component", LIMIT, seen)
        .unwrap();
    let since = clock::now();
    match component.releases {
        true => theirs.terminate(),
        false => _ = theirs.kill(),
    }
    let acquired = ours.wait_for(Kind::Acquired, since, LIMIT).unwrap();
    if component.releases {
        let took = acquired.t.since(since);
        assert!(took < election.lease_duration, "{took:?}");
    }
    let record = spec(&wire, &path);
    assert_eq!(record["leaseTransitions"], 2, "{record}");
    assert_eq!(form(&record), form_of_ours, "{record}");

    // tenure is killed, and the component takes over.
    let theirs = start(component, cluster, &election);
    let mut ours = ours;
    std::thread::sleep(2 * election.retry_period);
    ours.kill();
    next_holder(&wire, &path, "tenure-1", &theirs);
    assert_eq!(spec(&wire, &path)["leaseTransitions"], 3);
}

fn start(component: &Component, cluster: &Cluster, election: &Election) -> Process {
    let mut command = Command::new(build(component.peer).unwrap());
    command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    command.args([
        "--secure-port=0",
        "--leader-elect=true",
        "--leader-elect-lease-duration=5s",
        "--leader-elect-renew-deadline=3s",
        "--leader-elect-retry-period=500ms",
    ]);
    command.arg(format!("--leader-elect-resource-name={}", election.name));
    command.args(component.flags);
    Process::spawn(component.peer.name(), command).unwrap()
}

fn spec(wire: &Wire, path: &str) -> Value {
    wire.get(path).unwrap().body["spec"].clone()
}

/// Waits until the lease is held by a holder other than `old`.
fn next_holder(wire: &Wire, path: &str, old: &str, process: &Process) -> String {
    let found = clock::poll(LIMIT, || {
        let holder = spec(wire, path)["holderIdentity"].as_str()?.to_owned();
        (!holder.is_empty() && holder != old).then_some(holder)
    });
    found.unwrap_or_else(|| panic!("nobody follows {old}:\n{}", process.transcript()))
}

/// Returns the form of a record, without digits and holder: members, types and formats.
fn form(record: &Value) -> Value {
    let mut record = record.clone();
    record["holderIdentity"] = json!("");
    record["leaseTransitions"] = json!(0);
    for field in ["acquireTime", "renewTime"] {
        let text = record[field].as_str().unwrap_or_default();
        let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
        record[field] = json!(text.chars().map(digits).collect::<String>());
    }
    record
}
