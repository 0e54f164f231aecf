//! The files in `deploy/`: roles equal the printed ones, and an API server accepts all objects.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use http::Method;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::real::{Peer, build};
use tenure_tests::tools;
use tenure_tests::wire::Wire;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(out).into_owned() + &String::from_utf8_lossy(err)
}

const LIMIT: Duration = Duration::from_secs(120);

/// The lock kinds, with the objects of each.
const KINDS: [(&str, &[&str]); 5] = [
    ("leases", &["leases"]),
    ("configmaps", &["configmaps"]),
    ("endpoints", &["endpoints"]),
    ("configmapsleases", &["configmaps", "leases"]),
    ("endpointsleases", &["endpoints", "leases"]),
];

#[test]
fn deploy_has_the_least_role_per_kind_of_lock() {
    let home = Home::new();
    for (kind, _) in KINDS {
        let printed = home.tenure(&[
            "elect",
            "--election=example",
            "--election-namespace=default",
            &format!("--lock={kind}"),
            "--print-rbac",
        ]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        let file = folder().join(format!("rbac/role-{kind}.yaml"));
        assert_eq!(std::fs::read_to_string(file).unwrap(), printed, "{kind}");
        assert!(!printed.contains('*') && !printed.contains("ClusterRole"));
    }
}

/// Creates every object of a file.
fn apply(admin: &Wire, file: &str) {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        let path = match object["kind"].as_str().unwrap() {
            "ServiceAccount" => "/api/v1/namespaces/default/serviceaccounts".to_owned(),
            kind => {
                let plural = format!("{}s", kind.to_lowercase());
                format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{plural}")
            }
        };
        let made = admin.send(&Method::POST, &path, Some(&object)).unwrap();
        assert!(made.status.is_success(), "{file}: {}", made.body);
    }
}

/// Returns a kubeconfig of the service account in the manifests.
fn as_account(home: &Home, server: &Embedded, admin: &Wire, name: &str) -> PathBuf {
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "audiences": [], "expirationSeconds": 3600 },
    });
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{name}/token");
    let answer = admin.send(&Method::POST, &path, Some(&request)).unwrap();
    let token = answer.body["status"]["token"].as_str();
    let token = token.unwrap_or_else(|| panic!("{}", answer.body));
    let file = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let mut config = serde_json::to_value(file).unwrap();
    config["users"][0]["user"] = json!({ "token": token });
    let file = home.path("account");
    std::fs::write(&file, config.to_string()).unwrap();
    file
}

/// Each role allows its lock kind, from the first write to the release, and no other kind.
#[test]
fn deploy_roles_are_enough_for_their_kind_of_lock_and_for_no_other() {
    let home = Home::new();
    for (role, granted) in KINDS {
        let server = Embedded::start().unwrap();
        let admin = Wire::connect(&server.kubeconfig()).unwrap();
        apply(&admin, "rbac/account.yaml");
        apply(&admin, &format!("rbac/role-{role}.yaml"));
        let account = as_account(&home, &server, &admin, "example");
        for (lock, objects) in KINDS {
            let mut command = home.command();
            command
                .env("KUBECONFIG", &account)
                .args(["elect", "--election=example", "--id=me", "--preflight=fail"])
                .args(["--election-namespace=default", "--events=json"])
                .arg(format!("--lock={lock}"));
            let case = format!("{lock} under the role for {role}");
            if objects.iter().any(|object| !granted.contains(object)) {
                let refused = command.output().unwrap();
                assert_eq!(refused.status.code(), Some(4), "{case}: {}", text(&refused));
                assert!(text(&refused).contains("missing permissions"), "{case}");
                continue;
            }
            let mut process = Process::spawn(&case, command).unwrap();
            let led = process.wait_for(Kind::Acquired, Nanos(0), LIMIT);
            led.unwrap_or_else(|silence| panic!("{case}: {silence}"));
            process.terminate();
            assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0), "{case}");
            let released = process.wait_for(Kind::Released, Nanos(0), LIMIT);
            released.unwrap_or_else(|silence| panic!("{case}: {silence}"));
            let said = process.transcript();
            assert!(!said.contains("forbidden"), "{case}: {said}");
        }
    }
}

/// Returns the Role that the command prints for its command line.
pub(crate) fn printed_role(home: &Home, args: &[impl AsRef<OsStr>], namespace: &str) -> Value {
    let mut command = home.command();
    command
        .args(args)
        .arg(format!("--election-namespace={namespace}"));
    let output = command.arg("--print-rbac").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    serde_saphyr::from_str(&String::from_utf8_lossy(&output.stdout)).unwrap()
}

