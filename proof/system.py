"""The election as a transition system: its variables, its rules and its transitions.

Three candidates p, q and r stand for any number of candidates. A step concerns one actor, and every clause of the
invariant concerns at most two candidates, so three of them cover every combination. Two messages m and n of each
candidate stand for any number of writes in the same way.

Times are real numbers. `now` is real time in units in which the fastest permitted clock is exact: during `dt`, every
clock advances by at least c * dt and at most dt, where c = (1 - rho) / (1 + rho).
"""

from z3 import And, Bool, BoolVal, If, Implies, Not, Or, Real, RealVal

CANDIDATES = ("p", "q", "r")
SLOTS = ("m", "n")

# The number of each candidate in `author`, `mark_author` and `assignee`; 0 is another writer, and any other number is
# another candidate.
NUMBER = {"p": 1, "q": 2, "r": 3}

REGISTER = {
    "now": Real,  # real time
    "exists": Bool,  # the object exists
    "version": Real,  # version of the last change, also of a deletion
    "author": Real,  # the candidate that wrote the record; 0 for another writer
    "empty": Bool,  # the record has no holder
    "assignee": Real,  # the candidate to which a controller assigned the lease; 0 for none
    "record_at": Real,  # when the record was written
    "record_lease": Real,  # the lease duration in the record
    "described": Bool,  # the object describes the author of the record, which is alive or not
    "mark_author": Real,  # the candidate of the last marked write; 0 if there is no mark
    "mark_free": Bool,  # there is no mark, or the marked write is a release
    "mark_sent": Real,  # clock of its author when the marked write was sent
    "mark_at": Real,  # when the marked write was applied
    "mark_lease": Real,  # the lease duration in the mark
    "terms": Real,  # number of winning writes so far
    "intact": Bool,  # assumption A1: nobody has deleted the object
}

CANDIDATE = {
    "alive": Bool,  # its process runs
    "clock": Real,  # its local clock
    "guard": Bool,  # a term has begun and was not stopped
    "guard_sent": Real,  # clock at the send of the write from which the guard counts
    "guard_id": Real,  # number of that write
    "guard_version": Real,  # the version that it created
    "floor": Real,  # number of its last release; earlier writes begin and extend no term
    "last_id": Real,  # number of its last write
    "work": Bool,  # guarded work runs
    "work_id": Real,  # number of the write that won the term of the work
    "led": Bool,  # a term has begun
    "token": Real,  # token of the last term
    "term": Real,  # number of the winning write of the last term, in the order of the store
    "saw_mark": Bool,  # it has observed the current mark
    "saw_mark_at": Real,  # clock at the first observation of the current mark
    "saw_record": Bool,  # it has observed the current record
    "saw_record_at": Real,  # clock at the first observation of the current record
    "proof": Real,  # the version whose holder is proved dead
}

MESSAGE = {
    "live": Bool,  # the write was sent
    "id": Real,  # its number; later writes of the candidate have greater numbers
    "sent": Real,  # clock of the candidate when it was sent
    "base": Real,  # the version that it replaces, or for a creation the version of the absence
    "creates": Bool,  # it creates the object
    "wins": Bool,  # it wins a term: a creation or an acquisition
    "releases": Bool,  # it is a release
    "watchdog": Bool,  # the watchdog of a dead process sent the release
    "knew": Bool,  # its sender had observed the mark of the version in `base`
    "applied": Bool,  # it was applied
    "version": Real,  # the version that it created
    "term": Real,  # its number among the winning writes
}

CONSTANTS = ("c", "delay", *(f"{kind}_{i}" for kind in ("lease", "length") for i in CANDIDATES))


class Group:
    """The variables of the register, of one candidate or of one message."""

    def __init__(self, prefix, kinds):
        self.__dict__.update({name: kind(f"{prefix}.{name}") for name, kind in kinds.items()})

    def changed(self, **values):
        """Returns a copy with other values."""
        copy = object.__new__(Group)
        unknown = values.keys() - self.__dict__.keys()
        assert not unknown, unknown
        copy.__dict__.update({**self.__dict__, **{k: lift(v) for k, v in values.items()}})
        return copy


