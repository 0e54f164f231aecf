//! kill -9 in the middle of a load, again and again.
//!
//! The child is this test program, started for one test only. It writes to its own keys and fights
//! over one shared key, and says on standard output what it is about to do and what was answered. A
//! line is one system call, so the order of lines is an order of real time, and the parent has every
//! line that the child got out. From these lines it checks:
//! - no acknowledged write is lost, and of each writer at most the one unanswered write is there;
//! - no revision is seen twice, and all after a restart are above all before it;
//! - compare-and-set on the shared key is linearizable: every version replaced the one before it, and
//!   an operation that began after another was answered comes after it.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::testing::{key, put};
use super::super::{Expected, Object, RedbStore, Store, WriteError};
use super::medium::small;

const DIR: &str = "TENURE_CRASH_DIR";
/// How many children are killed.
const CRASHES: &str = "TENURE_CRASHES";
const WORKERS: usize = 4;
const WRITERS: usize = 6;

fn say(line: &str) {
    std::io::stdout()
        .write_all(format!("\n@{line}\n").as_bytes())
        .unwrap();
    std::io::stdout().flush().unwrap();
}

fn id(object: &Object) -> u64 {
    serde_json::from_slice::<Value>(&object.json).unwrap()["id"]
        .as_u64()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child() {
    let Some(dir) = env::var_os(DIR) else {
        return;
    };
    let store = Arc::new(RedbStore::configured(Path::new(&dir), small()).unwrap());
    say(&format!("start {}", store.revision()));
    let base = store.revision() * 1000;
    let mut tasks = Vec::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let own = key("own", &writer.to_string());
            for n in 0.. {
                let id = base + n * WRITERS as u64 + writer as u64;
                let (name, key) = if n % 3 == 0 {
                    ("shared", &key("all", "shared"))
                } else {
                    ("own", &own)
                };
                let present = store.get(key);
                let from = present.as_deref().map_or(0, self::id);
                let expected = present.map_or(Expected::Absent, |o| Expected::Revision(o.revision));
                say(&format!("try {writer} {name} {id} {from}"));
                match store.write(put(key, expected, json!({"id": id}))).await {
                    Ok(object) => say(&format!("ok {writer} {name} {id} {}", object.revision)),
                    Err(WriteError::Conflict(_)) => say(&format!("no {writer} {name} {id}")),
                    Err(error) => panic!("{error}"),
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// One attempt to replace the version with id `from` (0 is none) by the version with `id`.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    id: u64,
    from: u64,
    began: usize,
    /// When it was answered, and with which revision; a conflict has none.
    answer: Option<(usize, Option<u64>)>,
}

impl Attempt {
    fn revision(&self) -> Option<u64> {
        self.answer?.1
    }
}

#[derive(Default)]
struct History {
    lines: usize,
    /// The highest revision that anyone has heard of.
    highest: u64,
    /// Per key, in order of beginning.
    attempts: BTreeMap<String, Vec<Attempt>>,
}

impl History {
    fn read(&mut self, output: &str) {
        let mut open: HashMap<u64, (String, usize)> = HashMap::new();
        let mut seen = self.highest;
        for line in output.lines().filter_map(|line| line.strip_prefix('@')) {
            self.lines += 1;
            let words: Vec<_> = line.split(' ').collect();
            let number = |at: usize| words.get(at)?.parse::<u64>().ok();
            match words[0] {
                "start" => {
                    let start = number(1).unwrap();
                    assert!(
                        start >= self.highest,
                        "starts at {start} after {}",
                        self.highest
                    );
                }
                "try" => {
                    let (Some(id), Some(from)) = (number(3), number(4)) else {
                        continue;
                    };
                    let name = if words[2] == "own" {
                        words[1]
                    } else {
                        words[2]
                    }
                    .to_owned();
                    let attempts = self.attempts.entry(name.clone()).or_default();
                    open.insert(id, (name, attempts.len()));
                    attempts.push(Attempt {
                        id,
                        from,
                        began: self.lines,
                        answer: None,
                    });
                }
                "ok" | "no" => {
                    let Some(id) = number(3) else { continue };
                    let (name, at) = open.remove(&id).expect("an answer has its attempt");
                    let revision = (words[0] == "ok").then(|| number(4).unwrap());
                    if let Some(revision) = revision {
                        assert!(revision > self.highest, "{revision} again, or from before");
                        seen = seen.max(revision);
                    }
                    let attempts = self.attempts.get_mut(&name).unwrap();
                    attempts[at].answer = Some((self.lines, revision));
                }
                other => panic!("unknown line {other}"),
            }
        }
        self.highest = seen;
    }

    /// Compares what was said with what is there.
    fn check(&mut self, store: &dyn Store) {
        assert!(store.revision() >= self.highest);
        let mut used = HashMap::new();
        for (name, attempts) in &self.attempts {
            let key = if name == "shared" {
                key("all", "shared")
            } else {
                key("own", name.as_str())
            };
            for (revision, id) in versions(attempts, store.get(&key).as_deref()) {
                let twice = used.insert(revision, id);
                assert_eq!(twice, None, "revision {revision} is {id} too");
            }
        }
        self.highest = self.highest.max(store.revision());
    }
}

/// The versions of one key in their order, which must explain every answer; revision to id, as far
/// as revisions are known.
fn versions(attempts: &[Attempt], present: Option<&Object>) -> Vec<(u64, u64)> {
    let by_id: HashMap<u64, &Attempt> = attempts.iter().map(|a| (a.id, a)).collect();
    let acked = attempts.iter().filter(|a| a.revision().is_some()).count();
    let Some(present) = present else {
        assert_eq!(acked, 0, "acknowledged writes are lost");
        return Vec::new();
    };
    // Backwards from what is there: each version names the one that it replaced.
    let mut chain = Vec::new();
    let mut id = id(present);
    while id != 0 {
        let attempt = *by_id
            .get(&id)
            .unwrap_or_else(|| panic!("nobody wrote {id}"));
        assert!(
            !matches!(attempt.answer, Some((_, None))),
            "{attempt:?} was refused"
        );
        chain.push(attempt);
        id = attempt.from;
    }
    let there = chain.iter().filter(|a| a.revision().is_some()).count();
    assert_eq!(
        there, acked,
        "acknowledged writes are not in the chain of versions"
    );
    let last = chain[0].revision();
    assert!(
        last.is_none_or(|last| last == present.revision),
        "{:?}",
        chain[0]
    );

    // Real time: nothing was answered before something with an earlier place began.
    let mut answered = usize::MAX;
    for attempt in &chain {
        assert!(
            attempt.began < answered,
            "{attempt:?} began after its successor was answered"
        );
        answered = attempt.answer.map_or(answered, |(at, _)| at.min(answered));
    }
    let revisions: Vec<_> = chain
        .iter()
        .filter_map(|a| Some((a.revision()?, a.id)))
        .collect();
    assert!(
        revisions.is_sorted_by(|newer, older| newer.0 > older.0),
        "revisions go back"
    );

    // A refusal is right if the version that it expected was replaced before the refusal.
    let successor: HashMap<u64, &Attempt> = chain.iter().map(|a| (a.from, *a)).collect();
    for refused in attempts {
        if let Some((at, None)) = refused.answer {
            let replaced = successor.get(&refused.from).is_some_and(|by| by.began < at);
            assert!(
                replaced,
                "{refused:?} was refused, and nothing was in its way"
            );
        }
    }
    revisions
}

/// When a child is killed.
#[derive(Clone, Copy, Debug)]
enum Life {
    /// So long after it was started, which may be before or while it opens the store.
    FromTheStart(Duration),
    /// So long after its first write may have begun.
    FromTheFirstWrite(Duration),
}

impl Life {
    fn random() -> Self {
        let micros = |most| Duration::from_micros(rand::random_range(0..most));
        if rand::random_ratio(1, 4) {
            Self::FromTheStart(micros(60_000))
        } else {
            Self::FromTheFirstWrite(micros(40_000))
        }
    }
}

/// Runs the child until it is killed; returns what it said.
fn run(dir: &Path, life: Life) -> String {
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "store::tests::crash::child",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let (started, opened) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut output = String::new();
        while stdout.read_line(&mut output).is_ok_and(|read| read > 0) {
            if output.ends_with('\n') && output.contains("@start ") {
                let _ = started.send(());
                break;
            }
        }
        stdout.read_to_string(&mut output).map(|_| output)
    });
    match life {
        Life::FromTheStart(life) => std::thread::sleep(life),
        Life::FromTheFirstWrite(life) => {
            opened
                .recv_timeout(Duration::from_secs(60))
                .expect("the child opens the store");
            std::thread::sleep(life);
        }
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the child ended by itself: {status}");
    reader.join().unwrap().unwrap()
}

/// Half of the stores are in memory, where a child gets much further before it is killed.
fn place(worker: usize) -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if worker.is_multiple_of(2) && memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Kills children on one store until `left` is used up.
fn crash(worker: usize, left: &AtomicUsize) -> History {
    let dir = place(worker);
    let mut history = History::default();
    let take = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    while take().is_ok() {
        history.read(&run(dir.path(), Life::random()));
        // Now and then the next child recovers alone, from a file that nobody has put in order.
        if rand::random_ratio(1, 3) {
            history.check(&RedbStore::configured(dir.path(), small()).unwrap());
        }
    }
    history.check(&RedbStore::configured(dir.path(), small()).unwrap());
    history
}

#[test]
fn kill_minus_nine_loses_nothing_and_repeats_nothing() {
    let crashes = env::var(CRASHES).ok().map_or(1000, |n| n.parse().unwrap());
    let left = AtomicUsize::new(crashes);
    let histories: Vec<History> = std::thread::scope(|scope| {
        let work = |worker| {
            let left = &left;
            scope.spawn(move || crash(worker, left))
        };
        let workers: Vec<_> = (0..WORKERS).map(work).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let attempts: Vec<_> = histories
        .iter()
        .flat_map(|history| history.attempts.values().flatten())
        .collect();
    let count = |wanted: fn(&&&Attempt) -> bool| attempts.iter().filter(wanted).count();
    println!(
        "{crashes} kills: {} writes acknowledged, {} refused, {} unanswered",
        count(|a| a.revision().is_some()),
        count(|a| matches!(a.answer, Some((_, None)))),
        count(|a| a.answer.is_none()),
    );
    assert!(attempts.len() > crashes * 3, "the children hardly wrote");
}

#[test]
fn the_checker_finds_what_it_looks_for() {
    let check = |output: &str, present: Option<(u64, u64)>| {
        let mut history = History::default();
        history.read(output);
        let json = |id: u64| serde_json::to_vec(&json!({"id": id})).unwrap().into();
        let present = present.map(|(revision, id)| Object {
            key: key("all", "shared"),
            revision,
            labels: BTreeMap::new(),
            json: json(id),
        });
        versions(&history.attempts["shared"], present.as_ref())
    };
    let fails = |output: &'static str, present| {
        let result = std::panic::catch_unwind(|| check(output, present));
        assert!(result.is_err(), "accepted: {output}");
    };
    let good = "@start 1\n@try 0 shared 1 0\n@try 1 shared 2 0\n@ok 0 shared 1 2\n@no 1 shared 2\n";
    assert_eq!(check(good, Some((2, 1))), [(2, 1)]);
    fails(good, None);
    fails(good, Some((2, 2)));
    fails(
        "@try 0 shared 1 0\n@try 1 shared 2 0\n@ok 0 shared 1 2\n@ok 1 shared 2 3\n",
        Some((3, 2)),
    );
    fails("@try 0 shared 1 0\n@no 0 shared 1\n", Some((2, 1)));
    fails(
        "@try 0 shared 1 0\n@ok 0 shared 1 5\n@try 0 shared 2 1\n@ok 0 shared 2 4\n",
        Some((4, 2)),
    );
    let unanswered = "@try 0 shared 1 0\n@ok 0 shared 1 2\n@try 0 shared 2 1\n";
    assert_eq!(check(unanswered, Some((2, 1))), [(2, 1)]);
    assert_eq!(check(unanswered, Some((3, 2))), [(2, 1)]);
}
