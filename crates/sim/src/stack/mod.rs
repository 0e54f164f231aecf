//! The whole driver, `tenure::Elector` with its hub, timers and guards, over a simulated network.
//!
//! Time is tokio's paused time, so half an hour takes a moment; every node has its own clock on top
//! of it, with its own rate. Between each driver and the lock is a [`network::Link`] that loses and
//! delays what passes. The lock is the in-memory one, a compare-and-set register like the API
//! server's. S1 is asked of the real `is_leading()` every few milliseconds and whenever a term
//! begins, S2 of the tokens, S4 where the release enters the network.

mod clock;
mod network;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{Elector, Event, Handle, MemoryLock, Term};
use tokio::time::Instant;

use crate::rng::Rng;
use clock::Skewed;
use network::{Link, Net, pause};

/// How often guards are compared.
const LOOK: Duration = Duration::from_millis(50);

/// Faults end this long before the run does.
const CALM: Duration = Duration::from_secs(120);

/// One candidate's process.
#[derive(Clone, Debug)]
struct Node {
    handle: Handle,
    net: Arc<Net>,
    dead: bool,
}

/// What is shared by everybody, and what came of it.
#[derive(Debug, Default)]
struct Ledger {
    nodes: Vec<Node>,
    skew: u64,
    tokens: Vec<u64>,
    overlaps: u64,
    early_releases: u64,
    longest_silence: Duration,
    leads_at_end: usize,
}

type Shared = Arc<Mutex<Ledger>>;

/// `skew`: how much too fast or too slow the clocks run, in parts of a thousand at most.
fn simulate(seed: u64, skew: u64, length: Duration) -> Ledger {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing");
    runtime.block_on(play(seed, skew, length))
}

async fn play(seed: u64, skew: u64, length: Duration) -> Ledger {
    let mut rng = Rng::new(seed ^ 0x57AC);
    let lock = MemoryLock::new("stack");
    let shared = Shared::default();
    lend(&shared).skew = skew;
    let started = Instant::now();
    for _ in 0..3 {
        launch(&mut rng, &lock, &shared);
    }
    let mut next_fault = Duration::from_secs(20);
    let mut last_led = Duration::ZERO;
    while started.elapsed() < length {
        pause(LOOK).await;
        let now = started.elapsed();
        let (alive, leading) = {
            let mut ledger = lend(&shared);
            let leading = ledger.check();
            if leading > 0 {
                last_led = now;
            }
            ledger.longest_silence = ledger.longest_silence.max(now - last_led);
            let nodes = ledger.nodes.iter().enumerate();
            let alive = nodes.filter(|(_, node)| !node.dead).map(|(i, _)| i);
            (alive.collect::<Vec<_>>(), leading)
        };
        if now >= next_fault && now + CALM < length {
            next_fault = now + Duration::from_millis(rng.range(500, 40_000));
            let victim = *rng.pick(&alive);
            strike(&mut rng, &lock, &shared, victim, length);
        }
        lend(&shared).leads_at_end = leading;
    }
    let mut ledger = std::mem::take(&mut *lend(&shared));
    ledger.early_releases = ledger.nodes.iter().map(|n| n.net.early_releases()).sum();
    ledger
}

fn strike(rng: &mut Rng, lock: &MemoryLock, shared: &Shared, victim: usize, length: Duration) {
    let span = Duration::from_millis(rng.range(100, 40_000));
    let node = lend(shared).nodes[victim].clone();
    match rng.below(5) {
        0 => node.net.cut(span, span),
        1 => node.net.cut(span, Duration::ZERO),
        2 => node.net.cut(Duration::ZERO, span),
        3 => node.handle.step_down(span),
        _ => {
            // A crash: nothing passes any more, and nobody asks it.
            node.net.cut(2 * length, 2 * length);
            lend(shared).nodes[victim].dead = true;
            launch(rng, lock, shared);
        }
    }
}

fn launch(rng: &mut Rng, lock: &MemoryLock, shared: &Shared) {
    let net = Net::new(rng.bits());
    let skew = lend(shared).skew;
    let rate = (1_000 - skew + rng.below(2 * skew + 1)) as f64 / 1_000.0;
    let number = lend(shared).nodes.len();
    let elector = Elector::builder(Arc::new(Link::new(lock, &net)))
        .identity(format!("n{number}"))
        .clock(Arc::new(Skewed::new(rate)))
        .seed(rng.bits())
        .build()
        .expect("the defaults are valid");
    let mut candidate = elector.start();
    let handle = candidate.handle();
    lend(shared).nodes.push(Node {
        handle,
        net: net.clone(),
        dead: false,
    });
    let (shared, mut rng) = (shared.clone(), Rng::new(rng.bits()));
    tokio::spawn(async move {
        while let Some(event) = candidate.next().await {
            if let Event::Lead(term) = event {
                lend(&shared).begin(&term);
                net.works(true);
                let linger = Duration::from_millis(rng.below(3_000));
                let net = net.clone();
                tokio::spawn(async move {
                    term.cancelled().await;
                    pause(linger).await;
                    net.works(false);
                    drop(term);
                });
            }
        }
    });
}

fn lend(shared: &Shared) -> std::sync::MutexGuard<'_, Ledger> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// S1: counts those who lead.
    fn check(&mut self) -> usize {
        let leading = self
            .nodes
            .iter()
            .filter(|n| !n.dead && n.handle.is_leading());
        let leading = leading.count();
        self.overlaps += u64::from(leading > 1);
        leading
    }

    fn begin(&mut self, term: &Term) {
        self.check();
        self.tokens
            .push(term.token().as_str().parse().expect("a memory lock counts"));
    }
}

/// 15 s / 10 s tolerates 20 %; work has to end within the margin, which tolerates 1.6 %.
const TOLERATED: u64 = 15;

#[test]
fn the_driver_keeps_the_promises_over_a_bad_network() {
    let (mut terms, mut processes) = (0, 0);
    for seed in 0..5 {
        let ledger = simulate(seed, TOLERATED, Duration::from_secs(1_200));
        assert_eq!(ledger.overlaps, 0, "S1, seed {seed}");
        assert!(
            ledger.tokens.is_sorted_by(|a, b| a < b),
            "S2, seed {seed}: {:?}",
            ledger.tokens
        );
        assert_eq!(ledger.early_releases, 0, "S4, seed {seed}");
        assert_eq!(ledger.leads_at_end, 1, "L1, seed {seed}");
        assert!(
            ledger.longest_silence < Duration::from_secs(180),
            "L1, seed {seed}: nobody led for {:?}",
            ledger.longest_silence
        );
        terms += ledger.tokens.len();
        processes += ledger.nodes.len();
    }
    // Success must not be for lack of anything happening.
    assert!(
        terms > 50 && processes > 20,
        "{terms} terms, {processes} processes"
    );
}

#[test]
fn a_seed_is_a_run() {
    for seed in 0..3 {
        let run = || {
            let ledger = simulate(seed, TOLERATED, Duration::from_secs(600));
            (ledger.tokens, ledger.longest_silence, ledger.nodes.len())
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// The check bites: clocks that run half again as fast as others void S1, and it is seen.
#[test]
fn clocks_beyond_the_tolerated_rate_are_seen_to_break_s1_and_never_s2() {
    let mut overlaps = 0;
    for seed in 0..32 {
        let ledger = simulate(seed, 600, Duration::from_secs(600));
        assert!(ledger.tokens.is_sorted_by(|a, b| a < b), "S2, seed {seed}");
        overlaps += ledger.overlaps;
        if overlaps > 0 {
            return;
        }
    }
    panic!("no overlap was seen");
}