def lift(value):
    if isinstance(value, bool):
        return BoolVal(value)
    return RealVal(value) if isinstance(value, (int, float)) else value


class State:
    """A state. Transitions return states whose variables are terms over the variables of the first state."""

    def __init__(self):
        self.age = 0
        self.reg = Group("register", REGISTER)
        self.cand = {i: Group(i, CANDIDATE) for i in CANDIDATES}
        self.msg = {(i, s): Group(f"{i}.{s}", MESSAGE) for i in CANDIDATES for s in SLOTS}

    def changed(self, reg=None, cand=None, msg=None):
        copy = object.__new__(State)
        copy.age = self.age + 1
        copy.reg = reg or self.reg
        copy.cand = {**self.cand, **(cand or {})}
        copy.msg = {**self.msg, **(msg or {})}
        return copy

    def parameter(self, kind, name):
        """A parameter of the next step."""
        return kind(f"step {self.age}: {name}")


def constant(name):
    return Real(name)


def length(i):
    """The length of the guard of a candidate, D."""
    return constant(f"length_{i}")


def lease(i):
    """The lease duration of a candidate, L."""
    return constant(f"lease_{i}")


def assumptions():
    """Assumption A3 for every candidate, and the ranges of the constants."""
    c, delay = constant("c"), constant("delay")
    facts = [c > 0, c <= 1, delay >= 0]
    for i in CANDIDATES:
        facts += [length(i) > 0, lease(i) > 0, length(i) <= c * lease(i)]
    return facts


class Rules:
    """The rules of a candidate. Each seeded bug in `bugs.py` replaces some of them."""

    def wire_lease(self, i):
        """The lease duration that a candidate writes."""
        return lease(i)

    def guard_start(self, actor, sent):
        """The clock from which the guard counts (duty 1)."""
        return sent

    def guard_holds(self, actor, i, sent):
        """Whether a guard that counts from `sent` is good."""
        return actor.clock < sent + length(i)

    def is_counted(self, write):
        """Whether a write may extend a guard: it is known to be applied (duty 2)."""
        return write.applied

    def is_current_term(self, actor, write):
        """Whether a write was sent after the last release."""
        return write.id > actor.floor

    def token(self, write):
        """The token of the term that a write has won."""
        return write.version

    def patience(self, stated, i):
        """How long a candidate waits for a lease of this duration (duty 7)."""
        return stated + constant("delay")

    def is_own(self, reg, i):
        """Whether this incarnation wrote the current record (duty 9)."""
        return reg.author == NUMBER[i]

    def after_change(self, saw):
        """Whether the current mark or record counts as observed after another one has replaced it."""
        return BoolVal(False)

    def mark_is_over(self, reg, actor, i):
        """Whether the term that the mark names needs no wait (duty 8)."""
        waited = actor.clock - actor.saw_mark_at >= self.patience(reg.mark_lease, i)
        return Or(reg.mark_free, reg.mark_author == NUMBER[i], And(actor.saw_mark, waited))

    def record_is_over(self, reg, actor, i):
        """Whether the record is free, assigned to this candidate, or was observed for its lease."""
        waited = actor.clock - actor.saw_record_at >= self.patience(reg.record_lease, i)
        return Or(reg.empty, reg.assignee == NUMBER[i], And(actor.saw_record, waited))

    def holder_is_dead(self, reg, actor):
        """Whether a proof of death counts for the current version (duty 19)."""
        return And(actor.proof == reg.version, reg.described)

    def may_replace(self, reg, actor, i):
        """S5 for the current version."""
        free = And(self.mark_is_over(reg, actor, i), self.record_is_over(reg, actor, i))
        return Or(self.is_own(reg, i), free, self.holder_is_dead(reg, actor))

    def may_create(self, reg, actor, i):
        """S5 for an object that was deleted: wait for the live term that was observed."""
        return Or(Not(actor.saw_mark), self.mark_is_over(reg, actor, i))

    def may_release(self, actor):
        """S4: the guard and the work have ended (duty 5)."""
        return And(Not(actor.guard), Not(actor.work))

    def may_empty(self, reg, actor, i):
        """A release replaces the record of this term, and only before its guard has expired (duty 6)."""
        return And(self.is_own(reg, i), actor.clock < reg.mark_sent + length(i))

    def fits(self, reg, write):
        """The server's compare-and-set."""
        return If(write.creates, Not(reg.exists), And(reg.exists, write.base == reg.version))

    def rate(self, dt, d):
        """Assumption A2: how a clock advances while real time advances by `dt`."""
        return And(constant("c") * dt <= d, d <= dt)


