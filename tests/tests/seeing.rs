//! `tenure status`, `history`, `step-down`, `pause`, `resume` and `doctor` with elections of real processes.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::candidate::Election;
use tenure_tests::clock::{self, Nanos, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::process::Process;
use tenure_tests::tools;
use tenure_tests::wire::{Wire, lease_path};

const LIMIT: Duration = Duration::from_secs(40);

/// A server, and the command that uses it.
pub(crate) struct Place {
    server: Embedded,
    tenure: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            server: Embedded::start().unwrap(),
            tenure: tools::tenure().unwrap(),
        }
    }

    pub(crate) fn election(&self, name: &str) -> Election {
        Election::new(self.server.kubeconfig(), name).quick()
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.tenure);
        command.arg("--kubeconfig").arg(self.server.kubeconfig());
        command.env("TERM", "xterm-256color");
        command
    }

    pub(crate) fn tenure(&self, args: &[&str]) -> Output {
        self.command().args(args).output().unwrap()
    }

    pub(crate) fn stdout(&self, args: &[&str]) -> String {
        let output = self.tenure(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(args)).unwrap()
    }

    /// Starts a candidate and waits until it leads.
    pub(crate) fn leader(&self, election: &Election, id: &str) -> Process {
        let leader = election.tenure(id, &[]).unwrap();
        leader.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
        leader
    }

    /// Starts a candidate that follows.
    pub(crate) fn follower(&self, election: &Election, id: &str) -> Process {
        let follower = election.tenure(id, &[]).unwrap();
        follower.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
        follower
    }
}

