//! Ranked candidates: real processes of `tenure elect` and `tenure run` that hand over to better candidates.

use std::time::Duration;

use tenure_tests::candidate::Election;
use tenure_tests::clock::{self, Nanos, poll};
use tenure_tests::event::{Event, Kind};
use tenure_tests::process::Process;

use crate::seeing::Place;

const LIMIT: Duration = Duration::from_secs(60);
const STARTED: [Kind; 2] = [Kind::Acquired, Kind::Observed];

/// Tolerance for the time at which an event is printed.
const PRINTED: Duration = Duration::from_millis(500);

fn quick(place: &Place, name: &str) -> Election {
    Election {
        lease_duration: Duration::from_secs(2),
        renew_deadline: Duration::from_secs(1),
        retry_period: Duration::from_millis(200),
        ..place.election(name)
    }
}

/// Starts a candidate with a priority. Members of these elections are read every 1.5 s.
fn ranked(election: &Election, id: &str, priority: i32, flags: &[&str]) -> Process {
    let priority = format!("--priority={priority}");
    let all = [&[priority.as_str()], flags].concat();
    let candidate = election.tenure(id, &all).unwrap();
    let started = candidate.wait_until("the first event", LIMIT, |event| {
        STARTED.contains(&event.event)
    });
    started.unwrap_or_else(|silence| panic!("{silence}"));
    candidate
}

fn acquired(candidate: &Process) -> Event {
    let event = candidate.wait_for(Kind::Acquired, Nanos(0), LIMIT);
    event.unwrap_or_else(|silence| panic!("{silence}"))
}

fn number(event: &Event) -> u64 {
    event.token.as_ref().unwrap().parse().unwrap()
}

#[test]
fn preference_leader_hands_over_to_the_best_candidate_after_the_time() {
    let place = Place::new();
    let web = quick(&place, "web");
    let auto = ["--failback=auto", "--failback-after=3s"];
    let a = ranked(&web, "a", 1, &auto);
    let first = acquired(&a);
    let _c = ranked(&web, "c", 1, &auto);
    let low = ranked(&web, "d", -1, &auto);
    let b = ranked(&web, "b", 5, &auto);
    let second = acquired(&b);
    assert!(number(&second) > number(&first), "the token grows");
    let ended = a.wait_for(Kind::Released, first.t, LIMIT).unwrap();
    let said = a.transcript();
    assert!(said.contains("another holder was preferred"), "{said}");
    assert!(ended.t.since(first.t) + PRINTED >= Duration::from_secs(3));
    // The work of `a` ended before `b` led.
    assert!(ended.until.unwrap() <= second.t, "{}", a.transcript());
    assert!(low.last_of(&[Kind::Acquired]).is_none());
    let rows = place.json(&["status", "-o", "json"]);
    let candidates = rows[0]["candidates"].as_array().unwrap();
    let shown = candidates.iter().find(|shown| shown["identity"] == "b");
    assert_eq!(shown.unwrap()["priority"], 5, "{rows}");
}

#[test]
fn preference_leader_without_automatic_failback_keeps_its_term() {
    let place = Place::new();
    let pairs = ["never", "manual"].map(|failback| {
        let election = quick(&place, failback);
        let flags = [&*format!("--failback={failback}"), "--failback-after=1s"];
        let low = ranked(&election, "low", 1, &flags);
        acquired(&low);
        (low, ranked(&election, "high", 2, &flags))
    });
    // Several reads of the members.
    std::thread::sleep(Duration::from_secs(6));
    for (low, high) in &pairs {
        assert!(
            low.last_of(&[Kind::Lost, Kind::Released]).is_none(),
            "{}",
            low.transcript()
        );
        assert!(high.last_of(&[Kind::Acquired]).is_none());
    }
    let said = place.stdout(&["step-down", "manual", "--to", "high"]);
    assert_eq!(said, "low -> high\n", "a person can hand over");
}

#[test]
fn preference_unhealthy_leader_hands_over_without_waiting_and_gets_it_back() {
    let place = Place::new();
    let web = quick(&place, "web");
    let healthy = tempfile::NamedTempFile::new().unwrap();
    let path = healthy.path().to_owned();
    let health = format!("--health-file={}", path.display());
    // The time is longer than the test waits for the healthy standby.
    let auto = ["--failback=auto", "--failback-after=5s"];
    let flags = [
        &auto[..],
        &[&health, "--health-interval=100ms", "--health-backoff=1s"],
    ]
    .concat();
    let a = ranked(&web, "a", 5, &flags);
    acquired(&a);
    let b = ranked(&web, "b", 1, &auto);
    healthy.close().unwrap();
    let sick = clock::now();
    let took = acquired(&b);
    assert!(
        took.t.since(sick) < Duration::from_secs(5),
        "{}",
        b.transcript()
    );
    std::fs::write(&path, "").unwrap();
    let back = a.wait_for(Kind::Acquired, took.t, LIMIT).unwrap();
    assert!(back.t.since(took.t) + PRINTED >= Duration::from_secs(5));
}