class Step:
    """One transition: its parameters, its named conditions and the state after it."""

    def __init__(self, name, conditions, after):
        self.name, self.conditions, self.after = name, conditions, after


def good(state, i, rules):
    """Whether the guard of a candidate is good."""
    actor = state.cand[i]
    return And(actor.alive, actor.guard, rules.guard_holds(actor, i, actor.guard_sent))


def unseen(state, rules, mark, record):
    """The candidates after the mark or the record has changed."""
    changed = {}
    for i, actor in state.cand.items():
        values = {}
        if mark:
            values["saw_mark"] = rules.after_change(actor.saw_mark)
        if record:
            values["saw_record"] = rules.after_change(actor.saw_record)
        changed[i] = actor.changed(**values)
    return changed


def steps(state, rules):
    """Returns every transition from a state, for every actor and every message."""
    yield pass_time(state, rules)
    yield foreign_write(state, rules)
    yield touch(state)
    yield foreign_create(state, rules)
    yield delete(state)
    for i in CANDIDATES:
        yield observe(state, i)
        yield forget(state, i)
        yield prove(state, i)
        yield stop(state, i)
        yield end_work(state, i)
        yield crash(state, i)
        # A third message of a candidate needs no slot: a clause about two messages mentions only these two, and for a
        # clause about message m, the third one is message n.
        for slot in SLOTS:
            yield send(state, i, slot, rules)
            yield send_release(state, i, slot, rules)
            yield crash_release(state, i, slot)
            yield apply(state, i, slot, rules)
            yield begin(state, i, slot, rules)
            yield extend(state, i, slot, rules)


def pass_time(state, rules):
    """Real time and every clock advance."""
    dt = state.parameter(Real, "dt")
    moved = {i: state.parameter(Real, f"d_{i}") for i in CANDIDATES}
    conditions = {"forward": dt >= 0, "rates": And([rules.rate(dt, d) for d in moved.values()])}
    cand = {i: state.cand[i].changed(clock=state.cand[i].clock + d) for i, d in moved.items()}
    return Step("pass_time", conditions, state.changed(state.reg.changed(now=state.reg.now + dt), cand))


def observe(state, i):
    """A candidate observes a version with the current mark, with the current record, or with both."""
    actor = state.cand[i]
    mark, record = state.parameter(Bool, "sees_mark"), state.parameter(Bool, "sees_record")
    after = actor.changed(
        saw_mark=Or(actor.saw_mark, mark),
        saw_mark_at=If(And(mark, Not(actor.saw_mark)), actor.clock, actor.saw_mark_at),
        saw_record=Or(actor.saw_record, record),
        saw_record_at=If(And(record, Not(actor.saw_record)), actor.clock, actor.saw_record_at),
    )
    return Step("observe", {"exists": state.reg.exists}, state.changed(cand={i: after}))


def forget(state, i):
    """A stale read shows an older version, so the wait for the current one starts again."""
    actor = state.cand[i].changed(saw_mark=False, saw_record=False)
    return Step("forget", {}, state.changed(cand={i: actor}))


def prove(state, i):
    """A candidate gets a proof for a version. It is true: the described author of that version is dead."""
    reg, version = state.reg, state.parameter(Real, "proved")
    author_is_dead = [
        Implies(reg.author == NUMBER[x], Not(state.cand[x].alive)) for x in CANDIDATES
    ]
    true = Implies(And(version == reg.version, reg.exists, reg.described), And(author_is_dead))
    conditions = {"known": version <= reg.version, "true": true}
    return Step("prove", conditions, state.changed(cand={i: state.cand[i].changed(proof=version)}))


