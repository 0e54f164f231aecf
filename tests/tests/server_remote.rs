//! `tenure server --kubeconfig`: only the controllers, as replicas on one API server.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::process::Process;
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

use crate::manager_process::{call, ends, says, signal, steal};
use crate::sidecar::{free_port, request};

const LIMIT: Duration = Duration::from_secs(180);

/// A replica of `tenure server`, and whether it reports that it leads.
struct Replica {
    process: Process,
    port: u16,
}

impl Replica {
    fn start(kubeconfig: &Path, name: &str) -> Self {
        let port = free_port();
        let mut command = Command::new(tools::tenure().unwrap());
        command.args(["server", "--kubeconfig"]).arg(kubeconfig);
        command.arg(format!("--metrics-address=127.0.0.1:{port}"));
        let process = Process::spawn(name, command).unwrap();
        Self { process, port }
    }

    /// Returns `None` while it does not report.
    fn says_whether_it_leads(&self) -> Option<bool> {
        let (_, text) = request(self.port, "GET", "/metrics")?;
        let start = r#"leader_election_master_status{name="tenure-server"} "#;
        let value = text.lines().find_map(|line| line.strip_prefix(start))?;
        Some(value.trim() == "1")
    }

    /// Waits until it leads. Returns its identity.
    fn leads(&self, server: &Embedded) -> String {
        let led = poll(LIMIT, || self.says_whether_it_leads()?.then_some(()));
        assert!(led.is_some(), "{}", self.process.transcript());
        holder(server).expect("it holds the lease")
    }

    fn follows(&self) -> Option<()> {
        (!self.says_whether_it_leads()?).then_some(())
    }
}

/// Returns `None` once the lease is released.
fn holder(server: &Embedded) -> Option<String> {
    let lease = call(server, "kube-system", async |leases| {
        leases.get_opt("tenure-server").await
    });
    let holder = lease?.spec?.holder_identity?;
    Some(holder).filter(|holder| !holder.is_empty())
}

#[test]
fn server_replicas_on_one_api_server_elect_one_leader() {
    let server = Embedded::start().unwrap();
    let mut first = Replica::start(&server.kubeconfig(), "a");
    let held_first = first.leads(&server);
    let mut second = Replica::start(&server.kubeconfig(), "b");
    poll(LIMIT, || second.follows()).expect("the second replica follows");
    assert_eq!(
        first.says_whether_it_leads(),
        Some(true),
        "only one of them leads"
    );
    assert_eq!(holder(&server).as_ref(), Some(&held_first));
    first.process.terminate();
    assert_eq!(ends(&mut first.process).code(), Some(0));
    let held_then = second.leads(&server);
    assert_ne!(held_then, held_first, "the other one");
    second.process.terminate();
    assert_eq!(ends(&mut second.process).code(), Some(0));
    assert_eq!(holder(&server), None, "{held_then} has released it");
}

#[test]
fn server_replica_that_loses_its_lease_exits_1_with_the_group_and_the_reason() {
    let server = Embedded::start().unwrap();
    let mut replica = Replica::start(&server.kubeconfig(), "a");
    replica.leads(&server);
    steal(&server, "kube-system", "tenure-server");
    assert_eq!(ends(&mut replica.process).code(), Some(1));
    says(
        &replica.process,
        "leader election lost for tenure-server: foreign-holder",
    );
    assert_eq!(holder(&server).as_deref(), Some("thief"));
}

/// After the first signal it waits for the response to its release; after the second one it does not.
#[test]
fn server_replica_that_is_asked_twice_exits_1_without_the_release() {
    let server = Embedded::start().unwrap();
    let proxy = Proxy::start(&server.kubeconfig()).unwrap();
    let mut replica = Replica::start(&proxy.kubeconfig(), "a");
    let identity = replica.leads(&server);
    proxy.set(Gate::Held, Gate::Held);
    replica.process.terminate();
    // This signal differs from the first, because two equal pending signals may be delivered as one.
    signal(&replica.process, rustix::process::Signal::INT);
    assert_eq!(ends(&mut replica.process).code(), Some(1));
    says(
        &replica.process,
        "tenure: received a second signal; exiting",
    );
    assert_eq!(holder(&server), Some(identity));
}

fn account(server: &Embedded) -> Option<()> {
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let path = "/api/v1/namespaces/default/serviceaccounts/default";
    wire.get(path).ok()?.status.is_success().then_some(())
}

#[test]
fn server_without_leader_election_acts_and_takes_no_lease() {
    let server = Embedded::start().unwrap();
    assert_eq!(account(&server), None, "no controller has created it yet");
    let mut command = Command::new(tools::tenure().unwrap());
    command.args(["server", "--no-leader-elect", "--kubeconfig"]);
    let mut process = Process::spawn("alone", {
        command.arg(server.kubeconfig());
        command
    })
    .unwrap();
    let acts = poll(LIMIT, || account(&server));
    assert!(acts.is_some(), "{}", process.transcript());
    assert_eq!(holder(&server), None, "{}", process.transcript());
    process.terminate();
    assert_eq!(ends(&mut process).code(), Some(0));
}

#[test]
fn server_uses_the_configured_election_durations() {
    let server = Embedded::start().unwrap();
    let start = |flags: &[&str]| {
        let mut command = Command::new(tools::tenure().unwrap());
        command.arg("server").args(flags).arg("--kubeconfig");
        command.arg(server.kubeconfig());
        Process::spawn("server", command).unwrap()
    };
    let mut wrong = start(&["--lease-duration=5s", "--renew-deadline=5s"]);
    assert_eq!(ends(&mut wrong).code(), Some(1));
    says(&wrong, "invalid election timing");
    let process = start(&[
        "--lease-duration=6s",
        "--renew-deadline=3s",
        "--retry-period=1s",
    ]);
    let wire = Wire::connect(&server.kubeconfig()).unwrap();
    let seconds = poll(LIMIT, || {
        let lease = wire.get(&lease_path("kube-system", "tenure-server")).ok()?;
        lease.body["spec"]["leaseDurationSeconds"].as_u64()
    });
    assert_eq!(seconds, Some(6), "{}", process.transcript());
}
