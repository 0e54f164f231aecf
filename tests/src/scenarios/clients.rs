//! Third-party clients against an API server. Each function is one client. It gets a kubeconfig and panics on the first
//! difference from a real cluster. `real_clients` runs them against the real kube-apiserver, which shows that their
//! expectations are correct; `apiserver_clients` runs them against the embedded server.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use crate::Skip;
use crate::candidate::{Election, Fleet};
use crate::clock::{self, Nanos};
use crate::process::Process;
use crate::real::{Peer, available, build};
use crate::tools;
use crate::wire::{Wire, lease_path, object_path};
use http::Method;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(180);

/// client-go's leader election, with hand-overs.
pub fn client_go_election(kubeconfig: &Path) {
    let election = Election::new(kubeconfig.to_owned(), "clients-election").quick();
    let mut fleet = Fleet::default();
    for id in ["a", "b", "c"] {
        fleet.add(election.client_go(id, &[]).expect("built before the test"));
    }
    let mut leader: Option<String> = None;
    for _ in 0..3 {
        let since = clock::now();
        if let Some(leader) = &leader {
            fleet.member(leader).terminate();
        }
        let from = if leader.is_some() { since } else { Nanos(0) };
        let next = fleet.next_leader(from, leader.as_deref(), LIMIT);
        leader = Some(next.unwrap_or_else(|silence| panic!("{silence}")).0);
    }
    let checked = fleet.history().check(clock::now());
    assert_eq!(checked, Ok(()));
    let wire = Wire::connect(kubeconfig).expect("the harness wrote it");
    let lease = get(&wire, &lease_path("default", &election.name));
    assert_eq!(lease["spec"]["holderIdentity"], json!(leader));
    assert_eq!(lease["spec"]["leaseTransitions"], 2);
}

/// client-go's elector of 1.23, on the lock kinds that the current client-go no longer supports.
pub fn old_client_go_election(kubeconfig: &Path) {
    for lock in [
        "configmaps",
        "endpoints",
        "configmapsleases",
        "endpointsleases",
    ] {
        let mut election = Election::new(kubeconfig.to_owned(), format!("clients-{lock}")).quick();
        election.lock = lock;
        let mut fleet = Fleet::default();
        for id in ["a", "b"] {
            fleet.add(election.client_go(id, &[]).expect("built before the test"));
        }
        let first = fleet.next_leader(Nanos(0), None, LIMIT);
        let first = first
            .unwrap_or_else(|silence| panic!("{lock}: {silence}"))
            .0;
        let since = clock::now();
        fleet.member(&first).terminate();
        let second = fleet.next_leader(since, Some(&first), LIMIT);
        assert_ne!(
            second
                .unwrap_or_else(|silence| panic!("{lock}: {silence}"))
                .0,
            first
        );
        assert_eq!(fleet.history().check(clock::now()), Ok(()), "{lock}");
    }
}

