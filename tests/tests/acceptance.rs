//! Acceptance list of the command, items 1 to 5 and 9: drop-in, hand-over, start, mixed fleets, release, durations.
//! `acceptance_run` contains item 6, `acceptance_tokens` item 7. docs/book/reference/command.md has the whole table.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use http::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_tests::candidate::{Election, Fleet};
use tenure_tests::clock::{self, Nanos, poll};
use tenure_tests::embedded::Embedded;
use tenure_tests::event::Kind;
use tenure_tests::home::Home;
use tenure_tests::nemesis::proxy::{Gate, Proxy};
use tenure_tests::process::Process;
use tenure_tests::real::{Peer, available};
use tenure_tests::record::Recorder;
use tenure_tests::wire::{Wire, lease_path};
use tenure_tests::{Skip, tools};

use crate::sidecar::{Sidecar, free_port, sidecar};

const LIMIT: Duration = Duration::from_secs(120);

/// Command lines of the sidecar in real deployments, with free ports. The old image put the host name before the
/// arguments of its users.
const COMMAND_LINES: [(&str, &str); 6] = [
    (
        "--election=elect-nginx-deploy --http=0.0.0.0:4444",
        "default",
    ),
    ("--election=example --http=localhost:4040", "default"),
    (
        "--election=app --http=localhost:4040 --election-namespace=team",
        "team",
    ),
    (
        "--election=kuryr-controller --http=0.0.0.0:16401 --election-namespace=kube-system --ttl=5s",
        "kube-system",
    ),
    (
        "--election=vault-agent-injector-leader --election-namespace=team --http=0.0.0.0:4040 --ttl=60s",
        "team",
    ),
    (
        "-election=old-book -http=localhost:4040 --use-cluster-credentials=false",
        "default",
    ),
];

/// Returns the whole response, head and body.
fn answer(port: u16, method: &str, path: &str) -> Option<(String, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.to_lowercase(), body.to_owned()))
}

#[test]
fn acceptance_01_command_lines_in_use_start_unchanged_and_answer_as_before() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let team = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "team" } });
    let made = admin.send(&Method::POST, "/api/v1/namespaces", Some(&team));
    assert!(made.unwrap().status.is_success());
    for (line, namespace) in COMMAND_LINES {
        for (name, first) in [("leader-elector", None), ("/server", Some("--id=web-1"))] {
            let port = free_port();
            let args = line.split(' ').map(|arg| match arg.rsplit_once(':') {
                Some((host, _)) if arg.contains("http=") => format!("{host}:{port}"),
                _ => arg.to_owned(),
            });
            let mut command = home.command();
            command
                .arg0(name)
                .env("KUBECONFIG", server.kubeconfig())
                .env("POD_NAME", "web-1")
                .args(first)
                .args(args);
            let mut process = Process::spawn(line, command).unwrap();
            // The client in the old README does the same: request, parse, compare with the host name.
            let leads = poll(LIMIT, || {
                let (_, body) = answer(port, "GET", "/")?;
                let body: Value = serde_json::from_str(&body).ok()?;
                (body["name"] == "web-1").then_some(())
            });
            assert!(leads.is_some(), "{line}: {}", process.transcript());
            for path in ["/", "/x"] {
                let (head, body) = answer(port, "GET", path).unwrap();
                assert!(head.starts_with("http/1.1 200 "), "{line} {path}: {head}");
                assert!(head.contains("content-length: 16"), "{head}");
                assert_eq!(body, r#"{"name":"web-1"}"#, "{line} {path}");
            }
            let (head, body) = answer(port, "HEAD", "/").unwrap();
            assert!(head.starts_with("http/1.1 200 "), "{head}");
            assert_eq!(body, "", "HEAD has no body");
            let election = line.split(' ').next().unwrap();
            let election = election.rsplit_once('=').unwrap().1;
            let lease = admin.get(&lease_path(namespace, election)).unwrap();
            assert_eq!(lease.body["spec"]["holderIdentity"], "web-1", "{line}");
            let said = poll(LIMIT, || {
                let text = process.text();
                text.contains(&"web-1 is the leader".to_owned())
                    .then_some(())
            });
            assert!(said.is_some(), "{line}: {}", process.transcript());
            process.terminate();
            assert_eq!(process.wait(LIMIT).unwrap().code(), Some(0), "{line}");
        }
    }
}

