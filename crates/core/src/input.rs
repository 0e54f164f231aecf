//! Everything that can happen to an election: a closed enum.

use std::sync::Arc;
use std::time::Duration;

use crate::fence::{FencingToken, ResourceVersion};
use crate::mark::Mark;
use crate::record::Record;

/// Names one version of the lock object, for compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// `metadata.uid`; another uid is another object, whatever its name. Shared, because every version of an
    /// object has the same.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub revision: ResourceVersion,
}

/// One sight of the lock object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// Which version was seen.
    pub version: Version,
    /// What it said. An object without a record is an all-empty, and so a free, record; one with an
    /// unreadable record is [`unreadable`](Self::unreadable).
    pub record: Record,
    /// Changes with every change of the stored record (of either record of a multi lock), and not
    /// with edits of labels and the like. The lock computes it from the stored text.
    pub fingerprint: u64,
    /// The record could not be parsed. It counts as held by a stranger for our own lease duration,
    /// so garbage neither wedges the election nor is taken at once.
    pub unreadable: bool,
    /// The last write of an elector that leaves marks, if there was one; of this record, or of one that
    /// somebody else has replaced since.
    pub mark: Option<Mark>,
    /// What operators ask of this election through annotations of the object.
    pub orders: Orders,
}

impl Observation {
    /// Whether the record was written by an elector that leaves marks.
    pub fn is_marked(&self) -> bool {
        let own = Mark::of(&self.record);
        !self.unreadable && self.mark.is_some_and(|mark| mark.is(&own))
    }
}

/// Requests of operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orders {
    /// Nobody may acquire while this is set; the present holder keeps its term.
    pub paused: bool,
    /// The holder of one certain term shall give it up; boxed, because there hardly ever is such an order.
    pub step_down: Option<Box<StepDownOrder>>,
}

/// A request to give up one term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepDownOrder {
    /// The count of transitions of the term that shall end. Once another term has begun the order
    /// is spent, so nobody has to remove it.
    pub transitions: u32,
    /// Who should get the lease next; others hold back one retry period.
    pub to: Option<String>,
    /// How long the former holder shall not campaign.
    pub sit_out: Duration,
}

/// Where an observation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The answer to the read with this number: linearizable at some instant after it was sent.
    Read(u64),
    /// The watch: possibly late. It speeds things up and never extends anything.
    Watch,
}

/// How a write ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was applied, and made this version.
    Applied(Version),
    /// It was refused: conflict, already exists, gone. Not applied, unless something below repeated
    /// it and the conflict is with our own write (duty 3); the next read tells.
    Refused,
    /// It may have been applied, may still be, or not: timeout, reset, 5xx, 429.
    Unknown,
    /// It was not applied and will not be until somebody changes permissions or configuration.
    Unusable,
}

/// Everything that can happen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Begin to campaign. The first input, once.
    Start,
    /// Time has passed; due at [`Election::deadline`](crate::Election::deadline).
    Tick,
    /// The lock object was seen.
    Observed(Source, Observation),
    /// The lock object was seen not to exist; from the watch, with the version of the removal.
    Absent(Source, Option<ResourceVersion>),
    /// The read with this number brought no answer.
    ReadFailed(u64),
    /// The write with this number ended.
    Written(u64, Outcome),
    /// The watch works (true) or is broken or forbidden (false). While it works, followers send
    /// nothing. Whoever says true has first shown the present state as an observation.
    Watching(bool),
    /// The watch began with a list at this revision; send it after what the list showed. A list that is older than what
    /// was seen is the list of a restored store, or was overtaken, and is confirmed by a read.
    Listed(ResourceVersion),
    /// The guarded work of this term has ended; answers a [`Stop`](crate::Command::Stop), or the work
    /// ended by itself.
    WorkEnded,
    /// The main part of the work has ended, and other parts of it may still run. Stops the term as a work
    /// that ended by itself does, and releases nothing: [`WorkEnded`](Self::WorkEnded) follows once every
    /// part has ended.
    WorkEnding,
    /// The guard of the term with this token was seen to have run out, perhaps only for a moment, by a
    /// wall clock that jumped ahead and was set back. A term that was seen to end is over.
    Expired(FencingToken),
    /// Give up the term, if there is one, and do not campaign for this long.
    StepDown(Duration),
    /// End it all: stop the work, release, and finish.
    Shutdown,
}
