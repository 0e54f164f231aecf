//! Candidates that announce themselves: real processes of `tenure elect` and `tenure run`, and the commands that show
//! them.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_tests::candidate::Election;
use tenure_tests::clock::{Nanos, poll};
use tenure_tests::event::Kind;
use tenure_tests::process::Process;

use crate::seeing::Place;
use crate::sidecar::{free_port, request};

const LIMIT: Duration = Duration::from_secs(60);

/// Starts a candidate that announces itself. Members of this election die after 4 s.
fn announced(election: &Election, id: &str, flags: &[&str]) -> Process {
    let all = [&["--announce"], flags].concat();
    let candidate = election.tenure(id, &all).unwrap();
    let started = candidate.wait_until("the first event", LIMIT, |event| {
        [Kind::Acquired, Kind::Observed].contains(&event.event)
    });
    started.unwrap_or_else(|silence| panic!("{silence}"));
    candidate
}

fn quick(place: &Place) -> Election {
    Election {
        lease_duration: Duration::from_secs(2),
        renew_deadline: Duration::from_secs(1),
        retry_period: Duration::from_millis(200),
        ..place.election("web")
    }
}

/// Returns identities and readiness from `/v1/candidates`.
fn known(port: u16) -> Option<Vec<(String, bool)>> {
    let (code, body) = request(port, "GET", "/v1/candidates")?;
    let answer: Value = serde_json::from_str(&body).ok()?;
    assert!([200, 503].contains(&code), "{code}: {body}");
    let candidates = answer["candidates"].as_array()?;
    let pair = |candidate: &Value| {
        let identity = candidate["identity"].as_str().unwrap().to_owned();
        (identity, candidate["ready"].as_bool().unwrap())
    };
    Some(candidates.iter().map(pair).collect())
}

#[track_caller]
fn becomes(port: u16, expected: &[(&str, bool)]) {
    let expected: Vec<(String, bool)> = expected
        .iter()
        .map(|(identity, ready)| ((*identity).to_owned(), *ready))
        .collect();
    let shown = poll(LIMIT, || known(port).filter(|known| *known == expected));
    assert!(shown.is_some(), "{expected:?}, got {:?}", known(port));
}

#[test]
fn candidates_are_shown_until_they_die_and_orders_for_dead_ones_fail() {
    let place = Place::new();
    let web = quick(&place);
    let port = free_port();
    let http = format!("--http=127.0.0.1:{port}");
    let healthy = tempfile::NamedTempFile::new().unwrap();
    let health = format!("--health-file={}", healthy.path().display());
    let _a = announced(&web, "a", &[&http, "--zone=zone-a"]);
    let mut b = announced(&web, "b", &[&health, "--health-interval=200ms"]);
    let mut c = announced(&web, "c", &[]);
    becomes(port, &[("a", true), ("b", true), ("c", true)]);
    let (_, body) = request(port, "GET", "/v1/candidates").unwrap();
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&answer["election"], &answer["leader"]),
        (&json!("web"), &json!("a"))
    );
    let own = &answer["candidates"][0];
    assert_eq!(own["zone"], "zone-a");
    assert_eq!(own["address"], format!("http://127.0.0.1:{port}/"));
    assert!(
        own["version"].is_string() && own["since"].is_string(),
        "{own}"
    );
    let (_, metrics) = request(port, "GET", "/metrics").unwrap();
    let line = "tenure_election_candidates{name=\"web\",ready=\"true\"} 3";
    assert!(metrics.contains(line), "{metrics}");

    // Members are not elections, and readers show them with the election.
    let rows = place.json(&["status", "-o", "json"]);
    assert_eq!(rows.as_array().unwrap().len(), 1, "{rows}");
    let shown = |text: &str| {
        let wide = poll(LIMIT, || {
            let wide = place.stdout(&["status", "-o", "wide"]);
            wide.contains(text).then_some(())
        });
        assert!(
            wide.is_some(),
            "no {text:?}: {}",
            place.stdout(&["status", "-o", "wide"])
        );
    };
    shown("a, b, c\n");
    healthy.close().unwrap();
    becomes(port, &[("a", true), ("b", false), ("c", true)]);
    shown("a, b (not ready: ");

    let steps = |to: &str| {
        let output = place.tenure(&["step-down", "web", "--to", to]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    };
    let said = steps("b");
    assert!(
        said.contains("candidate b cannot take over default/web: it is not ready: "),
        "{said}"
    );
    c.kill();
    becomes(port, &[("a", true), ("b", false)]);
    assert_eq!(
        steps("c"),
        "tenure: candidate c cannot take over default/web: no living candidate announces this identity; nothing was changed; ready candidates: none\n"
    );
    shown("no standby");
    let holder = &place.json(&["status", "-o", "json"])[0]["holder"];
    assert_eq!(holder, "a", "no order was written");

    let _d = announced(&web, "d", &[]);
    becomes(port, &[("a", true), ("b", false), ("d", true)]);
    let order = ["step-down", "web", "--to", "d", "--for", "10s"];
    assert_eq!(place.stdout(&order), "a -> d\n");
    becomes(port, &[("a", false), ("b", false), ("d", true)]);
    b.terminate();
    b.wait(LIMIT).unwrap();
    becomes(port, &[("a", true), ("d", true)]);
}

#[test]
fn order_names_any_candidate_if_none_announces_itself() {
    let place = Place::new();
    let web = place.election("web");
    let _a = place.leader(&web, "a");
    let _b = place.follower(&web, "b");
    assert_eq!(place.stdout(&["step-down", "web", "--to", "b"]), "a -> b\n");
    let port = free_port();
    let http = format!("--http=127.0.0.1:{port}");
    let _c = place.follower(&web, "c");
    let d = web.tenure("d", &[&http]).unwrap();
    d.wait_for(Kind::Observed, Nanos(0), LIMIT).unwrap();
    let (code, body) = request(port, "GET", "/v1/candidates").unwrap();
    assert_eq!(
        (code, &*body),
        (404, "this sidecar runs without --announce\n")
    );
}

#[test]
fn runner_that_announces_itself_is_shown_and_removes_its_member() {
    let place = Place::new();
    let mut command = place.command();
    command.args([
        "run",
        "--require-cluster",
        "--election=job",
        "--id=me",
        "--announce",
    ]);
    command.args(["--ttl=4s", "--", "sleep", "600"]);
    let mut runner = Process::spawn("me", command).unwrap();
    let candidates = || place.json(&["status", "-o", "json"])[0]["candidates"].clone();
    let shown = poll(LIMIT, || {
        (candidates()[0]["identity"] == "me").then_some(())
    });
    assert!(shown.is_some(), "{}", runner.transcript());
    runner.terminate();
    runner.wait(LIMIT).unwrap();
    assert_eq!(candidates(), Value::Null, "its member was deleted");
    let slots = place.tenure(&[
        "run",
        "--election=s",
        "--announce",
        "--slots=2",
        "--",
        "true",
    ]);
    assert_eq!(slots.status.code(), Some(64));
}
