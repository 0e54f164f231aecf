//! Repeated kill -9 of the whole server under load, as its clients see it: over TLS and HTTP, from other processes. The
//! history of every write is compared with the contents after each restart.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use histories::{History, Present};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tenure_tests::nemesis::seed::{Seeded, of_tests};
use tenure_tests::nemesis::server::Server;
use tenure_tests::wire::{Answer, Wire, lease_path};
use tenure_tests::{Skip, clock, tools};

#[path = "../../crates/apiserver/src/store/tests/histories.rs"]
mod histories;

const KILLS: usize = 50;
const WRITERS: usize = 6;
const LIMIT: Duration = Duration::from_secs(240);

/// The log of the writers between two restarts of the server.
#[derive(Default)]
struct Log(Mutex<String>);

impl Log {
    fn say(&self, line: std::fmt::Arguments<'_>) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(text, "@{line}").unwrap();
    }

    fn text(&self) -> String {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

#[test]
fn kill_minus_nine_under_load_loses_no_write_and_repeats_no_revision() {
    if Skip::unless(tools::tenure()).is_none() {
        return;
    }
    let mut server = Server::embedded().unwrap();
    let mut seeded = Seeded::new(of_tests());
    let mut history = History::default();
    let ids = AtomicU64::new(1);
    for kill in 0..KILLS {
        // Some servers are killed before their first request.
        if seeded.percent(20) {
            std::thread::sleep(seeded.time(Duration::ZERO..Duration::from_millis(150)));
            server.kill();
        } else {
            server.wait_until_ready().unwrap();
            let kubeconfig = server.kubeconfig();
            let log = Log::default();
            check(&mut history, &kubeconfig, &log);
            let life = seeded.time(Duration::ZERO..Duration::from_millis(150));
            std::thread::scope(|scope| {
                for writer in 0..WRITERS {
                    let (kubeconfig, log, ids) = (&kubeconfig, &log, &ids);
                    scope.spawn(move || write(writer, kubeconfig, log, ids));
                }
                let written = clock::poll(LIMIT, || log.text().contains("\n@ok ").then_some(()));
                std::thread::sleep(life);
                server.kill();
                assert!(written.is_some(), "nothing was written before kill {kill}");
            });
            history.read(&log.text());
        }
        server.start().unwrap();
    }
    server.wait_until_ready().unwrap();
    check(&mut history, &server.kubeconfig(), &Log::default());
    let counts = history.counts();
    _ = std::io::Write::write_fmt(
        &mut std::io::stderr(),
        format_args!("{KILLS} kills of the server: {counts:?}\n"),
    );
    assert!(counts.acknowledged > KILLS / 2, "{counts:?}");
}

/// Compares the log with the contents of the server, and starts the next period.
fn check(history: &mut History, kubeconfig: &Path, log: &Log) {
    let wire = Wire::connect(kubeconfig).unwrap();
    let list = wire.get(&lease_path("default", "")).unwrap().body;
    let revision = number(&list["metadata"]["resourceVersion"]);
    let leases = list["items"].as_array().unwrap();
    let present: BTreeMap<&str, Present> = leases
        .iter()
        .map(|lease| (lease["metadata"]["name"].as_str().unwrap(), version(lease)))
        .collect();
    history.check(revision, |name| present.get(object(name).as_str()).copied());
    log.say(format_args!("start {revision}"));
}

/// Returns the path of the Lease with this name in histories.
fn object(name: &str) -> String {
    match name {
        "shared" => name.to_owned(),
        writer => format!("writer-{writer}"),
    }
}

fn version(lease: &Value) -> Present {
    Present {
        id: number(&lease["spec"]["holderIdentity"]),
        revision: number(&lease["metadata"]["resourceVersion"]),
    }
}

fn number(text: &Value) -> u64 {
    text.as_str().unwrap().parse().unwrap()
}

/// Replaces the Lease that it reads until the server is gone. One time in three it uses the Lease that all writers
/// share.
fn write(writer: usize, kubeconfig: &Path, log: &Log, ids: &AtomicU64) {
    let Ok(wire) = Wire::connect(kubeconfig) else {
        return;
    };
    for n in 0_u64.. {
        let (key, name) = match n % 3 {
            0 => ("shared", object("shared")),
            _ => ("own", object(&writer.to_string())),
        };
        let path = lease_path("default", &name);
        let Ok(found) = wire.get(&path) else {
            return;
        };
        let id = ids.fetch_add(1, Relaxed);
        let Some((from, answer)) = replace(&wire, &found, &path, &name, id, |from| {
            log.say(format_args!("try {writer} {key} {id} {from}"));
        }) else {
            return;
        };
        match answer.status {
            StatusCode::OK | StatusCode::CREATED => {
                let revision = version(&answer.body).revision;
                log.say(format_args!("ok {writer} {key} {id} {revision}"));
            }
            StatusCode::CONFLICT => log.say(format_args!("no {writer} {key} {id}")),
            _ => panic!("{name} from {from} to {id}: {answer:?}"),
        }
    }
}

/// Replaces the found Lease by one with this id. Returns the id of the found one and the response, if there is one.
fn replace(
    wire: &Wire,
    found: &Answer,
    path: &str,
    name: &str,
    id: u64,
    begin: impl FnOnce(u64),
) -> Option<(u64, Answer)> {
    let mut lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name}, "spec": {"holderIdentity": id.to_string()},
    });
    let (from, method, path) = match found.status {
        StatusCode::NOT_FOUND => (0, Method::POST, lease_path("default", "")),
        StatusCode::OK => {
            lease["metadata"]["resourceVersion"] =
                found.body["metadata"]["resourceVersion"].clone();
            (version(&found.body).id, Method::PUT, path.to_owned())
        }
        _ => panic!("{path}: {found:?}"),
    };
    begin(from);
    let answer = wire.send(&method, &path, Some(&lease)).ok()?;
    Some((from, answer))
}
