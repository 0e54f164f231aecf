//! Outlets of the sidecar: labels, hooks, webhook, state file, events. Also the conditions under which it may lead.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_tests::clock::{Nanos, now, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::process::{Process, catches_interrupts};
use tenure_tests::record::Recorder;
use tenure_tests::wire::Wire;

use crate::sidecar::{free_port, sidecar};

const LIMIT: Duration = Duration::from_secs(40);

const QUICK: [&str; 5] = [
    "elect",
    "--election=e",
    "--lease-duration=4s",
    "--renew-deadline=2s",
    "--retry-period=300ms",
];

/// Starts a sidecar whose event lines are read.
fn start(home: &Home, id: &str, flags: &[&str], env: &[(&str, &str)]) -> Process {
    let mut command = home.command();
    command
        .args(QUICK)
        .arg(format!("--id={id}"))
        .arg("--events=json")
        .args(flags)
        .envs(env.iter().copied());
    Process::spawn(id, command).unwrap()
}

fn leads(process: &Process, since: Nanos) {
    let led = process.wait_for(Kind::Acquired, since, LIMIT);
    led.unwrap_or_else(|silence| panic!("{silence}"));
}

fn command(home: &Home, kubeconfig: &Embedded) -> Command {
    let mut command = home.command();
    command.env("KUBECONFIG", kubeconfig.kubeconfig());
    command
}

/// At most one pod has the label of the leader, and the label of a dead leader is removed.
#[test]
fn sidecar_outlets_keep_the_label_on_the_leader_only() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let pods = "/api/v1/namespaces/default/pods";
    for name in ["a", "b"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
        });
        let created = admin.send(&Method::POST, pods, Some(&pod)).unwrap();
        assert!(created.status.is_success(), "{}", created.body);
    }
    let candidate = |pod: &str| {
        let mut command = command(&home, &server);
        command
            .args(QUICK)
            .args(["--label", "--events=json", "--election-namespace=default"]);
        command.env("POD_NAME", pod).arg(format!("--id={pod}"));
        Process::spawn(pod, command).unwrap()
    };
    let label = |pod: &str| {
        let pod = admin.get(&format!("{pods}/{pod}")).unwrap().body;
        pod["metadata"]["labels"]["tenure.dev/leader"]
            .as_str()
            .map(str::to_owned)
    };
    let labels = |a: &str, b: &str| {
        let wanted = (Some(a.to_owned()), Some(b.to_owned()));
        let seen = poll(LIMIT, || (wanted == (label("a"), label("b"))).then_some(()));
        assert!(
            seen.is_some(),
            "{:?} instead of {wanted:?}",
            (label("a"), label("b"))
        );
    };
    let version = admin.get(pods).unwrap().body["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap().to_owned();
    let mut a = candidate("a");
    leads(&a, Nanos(0));
    let b = candidate("b");
    labels("true", "false");
    let killed = now();
    a.kill();
    leads(&b, killed);
    labels("false", "true");
    // Another client changes the label, and it is restored.
    let meddled = json!({ "metadata": { "labels": { "tenure.dev/leader": "false" } } });
    admin
        .send(&Method::PATCH, &format!("{pods}/b"), Some(&meddled))
        .unwrap();
    labels("false", "true");
    b.terminate();
    labels("false", "false");
    // All changes since, in their order: no two pods had the label at the same time.
    let watch = format!("{pods}?watch=true&timeoutSeconds=1&resourceVersion={version}");
    let changes = admin.get(&watch).unwrap().body;
    let mut leaders = BTreeSet::new();
    let mut terms = 0;
    for line in changes.as_str().unwrap().lines() {
        let pod = &serde_json::from_str::<Value>(line).unwrap()["object"];
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        if pod["metadata"]["labels"]["tenure.dev/leader"] == "true" {
            terms += usize::from(leaders.insert(name));
        } else {
            leaders.remove(&name);
        }
        assert!(leaders.len() < 2, "{changes}");
    }
    assert!(terms >= 3, "a, b, and b again: {changes}");
    // A missing pod does not end leadership.
    let recorder = Recorder::start(&server.kubeconfig(), "Lease", "e").unwrap();
    let ghost = candidate("ghost");
    leads(&ghost, Nanos(0));
    renews_for_a_lease(&recorder, &ghost);
}

