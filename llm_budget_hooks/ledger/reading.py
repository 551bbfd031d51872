"""What can be read from a ledger: pages of rows, cost by anything, who asked, and where a month is heading.

Amounts are exact dollars. A single number that could not be read is None, never 0; pages and tables raise
`LedgerUnavailable`. Instants are aware datetimes; a span holds its beginning and not its end. Rows that were pruned
are in month totals alone, see `Reading.months`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, Literal, TypeVar

from sqlalchemy import BigInteger, ColumnElement, Select, Table, case, func, literal_column, select, tuple_, union

from llm_budget_hooks.errors import ConfigurationError
from llm_budget_hooks.ledger import tables
from llm_budget_hooks.ledger.errors import LedgerUnavailable
from llm_budget_hooks.ledger.queries import again, between, ms_of, same, whose, window_of
from llm_budget_hooks.ledger.shares import Shares
from llm_budget_hooks.models import instant
from llm_budget_hooks.models.trail import Adjustment, Event, Override, Refusal, Run, stored_text
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.windows import HOUR_MS

T = TypeVar("T")
Dimension = Literal["tenant", "user", "feature", "step", "model", "day"]
_CURSOR: Final = re.compile("[0-9]{1,18}")
_QUARTER_MS: Final = 900_000
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, the newest first.

    Attributes:
        items: the rows.
        after: what to pass as `after` for the next page; None on the last.
    """

    items: tuple[T, ...]
    after: str | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one feature, step, model, user, tenant or day has cost.

    Attributes:
        key: its name; a day is ``2026-11-30``, a user stands beside its tenant.
        tenant: the tenant of a user, else empty.
        cost: dollars booked.
        calls: how many calls were made, however often each ended.
        input_tokens, output_tokens: what was used, as far as providers said.
    """

    key: str
    tenant: str
    cost: Decimal
    calls: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """One answer and its fan-out.

    Attributes:
        tenant, user, utterance, feature: whose, and for which request.
        began_at, ended_at: the first and the last end of a call in it.
        cost: dollars booked.
        calls: how many model calls it took.
        refusals: how many refusals it met.
        runs: its runs in the order in which they were booked.
    """

    tenant: str
    user: str
    utterance: str
    feature: str
    began_at: datetime
    ended_at: datetime
    cost: Decimal
    calls: int
    refusals: int
    runs: tuple[Run, ...]


class Reading(Shares):
    """The questions that a ledger answers. All of them take `tenant`, `user` and the like as calls name them."""

    _zone: str

    def runs(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        step: str | None = None,
        model: str | None = None,
        utterance: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Run]:
        """A page of runs; what is None is not asked for. `model` is the one asked for or the one that served."""
        run = tables.runs.c
        wanted = same(tables.runs, tenant=tenant, user=user, feature=feature, step=step, utterance=utterance)
        wanted += same(tables.runs, status=status) + between(tables.runs, since, until)
        if model is not None:
            wanted.append((run.model == stored_text(model)) | (run.served == stored_text(model)))
        return self._page(tables.runs, Run, wanted, after, limit)

    def refusals(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        code: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Refusal]:
        """A page of refusals."""
        wanted = same(tables.refusals, tenant=tenant, user=user, feature=feature, code=code)
        return self._page(tables.refusals, Refusal, wanted + between(tables.refusals, since, until), after, limit)

    def events(
        self,
        *,
        tenant: str | None = None,
        name: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[Event]:
        """A page of events."""
        wanted = same(tables.events, tenant=tenant, name=name) + between(tables.events, since, until)
        return self._page(tables.events, Event, wanted, after, limit)

    def overrides(self, *, tenant: str | None = None, after: str | None = None, limit: int = 100) -> Page[Override]:
        """A page of changed limits."""
        wanted = [*same(tables.overrides, tenant=tenant), tables.overrides.c.kind == "override"]
        return self._page(tables.overrides, Override, wanted, after, limit)

    def adjustments(self, *, tenant: str | None = None, after: str | None = None, limit: int = 100) -> Page[Adjustment]:
        """A page of corrections."""
        wanted = [*same(tables.overrides, tenant=tenant), tables.overrides.c.kind == "adjust"]
        return self._page(tables.overrides, Adjustment, wanted, after, limit)

    def answers(
        self,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[AnswerCost]:
        """A page of answers, each with its runs in order."""
        run, who = tables.runs.c, whose(tables.runs)
        first = func.min(run.no)
        asked = select(*who, first.label("first")).where(*same(tables.runs, tenant=tenant, user=user, feature=feature))
        asked = asked.group_by(*who).order_by(first.desc()).limit(limit + 1)
        if after is not None:
            asked = asked.having(first < _cursor(after))
        with self._database.reading() as connection:
            found = connection.execute(asked).all()
            keys = [tuple(row)[:3] for row in found[:limit]]
            ended = select(tables.runs).where(tuple_(*who).in_(keys)).order_by(run.no)
            rows = connection.execute(ended).all() if keys else []
            turned = whose(tables.refusals)
            counted = select(*turned, func.sum(tables.refusals.c.count)).where(tuple_(*turned).in_(keys))
            refusals = connection.execute(counted.group_by(*turned)).all() if keys else []
        by_answer: dict[tuple[Any, ...], list[Run]] = {key: [] for key in keys}
        for row in rows:
            by_answer[row.tenant, row.user, row.utterance].append(_made(Run, row))
        refused = {tuple(row)[:3]: int(row[3]) for row in refusals}
        items = tuple(_answer(runs, refused.get(key, 0)) for key, runs in by_answer.items() if runs)
        return Page(items, str(found[limit - 1].first) if len(found) > limit else None)

    def cost_by(
        self,
        dimension: Dimension,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Cost]:
        """What each feature, step, model, user, tenant or day has cost, the most expensive first; days in order.

        A model is the one that served, where the provider said so. Days are those of the ledger's zone.
        """
        wanted = {"tenant": tenant, "user": user, "feature": feature}
        return self.costs_by((dimension,), **wanted, since=since, until=until)[dimension]

    def costs_by(
        self,
        dimensions: Sequence[Dimension],
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> dict[Dimension, list[Cost]]:
        """Same as `cost_by`, for several at once: all but the days are read in one go."""
        wanted = same(tables.runs, tenant=tenant, user=user, feature=feature) + between(tables.runs, since, until)
        named = [dimension for dimension in dimensions if dimension != "day"]
        parts = list(dict.fromkeys(part for dimension in named for part in _parts(dimension)))
        columns, quarter = [_column(part) for part in parts], _quarter(tables.runs)
        costs: dict[Dimension, list[Cost]] = {}
        with self._database.reading() as connection:
            if named:
                rows = connection.execute(_sums(*columns).where(*wanted).group_by(*columns)).all()
                costs = {dimension: _folded(rows, [parts.index(p) for p in _parts(dimension)]) for dimension in named}
            if "day" in dimensions:
                costs["day"] = self._days(connection.execute(_sums(quarter).where(*wanted).group_by(quarter)))
        return costs

    def spent(
        self,
        since: datetime,
        until: datetime,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
    ) -> Decimal | None:
        """Dollars booked between two instants, corrections of spend itself included; None if it could not be read.

        What is booked late counts when it is booked.
        """
        wanted = same(tables.runs, tenant=tenant, user=user, feature=feature)
        asked = select(func.sum(tables.runs.c.booked_nusd)).where(*wanted, *between(tables.runs, since, until))
        corrected = select(func.sum(tables.overrides.c.booked_nusd)).where(
            tables.overrides.c.budget == "",
            *same(tables.overrides, tenant=tenant, user=user), *between(tables.overrides, since, until),
        )  # fmt: skip
        try:
            with self._database.reading() as connection:
                booked = int(connection.execute(asked).scalar() or 0)
                if feature is None:
                    booked += int(connection.execute(corrected).scalar() or 0)
        except LedgerUnavailable:
            return None
        return to_decimal(booked)

    def projection(self, now: datetime, *, tenant: str | None = None, user: str | None = None) -> Decimal | None:
        """What will be spent at the end of this month at the pace until now: spent x month / elapsed, rounded up.

        None in the first hour of a month, and if the spend could not be read.
        """
        begins, _ = window_of("month", self._zone).bounds(ms_of(now))
        spent = self.spent(instant(begins), now, tenant=tenant, user=user)
        return None if spent is None else self.at_this_pace(spent, now)

    def at_this_pace(self, spent: Decimal, now: datetime) -> Decimal | None:
        """What a spend of this month until now comes to at its end; None in its first hour. See `projection`."""
        now_ms = ms_of(now)
        begins, ends = window_of("month", self._zone).bounds(now_ms)
        if now_ms - begins < HOUR_MS:
            return None
        return to_decimal(-(-int(spent.scaleb(9)) * (ends - begins) // (now_ms - begins)))

    def questions(
        self,
        now: datetime,
        *,
        tenant: str | None = None,
        user: str | None = None,
        feature: str | None = None,
        within: timedelta = _DAY,
    ) -> int | None:
        """How many utterances there were within the last 24 hours, without using one up; None if it is unread.

        An utterance counts if a call in it ended, or if an event ``asked`` tells of its beginning.
        """
        since, until = now - within, now + timedelta(milliseconds=1)
        asked = union(*(
            select(*whose(table)).where(
                *same(table, tenant=tenant, user=user, feature=feature), *between(table, since, until),
                *((table.c.name == "asked", table.c.utterance != "") if table is tables.events else ()),
            )
            for table in (tables.runs, tables.events)
        )).subquery()  # fmt: skip
        try:
            with self._database.reading() as connection:
                return connection.execute(select(func.count()).select_from(asked)).scalar_one()
        except LedgerUnavailable:
            return None

    def months(self, *, tenant: str | None = None) -> dict[str, Decimal]:
        """Dollars booked by month of the ledger's zone, pruned rows included: ``{"2026-11": Decimal("12.5")}``."""
        month, kept = window_of("month", self._zone), tables.months.c
        live = _quarters(tables.runs).where(*same(tables.runs, tenant=tenant)).group_by(_quarter(tables.runs))
        old = select(kept.month, func.sum(kept.booked_nusd)).where(*same(tables.months, tenant=tenant))
        corrected = _quarters(tables.overrides).where(
            tables.overrides.c.budget == "", tables.overrides.c.kind == "adjust",
            *same(tables.overrides, tenant=tenant),
        ).group_by(_quarter(tables.overrides))  # fmt: skip
        with self._database.reading() as connection:
            pairs = [tuple(row) for row in connection.execute(old.group_by(kept.month))]
            for asked in (live, corrected):
                pairs += [(month.label(row[0] * _QUARTER_MS), row[1]) for row in connection.execute(asked)]
        totals: dict[str, int] = {}
        for name, booked in sorted(pairs):
            totals[name] = totals.get(name, 0) + int(booked)
        return {name: to_decimal(nusd) for name, nusd in totals.items()}

    def reaches_back_to(self, since: datetime) -> bool:
        """Whether no run from an instant on was pruned: an earlier one is there, or none of its month or later was."""
        month, run = window_of("month", self._zone).label(ms_of(since)), tables.runs.c
        with self._database.reading() as connection:
            newest = connection.execute(select(func.max(tables.months.c.month))).scalar()
            if newest is None or newest < month:
                return True
            return connection.execute(select(run.no).where(run.at_ms < ms_of(since)).limit(1)).first() is not None

    def _days(self, rows: Iterable[Any]) -> list[Cost]:
        day = window_of("day", self._zone)
        totals: dict[str, list[int]] = {}
        for quarter, *numbers in rows:
            sums = totals.setdefault(day.label(quarter * _QUARTER_MS), [0, 0, 0, 0])
            for at, number in enumerate(numbers):
                sums[at] += int(number)
        return [Cost(name, "", to_decimal(sums[0]), *sums[1:]) for name, sums in sorted(totals.items())]

    def _page(
        self, table: Table, made: type[T], wanted: Sequence[ColumnElement[bool]], after: str | None, limit: int
    ) -> Page[T]:
        asked = select(table).where(*wanted).order_by(table.c.no.desc()).limit(limit + 1)
        if after is not None:
            asked = asked.where(table.c.no < _cursor(after))
        with self._database.reading() as connection:
            rows = connection.execute(asked).all()
        more = str(rows[limit - 1].no) if len(rows) > limit else None
        return Page(tuple(_made(made, row) for row in rows[:limit]), more)


