//! All kinds of faults, and how often each was injected.

use std::fmt;
use std::ops::AddAssign;

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Fault { $($(#[doc = $doc])* $name,)* }

        impl Fault {
            /// All kinds of faults.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name for reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns whether the fault affects runs with proofs of death only.
            pub const fn is_of_proofs(self) -> bool {
                self as u8 >= Self::Reboot as u8 && !self.is_of_ranks() && !self.is_for_life()
            }

            /// Returns whether the fault affects runs with ranked candidates only.
            pub const fn is_of_ranks(self) -> bool {
                self as u8 >= Self::MemberFlaps as u8 && !self.is_for_life()
            }

            /// Returns whether the fault affects leaders for life only.
            pub const fn is_for_life(self) -> bool {
                self as u8 >= Self::PodDeleted as u8
            }
        }
    };
}

faults! {
    /// The request never arrives.
    RequestLost = "request lost",
    /// The request is executed, and the response never arrives.
    AnswerLost = "answer lost",
    /// The request is executed much later, without a response.
    RequestLate = "request applied late",
    /// The response is slow.
    AnswerLate = "answer late",
    /// 500 or 503, not executed.
    ErrorNotApplied = "5xx, not applied",
    /// 504 or similar, but executed.
    ErrorApplied = "5xx, applied",
    /// 504 immediately, executed much later.
    ErrorAppliedLater = "5xx, applied later",
    /// 429.
    Throttled = "429",
    /// 403.
    Forbidden = "403",
    /// The request arrives again later.
    Duplicate = "duplicate request",
    /// The request is executed, then repeated by a layer below: 409 for our own write.
    OwnConflict = "409 for our own write",
    /// A read is answered from a stale cache.
    StaleRead = "stale read",
    /// No traffic passes.
    Partition = "partition",
    /// Requests are lost, and responses would pass.
    PartitionRequests = "partition of requests",
    /// Requests pass, and responses are lost.
    PartitionAnswers = "partition of answers",
    /// Messages that a partition blocked are delivered when it heals.
    HeldTraffic = "traffic held until heal",
    /// kill -9.
    Crash = "crash",
    /// SIGSTOP and SIGCONT.
    Pause = "pause",
    /// Suspend: the clock continues.
    Suspend = "suspend",
    /// A hypervisor pause: the clock stops, and the wall time jumps afterwards.
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
    /// A person edits labels of the object.
    LabelEdit = "label edit",
    /// An operator orders the current term to end.
    Order = "order to step down",
    /// An operator pauses the election, or resumes it.
    OrderPause = "pause ordered or lifted",
    /// Coordinated: the controller prefers another holder.
    Preferred = "another holder preferred",
    /// Work is slow to stop.
    WorkSlow = "slow work",
    /// Work ignores its cancellation.
    WorkStuck = "stuck work",
    /// Work ends by itself.
    WorkEnds = "work ends by itself",
    /// Work continues after its future has ended or was dropped.
    WorkOutlives = "work outlives its future",
    /// Ending a process whose work exceeded its deadline takes a moment.
    SlowKill = "kill that takes a moment",
    /// The process is asked to step down.
    StepDown = "step down",
    /// The process is shut down gracefully and started again.
    Shutdown = "shutdown",
    /// A person deletes the object.
    HumanDelete = "object deleted",
    /// A person clears the holder.
    HumanClear = "holder cleared",
    /// A person writes another holder.
    HumanRename = "holder renamed",
    /// A person changes the duration.
    HumanDuration = "duration edited",
    /// A person writes an invalid record.
    HumanGarbage = "garbage written",
    /// The store is restored from a backup, and its revision goes back.
    Restore = "restore, revision back",
    /// The store is restored from a backup, and its revision jumps ahead.
    RestoreBumped = "restore, revision ahead",
    /// Proofs: the machine of a process crashes and boots again.
    Reboot = "machine rebooted",
    /// Proofs: another process that had the holder's pid has ended.
    EvidenceReusedPid = "evidence of a reused pid",
    /// Proofs: a process of another boot with the holder's pid and start time has ended.
    EvidenceOtherBoot = "evidence of another boot",
    /// Proofs: one of the holder's processes is stopped, and another one has ended.
    EvidenceOneProcess = "evidence of one of two processes",
    /// Proofs: an earlier run of the holder's container has ended.
    EvidenceOldRun = "evidence of an earlier run",
    /// Proofs: the kubelet has lost the holder's container and started another run, which has ended.
    EvidenceLaterRun = "evidence of a later run",
    /// Proofs: the clock of the node was set back between an earlier run and the run of the holder.
    EvidenceClockSetBack = "evidence of an earlier run by a clock that was set back",
    /// Proofs: another container of the holder's pod has ended.
    EvidenceOtherContainer = "evidence of another container",
    /// Proofs: the object of the holder's pod was deleted by force, and its processes still run.
    EvidencePodGone = "evidence of a deleted pod",
    /// Proofs: a proof names an earlier version, whose holder has ended.
    ProofOfOldVersion = "proof of an earlier version",
    /// Proofs: a proof names a version whose holder is not described.
    ProofOfUndescribed = "proof of an undescribed holder",
    /// Ranks: a candidate becomes ready, or ceases to be.
    MemberFlaps = "readiness changed",
    /// Ranks: a candidate reads an old list of the members.
    MemberStale = "old list of members",
    /// Ranks: a member has a wrong rank in one list.
    MemberWrong = "wrong rank of a member",
    /// Ranks: a candidate cannot read the members for some time.
    MembersUnread = "members not read",
    /// For life: the processes of a pod end, and the pod is deleted.
    PodDeleted = "pod deleted",
    /// For life: a pod is deleted while its processes still run without a network.
    PodForced = "pod deleted by force",
    /// For life: a pod fails, and its object stays.
    PodFailed = "pod failed",
    /// For life: a pod is replaced by another one with the same or another name.
    PodReplaced = "pod replaced",
    /// For life: the node of a pod does not respond.
    NodeLost = "node lost",
    /// For life: a process has a wrong name for its pod.
    PodMisnamed = "pod under a wrong name",
    /// For life: the garbage collector deletes the Lease of a deleted pod.
    LeaseCollected = "lease of a gone pod collected",
}

const KINDS: usize = Fault::ALL.len();

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultSet(u128);

impl FaultSet {
    /// Adds a kind.
    pub const fn add(&mut self, fault: Fault) {
        self.0 |= 1_u128 << fault as u8;
    }

    /// Removes a kind.
    pub const fn remove(&mut self, fault: Fault) {
        self.0 &= !(1_u128 << fault as u8);
    }

    /// Returns whether the set contains a kind.
    pub const fn has(self, fault: Fault) -> bool {
        self.0 & (1_u128 << fault as u8) != 0
    }

    /// Returns the kinds in the set.
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
    /// Counts one injection.
    pub const fn count(&mut self, fault: Fault) {
        self.0[fault as usize] += 1;
    }

    /// Returns how often a kind was injected.
    pub const fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Returns the total number of injections.
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
