//! The charts and the Kustomize components of `deploy/`, with the real helm and kubectl.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tenure_tests::embedded::Embedded;
use tenure_tests::home::Home;
use tenure_tests::real::{Peer, build};
use tenure_tests::scenarios::clients::peer;
use tenure_tests::wire::Wire;

use crate::deploy::{expect_restricted, printed_role};

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// Copies a folder and its subfolders.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// The real helm, and a copy of the charts whose dependencies are built.
struct Helm {
    program: PathBuf,
    folder: TempDir,
    kubeconfig: PathBuf,
}

impl Helm {
    /// Returns `None` if helm is not available.
    fn new(kubeconfig: &Path) -> Option<Self> {
        if !peer(Peer::Helm) {
            return None;
        }
        let helm = Self {
            program: build(Peer::Helm).unwrap(),
            folder: tempfile::tempdir().unwrap(),
            kubeconfig: kubeconfig.to_owned(),
        };
        copy(&deploy().join("helm"), &helm.folder.path().join("charts"));
        helm.run(&["dependency", "build", "example"]).unwrap();
        Some(helm)
    }

    /// Returns the standard output, or standard error if it fails.
    fn run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.program)
            .env_clear()
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(self.folder.path().join("charts"))
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr))
        }
    }

    /// Returns the objects of a chart, without what differs between versions of helm and of the charts.
    fn template(&self, args: &[&str]) -> String {
        let said = self.run(&[&["template"], args].concat()).unwrap();
        let own = [
            "# Source: ",
            "helm.sh/chart: ",
            "app.kubernetes.io/managed-by: ",
        ];
        let kept = said.lines().filter(|line| {
            let line = line.trim_start();
            own.iter().all(|start| !line.starts_with(start))
        });
        kept.map(|line| line.to_owned() + "\n").collect()
    }
}

/// The releases of these tests: file of the expected objects, and the arguments of `helm template`.
const RELEASES: [(&str, &[&str]); 5] = [
    (
        "deploy/kustomize/server/objects.yaml",
        &["tenure-server", "tenure-server", "--namespace=tenure"],
    ),
    (
        "deploy/kustomize/provisioner/objects.yaml",
        &[
            "tenure-provisioner",
            "tenure-provisioner",
            "--namespace=tenure",
            "--set=driver.image=your-csi-driver:latest",
        ],
    ),
    (
        "tests/golden/helm/example.yaml",
        &["web", "example", "--namespace=shop"],
    ),
    (
        "tests/golden/helm/server-etcd.yaml",
        &[
            "api",
            "tenure-server",
            "--namespace=shop",
            "--set=replicas=3",
            "--set=store.type=etcd",
            "--set=store.etcd.endpoints={https://a:2379,https://b:2379}",
            "--set=store.etcd.tlsSecret=etcd-client",
        ],
    ),
    (
        "tests/golden/helm/provisioner-features.yaml",
        &[
            "csi",
            "tenure-provisioner",
            "--namespace=shop",
            "--set=driver.image=your-csi-driver:latest",
            "--set=features.modify=true",
            "--set=features.snapshots=true",
            "--set=features.crossNamespace=true",
            "--set=features.secrets=true",
            "--set=features.capacity=true",
        ],
    ),
];

/// Returns the objects of a text with several documents.
fn objects(text: &str) -> Vec<Value> {
    let documents = text
        .split("---\n")
        .filter(|document| !document.trim().is_empty());
    let objects = documents.map(|document| serde_saphyr::from_str::<Value>(document).unwrap());
    objects.filter(|object| !object.is_null()).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .unwrap()
}

#[test]
fn helm_charts_pass_lint_and_render_the_recorded_objects() {
    let Some(helm) = Helm::new(Path::new("/nowhere")) else {
        return;
    };
    for chart in [
        "tenure-sidecar",
        "tenure-server",
        "tenure-provisioner",
        "example",
    ] {
        let driver = "--set=driver.image=your-csi-driver:latest";
        let flags: &[&str] = if chart == "tenure-provisioner" {
            &[driver]
        } else {
            &[]
        };
        let lint = [&["lint", "--strict", chart], flags].concat();
        helm.run(&lint)
            .unwrap_or_else(|said| panic!("{chart}: {said}"));
    }
    let mut restricted = 0;
    for (file, args) in RELEASES {
        let rendered = helm.template(args);
        let path = deploy().join("..").join(file);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, &rendered).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(rendered, expected, "{file}; UPDATE_EXPECT=1 writes it");
        for object in objects(&rendered) {
            restricted += expect_restricted(file, &object);
        }
    }
    assert_eq!(restricted, 8, "containers");
}