#[test]
fn status_shows_the_holder_of_each_election() {
    let place = Place::new();
    let web = place.election("web");
    let _a = place.leader(&web, "a");
    let rows = place.json(&["status", "-o", "json"]);
    let row = &rows[0];
    assert_eq!((&row["name"], &row["holder"]), (&"web".into(), &"a".into()));
    assert_eq!(
        (&row["state"], &row["lock"]),
        (&"held".into(), &"leases".into())
    );
    assert_eq!(row["leaseDurationSeconds"], 5);
    let number = |key: &str| row[key].as_f64().unwrap();
    assert!((0.0..5.0).contains(&number("validForSeconds")), "{row}");
    assert!(number("renewedAgoSeconds") >= 0.0 && number("heldForSeconds") >= 0.0);
    assert_eq!(
        (&row["skewed"], &row["flapping"]),
        (&false.into(), &false.into())
    );
    let table = place.stdout(&["status", "-A"]);
    assert!(table.starts_with("NAMESPACE   NAME"), "{table}");
    assert!(!table.contains('\x1b'), "output to a pipe has no colours");
    let wide = place.stdout(&["status", "-o", "wide"]);
    assert!(wide.contains("LEASE") && wide.contains("5s"), "{wide}");
    let yaml = place.stdout(&["status", "-o", "yaml"]);
    assert!(yaml.contains("holder: \"a\""), "{yaml}");
    let nobody = place.tenure(&["status", "nobody"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("election nobody does not exist in"));
}

#[test]
fn status_that_watches_prints_every_change_of_leader() {
    let place = Place::new();
    let web = place.election("web");
    let a = place.leader(&web, "a");
    let mut command = place.command();
    command.args(["status", "-w"]);
    let watching = Process::spawn("status", command).unwrap();
    let shows = |text: &str| {
        let seen = poll(LIMIT, || {
            let lines = watching.text();
            lines.iter().any(|line| line.contains(text)).then_some(())
        });
        assert!(seen.is_some(), "no {text:?} in {:?}", watching.text());
    };
    shows("a        held");
    let _b = place.follower(&web, "b");
    a.terminate();
    shows("b        held");
}

#[test]
fn history_shows_every_term_with_its_holder_and_reason() {
    let place = Place::new();
    let web = place.election("web");
    let mut a = place.leader(&web, "a");
    let b = place.follower(&web, "b");
    let asked = clock::now();
    assert_eq!(
        place.stdout(&["step-down", "web", "--for", "1s"]),
        "a -> b\n"
    );
    b.wait_for(Kind::Acquired, asked, LIMIT).unwrap();
    b.terminate();
    a.wait_for(Kind::Acquired, asked, LIMIT).unwrap();
    // The Event of a term is written after its start, so a leader that is killed earlier writes none.
    let written = poll(LIMIT, || {
        let report = place.json(&["history", "web", "-o", "json"]);
        (report["terms"].as_array()?.len() == 3).then_some(())
    });
    assert!(written.is_some(), "{}", place.stdout(&["history", "web"]));
    let killed = a.kill();
    let c = election_after(&web, "c", killed);
    let known = poll(LIMIT, || {
        let report = place.json(&["history", "web", "-o", "json"]);
        let open = report["terms"].as_array()?.last()?["to"].is_null();
        (open && report["terms"].as_array()?.len() == 4).then_some(report)
    });
    let report = known.unwrap_or_else(|| panic!("{}", place.stdout(&["history", "web"])));
    let terms = report["terms"].as_array().unwrap();
    let holders: Vec<&str> = terms
        .iter()
        .map(|t| t["holder"].as_str().unwrap())
        .collect();
    assert_eq!(holders, ["a", "b", "a", "c"]);
    let ended = |i: usize| terms[i]["ended"].as_str().unwrap_or_default();
    assert_eq!(ended(0), "an operator ordered it to step down");
    assert_eq!(ended(1), "it was shut down");
    assert_eq!(ended(2), "crashed or cut off", "{report}");
    // The term ended with its lease, which is before the next one.
    let seconds = |i: usize, key: &str| terms[i][key].as_str().unwrap()[..19].to_owned();
    assert!(seconds(2, "from") < seconds(2, "to") && seconds(2, "to") <= seconds(3, "from"));
    assert_eq!(ended(3), "");
    let token = |i: usize| terms[i]["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(token(0) < token(1) && token(1) < token(2) && token(2) < token(3));
    assert_eq!(report["earlierTerms"], 0);
    // The same with more columns, and in machine-readable form.
    let wide = place.stdout(&["history", "web", "-o", "wide"]);
    assert!(wide.contains("VACANT") && !place.stdout(&["history", "web"]).contains("VACANT"));
    let row = wide
        .lines()
        .find(|line| line.contains("it was shut down"))
        .unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    let micros = cells[0].split_once('.').unwrap().1;
    assert_eq!(micros.len(), "123456Z".len(), "{wide}");
    assert!(cells[3].ends_with('s') && cells[4] == "b", "{wide}");
    let yaml = place.stdout(&["history", "web", "-o", "yaml"]);
    let yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!(yaml["terms"].as_array().unwrap().len(), 4);
    // An election that does not exist is reported.
    let kubectl = place.tenure(&["history", "nobody"]);
    assert_eq!(kubectl.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&kubectl.stderr).contains("does not exist"));
    drop(c);
}

/// Starts a candidate that takes over from a killed one.
fn election_after(election: &Election, id: &str, killed: Nanos) -> Process {
    let next = election.tenure(id, &[]).unwrap();
    next.wait_for(Kind::Acquired, killed, LIMIT).unwrap();
    next
}

#[test]
fn step_down_hands_over_to_the_named_candidate() {
    let place = Place::new();
    let web = place.election("web");
    let _a = place.leader(&web, "a");
    let _followers = ["b", "c", "d"].map(|id| place.follower(&web, id));
    assert_eq!(place.stdout(&["step-down", "web", "--to", "c"]), "a -> c\n");
    for order in ["step-down", "pause", "resume"] {
        let missing = place.tenure(&[order, "nothing"]);
        assert_eq!(missing.status.code(), Some(1), "{order}");
        assert_eq!(
            String::from_utf8_lossy(&missing.stderr),
            "tenure: election default/nothing with a leases lock does not exist; run `tenure status -A` to list \
             elections\n",
            "{order}"
        );
    }
}

/// A leader that steps down for a time stays away for that time, even if there is no other candidate.
#[test]
fn step_down_for_a_time_excludes_the_former_leader() {
    let place = Place::new();
    let web = place.election("web");
    let a = place.leader(&web, "a");
    let line = ["step-down", "web", "--for", "8s", "--no-wait"];
    assert_eq!(place.stdout(&line), "");
    let released = a.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    let again = a.wait_for(Kind::Acquired, released.t, LIMIT).unwrap();
    let away = again.t.since(released.t);
    // The time counts from the order, which was written before the release.
    assert!(away > Duration::from_secs(4), "{away:?}");
}

#[test]
fn paused_election_is_not_acquired() {
    let place = Place::new();
    let web = place.election("web");
    let a = place.leader(&web, "a");
    let b = place.follower(&web, "b");
    assert!(place.stdout(&["pause", "web"]).starts_with("paused web"));
    let paused = clock::now();
    a.terminate();
    let state = || place.json(&["status", "web", "-o", "json"])[0].clone();
    let released = poll(LIMIT, || (state()["holder"] == "").then_some(()));
    assert!(
        released.is_some(),
        "a holder that ends releases the lease even while paused"
    );
    assert!(
        b.wait_for(Kind::Acquired, paused, Duration::from_secs(2))
            .is_err()
    );
    assert_eq!(
        (&state()["state"], &state()["holder"]),
        (&"paused".into(), &"".into())
    );
    assert_eq!(place.stdout(&["resume", "web"]), "resumed web\n");
    b.wait_for(Kind::Acquired, paused, LIMIT).unwrap();
}

#[test]
fn doctor_reports_no_problem_in_a_healthy_cluster() {
    let place = Place::new();
    let web = place.election("web");
    let _a = place.leader(&web, "a");
    let report = place.json(&["doctor", "--observe", "4s", "-o", "json"]);
    assert_eq!(report["healthy"], true, "{report:#}");
    let find = |check: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings
            .iter()
            .find(|f| f["check"] == check)
            .unwrap()
            .clone()
    };
    assert_eq!(find("timing")["figures"]["toleratedOutageSeconds"], 8.0);
    assert_eq!(find("containment")["figures"]["processTree"], true);
    let latency = &find("latency")["figures"];
    let number = |key: &str| latency[key].as_f64().unwrap();
    assert!(number("p50Millis") > 0.0 && number("p50Millis") <= number("p99Millis"));
    assert!(latency["suggested"]["leaseSeconds"].as_f64().unwrap() >= 1.0);
    assert_eq!(find("identity")["figures"]["judged"], 1, "{report:#}");
    let short = |form: &str| place.stdout(&["doctor", "--observe=0s", "--samples=2", "-o", form]);
    assert!(short("wide").contains("p50Millis: ") && !short("table").contains("p50Millis"));
    let yaml: Value = serde_saphyr::from_str(&short("yaml")).unwrap();
    assert_eq!(yaml["healthy"], true, "{yaml:#}");
    let rows: Value = serde_saphyr::from_str(&place.stdout(&["status", "-o", "yaml"])).unwrap();
    assert_eq!(rows[0]["holder"], "a");
}