/// client-go's shared informers, which compare every streamed list with a plain one.
pub fn informer(kubeconfig: &Path) {
    const MAPS: &str = "configmaps";
    let wire = Wire::connect(kubeconfig).expect("the harness wrote it");
    let namespace = json!({"metadata": {"name": "informer"}});
    send(&wire, &Method::POST, "/api/v1/namespaces", Some(&namespace));
    let all = object_path("/api/v1", "informer", MAPS, "");
    for index in 0..20 {
        let map = json!({"metadata": {"name": format!("early-{index}")}});
        send(&wire, &Method::POST, &all, Some(&map));
    }

    let mut command = Command::new(build(Peer::Informer).expect("built before the test"));
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["--namespace", "informer"]);
    command.env("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true");
    let mut process = Process::spawn("informer", command).expect("the program was just built");
    let wait = |process: &Process, event: &str, field: &str, value: &str| {
        let found = clock::poll(LIMIT, || {
            let lines = process.json();
            let mut all = lines.iter();
            all.any(|line| line["event"] == event && line[field] == value)
                .then_some(())
        });
        assert!(
            found.is_some(),
            "no {event} {value}\n{}",
            process.transcript()
        );
    };
    let resources = [MAPS, "leases"];
    for resource in resources {
        wait(&process, "synced", "resource", resource);
    }
    // The informer logs this before it compares. A list that was not streamed is not compared, which would otherwise go
    // unnoticed.
    let count = || {
        let lines = process.text();
        let told = |line: &&String| line.contains("data consistency check is enabled");
        lines.iter().filter(told).count()
    };
    let compared = clock::poll(LIMIT, || (count() == resources.len()).then_some(()));
    assert!(compared.is_some(), "{}", process.transcript());
    for index in 0..20 {
        wait(&process, "added", "name", &format!("early-{index}"));
    }
    let late = object_path("/api/v1", "informer", MAPS, "late");
    send(
        &wire,
        &Method::POST,
        &all,
        Some(&json!({"metadata": {"name": "late"}})),
    );
    wait(&process, "added", "name", "late");
    send(
        &wire,
        &Method::PATCH,
        &late,
        Some(&json!({"data": {"k": "v"}})),
    );
    wait(&process, "updated", "name", "late");
    send(&wire, &Method::DELETE, &late, None);
    wait(&process, "deleted", "name", "late");

    let listed = get(&wire, &all);
    process.terminate();
    let ended = process
        .wait(LIMIT)
        .unwrap_or_else(|silence| panic!("{silence}"));
    assert!(ended.success(), "{}", process.transcript());
    let mut wanted: Vec<String> = listed["items"]
        .as_array()
        .expect("a list has items")
        .iter()
        .map(|item| {
            let text = |field: &str| {
                item["metadata"][field]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            format!("informer/{}@{}", text("name"), text("resourceVersion"))
        })
        .collect();
    wanted.sort();
    let lines = process.json();
    let cached = lines
        .iter()
        .find(|line| line["event"] == "cache" && line["resource"] == MAPS);
    assert_eq!(cached.map(|line| &line["objects"]), Some(&json!(wanted)));
}

/// client-go's server-side apply: typed, of a status, and of a custom resource.
pub fn applier(kubeconfig: &Path) {
    let wire = Wire::connect(kubeconfig).expect("the harness wrote it");
    let text = json!({"type": "string"});
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"a": text, "b": text}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.t.example"}, "spec": {"group": "t.example", "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"}, "versions": [{"name": "v1",
        "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    send(&wire, &Method::POST, definitions, Some(&definition));
    let things = "/apis/t.example/v1/namespaces/default/things";
    let served = clock::poll(LIMIT, || {
        let answer = wire.get(things).expect("an answer");
        answer.status.is_success().then_some(())
    });
    assert!(served.is_some(), "things are not served");
    let mut command = Command::new(build(Peer::Applier).expect("built before the test"));
    succeed(command.arg(kubeconfig));
}