#[test]
fn helm_values_that_would_not_work_are_rejected() {
    let Some(helm) = Helm::new(Path::new("/nowhere")) else {
        return;
    };
    for (chart, flags, reason) in [
        ("tenure-server", "--set=replicas=2", "/replicas"),
        (
            "tenure-server",
            "--set=store.type=etcd",
            "/store/etcd/endpoints",
        ),
        (
            "tenure-server",
            "--set=image.digest=latest",
            "/image/digest",
        ),
        ("tenure-server", "--set=storage.type=redb", "storage"),
        ("tenure-provisioner", "--set=replicas=2", "/driver/image"),
        ("example", "--set=tenure-sidecar.lock=pods", "/lock"),
        ("example", "--set=tenure-sidecar.nativ=true", "nativ"),
    ] {
        let said = helm.run(&["template", "web", chart, flags]).unwrap_err();
        assert!(said.contains(reason), "{chart} {flags}: {said}");
    }
}

/// Returns the arguments of the container `tenure` of a Deployment, and those that name its election.
fn sidecar_args(deployment: &Value) -> Vec<String> {
    let pod = &deployment["spec"]["template"]["spec"];
    let lists = ["initContainers", "containers"].map(|list| pod[list].as_array().into_iter());
    let mut containers = lists.into_iter().flatten().flatten();
    let sidecar = containers.find(|container| container["name"] == "tenure");
    let sidecar = sidecar.unwrap();
    let args = sidecar["args"].as_array().unwrap().iter();
    let mut args: Vec<String> = args.map(|arg| arg.as_str().unwrap().to_owned()).collect();
    let mut variables = sidecar["env"].as_array().unwrap().iter();
    if let Some(election) = variables.find(|variable| variable["name"] == "TENURE_ELECTION") {
        args.push(format!(
            "--election={}",
            election["value"].as_str().unwrap()
        ));
    }
    args
}

/// The Role of the release equals the role that the command prints for the command line of the sidecar.
#[test]
fn helm_sidecar_has_the_role_that_its_command_line_needs() {
    let Some(helm) = Helm::new(Path::new("/nowhere")) else {
        return;
    };
    let home = Home::new();
    for flags in [
        &[][..],
        &["--set=tenure-sidecar.service.enabled=false"],
        &["--set=tenure-sidecar.native=false"],
        &["--set=tenure-sidecar.lock=configmapsleases"],
        &["--set=tenure-sidecar.lock=endpoints,tenure-sidecar.election=shop.db"],
    ] {
        let release = ["web", "example", "--namespace=shop"];
        let rendered = objects(&helm.template(&[&release, flags].concat()));
        let args = sidecar_args(of_kind(&rendered, "Deployment"));
        let printed = printed_role(&home, &args, "shop");
        let role = of_kind(&rendered, "Role");
        assert_eq!(role["rules"], printed["rules"], "{flags:?}");
        assert_eq!(
            role["metadata"]["name"], printed["metadata"]["name"],
            "{flags:?}"
        );
    }
}

/// With all features, the rules of the provisioner are those of deploy/provisioner, which other tests enforce.
#[test]
fn helm_provisioner_has_the_rules_of_the_plain_manifest() {
    let shipped = std::fs::read_to_string(deploy().join("provisioner/rbac.yaml")).unwrap();
    let recorded =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/helm/provisioner-features.yaml");
    let recorded = std::fs::read_to_string(recorded).unwrap();
    for kind in ["Role", "ClusterRole"] {
        let [shipped, recorded] = [&shipped, &recorded].map(|text| objects(text));
        let rules = |objects: &[Value]| of_kind(objects, kind)["rules"].clone();
        assert_eq!(rules(&recorded), rules(&shipped), "{kind}");
    }
}

/// The command accepts the command lines of all recorded objects.
#[test]
fn helm_command_lines_are_accepted_by_the_command() {
    let home = Home::new();
    let mut count = 0;
    for (file, _) in RELEASES {
        let text = std::fs::read_to_string(deploy().join("..").join(file)).unwrap();
        for object in objects(&text) {
            let containers = object["spec"]["template"]["spec"]["containers"].as_array();
            for container in containers.into_iter().flatten() {
                let first = match container["image"].as_str().unwrap().split_once(':') {
                    Some(("tenure-provisioner", _)) => Some("provision"),
                    Some(("tenure", _)) => None,
                    _ => continue,
                };
                count += 1;
                let args = container["args"].as_array().unwrap().iter();
                let args = args.map(|arg| arg.as_str().unwrap());
                let args: Vec<&str> = first.into_iter().chain(args).chain(["--help"]).collect();
                let output = home.tenure(&args);
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{file}: {said}");
            }
        }
    }
    assert_eq!(count, 4);
}