/// These durations are sufficient even for a slow machine.
const DOCTOR: [&str; 7] = [
    "doctor",
    "--samples=2",
    "--lease-duration=200s",
    "--renew-deadline=150s",
    "--retry-period=30s",
    "-o",
    "json",
];

/// Elections of all lock kinds are found, regardless of `--lock`.
#[test]
fn doctor_finds_elections_of_every_lock_kind() {
    let place = Place::new();
    let mut web = place.election("web");
    web.lock = "configmaps";
    let _a = place.leader(&web, "a");
    let report = place.json(&[&DOCTOR[..], &["--observe=0s"]].concat());
    assert_eq!(report["healthy"], true, "{report:#}");
    let levels: Vec<&Value> = report["findings"].as_array().unwrap().iter().collect();
    let well = levels.iter().all(|finding| {
        let skipped = finding["check"] == "identity" && finding["level"] == "skipped";
        finding["level"] == "ok" || skipped
    });
    assert!(well, "{report:#}");
}

#[test]
fn doctor_reports_problems() {
    let place = Place::new();
    let timing = [
        "doctor",
        "--lease-duration",
        "15s",
        "--renew-deadline",
        "14s",
        "--retry-period",
        "11s",
    ];
    let output = place.tenure(&timing);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAIL     timing") && text.contains("must fit into"),
        "{text}"
    );
}

