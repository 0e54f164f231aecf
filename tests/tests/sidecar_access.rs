//! The Role that `tenure elect --print-rbac` prints, with the embedded server and RBAC: it is sufficient to lead and to
//! hand over, contains no unneeded verb, and the preflight names each missing verb.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Method;
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tenure_apiserver::server::Server;
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::write_secret;
use tenure_tests::process::Process;
use tenure_tests::record::Recorder;
use tenure_tests::tools;
use tenure_tests::wire::Wire;

use crate::sidecar_outlets::renews_for_a_lease;

const LIMIT: Duration = Duration::from_secs(60);

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";

/// One command line.
pub(crate) struct Case {
    pub(crate) user: &'static str,
    pub(crate) flags: &'static [&'static str],
}

pub(crate) const CASES: [Case; 10] = [
    case("leases", &["--lock=leases"]),
    case("configmaps", &["--lock=configmaps"]),
    case("endpoints", &["--lock=endpoints"]),
    case("configmapsleases", &["--lock=configmapsleases"]),
    case("endpointsleases", &["--lock=endpointsleases"]),
    case("label", &["--label"]),
    case("service", &["--service=web"]),
    case("slice", &["--endpointslice=web"]),
    case("gate", &["--readiness-gate"]),
    case(
        "everything",
        &[
            "--label",
            "--service=shop",
            "--endpointslice=shop",
            "--readiness-gate",
            "--wait-ready",
        ],
    ),
];

/// Its lease is renewed by the election, and its member by another task.
const ANNOUNCED: Case = case("announced", &["--announce"]);

const fn case(user: &'static str, flags: &'static [&'static str]) -> Case {
    Case { user, flags }
}

/// A verb on a resource, for one name or for all.
type Permission = (String, String, String, Option<String>);

struct Place {
    folder: tempfile::TempDir,
    server: Option<Embedded>,
    admin: Wire,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let tokens: String = CASES
            .iter()
            .chain([&ANNOUNCED])
            .map(|case| format!("token-{0},{0},{0}\n", case.user))
            .collect();
        write_secret(folder.path().join("tokens"), tokens);
        let builder = Server::builder()
            .token_file(folder.path().join("tokens"))
            .record_rbac(folder.path().join("recorded.yaml"));
        let server = Embedded::start_with(builder).unwrap();
        let admin = Wire::connect(&server.kubeconfig()).unwrap();
        let place = Self {
            folder,
            server: Some(server),
            admin,
        };
        for name in ["web", "shop"] {
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
                "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
            });
            place.create("/api/v1/namespaces/default/services", &service);
        }
        let pods = "/api/v1/namespaces/default/pods";
        place.create(
            pods,
            &json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web-0" },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            }),
        );
        let ready = json!({ "status": { "conditions": [
            { "type": "Ready", "status": "True" }, { "type": "ContainersReady", "status": "True" },
        ] } });
        let patched = place.admin.send(
            &Method::PATCH,
            &format!("{pods}/web-0/status"),
            Some(&ready),
        );
        assert!(patched.unwrap().status.is_success());
        place
    }

    fn create(&self, path: &str, object: &Value) {
        let answer = self.admin.send(&Method::POST, path, Some(object)).unwrap();
        assert!(answer.status.is_success(), "{path}: {}", answer.body);
    }

    /// Returns a kubeconfig with the token of a user.
    fn kubeconfig(&self, user: &str) -> PathBuf {
        let admin = self.server.as_ref().unwrap().kubeconfig();
        let mut config = serde_json::to_value(Kubeconfig::read_from(admin).unwrap()).unwrap();
        config["users"][0]["user"] = json!({ "token": format!("token-{user}") });
        let path = self.folder.path().join(user);
        std::fs::write(&path, config.to_string()).unwrap();
        path
    }

    fn command(&self, case: &Case) -> Command {
        let mut command = Command::new(tools::tenure().unwrap());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.folder.path())
            .env("KUBECONFIG", self.kubeconfig(case.user))
            .env("POD_NAME", "web-0")
            .env("POD_NAMESPACE", "default")
            .env("POD_IP", "10.0.0.7")
            .args([
                "elect",
                "--preflight=fail",
                "--id=me",
                "--lease-duration=4s",
            ])
            .args(["--renew-deadline=2s", "--retry-period=300ms"])
            .arg(format!("--election={}", case.user))
            .args(case.flags);
        command
    }

    fn printed(&self, case: &Case) -> Value {
        let output = self.command(case).arg("--print-rbac").output().unwrap();
        serde_saphyr::from_str(&String::from_utf8_lossy(&output.stdout)).unwrap()
    }

    fn bind(&self, case: &Case, role: &Value) {
        self.create(ROLES, role);
        self.create(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            &json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": { "name": case.user },
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
                    "name": role["metadata"]["name"],
                },
                "subjects": [{
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": case.user,
                }],
            }),
        );
    }
}

