//! The lock of one candidate: one of the two objects, or both.
//!
//! It takes the place of the lock and the driver of an election. It executes requests one by one, keeps the newest
//! state that the election uses, and distinguishes its own writes from those of others.

use tenure_core::pair::{Own, Pair, PairChange, PairResponse, Rules, Side, Step, Writing};
use tenure_core::{Input, Observation, Outcome, Record, Source, Version, WriteKind};

use super::server::{Call, Reply};

/// The objects that a candidate locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The primary object: a client from before the migration.
    Old,
    /// Both objects.
    Both,
    /// The secondary object: a client from after the migration.
    New,
}

impl Kind {
    pub(super) fn watches(self, side: Side) -> bool {
        match self {
            Self::Old => side == Side::Primary,
            Self::Both => true,
            Self::New => side == Side::Secondary,
        }
    }

    fn first(self) -> Side {
        match self {
            Self::Old | Self::Both => Side::Primary,
            Self::New => Side::Secondary,
        }
    }
}

/// A lock with its request in flight.
#[derive(Debug)]
pub(super) struct Lock {
    pub(super) kind: Kind,
    rules: Rules,
    last: Option<Pair>,
    own: Own,
    job: Option<(u64, Job)>,
}

#[derive(Debug)]
enum Job {
    Read(Option<Observation>),
    Write,
    WriteBoth(Box<Writing>, Record),
}

/// Result of a response.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it lives for one step")]
pub(super) enum Next {
    /// Another request.
    Call(Call),
    /// An input for the election, and the state that it shows, if any.
    Tell(Input, Option<Pair>),
}

impl Lock {
    pub(super) fn new(kind: Kind, rules: Rules) -> Self {
        Self {
            kind,
            rules,
            last: None,
            own: Own::Nothing,
            job: None,
        }
    }

    /// Returns the number of the request in flight.
    pub(super) fn under_way(&self) -> Option<u64> {
        self.job.as_ref().map(|(id, _)| *id)
    }

    pub(super) fn read(&mut self, id: u64) -> Call {
        self.give_up();
        self.job = Some((id, Job::Read(None)));
        Call::Get(self.kind.first())
    }

    pub(super) fn write(&mut self, id: u64, kind: &WriteKind, record: Record) -> Next {
        self.give_up();
        let side = self.kind.first();
        if self.kind != Kind::Both {
            let call = match kind.base() {
                None => Call::Create(side, record),
                Some(base) => Call::Replace(side, base.clone(), record),
            };
            self.job = Some((id, Job::Write));
            return Next::Call(call);
        }
        let rules = self.rules;
        let base = kind.base().map(|version| {
            let last = self.last.as_ref();
            last.filter(|last| last.together(rules).version == *version)
        });
        let base = match base {
            Some(None) => return Next::Tell(Input::Written(id, Outcome::Refused), None),
            Some(Some(base)) => Some(base.clone()),
            None => None,
        };
        let (writing, ask) = Writing::begin(rules, base);
        let call = Call::of(ask, &record);
        self.own = Own::UnderWay(record.clone());
        self.job = Some((id, Job::WriteBoth(Box::new(writing), record)));
        Next::Call(call)
    }

    /// Drops the request in flight. Its response will not be reported.
    pub(super) fn give_up(&mut self) {
        if let Some((_, Job::WriteBoth(..))) = self.job.take() {
            self.own = Own::Nothing;
        }
    }

    /// Returns the input for an election whose request timed out.
    pub(super) fn timed_out(&mut self, id: u64) -> Option<Input> {
        let (_, job) = self.job.as_ref().filter(|(job, _)| *job == id)?;
        let input = match job {
            Job::Read(_) => Input::ReadFailed(id),
            Job::Write | Job::WriteBoth(..) => Input::Written(id, Outcome::Unknown),
        };
        self.give_up();
        Some(input)
    }

    /// Handles a response to the request in flight.
    pub(super) fn answered(&mut self, id: u64, reply: Reply) -> Option<Next> {
        let (_, job) = self.job.take_if(|(job, _)| *job == id)?;
        Some(match job {
            Job::Read(primary) => self.have_read(id, primary, reply),
            Job::Write => {
                let outcome = match reply {
                    Reply::Stored(_, object) => Outcome::Applied(object.version),
                    Reply::Refused => Outcome::Refused,
                    Reply::Got(_) | Reply::Error => Outcome::Unknown,
                };
                Next::Tell(Input::Written(id, outcome), None)
            }
            Job::WriteBoth(writing, record) => self.have_written(id, writing, record, reply),
        })
    }

    fn have_read(&mut self, id: u64, primary: Option<Observation>, reply: Reply) -> Next {
        let Reply::Got(object) = reply else {
            return Next::Tell(Input::ReadFailed(id), None);
        };
        let source = Source::Read(id);
        match (primary, object) {
            (None, None) => Next::Tell(Input::Absent(source, None), None),
            (None, Some(object)) if self.kind == Kind::Both => {
                self.job = Some((id, Job::Read(Some(object))));
                Next::Call(Call::Get(Side::Secondary))
            }
            (None, Some(object)) => Next::Tell(Input::Observed(source, object), None),
            (Some(primary), secondary) => self.show(source, Pair { primary, secondary }),
        }
    }

    fn have_written(
        &mut self,
        id: u64,
        mut writing: Box<Writing>,
        record: Record,
        reply: Reply,
    ) -> Next {
        let error = matches!(reply, Reply::Error);
        let answer = match reply {
            Reply::Got(object) => PairResponse::Found(object),
            Reply::Stored(_, object) => PairResponse::Stored(object),
            Reply::Refused | Reply::Error => PairResponse::Failed,
        };
        match writing.next(answer) {
            Step::PairRequest(ask) => {
                let call = Call::of(ask, &record);
                self.job = Some((id, Job::WriteBoth(writing, record)));
                Next::Call(call)
            }
            Step::Done(pair) => {
                self.own = Own::done(&pair);
                let version = pair.together(self.rules).version;
                Next::Tell(Input::Written(id, Outcome::Applied(version)), Some(*pair))
            }
            Step::Failed => {
                self.own = Own::Nothing;
                let outcome = match error || writing.is_half_done() {
                    true => Outcome::Unknown,
                    false => Outcome::Refused,
                };
                Next::Tell(Input::Written(id, outcome), None)
            }
        }
    }

    /// Handles a watch event of one side.
    pub(super) fn watched(&mut self, side: Side, object: Option<Observation>) -> Next {
        let nothing = Input::Absent(Source::Watch, None);
        match (self.kind, object, self.last.clone()) {
            (Kind::Both, object, Some(last)) => match last.clone().shown(&self.own, side, object) {
                PairChange::Nothing => self.show(Source::Watch, last),
                PairChange::Absent | PairChange::Hidden => Next::Tell(nothing, None),
                PairChange::Changed(pair) => self.show(Source::Watch, *pair),
            },
            (Kind::Both, ..) | (_, None, _) => Next::Tell(nothing, None),
            (_, Some(object), _) => Next::Tell(Input::Observed(Source::Watch, object), None),
        }
    }

    /// Keeps the state shown in a step if it is the one that the election uses.
    pub(super) fn keep(&mut self, version: Option<&Version>, shown: Option<Pair>) {
        match (version, shown) {
            (None, _) => self.last = None,
            (Some(version), Some(pair)) if pair.together(self.rules).version == *version => {
                self.last = Some(pair);
            }
            _ => {}
        }
    }

    fn show(&self, source: Source, pair: Pair) -> Next {
        let seen = pair.together(self.rules);
        Next::Tell(Input::Observed(source, seen), Some(pair))
    }
}
