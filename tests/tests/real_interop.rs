//! tenure and client-go in one fleet on the real kube-apiserver.

use tenure_tests::candidate::Election;
use tenure_tests::real::shared;
use tenure_tests::scenarios::{interop, mixed};
use tenure_tests::{Skip, tools};

fn election(name: &str, lock: &str) -> Option<Election> {
    let cluster = Skip::unless(shared()).filter(|_| interop::both(lock, tools::candidate()))?;
    Some(Election::new(
        cluster.kubeconfig(),
        format!("interop-{name}-{lock}"),
    ))
}

#[test]
fn hand_overs() {
    for lock in interop::LOCKS {
        if let Some(election) = election("library", lock) {
            interop::hand_overs(election, lock, Election::library);
        }
    }
}

#[test]
fn hand_overs_of_the_command() {
    let command = Skip::unless(tools::tenure());
    if let Some(election) = election("command", "leases").filter(|_| command.is_some()) {
        interop::hand_overs(election, "leases", Election::tenure);
    }
}

#[test]
fn stopped() {
    if let Some(election) = election("stopped", "leases") {
        interop::stopped(election, Election::library);
    }
}

#[test]
fn contention() {
    if let Some(election) = election("mixed", "leases") {
        mixed::contention(&election.kubeconfig);
    }
}