/// Waits for more renewals than fit into one lease of 4 s with one renewal every 300 ms. A leader that cannot renew
/// does not last that long. Asserts that no term has ended in the meantime.
pub(crate) fn renews_for_a_lease(recorder: &Recorder, leader: &Process) {
    let known = recorder.versions().len();
    let renewed = recorder.wait_for(known + 15, LIMIT, |version| version.holder == leader.name());
    let lost = leader.last_of(&[Kind::Lost, Kind::Released]);
    assert!(
        renewed.is_some() && lost.is_none(),
        "{}",
        leader.transcript()
    );
}

/// The condition is true only on the leader's pod, and the conditions of the kubelet are preserved.
#[test]
fn sidecar_outlets_keep_the_readiness_gate_of_the_leader() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let pods = "/api/v1/namespaces/default/pods";
    let kubelet = json!({ "status": { "conditions": [
        { "type": "ContainersReady", "status": "True" },
        { "type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady" },
    ] } });
    for name in ["a", "b"] {
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "containers": [{ "name": "c", "image": "i" }],
                "readinessGates": [{ "conditionType": "tenure.dev/leader" }],
            },
        });
        let created = admin.send(&Method::POST, pods, Some(&pod)).unwrap();
        assert!(created.status.is_success(), "{}", created.body);
        let path = format!("{pods}/{name}/status");
        let patched = admin.send(&Method::PATCH, &path, Some(&kubelet)).unwrap();
        assert!(patched.status.is_success(), "{}", patched.body);
    }
    let candidate = |pod: &str| {
        let mut command = command(&home, &server);
        // The containers are ready. The pod is not ready before it leads, so the candidate must not wait for that.
        command
            .args(QUICK)
            .args(["--readiness-gate", "--wait-ready", "--events=json"])
            .args(["--health-interval=200ms", "--election-namespace=default"]);
        command.env("POD_NAME", pod).arg(format!("--id={pod}"));
        Process::spawn(pod, command).unwrap()
    };
    let conditions = |pod: &str| {
        let pod = admin.get(&format!("{pods}/{pod}")).unwrap().body;
        let mut conditions: Vec<String> = pod["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|c| format!("{}={}", c["type"], c["status"]).replace('"', ""))
            .collect();
        conditions.sort();
        conditions
    };
    let gates = |a: &str, b: &str| {
        let wanted = [a, b].map(|leads| {
            vec![
                "ContainersReady=True".to_owned(),
                "Ready=False".to_owned(),
                format!("tenure.dev/leader={leads}"),
            ]
        });
        let seen = || [conditions("a"), conditions("b")];
        let so = poll(LIMIT, || (wanted == seen()).then_some(()));
        assert!(so.is_some(), "{:?} instead of {wanted:?}", seen());
    };
    let a = candidate("a");
    leads(&a, Nanos(0));
    let b = candidate("b");
    gates("True", "False");
    let asked = now();
    a.terminate();
    leads(&b, asked);
    gates("False", "True");
    // Another client changes the condition, and it is restored.
    let meddled = json!({ "status": { "conditions": [
        { "type": "ContainersReady", "status": "True" }, { "type": "Ready", "status": "False" },
        { "type": "tenure.dev/leader", "status": "False" },
    ] } });
    let path = format!("{pods}/b/status");
    let patched = admin.send(&Method::PATCH, &path, Some(&meddled)).unwrap();
    assert!(patched.status.is_success(), "{}", patched.body);
    gates("False", "True");
}

/// The slice also follows the leader after the lock was deleted, when the transitions start again at zero.
#[test]
fn sidecar_outlets_slice_follows_tokens_not_transitions() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" },
        "spec": { "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    let path = "/api/v1/namespaces/default/services";
    let made = admin.send(&Method::POST, path, Some(&service)).unwrap();
    assert!(made.status.is_success(), "{}", made.body);
    // An election with many earlier leaders.
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "e" },
        "spec": { "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 40 },
    });
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let made = admin.send(&Method::POST, leases, Some(&lease)).unwrap();
    assert!(made.status.is_success(), "{}", made.body);
    let candidate = |pod: &str, address: &str| {
        let mut command = command(&home, &server);
        command
            .args(QUICK)
            .args(["--endpointslice=web", "--events=json"])
            .args(["--election-namespace=default", &format!("--id={pod}")])
            .env("POD_NAME", pod)
            .env("POD_IP", address);
        Process::spawn(pod, command).unwrap()
    };
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/web-tenure";
    let leads_to = |address: &str| {
        let seen = || admin.get(slice).unwrap().body["endpoints"][0]["addresses"][0].clone();
        let led = poll(LIMIT, || (seen() == address).then_some(()));
        assert!(led.is_some(), "{} instead of {address}", seen());
    };
    let mut a = candidate("a", "10.0.0.1");
    leads_to("10.0.0.1");
    let term = a.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    assert_eq!(term.transitions, Some(41));
    // The leader is killed, and the lock is deleted.
    a.kill();
    let path = format!("{leases}/e");
    let gone = admin.send(&Method::DELETE, &path, None).unwrap();
    assert!(gone.status.is_success(), "{}", gone.body);
    let b = candidate("b", "10.0.0.2");
    let term = b.wait_for(Kind::Acquired, Nanos(0), LIMIT).unwrap();
    assert_eq!(term.transitions, Some(0));
    leads_to("10.0.0.2");
}