#[test]
fn acceptance_01_the_last_of_two_ids_counts_as_it_did() {
    let home = Home::new();
    let sidecar = sidecar(
        &home,
        &["--election=e", "--id=of-the-image", "--id=of-the-user"],
    );
    sidecar.shows("of-the-user");
}

/// Asserts that the fastest of a few rounds meets the promised time, because the machine may slow down a single round.
fn within(what: &str, promised: Duration, mut round: impl FnMut() -> Duration) {
    let mut best = Duration::MAX;
    for _ in 0..5 {
        best = best.min(round());
        if best <= promised {
            return;
        }
    }
    panic!("{what}: {best:?} at best, promised are {promised:?}");
}

#[test]
fn acceptance_02_every_replica_shows_the_next_leader_in_time() {
    let home = Home::new();
    let start = |name: &str| {
        let id = format!("--id={name}");
        let lease = ["--lease-duration=3s", "--renew-deadline=1500ms"];
        let args = [&lease[..], &["--retry-period=300ms", "--election=e", &id]].concat();
        (name.to_owned(), sidecar(&home, &args))
    };
    let mut replicas: Vec<(String, Sidecar)> = Vec::new();
    for name in ["r-0", "r-1", "r-2"] {
        replicas.push(start(name));
        replicas[replicas.len() - 1].1.shows("r-0");
    }
    let mut next = 3;
    let mut round = |how: Signal| {
        // All replicas agree on a leader. It ends, and all others name another one.
        let named = |(_, replica): &(String, Sidecar)| {
            let (_, body) = replica.request("GET", "/")?;
            let body: Value = serde_json::from_str(&body).ok()?;
            Some(body["name"].as_str()?.to_owned()).filter(|name| !name.is_empty())
        };
        let agreed = |replicas: &[(String, Sidecar)], not: &str| {
            let mut names = replicas.iter().map(named);
            let first = names.next()??;
            let same = names.all(|name| name.as_deref() == Some(&first));
            (same && first != not).then_some(first)
        };
        let leader = poll(LIMIT, || agreed(&replicas, "")).expect("a leader");
        let at = replicas.iter().position(|(name, _)| *name == leader);
        let (_, gone) = replicas.remove(at.unwrap());
        let since = clock::now();
        gone.signal(how);
        poll(LIMIT, || agreed(&replicas, &leader)).expect("another leader");
        let took = clock::now().since(since);
        replicas.push(start(&format!("r-{next}")));
        next += 1;
        took
    };
    let lease = Duration::from_secs(3);
    within("SIGKILL", lease + Duration::from_secs(1), || {
        round(Signal::KILL)
    });
    within("SIGTERM", Duration::from_millis(500), || {
        round(Signal::TERM)
    });
}

