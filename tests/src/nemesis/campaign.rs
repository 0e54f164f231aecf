//! A fleet of tenure and a fleet of client-go on one server, under one schedule of faults.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::fault::{Fault, Round, Schedule, Victim};
use super::proxy::Gate;
use super::server::Server;
use super::squad::{Make, Squad};
use super::store::FencedStore;
use crate::candidate::Election;
use crate::clock::{self, Nanos};
use crate::overlap::Overlap;
use crate::wire::Wire;

/// Number of candidates of a fleet.
const SIZE: usize = 3;

/// Maximum extra time of a campaign for kinds of faults that have not occurred yet.
const PATIENCE: Duration = Duration::from_secs(300);

/// A report of two leaders names the faults since the start of the first leader's term, and those at most this long
/// before it.
const RECENT: Duration = Duration::from_secs(10);

/// A campaign.
#[derive(Debug)]
pub struct Campaign {
    server: Server,
    squads: Vec<Squad>,
    store: FencedStore,
    seed: u64,
    faults: BTreeMap<Fault, u64>,
    impossible: BTreeMap<Fault, &'static str>,
    struck: Vec<(Nanos, Fault, Victim)>,
    pairs: Option<BTreeMap<(Fault, Fault), u64>>,
    began: Nanos,
}

/// Result of a campaign.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seed of the schedule.
    pub seed: u64,
    /// The server's name.
    pub server: &'static str,
    /// Duration of the campaign.
    pub time: Duration,
    /// Number of faults by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// Number of simultaneous faults by pair, in a campaign of pairs.
    pub pairs: BTreeMap<(Fault, Fault), u64>,
    /// The kinds of faults of the schedule.
    pub kinds: Vec<Fault>,
    /// Faults that are impossible here, and why.
    pub impossible: BTreeMap<Fault, &'static str>,
    /// Results of the candidates by kind.
    pub makes: Vec<(Make, Verdict)>,
}

/// Results of the candidates of one kind.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Number of terms.
    pub terms: usize,
    /// The longest time during which two candidates did guarded work together, except after manual edits.
    pub overlap: Duration,
    /// The same right after a manual edit of the lock.
    pub overlap_by_hand: Duration,
    /// The longest time after the beginning of a newer term at which an older one still started a step of work.
    pub stale_work: Duration,
    /// Number of processes that ended themselves because their work exceeded its deadline.
    pub aborts: usize,
    /// Effects that the fenced store applied.
    pub accepted: u64,
    /// Effects of older terms that it rejected.
    pub refused: u64,
    /// Violations, one sentence each.
    pub violations: Vec<String>,
}

impl Campaign {
    /// Starts the fleets on a new server.
    ///
    /// # Errors
    ///
    /// Fails if a process does not start.
    pub fn start(server: Server, makes: &[Make], seed: u64) -> Result<Self> {
        let fleets: Vec<Vec<Make>> = makes.iter().map(|make| vec![*make; SIZE]).collect();
        Self::begin(server, &fleets, seed)
    }

    /// Starts one fleet on a new server: two candidates of tenure and two of client-go, on one lock. The result
    /// concerns tenure: no two of its own candidates lead at the same time.
    ///
    /// # Errors
    ///
    /// Fails if a process does not start.
    pub fn start_mixed(server: Server, seed: u64) -> Result<Self> {
        let fleet = vec![Make::Tenure, Make::ClientGo, Make::Tenure, Make::ClientGo];
        Self::begin(server, &[fleet], seed)
    }

    /// Injects two simultaneous faults in every round.
    #[must_use]
    pub fn in_pairs(mut self) -> Self {
        self.pairs = Some(BTreeMap::new());
        self
    }

    fn begin(server: Server, fleets: &[Vec<Make>], seed: u64) -> Result<Self> {
        let store = FencedStore::start()?;
        let began = clock::now();
        let squads = fleets.iter().map(|fleet| {
            let name = format!("nemesis-{:?}-{}", fleet[0], began.0).to_lowercase();
            let election = Election::new(server.kubeconfig(), name).quick();
            Squad::of(fleet.clone(), election, &store)
        });
        let squads = squads.collect::<Result<Vec<_>>>()?;
        for squad in &squads {
            let led = squad.settled(Duration::ZERO, Duration::from_secs(60));
            led.with_context(|| format!("nobody of {:?} leads", squad.make()))?;
        }
        Ok(Self {
            server,
            squads,
            store,
            seed,
            faults: BTreeMap::new(),
            impossible: BTreeMap::new(),
            struck: Vec::new(),
            pairs: None,
            began,
        })
    }

