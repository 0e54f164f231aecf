//! The files for Prometheus and Grafana in `deploy/`, checked with promtool and with a Prometheus that scrapes real processes.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::clock::poll;
use tenure_tests::home::Home;
use tenure_tests::process::Process;
use tenure_tests::storage::{Served, claim, until};
use tenure_tests::{Skip, tools};

use crate::server_storage::abilities;
use crate::sidecar::free_port;

const LIMIT: Duration = Duration::from_secs(120);

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

/// Prefixes of the metrics that the rules use.
const PREFIXES: [&str; 3] = ["tenure_", "leader_election_", "apiserver_"];

fn deploy(file: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    folder.join(file)
}

/// Returns all rules.
fn rules() -> Vec<Value> {
    let text = std::fs::read_to_string(deploy("prometheus/rules.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&text).unwrap();
    let groups = file["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .map(|group| group["rules"].as_array().unwrap());
    rules.flatten().cloned().collect()
}

/// Returns the names of the metrics in an expression.
fn metrics(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix)));
    metrics.map(str::to_owned).collect()
}

/// Returns the title and an expression of each query of the dashboard, with values for the variables of Grafana.
fn queries() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(deploy("grafana/tenure.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let mut query = target["expr"].as_str().unwrap().to_owned();
            for (variable, value) in [
                ("$__rate_interval", "30s"),
                ("$election", ".*"),
                ("$server", ".*"),
                ("$driver", ".*"),
            ] {
                query = query.replace(variable, value);
            }
            assert!(!query.contains('$'), "{title}: {query}");
            found.push((title.to_owned(), query));
        }
    }
    found
}

#[test]
fn monitoring_rules_are_valid_and_pass_their_tests() {
    let Some(promtool) = Skip::unless(tools::prometheus("promtool")) else {
        return;
    };
    for args in [
        ["check", "rules", "prometheus/rules.yaml"],
        ["test", "rules", "prometheus/rules.test.yaml"],
    ] {
        let output = Command::new(&promtool)
            .args(args)
            .current_dir(deploy(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}{err}");
    }
}

#[test]
fn monitoring_rules_explain_themselves_and_each_has_a_test() {
    let tests = std::fs::read_to_string(deploy("prometheus/rules.test.yaml")).unwrap();
    for rule in rules() {
        let alert = rule["alert"].as_str().unwrap();
        // One test covers all alerts of the server.
        let tested =
            tests.contains(&format!("\"{alert}\"")) || tests.contains(&format!(": {alert}\n"));
        assert!(tested, "{alert} has no test");
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].is_string(), "{alert}: {text}");
        }
        let severity = rule["labels"]["severity"].as_str();
        assert!(
            ["critical", "warning"].contains(&severity.unwrap()),
            "{alert}"
        );
        assert!(
            !metrics(rule["expr"].as_str().unwrap()).is_empty(),
            "{alert}"
        );
    }
}

/// A Prometheus on a free port, with its data in a temporary folder.
struct Prometheus {
    process: Process,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Scrapes these ports of loopback every second.
    fn start(program: &Path, ports: &[u16]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let targets: Vec<String> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [deploy("prometheus/rules.yaml")],
            "scrape_configs": [
                { "job_name": "tenure", "static_configs": [{ "targets": targets }] },
            ],
        });
        // JSON is YAML, too.
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let port = free_port();
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let process = Process::spawn("prometheus", command).unwrap();
        Self {
            process,
            port,
            _folder: folder,
        }
    }

    /// Returns the data of a response; `None` if there is none.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        // Version 1.0 has no chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let body: Value = serde_json::from_str(body).ok()?;
        assert_eq!(body["status"], "success", "{path}: {body}");
        Some(body["data"].clone())
    }

    /// Returns whether the answer to a query has a number.
    fn has_numbers(&self, query: &str) -> bool {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.get(&format!("/api/v1/query?query={encoded}"));
        let samples = data.and_then(|data| data["result"].as_array().cloned());
        let mut samples = samples.into_iter().flatten();
        samples.any(|sample| {
            sample["value"][1]
                .as_str()
                .is_some_and(|value| value != "NaN")
        })
    }
}