/// Responses are so slow that all replicas have read the absent lock before the first one creates it.
#[test]
fn acceptance_03_replicas_that_create_the_lock_at_once_all_stay() {
    let home = Home::new();
    let server = Embedded::start().unwrap();
    let admin = Wire::connect(&server.kubeconfig()).unwrap();
    let proxy = Proxy::start(&server.kubeconfig()).unwrap();
    let kubeconfig = format!("--kubeconfig={}", proxy.kubeconfig().display());
    let round = |lock: &str, election: &str| {
        let before = refused_creations(&admin);
        proxy.set(Gate::Open, Gate::Slow(Duration::from_millis(500)));
        let (lock, election) = (format!("--lock={lock}"), format!("--election={election}"));
        let mut replicas: Vec<Sidecar> = ["x", "y", "z"]
            .iter()
            .map(|id| {
                let id = format!("--id={id}");
                let args = ["--preflight=off", &kubeconfig, &lock, &election, &id];
                sidecar(&home, &args)
            })
            .collect();
        let made = poll(LIMIT, || {
            let mut names = replicas.iter().map(|r| r.request("GET", "/"));
            names
                .any(|name| name.is_some_and(|(_, body)| body != NOBODY))
                .then_some(())
        });
        assert!(made.is_some(), "{lock}");
        proxy.heal();
        let agreed = poll(LIMIT, || {
            let mut names = replicas.iter().map(|r| r.request("GET", "/"));
            let first = names.next()??;
            let same = names.all(|name| name.as_ref() == Some(&first));
            (same && first.1 != NOBODY).then_some(())
        });
        assert!(agreed.is_some(), "{lock}");
        for replica in &mut replicas {
            assert!(replica.child.try_wait().unwrap().is_none(), "{lock}");
        }
        refused_creations(&admin) > before
    };
    for lock in tenure_tests::scenarios::interop::LOCKS {
        // A replica that reads later sees the lock that another one created, so several rounds may be needed.
        let raced = (0..5).any(|n| round(lock, &format!("{lock}-{n}")));
        assert!(
            raced,
            "{lock}: no two replicas created the lock at the same time"
        );
    }
}

const NOBODY: &str = r#"{"name":""}"#;

/// Returns the number of creates that the server rejected because the object existed.
fn refused_creations(admin: &Wire) -> u64 {
    let metrics = admin.get("/metrics").unwrap().body;
    let lines = metrics.as_str().unwrap().lines().filter(|line| {
        line.starts_with("apiserver_request_total{")
            && line.contains(r#"verb="POST""#)
            && line.contains(r#"code="409""#)
    });
    let count = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
    lines.filter_map(count).sum()
}

#[test]
fn acceptance_03_a_busy_port_and_an_empty_election_end_with_one_line() {
    let home = Home::new();
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("--http={}", busy.local_addr().unwrap());
    let cases: [(&[&str], i32, &str); 4] = [
        (&["--election=e", "--id=x", &address], 5, "cannot listen on"),
        (&["--election=", "--id=x"], 2, "must not be empty"),
        (&["--id=x"], 2, "--election"),
        (&["--election=e", "--id="], 2, "must not be empty"),
    ];
    for (args, expected, text) in cases {
        let mut command = home.command();
        command.arg0("leader-elector").args(args);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(expected), "{args:?}: {said}");
        let ours: Vec<&str> = said
            .lines()
            .filter(|line| !line.contains("the local server at"))
            .collect();
        assert_eq!(ours.len(), 1, "{args:?}: {said}");
        assert!(ours[0].contains(text), "{args:?}: {said}");
    }
}

/// `apiserver_interop` and `real_interop` test client-go and tenure on every lock kind. This test uses the old sidecar.
#[test]
fn acceptance_04_with_old_sidecars_on_endpoints_there_is_one_holder_and_no_lost_count() {
    let server = Embedded::start().unwrap();
    let mut election = Election::new(server.kubeconfig(), "mixed");
    election.lock = "endpoints";
    election.lease_duration = Duration::from_secs(4);
    election.renew_deadline = Duration::from_secs(2);
    election.retry_period = Duration::from_secs(1);
    let recorder = Recorder::start(&server.kubeconfig(), "Endpoints", "mixed").unwrap();
    let mut fleet = Fleet::default();
    fleet.add(election.old_sidecar("old-0", &[]).unwrap());
    let mut leader = fleet.next_leader(Nanos(0), None, LIMIT).unwrap().0;
    for round in 1..=4 {
        let (successor, process) = match leader.starts_with("old") {
            true => {
                let id = format!("tenure-{round}");
                let process = election.tenure(&id, &[]).unwrap();
                (id, process)
            }
            false => {
                let id = format!("old-{round}");
                let process = election.old_sidecar(&id, &[]).unwrap();
                (id, process)
            }
        };
        fleet.add(process);
        let seen = fleet
            .member(&successor)
            .wait_until("sight of the leader", LIMIT, |event| {
                event.event == Kind::Observed && event.leader == leader
            });
        seen.unwrap_or_else(|silence| panic!("{silence}"));
        let since = clock::now();
        // Tenure releases once, which the old sidecar does not notice, and is killed once.
        match round {
            2 => fleet.member(&leader).terminate(),
            _ => _ = fleet.member(&leader).kill(),
        }
        let (next, _) = fleet.next_leader(since, Some(&leader), LIMIT).unwrap();
        assert_eq!(next, successor);
        leader = next;
    }
    let history = fleet.history();
    assert_eq!(history.overlaps(clock::now()), [], "two leaders");
    let versions = recorder.versions();
    for pair in versions.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        let taken = after.holder.starts_with("tenure") && before.holder != after.holder;
        let ours = before.holder.starts_with("tenure") && !after.holder.starts_with("old");
        if taken {
            assert_eq!(after.transitions, before.transitions + 1, "{versions:?}");
        } else if ours {
            assert!(after.transitions >= before.transitions, "{versions:?}");
        }
    }
    let ours = versions.iter().any(|v| v.holder.starts_with("tenure"));
    let theirs = versions.iter().any(|v| v.holder.starts_with("old"));
    assert!(ours && theirs, "{versions:?}");
}