    /// Runs the schedule for this time, and longer until every kind of fault has occurred. Then heals everything and
    /// waits for a leader.
    ///
    /// # Errors
    ///
    /// Fails if a process does not start again.
    pub fn run(mut self, time: Duration) -> Result<Outcome> {
        let lease = self.squads[0].election().lease_duration;
        let end = clock::now() + time;
        let mut schedule = match self.pairs {
            Some(_) => Schedule::of_pairs(self.seed, lease, SIZE),
            None => Schedule::new(self.seed, lease, SIZE),
        };
        let kinds = schedule.kinds();
        while clock::now() < end || (self.is_incomplete(&kinds) && clock::now() < end + PATIENCE) {
            let Some(round) = schedule.next() else { break };
            let missed = self.round(&round).with_context(|| {
                format!("seed {}: {round:?}\n{}", self.seed, self.server.said())
            })?;
            missed.into_iter().for_each(|fault| schedule.again(fault));
        }
        self.server.wait_until_ready()?;
        let mut outcome = Outcome {
            seed: self.seed,
            server: self.server.name(),
            time: Duration::ZERO,
            faults: self.faults,
            pairs: self.pairs.unwrap_or_default(),
            kinds,
            impossible: self.impossible,
            makes: Vec::new(),
        };
        for squad in &mut self.squads {
            // L1: everything works again, so a candidate leads after at most a lease and two polls.
            let limit = squad.election().lease_duration + 5 * squad.election().retry_period;
            let led = squad.settled(Duration::from_secs(1), limit + Duration::from_secs(10));
            squad.revive()?;
            let mut verdict = judge(squad, &self.store, &self.struck);
            if led.is_none() {
                verdict
                    .violations
                    .push("nobody leads after the faults".to_owned());
            }
            outcome.makes.push((squad.make(), verdict));
        }
        outcome.time = clock::now().since(self.began);
        Ok(outcome)
    }

    fn is_incomplete(&self, kinds: &[Fault]) -> bool {
        let mut all = kinds.iter();
        all.any(|fault| !self.faults.contains_key(fault) && !self.impossible.contains_key(fault))
    }

    /// Runs one round, and returns the faults without a target.
    fn round(&mut self, round: &Round) -> Result<Vec<Fault>> {
        if round.strikes.iter().any(|(fault, _)| fault.is_by_hand()) {
            // Wait until each leader has settled and watches the lock. The time until it observes the edit then depends
            // only on the leader itself.
            for squad in &self.squads {
                squad.settled(Duration::from_secs(1), Duration::from_secs(15));
            }
        }
        let (mut undo, mut missed) = (Vec::new(), Vec::new());
        for (fault, victim) in &round.strikes {
            self.struck.push((clock::now(), *fault, *victim));
            match self.strike(*fault, *victim, round, &mut undo)? {
                Struck::Everybody => *self.faults.entry(*fault).or_default() += 1,
                Struck::NotAll => missed.push(*fault),
                Struck::Impossible(why) => _ = self.impossible.insert(*fault, why),
            }
        }
        self.note_pair(round, &missed);
        if !undo.is_empty() {
            sleep(round.hold);
        }
        for undo in undo.into_iter().rev() {
            self.undo(undo)?;
        }
        sleep(round.pause);
        for squad in &mut self.squads {
            squad.revive()?;
        }
        Ok(missed)
    }

    /// Counts two faults that affected all fleets, and prints them.
    fn note_pair(&mut self, round: &Round, missed: &[Fault]) {
        let [(first, on_first), (second, on_second)] = round.strikes[..] else {
            return;
        };
        let can_be = |fault| !missed.contains(&fault) && !self.impossible.contains_key(&fault);
        let struck = can_be(first) && can_be(second);
        let Some(pairs) = self.pairs.as_mut().filter(|_| struck) else {
            return;
        };
        *pairs
            .entry((first.min(second), first.max(second)))
            .or_default() += 1;
        say(&format!(
            "seed {}: {first:?} of {on_first:?} with {second:?} of {on_second:?} for {:.1?}",
            self.seed, round.hold
        ));
    }

    fn strike(
        &mut self,
        fault: Fault,
        victim: Victim,
        round: &Round,
        undo: &mut Vec<Undo>,
    ) -> Result<Struck> {
        if fault.is_of_the_server() {
            return self.strike_server(fault, undo);
        }
        let mut struck = Struck::Everybody;
        if fault.is_by_hand() {
            let wire = Wire::connect(&self.server.kubeconfig())?;
            for squad in &mut self.squads {
                if !by_hand(fault, squad, &wire) {
                    struck = Struck::NotAll;
                }
            }
            return Ok(struck);
        }
        let movable = |squad: &Squad| !fault.is_of_the_clocks() || squad.clocks(0).is_some();
        if !self.squads.iter().any(movable) {
            return Ok(Struck::Impossible(
                "the clocks of the candidates cannot be moved",
            ));
        }
        for (number, squad) in self.squads.iter_mut().enumerate() {
            if !movable(squad) {
                continue;
            }
            let victims = victims(victim, squad);
            if victims.is_empty() {
                struck = Struck::NotAll;
            }
            for index in victims {
                strike_candidate(fault, squad, index, round);
                undo.push(Undo::Candidate(fault, number, index));
            }
        }
        Ok(struck)
    }