/// Returns the single permissions that a role grants.
fn permissions(role: &Value) -> BTreeSet<Permission> {
    let list = |value: &Value| -> Vec<String> {
        let items = value.as_array().cloned().unwrap_or_default();
        items
            .iter()
            .map(|item| item.as_str().unwrap().to_owned())
            .collect()
    };
    let mut all = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        let mut names: Vec<Option<String>> =
            list(&rule["resourceNames"]).into_iter().map(Some).collect();
        if names.is_empty() {
            names.push(None);
        }
        for verb in list(&rule["verbs"]) {
            for name in &names {
                let (group, resource) =
                    (&list(&rule["apiGroups"])[0], &list(&rule["resources"])[0]);
                all.insert((group.clone(), resource.clone(), verb.clone(), name.clone()));
            }
        }
    }
    all
}

/// Leads once and hands over, with the printed role.
fn lead(place: &Place, case: &Case) {
    let mut command = place.command(case);
    command.args(["--events=json"]);
    let mut process = Process::spawn(case.user, command).unwrap();
    process
        .wait_for(Kind::Acquired, Nanos(0), LIMIT)
        .unwrap_or_else(|silence| panic!("{silence}"));
    let routed = poll(LIMIT, || {
        is_routed(&place.admin, "default", case).then_some(())
    });
    assert!(routed.is_some(), "{}: {}", case.user, process.transcript());
    // Long enough for at least one renewal.
    std::thread::sleep(Duration::from_millis(500));
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let released = process.wait_for(Kind::Released, Nanos(0), LIMIT);
    assert!(released.is_ok(), "{}", process.transcript());
    let said = process.transcript();
    assert!(
        !said.contains("forbidden") && !said.contains("WARN"),
        "{}: {said}",
        case.user
    );
}

/// Whether the routing that the flags request is set for the leader.
pub(crate) fn is_routed(admin: &Wire, namespace: &str, case: &Case) -> bool {
    let get = |path: String| admin.get(&path).unwrap().body;
    let core = format!("/api/v1/namespaces/{namespace}");
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices");
    case.flags.iter().all(|flag| match flag.split_once('=') {
        None if *flag == "--label" => {
            let pod = get(format!("{core}/pods/web-0"));
            pod["metadata"]["labels"]["tenure.dev/leader"] == "true"
        }
        None if *flag == "--readiness-gate" => {
            let pod = get(format!("{core}/pods/web-0"));
            let conditions = pod["status"]["conditions"].as_array();
            let leads = |c: &Value| c["type"] == "tenure.dev/leader" && c["status"] == "True";
            conditions.is_some_and(|conditions| conditions.iter().any(leads))
        }
        Some(("--service", name)) => {
            let service = get(format!("{core}/services/{name}"));
            service["spec"]["selector"]["tenure.dev/candidate"] == "web-0"
        }
        Some(("--endpointslice", name)) => {
            let slice = get(format!("{slices}/{name}-tenure"));
            slice["endpoints"][0]["addresses"][0] == "10.0.0.7"
        }
        _ => true,
    })
}

