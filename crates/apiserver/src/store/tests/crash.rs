//! Kills a process with SIGKILL while it writes, many times, and checks the store after each kill.
//!
//! The child process is this test program with a filter for one test. Its writers update their own keys and compete for
//! one shared key. They print every attempt and every result. A line is one system call, so lines are in real-time
//! order and none is lost. [`History`] checks the lines.

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
use super::histories::{Counts, History, Present};
use super::medium::small;

const DIR: &str = "TENURE_CRASH_DIR";
/// Environment variable with the number of children to kill.
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

/// Time at which a child is killed.
#[derive(Clone, Copy, Debug)]
enum Life {
    /// The child is killed this long after its start, possibly before its store is open.
    FromTheStart(Duration),
    /// The child is killed this long after it has opened its store.
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

/// Runs a child, kills it, and returns its output.
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
                .expect("the child did not open the store");
            std::thread::sleep(life);
        }
    }
    child.kill().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), None, "the child ended by itself: {status}");
    reader.join().unwrap().unwrap()
}

/// Creates a directory for a store. Half of the directories are in memory, where a child makes more writes before it is
/// killed.
fn place(worker: usize) -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if worker.is_multiple_of(2) && memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// Compares the history with the content of the store.
fn check(history: &mut History, dir: &Path) {
    let store = RedbStore::configured(dir, small()).unwrap();
    history.check(store.revision(), |name| {
        let key = match name {
            "shared" => key("all", "shared"),
            writer => key("own", writer),
        };
        let object = store.get(&key)?;
        Some(Present {
            id: id(&object),
            revision: object.revision,
        })
    });
}

/// Kills children on one store until `left` is used up.
fn crash(worker: usize, left: &AtomicUsize) -> History {
    let dir = place(worker);
    let mut history = History::default();
    let take = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
    while take().is_ok() {
        history.read(&run(dir.path(), Life::random()));
        // `check` recovers the file. Skipping it lets the next child recover.
        if rand::random_ratio(1, 3) {
            check(&mut history, dir.path());
        }
    }
    check(&mut history, dir.path());
    history
}

#[test]
fn sigkill_loses_no_write_and_reuses_no_revision() {
    let crashes = env::var(CRASHES).ok().map_or(2000, |n| n.parse().unwrap());
    let left = AtomicUsize::new(crashes);
    let histories: Vec<History> = std::thread::scope(|scope| {
        let work = |worker| {
            let left = &left;
            scope.spawn(move || crash(worker, left))
        };
        let workers: Vec<_> = (0..WORKERS).map(work).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let (mut all, mut attempts) = (Counts::default(), 0);
    for Counts {
        acknowledged,
        refused,
        unanswered,
    } in histories.iter().map(History::counts)
    {
        all.acknowledged += acknowledged;
        all.refused += refused;
        all.unanswered += unanswered;
        attempts += acknowledged + refused + unanswered;
    }
    println!("{crashes} kills: {all:?}");
    assert!(attempts > crashes * 3, "the children wrote too little");
}

#[test]
fn checker_detects_every_violation() {
    let check = |output: &str, present: Option<(u64, u64)>| {
        let mut history = History::default();
        history.read(output);
        let present = present.map(|(revision, id)| Present { id, revision });
        let found = history.check(100, |_| present);
        found.into_iter().collect::<Vec<_>>()
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