fn says(process: &Process, text: &str) {
    let said = poll(LIMIT, || process.transcript().contains(text).then_some(()));
    assert!(said.is_some(), "no {text:?} in\n{}", process.transcript());
}

/// Candidates on two locks elect two leaders; the later candidate prints a warning.
#[test]
fn sidecar_outlets_warn_of_other_locks_of_the_same_election() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let team = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" } });
    let made = admin.send(&Method::POST, "/api/v1/namespaces", Some(&team));
    assert!(made.unwrap().status.is_success());
    let candidate = |id: &str, flags: &[&str]| {
        let mut command = command(&home, &server);
        command
            .args(QUICK)
            .args(["--events=json", &format!("--id={id}")]);
        Process::spawn(id, {
            command.args(flags);
            command
        })
        .unwrap()
    };
    let old = candidate("old", &["--lock=endpoints"]);
    leads(&old, Nanos(0));
    let new = candidate("new", &["--lock=leases"]);
    says(&new, "another lock of this election is in use");
    says(&new, "endpoints default/e");
    says(&new, "start all candidates with --lock=endpointsleases");
    let elsewhere = candidate("elsewhere", &["--election-namespace=team"]);
    says(&elsewhere, "leases default/e");
    says(
        &elsewhere,
        "start all candidates with the same --election-namespace",
    );
    // A part of the candidate's own lock does not count as another lock.
    drop((old, new, elsewhere));
    let both = candidate("both", &["--lock=endpointsleases"]);
    leads(&both, Nanos(0));
    let said = both.transcript();
    assert!(!said.contains("another lock"), "{said}");
}

#[test]
fn sidecar_outlets_write_the_log_to_a_file_if_asked() {
    let home = Home::new();
    let mut process = start(&home, "me", &["--log-file=log", "--log-format=json"], &[]);
    leads(&process, Nanos(0));
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let log = fs::read_to_string(home.path("log")).unwrap();
    let changed = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .any(|line| line["message"] == "leading" && line["leader"] == "me");
    assert!(changed, "{log}");
    let text = process.text().join("\n");
    assert!(!text.contains("leading"), "{text}");
    for (command, code) in [("elect", 2), ("run", 64)] {
        let args = [command, "--election=e", "--log-file=no/such/folder/log"];
        let args = [
            &args[..],
            if command == "run" {
                &["--", "true"]
            } else {
                &[]
            },
        ]
        .concat();
        let output = home.tenure(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("cannot write no/such/folder/log"), "{said}");
    }
}

/// `--compat=strict` has the namespace and the ttl of the old sidecar, regardless of its pod.
#[test]
fn sidecar_outlets_in_strict_mode_behave_like_the_old_sidecar() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let mut command = command(&home, &server);
    command
        .env("POD_NAMESPACE", "team")
        .env("POD_NAME", "web-1")
        .args(["--compat=strict", "--election=e", "--events=json"]);
    let process = Process::spawn("strict", command).unwrap();
    leads(&process, Nanos(0));
    let lease = admin.get("/apis/coordination.k8s.io/v1/namespaces/default/leases/e");
    let lease = lease.unwrap().body;
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 10, "{lease}");
    assert_eq!(lease["spec"]["holderIdentity"], "web-1", "{lease}");
    let outside = home.tenure(&["elect", "--election=e", "--use-cluster-credentials"]);
    let said = String::from_utf8_lossy(&outside.stderr);
    assert_eq!(outside.status.code(), Some(1), "{said}");
    assert!(
        said.contains("needs a pod with a service account"),
        "{said}"
    );
}

