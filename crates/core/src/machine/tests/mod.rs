//! Table tests of the election: a script of inputs, and the resulting commands.
//!
//! A script is a list of lines `time input`, with the time in seconds on the local clock. A write is shown with its
//! purpose and the revision that it replaces, so a table reads like a log:
//!
//! ```text
//! 0     start         -> read#1
//! 0.01  read1 absent  -> create#2 baz/10 t0
//! 0.02  ok2 5         -> lead token=5 t0 until=10.01, leader baz
//! ```

mod attempts;
mod basics;
mod client_go;
mod duties;
mod instants;
mod life;
mod marks;
mod permitted;
mod prefer;
mod proved;
mod restored;
mod same_name;
mod shown;
mod shutdown;
mod spread;
mod unhappy;
mod winding;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::{Config, Election};
use crate::command::{Command, WriteKind};
use crate::fence::ResourceVersion;
use crate::incarnation::{Incarnation, Place};
use crate::input::{Input, Observation, Orders, Outcome, Source, StepDownOrder, Version};
use crate::mark::Mark;
use crate::preference::{Rank, Standing};
use crate::record::Record;
use crate::time::{LocalTime, Now, WallTime};
use crate::timing::Timing;

/// An election under test, its clock, and its log.
struct Table {
    election: Election,
    /// Added to the local clock to get wall time, in seconds.
    wall_offset: i64,
    log: String,
    writes: Vec<(u64, Record)>,
    commands: Vec<Command>,
}

/// 15 s / 10 s / 2 s, identity "baz".
fn config() -> Config {
    Config {
        seed: 1,
        ..Config::new("baz".to_owned(), Timing::default())
    }
}

/// Runs a script with the default settings and returns the log.
fn play(script: &str) -> String {
    Table::new(config()).play(script).log
}

impl Table {
    fn new(config: Config) -> Self {
        Self {
            election: Election::new(config),
            wall_offset: 1_000,
            log: String::new(),
            writes: Vec::new(),
            commands: Vec::new(),
        }
    }

    fn play(mut self, script: &str) -> Self {
        for line in script.lines().map(str::trim).filter(|l| !l.is_empty()) {
            self.line(line);
        }
        self
    }

    fn line(&mut self, line: &str) {
        let (time, what) = line.split_once(' ').expect("a time and an event");
        let what = what.trim();
        let local: f64 = time.parse().expect("a time in seconds");
        if let Some(seconds) = what.strip_prefix("wall ") {
            self.wall_offset += seconds.parse::<i64>().expect("seconds");
            return;
        }
        let now = self.now(local);
        let input = self.input(what);
        let commands = self.election.step(now, input);
        let shown: Vec<String> = commands.iter().map(|c| self.show(c)).collect();
        let shown = if shown.is_empty() {
            "-".to_owned()
        } else {
            shown.join(", ")
        };
        writeln!(self.log, "{time:<7} {what:<24} {shown}").expect("a string takes everything");
        self.commands.extend(commands);
    }

    fn now(&self, local: f64) -> Now {
        let local = Duration::from_secs_f64(local);
        let wall =
            i64::try_from(local.as_micros()).expect("a short test") + self.wall_offset * 1_000_000;
        Now {
            local: LocalTime::default() + local,
            wall: WallTime::from_micros(wall),
        }
    }