def _made(made: type[T], row: Any) -> T:
    found = row._mapping
    return made(**{field.name: found[field.name] for field in fields(made)})  # type: ignore[arg-type]  # all are dataclasses


def _answer(runs: Sequence[Run], refusals: int) -> AnswerCost:
    one, at = runs[0], [run.at_ms for run in runs]
    feature = next((run.feature for run in runs if run.feature), "")
    cost, calls = to_decimal(sum(run.booked_nusd for run in runs)), len({run.id for run in runs})
    return AnswerCost(
        one.tenant, one.user, one.utterance, feature, instant(min(at)), instant(max(at)), cost, calls, refusals,
        tuple(runs),
    )  # fmt: skip


def _quarter(table: Table) -> ColumnElement[Any]:
    """Quarters of an hour since the epoch: all zones of today turn their days at the edge of one."""
    return table.c.at_ms // literal_column(str(_QUARTER_MS), BigInteger)


def _quarters(table: Table) -> Select[Any]:
    return select(*(_quarter(table), func.sum(table.c.booked_nusd)))


def _parts(dimension: Dimension) -> tuple[str, ...]:
    """The columns that name a dimension; a user is one of a tenant."""
    if dimension not in ("tenant", "user", "feature", "step", "model"):
        raise ConfigurationError(f"cost_by knows no {dimension!r}; it takes tenant, user, feature, step, model or day")
    return ("tenant", "user") if dimension == "user" else (dimension,)


def _column(part: str) -> ColumnElement[Any]:
    run = tables.runs.c
    return case((run.served != "", run.served), else_=run.model) if part == "model" else run[part]


def _folded(rows: Sequence[Any], places: Sequence[int]) -> list[Cost]:
    """The rows added up by some of their columns, the most expensive first."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for row in rows:
        sums = totals.setdefault(tuple([row[at] for at in places]), [0, 0, 0, 0])
        for at in range(4):
            sums[at] += int(row[at - 4])
    costs = [
        Cost(name, tenant[0] if tenant else "", to_decimal(booked), *counts)
        for (*tenant, name), (booked, *counts) in totals.items()
    ]
    return sorted(costs, key=lambda cost: (-cost.cost, cost.tenant, cost.key))


def _sums(*columns: ColumnElement[Any]) -> Select[Any]:
    run = tables.runs.c
    sums = (run.booked_nusd, run.input_tokens, run.output_tokens)
    booked, *tokens = (func.sum(column) for column in sums)
    return select(*columns, booked, func.sum(case((again(), 0), else_=1)), *tokens)


def _cursor(after: str) -> int:
    if not _CURSOR.fullmatch(after):
        raise ConfigurationError("after= takes what the page before gave")
    return int(after)