#[test]
fn sidecar_outlets_run_hooks_in_order_and_a_slow_one_delays_no_renewal() {
    let home = Home::new();
    // The hook takes longer than the lease and the guard last.
    let hooks = [
        "--on-elected=sleep 6; echo elected $TENURE_FENCING_TOKEN >> hooks",
        "--on-lost=echo lost $TENURE_LOCK_HELD >> hooks",
        "--state-file=state",
    ];
    let mut process = start(&home, "me", &hooks, &[]);
    leads(&process, Nanos(0));
    let state = || -> Option<Value> {
        serde_json::from_str(&fs::read_to_string(home.path("state")).ok()?).ok()
    };
    let leader = poll(LIMIT, || state().filter(|state| state["isLeader"] == true));
    assert_eq!(leader.unwrap()["leader"], "me");
    let elected = poll(LIMIT, || fs::read_to_string(home.path("hooks")).ok());
    let token = elected.unwrap();
    assert!(
        token.starts_with("elected ") && token.trim().len() > 8,
        "{token}"
    );
    assert!(
        process
            .wait_for(Kind::Lost, Nanos(0), Duration::from_millis(1))
            .is_err(),
        "the lease was kept: {}",
        process.transcript()
    );
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let hooks = fs::read_to_string(home.path("hooks")).unwrap();
    assert!(hooks.ends_with("lost false\n"), "{hooks}");
    assert_eq!(state().unwrap()["isLeader"], false);
    // The watch may deliver the free lease before the response to the release arrives.
    let mut events: Vec<_> = process.events().iter().map(|event| event.event).collect();
    events.retain(|kind| *kind != Kind::Observed);
    assert!(
        events.ends_with(&[Kind::Lost, Kind::Released]),
        "{events:?}"
    );
}

#[test]
fn sidecar_outlets_kill_a_hook_that_never_ends_before_the_lease_is_released() {
    let home = Home::new();
    let hook = "--on-lost=echo $$ > hook; sleep 1000";
    let mut process = start(&home, "me", &[hook], &[]);
    leads(&process, Nanos(0));
    process.terminate();
    assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0));
    let pid = fs::read_to_string(home.path("hook")).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
}

