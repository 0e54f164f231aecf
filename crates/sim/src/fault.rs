//! Everything that can go wrong, and how often it did.

use std::fmt;
use std::ops::AddAssign;

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Fault { $($(#[doc = $doc])* $name,)* }

        impl Fault {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// A word for reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Whether it strikes leaders for life only.
            pub const fn is_for_life(self) -> bool {
                self as u8 >= Self::PodDeleted as u8
            }
        }
    };
}

faults! {
    /// The request never arrives.
    RequestLost = "request lost",
    /// It is carried out, and the answer never arrives.
    AnswerLost = "answer lost",
    /// It is carried out much later, without an answer.
    RequestLate = "request applied late",
    /// The answer takes long.
    AnswerLate = "answer late",
    /// 500 or 503, not carried out.
    ErrorNotApplied = "5xx, not applied",
    /// 504 and the like, yet carried out.
    ErrorApplied = "5xx, applied",
    /// 504 at once, carried out much later.
    ErrorAppliedLater = "5xx, applied later",
    /// 429.
    Throttled = "429",
    /// 403.
    Forbidden = "403",
    /// The request arrives again later.
    Duplicate = "duplicate request",
    /// Carried out, then repeated below us: 409 for our own write.
    OwnConflict = "409 for our own write",
    /// A read is answered from an old cache.
    StaleRead = "stale read",
    /// Nothing passes.
    Partition = "partition",
    /// Requests are lost, answers would pass.
    PartitionRequests = "partition of requests",
    /// Requests pass, answers are lost.
    PartitionAnswers = "partition of answers",
    /// What a partition caught is delivered when it heals.
    HeldTraffic = "traffic held until heal",
    /// kill -9.
    Crash = "crash",
    /// SIGSTOP and SIGCONT.
    Pause = "pause",
    /// Suspend: the clock goes on.
    Suspend = "suspend",
    /// A hypervisor pause: the clock stops, wall time jumps afterwards.
    MachinePause = "machine pause",
    /// The wall clock is set forward.
    WallForward = "wall clock forward",
    /// The wall clock is set back.
    WallBack = "wall clock back",
    /// A timer fires late.
    TimerLate = "late timer",
    /// A watch event is lost.
    WatchLost = "watch event lost",
    /// A watch event comes late.
    WatchLate = "watch event late",
    /// A watch event comes twice.
    WatchTwice = "watch event twice",
    /// An old watch event comes again.
    WatchOld = "old watch event",
    /// The watch breaks and comes back later.
    WatchBreak = "watch broken",
    /// Somebody edits labels of the object.
    LabelEdit = "label edit",
    /// An operator orders the present term to end.
    Order = "order to step down",
    /// An operator pauses the election, or resumes it.
    OrderPause = "pause ordered or lifted",
    /// Coordinated: the controller would rather have another holder.
    Preferred = "another holder preferred",
    /// Work takes long to end.
    WorkSlow = "slow work",
    /// Work ignores its cancellation.
    WorkStuck = "stuck work",
    /// Work ends by itself.
    WorkEnds = "work ends by itself",
    /// Work goes on after its future has ended or was dropped.
    WorkOutlives = "work outlives its future",
    /// Ending a process whose work overran takes a moment.
    SlowKill = "kill that takes a moment",
    /// The process is asked to step down.
    StepDown = "step down",
    /// The process is shut down in order, and started again.
    Shutdown = "shutdown",
    /// Somebody deletes the object.
    HumanDelete = "object deleted",
    /// Somebody empties the holder.
    HumanClear = "holder cleared",
    /// Somebody writes another holder.
    HumanRename = "holder renamed",
    /// Somebody changes the duration.
    HumanDuration = "duration edited",
    /// Somebody writes garbage.
    HumanGarbage = "garbage written",
    /// The store is restored from a backup, revisions go back.
    Restore = "restore, revision back",
    /// The store is restored, revisions jump ahead.
    RestoreBumped = "restore, revision ahead",
    /// For life: the processes of a pod end, and the pod is removed.
    PodDeleted = "pod deleted",
    /// For life: a pod is removed while its processes run, cut off.
    PodForced = "pod deleted by force",
    /// For life: a pod fails, and stays as an object.
    PodFailed = "pod failed",
    /// For life: another pod takes the place of one, under the same name or another.
    PodReplaced = "pod replaced",
    /// For life: the node of a pod does not answer.
    NodeLost = "node lost",
    /// For life: the name that a process has for its pod is another one.
    PodMisnamed = "pod under a wrong name",
    /// For life: the garbage collector removes the Lease of a pod that is gone.
    LeaseCollected = "lease of a gone pod collected",
}

const KINDS: usize = Fault::ALL.len();

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet(u64);

impl FaultSet {
    /// Adds a kind.
    pub const fn add(&mut self, fault: Fault) {
        self.0 |= 1 << fault as u8;
    }

    /// Takes a kind out.
    pub const fn remove(&mut self, fault: Fault) {
        self.0 &= !(1 << fault as u8);
    }

    /// Whether a kind is in it.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & (1 << fault as u8) != 0
    }

    /// Its members.
    pub fn iter(self) -> impl Iterator<Item = Fault> {
        Fault::ALL.iter().copied().filter(move |f| self.has(*f))
    }
}

/// How often each kind was injected.
#[derive(Clone, Debug)]
pub struct FaultCounts([u64; KINDS]);

impl Default for FaultCounts {
    fn default() -> Self {
        Self([0; KINDS])
    }
}

impl FaultCounts {
    /// Counts one.
    pub const fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// How often a kind was injected.
    pub const fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// How many in all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

impl AddAssign<&Self> for FaultCounts {
    fn add_assign(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in Fault::ALL.iter().enumerate() {
            if self.0[i] == 0 {
                continue;
            }
            writeln!(f, "    {:<30}{:>12}", fault.name(), self.0[i])?;
        }
        Ok(())
    }
}
