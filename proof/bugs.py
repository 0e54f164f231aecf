"""The seeded bugs of crates/core/src/mutant.rs, and other broken assumptions, each as a change of the rules.

`fails` is the first obligation that a bug must make fail: a step and a clause of the invariant, or a promise.

`ELSEWHERE` lists the bugs of an election that this system cannot express, with the reason.
"""

from z3 import And, Bool, BoolVal, Not, Or, Real

from system import NUMBER, Rules, lease


class GuardFromAnswer(Rules):
    fails = ("begin", "guard_marked")

    def guard_start(self, actor, sent):
        return actor.clock


class WatchExtends(GuardFromAnswer):
    """The guard starts when an event arrives, and not when the write was sent."""


class ReleaseBeforeStop(Rules):
    fails = ("send_release", "guard_number")

    def may_release(self, actor):
        return BoolVal(True)


class ReleaseUnchecked(Rules):
    fails = ("send_release", "release_own")

    def may_empty(self, reg, actor, i):
        return BoolVal(True)


class NoJoin(Rules):
    fails = ("send_release", "work_number")

    def may_release(self, actor):
        return Not(actor.guard)


class ReleaseOnOverrun(NoJoin):
    """Work that exceeded its deadline counts as ended."""


class DroppedIsEnded(NoJoin):
    """Work whose future was dropped counts as ended."""


class ReleaseAfterGuard(Rules):
    fails = ("send_release", "release_in_time")

    def may_empty(self, reg, actor, i):
        return self.is_own(reg, i)


class NoClock(Rules):
    fails = ("promise", "S1")

    def guard_holds(self, actor, i, sent):
        return BoolVal(True)


class ShortLease(Rules):
    fails = ("apply", "mark_lease")

    def wire_lease(self, i):
        return lease(i) / 2


class OwnName(Rules):
    """Assumption A4 is not needed by the shipped rules: two candidates may have one name."""
    fails = ("send", "challenger")

    def is_own(self, reg, i):
        return Or(reg.author == NUMBER[i], And(reg.author > 0, Bool("same_name")))


class ClaimByTimes(OwnName):
    """Two processes with one name write the same record in the same second."""


class CreateAtOnce(Rules):
    fails = ("send", "creator")

    def may_create(self, reg, actor, i):
        return BoolVal(True)


class TokenFromTransitions(Rules):
    fails = ("begin", "term")

    def token(self, write):
        return Real("transitions")


class TokenFromProcess(Rules):
    fails = ("begin", "term")

    def token(self, write):
        return write.id


class UnknownExtends(Rules):
    fails = ("extend", "guard_number")

    def is_counted(self, write):
        return BoolVal(True)


class HalfPatience(Rules):
    fails = ("send", "replaces_foreign")

    def patience(self, stated, i):
        return stated / 2


class OwnPatience(Rules):
    fails = ("send", "replaces_foreign")

    def patience(self, stated, i):
        return lease(i)


class NoLockDelay(Rules):
    fails = ("send", "replaces_foreign")

    def patience(self, stated, i):
        return stated


class KeepSince(Rules):
    fails = ("foreign_write", "saw_record")

    def after_change(self, saw):
        return saw


class OverlookMark(KeepSince):
    """The wait for a mark that names a renewal which was not observed starts at the last observed one."""


class IgnoreMark(Rules):
    fails = ("send", "challenger")

    def mark_is_over(self, reg, actor, i):
        return BoolVal(True)


class BelieveStaleMark(Rules):
    fails = ("send", "challenger")

    def mark_is_over(self, reg, actor, i):
        return Or(reg.empty, super().mark_is_over(reg, actor, i))


class AssignedAtOnce(Rules):
    fails = ("send", "challenger")

    def mark_is_over(self, reg, actor, i):
        return Or(reg.assignee == NUMBER[i], super().mark_is_over(reg, actor, i))


class ProofOfAnyVersion(Rules):
    fails = ("send", "challenger")

    def holder_is_dead(self, reg, actor):
        return And(actor.proof >= 0, reg.described)


class ProofOfAnybody(Rules):
    fails = ("send", "replaces_foreign")

    def holder_is_dead(self, reg, actor):
        return actor.proof == reg.version


class ProofByIdentity(ProofOfAnybody):
    """A description of an earlier term counts, so the current version does not describe its holder."""


class BeginAfterRelease(Rules):
    """A late answer to a write that was sent before the release begins a term."""
    fails = ("begin", "guard_number")

    def is_current_term(self, actor, write):
        return BoolVal(True)


class StoppedClock(Rules):
    fails = ("pass_time", "author_clock")

    def rate(self, dt, d):
        return And(0 <= d, d <= dt)


class BlindServer(Rules):
    fails = ("apply", "guard_marked")

    def fits(self, reg, write):
        return BoolVal(True)


# Bugs of an election, by their names in `enum Mutant`, and three that are not in the core.
SEEDED = [
    GuardFromAnswer, ReleaseBeforeStop, ReleaseUnchecked, NoJoin, NoClock, ShortLease, OwnName, ClaimByTimes,
    CreateAtOnce, TokenFromTransitions, TokenFromProcess, UnknownExtends, WatchExtends, HalfPatience, OwnPatience,
    NoLockDelay, KeepSince, ReleaseAfterGuard, ReleaseOnOverrun, AssignedAtOnce, IgnoreMark, BelieveStaleMark,
    OverlookMark, DroppedIsEnded, ProofOfAnyVersion, ProofOfAnybody, ProofByIdentity,
]
OTHERS = [BeginAfterRelease, StoppedClock, BlindServer]

LIVENESS = "no guard, write or token depends on it; it concerns L1"
ORDERS = "the system has no orders of operators"
RANKS = "the system has no ranks: a leader may send a release whenever its guard and its work have ended"
EXPIRES = "S1 does not rely on it: the guard expires by its clock, and the compare-and-set rejects the renewal"
ELSEWHERE = {
    "IgnoreForeign": EXPIRES,
    "IgnoreDeleted": EXPIRES,
    "IgnoreOrders": ORDERS,
    "IgnorePause": ORDERS,
    "ObeyForEver": ORDERS,
    "ObeyEarlier": ORDERS,
    "TakeBack": ORDERS,
    "IgnoreOldList": "restores to lower revisions break A1 and are not in the system",
    "TakeUnassigned": "the system lets every candidate acquire an assigned lease after the wait",
    "KeepTransitions": "the system has no numbers of transitions",
    "NoReRead": LIVENESS,
    "GiveUp": LIVENESS,
    "ForgetAttempts": LIVENESS,
    "ProofIgnored": LIVENESS,
    "PreferEqual": RANKS,
    "PreferUnready": RANKS,
    "PreferHastily": RANKS,
    "PreferAcrossTerms": RANKS,
    "PreferUnobserved": RANKS,
    "PreferWhilePaused": RANKS,
    "PreferUnnamed": RANKS,
    "PreferNobody": RANKS,
}
