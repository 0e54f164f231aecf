//! `tenure server` with manifests that deploy themselves, as a process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tenure_tests::Skip;
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::real::{Peer, available, build};
use tenure_tests::wire::Wire;

const LIMIT: Duration = Duration::from_secs(180);
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const INVENTORIES: &str =
    "/api/v1/namespaces/kube-system/configmaps?labelSelector=tenure.dev/component%3Dmanifests";

const DEFINITION: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.x.io}
spec:
  group: x.io
  scope: Cluster
  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object,
      properties: {size: {type: integer}}}}}
";

/// A data directory with manifests.
struct Folder {
    home: Home,
}

impl Folder {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = Self { home: Home::new() };
        for (name, text) in files {
            folder.put(name, text);
        }
        folder
    }

    fn data(&self) -> PathBuf {
        self.home.path("data")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.data().join("manifests").join(name)
    }

    fn put(&self, name: &str, text: &str) {
        let file = self.file(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }

    /// Starts a server and waits until it is ready.
    fn start(&self, options: &[&str]) -> (Process, Wire) {
        let mut command = self.home.command();
        command.args(["server", "run", "--listen=127.0.0.1:0", "--data-dir"]);
        command.arg(self.data()).args(options);
        let kubeconfig = self.data().join("kubeconfig");
        // The kubeconfig of the previous server has another port.
        let _ = fs::remove_file(&kubeconfig);
        let server = Process::spawn("server", command).unwrap();
        let ready = || {
            let wire = Wire::connect(&kubeconfig).ok()?;
            (wire.get("/readyz").ok()?.status == StatusCode::OK).then_some(wire)
        };
        let wire = poll(LIMIT, ready);
        let wire = wire.unwrap_or_else(|| panic!("not ready: {}", server.transcript()));
        (server, wire)
    }
}

fn end(mut server: Process) {
    server.terminate();
    let ended = server.wait(LIMIT).unwrap();
    assert!(ended.success(), "{}", server.transcript());
}

fn map(name: &str, value: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{k: '{value}'}}\n"
    )
}

/// Returns the member `k` of a ConfigMap, if it exists.
fn value(wire: &Wire, name: &str) -> Option<String> {
    let answer = wire.get(&format!("{MAPS}/{name}")).unwrap();
    assert!([StatusCode::OK, StatusCode::NOT_FOUND].contains(&answer.status));
    answer.body.pointer("/data/k")?.as_str().map(str::to_owned)
}

fn until(what: &str, server: &Process, so: impl Fn() -> bool) {
    let came = poll(LIMIT, || so().then_some(()));
    assert!(came.is_some(), "{what}: {}", server.transcript());
}

fn inventories(wire: &Wire) -> Vec<Value> {
    let list = wire.get(INVENTORIES).unwrap().body;
    list["items"].as_array().unwrap().clone()
}

#[test]
fn manifests_follow_changes_of_files_made_while_the_server_is_down() {
    let thing = "apiVersion: x.io/v1\nkind: Thing\nmetadata: {name: a}\nsize: 1\n";
    let folder = Folder::new(&[
        ("10-things.yaml", &format!("{DEFINITION}---\n{thing}")),
        ("20-maps.yaml", &(map("a", "1") + &map("b", "1"))),
        ("30-gone.yaml", &map("gone", "1")),
    ]);
    let (server, wire) = folder.start(&[]);
    // All of them are there when the server is ready.
    let things = "/apis/x.io/v1/things/a";
    assert_eq!(wire.get(things).unwrap().body["size"], 1);
    for name in ["a", "b", "gone"] {
        assert_eq!(value(&wire, name).as_deref(), Some("1"), "{name}");
    }
    until("a line", &server, || {
        server
            .transcript()
            .contains("tenure: applied 3 of 3 manifests")
    });
    if Skip::unless(available(&[Peer::Kubectl])).is_some() {
        let kubectl = Command::new(build(Peer::Kubectl).unwrap())
            .env("HOME", folder.home.path(""))
            .arg("--kubeconfig")
            .arg(folder.data().join("kubeconfig"))
            .args(["get", "events", "-n", "kube-system", "-o"])
            .arg("jsonpath={range .items[*]}{.involvedObject.kind} {.reason}: {.message}{\"\\n\"}{end}")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&kubectl.stdout).into_owned();
        let file = folder.file("20-maps.yaml");
        let expected = format!("ConfigMap Applied: {}: applied 2 objects", file.display());
        assert!(
            said.lines().any(|line| line == expected),
            "{said} {kubectl:?}"
        );
    }

    // A change of one object and the removal of another.
    folder.put(
        "10-things.yaml",
        &format!("{DEFINITION}---\n{}", thing.replace("size: 1", "size: 2")),
    );
    folder.put("20-maps.yaml", &map("a", "2"));
    until("b is deleted", &server, || value(&wire, "b").is_none());
    assert_eq!(value(&wire, "a").as_deref(), Some("2"));
    until("changed", &server, || {
        wire.get(things).unwrap().body["size"] == 2
    });
    end(server);

    // A file that is removed, and one that is changed, while no server runs.
    folder.remove("30-gone.yaml");
    folder.put("20-maps.yaml", &map("c", "3"));
    let (mut server, wire) = folder.start(&[]);
    assert_eq!(value(&wire, "c").as_deref(), Some("3"));
    until("deleted", &server, || {
        value(&wire, "gone").is_none() && value(&wire, "a").is_none()
    });
    assert_eq!(wire.get(things).unwrap().body["size"], 2);

    // The same after a server that was killed while it deleted or applied.
    folder.remove("10-things.yaml");
    folder.put("40-new.yaml", &map("new", "1"));
    std::thread::sleep(Duration::from_millis(4100));
    server.kill();
    server.wait(LIMIT).unwrap();
    let (server, wire) = folder.start(&[]);
    assert_eq!(value(&wire, "new").as_deref(), Some("1"));
    until("the definition is deleted", &server, || {
        wire.get("/apis/x.io/v1").unwrap().status == StatusCode::NOT_FOUND
    });
    until("inventories", &server, || inventories(&wire).len() == 2);
    end(server);

    // Without the controller, nothing happens.
    folder.remove("40-new.yaml");
    folder.put("50-not.yaml", &map("not", "1"));
    let (server, wire) = folder.start(&["--disable=manifests"]);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(value(&wire, "new").as_deref(), Some("1"));
    assert_eq!(value(&wire, "not"), None);
    end(server);
}