/// Removes the permissions one by one and checks that the preflight reports each.
fn each_is_needed(place: &Place, case: &Case, role: &Value) {
    for (at, rule) in role["rules"].as_array().unwrap().iter().enumerate() {
        for verb in rule["verbs"].as_array().unwrap() {
            let mut less = role.clone();
            let verbs = less["rules"][at]["verbs"].as_array_mut().unwrap();
            verbs.retain(|kept| kept != verb);
            if verbs.is_empty() {
                less["rules"].as_array_mut().unwrap().remove(at);
            }
            let path = format!("{ROLES}/{}", role["metadata"]["name"].as_str().unwrap());
            let put = place.admin.send(&Method::PUT, &path, Some(&less)).unwrap();
            assert!(put.status.is_success(), "{}", put.body);
            let output = place.command(case).stdout(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let resource = rule["resources"][0].as_str().unwrap();
            let missing = format!(
                "missing permissions: {} {resource} in",
                verb.as_str().unwrap()
            );
            assert!(said.contains(&missing), "{}: {missing}: {said}", case.user);
            assert_eq!(output.status.code(), Some(4), "{said}");
        }
    }
}

#[test]
fn sidecar_access_equals_the_printed_role() {
    let mut place = Place::new();
    let mut printed = Vec::new();
    for case in &CASES {
        let role = place.printed(case);
        place.bind(case, &role);
        lead(&place, case);
        printed.push((case, role));
    }
    let recorded = place.folder.path().join("recorded.yaml");
    for (case, role) in &printed {
        each_is_needed(&place, case, role);
    }
    // The server writes the recorded roles when it exits.
    place.server.take();
    let mut read = false;
    for (case, role) in printed {
        let mut used = used(&recorded, case.user);
        // If the watch delivers before the first read, there is no read. Without a watch there are only reads.
        let locks = |(_, resource, verb, name): &Permission| {
            let lock = ["leases", "configmaps", "endpoints"].contains(&resource.as_str());
            lock && verb == "get" && name.as_deref() == Some(case.user)
        };
        read |= used.iter().any(locks);
        used.extend(permissions(&role).into_iter().filter(locks));
        assert_eq!(used, permissions(&role), "{}: used and printed", case.user);
    }
    assert!(read, "no candidate reads a lock");
}

#[test]
fn sidecar_access_of_announced_candidate_is_sufficient_and_each_verb_is_used() {
    let mut place = Place::new();
    let role = place.printed(&ANNOUNCED);
    place.bind(&ANNOUNCED, &role);
    let mut command = place.command(&ANNOUNCED);
    command.args(["--events=json"]);
    let mut process = Process::spawn("announced", command).unwrap();
    let members =
        "/apis/coordination.k8s.io/v1/namespaces/default/leases?labelSelector=tenure.dev/election";
    let renewed = poll(LIMIT, || {
        let list = place.admin.get(members).unwrap().body;
        let spec = &list["items"][0]["spec"];
        (spec["holderIdentity"] == "me" && spec["renewTime"] != spec["acquireTime"]).then_some(())
    });
    assert!(renewed.is_some(), "{}", process.transcript());
    std::thread::sleep(Duration::from_secs(4));
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let said = process.transcript();
    assert!(
        !said.contains("forbidden") && !said.contains("WARN"),
        "{said}"
    );
    let left = place.admin.get(members).unwrap().body;
    assert_eq!(left["items"], json!([]), "{left}");
    each_is_needed(&place, &ANNOUNCED, &role);
    let recorded = place.folder.path().join("recorded.yaml");
    place.server.take();
    let used = used(&recorded, ANNOUNCED.user);
    for verb in ["create", "delete", "list", "update"] {
        let leases = |(_, resource, used, _): &&Permission| resource == "leases" && used == verb;
        assert!(
            used.iter().any(|permission| leases(&permission)),
            "{verb}: {used:?}"
        );
    }
}

/// A leader keeps leading if it may not write the label.
#[test]
fn sidecar_access_to_pods_is_not_needed_to_lead() {
    let place = Place::new();
    let case = CASES.iter().find(|case| case.user == "label").unwrap();
    let mut role = place.printed(case);
    let rules = role["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["resources"][0] != "pods");
    place.bind(case, &role);
    let admin = place.server.as_ref().unwrap().kubeconfig();
    let recorder = Recorder::start(&admin, "Lease", case.user).unwrap();
    let mut command = place.command(case);
    command.args(["--preflight=warn", "--events=json"]);
    let process = Process::spawn("me", command).unwrap();
    let led = process.wait_for(Kind::Acquired, Nanos(0), LIMIT);
    led.unwrap_or_else(|silence| panic!("{silence}"));
    renews_for_a_lease(&recorder, &process);
    assert!(
        !is_routed(&place.admin, "default", case),
        "it was forbidden"
    );
    let said = process.transcript();
    assert!(said.contains("forbidden"), "{said}");
}

/// Returns the permissions that a user used, as recorded by the server. Names are omitted for pods, because a role
/// cannot list the pod names of a Deployment.
fn used(recorded: &Path, user: &str) -> BTreeSet<Permission> {
    let text = std::fs::read_to_string(recorded).unwrap();
    let documents = text
        .split("---\n")
        .filter(|document| !document.trim().is_empty());
    let name = format!("recorded:{user}");
    let role = documents
        .map(|document| serde_saphyr::from_str::<Value>(document).unwrap())
        .find(|role| role["kind"] == "Role" && role["metadata"]["name"] == *name)
        .unwrap_or_else(|| panic!("nothing recorded of {user}: {text}"));
    let all = |(group, resource, verb, name): Permission| {
        let name = name.filter(|_| !resource.starts_with("pods"));
        (group, resource, verb, name)
    };
    permissions(&role).into_iter().map(all).collect()
}
