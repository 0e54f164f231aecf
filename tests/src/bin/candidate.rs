//! An ordinary program on the tenure library: the counterpart of the client-go elector in `peers/`, with the same flags
//! and the same event lines, so that both can be measured in the same way.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Map, Value, json};
use tenure::{Candidate, Elector, Event, Hub, LockKind, Tenure, Term};
use tenure_tests::clock::{self, Nanos};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Parser)]
struct Options {
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: PathBuf,
    #[arg(long, default_value = "default")]
    namespace: String,
    /// Name of the lock, or its prefix with --elections
    #[arg(long, default_value = "election")]
    name: String,
    /// Contend for NAME-0 to NAME-(N-1) instead of NAME
    #[arg(long)]
    elections: Option<u32>,
    #[arg(long)]
    id: String,
    #[arg(long, default_value = "leases")]
    lock: LockKind,
    #[arg(long, default_value = "15000ms", value_parser = millis)]
    lease_duration: Duration,
    #[arg(long, default_value = "10000ms", value_parser = millis)]
    renew_deadline: Duration,
    #[arg(long, default_value = "2000ms", value_parser = millis)]
    retry_period: Duration,
    /// While leading, print a `working` line at this interval
    #[arg(long, value_parser = millis)]
    work: Option<Duration>,
    /// With --work, also send each step of work to this store, with the token of the term
    #[arg(long)]
    store: Option<String>,
    /// Ignore the end of the term: work on a thread that never checks its guard
    #[arg(long, requires = "work")]
    stubborn: bool,
    /// Work on a blocking thread that continues for a moment after its term was given up
    #[arg(long, requires = "work", conflicts_with = "stubborn")]
    blocking: bool,
    /// Count requests, and print the counts at the end
    #[arg(long)]
    count: bool,
    /// After SIGTERM, continue until a second SIGTERM, so that the remaining resources can be measured
    #[arg(long)]
    linger: bool,
}

fn millis(text: &str) -> Result<Duration, String> {
    let number = text
        .strip_suffix("ms")
        .and_then(|number| number.parse().ok());
    number
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is not like 500ms"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse();
    let file = Kubeconfig::read_from(&options.kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let began = clock::now();
    let counter = Arc::new(Counter::since(began));
    // As recommended in the documentation: one connection for many elections.
    let client = match options.elections {
        Some(_) => tenure::client_http2(config)?,
        None => tenure::client(config)?,
    };
    let client = match options.count {
        true => counted(client, counter.clone()),
        false => client,
    };
    let hub = Hub::new(client.clone());
    let me: Arc<str> = options.id.as_str().into();
    let (stop, stopping) = watch::channel(false);

    let names = match options.elections {
        Some(count) => (0..count)
            .map(|index| format!("{}-{index}", options.name))
            .collect(),
        None => vec![options.name.clone()],
    };
    let work = options.work.map(|every| Work {
        every,
        renewed_within: options.retry_period,
        store: options.store.clone(),
        stubborn: options.stubborn,
        blocking: options.blocking,
    });
    let work = work.map(Arc::new);
    // Elections do not get a task each, so that the measured cost is only that of the library.
    let mut running = FuturesUnordered::new();
    for name in names {
        let elector = Elector::open(client.clone(), options.lock, &options.namespace, &name)
            .hub(&hub)
            .identity(&options.id)
            .lease_duration(options.lease_duration)
            .renew_deadline(options.renew_deadline)
            .retry_period(options.retry_period)
            .build()
            .map_err(|error| anyhow!("{error}"))?;
        let voice = Voice {
            election: name,
            me: me.clone(),
        };
        let contend = contend(elector.start(), voice, stopping.clone(), work.clone());
        running.push(contend);
    }
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            Some(()) = running.next() => {}
        }
    }
    stop.send_replace(true);
    while running.next().await.is_some() {}
    drop(running);
    if options.count {
        let line = json!({
            "t": clock::now().0, "event": "stats", "self": options.id,
            "seconds": clock::now().since(began).saturating_sub(SETTLING).as_secs_f64(),
            "reads": counter.reads.load(Ordering::Relaxed),
            "writes": counter.writes.load(Ordering::Relaxed),
        });
        _ = writeln!(std::io::stdout(), "{line}");
    }
    if options.linger {
        drop(hub);
        drop(client);
        settle().await;
        let tasks = tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks();
        let line = json!({ "t": clock::now().0, "event": "stats", "tasks": tasks });
        _ = writeln!(std::io::stdout(), "{line}");
        terminate.recv().await;
    }
    Ok(())
}