    fn strike_server(&mut self, fault: Fault, undo: &mut Vec<Undo>) -> Result<Struck> {
        match fault {
            Fault::ServerKill => self.server.kill(),
            Fault::StoreKill => self.server.kill_store(),
            Fault::ServerStop => self.server.stop(),
            _ if !self.server.has_own_disk() => {
                return Ok(Struck::Impossible("the server has no separate disk"));
            }
            _ => self.server.fill_disk()?,
        }
        undo.push(Undo::Server(fault));
        Ok(Struck::Everybody)
    }

    fn undo(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Server(Fault::ServerKill) => self.server.start()?,
            Undo::Server(Fault::StoreKill) => self.server.start_store()?,
            Undo::Server(Fault::ServerStop) => self.server.resume(),
            Undo::Server(_) => self.server.free_disk(),
            Undo::Candidate(fault, squad, index) => {
                let squad = &mut self.squads[squad];
                match fault {
                    Fault::Stop | Fault::Suspend => squad.process(index).resume(),
                    Fault::Kill | Fault::Terminate => {
                        let process = squad.process(index);
                        if !process.has_ended() {
                            _ = process.wait(Duration::from_secs(1));
                        }
                        process.kill();
                        squad.restart(index)?;
                    }
                    Fault::Cut => {
                        squad.proxy(index).reset();
                        squad.proxy(index).heal();
                    }
                    _ => squad.proxy(index).heal(),
                }
            }
        }
        Ok(())
    }
}

