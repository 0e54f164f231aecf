//! Seeded bugs that the simulator must find.
//!
//! A checker that has never found a bug proves little. With the hidden feature `_mutants`, one of these bugs can be
//! enabled in an election, and the simulator must detect each of them. V1-V9 are the ways in which client-go violates
//! the guarantees (`docs/book/explanation/safety.md`). The others are mistakes that a change of this crate could
//! make. The code asks its rules (for example `ElectionRules`) whether a bug is seeded. Without the feature, the
//! answer is the constant `false`.

macro_rules! mutants {
    ($(#[$about:meta])* $kind:ident, $visibility:vis $rules:ident: $($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        $(#[$about])*
        #[cfg_attr(not(feature = "_mutants"), expect(unreachable_pub, reason = "hidden then"))]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind { $($(#[doc = $doc])* $name,)* }

        #[cfg(feature = "_mutants")]
        impl $kind {
            /// All bugs of this kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Returns the name for reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }

        /// The shipped rules, or rules with a seeded bug that the simulator must find.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        $visibility struct $rules {
            #[cfg(feature = "_mutants")]
            pub(crate) mutant: Option<$kind>,
        }

        impl $rules {
            /// Returns rules with a seeded bug.
            #[cfg(feature = "_mutants")]
            #[doc(hidden)]
            $visibility const fn mutated(mutant: $kind) -> Self {
                Self { mutant: Some(mutant) }
            }

            #[cfg(feature = "_mutants")]
            pub(crate) fn is(self, mutant: $kind) -> bool {
                self.mutant == Some(mutant)
            }

            #[cfg(not(feature = "_mutants"))]
            pub(crate) const fn is(self, _: $kind) -> bool {
                false
            }
        }
    };
}

mutants! {
    /// One seeded bug of an election.
    #[cfg_attr(not(feature = "_mutants"), expect(dead_code, reason = "only `seeded.rs` names most of them"))]
    Mutant, pub(crate) ElectionRules:
    /// The guard starts at the response.
    GuardFromAnswer = "V1 guard counted from the answer",
    /// The release is sent before the work is cancelled.
    ReleaseBeforeStop = "V2 release before stop",
    /// The release checks neither whose record it replaces nor the time.
    ReleaseUnchecked = "V3 release unchecked",
    /// A foreign holder does not end the term.
    IgnoreForeign = "V4 foreign holder ignored",
    /// The election does not wait for the work to end.
    NoJoin = "V5 work not joined",
    /// The guard does not depend on the time.
    NoClock = "V6 guard without a clock",
    /// The lease on the wire is shorter than the guard.
    ShortLease = "V7 lease cut short on the wire",
    /// A record with our name counts as ours.
    OwnName = "V8 own name is mine",
    /// Whole-second times count as proof of the writer.
    ClaimByTimes = "V8 same second is mine",
    /// After a deletion the object is created immediately.
    CreateAtOnce = "V9 create at once after deletion",
    /// The token is the number of transitions.
    TokenFromTransitions = "V9 token from transitions",
    /// The token is a counter of this process.
    TokenFromProcess = "token from a process counter",
    /// An unknown result extends the guard.
    UnknownExtends = "unknown outcome extends",
    /// A watch event extends the guard, starting now.
    WatchExtends = "watch extends",
    /// Records are replaced after half their lease duration.
    HalfPatience = "half patience",
    /// The candidate waits for its own lease duration instead of the record's.
    OwnPatience = "own duration, not the record's",
    /// The lock delay is ignored.
    NoLockDelay = "no lock delay",
    /// A changed record does not restart the wait.
    KeepSince = "renewals of others overlooked",
    /// The lock is released even if the guard has expired.
    ReleaseAfterGuard = "release after the guard ran out",
    /// Work that exceeded its deadline counts as ended.
    ReleaseOnOverrun = "release on overrun",
    /// An order to step down is ignored.
    IgnoreOrders = "orders ignored",
    /// A paused election is acquired.
    IgnorePause = "pause ignored",
    /// An order is also obeyed by every later term.
    ObeyForEver = "order obeyed by later terms",
    /// An order of an earlier term is obeyed by a later term with the same number.
    ObeyEarlier = "order of an earlier term obeyed",
    /// The former holder does not wait for the candidate that an order names.
    TakeBack = "lock taken back from the named candidate",
    /// A list of a restored store is not confirmed by a read.
    IgnoreOldList = "list of a restored store ignored",
    /// Coordinated: a lease that was assigned to another candidate is acquired when it has expired.
    TakeUnassigned = "assignment of another taken",
    /// Coordinated: an assignment is taken up without waiting for the term that it replaced.
    AssignedAtOnce = "assignment taken up at once",
    /// Coordinated: the write that takes up an assignment keeps the number of transitions, as client-go does.
    KeepTransitions = "transitions kept on take-up",
    /// The mark of the last term is ignored: an emptied record counts as free.
    IgnoreMark = "mark ignored",
    /// A mark on an empty record is attributed to that record, even if it names another record.
    BelieveStaleMark = "stale mark believed",
    /// If the mark names a renewal that was not observed, the wait still starts at the last observed renewal.
    OverlookMark = "unseen renewal in the mark overlooked",
    /// A deletion does not end the term.
    IgnoreDeleted = "deletion ignored",
    /// A rejected write is repeated without a read.
    NoReRead = "no read after a conflict",
    /// A failed read is not repeated.
    GiveUp = "no retry after a failed read",
    /// Attempts with unknown results are forgotten.
    ForgetAttempts = "unknown outcomes forgotten",
    /// Work whose future was dropped counts as ended, although parts of it still run.
    DroppedIsEnded = "dropped future counts as ended",
    /// A proof of death counts for every version, not only for the one that it names.
    ProofOfAnyVersion = "proof: version not compared",
    /// A proof of death counts for a record whose holder is not described.
    ProofOfAnybody = "proof: holder without a description",
    /// A description counts for every term of the same identity.
    ProofByIdentity = "proof: description bound to the identity only",
    /// A leader hands over to a candidate of equal rank.
    PreferEqual = "failback: equal rank counts as higher",
    /// A leader hands over to a candidate that is not ready.
    PreferUnready = "failback: readiness ignored",
    /// A leader hands over after half of the time.
    PreferHastily = "failback: time cut in half",
    /// The time before the beginning of the term counts.
    PreferAcrossTerms = "failback: time before the term counts",
    /// Time in which the candidates were not observed counts.
    PreferUnobserved = "failback: unobserved time counts",
    /// A leader of a paused election hands over.
    PreferWhilePaused = "failback: pause ignored",
    /// The release does not name the candidate.
    PreferUnnamed = "failback: candidate not named",
    /// A leader never hands over.
    PreferNobody = "failback: better candidate ignored",
    /// A proof of death has no effect.
    ProofIgnored = "proof: ignored",
}

mutants! {
    /// One seeded bug of a lock in two objects.
    PairMutant, pub PairRules:
    /// The candidate neither waits for the secondary object nor checks its holder.
    PrimaryCounts = "pair: the primary counts alone",
    /// If the two objects name different holders, the holder of the first one is used.
    IgnoreMismatch = "pair: holders that differ ignored",
    /// The secondary object is replaced regardless of its version, as client-go does.
    BlindSecondary = "pair: secondary replaced unseen",
    /// A write that failed halfway counts as applied.
    HalfIsEnough = "pair: half a write is enough",
}

mutants! {
    /// One seeded bug of leaders for life and of the candidates that follow their pods.
    LifeMutant, pub LifeRules:
    /// A pod that was never observed counts as gone.
    AbsenceIsDeath = "life: absence alone is death",
    /// Any pod with the name of the holder's pod counts as that pod, even if its uid differs.
    AnyUid = "life: uid not compared",
    /// An absence counts even if the view is older than the pod.
    StaleAbsence = "life: absence in an old view is death",
    /// A record is emptied without checking its current holder.
    AnyRecord = "life: record of another emptied",
    /// A process campaigns without having read its own pod.
    UnverifiedStart = "life: own pod not verified at start",
}

mutants! {
    /// One seeded bug of the decision whether an incarnation is dead.
    DeathMutant, pub DeathRules:
    /// The start time of a process is not compared, so an earlier process with a reused pid counts.
    PidAlone = "death: start time not compared",
    /// The boot of a process is not compared.
    AnyBoot = "death: boot not compared",
    /// A new boot of any machine counts.
    AnyMachine = "death: machine not compared",
    /// The end of one of several processes is enough.
    OneProcess = "death: one process is enough",
    /// The end of an earlier run of the container counts.
    AnyRun = "death: run of the container not compared",
    /// The end of a run in the second in which the term was acquired counts.
    SameSecond = "death: end in the second of the acquisition counts",
    /// The start of the run is not compared, so a later run counts.
    LaterRun = "death: start of the run not compared",
    /// The start of the next run is not compared, so an earlier run counts if the clock was set back.
    NextRun = "death: start of the next run not compared",
    /// The end of another container of the pod counts.
    AnyContainer = "death: container not compared",
    /// A pod object that no longer exists counts as a dead pod.
    GoneIsDead = "death: pod that is gone is dead",
    /// A release after a crash compares only the identity of the holder.
    ReleaseByIdentity = "crash release: identity alone compared",
    /// A release after a crash releases any term.
    ReleaseAnyTerm = "crash release: term not compared",
}

mutants! {
    /// One seeded bug of a shard group.
    ShardMutant, pub ShardRules:
    /// Replicas with any number of shards may join.
    NotCompared = "shards: number not compared",
    /// A changed number is used while shards of the old number still have owners.
    StartWithoutWaiting = "shards: old shards not waited for",
    /// A shard is used without reading the agreement after it was won.
    UncheckedWin = "shards: win not confirmed",
    /// The wait ends after half a lease duration without a change.
    HalfPatience = "shards: half patience",
}

mutants! {
    /// One seeded bug of a semaphore.
    SlotMutant, pub SlotRules:
    /// Candidates with any number of slots may join.
    NotCompared = "slots: number not compared",
    /// A slot is used without reading the number after it was won.
    UncheckedWin = "slots: win not confirmed",
    /// A number that could not be read counts as the candidate's own number.
    SilenceIsConsent = "slots: no answer is taken for consent",
    /// A slot is used without reading the lease of the election without slots after the slot was won.
    WholeUnchecked = "slots: leader without slots not looked for",
    /// A term of an election without slots is used without reading the number of slots after it was won.
    UncheckedTerm = "slots: term without slots not confirmed",
}
