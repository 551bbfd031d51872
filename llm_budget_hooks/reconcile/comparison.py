"""The ledger and the provider's books side by side, per model and UTC day, each difference with its likely cause."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.keys import digest
from llm_budget_hooks.ledger import Ledger, every
from llm_budget_hooks.models.trail import Run
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.reconcile.books import Billed, Books
from llm_budget_hooks.reconcile.owners import Owners
from llm_budget_hooks.reconcile.values import WEB_SEARCH, begin_of

_DAY: Final = timedelta(days=1)
_LATE: Final = timedelta(hours=6)
_SAME: Final = Decimal("0.01")
_BEYOND: Final = "the ledger has calls that these books do not know of"
_STRANGE: Final = "it cannot be told whose calls some of these are"
_PRUNED: Final = "Calls of this span were pruned from the ledger, or may have been; nothing is booked"
_RENAMED: Final = "calls the ledger never saw, or has by another name"
_MARK: Final = "reconcile"
_CORRECTION: Final = re.compile(
    rf"{_MARK} (?:(?P<provider>\S+) )?(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}) (?P<model>.+?): "
)


@dataclass(frozen=True, slots=True)
class Line:
    """One model on one UTC day.

    Attributes:
        day: the day.
        model: without provider and date, as both sides may write them differently; the name of a tool, such as
            ``web search``, where the books bill it apart from models.
        ledger: dollars in the ledger, corrections of this line included.
        billed: dollars in the provider's books.
        cause: why they probably differ; empty where they do not.
        flagged: whether they differ by more than what is tolerated; not where the ledger has more because it has
            calls that the books do not know of.
        final: False while the provider may still add to the day; such a line is not flagged.
        provider: whose books they are; None: of any.
        corrections: how many corrections of this line the ledger has.
        owed: dollars that `book` books for it: the difference of a line that is flagged; 0 where the books cannot
            know, as they have no amount of its day or model. Books that have a part of the calls take back what
            was added by them, and no more.
    """

    day: date
    model: str
    ledger: Decimal
    billed: Decimal
    cause: str
    flagged: bool
    final: bool
    provider: str | None = None
    corrections: int = 0
    owed: Decimal = Decimal(0)

    @property
    def difference(self) -> Decimal:
        """What the ledger lacks, in dollars; negative where it has too much."""
        return self.billed - self.ledger

    @property
    def share(self) -> Decimal | None:
        """The difference as a share of what was billed; None where nothing was."""
        return self.difference / self.billed if self.billed else None

    @property
    def reason(self) -> str:
        """What a correction of this line says, so that it is found again."""
        words = (_MARK, self.provider, str(self.day), self.model)
        return f"{' '.join(word for word in words if word)}: {self.cause}"

    @property
    def id(self) -> str:
        """Names the next correction of this line, whoever compares, until it is in the ledger."""
        return f"{_MARK}-{digest(self.provider or '', str(self.day), self.model, str(self.corrections))}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What came of a comparison.

    Attributes:
        lines: by day and model.
        doubt: why nothing of it can be booked; empty where it can.
    """

    lines: tuple[Line, ...]
    doubt: str = ""

    @property
    def flagged(self) -> tuple[Line, ...]:
        """The lines that are off by more than what is tolerated."""
        return tuple(line for line in self.lines if line.flagged)


@dataclass(slots=True)
class _Side:
    """What one side has of a model on a day; None where it does not say.

    `stated` is whether there is an amount at all, `owners` whose it is, `corrected` what corrections add up to,
    and `strange` the cost of calls of a provider that is not known.
    """

    cost: Decimal = Decimal(0)
    unknown: Decimal = Decimal(0)
    requests: int | None = None
    inputs: int | None = None
    cached: int | None = None
    outputs: int | None = None
    batch: bool = False
    tool: bool = False
    stated: bool = False
    partial: bool = False
    corrections: int = 0
    corrected: Decimal = Decimal(0)
    strange: Decimal = Decimal(0)
    owners: set[str] = field(default_factory=set)

    def add(self, name: str, count: int | None) -> None:
        if count is not None:
            setattr(self, name, (getattr(self, name) or 0) + count)


_Sides = dict[tuple[date, str], _Side]