#[test]
fn preference_flapping_candidate_causes_one_hand_over_per_time() {
    let place = Place::new();
    let web = quick(&place, "web");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("healthy");
    let health = format!("--health-file={}", path.display());
    let auto = ["--failback=auto", "--failback-after=4s"];
    let a = ranked(&web, "a", 1, &auto);
    acquired(&a);
    let flags = [
        &auto[..],
        &[&health, "--health-interval=100ms", "--health-backoff=1s"],
    ]
    .concat();
    let _b = ranked(&web, "b", 5, &flags);
    for _ in 0..6 {
        std::fs::write(&path, "").unwrap();
        std::thread::sleep(Duration::from_millis(2_500));
        std::fs::remove_file(&path).unwrap();
        std::thread::sleep(Duration::from_millis(1_000));
    }
    let mut began = None;
    for event in a.events() {
        match event.event {
            Kind::Acquired => began = Some(event.t),
            Kind::Released => {
                let lasted = event.t.since(began.take().unwrap());
                assert!(
                    lasted + PRINTED >= Duration::from_secs(4),
                    "{}",
                    a.transcript()
                );
            }
            _ => {}
        }
    }
    std::fs::write(&path, "").unwrap();
    let leads = poll(LIMIT, || {
        let rows = place.json(&["status", "-o", "json"]);
        (rows[0]["holder"] == "b").then_some(())
    });
    assert!(leads.is_some(), "a stable candidate gets the lease");
}

#[test]
fn preference_free_lease_goes_to_the_better_candidate() {
    const ROUNDS: usize = 5;
    let place = Place::new();
    let won = (0..ROUNDS).filter(|round| {
        let election = quick(&place, &format!("web-{round}"));
        let mut leader = ranked(&election, "leader", 9, &[]);
        acquired(&leader);
        let high = ranked(&election, "high", 2, &[]);
        let low = ranked(&election, "low", 1, &[]);
        // `low` has read the members of both.
        let known = poll(LIMIT, || {
            let rows = place.json(&["status", "-o", "json"]);
            let row = rows
                .as_array()?
                .iter()
                .find(|row| row["name"] == election.name)?;
            (row["candidates"].as_array()?.len() == 3).then_some(())
        });
        assert!(known.is_some());
        std::thread::sleep(Duration::from_secs(2));
        leader.terminate();
        leader.wait(LIMIT).unwrap();
        let taken = poll(LIMIT, || {
            [&high, &low]
                .into_iter()
                .find_map(|candidate| candidate.last_of(&[Kind::Acquired]).map(|event| event.me))
        });
        taken.as_deref() == Some("high")
    });
    // A head start of milliseconds decides unless the machine is busy. Without it, half of the rounds would succeed.
    let won = won.count();
    assert!(won * 2 > ROUNDS, "{won} of {ROUNDS}");
}

#[test]
fn preference_run_hands_over_after_its_command_has_ended() {
    let place = Place::new();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let run = |id: &str, priority: &str| {
        let mut command = place.command();
        let script = "trap 'echo end $0 >> $1; exit 0' TERM; echo begin $0 >> $1; while :; do sleep 0.1; done";
        command.args([
            "run",
            "--require-cluster",
            "--election=job",
            "--ttl=4s",
            "--id",
            id,
        ]);
        command.args([
            "--priority",
            priority,
            "--failback=auto",
            "--failback-after=1s",
        ]);
        command.args(["--on-lost=rejoin", "--", "sh", "-c", script, id]);
        command.arg(&log);
        Process::spawn(id, command).unwrap()
    };
    let written = || std::fs::read_to_string(&log).unwrap_or_default();
    let wait = |text: &str, process: &Process| {
        let found = poll(LIMIT, || (written() == text).then_some(()));
        assert!(found.is_some(), "{}{}", written(), process.transcript());
    };
    let a = run("a", "-3");
    wait("begin a\n", &a);
    let b = run("b", "3");
    wait("begin a\nend a\nbegin b\n", &b);
    let slots = [
        "run",
        "--election=s",
        "--priority=1",
        "--slots=2",
        "--",
        "true",
    ];
    assert_eq!(place.tenure(&slots).status.code(), Some(64));
}

#[test]
fn preference_combinations_without_effect_are_refused() {
    let place = Place::new();
    let refused = |flags: &[&str], why: &str| {
        let all = [&["elect", "web", "--preflight=off"], flags].concat();
        let output = place.tenure(&all);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(why),
            "{flags:?}: {said}"
        );
    };
    refused(
        &["--failback=auto", "--release-on-exit=false"],
        "automatic failback needs a leader that releases its lock",
    );
    refused(
        &["--priority=1", "--failback-after=500ms"],
        "the time before a failback must be between 1 s and 24 h",
    );
}