#[test]
fn sidecar_outlets_post_changes_to_a_webhook() {
    let home = Home::new();
    let receiver = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("--webhook=http://{}/hook", receiver.local_addr().unwrap());
    let process = start(&home, "me", &[&url], &[]);
    let (mut stream, _) = receiver.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut text = String::new();
    let mut chunk = [0; 4096];
    while !text.contains("\"previous\"") {
        let read = stream.read(&mut chunk).unwrap();
        assert_ne!(read, 0, "{text}");
        text += &String::from_utf8_lossy(&chunk[..read]);
    }
    stream
        .write_all(b"HTTP/1.1 204 No Content\r\n\r\n")
        .unwrap();
    assert!(text.starts_with("POST /hook"), "{text}");
    assert!(text.to_lowercase().contains("x-tenure-term: 0"), "{text}");
    assert!(text.contains(r#""leader":"me""#), "{text}");
    drop(process);
}

#[test]
fn sidecar_outlets_unhealthy_leader_steps_down() {
    let home = Home::new();
    let flags = [
        "--health-file=healthy",
        "--health-interval=100ms",
        "--health-backoff=30s",
    ];
    let sick = start(&home, "sick", &flags, &[]);
    let silent = sick.wait_for(Kind::Acquired, Nanos(0), Duration::from_secs(2));
    assert!(silent.is_err(), "not healthy yet");
    fs::write(home.path("healthy"), "").unwrap();
    leads(&sick, Nanos(0));
    let other = start(&home, "other", &[], &[]);
    fs::remove_file(home.path("healthy")).unwrap();
    leads(&other, Nanos(0));
    assert!(sick.wait_for(Kind::Released, Nanos(0), LIMIT).is_ok());
}

#[test]
fn sidecar_outlets_unhealthy_candidate_leads_after_the_deadlock_grace() {
    let home = Home::new();
    let flags = [
        "--health-cmd=false",
        "--health-interval=100ms",
        "--deadlock-grace=1s",
    ];
    leads(&start(&home, "sick", &flags, &[]), Nanos(0));
}

#[test]
fn sidecar_outlets_dry_run_writes_nothing() {
    let home = Home::new();
    let mut dry = start(&home, "dry", &["--dry-run"], &[]);
    assert!(
        dry.wait_for(Kind::Acquired, Nanos(0), Duration::from_secs(2))
            .is_err()
    );
    let rows = home.tenure(&["status", "-o", "json"]);
    assert_eq!(String::from_utf8_lossy(&rows.stdout).trim(), "[]");
    let leader = start(&home, "leader", &[], &[]);
    leads(&leader, Nanos(0));
    let seen = dry.wait_until("leader", LIMIT, |event| event.leader == "leader");
    assert_eq!(seen.unwrap().event, Kind::Observed);
    dry.terminate();
    assert_eq!(dry.wait(LIMIT).unwrap().code(), Some(0));
}

#[test]
fn sidecar_outlets_probes_and_metrics_have_their_own_addresses() {
    let home = Home::new();
    let (probes, metrics) = (free_port(), free_port());
    let sidecar = sidecar(
        &home,
        &[
            "--election=e",
            "--id=me",
            "--compat=false",
            &format!("--probe-address=127.0.0.1:{probes}"),
            &format!("--metrics-address=127.0.0.1:{metrics}"),
        ],
    );
    sidecar.shows("me");
    assert_eq!(sidecar.get("/metrics").0, 404);
    assert_eq!(sidecar.get("/livez").0, 404);
    assert_eq!(
        sidecar.at(probes, "/livez?verbose").unwrap().1,
        "[+]ping ok\n[+]leaderElection ok\nlivez check passed\n"
    );
    assert_eq!(sidecar.at(probes, "/metrics").unwrap().0, 404);
    let (code, text) = sidecar.at(metrics, "/metrics").unwrap();
    assert_eq!(code, 200);
    let gauge = "# TYPE leader_election_master_status gauge\n";
    assert!(text.contains(gauge), "{text}");
    assert!(
        !text.contains("# EOF"),
        "the client did not request OpenMetrics: {text}"
    );
}

#[test]
fn sidecar_outlets_step_down_on_a_signal() {
    let home = Home::new();
    let first = start(&home, "first", &[], &[]);
    leads(&first, Nanos(0));
    let second = start(&home, "second", &[], &[]);
    assert!(second.wait_for(Kind::Observed, Nanos(0), LIMIT).is_ok());
    let pid = Pid::from_raw(i32::try_from(first.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::USR1).unwrap();
    leads(&second, Nanos(0));
    let lost = first.wait_for(Kind::Released, Nanos(0), LIMIT).unwrap();
    assert!(lost.until.is_some() && lost.token.is_some());
}

#[test]
fn sidecar_outlets_an_unreachable_server_is_exit_code_6_and_an_interrupt_ends_at_once() {
    let home = Home::new();
    // This server accepts connections and never responds.
    let hole = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "x", "cluster": { "server": format!("http://{}", hole.local_addr().unwrap()) } }],
        "users": [{ "name": "x", "user": {} }],
        "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
    });
    fs::write(home.path("kubeconfig"), config.to_string()).unwrap();
    let mut elect = home.command();
    elect.args(QUICK).args([
        "--kubeconfig=kubeconfig",
        "--preflight=off",
        "--startup-timeout=500ms",
    ]);
    let output = elect.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(
        said.contains("cannot read lease default/e within 0.500s"),
        "{said}"
    );
    for (args, expected) in [
        (vec!["elect", "--election=e", "--kubeconfig=kubeconfig"], 0),
        (
            vec![
                "run",
                "--election=e",
                "--kubeconfig=kubeconfig",
                "--",
                "true",
            ],
            130,
        ),
    ] {
        let mut command = home.command();
        command.args(&args);
        let mut hanging = Process::spawn("hanging", command).unwrap();
        let ready = poll(LIMIT, || catches_interrupts(hanging.pid()).then_some(()));
        assert!(ready.is_some(), "{args:?}: {}", hanging.transcript());
        std::thread::sleep(Duration::from_millis(700));
        let asked = now();
        let pid = Pid::from_raw(i32::try_from(hanging.pid()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let ended = hanging.wait(LIMIT).unwrap();
        assert_eq!(ended.code(), Some(expected), "{args:?}");
        let took = now().since(asked);
        // One second, plus the delay of a loaded machine.
        assert!(took < Duration::from_secs(3), "{args:?}: {took:?}");
    }
}
