"""The invariant, clause by clause, and the promises that follow from it. docs/book/explanation/proof.md gives the reasons."""

from z3 import And, Implies, Not, Or

from system import NUMBER, constant, good, lease, length


def register(s):
    """Clauses about the register alone."""
    reg = s.reg
    own = reg.author > 0
    yield "past", And(reg.mark_at <= reg.now, reg.record_at <= reg.now)
    yield "author", And(reg.author >= 0, reg.mark_author >= 0, Implies(own, reg.exists))
    yield "marked", Implies(own, reg.mark_author == reg.author)
    yield "content", Implies(own, And(reg.empty == reg.mark_free, reg.assignee == 0))
    yield "described", Implies(reg.described, And(own, Not(reg.empty)))
    yield "unmarked", Implies(reg.mark_author == 0, reg.mark_free)


def candidate(s, i):
    """Clauses about one candidate and the register."""
    reg, a = s.reg, s.cand[i]
    marked = And(reg.mark_author == NUMBER[i], Not(reg.mark_free))
    own = And(reg.author == NUMBER[i], Not(reg.empty))
    yield "mark_lease", Implies(marked, reg.mark_lease == lease(i))
    yield "record_lease", Implies(own, reg.record_lease == lease(i))
    yield "dead", Implies(Not(a.alive), And(Not(a.guard), Not(a.work)))
    yield "numbers", And(a.floor <= a.last_id, a.proof <= reg.version)
    yield "guard_number", Implies(a.guard, And(
        a.floor < a.guard_id, a.guard_id <= a.last_id, a.guard_version <= reg.version))
    yield "guard_past", Implies(a.guard, a.guard_sent <= a.clock)
    yield "work_number", Implies(a.work, And(a.floor < a.work_id, a.work_id <= a.last_id))
    yield "term", Implies(a.led, And(a.token <= reg.version, a.term <= reg.terms))


def candidate_timed(s, i):
    """Clauses about one candidate that depend on clocks."""
    reg, a = s.reg, s.cand[i]
    c = constant("c")
    yield "author_clock", Implies(reg.mark_author == NUMBER[i], a.clock - reg.mark_sent >= c * (reg.now - reg.mark_at))
    yield "saw_mark", Implies(a.saw_mark, a.clock - a.saw_mark_at <= reg.now - reg.mark_at)
    yield "saw_record", Implies(a.saw_record, a.clock - a.saw_record_at <= reg.now - reg.record_at)
    yield "guard_marked", Implies(
        And(reg.intact, a.guard, a.clock < a.guard_sent + length(i)),
        And(reg.exists, reg.mark_author == NUMBER[i], Not(reg.mark_free), a.guard_sent <= reg.mark_sent),
    )


def message(s, i, slot):
    """Clauses about one write of one candidate."""
    reg, a, w = s.reg, s.cand[i], s.msg[i, slot]
    current = And(w.live, Not(w.applied), Not(w.creates), reg.exists, w.base == reg.version)
    yield "sent", Implies(w.live, And(w.id <= a.last_id, w.sent <= a.clock, w.base <= reg.version))
    yield "kinds", Implies(And(w.live, w.releases), And(Not(w.wins), Not(w.creates)))
    yield "applied", Implies(w.applied, And(w.live, w.base < w.version, w.version <= reg.version))
    yield "winning", Implies(And(w.applied, w.wins), w.term <= reg.terms)
    yield "absent", Implies(And(reg.intact, Not(reg.exists)), Not(w.applied))
    # A write that could replace a later version than that of the guard was sent later.
    yield "guard_successor", Implies(
        And(w.live, a.guard, w.base >= a.guard_version), And(w.id > a.guard_id, w.sent >= a.guard_sent))
    # S4.
    yield "released", Implies(And(w.live, w.releases), w.id <= a.floor)
    yield "release_own", Implies(And(current, w.releases), reg.author == NUMBER[i])
    yield "own_term", Implies(And(w.applied, w.wins, a.led), And(
        (w.version < a.token) == (w.term < a.term), (w.version == a.token) == (w.term == a.term)))


def message_timed(s, i, slot):
    """Clauses about one write that depend on clocks."""
    reg, a, w = s.reg, s.cand[i], s.msg[i, slot]
    current = And(w.live, Not(w.applied), Not(w.creates), reg.exists, w.base == reg.version)
    in_time = And(w.id > a.floor, Not(w.releases), a.clock < w.sent + length(i))
    yield "write_marked", Implies(
        And(reg.intact, a.alive, w.applied, in_time),
        And(reg.exists, reg.mark_author == NUMBER[i], Not(reg.mark_free), w.sent <= reg.mark_sent),
    )
    # Duty 6.
    yield "release_in_time", Implies(
        And(current, w.releases, Not(w.watchdog)), w.sent < reg.mark_sent + length(i)
    )
    # S5, if another writer wrote the current record.
    expired = reg.now - reg.record_at >= reg.record_lease + constant("delay")
    foreign = And(current, reg.author == 0)
    yield "replaces_foreign", Implies(foreign, Or(reg.empty, reg.assignee == NUMBER[i], expired))