/// Installs, changes and removes a release of each chart.
pub(crate) fn installed(kubeconfig: &Path) {
    let Some(helm) = Helm::new(kubeconfig) else {
        return;
    };
    let wire = Wire::connect(kubeconfig).unwrap();
    let run = |args: &[&str]| {
        let args = [args, &["--namespace=charts"]].concat();
        helm.run(&args)
            .unwrap_or_else(|said| panic!("{args:?}: {said}"))
    };
    let driver = "--set=driver.image=your-csi-driver:latest";
    run(&["install", "web", "example", "--create-namespace"]);
    run(&["install", "api", "tenure-server"]);
    run(&["install", "csi", "tenure-provisioner", driver]);
    let deployment = "/apis/apps/v1/namespaces/charts/deployments/web";
    let replicas = || wire.get(deployment).unwrap().body["spec"]["replicas"].clone();
    assert_eq!(replicas(), 3);
    run(&["upgrade", "web", "example", "--set=replicas=5"]);
    assert_eq!(replicas(), 5);
    run(&["rollback", "web", "1"]);
    assert_eq!(replicas(), 3);
    let history = run(&["history", "web", "--output=json"]);
    let history: Value = serde_json::from_str(&history).unwrap();
    assert_eq!(history.as_array().unwrap().len(), 3, "{history}");
    for release in ["web", "api", "csi"] {
        run(&["uninstall", release]);
    }
    let left = run(&["list", "--short"]);
    assert_eq!(left.trim(), "");
    for kind in [
        "apis/apps/v1/namespaces/charts/deployments",
        "apis/apps/v1/namespaces/charts/statefulsets",
        "apis/policy/v1/namespaces/charts/poddisruptionbudgets",
        "apis/rbac.authorization.k8s.io/v1/namespaces/charts/roles",
        "apis/rbac.authorization.k8s.io/v1/clusterroles",
        "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        "api/v1/namespaces/charts/services",
        "api/v1/namespaces/charts/secrets",
    ] {
        let selector = "labelSelector=app.kubernetes.io/instance";
        let answer = wire.get(&format!("/{kind}?{selector}")).unwrap();
        assert_eq!(answer.status, 200, "{kind}: {}", answer.body);
        assert_eq!(
            answer.body["items"].as_array().map(Vec::len),
            Some(0),
            "{}",
            answer.body
        );
    }
}

#[test]
fn helm_installs_upgrades_and_uninstalls_on_the_embedded_server() {
    let server = Embedded::start().unwrap();
    installed(&server.kubeconfig());
}

/// The objects of a list, and the version of each.
const VERSIONS: &str =
    "jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.resourceVersion}\n{end}";

/// Each kustomization is accepted. A second apply changes nothing, and the Role is the least one for the sidecar.
#[test]
fn kustomize_components_are_accepted_and_grant_the_least_role() {
    if !peer(Peer::Kubectl) {
        return;
    }
    let kubectl = build(Peer::Kubectl).unwrap();
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(&kubectl);
        command
            .env_clear()
            .env("HOME", home.path(""))
            .env("KUBECONFIG", server.kubeconfig());
        let output = command.args(args).current_dir(deploy()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for namespace in ["shop", "tenure"] {
        run(&["create", "namespace", namespace]);
    }
    for name in ["example", "server", "provisioner"] {
        let folder = format!("kustomize/{name}");
        let said = run(&["apply", "-k", &folder]);
        assert!(said.contains("created"), "{name}: {said}");
        // kubectl reports "configured" for lists and selectors that it always replaces, so compare the versions.
        let versions = || run(&["get", "-k", &folder, "--output", VERSIONS]);
        let before = versions();
        assert!(
            before.contains("Role/tenure") || name == "server",
            "{before}"
        );
        run(&["apply", "-k", &folder]);
        assert_eq!(versions(), before, "{name}");
    }
    let built = objects(&run(&["kustomize", "kustomize/example"]));
    let args = sidecar_args(of_kind(&built, "Deployment"));
    let printed = printed_role(&home, &args, "shop");
    assert_eq!(of_kind(&built, "Role")["rules"], printed["rules"]);
    let service = &of_kind(&built, "Service")["spec"]["selector"];
    assert_eq!(service["tenure.dev/leader"], "true");
    assert_eq!(service["app"], "web");
    let restricted: usize = built
        .iter()
        .map(|object| expect_restricted("example", object))
        .sum();
    assert_eq!(restricted, 2);
}
