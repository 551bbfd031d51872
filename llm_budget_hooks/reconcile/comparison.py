"""The ledger and the provider's books side by side, per model and UTC day, each difference with its likely cause."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final

from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.keys import digest
from llm_budget_hooks.ledger import Ledger, every
from llm_budget_hooks.models.trail import Run
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.pricing.names import provider_of, relaxed
from llm_budget_hooks.reconcile.books import Billed, Books
from llm_budget_hooks.reconcile.values import WEB_SEARCH

_DAY: Final = timedelta(days=1)
_LATE: Final = timedelta(hours=6)
_SAME: Final = Decimal("0.01")
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
        flagged: whether they differ by more than what is tolerated.
        final: False while the provider may still add to the day; such a line is not flagged.
        provider: whose books they are; None: of any.
        corrections: how many corrections of this line the ledger has.
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
    tool: bool = False
    corrections: int = 0

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
            bare = " ".join(name.rpartition("/")[2].lower().replace(": ", ":").split())
            found = self.known[model] = min((bare, *relaxed(bare)), key=len), provider
        return found

    def searched(self, model: str, run: Run) -> int:
        """What the web searches of a run cost, in nano-dollars, as far as its price is known."""
        try:
            fee = self.prices.price(model).at(run.at_ms).searches_nusd(run.searches)
        except PriceUnknown:
            return 0
        return min(fee, max(run.booked_nusd, 0))


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
        line = _line(key, ours.get(key, _Side()), billed.get(key, _Side()), tolerance, final)
        lines.append(replace(line, provider=books.provider))
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

    def corrected(self, reason: str, sides: _Sides) -> tuple[date, str] | None:
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
        return key if self.provider is None or key in sides or key[1] in self.billed else None


def _billed(lines: Iterable[Billed], names: _Names) -> _Sides:
    sides: _Sides = {}
    for line in lines:
        side = sides.setdefault((line.day, line.model if line.tool else names.of(line.model)[0]), _Side())
        side.cost += line.cost or 0
        side.batch |= line.batch
        side.tool |= line.tool
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
                side = sides.setdefault((day, names.of(model)[0]), _Side())
                _add(side, run)
                if run.searches and WEB_SEARCH in owned.billed:
                    _move(names.searched(model, run), side, sides.setdefault((day, WEB_SEARCH), _Side()))
        day += _DAY
    for correction in every(ledger.adjustments):
        key = owned.corrected(correction.reason, sides)
        if key is not None and since <= key[0] < until:
            side = sides.setdefault(key, _Side())
            side.cost += to_decimal(correction.booked_nusd)
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


def _line(key: tuple[date, str], ours: _Side, billed: _Side, tolerance: Decimal, final: bool) -> Line:
    off = abs(billed.cost - ours.cost) > tolerance * billed.cost if billed.cost > 0 else billed.cost != ours.cost
    cause = "" if not off else _cause(ours, billed) if final else "the day may still grow"
    return Line(*key, ours.cost, billed.cost, cause, off and final, final, corrections=ours.corrections)


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