/// Returns every document of a file.
fn documents(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder().join(file)).unwrap();
    let documents = text.split("\n---\n");
    documents
        .map(|document| serde_saphyr::from_str(document).unwrap())
        .collect()
}

/// The command line of the native sidecar runs under the role that ships with it, which equals the printed role. Its
/// selector differs from that of the classic sidecar.
#[test]
fn deploy_native_sidecar_has_the_role_that_its_command_line_needs() {
    let home = Home::new();
    let native = documents("native-sidecar.yaml");
    let deployment = native
        .iter()
        .find(|object| object["kind"] == "Deployment")
        .unwrap();
    let pod = &deployment["spec"]["template"];
    let args = pod["spec"]["initContainers"][0]["args"].as_array().unwrap();
    let args: Vec<&str> = args.iter().map(|arg| arg.as_str().unwrap()).collect();
    let printed = printed_role(&home, &args, "default");
    let shipped = documents("rbac/native-sidecar.yaml");
    assert!(shipped.contains(&printed), "{printed}");
    let classic = &documents("sidecar.yaml")[0]["spec"]["selector"];
    assert_ne!(&deployment["spec"]["selector"], classic);
    let service = native
        .iter()
        .find(|object| object["kind"] == "Service")
        .unwrap();
    assert_eq!(
        service["spec"]["selector"]["app"],
        pod["metadata"]["labels"]["app"]
    );

    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    apply(&admin, "rbac/native-sidecar.yaml");
    let pods = "/api/v1/namespaces/default/pods";
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "native-0", "labels": pod["metadata"]["labels"] },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    });
    let made = admin.send(&Method::POST, pods, Some(&object)).unwrap();
    assert!(made.status.is_success(), "{}", made.body);
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let mut command = home.command();
    command
        .env("KUBECONFIG", as_account(&home, &server, &admin, account))
        .env("POD_NAME", "native-0")
        .env("POD_NAMESPACE", "default")
        .args(args.iter().filter(|arg| !arg.starts_with("--http")))
        .args(["--preflight=fail", "--events=json"]);
    let process = Process::spawn("native-0", command).unwrap();
    let led = process.wait_for(Kind::Acquired, Nanos(0), LIMIT);
    led.unwrap_or_else(|silence| panic!("{silence}"));
    let selected = poll(LIMIT, || {
        let pod = admin.get(&format!("{pods}/native-0")).ok()?.body;
        let labels = pod["metadata"]["labels"].as_object()?.clone();
        let selector = service["spec"]["selector"].as_object()?;
        selector
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            .then_some(())
    });
    assert!(selected.is_some(), "{}", process.transcript());
}

/// The files for the image exist, and the image contains only the binary.
#[test]
fn deploy_image_contains_only_the_binary_and_does_not_run_as_root() {
    let file = std::fs::read_to_string(folder().join("Dockerfile")).unwrap();
    let (build, images) = file.split_once("FROM scratch AS provisioner\n").unwrap();
    let (provisioner, image) = images.split_once("FROM scratch AS tenure\n").unwrap();
    let command = "cargo build --locked --profile $PROFILE --package tenure-cli $FEATURES";
    assert!(build.contains(command));
    assert!(!file.contains("relocation-model"), "the address is random");
    // A vendor who replaces the image of csi-provisioner keeps its flags, so the entry point has its name.
    for (stage, program) in [(provisioner, "/csi-provisioner"), (image, "/tenure")] {
        let lines: Vec<&str> = stage
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty())
            .collect();
        let expected = [
            format!("COPY --from=build /tenure {program}"),
            "USER 65532:65532".to_owned(),
            format!("ENTRYPOINT [\"{program}\"]"),
        ];
        assert_eq!(lines, expected);
    }
    let workspace = std::fs::read_to_string(folder().join("../Cargo.toml")).unwrap();
    for profile in ["[profile.dist]", "[profile.sidecar]"] {
        assert!(workspace.contains(profile), "{profile}");
    }
}

/// Returns the YAML files of the folder and its subfolders, without those of Prometheus, Helm and Kustomize, which are not
/// manifests.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if ["prometheus", "helm", "kustomize"]
            .map(|name| path.ends_with(name))
            .contains(&true)
        {
            continue;
        }
        if path.is_dir() {
            found.extend(manifests(&path));
        } else if path.extension().is_some_and(|end| end == "yaml") {
            found.push(path);
        }
    }
    found
}

/// Returns the containers of every pod template below a value.
fn containers<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(fields) => {
            for key in ["containers", "initContainers"] {
                found.extend(
                    fields
                        .get(key)
                        .and_then(Value::as_array)
                        .into_iter()
                        .flatten(),
                );
            }
            fields.values().for_each(|value| containers(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| containers(value, found)),
        _ => {}
    }
}