/// Which fleets a fault affected.
enum Struck {
    /// Every fleet that it can affect.
    Everybody,
    /// Not all: one fleet had no leader, or no lock to edit.
    NotAll,
    /// The fault is impossible here.
    Impossible(&'static str),
}

/// How to end a fault that lasts.
#[derive(Clone, Copy)]
enum Undo {
    Server(Fault),
    Candidate(Fault, usize, usize),
}

fn victims(victim: Victim, squad: &Squad) -> Vec<usize> {
    match victim {
        Victim::Leader => {
            let leader = squad.settled(Duration::ZERO, 2 * squad.election().lease_duration);
            leader.into_iter().collect()
        }
        Victim::Number(index) => vec![index % squad.size()],
        Victim::All => (0..squad.size()).collect(),
    }
}

fn strike_candidate(fault: Fault, squad: &mut Squad, index: usize, round: &Round) {
    let millis = u32::try_from(round.extra % 3_600_000).unwrap_or(1000) + 1000;
    let proxy = squad.proxy(index);
    match fault {
        Fault::BlackHole | Fault::Cut => proxy.set(Gate::Held, Gate::Held),
        Fault::RequestsHeld => proxy.set(Gate::Held, Gate::Open),
        Fault::AnswersHeld => proxy.set(Gate::Open, Gate::Held),
        Fault::Slow => {
            let slow = Gate::Slow(Duration::from_millis(round.extra % 1500));
            proxy.set(slow, slow);
        }
        Fault::Resets => proxy.reset(),
        Fault::Stop => squad.process(index).stop(),
        Fault::Kill => _ = squad.process(index).kill(),
        Fault::Terminate => squad.process(index).terminate(),
        Fault::WallForward | Fault::WallBack | Fault::Suspend => {
            let Some(clocks) = squad.clocks(index) else {
                return;
            };
            match fault {
                Fault::WallForward => clocks.jump_wall(millis.into()),
                Fault::WallBack => clocks.jump_wall(-i64::from(millis)),
                // The leader's machine is suspended: more time has passed than it noticed. It resumes at the end of the
                // round.
                _ => {
                    clocks.jump_boot(millis);
                    squad.process(index).stop();
                }
            }
        }
        // Faults of the server and manual edits have no candidate as target.
        _ => {}
    }
}

fn by_hand(fault: Fault, squad: &mut Squad, wire: &Wire) -> bool {
    match fault {
        Fault::Delete => squad.delete_lock(wire),
        Fault::EmptyHolder => squad.edit_lock(wire, &json!({"holderIdentity": ""})),
        Fault::ForeignHolder => squad.edit_lock(wire, &json!({"holderIdentity": "somebody"})),
        _ => squad.edit_lock(wire, &json!({"leaseDurationSeconds": 1})),
    }
}

fn judge(squad: &Squad, store: &FencedStore, struck: &[(Nanos, Fault, Victim)]) -> Verdict {
    let (history, now) = (squad.history(), clock::now());
    // A leader observes an edit through its watch, or at the latest with its next renewal.
    let sight = squad.election().retry_period + Duration::from_secs(2);
    let edited = |from: Nanos, to: Nanos| {
        let mut edits = squad.edits().iter();
        edits.any(|edit| *edit <= from && to <= *edit + sight)
    };
    let by_hand = |overlap: &&Overlap| {
        let from = overlap.second.from;
        edited(from, from + overlap.length)
    };
    let overlaps = history.overlaps(now);
    let (excused, real): (Vec<&Overlap>, Vec<&Overlap>) = overlaps.iter().partition(by_hand);
    let longest = |overlaps: &[&Overlap]| overlaps.iter().map(|overlap| overlap.length).max();
    let book = store.book(&squad.election().name);
    let mut verdict = Verdict {
        terms: history.terms().len(),
        overlap: longest(&real).unwrap_or_default(),
        overlap_by_hand: longest(&excused).unwrap_or_default(),
        stale_work: history.longest_stale_work(),
        aborts: squad.aborts(),
        accepted: book.accepted,
        refused: u64::try_from(book.refusals.len()).unwrap_or(u64::MAX),
        violations: squad.unexpected().to_vec(),
    };
    let overlapping = real.iter().map(|overlap| {
        let (first, second) = (&overlap.first, &overlap.second);
        let before = struck
            .iter()
            .filter(|(at, ..)| first.from <= *at + RECENT && *at <= second.from + overlap.length);
        let before: Vec<String> = before
            .map(|(at, fault, victim)| format!("{fault:?} of {victim:?} at {}", at.0))
            .collect();
        format!(
            "{} (token {:?}, from {}) and {} (token {:?}) both led for {:?} from {}, after {}",
            first.who,
            first.token,
            first.from.0,
            second.who,
            second.token,
            overlap.length,
            second.from.0,
            before.join(", ")
        )
    });
    verdict.violations.extend(overlapping);
    // In a mixed fleet, terms of client-go come between those of tenure, with their own counts and late effects.
    if !squad.is_mixed() {
        verdict.violations.extend(history.disorder());
        let misguided = book.misguided(|at| edited(at, at));
        verdict.violations.extend(misguided);
    }
    if verdict.stale_work > verdict.overlap_by_hand.max(verdict.overlap) {
        verdict
            .violations
            .push(format!("work began {:?} too late", verdict.stale_work));
    }
    verdict
}

impl Outcome {
    /// Returns the results of the candidates of one kind.
    ///
    /// # Panics
    ///
    /// Panics if there were none.
    pub fn of(&self, make: Make) -> &Verdict {
        let found = self.makes.iter().find(|(of, _)| *of == make);
        &found
            .expect("a campaign has a verdict on every kind of candidate that it started")
            .1
    }

    /// Returns the kinds of faults that were possible but did not occur.
    pub fn missed(&self) -> Vec<Fault> {
        let mut all = self.kinds.clone();
        all.retain(|fault| {
            !self.faults.contains_key(fault) && !self.impossible.contains_key(fault)
        });
        all
    }

    /// Returns the number of faults.
    pub fn fault_count(&self) -> u64 {
        self.faults.values().sum()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.faults.iter();
        let counts = counts.map(|(fault, count)| format!("{fault:?} {count}"));
        writeln!(
            f,
            "{}, seed {}: {} faults in {:.0?}: {}",
            self.server,
            self.seed,
            self.fault_count(),
            self.time,
            counts.collect::<Vec<_>>().join(", ")
        )?;
        if !self.pairs.is_empty() {
            let pairs = self.pairs.iter();
            let pairs = pairs.map(|((first, second), n)| format!("{first:?}+{second:?} {n}"));
            let text = pairs.collect::<Vec<_>>().join(", ");
            writeln!(f, "  {} pairs: {text}", self.pairs.len())?;
        }
        for (fault, why) in &self.impossible {
            writeln!(f, "  without {fault:?}: {why}")?;
        }
        for (make, verdict) in &self.makes {
            writeln!(
                f,
                "  {make:?}: {} terms, overlap {:.3?} ({:.3?} after edits by hand), stale work {:.3?}, {} aborts, \
                 effects {} applied and {} refused, {} violations",
                verdict.terms,
                verdict.overlap,
                verdict.overlap_by_hand,
                verdict.stale_work,
                verdict.aborts,
                verdict.accepted,
                verdict.refused,
                verdict.violations.len()
            )?;
        }
        Ok(())
    }
}

/// Prints a line of progress.
pub fn say(line: &str) {
    _ = writeln!(std::io::stderr(), "{line}");
}