def messages(s, i, x, y):
    """Clauses about two different writes of one candidate."""
    v, w = s.msg[i, x], s.msg[i, y]
    yield "order", Implies(And(v.live, w.live), And(v.id != w.id, Implies(v.id < w.id, v.sent <= w.sent)))
    yield "successor", Implies(And(v.live, w.applied, v.base >= w.version), v.id > w.id)
    yield "versions", Implies(And(v.applied, w.applied), v.version != w.version)
    yield "terms", Implies(And(v.applied, w.applied, v.wins, w.wins), And(
        v.term != w.term, (v.version < w.version) == (v.term < w.term)))


def pair(s, i, j):
    """Clauses about two candidates."""
    reg, a, b = s.reg, s.cand[i], s.cand[j]
    proved = And(b.proof == reg.version, reg.exists, reg.described)
    yield "proof", Implies(And(proved, reg.author == NUMBER[i]), Not(a.alive))
    yield "tokens", Implies(And(a.led, b.led), And(
        a.token != b.token, a.term != b.term, (a.token < b.token) == (a.term < b.term)))


def pair_write(s, i, j, slot):
    """Clauses about a candidate and a write of another one."""
    a, w = s.cand[i], s.msg[j, slot]
    yield "token_and_write", Implies(And(a.led, w.applied), And(
        a.token != w.version,
        Implies(w.wins, And(a.term != w.term, (a.token < w.version) == (a.term < w.term)))))


def pair_timed(s, i, j, slot):
    """Clauses about a candidate and a write of another one that depend on clocks."""
    reg, a, w = s.reg, s.cand[i], s.msg[j, slot]
    current = And(w.live, Not(w.applied), Not(w.creates), reg.exists, w.base == reg.version)
    marked = And(reg.mark_author == NUMBER[i], Not(reg.mark_free), a.alive)
    over = a.clock >= reg.mark_sent + length(i)
    delay = constant("delay")
    # The central clause.
    yield "challenger", Implies(And(current, marked), over)
    # The same for an object that was deleted.
    absent = And(w.live, Not(w.applied), w.creates, Not(reg.exists), w.base == reg.version)
    yield "creator", Implies(And(absent, w.knew, marked), over)
    # S5.
    waited = reg.now - reg.mark_at >= reg.mark_lease + delay
    yield "replaces_mark", Implies(And(current, marked), waited)
    expired = reg.now - reg.record_at >= reg.record_lease + delay
    yield "replaces_record", Implies(And(current, reg.author == NUMBER[i], Not(reg.empty), a.alive), expired)


def write_pair(s, i, x, j, y):
    """Clauses about writes of two candidates."""
    v, w = s.msg[i, x], s.msg[j, y]
    yield "versions_of_two", Implies(And(v.applied, w.applied), v.version != w.version)
    yield "terms_of_two", Implies(And(v.applied, w.applied, v.wins, w.wins), And(
        v.term != w.term, (v.version < w.version) == (v.term < w.term)))


def clauses(s, candidates, slots, timed=True):
    """The invariant for some candidates and some of their messages."""
    yield from register(s)
    for i in candidates:
        yield from candidate(s, i)
        if timed:
            yield from candidate_timed(s, i)
        for slot in slots:
            yield from message(s, i, slot)
            if timed:
                yield from message_timed(s, i, slot)
        yield from messages(s, i, "m", "n")
        yield from messages(s, i, "n", "m")
        for j in candidates:
            if i != j:
                yield from pair(s, i, j)
                for x in slots:
                    yield from pair_write(s, i, j, x)
                    if timed:
                        yield from pair_timed(s, i, j, x)
                    for y in slots:
                        yield from write_pair(s, i, x, j, y)


def promises(s, rules, timed=True):
    """The promises of docs/book/explanation/safety.md, for any two candidates p and q."""
    reg, p, q, w = s.reg, s.cand["p"], s.cand["q"], s.msg["p", "m"]
    if timed:
        yield "S1", Implies(reg.intact, Not(And(good(s, "p", rules), good(s, "q", rules))))
    later = And(p.led, q.led, p.term < q.term)
    yield "S2", Implies(later, p.token < q.token)
    released = And(w.live, w.releases)
    ended = And(Implies(p.guard, p.guard_id > w.id), Implies(p.work, p.work_id > w.id))
    yield "S4", Implies(released, ended)
