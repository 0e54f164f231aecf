"""Checks the proof: `python check.py` prints one line for each part, and exits with 1 if a part fails.

`python check.py BUG` prints the counterexample of one seeded bug. docs/book/explanation/proof.md explains the parts.
"""

import pathlib
import re
import sys
import time

from z3 import Not, Or, Solver, is_true, sat, unsat

import bugs
import invariant
import system
from system import CANDIDATES, SLOTS, Rules, State

# A query that takes longer fails. On a machine without other work, each takes less than a second.
LIMIT_MS = 600_000

FOLDER = pathlib.Path(__file__).parent


class Failure(Exception):
    """An obligation that does not hold, with a state in which it does not."""

    def __init__(self, part, clause, before=None, after=None):
        super().__init__(f"{part}: {clause}")
        self.part, self.clause, self.before, self.after = part, clause, before, after


def new_solver(facts):
    solver = Solver()
    solver.set("timeout", LIMIT_MS)
    solver.add(facts)
    return solver


class Proof:
    """The obligations for some rules. Without `timed`, no assumption about clocks is used, and S1 is not claimed."""

    def __init__(self, rules, timed=True):
        self.rules, self.timed, self.count = rules, timed, 0

    def run(self):
        self.initiation()
        self.consecution()
        self.promises()
        return self.count

    def initiation(self):
        """Every first state satisfies the invariant."""
        state = State()
        solver = new_solver(self.assumptions() + system.initial(state))
        self.oblige(solver, "initiation", self.clauses(state, ("p", "q")), state, state)

    def consecution(self):
        """Every step from a state that satisfies the invariant leads to a state that satisfies it."""
        state = State()
        facts = self.assumptions() + [fact for _, fact in self.clauses(state, CANDIDATES)]
        for step in system.steps(state, self.rules):
            solver = new_solver(facts + list(step.conditions.values()))
            # A step that is never possible would satisfy everything.
            if solver.check() != sat:
                raise Failure(step.name, "the step is never possible")
            self.oblige(solver, step.name, self.clauses(step.after, ("p", "q")), state, step.after)

    def promises(self):
        """The invariant implies the promises."""
        state = State()
        solver = new_solver(self.assumptions() + [fact for _, fact in self.clauses(state, CANDIDATES)])
        self.oblige(solver, "promise", list(invariant.promises(state, self.rules, self.timed)), state, state)

    def assumptions(self):
        return system.assumptions() if self.timed else []

    def clauses(self, state, candidates):
        return list(invariant.clauses(state, candidates, SLOTS, self.timed))

    def oblige(self, solver, part, goals, before, after):
        """Checks all goals together. If they do not hold together, finds the first that does not hold."""
        self.count += len(goals)
        if solver.check(Or([Not(goal) for _, goal in goals])) == unsat:
            return
        for clause, goal in goals:
            result = solver.check(Not(goal))
            if result == sat:
                model = solver.model()
                raise Failure(part, clause, values(before, model), values(after, model))
            if result != unsat:
                raise Failure(part, clause + " (the solver gave up)")


class AnyClocks(Rules):
    """The shipped rules on clocks that do nothing but never go back."""

    def rate(self, dt, d):
        return d >= 0


def values(state, model):
    """The values of all variables of a state, by their names."""
    groups = [("register", state.reg), *state.cand.items()]
    groups += [(f"{i}.{slot}", write) for (i, slot), write in state.msg.items()]
    shown = {}
    for prefix, group in groups:
        for name, term in group.__dict__.items():
            shown[f"{prefix}.{name}"] = model.eval(term, model_completion=True)
    return shown


def counterexample(failure):
    """Lines that show the state before a step, and what the step changes."""
    hidden = {f"{i}.{slot}." for (i, slot) in State().msg}
    for name, value in failure.before.items():
        after = failure.after[name]
        # A message that was never sent says nothing.
        prefix = next((prefix for prefix in hidden if name.startswith(prefix)), None)
        if prefix and not is_true(failure.after[prefix + "live"]):
            continue
        changed = f"  ->  {after}" if not value.eq(after) else ""
        yield f"    {name:<24}{value}{changed}"