/// Waits until connections are closed, which happens in separate tasks.
#[expect(clippy::disallowed_methods, reason = "a pause, not a deadline")]
async fn settle() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Time for a candidate to observe the state of the election. Requests are counted after that.
const SETTLING: Duration = Duration::from_secs(10);

/// Counts requests when they are sent.
struct Counter {
    began: Nanos,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Counter {
    fn since(began: Nanos) -> Self {
        Self {
            began,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        }
    }

    fn count(&self, method: &http::Method) {
        let kind = match *method {
            _ if clock::now().since(self.began) < SETTLING => return,
            http::Method::GET => &self.reads,
            _ => &self.writes,
        };
        kind.fetch_add(1, Ordering::Relaxed);
    }
}

fn counted(client: kube::Client, counter: Arc<Counter>) -> kube::Client {
    let count = move |request: http::Request<kube::client::Body>| {
        counter.count(request.method());
        let client = client.clone();
        async move { client.send(request).await }
    };
    kube::Client::new(tower::service_fn(count), "default")
}

#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` stores each argument twice"
)]
fn contend(
    mut candidate: Candidate,
    voice: Voice,
    mut stopping: watch::Receiver<bool>,
    work: Option<Arc<Work>>,
) -> impl Future<Output = ()> {
    async move {
        let mut term: Option<(Term, Option<JoinHandle<Nanos>>)> = None;
        let mut asked = false;
        loop {
            let event = tokio::select! {
                event = candidate.next() => event,
                _ = stopping.changed(), if !asked => {
                    asked = true;
                    candidate.shutdown();
                    continue;
                }
            };
            match event {
                Some(Event::Lead(won)) => {
                    let began = clock::now();
                    voice.say_at(began, "acquired", &voice.me, Some(won.tenure()), None);
                    let worker = work.clone().and_then(|work| {
                        let (tenure, voice) = (won.tenure().clone(), voice.clone());
                        if work.blocking {
                            won.tenure().spawn_blocking(move || {
                                block_on_work(&tenure, began, &voice, &work);
                            });
                            return None;
                        }
                        Some(tokio::spawn(do_work(tenure, began, voice, work)))
                    });
                    term = Some((won, worker));
                }
                Some(Event::Stop(_)) => {
                    if work.as_ref().is_some_and(|work| work.blocking) {
                        // The thread continues, and reports when it has ended.
                        drop(term.take());
                    } else if let Some((term, worker)) = term.take() {
                        let until = match worker {
                            Some(worker) => worker.await.unwrap_or_else(|_| clock::now()),
                            None => clock::now(),
                        };
                        voice.say("lost", "", Some(term.tenure()), Some(until));
                    }
                }
                Some(Event::NewLeader(leader)) => voice.say("observed", &leader, None, None),
                Some(Event::Released) => voice.say("released", "", None, None),
                Some(Event::Finished) | None => break,
                Some(_) => {}
            }
        }
    }
}

