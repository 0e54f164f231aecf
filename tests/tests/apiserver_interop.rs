//! tenure and client-go in one fleet on the embedded API server.

use tenure_tests::candidate::Election;
use tenure_tests::embedded::Embedded;
use tenure_tests::scenarios::{interop, mixed};
use tenure_tests::tools;

#[test]
fn hand_overs() {
    let server = Embedded::start().unwrap();
    for lock in interop::LOCKS {
        if interop::both(lock, tools::candidate()) {
            let election = Election::new(server.kubeconfig(), format!("interop-{lock}"));
            interop::hand_overs(election, lock, Election::library);
        }
    }
}

#[test]
fn hand_overs_of_the_command() {
    let server = Embedded::start().unwrap();
    if interop::both("leases", tools::tenure()) {
        let election = Election::new(server.kubeconfig(), "interop-command");
        interop::hand_overs(election, "leases", Election::tenure);
    }
}

#[test]
fn stopped() {
    let server = Embedded::start().unwrap();
    if interop::both("leases", tools::candidate()) {
        let election = Election::new(server.kubeconfig(), "interop-stopped");
        interop::stopped(election, Election::library);
    }
}

#[test]
fn contention() {
    if interop::both("leases", tools::candidate()) {
        let server = Embedded::start().unwrap();
        mixed::contention(&server.kubeconfig());
    }
}