def history():
    """A run in which p leads and releases, q leads, q crashes, and p leads again after the lease of q.

    It shows that the assumptions, the rules and the steps do not contradict each other.
    """
    rules, state, facts = Rules(), State(), system.assumptions()
    facts += system.initial(state)
    script = [
        ("send", "p", "m"), ("apply", "p", "m"), ("begin", "p", "m"), ("observe", "q"), ("stop", "p"),
        ("end_work", "p"), ("send_release", "p", "n"), ("apply", "p", "n"),
        ("send", "q", "m"), ("apply", "q", "m"), ("begin", "q", "m"), ("observe", "p"), ("crash", "q"),
        ("pass_time",), ("send", "p", "m"), ("apply", "p", "m"), ("begin", "p", "m"),
    ]
    for name, *of in script:
        step = getattr(system, name)(state, *of, rules) if takes_rules(name) else getattr(system, name)(state, *of)
        facts += step.conditions.values()
        state = step.after
    p, q, last = state.cand["p"], state.cand["q"], state.msg["p", "m"]
    facts += [system.good(state, "p", rules), p.led, q.led, p.token > q.token, last.wins]
    if new_solver(facts).check() != sat:
        raise Failure("history", "no such run")
    return len(script)


def takes_rules(name):
    return name not in {"observe", "forget", "prove", "stop", "end_work", "crash", "crash_release", "touch", "delete"}


def table():
    """The steps and their conditions must be those that the simulator checks (`crates/sim/src/refine`)."""
    listed = {}
    for line in (FOLDER / "transitions.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, *conditions = line.replace(":", " ").split()
            listed[name] = conditions
    defined = {step.name: list(step.conditions) for step in system.steps(State(), Rules())}
    if listed != defined:
        differing = {name for name in listed.keys() | defined.keys() if listed.get(name) != defined.get(name)}
        raise Failure("transitions.txt", f"differs from system.py: {sorted(differing)}")
    return len(defined)


def listed_bugs():
    """Every seeded bug of an election must be in `bugs.py`."""
    source = (FOLDER / "../crates/core/src/mutant.rs").read_text()
    first = source[source.index("Mutant, pub(crate) ElectionRules:"):].split("mutants! {")[0]
    names = set(re.findall(r"^    ([A-Z]\w+) = \"", first, re.MULTILINE))
    given = {bug.__name__ for bug in bugs.SEEDED} | bugs.ELSEWHERE.keys()
    if names != given:
        raise Failure("bugs.py", f"differs from mutant.rs: {sorted(names ^ given)}")
    return len(names)


def expect_failure(bug):
    """Returns the obligation that fails with a bug. It must be the one that `bugs.py` names."""
    try:
        Proof(bug()).run()
    except Failure as failure:
        if (failure.part, failure.clause) != bug.fails:
            raise Failure(bug.__name__, f"fails at {failure}, not at {bug.fails}") from failure
        return failure
    raise Failure(bug.__name__, "the proof does not detect it")


def report(text, part):
    started = time.process_time()
    result = part()
    print(f"{text:<58}{result!s:>34}{time.process_time() - started:>7.1f} s", flush=True)


def main(args):
    if args:
        bug = getattr(bugs, args[0])
        failure = expect_failure(bug)
        print(f"{bug.__name__}: {failure}")
        print("\n".join(counterexample(failure)))
        return
    report("steps and conditions as in transitions.txt", table)
    report("steps of a run with three terms", history)
    report("obligations: S1, S2, S4 and S5 under A1 to A3", Proof(Rules()).run)
    report("obligations: S2 and S4 with any clocks", Proof(AnyClocks(), timed=False).run)
    report("seeded bugs of an election, stated here or excluded", listed_bugs)
    for bug in bugs.SEEDED + bugs.OTHERS:
        report(f"  {bug.__name__} fails at", lambda: expect_failure(bug))
    for name, reason in bugs.ELSEWHERE.items():
        print(f"  {name} is not stated: {reason}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Failure as failure:
        print(f"FAILED: {failure}")
        if failure.before:
            print("\n".join(counterexample(failure)))
        sys.exit(1)