def new_message(state, i, **values):
    """A new write of a candidate, which is sent now and replaces some version."""
    fields = {name: state.parameter(kind, f"new.{name}") for name, kind in MESSAGE.items()}
    fields |= {"live": BoolVal(True), "sent": state.cand[i].clock, "applied": BoolVal(False)}
    fields |= {"knew": state.cand[i].saw_mark, **{name: lift(v) for name, v in values.items()}}
    write = object.__new__(Group)
    write.__dict__.update(fields)
    numbered = And(write.id > state.cand[i].last_id, write.base <= state.reg.version)
    return write, numbered


def names_current(reg, write):
    return And(reg.exists, Not(write.creates), write.base == reg.version)


def send(state, i, slot, rules):
    """A candidate sends a write that wins or renews a term. An outdated version may be named: it is never replaced."""
    reg, actor = state.reg, state.cand[i]
    write, numbered = new_message(state, i, releases=False, watchdog=False)
    absent = And(Not(reg.exists), write.creates, write.base == reg.version)
    conditions = {
        "numbered": numbered,
        "alive": actor.alive,
        "may_replace": Implies(names_current(reg, write), rules.may_replace(reg, actor, i)),
        "may_create": Implies(absent, rules.may_create(reg, actor, i)),
    }
    actor = actor.changed(last_id=write.id)
    return Step("send", conditions, state.changed(cand={i: actor}, msg={(i, slot): write}))


def send_release(state, i, slot, rules):
    """A candidate sends a release. Its earlier writes count no longer."""
    reg, actor = state.reg, state.cand[i]
    write, numbered = new_message(state, i, releases=True, wins=False, creates=False, watchdog=False)
    conditions = {
        "numbered": numbered,
        "alive": actor.alive,
        "may_release": rules.may_release(actor),
        "may_empty": Implies(names_current(reg, write), rules.may_empty(reg, actor, i)),
    }
    actor = actor.changed(last_id=write.id, floor=write.id)
    return Step("send_release", conditions, state.changed(cand={i: actor}, msg={(i, slot): write}))


def crash_release(state, i, slot):
    """The watchdog of a dead process sends a release of its term."""
    reg, actor = state.reg, state.cand[i]
    write, numbered = new_message(state, i, releases=True, wins=False, creates=False, watchdog=True)
    conditions = {
        "numbered": numbered,
        "dead": Not(actor.alive),
        "may_empty": Implies(names_current(reg, write), reg.author == NUMBER[i]),
    }
    actor = actor.changed(last_id=write.id, floor=write.id)
    return Step("crash_release", conditions, state.changed(cand={i: actor}, msg={(i, slot): write}))


def apply(state, i, slot, rules):
    """The server applies a write. The request may be late, and its sender may be dead."""
    reg, write = state.reg, state.msg[i, slot]
    version, described = state.parameter(Real, "version"), state.parameter(Bool, "describes")
    conditions = {
        "sent": And(write.live, Not(write.applied)),
        "fits": rules.fits(reg, write),
        "next": version > reg.version,
    }
    terms = If(write.wins, reg.terms + 1, reg.terms)
    reg = reg.changed(
        exists=True,
        version=version,
        author=NUMBER[i],
        empty=write.releases,
        assignee=0,
        record_at=reg.now,
        record_lease=rules.wire_lease(i),
        described=And(described, Not(write.releases)),
        mark_author=NUMBER[i],
        mark_free=write.releases,
        mark_sent=write.sent,
        mark_at=reg.now,
        mark_lease=rules.wire_lease(i),
        terms=terms,
    )
    write = write.changed(applied=True, version=version, term=terms)
    cand = unseen(state, rules, mark=True, record=True)
    return Step("apply", conditions, state.changed(reg, cand, {(i, slot): write}))


def foreign_record(state):
    """A record of another writer, with any holder."""
    reg = state.reg
    return {
        "version": state.parameter(Real, "version"),
        "author": 0,
        "empty": state.parameter(Bool, "emptied"),
        "assignee": state.parameter(Real, "assigned"),
        "record_at": reg.now,
        "record_lease": state.parameter(Real, "stated"),
        "described": False,
    }


