"""Replaying a ledger: its calls in their order, through an engine with another policy and a clock that is moved.

What the ledger does not know is not made up. It has the instant at which a call ended, not the one at which it began:
a call is reserved and settled at its end, so budgets of ``in_flight`` never refuse here. A call is held at the
estimate that it was held at, up to $100,000; where nobody said how many tokens it used, it counts as many as that
buys, at what the calls of its model cost before it. A call whose outcome was learnt later counts where it ended
first, with its last cost; if that was before the span, it is none of its calls. An answer ends with its first
refusal; whoever would have come again later is not in the figures, so what is saved is the most that it can be.
Calls that were refused at the time are not in them either, as nobody knows what they would have cost, nor are
overrides, corrections and runs that were pruned.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from llm_budget_hooks.engine import BudgetEngine, Reservation, Utterance
from llm_budget_hooks.errors import BudgetExceeded, ConfigurationError, PriceUnknown
from llm_budget_hooks.ledger import Ledger, every
from llm_budget_hooks.models import Call, Policy, Usage, instant
from llm_budget_hooks.models.calls import MAX_TOKENS
from llm_budget_hooks.models.trail import Event, Run
from llm_budget_hooks.money import MAX_CALL_NUSD, MAX_EXACT, to_decimal
from llm_budget_hooks.whatif.results import Day, Refused, WhatIf
from llm_budget_hooks.windows import Window

Progress = Callable[[int, int], object]
_DAY: Final = timedelta(days=1)
_SOME: Final = 1000


def whatif(
    ledger: Ledger | str,
    policy: str | os.PathLike[str] | Mapping[str, Any] | Policy,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    tenant: str | None = None,
    progress: Progress | None = None,
) -> WhatIf:
    """What a policy would have refused of the calls in a ledger: when, for whom, and what that would have saved.

    Args:
        ledger: the ledger or its URL.
        policy: the other policy: a path of a TOML file, a dict with the same keys, or a `Policy`.
        since, until: the span, aware; None: from the first call, to the last.
        tenant: only this one's calls; None: everybody's.
        progress: is told how many calls are replayed, and how many there are.

    Raises:
        ConfigurationError: the policy, the span or the ledger's URL is wrong.
        LedgerUnavailable: the ledger cannot be read.
    """
    rules = Policy.load(policy)
    _check_span(since, until)
    if isinstance(ledger, Ledger):
        return _replayed(ledger, rules, since, until, tenant, progress)
    opened = Ledger.open(ledger)
    try:
        return _replayed(opened, rules, since, until, tenant, progress)
    finally:
        opened.close()


def _check_span(since: datetime | None, until: datetime | None) -> None:
    for name, at in (("since", since), ("until", until)):
        if at is not None and at.tzinfo is None:
            raise ConfigurationError(f"{name} has no time zone: {at}")
    if since is not None and until is not None and since >= until:
        raise ConfigurationError(f"a span is a first instant and a later one, not {since} to {until}")


def _replayed(
    ledger: Ledger, rules: Policy, since: datetime | None, until: datetime | None, tenant: str | None,
    progress: Progress | None,
) -> WhatIf:  # fmt: skip
    days = ledger.cost_by("day", tenant=tenant, since=since, until=until)
    total = sum(day.calls for day in days)
    replay = _Replay(rules)
    for begins in _around([date.fromisoformat(day.key) for day in days]):
        first = begins if since is None else max(begins, since)
        last = begins + _DAY if until is None else min(begins + _DAY, until)
        if first < last:
            for row in _rows(ledger, tenant, first, last):
                replay.take(row)
            if progress is not None:
                progress(replay.calls, total)
    return replay.result()


def _around(days: list[date]) -> list[datetime]:
    """The UTC days that can hold something of these days of whichever zone."""
    near = {day + timedelta(days=offset) for day in days for offset in (-1, 0, 1)}
    return [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in sorted(near)]


def _rows(ledger: Ledger, tenant: str | None, since: datetime, until: datetime) -> list[Run | Event]:
    """All ends of calls, and all utterances that were counted when they began, in order."""
    span: dict[str, Any] = {"tenant": tenant, "since": since, "until": until}
    rows: list[Run | Event] = [*every(ledger.runs, **span), *every(ledger.events, name="asked", **span)]
    rows.reverse()  # pages begin with the newest
    return sorted(rows, key=lambda row: (row.at_ms, type(row) is Run))


@dataclass(slots=True)
class _Asked:
    """An utterance in the replay: its scope in the engine, its last call, and its refusal if it was refused."""

    scope: Utterance
    last_ms: int
    refused: int | None = None


class _Replay:
    """An engine in memory, and what it refused.

    Attributes:
        calls: how many calls it was given.
    """

    def __init__(self, rules: Policy) -> None:
        self.calls = 0
        self._now_ms = 0
        quiet = rules.model_copy(update={"alert_at": (), "webhook": None})
        self._engine = BudgetEngine.open("memory://", quiet, clock=lambda: instant(self._now_ms))
        self._idle_ms = round(rules.utterance_timeout.total_seconds() * 1000)
        self._day = _days_of(rules.timezone)
        self._asked: OrderedDict[tuple[str, str, str], _Asked] = OrderedDict()
        self._provisional: dict[str, Reservation] = {}
        self._turned_away: dict[str, int] = {}
        self._first_day: dict[str, int] = {}
        self._bought: dict[str, list[int]] = {}
        self._refused: list[Refused] = []
        self._saved: list[list[int]] = []
        self._days: dict[int, list[int]] = {}

    def take(self, row: Run | Event) -> None:
        """Replay one row; rows come in order."""
        self._now_ms = row.at_ms
        if isinstance(row, Event):
            self._begun(row)
        else:
            self._run(row)

    def result(self) -> WhatIf:
        """What came of it."""
        self._engine.close()
        refused = tuple(
            replace(one, calls=calls, saved=to_decimal(saved))
            for one, (calls, saved) in zip(self._refused, self._saved, strict=True)
        )
        days = tuple(
            Day(self._day.label(begins), to_decimal(spent), to_decimal(saved), count)
            for begins, (spent, saved, count) in sorted(self._days.items())
        )
        return WhatIf(self.calls, to_decimal(sum(sums[0] for sums in self._days.values())), refused, days)

    def _run(self, run: Run) -> None:
        known = run.id in self._first_day
        if not known and run.is_again:
            return
        if not known and run.kind != "settled":
            self._first_day[run.id] = self._begins()
        self._day_of(run)[0] += run.booked_nusd
        held = self._provisional.pop(run.id, None)
        if known and held is None:
            self._not_made(self._turned_away[run.id], run, 0)
            return
        if held is None:
            self.calls += 1
            held = self._let_in(run)
        if held is not None:
            self._end(held, run)

    def _let_in(self, run: Run) -> Reservation | None:
        """The hold of a call; None if it, or its answer before it, was refused."""
        asked = self._begun(run) if run.utterance != run.id else None
        turned_away = asked.refused if asked is not None else None
        if turned_away is None:
            try:
                return self._engine.reserve(self._call(run, asked))
            except BudgetExceeded as error:
                turned_away = self._note(run, error)
                if asked is not None:
                    asked.refused = turned_away
        if run.kind != "settled":
            self._turned_away[run.id] = turned_away
        self._not_made(turned_away, run, 1)
        return None

    def _end(self, held: Reservation, run: Run) -> None:
        if run.kind == "settled":
            self._settle(held, run)
        else:
            self._provisional[run.id] = held
            end = self._engine.release if run.kind == "released" else self._engine.settle
            end(held)
        asked = self._asked.get((run.tenant, run.user, run.utterance))
        if asked is not None and self._engine.limits_answers(run.tenant, run.feature or None):
            self._finish(asked, run)

    def _call(self, run: Run, asked: _Asked | None) -> Call:
        amount = min(max(run.estimate_nusd, 0), MAX_CALL_NUSD)
        known = run.kind in ("settled", "released")
        inputs = run.input_tokens if known else self._tokens_for(run.model, amount)
        return Call(
            model=run.model or "unknown", tenant=run.tenant, user=run.user or None, feature=run.feature or None,
            step=run.step, utterance=run.utterance if asked is not None else None, amount=to_decimal(amount),
            input_tokens=_count(inputs), max_output_tokens=_count(run.output_tokens),
        )  # fmt: skip

    def _tokens_for(self, model: str, nusd: int) -> int:
        """How many tokens of a model an amount buys; without calls before it as many as can be, which are of input."""
        tokens, cost = self._bought.get(model, (0, 0))
        if tokens and cost:
            return tokens * nusd // cost
        try:
            cost = self._engine.prices.price(model).estimate_nusd(_SOME, 0)
        except PriceUnknown:
            return 0
        return _SOME * nusd // cost if cost else 0

    def _settle(self, held: Reservation, run: Run) -> None:
        """Settle at what the row says, which can be more than an engine lets its caller say."""
        usage = Usage(input_tokens=_count(run.input_tokens), output_tokens=_count(run.output_tokens))
        bought = self._bought.setdefault(run.model, [0, 0])
        bought[0] += usage.total_tokens
        bought[1] += max(run.cost_nusd, 0) if usage.total_tokens else 0
        finish = self._engine._settling(held, usage, 0, None)
        finish.cost_nusd = min(max(run.cost_nusd, 0), MAX_EXACT)
        self._engine.run(self._engine._settle_behind(held, finish, usage))

    def _finish(self, asked: _Asked, run: Run) -> None:
        """An answer that costs more than its ceiling is refused, though it is paid for."""
        try:
            asked.scope.finish()
        except BudgetExceeded as error:
            if asked.refused is None:
                asked.refused = self._note(run, error)

    def _begun(self, row: Run | Event) -> _Asked:
        """The utterance of a row; it begins with its first one, and again after a pause."""
        key = row.tenant, row.user, row.utterance
        asked = self._asked.get(key)
        if asked is None or row.at_ms - asked.last_ms > self._idle_ms:
            self._forget()
            scope = self._engine.utterance(
                tenant=row.tenant, user=row.user or None, feature=row.feature or None, id=row.utterance
            )
            asked = self._asked[key] = _Asked(scope, row.at_ms)
            try:
                asked.scope.start()
            except BudgetExceeded as error:
                asked.refused = self._note(row, error)
        asked.last_ms = row.at_ms
        self._asked.move_to_end(key)
        return asked

    def _forget(self) -> None:
        while self._asked:
            key = next(iter(self._asked))
            if self._now_ms - self._asked[key].last_ms <= self._idle_ms:
                break
            del self._asked[key]

    def _note(self, row: Run | Event, error: BudgetExceeded) -> int:
        step, model = (row.step, row.model) if isinstance(row, Run) else ("", "")
        self._refused.append(
            Refused(
                instant(row.at_ms), error.code, error.stage, error.budget or "", error.failed, row.tenant, row.user,
                row.utterance, row.feature, step, model, 0, to_decimal(0),
            )
        )  # fmt: skip
        self._saved.append([0, 0])
        self._sums(self._begins())[2] += 1
        return len(self._refused) - 1

    def _not_made(self, turned_away: int, run: Run, calls: int) -> None:
        sums = self._saved[turned_away]
        sums[0] += calls
        sums[1] += run.booked_nusd
        self._day_of(run)[1] += run.booked_nusd

    def _begins(self) -> int:
        """The start of the day of now."""
        return self._day.bounds(self._now_ms)[0]

    def _day_of(self, run: Run) -> list[int]:
        """The sums of the day on which a call ended first."""
        return self._sums(self._first_day.get(run.id, self._begins()))

    def _sums(self, begins: int) -> list[int]:
        return self._days.setdefault(begins, [0, 0, 0])


def _days_of(zone: str) -> Window:
    window = Window.parse("day", zone)
    assert window is not None  # noqa: S101 - only no window at all is None
    return window


def _count(tokens: int) -> int:
    return min(max(tokens, 0), MAX_TOKENS)