#[test]
fn doctor_finds_two_processes_with_one_identity() {
    // client-go mistakes the renewals of a twin for its own. Two processes that renew in step cannot be distinguished from
    // one, so the twin may be started more than once.
    let place = Place::new();
    let web = place.election("web");
    let first = web.client_go("same", &[]).unwrap();
    first.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    let found = (0..5).any(|_| {
        let twin = web.client_go("same", &[]).unwrap();
        twin.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
        let output = place.tenure(&["doctor", "web", "--observe", "6s", "-o", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let identity = findings.iter().find(|f| f["check"] == "identity").unwrap();
        identity["level"] == "fail" && output.status.code() == Some(1)
    });
    assert!(found);
}

/// Starts a server. Returns a kubeconfig of a user without permissions.
fn with_a_stranger() -> (Embedded, tempfile::NamedTempFile) {
    use tenure_apiserver::auth::User;
    use tenure_apiserver::server::Server;
    let stranger = User {
        name: "stranger".into(),
        groups: vec!["system:authenticated".into()],
        ..User::admin()
    };
    let server = Embedded::start_with(Server::builder().token("t0ken", stranger)).unwrap();
    let admin = std::fs::read_to_string(server.kubeconfig()).unwrap();
    let mut config: Vec<String> = Vec::new();
    for line in admin.lines() {
        if line.contains("client-key-data") {
            continue;
        }
        match line.contains("client-certificate-data") {
            true => config.push("    token: \"t0ken\"".into()),
            false => config.push(line.into()),
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config.join("\n")).unwrap();
    (server, file)
}

/// The printed role of candidates is sufficient for all their operations. `doctor` reports exactly the permissions that
/// are missing.
#[test]
fn doctor_accepts_the_printed_role() {
    let (server, file) = with_a_stranger();
    let tenure = tools::tenure().unwrap();
    let flags = [
        "elect",
        "--election=web",
        "--election-namespace=default",
        "--print-rbac",
    ];
    let role = Command::new(&tenure).args(flags).output().unwrap();
    let role: Value = serde_saphyr::from_str(&String::from_utf8_lossy(&role.stdout)).unwrap();
    let binding = serde_json::json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "web" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenure-web" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "stranger" }],
    });
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    for (plural, object) in [("roles", &role), ("rolebindings", &binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{plural}");
        let made = admin
            .send(&http::Method::POST, &path, Some(object))
            .unwrap();
        assert!(made.status.is_success(), "{}", made.body);
    }
    // Before the lock exists, and while it is held.
    let web = Election::new(file.path().to_owned(), "web").quick();
    let mut leader = None;
    for _ in 0..2 {
        let output = Command::new(&tenure)
            .arg("--kubeconfig")
            .arg(file.path())
            .args(DOCTOR)
            .args(["web", "--observe=1s"])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let exists = leader.is_some();
        assert_eq!(report["healthy"], exists, "{report:#}");
        for finding in report["findings"].as_array().unwrap() {
            let summary = finding["summary"].as_str().unwrap();
            let all = summary
                .starts_with("to see elections (status, top, history): missing permissions: list");
            let expected: &[&str] = match finding["check"].as_str().unwrap() {
                "access" if all => &["warn"],
                "elections" if !exists => &["fail"],
                // A second is too short to judge a holder.
                "identity" => &["skipped"],
                _ => &["ok"],
            };
            assert!(
                expected.contains(&finding["level"].as_str().unwrap()),
                "{report:#}"
            );
        }
        leader = leader.or_else(|| {
            let leader = web.tenure("a", &[]).unwrap();
            leader.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
            Some(leader)
        });
    }
    drop(leader);
}

#[test]
fn doctor_names_the_verb_that_is_missing() {
    let (_server, file) = with_a_stranger();
    let output = Command::new(tools::tenure().unwrap())
        .arg("--kubeconfig")
        .arg(file.path())
        .args(["doctor", "web", "--samples", "2"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in [
        "to campaign: missing permissions: get leases, list leases, watch leases, update leases, create leases",
        "verbs: [get, list, watch, update, patch]",
        "resourceNames: [\"web\"]",
        "to steer (step-down, pause): missing permissions: patch leases",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn status_marks_flapping_elections_and_clock_skew() {
    let place = Place::new();
    let web = place.election("web");
    let (a, b) = (place.leader(&web, "a"), place.follower(&web, "b"));
    // Leadership alternates between the two.
    for (from, to) in [(&a, &b), (&b, &a), (&a, &b), (&b, &a)] {
        let asked = clock::now();
        let order = ["step-down", "web", "--to", to.name(), "--for", "1s"];
        place.stdout(&order);
        to.wait_for(Kind::Acquired, asked, LIMIT)
            .unwrap_or_else(|silence| panic!("{} to {}: {silence}", from.name(), to.name()));
    }
    // Events are written asynchronously.
    let flapping = poll(LIMIT, || {
        let rows = place.json(&["status", "web", "-o", "json"]);
        (rows[0]["flapping"] == true).then(|| rows[0]["recentTerms"].clone())
    });
    assert!(flapping.is_some_and(|terms| terms.as_u64() >= Some(4)));
    let table = place.stdout(&["status", "web"]);
    assert!(table.contains("flapping ("), "{table}");
    drop((a, b));
    // A holder whose clock is an hour ahead.
    let admin = Wire::connect(&place.server.kubeconfig()).unwrap();
    let path = lease_path("default", "web");
    let later = Command::new("date")
        .args(["-u", "-d", "1 hour", "+%Y-%m-%dT%H:%M:%S.000000Z"])
        .output();
    let later = String::from_utf8(later.unwrap().stdout).unwrap();
    let ahead = json!({ "spec": {
        "holderIdentity": "fast", "leaseDurationSeconds": 15, "renewTime": later.trim(),
    } });
    let patched = admin
        .send(&http::Method::PATCH, &path, Some(&ahead))
        .unwrap();
    assert_eq!(patched.status, 200, "{}", patched.body);
    let rows = place.json(&["status", "web", "-o", "json"]);
    assert_eq!(rows[0]["skewed"], true, "{rows}");
    let table = place.stdout(&["status", "web"]);
    assert!(
        table.contains("clock skew?") && table.contains("in the future?"),
        "{table}"
    );
    let report = place
        .tenure(&[&DOCTOR[..], &["--observe=0s"]].concat())
        .stdout;
    let report: Value = serde_json::from_slice(&report).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let clock = findings.iter().find(|finding| finding["check"] == "clock");
    let clock = clock.unwrap_or_else(|| panic!("{report}"));
    assert_eq!(clock["level"], "warn", "{clock}");
    assert!(
        clock["summary"]
            .as_str()
            .unwrap()
            .contains("renewal times of fast"),
        "{clock}"
    );
}