def foreign_write(state, rules):
    """Another writer replaces the record and keeps the mark: client-go, a controller, or a person."""
    reg = state.reg
    record = foreign_record(state)
    conditions = {"exists": reg.exists, "next": record["version"] > reg.version}
    cand = unseen(state, rules, mark=False, record=True)
    return Step("foreign_write", conditions, state.changed(reg.changed(**record), cand))


def touch(state):
    """Another writer changes labels: a new version with the same record and the same mark."""
    reg, version = state.reg, state.parameter(Real, "version")
    conditions = {"exists": reg.exists, "next": version > reg.version}
    return Step("touch", conditions, state.changed(reg.changed(version=version)))


def foreign_create(state, rules):
    """Another writer creates the object, without a mark."""
    reg = state.reg
    record = foreign_record(state)
    conditions = {"absent": Not(reg.exists), "next": record["version"] > reg.version}
    reg = reg.changed(**record, exists=True, mark_author=0, mark_free=True)
    return Step("foreign_create", conditions, state.changed(reg, unseen(state, rules, True, True)))


def delete(state):
    """A person deletes the object, which breaks assumption A1. The mark in the state is that of the last version."""
    reg, version = state.reg, state.parameter(Real, "version")
    conditions = {"exists": reg.exists, "next": version > reg.version}
    reg = reg.changed(exists=False, version=version, author=0, described=False, intact=False)
    return Step("delete", conditions, state.changed(reg))


def begin(state, i, slot, rules):
    """A term begins with a winning write that is known to be applied."""
    actor, write = state.cand[i], state.msg[i, slot]
    start = rules.guard_start(actor, write.sent)
    conditions = {
        "alive": actor.alive,
        "follows": And(Not(actor.guard), Not(actor.work)),
        "applied": write.applied,
        "wins": write.wins,
        "current_term": rules.is_current_term(actor, write),
        "guard_holds": rules.guard_holds(actor, i, start),
        "greater_token": Implies(actor.led, rules.token(write) > actor.token),
    }
    actor = actor.changed(
        guard=True, guard_sent=start, guard_id=write.id, guard_version=write.version,
        work=True, work_id=write.id, led=True, token=rules.token(write), term=write.term,
    )
    return Step("begin", conditions, state.changed(cand={i: actor}))


def extend(state, i, slot, rules):
    """The guard restarts at the send of a later write that is known to be applied."""
    actor, write = state.cand[i], state.msg[i, slot]
    conditions = {
        "alive": actor.alive,
        "leads": actor.guard,
        "applied": And(write.live, rules.is_counted(write), Not(write.releases)),
        "current_term": rules.is_current_term(actor, write),
        "later": rules.guard_start(actor, write.sent) >= actor.guard_sent,
    }
    start = rules.guard_start(actor, write.sent)
    actor = actor.changed(guard_sent=start, guard_id=write.id, guard_version=write.version)
    return Step("extend", conditions, state.changed(cand={i: actor}))


def stop(state, i):
    """The guard ends. Work may still run."""
    return Step("stop", {}, state.changed(cand={i: state.cand[i].changed(guard=False)}))


def end_work(state, i):
    """All work of a term has ended."""
    return Step("end_work", {}, state.changed(cand={i: state.cand[i].changed(work=False)}))


def crash(state, i):
    """The process ends, and its guard and its work with it. A new process is another candidate."""
    actor = state.cand[i].changed(alive=False, guard=False, work=False)
    return Step("crash", {}, state.changed(cand={i: actor}))


def initial(state):
    """The first state: no object, no terms, no messages."""
    reg = state.reg
    facts = [Not(reg.exists), reg.intact, reg.version == 0, reg.terms == 0, reg.author == 0]
    facts += [reg.mark_author == 0, reg.mark_free, Not(reg.described)]
    facts += [reg.mark_at <= reg.now, reg.record_at <= reg.now]
    for actor in state.cand.values():
        facts += [actor.alive, actor.floor == 0, actor.last_id == 0, actor.proof < 0]
        facts += [Not(x) for x in (actor.guard, actor.work, actor.led, actor.saw_mark, actor.saw_record)]
    for write in state.msg.values():
        facts += [Not(write.live), Not(write.applied)]
    return facts