    /// `read1 bing/3 v7 [renew=N] [tN]`, `watch ...`, `dead v7`, `ok2 5`, `refused2`, `unknown2`, and so on.
    fn input(&self, what: &str) -> Input {
        let words: Vec<&str> = what.split_whitespace().collect();
        let head = words[0];
        let id = |prefix: &str| {
            head.strip_prefix(prefix)
                .and_then(|n| n.parse::<u64>().ok())
        };
        match head {
            "start" => return Input::Start,
            "tick" => return Input::Tick,
            "watching" => return Input::Watching(true),
            "unwatched" => return Input::Watching(false),
            "worked" => return Input::WorkEnded,
            "working-on" => return Input::WorkEnding,
            "shutdown" => return Input::Shutdown,
            "stepdown" => return Input::StepDown(Duration::from_secs(30)),
            "candidates" => return Input::Candidates(words[1..].iter().map(standing).collect()),
            "watch" => return self.apply_watch_event(Source::Watch, &words[1..]),
            _ => {}
        }
        if head == "dead" {
            Input::Dead(version(&words[1][1..]))
        } else if head == "listed" {
            Input::Listed(ResourceVersion::new(&words[1][1..]))
        } else if head == "expired" {
            Input::Expired(words[1].parse().expect("a token"))
        } else if let Some(id) = id("readfail") {
            Input::ReadFailed(id)
        } else if let Some(id) = id("read") {
            self.apply_watch_event(Source::Read(id), &words[1..])
        } else if let Some(id) = id("ok") {
            Input::Written(id, Outcome::Applied(version(words[1])))
        } else if let Some(id) = id("refused") {
            Input::Written(id, Outcome::Refused)
        } else if let Some(id) = id("unknown") {
            Input::Written(id, Outcome::Unknown)
        } else if let Some(id) = id("unusable") {
            Input::Written(id, Outcome::Unusable)
        } else {
            panic!("unknown event {what:?}")
        }
    }

    fn apply_watch_event(&self, source: Source, words: &[&str]) -> Input {
        if words[0] == "absent" {
            let revision = words
                .get(1)
                .map(|v| ResourceVersion::new(v[1..].to_owned()));
            return Input::Absent(source, revision);
        }
        let mut orders = Orders::default();
        let (mut uid, mut unreadable, mut renew) = (Arc::from("u"), false, None);
        let (mut transitions, mut preferred) = (0, String::new());
        let (mut mark, mut described) = (None, None);
        // `wrote2`: exactly the record of write 2.
        let written = words[0].strip_prefix("wrote").map(|id| {
            let id: u64 = id.parse().expect("a number");
            let found = self.writes.iter().find(|(number, _)| *number == id);
            found.expect("a write of the script").1.clone()
        });
        for word in &words[2..] {
            match word.split_once('=') {
                Some(("renew", n)) => renew = Some(WallTime::from_micros(n.parse().unwrap())),
                Some(("uid", text)) => uid = text.into(),
                Some(("t", n)) => transitions = n.parse().unwrap(),
                Some(("preferred", text)) => preferred = text.to_owned(),
                Some(("order", text)) => orders.step_down = Some(Box::new(order(text))),
                // `mark=a/15@7`: the last write that left a mark had this holder, duration and time.
                Some(("mark", text)) => {
                    let (holder, rest) = text.split_once('/').expect("holder/seconds");
                    let (seconds, at) = rest.split_once('@').expect("seconds@time");
                    let at = WallTime::from_micros(at.parse().unwrap());
                    mark = Some(Mark::new(holder, Some(at), seconds.parse().unwrap()));
                }
                Some(("by", text)) => described = Some(text.to_owned()),
                _ if *word == "garbage" => unreadable = true,
                _ if *word == "paused" => orders.paused = true,
                _ => panic!("unknown word {word:?}"),
            }
        }
        let record = written.map_or_else(
            || {
                let (holder, seconds) = words[0].split_once('/').expect("holder/seconds");
                Record {
                    holder: holder.to_owned(),
                    lease_duration_seconds: seconds.parse().expect("seconds"),
                    acquire_time: renew,
                    renew_time: renew,
                    transitions,
                    preferred_holder: preferred.clone(),
                    ..Record::default()
                }
            },
            |record| Record {
                preferred_holder: preferred.clone(),
                ..record
            },
        );
        let described = described.map(|text| Arc::new(incarnation(&text)));
        let times = record
            .renew_time
            .map_or(0, WallTime::as_micros)
            .unsigned_abs();
        let holder: u64 = record.holder.bytes().map(u64::from).sum();
        Input::Observed(
            source,
            Observation {
                version: Version {
                    uid,
                    ..version(&words[1][1..])
                },
                fingerprint: times * 1_000 + holder + u64::from(unreadable),
                record,
                unreadable,
                mark,
                described,
                orders,
            },
        )
    }

