//! Several `tenure server` on one real etcd: kubectl sees one cluster, and one of the servers leads.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_tests::Skip;
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::real::{Etcd, Peer, available, build};
use tenure_tests::wire::Wire;

const LIMIT: Duration = Duration::from_secs(120);
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/tenure-server";

/// One server with its own data directory.
struct Replica {
    process: Process,
    kubeconfig: PathBuf,
}

impl Replica {
    fn start(home: &Home, name: &str, etcd: &Etcd) -> Self {
        let mut command = home.command();
        command.args(["server", "run", "--listen=127.0.0.1:0"]);
        command.arg("--data-dir").arg(home.path(name));
        command.arg(format!("--store=etcd={}", etcd.url()));
        let process = Process::spawn(name, command).unwrap();
        let kubeconfig = home.path(name).join("kubeconfig");
        let replica = Self {
            process,
            kubeconfig,
        };
        let ready = || {
            let wire = Wire::connect(&replica.kubeconfig).ok()?;
            let answer = wire.get("/readyz").ok()?;
            (answer.status == StatusCode::OK).then_some(())
        };
        let came = poll(LIMIT, ready);
        assert!(came.is_some(), "{}", replica.process.transcript());
        replica
    }

    fn wire(&self) -> Wire {
        Wire::connect(&self.kubeconfig).unwrap()
    }

    /// Returns the address in the kubeconfig.
    fn url(&self) -> String {
        let text = fs::read_to_string(&self.kubeconfig).unwrap();
        let line = text.lines().find(|line| line.contains("https://")).unwrap();
        let from = line.find("https://").unwrap();
        let end = |c: char| c == '"' || c == ',' || c.is_whitespace();
        line[from..].split(end).next().unwrap().to_owned()
    }
}

fn holder(wire: &Wire) -> Option<String> {
    let answer = wire.get(LEASE).ok()?;
    let holder = answer.body.pointer("/spec/holderIdentity")?.as_str()?;
    (!holder.is_empty()).then(|| holder.to_owned())
}

fn send(wire: &Wire, path: &str, body: &Value) -> Value {
    let answer = wire.send(&Method::POST, path, Some(body)).unwrap();
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.body);
    answer.body
}

#[test]
fn real_etcd_makes_one_cluster_of_several_servers() {
    if Skip::unless(available(&[Peer::Etcd, Peer::Kubectl])).is_none() {
        return;
    }
    let etcd = Etcd::start().unwrap();
    let home = Home::new();
    let mut replicas = vec![
        Replica::start(&home, "a", &etcd),
        Replica::start(&home, "b", &etcd),
    ];
    let (a, b) = (replicas[0].wire(), replicas[1].wire());

    // The credentials of one server are valid at the other, and so is its certificate.
    let text = fs::read_to_string(&replicas[0].kubeconfig).unwrap();
    let moved = home.path("moved");
    fs::write(&moved, text.replace(&replicas[0].url(), &replicas[1].url())).unwrap();
    let map = json!({"metadata": {"name": "x"}, "data": {"k": "v"}});
    send(&a, "/api/v1/namespaces/default/configmaps", &map);
    let kubectl = Command::new(build(Peer::Kubectl).unwrap())
        .env("HOME", home.path(""))
        .arg("--kubeconfig")
        .arg(&moved)
        .args(["get", "configmap", "x", "-o", "jsonpath={.data.k}"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&kubectl.stdout).into_owned();
    assert_eq!(said, "v", "{}", String::from_utf8_lossy(&kubectl.stderr));
    let account = "/api/v1/namespaces/default/serviceaccounts/default";
    let made = poll(LIMIT, || {
        (a.get(account).ok()?.status == StatusCode::OK).then_some(())
    });
    assert!(made.is_some(), "no controller created a service account");
    let token = send(&a, &format!("{account}/token"), &json!({}));
    let review = json!({"spec": {"token": token["status"]["token"]}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let review = send(&b, reviews, &review);
    assert_eq!(review["status"]["authenticated"], true, "{review}");

    // One of them leads. When it ends, the other one leads, and its controllers work.
    let first = poll(LIMIT, || holder(&a)).unwrap();
    assert_eq!(
        holder(&b).as_ref(),
        Some(&first),
        "both servers report the same leader"
    );
    replicas.remove(0).process.terminate();
    let left = replicas[0].wire();
    send(
        &left,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "later"}}),
    );
    let account = "/api/v1/namespaces/later/serviceaccounts/default";
    let made = poll(LIMIT, || {
        (left.get(account).ok()?.status == StatusCode::OK).then_some(())
    });
    assert!(made.is_some(), "{}", replicas[0].process.transcript());

    // The command refuses a backup, and its error refers to the tools of etcd.
    let folder = home.path("b").display().to_string();
    let saved = home.tenure(&["server", "--data-dir", &folder, "backup", "file"]);
    let said = String::from_utf8_lossy(&saved.stderr).into_owned();
    assert!(
        !saved.status.success() && said.contains("etcdctl snapshot"),
        "{said}"
    );
}

#[test]
fn real_etcd_outage_ends_the_term_and_the_server_leads_again() {
    if Skip::unless(available(&[Peer::Etcd])).is_none() {
        return;
    }
    let etcd = Etcd::start().unwrap();
    let home = Home::new();
    let mut replica = Replica::start(&home, "a", &etcd);
    let wire = replica.wire();
    poll(LIMIT, || holder(&wire)).unwrap();
    etcd.pause();
    let refused = poll(LIMIT, || {
        let answer = wire.get("/readyz").ok()?;
        (answer.status != StatusCode::OK).then(|| answer.body.to_string())
    });
    assert!(refused.is_some());
    // Longer than a leader may go without a renewal.
    std::thread::sleep(Duration::from_secs(16));
    etcd.resume();
    let ready = poll(LIMIT, || {
        (wire.get("/readyz").ok()?.status == StatusCode::OK).then_some(())
    });
    assert!(ready.is_some(), "{}", replica.process.transcript());
    assert!(!replica.process.has_ended());
    // It leads again, and its controllers work.
    let space = json!({"metadata": {"name": "after"}});
    send(&wire, "/api/v1/namespaces", &space);
    let account = "/api/v1/namespaces/after/serviceaccounts/default";
    let made = poll(LIMIT, || {
        (wire.get(account).ok()?.status == StatusCode::OK).then_some(())
    });
    assert!(made.is_some(), "{}", replica.process.transcript());
}

#[test]
fn real_etcd_refuses_a_directory_with_other_keys() {
    if Skip::unless(available(&[Peer::Etcd])).is_none() {
        return;
    }
    let etcd = Etcd::start().unwrap();
    let home = Home::new();
    let first = Replica::start(&home, "a", &etcd);
    // A server with its own store has its own keys.
    let own = home.path("own").display().to_string();
    let args = ["server", "run", "--listen=127.0.0.1:0", "--data-dir", &own];
    let mut command = home.command();
    let alone = Process::spawn("alone", {
        command.args(args);
        command
    });
    let mut alone = alone.unwrap();
    let file = home.path("own").join("kubeconfig");
    assert!(poll(LIMIT, || file.exists().then_some(())).is_some());
    alone.terminate();
    alone.wait(LIMIT).unwrap();
    let store = format!("--store=etcd={}", etcd.url());
    let refused = home.command().args(args).arg(&store).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("differs from that of the servers"), "{said}");
    drop(first);
    // A server does not start without etcd, and the error names it.
    let absent = "--store=etcd=http://127.0.0.1:1";
    let refused = home.command().args(args).arg(absent).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("http://127.0.0.1:1"), "{said}");
}