def reconcile(
    ledger: Ledger,
    books: Books,
    since: date,
    until: date,
    *,
    tolerance: Decimal = Decimal("0.05"),
    prices: PriceBook | None = None,
    now: datetime | None = None,
) -> Reconciliation:
    """Compare a ledger with the provider's books, per model and UTC day.

    A call is in the ledger on the day on which it ended. The books may still grow until six hours after a day's end.

    Args:
        ledger: what was booked here.
        books: what the provider has.
        since, until: the first day, and the day after the last.
        tolerance: the share of what was billed that is no difference.
        prices: knows the aliases of models; None: those of LiteLLM's list.
        now: the time; None: the computer's.

    Raises:
        ConfigurationError: the span is none, or the tolerance.
        BooksUnavailable, LedgerUnavailable: one side could not be read.
    """
    if not since < until or tolerance < 0:
        raise ConfigurationError("a span is a first day and a later one; a tolerance is not below 0")
    owners = Owners(PriceBook() if prices is None else prices)
    said = _Said(
        books.provider, _billed((line for line in books.lines(since, until) if since <= line.day < until), owners)
    )
    ours = _ours(ledger, owners, since, until, said)
    moment = datetime.now(UTC) if now is None else now
    lines = []
    for key in sorted(ours.keys() | said.sides.keys()):
        final = begin_of(key[0]) + _DAY + _LATE <= moment
        line = _line(key, ours.get(key, _Side()), said, tolerance, final)
        lines.append(replace(line, provider=books.provider))
    pruned = not ledger.reaches_back_to(begin_of(since))
    return Reconciliation(tuple(_once(lines, ours, said)), _PRUNED if pruned else said.doubt(ours))


@dataclass
class _Said:
    """What the books say, and what they can be about: all calls, or those of one provider and of models that nobody
    knows the owner of. Where nobody says whose they are, it is those of the models and the providers that they name.
    """

    provider: str | None
    sides: _Sides

    def __post_init__(self) -> None:
        whole = {key: side for key, side in self.sides.items() if not side.partial}
        self.days = {day for (day, _), side in self.sides.items() if side.stated}
        self.priced = {name for (_, name), side in whole.items() if side.stated}
        self.models = {name for _, name in self.sides}
        self.owners: dict[str, set[str]] = {}
        for (_, name), side in whole.items():
            self.owners.setdefault(name, set()).update(side.owners)
        self.providers = set().union(*self.owners.values()) - {""}

    def has(self, name: str, owner: str) -> bool:
        """Whether they are about the calls of a model by a provider."""
        if self.provider is not None:
            return self.provider == owner or (not owner and name in self.models)
        return name in self.models or owner in self.providers or not self.sides

    def silence(self, key: tuple[date, str]) -> str:
        """Why they say nothing of a line; empty where they do. Books with the model on other days have it as 0."""
        side = self.sides.get(key)
        if key[0] not in self.days:
            return "the books have no amount of this day"
        known = key[1] in self.priced if side is None else side.stated
        return "" if known else "the books have no amount of this model"

    def is_part(self, key: tuple[date, str]) -> bool:
        """Whether there may be calls of a line that the books do not know of."""
        side = self.sides.get(key)
        return key[1] in self.models and key[1] not in self.owners if side is None else side.partial

    def corrected(self, reason: str, ours: _Sides) -> tuple[date, str] | None:
        """The line of these books that a correction was about, if it was about one."""
        found = _CORRECTION.match(reason)
        if found is None:
            return None
        try:
            key = date.fromisoformat(found["day"]), found["model"]
        except ValueError:
            return None
        if found["provider"] and self.provider:
            return key if found["provider"] == self.provider else None
        return key if key in ours or key[1] in self.models or not self.sides else None

    def doubt(self, ours: _Sides) -> str:
        """Why nothing can be booked by these books."""
        if not self.days:
            return "The books have no amount of this span, and that is no bill of nothing; nothing is booked"
        if self.provider is not None:
            return ""
        for (_, name), side in sorted(ours.items()):
            if others := side.owners - self.owners.get(name, side.owners):
                whose = " and ".join(other or "a provider that is not known" for other in sorted(others))
                return (
                    f"It cannot be told whose books these are: the ledger has calls of {name} by {whose}. "
                    "Name their provider (--provider); nothing is booked"
                )
        return ""


def _billed(lines: Iterable[Billed], owners: Owners) -> _Sides:
    sides: _Sides = {}
    for line in lines:
        name, owner = (line.model, None) if line.tool else owners.of(line.model)
        side = sides.setdefault((line.day, name), _Side())
        side.cost += line.cost or 0
        side.stated |= line.cost is not None
        side.batch |= line.batch
        side.tool |= line.tool
        side.partial |= line.partial
        side.owners |= set() if owner is None else {owner}
        for count_name, count in (("requests", line.requests), ("inputs", line.input_tokens)):
            side.add(count_name, count)
        side.add("cached", line.cached_input_tokens)
        side.add("outputs", line.output_tokens)
    return sides