    fn show(&mut self, command: &Command) -> String {
        let seconds = |at: LocalTime| at.as_nanos() as f64 / 1e9;
        match command {
            Command::Read { id, .. } => format!("read#{id}"),
            Command::Write {
                id, kind, record, ..
            } => {
                self.writes.push((*id, record.clone()));
                let (what, base) = match kind {
                    WriteKind::Create => ("create", None),
                    WriteKind::Acquire(base) => ("acquire", Some(base)),
                    WriteKind::Renew(base) => ("renew", Some(base)),
                    WriteKind::Release(base, _) => ("release", Some(base)),
                };
                let base = base
                    .map(|b| format!(" over {}", b.revision))
                    .unwrap_or_default();
                let (holder, length) = (&record.holder, record.lease_duration_seconds);
                let to = kind.order().and_then(|order| order.to.as_deref());
                let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
                format!(
                    "{what}#{id}{base} {holder}/{length} t{}{to}",
                    record.transitions
                )
            }
            Command::Lead {
                token,
                transitions,
                guard,
            } => {
                format!(
                    "LEAD token={token} t{transitions} until={:.2}",
                    seconds(guard.until())
                )
            }
            Command::Extend { guard } => format!("extend until={:.2}", seconds(guard.until())),
            Command::Stop { reason, deadline } => {
                format!("STOP {} by={:.2}", reason.as_str(), seconds(*deadline))
            }
            Command::Drain { deadline } => format!("drain by={:.2}", seconds(*deadline)),
            Command::Overrun => "OVERRUN".to_owned(),
            Command::NewLeader { holder } => format!("leader {holder:?}"),
            Command::Released => "released".to_owned(),
            Command::Finished => "finished".to_owned(),
        }
    }
}

/// Parses `N`, the term with that number, or `N/HOLDER@T`, which also names the holder and the time of that term in
/// microseconds. `:ID` names the candidate `ID` as successor. In that case the former holder may campaign again
/// immediately.
fn order(text: &str) -> StepDownOrder {
    let (term, to) = match text.split_once(':') {
        Some((term, to)) => (term, Some(to.to_owned())),
        None => (text, None),
    };
    let (number, holder, at) = match term.split_once('/') {
        Some((number, rest)) => {
            let (holder, at) = rest.split_once('@').expect("holder@time");
            let at = WallTime::from_micros(at.parse().expect("microseconds"));
            (number, Some(holder.to_owned()), Some(at))
        }
        None => (term, None, None),
    };
    let seconds = if to.is_some() { 0 } else { 5 };
    StepDownOrder {
        transitions: number.parse().expect("the number of a term"),
        holder,
        acquire_time: at,
        to,
        sit_out: Duration::from_secs(seconds),
    }
}

/// `a=7`: the candidate `a` has priority 7 and is ready. `a=7!` is not ready, and `a=7z` is in the preferred zone.
fn standing(text: &&str) -> Standing {
    let (identity, rest) = text.split_once('=').expect("identity=priority");
    let priority = rest.trim_end_matches(['z', '!']);
    Standing {
        identity: identity.to_owned(),
        rank: Rank {
            priority: priority.parse().expect("a priority"),
            in_zone: rest.contains('z'),
        },
        ready: !rest.ends_with('!'),
    }
}

fn version(revision: &str) -> Version {
    Version {
        uid: "u".into(),
        revision: ResourceVersion::new(revision.to_owned()),
    }
}

/// `a@7t0`: the incarnation that acquired a term as `a`, at this time, with this number of transitions.
fn incarnation(text: &str) -> Incarnation {
    let (identity, rest) = text.split_once('@').expect("identity@time");
    let (time, transitions) = rest.split_once('t').expect("time and transitions");
    Incarnation {
        identity: identity.to_owned(),
        acquire_time: Some(WallTime::from_micros(time.parse().unwrap())),
        transitions: transitions.parse().unwrap(),
        place: Place::default(),
    }
}
