"""The ledger and the provider's books side by side, per model and UTC day, each difference with its likely cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.ledger import Ledger, every
from llm_budget_hooks.models.trail import Run
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.pricing.names import provider_of, relaxed
from llm_budget_hooks.reconcile.books import Billed, Books

_DAY: Final = timedelta(days=1)
_LATE: Final = timedelta(hours=6)
_SAME: Final = Decimal("0.01")
_MARK: Final = "reconcile"


@dataclass(frozen=True, slots=True)
class Line:
    """One model on one UTC day.

    Attributes:
        day: the day.
        model: without provider and date, as both sides may write them differently.
        ledger: dollars in the ledger, corrections of this line included.
        billed: dollars in the provider's books.
        cause: why they probably differ; empty where they do not.
        flagged: whether they differ by more than what is tolerated.
        final: False while the provider may still add to the day; such a line is not flagged.
    """

    day: date
    model: str
    ledger: Decimal
    billed: Decimal
    cause: str
    flagged: bool
    final: bool

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
        return f"{_mark(self.day, self.model)}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """What came of a comparison.

    Attributes:
        lines: by day and model.
    """

    lines: tuple[Line, ...]

    @property
    def flagged(self) -> tuple[Line, ...]:
        """The lines that are off by more than what is tolerated."""
        return tuple(line for line in self.lines if line.flagged)


@dataclass(slots=True)
class _Side:
    """What one side has of a model on a day; None where it does not say."""

    cost: Decimal = Decimal(0)
    unknown: Decimal = Decimal(0)
    requests: int | None = None
    inputs: int | None = None
    cached: int | None = None
    outputs: int | None = None
    batch: bool = False

    def add(self, name: str, count: int | None) -> None:
        if count is not None:
            setattr(self, name, (getattr(self, name) or 0) + count)


_Sides = dict[tuple[date, str], _Side]


@dataclass(slots=True)
class _Names:
    """Which names mean the same model, and whose model it is."""

    prices: PriceBook
    known: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of(self, model: str) -> tuple[str, str]:
        """The model without provider and date, and LiteLLM's name of the provider, empty if it is not known."""
        found = self.known.get(model)
        if found is None:
            try:
                price = self.prices.price(model)
                name = model if price.source == "genai-prices" else price.model
                provider = provider_of(price.provider or "")
            except PriceUnknown:
                name, provider = model, ""
            bare = name.rpartition("/")[2].lower()
            found = self.known[model] = min((bare, *relaxed(bare)), key=len), provider
        return found


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
    names = _Names(PriceBook() if prices is None else prices)
    billed = _billed((line for line in books.lines(since, until) if since <= line.day < until), names)
    ours = _ours(ledger, names, since, until, _Owned(books.provider, names, frozenset(name for _, name in billed)))
    moment = datetime.now(UTC) if now is None else now
    lines = []
    for key in sorted(ours.keys() | billed.keys()):
        final = datetime(key[0].year, key[0].month, key[0].day, tzinfo=UTC) + _DAY + _LATE <= moment
        lines.append(_line(key, ours.get(key, _Side()), billed.get(key, _Side()), tolerance, final))
    return Reconciliation(tuple(lines))


@dataclass(frozen=True, slots=True)
class _Owned:
    """Which calls the books are about: all, or those of one provider and of models that nobody knows the owner of."""

    provider: str | None
    names: _Names
    billed: frozenset[str]

    def has(self, model: str) -> bool:
        name, owner = self.names.of(model)
        return self.provider in (None, owner) or (not owner and name in self.billed)


def _billed(lines: Iterable[Billed], names: _Names) -> _Sides:
    sides: _Sides = {}
    for line in lines:
        side = sides.setdefault((line.day, names.of(line.model)[0]), _Side())
        side.cost += line.cost or 0
        side.batch |= line.batch
        for name, count in (("requests", line.requests), ("inputs", line.input_tokens)):
            side.add(name, count)
        side.add("cached", line.cached_input_tokens)
        side.add("outputs", line.output_tokens)
    return sides


def _ours(ledger: Ledger, names: _Names, since: date, until: date, owned: _Owned) -> _Sides:
    sides: _Sides = {}
    day = since
    while day < until:
        begins = datetime(day.year, day.month, day.day, tzinfo=UTC)
        for run in every(ledger.runs, since=begins, until=begins + _DAY):
            model = run.served or run.model
            if owned.has(model):
                _add(sides.setdefault((day, names.of(model)[0]), _Side()), run)
        day += _DAY
    for correction in every(ledger.adjustments):
        for key, side in _corrected(correction.reason, sides, since, until).items():
            if owned.provider is not None and key not in sides and key[1] not in owned.billed:
                continue
            side.cost += to_decimal(correction.booked_nusd)
            sides[key] = side
    return sides


def _corrected(reason: str, sides: _Sides, since: date, until: date) -> _Sides:
    """The line that an earlier correction was about."""
    words = reason.partition(": ")[0].split(" ", 2)
    if len(words) != 3 or words[0] != _MARK:
        return {}
    try:
        day = date.fromisoformat(words[1])
    except ValueError:
        return {}
    return {(day, words[2]): sides.get((day, words[2]), _Side())} if since <= day < until else {}


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


def _line(key: tuple[date, str], ours: _Side, billed: _Side, tolerance: Decimal, final: bool) -> Line:
    off = abs(billed.cost - ours.cost) > tolerance * billed.cost if billed.cost > 0 else billed.cost != ours.cost
    cause = "" if not off else _cause(ours, billed) if final else "the day may still grow"
    return Line(*key, ours.cost, billed.cost, cause, off and final, final)


def _cause(ours: _Side, billed: _Side) -> str:
    """Why the sides probably differ; the first that explains it."""
    lacks = billed.cost - ours.cost
    if not ours.requests and not ours.cost:
        return "calls the ledger never saw"
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


def _mark(day: date, model: str) -> str:
    return f"{_MARK} {day} {model}"
