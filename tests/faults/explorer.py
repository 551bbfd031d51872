"""Walks through every order in which three processes can use two accounts, with one fault at any point.

Each process holds an amount and then ends its hold. A step is one command, carried out by the pure transitions on
real cells. In every order of the six steps, and for every place at which time may run past the deadline of all holds,
one fault strikes at one step: the process dies before it, or after it; its reply is lost, and the caller does what the
engine does then; or it is overtaken by what was sent because of its loss; or all balances are lost before it and are
rebuilt from a ledger that has all ends so far, or none of them, by a process that may die in the middle of that, and
each process books its own ends again. A process can be one that let its call pass
while the store was away: its steps are those of a replay, and repeating them is what a crash in a replay does.

    python tests/faults/explorer.py            all of them, in some half an hour
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, permutations
from types import SimpleNamespace
from typing import Any

from llm_budget_hooks.engine.rebuilding import rebuild
from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.models import Budget, Policy
from llm_budget_hooks.stores.memory import MemoryCells
from llm_budget_hooks.transitions import (
    Ended,
    Ending,
    Finish,
    Hold,
    Kind,
    Meter,
    Mode,
    Read,
    Reserve,
    Rule,
    Shape,
    State,
    Terms,
    Verdict,
    apply,
)

T0 = 1_764_000_000_000
DAY = 86_400_000
HELD, LIMIT = 4, 9
NOTE = "[]"
TERMS = Terms(timeout_ms=1_000, remember_ms=100_000, outbox_max=100)
SHAPE = Shape((
    Rule("money", "global", Meter.USD, Kind.CALENDAR, LIMIT, T0 + DAY, DAY),
    Rule("open", "global", Meter.IN_FLIGHT, Kind.GAUGE, 9, 0, 0),
))  # fmt: skip
KEYS, SCOPES = ("money:1", "open"), ("",)
FAULTS = ("dies before", "dies after", "reply lost", "overtaken")
LOSSES = ("lost", "lost undrained", "lost, dies at 0", "lost, dies at 1", "lost, dies at 2", "lost, dies at 3")
COSTS = {"cheap": 1, "exact": HELD, "dear": 6}
WAYS = (*COSTS, "release", "unknown", "alone")
COMBINATIONS = [*combinations_with_replacement(WAYS, 3)]
ORDERS = sorted(set(permutations((0, 0, 1, 1, 2, 2))))


@dataclass(frozen=True)
class Walk:
    """One way through.

    Attributes:
        ways: how each process ends its hold; ``alone``: it was let through while the store was away.
        order: which process makes each of the six steps.
        late: before which step time runs past all deadlines; 6: after the last.
        fault, at: what goes wrong at which step; ``""``: nothing.
    """

    ways: tuple[str, ...]
    order: tuple[int, ...]
    late: int
    fault: str
    at: int


def walks(ways: tuple[str, ...], faults: tuple[str, ...] = FAULTS + LOSSES) -> Iterator[Walk]:
    """All walks of three processes with these ways."""
    for order in ORDERS:
        for late in range(7):
            yield Walk(ways, order, late, "", 0)
            for at in range(6):
                for fault in faults:
                    if at or fault not in LOSSES:
                        yield Walk(ways, order, late, fault, at)


class Broken(AssertionError):
    """An invariant does not hold."""


class Run:
    """One walk, step by step, and what has to be true of it."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.cells = MemoryCells()
        self.now = T0
        self.dead: set[int] = set()
        self.given_up: set[int] = set()
        self.holds: dict[int, Hold] = {}
        self.owed: dict[int, set[int]] = {0: {0}, 1: {0}, 2: {0}}
        self.steps = [0, 0, 0]
        self.beyond = 0
        self.ends: dict[int, Finish] = {}

    def play(self) -> None:
        """Go through it, checking after every step."""
        for number, who in enumerate(self.walk.order):
            if number == self.walk.late:
                self.now += 2 * TERMS.timeout_ms
            fault = self.walk.fault if number == self.walk.at else ""
            if fault in LOSSES:
                self.lose(fault)
            self.step(who, fault)
            self.check()
        self.now += 5 * TERMS.timeout_ms
        self.check(at_end=True)

    def step(self, who: int, fault: str) -> None:
        """The next step of one process."""
        second, self.steps[who] = self.steps[who], 1
        if fault == "dies before":
            self.dead.add(who)
        if who in self.dead:
            return
        if second:
            self.end(who, fault)
        else:
            self.hold(who, fault)
        if fault == "dies after":
            self.dead.add(who)

    def hold(self, who: int, fault: str) -> None:
        alone = self.walk.ways[who] == "alone"
        command = Reserve(
            f"h{who}", "", SHAPE, KEYS, (HELD, 1), SCOPES, "", TERMS, T0, T0 + DAY,
            mode=Mode.REPLAY if alone else Mode.HOLD, note=NOTE, actual=f"journal{who} 1" if alone else "",
        )  # fmt: skip
        bury = Finish(f"h{who}", Ending.RELEASE, TERMS, bury=True)
        if fault == "overtaken" and not alone:
            self.ask(bury)
        answer = self.ask(command)
        if answer.verdict == Verdict.ADMITTED:
            self.holds[who] = Hold(
                "", 0, answer.created_ms, answer.deadline_ms, TERMS.timeout_ms, SHAPE, KEYS, SCOPES, answer.held,
                answer.starts, NOTE,
            )  # fmt: skip
        if alone:
            self.beyond += HELD
            self.owed[who] = {HELD}
            if fault in ("reply lost", "overtaken"):
                self.unchanged(command)
            return
        admitted = answer.verdict == Verdict.ADMITTED
        self.owed[who] = {HELD} if admitted else {0}
        if fault == "reply lost":
            self.ask(bury)
            self.owed[who] = {0}
        if fault in ("reply lost", "overtaken") or not admitted:
            self.given_up.add(who)
            self.holds.pop(who, None)
        if fault == "overtaken" and admitted:
            raise Broken("a reserve was let in after its release")

    def end(self, who: int, fault: str) -> None:
        if who in self.given_up:
            return
        way = self.walk.ways[who]
        command = Finish(f"h{who}", Ending.SETTLE, TERMS, 2, None, True)
        if way in COSTS:
            command = replace(command, cost_nusd=COSTS[way])
        elif way == "alone":
            command = replace(command, place=f"journal{who} 2", hold=replace(self.holds[who]))
        else:
            ending = Ending.RELEASE if way == "release" else Ending.SETTLE
            command = replace(command, ending=ending, cost_nusd=None, final=False)
        answer = self.ask(command)
        if answer.ended == Ended.UNKNOWN:
            answer = self.ask(replace(command, hold=replace(self.holds[who])))
        if answer.ended not in (Ended.SETTLED, Ended.LATE, Ended.RELEASED, Ended.ALREADY_SETTLED):
            raise Broken(f"an end was not booked: {answer}")
        right = {"release": 0, "unknown": HELD, "alone": 2, **COSTS}[way]
        self.owed[who] = {right}
        if way == "dear":
            self.beyond += COSTS["dear"] - HELD
        self.ends[who] = command
        if fault in ("reply lost", "overtaken"):
            self.unchanged(command)

    def lose(self, fault: str) -> None:
        """Lose all balances, and have them rebuilt from what the ledger has; once more changes nothing."""
        rows = [] if fault == "lost undrained" else self.ledger()
        self.cells = MemoryCells()
        for who in {0, 1, 2} - {*self.ends}:
            charged = sum(row.booked_nusd for row in rows if row.id == f"h{who}")
            self.beyond += max(self.owed[who]) - charged
            self.owed[who] = {charged}
        if "dies" in fault:
            self.rebuild(rows, int(fault[-1]))
        self.rebuild(rows)
        before = self.balances()
        self.rebuild(rows)
        if self.balances() != before:
            raise Broken("a second rebuilding changed a balance")
        for who, command in self.ends.items():
            hold = self.holds.get(who)
            carried = None if hold is None else replace(hold, state=State.RELEASED)
            self.ask(replace(command, hold=carried, final=command.final or command.ending == Ending.SETTLE))
        if self.balances()[0][1] or self.balances()[1][1]:
            raise Broken("something is held that nobody took")

    def ledger(self) -> list[Any]:
        """The rows of all ends so far, as far as a rebuilding looks at them."""
        rows = []
        for _, (kind, id, was, at_ms, _, _) in self.cells.posted(100):
            cost = {"settled": self.cost(id), "released": 0}.get(kind, HELD)
            before = HELD if was in ("expired", "charged") else 0
            rows.append(SimpleNamespace(
                id=id, kind=kind, status="late" if before else kind, at_ms=at_ms, tenant="t", user="", utterance=id,
                feature="", model="m", booked_nusd=cost - before, cost_nusd=cost, input_tokens=0, output_tokens=0,
                is_again=bool(before),
            ))  # fmt: skip
        return rows

    def cost(self, id: str) -> int:
        return {"alone": 2, **COSTS}.get(self.walk.ways[int(id[1])], HELD)

    def rebuild(self, rows: list[Any], commands: int = 10**6) -> None:
        """Rebuild by the engine's own code, up to the command at which the process dies."""
        left = [commands]

        def execute(command: Any) -> Any:
            if not left[0]:
                raise StoreUnavailable("died")
            left[0] -= 1
            return self.ask(command)

        planner = SimpleNamespace(
            policy=Policy(budgets=(Budget(scope="global", limit=1, window="day"),)), terms=TERMS,
            plan=lambda *_: SimpleNamespace(command=SimpleNamespace(shape=SHAPE, keys=KEYS, scopes=SCOPES)),
        )  # fmt: skip
        none = SimpleNamespace(items=(), after=None)
        books = SimpleNamespace(runs=lambda **_: SimpleNamespace(items=rows, after=None), adjustments=lambda **_: none)
        store: Any = SimpleNamespace(execute=execute, now_ms=lambda: self.now)
        with suppress(StoreUnavailable):
            rebuild(store, books, planner, self.now)  # type: ignore[arg-type]  # stands for a ledger

    def ask(self, command: Any) -> Any:
        return apply(self.cells, command, self.now)

    def unchanged(self, command: Any) -> None:
        """Ask again, as after a lost reply: nothing may change."""
        before = self.balances()
        self.ask(command)
        if self.balances() != before:
            raise Broken("a repeated command changed a balance")

    def balances(self) -> list[tuple[int, int]]:
        read = apply(self.cells, Read(SHAPE, KEYS, SCOPES, TERMS), self.now)
        return [(one.spent, one.reserved) for one in read.accounts]  # type: ignore[union-attr]  # a Read is answered so

    def check(self, at_end: bool = False) -> None:
        """The invariants of every moment, and those of the end."""
        (spent, reserved), (_, in_flight) = self.balances()
        if spent < 0 or reserved < 0 or in_flight < 0:
            raise Broken("a balance is negative")
        if spent + reserved > LIMIT + self.beyond:
            raise Broken(f"{spent} spent and {reserved} held pass the limit by more than {self.beyond}")
        if spent + reserved != sum(max(owed) for owed in self.owed.values()):
            raise Broken(f"{spent} spent and {reserved} held, {self.owed} is right")
        if at_end and (reserved or in_flight):
            raise Broken("something is still held after all deadlines")


def explore(combinations: list[tuple[str, ...]], every: int = 1, faults: tuple[str, ...] = FAULTS + LOSSES) -> int:
    """Play every so-manieth walk of some combinations of ways, and count them.

    Raises:
        Broken: an invariant does not hold; the walk is in the message.
    """
    count = 0
    for at, ways in enumerate(combinations):
        for number, walk in enumerate(walks(ways, faults)):
            if (number + at) % every:
                continue
            try:
                Run(walk).play()
            except Broken as broken:
                raise Broken(f"{walk}: {broken}") from None
            count += 1
    return count


if __name__ == "__main__":
    print(f"{explore(COMBINATIONS):,} walks, all as they have to be")  # noqa: T201 - some half an hour