/// Starts a candidate that serves its metrics.
fn candidate(home: &Home, kubeconfig: &Path, election: &str, port: u16) -> Process {
    let mut command = home.command();
    command
        .env("KUBECONFIG", kubeconfig)
        .args(["elect", "-n", "default", "--announce"])
        .args(["--lease-duration=4s", "--renew-deadline=2s"])
        .arg("--retry-period=300ms")
        .arg(format!("--election={election}"))
        .arg(format!("--http=127.0.0.1:{port}"));
    Process::spawn(election, command).unwrap()
}

/// Provisions a claim of one class, fails to provision a claim of another class, and deletes the first volume.
async fn provision(served: &Served) {
    for (name, script) in [("good", json!({})), ("bad", json!({ "code": "INTERNAL" }))] {
        let class = json!({
            "metadata": { "name": name }, "provisioner": abilities().name,
            "parameters": { "script": script.to_string() },
        });
        served.api.create(CLASSES, &class).await.unwrap();
        let claim = claim(name, name);
        served.api.create(CLAIMS, &claim).await.unwrap();
    }
    let path = format!("{CLAIMS}/good");
    until("the claim bound", async || {
        let claim = served.api.get(&path).await.unwrap()?;
        (claim["status"]["phase"] == "Bound").then_some(())
    })
    .await;
    served.api.delete(&path).await.unwrap();
}

/// No panel needs a fault to have data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn monitoring_panels_show_data_and_rules_use_existing_metrics() {
    let Some(program) = Skip::unless(tools::prometheus("prometheus")) else {
        return;
    };
    let home = Home::new();
    let ports: Vec<u16> = (0..6).map(|_| free_port()).collect();
    let [api, controllers, first, second, lonely, provisioner] = ports[..] else {
        panic!("six ports");
    };
    let audit = home.path("audit.log");
    let served = Served::start(&[
        &format!("--insecure-listen=127.0.0.1:{api}"),
        // Prometheus has no token.
        "--authorization-mode=AlwaysAllow",
        &format!("--metrics-address=127.0.0.1:{controllers}"),
        &format!("--audit-log={}", audit.display()),
    ])
    .await
    .unwrap();
    let _driver = served.driver(abilities()).unwrap();
    let http = format!("--http-endpoint=127.0.0.1:{provisioner}");
    let provisions = served.provisioner(&[&http]).unwrap();
    let kubeconfig = served.kubeconfig();
    // This candidate has no API server.
    let nowhere = home.path("nowhere");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    let line = text.lines().find(|line| line.contains("server: ")).unwrap();
    let (before, _) = line.split_once("server: ").unwrap();
    let gone = format!("{before}server: https://127.0.0.1:1");
    tenure_tests::home::write_secret(&nowhere, text.replace(line, &gone));
    let fleet = [
        candidate(&home, &kubeconfig, "fleet", first),
        candidate(&home, &kubeconfig, "fleet", second),
        candidate(&home, &nowhere, "lonely", lonely),
    ];
    let prometheus = Prometheus::start(&program, &ports);
    let up = poll(LIMIT, || {
        prometheus.has_numbers("sum(up) == 6").then_some(())
    });
    assert!(up.is_some(), "{}", prometheus.process.transcript());
    provision(&served).await;

    let said = || {
        let fleet = fleet.iter().map(Process::transcript);
        fleet.collect::<String>() + &provisions.process.transcript()
    };
    for (title, query) in queries() {
        let shows = poll(LIMIT, || prometheus.has_numbers(&query).then_some(()));
        assert!(shows.is_some(), "{title}: no data for {query}\n{}", said());
    }
    for rule in rules() {
        for metric in metrics(rule["expr"].as_str().unwrap()) {
            let exists = poll(LIMIT, || prometheus.has_numbers(&metric).then_some(()));
            assert!(exists.is_some(), "{}: no metric {metric}", rule["alert"]);
        }
    }
    let groups = prometheus.get("/api/v1/rules").unwrap()["groups"].clone();
    let loaded = groups.as_array().unwrap().iter();
    let loaded: Vec<&Value> = loaded
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert_eq!(loaded.len(), rules().len());
    for rule in loaded {
        assert_eq!(rule["health"], "ok", "{rule}");
    }
}