/// Expects that no container of an object has more rights than it needs, and that all pass the Pod Security Standard
/// `restricted`. Returns the number of containers.
pub(crate) fn expect_restricted(file: &str, object: &Value) -> usize {
    let mut found = Vec::new();
    containers(object, &mut found);
    for container in &found {
        let wanted = json!({
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        });
        let context = &container["securityContext"];
        assert_eq!(context, &wanted, "{file}: {}", container["name"]);
    }
    let pod = &object["spec"]["template"]["spec"];
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[field].is_null(), "{file}: {field}");
    }
    found.len()
}

#[test]
fn deploy_containers_are_restricted() {
    let mut count = 0;
    for path in manifests(&folder()) {
        let name = path.to_str().unwrap();
        for document in documents(name) {
            count += expect_restricted(name, &document);
        }
    }
    assert_eq!(count, 6, "containers in deploy/");
}

/// The entry point of each image accepts the command lines of the manifests that use the image.
#[test]
fn deploy_command_lines_are_accepted_by_the_entry_point_of_their_image() {
    let home = Home::new();
    let mut count = 0;
    for path in manifests(&folder()) {
        for document in documents(path.to_str().unwrap()) {
            let mut found = Vec::new();
            containers(&document, &mut found);
            for container in found {
                let image = container["image"].as_str().unwrap();
                let program = match image.trim_start_matches("example.com/") {
                    "tenure-sidecar:latest" | "tenure:latest" => "tenure",
                    "tenure-provisioner:latest" => "csi-provisioner",
                    _ => continue,
                };
                count += 1;
                let link = home.path(program);
                if !link.exists() {
                    symlink(tools::tenure().unwrap(), &link).unwrap();
                }
                let args = container["args"].as_array().unwrap();
                // Arguments are checked in their order, so an invalid one fails before the help is printed.
                let output = Command::new(&link)
                    .args(args.iter().map(|arg| arg.as_str().unwrap()))
                    .arg("--help")
                    .output()
                    .unwrap();
                assert!(output.status.success(), "{image}: {}", text(&output));
            }
        }
    }
    assert_eq!(count, 3, "containers with an image of Tenure");
}

/// Runs kubectl and returns its output.
fn run(kubectl: &Path, kubeconfig: &Path, home: &Home, args: &[&str], path: &str) -> String {
    let output = Command::new(kubectl)
        .env_clear()
        .env("HOME", home.path(""))
        .env("PATH", path)
        .env("KUBECONFIG", kubeconfig)
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", text(&output));
    text(&output)
}

/// Applies the files of the sidecar twice with kubectl.
pub(crate) fn applied(kubeconfig: &Path, home: &Home) {
    let kubectl = build(Peer::Kubectl).unwrap();
    for file in [
        "rbac/account.yaml",
        "rbac/role-leases.yaml",
        "sidecar.yaml",
        "rbac/native-sidecar.yaml",
        "native-sidecar.yaml",
    ] {
        let path = folder().join(file);
        let apply = ["apply", "-f", path.to_str().unwrap()];
        let said = run(&kubectl, kubeconfig, home, &apply, "");
        assert!(said.contains("created"), "{file}: {said}");
        // The server drops no field and adds none that a second apply would change.
        let said = run(&kubectl, kubeconfig, home, &apply, "");
        assert!(
            said.contains("unchanged") && !said.contains("configured"),
            "{file}: {said}"
        );
    }
    let wire = Wire::connect(kubeconfig).unwrap();
    let sidecar = wire
        .get("/apis/apps/v1/namespaces/default/deployments/example")
        .unwrap();
    let containers = &sidecar.body["spec"]["template"]["spec"]["containers"];
    assert_eq!(containers[0]["args"][1], "--http=0.0.0.0:4444");
}

#[test]
fn deploy_files_are_accepted_by_an_api_server_and_kubectl_finds_the_plugin() {
    if !tenure_tests::scenarios::clients::peer(Peer::Kubectl) {
        return;
    }
    let kubectl = build(Peer::Kubectl).unwrap();
    let home = Home::new();
    let server = Embedded::start().unwrap();
    applied(&server.kubeconfig(), &home);
    // The binary as a kubectl plugin, by its name on the PATH.
    let plugins = home.path("plugins");
    std::fs::create_dir(&plugins).unwrap();
    symlink(tools::tenure().unwrap(), plugins.join("kubectl-tenure")).unwrap();
    let path = plugins.to_str().unwrap();
    let run = |args: &[&str], path: &str| run(&kubectl, &server.kubeconfig(), &home, args, path);
    assert!(run(&["tenure", "status"], path).contains("no elections"));
    assert!(run(&["tenure", "status", "--help"], path).contains("kubectl tenure status"));
}