/// Runs the guarded work, and returns the last instant at which work could have been done.
///
/// Work runs in small steps, each after a check of the guard. It therefore ends with the guard, and not when this task
/// runs again, which may be much later. A renewal after the last check may have moved the end of the guard by at most a
/// retry period.
async fn do_work(tenure: Tenure, began: Nanos, voice: Voice, work: Arc<Work>) -> Nanos {
    if work.stubborn {
        std::thread::spawn(move || {
            loop {
                voice.say("working", &voice.me, Some(&tenure), None);
                std::thread::sleep(work.every);
            }
        });
        return std::future::pending().await;
    }
    let mut store = match &work.store {
        Some(address) => tokio::net::TcpStream::connect(address).await.ok(),
        None => None,
    };
    let mut ticks = tokio::time::interval(work.every);
    // There is no step before the first check, regardless of how long this process is stopped before it.
    let mut guarded = began;
    loop {
        tokio::select! {
            () = tenure.cancelled() => return clock::now().min(guarded + work.renewed_within),
            _ = ticks.tick() => {}
        }
        // The line contains the start of the step, which is before the check of the guard. If the process is stopped
        // between these two instants, it checks the guard after it resumes.
        let (now, left) = (clock::now(), tenure.valid_for());
        if !left.is_zero() {
            voice.say_at(now, "working", &voice.me, Some(&tenure), None);
            guarded = now + left;
            if let Some(stream) = &mut store {
                apply(stream, &voice.election, &tenure).await;
            }
        }
    }
}

/// Runs the guarded work on a blocking thread. A term that was given up is held until the thread ends, so the thread
/// continues to work for a moment, as long as the last guard would have been valid. A lost term ends it.
fn block_on_work(tenure: &Tenure, began: Nanos, voice: &Voice, work: &Work) {
    let store = work.store.as_ref();
    let mut store = store.and_then(|address| std::net::TcpStream::connect(address).ok());
    let mut guarded = began;
    let mut ended = None;
    loop {
        let (now, left) = (clock::now(), tenure.valid_for());
        if left.is_zero() {
            use tenure::StopReason::{Ordered, Shutdown, StepDown};
            let given_up = matches!(tenure.reason(), Some(Ordered | Shutdown | StepDown));
            let since = *ended.get_or_insert(now);
            if !given_up || now >= guarded || now.since(since) >= OUTLIVES {
                break;
            }
        } else {
            guarded = now + left;
        }
        voice.say_at(now, "working", &voice.me, Some(tenure), None);
        if let Some(store) = &mut store {
            use std::io::{Read as _, Write as _};
            let line = format!("{} {}\n", voice.election, tenure.token());
            if store.write_all(line.as_bytes()).is_ok() {
                _ = store.read(&mut [0; 16]);
            }
        }
        std::thread::sleep(work.every);
    }
    let until = clock::now().min(guarded);
    voice.say("lost", "", Some(tenure), Some(until));
}

/// Time for which a blocking thread continues after its term was given up.
const OUTLIVES: Duration = Duration::from_millis(300);

/// Sends one effect to the fenced store. The response is ignored, because the store keeps the records.
async fn apply(store: &mut tokio::net::TcpStream, election: &str, tenure: &Tenure) {
    let line = format!("{election} {}\n", tenure.token());
    if store.write_all(line.as_bytes()).await.is_ok() {
        _ = store.read(&mut [0; 16]).await;
    }
}

struct Work {
    every: Duration,
    renewed_within: Duration,
    store: Option<String>,
    stubborn: bool,
    blocking: bool,
}

#[derive(Clone)]
struct Voice {
    election: String,
    me: Arc<str>,
}

impl Voice {
    fn say(&self, event: &str, leader: &str, term: Option<&Tenure>, until: Option<Nanos>) {
        self.say_at(clock::now(), event, leader, term, until);
    }

    fn say_at(
        &self,
        at: Nanos,
        event: &str,
        leader: &str,
        term: Option<&Tenure>,
        until: Option<Nanos>,
    ) {
        let mut line = Map::new();
        line.insert("t".to_owned(), json!(at.0));
        line.insert("event".to_owned(), json!(event));
        line.insert("election".to_owned(), json!(self.election));
        line.insert("leader".to_owned(), json!(leader));
        line.insert("self".to_owned(), json!(&*self.me));
        if let Some(term) = term {
            line.insert("token".to_owned(), json!(term.token().to_string()));
            line.insert("transitions".to_owned(), json!(term.transitions()));
        }
        if let Some(until) = until {
            line.insert("until".to_owned(), json!(until.0));
        }
        _ = writeln!(std::io::stdout(), "{}", Value::Object(line));
    }
}
