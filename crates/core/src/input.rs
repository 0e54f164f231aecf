//! Inputs: everything that can happen to an election, as a closed enum.

use std::sync::Arc;
use std::time::Duration;

use crate::fence::{FencingToken, ResourceVersion};
use crate::incarnation::Incarnation;
use crate::mark::Mark;
use crate::preference::Standing;
use crate::record::Record;
use crate::time::WallTime;

/// Identifies one version of the lock object, for compare-and-set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// `metadata.uid`. An object with another uid is a different object, even if it has the same name. Shared, because
    /// all versions of an object have the same uid.
    pub uid: Arc<str>,
    /// `metadata.resourceVersion`.
    pub revision: ResourceVersion,
}

/// The lock object, read at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Observation {
    /// Version of the object.
    pub version: Version,
    /// Content of the object. An object without a record has an empty record, which is free. An object whose record
    /// cannot be parsed is [`unreadable`](Self::unreadable).
    pub record: Record,
    /// Fingerprint of the stored record, or of both records of a multi lock. It changes with every change of a record,
    /// but not if only other fields, such as labels, are edited. The lock computes it from the stored text.
    pub fingerprint: u64,
    /// The record could not be parsed. It counts as held by another candidate for our own lease duration. An invalid
    /// record therefore neither blocks the election nor is replaced immediately.
    pub unreadable: bool,
    /// Mark of the last write by an elector that writes marks, if there was one. It belongs to this record, or to an
    /// earlier record that another writer has replaced since.
    pub mark: Option<Mark>,
    /// Description of an incarnation on the object, if there is one. Other writers keep it, so it may belong to an
    /// earlier term; see [`incarnation`](Self::incarnation).
    pub described: Option<Arc<Incarnation>>,
    /// Requests of operators to this election, from annotations of the object.
    pub orders: Orders,
}

impl Observation {
    /// Returns whether the record was written by an elector that writes marks.
    pub fn is_marked(&self) -> bool {
        let own = Mark::of(&self.record);
        !self.unreadable && self.mark.is_some_and(|mark| mark.is(&own))
    }

    /// Returns the incarnation that holds the lock, if the object describes it. The description must name the term of
    /// the record, and the mark must name the record, so that no other incarnation can have a valid guard.
    pub fn incarnation(&self) -> Option<&Arc<Incarnation>> {
        let described = self.described.as_ref()?;
        (self.is_marked() && described.holds(&self.record)).then_some(described)
    }
}

/// Requests of operators.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Orders {
    /// No candidate may acquire the lock while this is set. The current holder keeps its term.
    pub paused: bool,
    /// Order to the holder of one specific term to step down. Boxed, because such an order is rare.
    pub step_down: Option<Box<StepDownOrder>>,
}

/// An order to give up one term.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepDownOrder {
    /// Number of transitions of the term that must end. The order has no effect once another term has begun, so it does
    /// not have to be removed.
    pub transitions: u32,
    /// Holder of the term that must end; `None` if the order does not name one.
    pub holder: Option<String>,
    /// Time at which that term was acquired; `None` if the order does not state it. An edit of the record may reset the
    /// number of transitions, so a later term may have the same number. It has another time.
    pub acquire_time: Option<WallTime>,
    /// The candidate that should acquire the lease next. Other candidates delay their attempt by one retry period.
    pub to: Option<String>,
    /// Time during which the former holder must not campaign.
    pub sit_out: Duration,
}

impl StepDownOrder {
    /// Returns whether a record shows the term that must end. Fields that the order does not have match every term.
    pub fn names(&self, record: &Record) -> bool {
        let holder = self.holder.as_ref();
        self.transitions == record.transitions
            && holder.is_none_or(|holder| *holder == record.holder)
            && (self.acquire_time.is_none() || self.acquire_time == record.acquire_time)
    }
}

/// Source of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The response to the read with this number. It is linearizable at some instant after the read was sent.
    Read(u64),
    /// The watch, which may be late. It makes reactions faster and never extends a guard.
    Watch,
}

/// Result of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The write was applied and created this version.
    Applied(Version),
    /// The write was rejected: conflict, already exists, or gone. It was not applied, unless a layer below repeated it
    /// and the conflict is with our own write (duty 3). The next read decides.
    Refused,
    /// It is unknown whether the write was or will be applied: timeout, connection reset, 5xx, 429.
    Unknown,
    /// The write was not applied. A retry cannot succeed until permissions or configuration change.
    Unusable,
}

/// An event that the election reacts to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Input {
    /// Starts the campaign. Must be the first input, and must be sent once.
    Start,
    /// Time has passed. Due at [`Election::deadline`](crate::Election::deadline).
    Tick,
    /// The lock object was observed.
    Observed(Source, Observation),
    /// The lock object does not exist. If the source is the watch, the version is that of the deletion.
    Absent(Source, Option<ResourceVersion>),
    /// The read with this number failed.
    ReadFailed(u64),
    /// The write with this number ended.
    Written(u64, Outcome),
    /// The watch works (true), or it is broken or forbidden (false). While it works, followers send no requests. Send
    /// the current state as an observation before `Watching(true)`.
    Watching(bool),
    /// The watch began with a list at this revision. Send it after the observation from that list. A list that is older
    /// than an earlier observation comes from a restored store or was overtaken by that observation, so a read confirms
    /// it.
    Listed(ResourceVersion),
    /// The guarded work of this term has ended, either after a [`Stop`](crate::Command::Stop) or by itself.
    WorkEnded,
    /// The main part of the work has ended by itself, but other parts of it may still run. Stops the term and releases
    /// nothing. [`WorkEnded`](Self::WorkEnded) follows once every part has ended.
    WorkEnding,
    /// The guard of the term with this token was found expired. The expiry may have lasted only a moment, if the wall
    /// clock jumped ahead and was set back. The term ends in any case.
    Expired(FencingToken),
    /// Gives up the current term, if there is one, and does not campaign for this long.
    StepDown(Duration),
    /// The incarnation that this version [describes](Observation::incarnation) is proved dead: all of its processes have
    /// ended. Send it again for every later version that describes the same incarnation.
    Dead(Version),
    /// The living candidates of this election, as last read; this candidate may be one of them. Send it after each read,
    /// and nothing if a read failed.
    Candidates(Vec<Standing>),
    /// Stops the work, releases the lock and finishes.
    Shutdown,
}
