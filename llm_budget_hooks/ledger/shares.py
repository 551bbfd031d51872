"""Who has spent how much of which limit, as far as the ledger knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, func, select, tuple_

from llm_budget_hooks.ledger import tables
from llm_budget_hooks.ledger.database import Database
from llm_budget_hooks.ledger.queries import again, between, ms_of, same
from llm_budget_hooks.models import Budget, Policy, instant
from llm_budget_hooks.models.trail import stored_text
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.windows import Window

Who = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """How much of a limit somebody has spent.

    Attributes:
        budget: the budget's name.
        tenant, user: whose account; empty where the budget's scope is wider.
        limit, spent: dollars for the meter ``usd``, else tokens.
        share: spent / limit.
    """

    budget: str
    tenant: str
    user: str
    limit: Decimal | int
    spent: Decimal | int
    share: Decimal


class Shares:
    """What accounts have spent, and who is near a limit."""

    _database: Database

    def over_share(self, policy: Policy, now: datetime, share: Decimal = Decimal("0.8")) -> list[Share]:
        """Who has spent a share of a limit of money or tokens or more in the window of now, the nearest to it first.

        Of the policy's budgets those of meter ``usd`` and ``tokens`` with a window. Calls count when they end: the
        ledger does not know when they began, so that a fixed window can seem to begin later by the length of a call.
        Tokens are those that providers reported.
        """
        names = [name for name, own in policy.tenants.items() if own.budgets]
        without = [stored_text(name) for name in names]
        found = [*self._shares(policy, policy.budgets_of(""), now, None, without, share)]
        for name in names:
            own = [budget for budget in policy.budgets_of(name) if budget.scope != "global"]
            found += self._shares(policy, own, now, stored_text(name), [], share)
        return sorted(found, key=lambda s: (-s.share, s.budget, s.tenant, s.user))

    def accounts(
        self,
        budget: Budget,
        since: datetime,
        until: datetime,
        *,
        tenant: str | None = None,
        user: str | None = None,
        without: Sequence[str] = (),
    ) -> dict[Who, int]:
        """What each account of a budget has spent, in nano-dollars or tokens, by tenant and user.

        Both are empty where the budget's scope is wider. Corrections of this budget and of spend itself are included.

        Args:
            budget: whose features and models count, of meter ``usd`` or ``tokens``.
            since, until: the span.
            tenant: only this one; None: all but those in `without`.
            user: only this one.
            without: tenants that have a budget of their own in its place.
        """
        run = tables.runs.c
        who = [run.tenant, run.user, run.feature, run.model]
        amount = run.booked_nusd if budget.meter == "usd" else run.input_tokens + run.output_tokens
        asked = select(*who, func.sum(amount)).where(run.tenant.not_in(without)).group_by(*who)
        asked = asked.where(*same(tables.runs, tenant=tenant, user=user), *between(tables.runs, since, until))
        with self._database.reading() as connection:
            rows = [tuple(r) for r in connection.execute(asked) if budget.covers(r.feature or None, r.model)]
            if budget.meter == "usd":
                corrections = _corrections(budget, without).where(
                    *same(tables.overrides, tenant=tenant, user=user), *between(tables.overrides, since, until)
                )
                rows += [tuple(r) for r in connection.execute(corrections) if r.user or budget.scope != "user"]
        accounts: dict[Who, int] = {}
        for row in rows:
            key = ("" if budget.scope == "global" else row[0], row[1] if budget.scope == "user" else "")
            accounts[key] = accounts.get(key, 0) + int(row[-1])
        return accounts

    def _shares(
        self, policy: Policy, budgets: Iterable[Budget], now: datetime, tenant: str | None, without: Sequence[str],
        share: Decimal,
    ) -> Iterator[Share]:  # fmt: skip
        until = now + timedelta(milliseconds=1)
        for budget in budgets:
            window = Window.parse(budget.window, policy.timezone)
            if window is None or budget.meter not in ("usd", "tokens"):
                continue
            left_out = without if budget.scope != "global" else ()
            since = instant(_begins(window, ms_of(now)))
            for who, spent in self.accounts(budget, since, until, tenant=tenant, without=left_out).items():
                if spent >= share * budget.limit_units and window.kind == "fixed":
                    spent = self._spent_of_fixed(budget, window, who, now)
                if spent >= share * budget.limit_units:
                    yield _share(budget, who, spent)

    def _spent_of_fixed(self, budget: Budget, window: Window, who: Who, now: datetime) -> int:
        """What an account has spent since the first use after its last window ended, all the way from the first."""
        tenant, user = who[0] or None, who[1] if budget.scope == "user" else None
        start_ms = self._last_start(budget, window.length_ms, now, tenant, user)
        if start_ms is None or start_ms + window.length_ms <= ms_of(now):
            return 0
        until = now + timedelta(milliseconds=1)
        return self.accounts(budget, instant(start_ms), until, tenant=tenant, user=user).get(who, 0)

    def _last_start(
        self, budget: Budget, length_ms: int, now: datetime, tenant: str | None, user: str | None
    ) -> int | None:
        run = tables.runs.c
        wanted: list[ColumnElement[bool]] = [*same(tables.runs, tenant=tenant, user=user), run.at_ms <= ms_of(now)]
        kinds = select(run.feature, run.model).where(*wanted).distinct()
        with self._database.reading() as connection:
            if budget.features or budget.models:
                covered = [tuple(r) for r in connection.execute(kinds) if budget.covers(r.feature or None, r.model)]
                wanted.append(tuple_(run.feature, run.model).in_(covered))
            first = func.min(run.at_ms).label("start")
            chain = select(first).where(*wanted, ~again()).cte("chain", recursive=True)
            after = select(first).where(*wanted, ~again(), run.at_ms >= chain.c.start + length_ms).scalar_subquery()
            chain = chain.union_all(select(after).select_from(chain).where(chain.c.start.is_not(None)))
            found: int | None = connection.execute(select(func.max(chain.c.start))).scalar()
        return found


def _corrections(budget: Budget, without: Sequence[str]) -> Any:
    row = tables.overrides.c
    return select(row.tenant, row.user, row.booked_nusd).where(
        row.kind == "adjust", row.budget.in_(["", budget.name]), row.tenant.not_in(without)
    )


def _share(budget: Budget, who: Who, spent: int) -> Share:
    share = Decimal(spent) / budget.limit_units
    if budget.meter == "usd":
        return Share(budget.name, *who, to_decimal(budget.limit_units), to_decimal(spent), share)
    return Share(budget.name, *who, budget.limit_units, spent, share)


def _begins(window: Window, now_ms: int) -> int:
    """When the window of now began; the earliest that it can have begun, for a fixed one."""
    return window.bounds(now_ms)[0] if window.kind == "calendar" else now_ms - window.length_ms + 1