#[test]
fn manifest_with_a_skip_file_is_neither_applied_nor_deleted() {
    let folder = Folder::new(&[("a.yaml", &map("a", "1")), ("b.yaml", &map("b", "1"))]);
    folder.put("b.yaml.skip", "");
    let (server, wire) = folder.start(&[]);
    assert_eq!(value(&wire, "a").as_deref(), Some("1"));
    assert_eq!(value(&wire, "b"), None);
    folder.put("a.yaml.skip", "");
    end(server);
    folder.put("a.yaml", &map("other", "2"));
    folder.remove("b.yaml.skip");
    let (server, wire) = folder.start(&[]);
    assert_eq!(
        value(&wire, "b").as_deref(),
        Some("1"),
        "applied without the skip file"
    );
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(value(&wire, "a").as_deref(), Some("1"), "not deleted");
    assert_eq!(value(&wire, "other"), None, "not applied");
    folder.remove("a.yaml.skip");
    until("applied", &server, || value(&wire, "other").is_some());
    until("deleted", &server, || value(&wire, "a").is_none());
    end(server);
}

#[test]
fn broken_manifest_is_named_and_does_not_stop_the_others() {
    let folder = Folder::new(&[
        ("a.yaml", &(map("a", "1") + "---\nkind: [\n")),
        ("b.yaml", &map("b", "1")),
    ]);
    let further = folder.home.path("further");
    fs::create_dir(&further).unwrap();
    fs::write(
        further.join("c.json"),
        r#"{"apiVersion": "v1", "kind": "ConfigMap"}"#,
    )
    .unwrap();
    let option = format!("--manifests={}", further.display());
    let (server, wire) = folder.start(&[&option]);
    assert_eq!(value(&wire, "b").as_deref(), Some("1"));
    assert_eq!(value(&wire, "a"), None, "half of a file is not applied");
    let said = server.transcript();
    let broken = format!("{}", folder.file("a.yaml").display());
    assert!(said.contains(&broken), "{said}");
    assert!(said.contains("document 2, which begins in line"), "{said}");
    let third = format!("{}/c.json", further.display());
    assert!(said.contains(&third), "{said}");
    assert!(
        said.contains("document 1: ConfigMap has no metadata"),
        "{said}"
    );
    until("a line", &server, || {
        server
            .transcript()
            .contains("tenure: applied 1 of 3 manifests")
    });
    let failed = inventories(&wire);
    let failed = failed
        .iter()
        .filter(|map| map["data"]["status"] == "Failed");
    assert_eq!(failed.count(), 2);

    folder.put("a.yaml", &map("a", "1"));
    until("applied", &server, || value(&wire, "a").is_some());
    end(server);

    let missing = folder.home.path("missing");
    let data = folder.data();
    let output = folder.home.tenure(&[
        "server",
        "--data-dir",
        data.to_str().unwrap(),
        "--manifests",
        missing.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("cannot read --manifests "), "{said}");
}
