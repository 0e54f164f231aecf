//! Seeded bugs, for the simulator to find.
//!
//! A checker that has never found anything proves little. With the hidden feature `mutants` one of
//! these can be switched on in an election; the simulator must notice each. V1-V9 are the ways in
//! which client-go breaks the promises (`docs/safety.md`), the others are mistakes that a change of
//! this crate could make. Without the feature every switch is the constant `false`.

macro_rules! mutants {
    ($(#[doc = $about:literal])* $kind:ident: $($(#[doc = $doc:literal])* $name:ident = $text:literal,)*) => {
        $(#[doc = $about])*
        #[cfg_attr(not(feature = "mutants"), expect(unreachable_pub, reason = "hidden then"))]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $kind { $($(#[doc = $doc])* $name,)* }

        #[cfg(feature = "mutants")]
        impl $kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// A word for reports.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

mutants! {
    /// One seeded bug of an election.
    Mutant:
    /// The guard counts from the answer.
    GuardFromAnswer = "V1 guard counted from the answer",
    /// The release is sent before the work is told to stop.
    ReleaseBeforeStop = "V2 release before stop",
    /// The release asks neither whose record it replaces nor what time it is.
    ReleaseUnchecked = "V3 release unchecked",
    /// A foreign holder does not end the term.
    IgnoreForeign = "V4 foreign holder ignored",
    /// Nobody waits for the work to end.
    NoJoin = "V5 work not joined",
    /// The guard has no time in it.
    NoClock = "V6 guard without a clock",
    /// The lease on the wire is shorter than the guard.
    ShortLease = "V7 lease cut short on the wire",
    /// Our name in the record means that it is ours.
    OwnName = "V8 own name is mine",
    /// Whole-second times are taken for proof of who wrote.
    ClaimByTimes = "V8 same second is mine",
    /// After a deletion the object is created at once.
    CreateAtOnce = "V9 create at once after deletion",
    /// The token is the count of transitions.
    TokenFromTransitions = "V9 token from transitions",
    /// The token is a number of this process.
    TokenFromProcess = "token from a process counter",
    /// An unknown outcome extends the guard.
    UnknownExtends = "unknown outcome extends",
    /// The watch extends the guard, from now.
    WatchExtends = "watch extends",
    /// Records are replaced after half their lease.
    HalfPatience = "half patience",
    /// Our own lease duration is waited for, not the record's.
    OwnPatience = "own duration, not the record's",
    /// A changed record does not start the wait anew.
    KeepSince = "renewals of others overlooked",
    /// The guard's end does not keep from releasing.
    ReleaseAfterGuard = "release after the guard ran out",
    /// Work that overran is taken for ended.
    ReleaseOnOverrun = "release on overrun",
    /// An order to step down is not obeyed.
    IgnoreOrders = "orders ignored",
    /// A paused election is acquired.
    IgnorePause = "pause ignored",
    /// An order is obeyed by every later term, too.
    ObeyForEver = "order obeyed by later terms",
    /// The former holder does not hold back for the candidate that an order names.
    TakeBack = "lock taken back from the named candidate",
    /// A list of a restored store is not looked into.
    IgnoreOldList = "list of a restored store ignored",
    /// Coordinated: a lease that was given to another is taken when it has run out.
    TakeUnassigned = "assignment of another taken",
    /// Coordinated: an assignment is taken up without waiting for the term that it replaced.
    AssignedAtOnce = "assignment taken up at once",
    /// Coordinated: the write that takes an assignment up keeps the count of transitions, as client-go does.
    KeepTransitions = "transitions kept on take-up",
    /// The mark of the last term is not looked at: an emptied record is free.
    IgnoreMark = "mark ignored",
    /// A mark on an empty record is believed to be of that record, whichever record it names.
    BelieveStaleMark = "stale mark believed",
    /// The mark names a renewal that was not seen; the wait goes on from the one that was.
    OverlookMark = "unseen renewal in the mark overlooked",
    /// A deletion does not end the term.
    IgnoreDeleted = "deletion ignored",
    /// A refused write is repeated without looking.
    NoReRead = "no read after a conflict",
    /// A failed read is the last one.
    GiveUp = "no retry after a failed read",
    /// Unknown outcomes are forgotten.
    ForgetAttempts = "unknown outcomes forgotten",
    /// Work whose future was dropped counts as ended, although parts of it still run.
    DroppedIsEnded = "dropped future counts as ended",
}

mutants! {
    /// One seeded bug of a lock in two objects.
    PairMutant:
    /// The secondary is neither waited for nor asked who holds it.
    PrimaryCounts = "pair: the primary counts alone",
    /// Two objects that name different holders are taken for the first one's.
    IgnoreMismatch = "pair: holders that differ ignored",
    /// The secondary is replaced in whatever version it is found, as client-go does.
    BlindSecondary = "pair: secondary replaced unseen",
    /// A write that failed halfway counts as done.
    HalfIsEnough = "pair: half a write is enough",
}

mutants! {
    /// One seeded bug of leaders for life and of the candidates that look after their pods.
    LifeMutant:
    /// A pod that nobody has seen counts as gone.
    AbsenceIsDeath = "life: absence alone is death",
    /// A pod of the same name is taken for the holder's, whatever its uid.
    AnyUid = "life: uid not compared",
    /// The absence in a view from before the pod was there counts.
    StaleAbsence = "life: absence in an old view is death",
    /// A record is emptied without a look at who holds it by then.
    AnyRecord = "life: record of another emptied",
    /// A process campaigns without having read its own pod.
    UnverifiedStart = "life: own pod not verified at start",
}

mutants! {
    /// One seeded bug of a shard group.
    ShardMutant:
    /// Replicas of any number of shards take part.
    NotCompared = "shards: number not compared",
    /// A changed number counts while shards of the old one have owners.
    StartWithoutWaiting = "shards: old shards not waited for",
    /// A shard is used without a look at the agreement after it was won.
    UncheckedWin = "shards: win not confirmed",
    /// Half a lease without a change is enough.
    HalfPatience = "shards: half patience",
}

mutants! {
    /// One seeded bug of a semaphore.
    SlotMutant:
    /// Candidates of any number of slots take part.
    NotCompared = "slots: number not compared",
    /// A slot is used without a look at the number after it was won.
    UncheckedWin = "slots: win not confirmed",
    /// A number that nobody could read is taken for the candidate's own.
    SilenceIsConsent = "slots: no answer is taken for consent",
}