def _ours(ledger: Ledger, owners: Owners, since: date, until: date, said: _Said) -> _Sides:
    sides: _Sides = {}
    day = since
    while day < until:
        begins = begin_of(day)
        for run in every(ledger.runs, since=begins, until=begins + _DAY):
            name, owner = owners.of_run(run, said.models)
            if said.has(name, owner):
                side = sides.setdefault((day, name), _Side())
                side.owners.add(owner)
                side.strange += 0 if owner or said.provider is None else to_decimal(run.booked_nusd)
                _add(side, run)
                if run.searches and WEB_SEARCH in said.models:
                    _move(owners.searched(run), side, sides.setdefault((day, WEB_SEARCH), _Side()))
        day += _DAY
    for correction in every(ledger.adjustments):
        key = said.corrected(correction.reason, sides)
        if key is not None and since <= key[0] < until:
            side = sides.setdefault(key, _Side())
            side.cost += to_decimal(correction.booked_nusd)
            side.corrected += to_decimal(correction.booked_nusd)
            side.corrections += 1
    return sides


def _move(nusd: int, side: _Side, tool: _Side) -> None:
    """Books that bill a tool apart are compared with what the calls of all models paid for it."""
    side.cost -= to_decimal(nusd)
    tool.cost += to_decimal(nusd)


def _add(side: _Side, run: Run) -> None:
    side.cost += to_decimal(run.booked_nusd)
    if run.kind in ("charged", "expired"):
        side.unknown += to_decimal(run.booked_nusd)
    elif run.status == "late":
        side.unknown -= to_decimal(run.cost_nusd - run.booked_nusd)
    if run.kind != "released":
        side.add("requests", 0 if run.status == "late" else 1)
    side.add("inputs", run.input_tokens)
    side.add("cached", run.cached_input_tokens)
    side.add("outputs", run.output_tokens)


def _line(key: tuple[date, str], ours: _Side, said: _Said, tolerance: Decimal, final: bool) -> Line:
    billed = said.sides.get(key, _Side())
    lacks = billed.cost - ours.cost
    off = abs(lacks) > tolerance * billed.cost if billed.cost > 0 else lacks != 0
    line = Line(*key, ours.cost, billed.cost, "", off and final, final, corrections=ours.corrections)
    if not off or not final:
        return replace(line, cause="the day may still grow" if off else "")
    if lacks < 0 and said.is_part(key):
        if billed.requests is None or (ours.requests or 0) > billed.requests:
            return replace(line, cause=_BEYOND, flagged=False)
        return replace(line, cause=_cause(ours, billed), owed=max(lacks, -max(ours.corrected, Decimal(0))))
    if silence := said.silence(key):
        return replace(line, cause=silence)
    if lacks < 0 < ours.strange:
        lacks = min(lacks + ours.strange, Decimal(0))
    return replace(line, cause=_cause(ours, billed) if lacks else _STRANGE, owed=lacks)


def _once(lines: list[Line], ours: _Sides, said: _Said) -> Iterator[Line]:
    """The lines, of which those that the ledger lacks whole owe what is more than those that the books lack whole.

    They may be about the same calls, by another name.
    """
    left: dict[date, Decimal] = {}
    for line in lines:
        if line.flagged and (line.day, line.model) not in said.sides and not line.owed:
            left[line.day] = left.get(line.day, Decimal(0)) + line.ledger
    for line in lines:
        side = ours.get((line.day, line.model), _Side())
        cut = min(left.get(line.day, Decimal(0)), line.owed)
        if cut > 0 and not side.requests and not said.sides[line.day, line.model].tool:
            left[line.day] -= cut
            yield replace(line, cause=_RENAMED, owed=line.owed - cut)
        else:
            yield line


def _cause(ours: _Side, billed: _Side) -> str:
    """Why the sides probably differ; the first that explains it."""
    lacks = billed.cost - ours.cost
    if not ours.requests and not ours.cost:
        return "use the ledger never saw" if billed.tool else "calls the ledger never saw"
    if not billed.cost and not billed.requests:
        return "the provider has no such calls: another account, or another day"
    if lacks > 0 and _more(billed.requests, ours.requests):
        return f"calls the ledger never saw: {(billed.requests or 0) - (ours.requests or 0)} of {billed.requests}"
    if lacks > 0 and _more(billed.outputs, ours.outputs):
        return "use the ledger never saw"
    if lacks < 0 and ours.unknown > 0 and ours.unknown * 2 >= -lacks:
        return "unknown outcomes, charged at their estimate"
    if _more(billed.cached, ours.cached) or _more(ours.cached, billed.cached):
        return "cached tokens: the sides count them differently"
    if billed.batch and lacks < 0:
        return "batch: the provider billed some of it at the lower rate"
    if _same(ours, billed):
        return "price drift: the same tokens at other prices"
    return "not known"


def _more(count: int | None, other: int | None) -> bool:
    return count is not None and other is not None and count > other + other // 20


def _same(ours: _Side, billed: _Side) -> bool:
    pairs = ((ours.inputs, billed.inputs), (ours.outputs, billed.outputs))
    return all(a is not None and b is not None and abs(a - b) <= _SAME * max(a, b) for a, b in pairs)