/// kubectl: the most common commands, in a namespace that it creates.
pub fn kubectl(program: &Path, kubeconfig: &Path, namespace: &str) {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let kubectl = Kubectl {
        namespace,
        program,
        kubeconfig,
        home: cache.path(),
    };
    let modern = !kubectl
        .ok("version --client -o json")
        .contains("\"minor\": \"20\"");
    assert!(
        kubectl
            .ok("api-resources -o name")
            .contains("leases.coordination.k8s.io")
    );
    kubectl.ok("create namespace NS");

    kubectl.ok("-n NS create configmap made --from-literal=k=v");
    let map = kubectl.json("-n NS get configmap made -o json");
    assert_eq!(map["data"], json!({"k": "v"}));
    kubectl.ok("-n NS label configmap made app=x");
    kubectl.ok("-n NS annotate configmap made note=y");
    let note = "-n NS get configmap made -o jsonpath={.metadata.annotations.note}";
    assert_eq!(kubectl.ok(note), "y");
    assert!(
        kubectl
            .ok("-n NS get configmap -l app=x -o name")
            .contains("configmap/made")
    );
    assert!(kubectl.ok("-n NS get configmap made").contains("DATA"));
    kubectl.ok(r#"-n NS patch configmap made -p {"data":{"l":"w"}}"#);
    kubectl.ok(r#"-n NS patch configmap made --type json -p [{"op":"remove","path":"/data/k"}]"#);
    kubectl.ok(r#"-n NS patch configmap made --type merge -p {"data":{"m":"n"}}"#);
    let map = kubectl.json("-n NS get configmap made -o json");
    assert_eq!(map["data"], json!({"l": "w", "m": "n"}));

    let lease = |holder: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
               "metadata": {"name": "applied", "namespace": namespace},
               "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}})
    };
    let file = cache.path().join("lease.json");
    let apply = |holder: &str, how: &str| {
        std::fs::write(&file, lease(holder).to_string()).expect("a writable temporary folder");
        kubectl.ok(&format!("{how} -f {}", file.display()));
        kubectl.ok("-n NS get lease applied -o jsonpath={.spec.holderIdentity}")
    };
    assert_eq!(apply("one", "create"), "one");
    assert_eq!(apply("one", "apply"), "one");
    assert_eq!(apply("two", "apply"), "two");
    assert_eq!(apply("three", "replace"), "three");
    kubectl.ok("-n NS create secret generic made --from-literal=k=v");
    let secret = kubectl.json("-n NS get secret made -o json");
    assert_eq!(secret["data"], json!({"k": "dg=="}));
    kubectl.ok("-n NS create serviceaccount made");
    let account = kubectl.ok("-n NS get serviceaccount made -o name");
    assert_eq!(account.trim(), "serviceaccount/made");
    kubectl.ok("-n NS create role made --verb=get --resource=leases");
    let role = kubectl.json("-n NS get role made -o json");
    let rule =
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]});
    assert_eq!(role["rules"], json!([rule]));
    assert!(
        kubectl
            .ok("-n NS get lease applied -o yaml")
            .contains("holderIdentity: three")
    );
    assert!(kubectl.ok("-n NS get lease -o wide").contains("HOLDER"));
    kubectl.edit("s/three/edited/", "-n NS edit lease applied");
    let holder = "-n NS get lease applied -o jsonpath={.spec.holderIdentity}";
    assert_eq!(kubectl.ok(holder), "edited");
    let (watch, printed) = ("-n NS get configmap made -w -o name", "configmap/made");
    kubectl.watch(watch, printed, || {
        kubectl.ok("-n NS label configmap made watched=yes");
    });
    let differs = kubectl.run(&format!("diff -f {}", file.display()));
    assert_eq!(differs.status.code(), Some(1), "{}", said(&differs));
    assert!(said(&differs).contains("+  holderIdentity: three"));
    if modern {
        let edited = "--for=jsonpath={.spec.holderIdentity}=edited --timeout=20s";
        kubectl.ok(&format!("-n NS wait lease/applied {edited}"));
        assert!(kubectl.ok("auth whoami").contains("Username"));
    }
    assert_eq!(kubectl.ok("auth can-i create leases").trim(), "yes");
    let nobody = kubectl.run("auth can-i create leases --as=nobody");
    assert_eq!(nobody.status.code(), Some(1), "{}", said(&nobody));
    assert!(nobody.stdout.starts_with(b"no"), "{}", said(&nobody));
    assert!(
        kubectl
            .ok("-n NS describe lease applied")
            .contains("Holder Identity")
    );
    assert!(kubectl.fails("-n NS get lease none").contains("NotFound"));
    assert!(
        kubectl
            .fails("-n NS create configmap made")
            .contains("already exists")
    );
    kubectl.waits_for_deletion(&file);
    kubectl.ready_pod(&cache.path().join("pod.json"));
    kubectl.ok("delete namespace NS --wait=false");
}