#[test]
fn acceptance_05_a_release_is_what_client_go_writes_and_waits_for() {
    let programs = available(&[Peer::Elector]).and(tools::tenure());
    if Skip::unless(programs).is_none() {
        return;
    }
    let server = Embedded::start().unwrap();
    let election = Election::new(server.kubeconfig(), "released").quick();
    let recorder = Recorder::start(&server.kubeconfig(), "Lease", "released").unwrap();
    let mut fleet = Fleet::default();
    fleet.add(election.client_go("go-0", &[]).unwrap());
    fleet.next_leader(Nanos(0), None, LIMIT).unwrap();
    fleet.add(election.tenure("ours", &[]).unwrap());
    let since = clock::now();
    fleet.member("go-0").terminate();
    fleet.next_leader(since, Some("go-0"), LIMIT).unwrap();
    fleet.add(election.client_go("go-1", &[]).unwrap());
    let seen = |event: &tenure_tests::event::Event| event.leader == "ours";
    let sight = fleet.member("go-1").wait_until("sight", LIMIT, seen);
    sight.unwrap_or_else(|silence| panic!("{silence}"));
    let known = recorder.versions().len();
    let since = clock::now();
    fleet.member("ours").terminate();
    let released = recorder.wait_for(known, LIMIT, |version| version.holder.is_empty());
    let released = released.expect("a release");
    assert_eq!((released.lease_seconds, released.transitions), (1, 1));
    let (next, at) = fleet.next_leader(since, Some("ours"), LIMIT).unwrap();
    assert_eq!(next, "go-1");
    let took = at.since(since);
    // The next attempt follows within 2.2 retry periods, whereas an expiry takes the whole lease.
    assert!(took < election.lease_duration, "{took:?}");
    let last = recorder.wait_for(known, LIMIT, |version| version.holder == "go-1");
    assert_eq!(last.expect("the next term").transitions, 2);
}

#[test]
fn acceptance_09_durations_without_a_margin_are_refused_and_the_drop_in_warns() {
    let home = Home::new();
    let tight = [
        "--lease-duration=15s",
        "--renew-deadline=14s",
        "--retry-period=10s",
    ];
    for (command, code) in [
        (&["run", "--election=e"][..], 64),
        (&["elect", "--election=e"], 3),
    ] {
        let mut args = [command, &tight[..]].concat();
        if code == 64 {
            args.extend(["--", "true"]);
        }
        let output = home.tenure(&args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("must fit into lease duration 15s"), "{said}");
    }
    let mut command = home.command();
    command
        .arg0("leader-elector")
        .args(["--election=e", "--id=me"]);
    let process = Process::spawn("drop-in", {
        command.args(tight);
        command
    })
    .unwrap();
    let said = |text: &str| {
        let said = poll(LIMIT, || process.transcript().contains(text).then_some(()));
        assert!(said.is_some(), "no {text:?} in {}", process.transcript());
    };
    said("must fit into lease duration 15s");
    said("me is the leader");
}
