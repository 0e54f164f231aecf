//! `tenure server --kubeconfig`: the controllers alone, as replicas on one API server.

use std::process::Command;
use std::time::Duration;

use tenure_tests::clock::poll;
use tenure_tests::embedded::Embedded;
use tenure_tests::process::Process;
use tenure_tests::tools;

use crate::manager_process::{call, ends};
use crate::sidecar::{free_port, request};

const LIMIT: Duration = Duration::from_secs(180);

/// A replica of `tenure server`, and whether it says that it leads.
struct Replica {
    process: Process,
    port: u16,
}

impl Replica {
    fn start(server: &Embedded, name: &str) -> Self {
        let port = free_port();
        let mut command = Command::new(tools::tenure().unwrap());
        command.arg("server").arg("--kubeconfig");
        command.arg(server.kubeconfig());
        command.arg(format!("--metrics-address=127.0.0.1:{port}"));
        let process = Process::spawn(name, command).unwrap();
        Self { process, port }
    }

    /// Nothing while it does not say.
    fn leads(&self) -> Option<bool> {
        let (_, text) = request(self.port, "GET", "/metrics")?;
        let start = r#"leader_election_master_status{name="tenure-server"} "#;
        let value = text.lines().find_map(|line| line.strip_prefix(start))?;
        Some(value.trim() == "1")
    }

    fn follows(&self) -> Option<()> {
        (!self.leads()?).then_some(())
    }
}

#[test]
fn server_replicas_on_one_api_server_elect_one_leader() {
    let server = Embedded::start().unwrap();
    let holder = || {
        let lease = call(&server, "kube-system", async |leases| {
            leases.get_opt("tenure-server").await
        });
        let holder = lease?.spec?.holder_identity?;
        Some(holder).filter(|holder| !holder.is_empty())
    };
    let leads = |replica: &Replica| {
        let led = poll(LIMIT, || replica.leads()?.then_some(()));
        assert!(led.is_some(), "{}", replica.process.transcript());
        holder().expect("it holds the lease")
    };
    let mut first = Replica::start(&server, "a");
    let held_first = leads(&first);
    let mut second = Replica::start(&server, "b");
    poll(LIMIT, || second.follows()).expect("it takes part");
    assert_eq!(first.leads(), Some(true), "only one of them leads");
    assert_eq!(holder().as_ref(), Some(&held_first));
    first.process.terminate();
    assert_eq!(ends(&mut first.process).code(), Some(0));
    let held_then = leads(&second);
    assert_ne!(held_then, held_first, "the other one");
    second.process.terminate();
    assert_eq!(ends(&mut second.process).code(), Some(0));
    assert_eq!(holder(), None, "{held_then} has released it");
}