/// kubectl with server-side apply, scale, and a custom resource: columns, explain, waiting for a path.
pub fn kubectl_applies_and_defines(program: &Path, kubeconfig: &Path, namespace: &str) {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let kubectl = Kubectl {
        namespace,
        program,
        kubeconfig,
        home: cache.path(),
    };
    kubectl.ok("create namespace NS");
    let write = |name: &str, object: &Value| {
        let file = cache.path().join(name);
        std::fs::write(&file, object.to_string()).expect("a writable temporary folder");
        file.display().to_string()
    };
    let deployment = |image: &str| {
        json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "web", "namespace": namespace},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": image}]}}}})
    };
    let file = write("web.json", &deployment("one"));
    kubectl.ok(&format!("apply --server-side -f {file}"));
    let file = write("web.json", &deployment("two"));
    let differs = kubectl.run(&format!("diff --server-side -f {file}"));
    assert_eq!(differs.status.code(), Some(1), "{}", said(&differs));
    assert!(
        said(&differs).contains("+      - image: two"),
        "{}",
        said(&differs)
    );
    kubectl.ok(&format!("apply --server-side -f {file}"));
    kubectl.ok("-n NS scale deployment web --replicas=5");
    let refused = kubectl.fails(&format!("apply --server-side -f {file}"));
    assert!(refused.contains(".spec.replicas"), "{refused}");
    kubectl.ok(&format!("apply --server-side --force-conflicts -f {file}"));
    let replicas = "-n NS get deployment web -o jsonpath={.spec.replicas}";
    assert_eq!(kubectl.ok(replicas), "2");

    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "description": "What is wanted.", "properties": {
            "replicas": {"type": "integer", "default": 1, "description": "How many."}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"},
            "replicas": {"type": "integer"}}}}});
    let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.t.example"}, "spec": {"group": "t.example", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]}, "versions": [{"name": "v1",
        "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas"}},
        "additionalPrinterColumns": [
            {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas"}]}]}});
    let file = write("definition.json", &definition);
    kubectl.ok(&format!("create -f {file}"));
    kubectl.ok("wait --for=condition=Established crd/widgets.t.example --timeout=20s");
    let widget = json!({"apiVersion": "t.example/v1", "kind": "Widget",
        "metadata": {"name": "w", "namespace": namespace}, "spec": {"replicas": 3}});
    let file = write("widget.json", &widget);
    kubectl.ok(&format!("apply -f {file}"));
    kubectl.ok(&format!("apply --server-side -f {file}"));
    let table = kubectl.ok("-n NS get wd");
    assert!(table.contains("WANTED") && table.contains('3'), "{table}");
    assert!(kubectl.ok("explain widget.spec").contains("How many."));
    kubectl.ok("-n NS scale wd w --replicas=4");
    let line = "-n NS wait wd/w --for=jsonpath={.status.phase}=Done --timeout=60s";
    let mut wait = kubectl
        .command(line)
        .spawn()
        .expect("checked before the test");
    kubectl
        .ok(r#"-n NS patch wd w --subresource status --type merge -p {"status":{"phase":"Done"}}"#);
    assert!(wait.wait().expect("our child").success(), "kubectl {line}");
    kubectl.ok("delete crd widgets.t.example");
    kubectl.fails("-n NS get wd");
    kubectl.ok("delete namespace NS --wait=false");
}

/// The Python client.
pub fn python(kubeconfig: &Path) {
    let mut command = Command::new(tools::python().expect("checked before the test"));
    command.arg(script("crud.py")).arg(kubeconfig);
    succeed(&mut command);
}

/// The JavaScript client.
pub fn node(kubeconfig: &Path) {
    let library = tools::node_client().expect("checked before the test");
    let mut command = Command::new("node");
    command.arg(script("crud.mjs")).arg(kubeconfig).arg(library);
    succeed(&mut command);
}

/// Whether a program of `peers/` is available. Prints a message if not.
pub fn peer(peer: Peer) -> bool {
    Skip::unless(available(&[peer])).is_some()
}

struct Kubectl<'a> {
    /// Replaces `NS` in command lines.
    namespace: &'a str,
    program: &'a Path,
    kubeconfig: &'a Path,
    home: &'a Path,
}

impl Kubectl<'_> {
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(self.program);
        // Otherwise kubectl would reuse its caches for another server on the same port.
        command
            .env("HOME", self.home)
            .env("KUBECONFIG", self.kubeconfig);
        command.args(line.replace("NS", self.namespace).split(' '));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(line)
            .output()
            .expect("checked before the test")
    }

    /// Runs a command that calls an editor, here sed.
    fn edit(&self, change: &str, line: &str) {
        let output = self
            .command(line)
            .env("KUBE_EDITOR", format!("sed -i {change}"))
            .output();
        let output = output.expect("checked before the test");
        assert!(output.status.success(), "kubectl {line}: {}", said(&output));
    }

    /// Runs a command that prints a line immediately and again after a change.
    fn watch(&self, line: &str, prints: &str, change: impl FnOnce()) {
        let process =
            Process::spawn("kubectl", self.command(line)).expect("checked before the test");
        let count = || process.text().iter().filter(|said| *said == prints).count();
        let printed = |times| clock::poll(LIMIT, || (count() >= times).then_some(()));
        assert!(printed(1).is_some(), "kubectl {line} printed nothing");
        change();
        assert!(
            printed(2).is_some(),
            "kubectl {line} saw no change: {:?}",
            process.text()
        );
    }

    /// Waits until the Lease in a file is deleted. Old versions refuse to wait for an object that is already gone.
    /// Their start-up time is unknown, so each attempt allows more time.
    fn waits_for_deletion(&self, file: &Path) {
        let line = "-n NS wait --for=delete lease/applied --timeout=60s";
        let waited = [1, 5, 20].into_iter().any(|seconds| {
            let mut wait = self.command(line).spawn().expect("checked before the test");
            sleep(Duration::from_secs(seconds));
            self.ok("-n NS delete lease applied");
            let done = wait.wait().expect("our child").success();
            if !done {
                self.ok(&format!("create -f {}", file.display()));
            }
            done
        });
        assert!(waited, "kubectl {line}");
    }

    /// Waits for a condition of a Pod that becomes true.
    fn ready_pod(&self, file: &Path) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "ready", "namespace": self.namespace},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        std::fs::write(file, pod.to_string()).expect("a writable temporary folder");
        self.ok(&format!("create -f {}", file.display()));
        let wait = "-n NS wait --for=condition=Ready pod/ready --timeout=60s";
        let mut waiting = self.command(wait).spawn().expect("checked before the test");
        let wire = Wire::connect(self.kubeconfig).expect("the harness wrote it");
        let path = object_path("/api/v1", self.namespace, "pods", "ready") + "/status";
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        send(&wire, &Method::PATCH, &path, Some(&ready));
        assert!(
            waiting.wait().expect("our child").success(),
            "kubectl {wait}"
        );
        let (narrow, wide) = (self.ok("-n NS get pods"), self.ok("-n NS get pods -o wide"));
        assert!(
            narrow.contains("ready") && !narrow.contains(" NODE "),
            "{narrow}"
        );
        assert!(wide.contains("ready") && wide.contains(" NODE "), "{wide}");
    }

    fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(output.status.success(), "kubectl {line}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn fails(&self, line: &str) -> String {
        let output = self.run(line);
        assert!(
            !output.status.success(),
            "kubectl {line} should fail: {}",
            said(&output)
        );
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.ok(line))
            .unwrap_or_else(|error| panic!("kubectl {line}: {error}"))
    }
}

fn succeed(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(name)
}

fn get(wire: &Wire, path: &str) -> Value {
    send(wire, &Method::GET, path, None)
}

fn send(wire: &Wire, method: &Method, path: &str, body: Option<&Value>) -> Value {
    let answer = wire
        .send(method, path, body)
        .unwrap_or_else(|error| panic!("{error}"));
    assert!(
        answer.status.is_success(),
        "{method} {path}: {} {}",
        answer.status,
        answer.body
    );
    answer.body
}
