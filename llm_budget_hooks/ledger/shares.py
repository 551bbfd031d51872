"""Who has spent how much of which limit, as far as the ledger knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Protocol

from sqlalchemy import ColumnElement, func, select, tuple_

from llm_budget_hooks.ledger import tables
from llm_budget_hooks.ledger.database import Database
from llm_budget_hooks.ledger.queries import again, between, ms_of, same
from llm_budget_hooks.models import Budget, Policy, instant
from llm_budget_hooks.models.trail import stored_text
from llm_budget_hooks.money import to_decimal
from llm_budget_hooks.pricing import PriceBook
from llm_budget_hooks.windows import Window

Who = tuple[str, str]
_Booked = dict[str, tuple[list[tuple[str, str, str, int]], list[tuple[str, str, int]]]]
"""By tenant: user, feature, model and amount of its runs; user, budget and nano-dollars of its corrections."""


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


class SetLimit(Protocol):
    """A limit that was set at run time, as the engine has it."""

    @property
    def tenant(self) -> str:
        """Whose, empty for budgets of scope ``global``."""

    @property
    def budget(self) -> str:
        """The budget's name."""

    @property
    def limit(self) -> int | None:
        """In the meter's own unit; None if it is ignored."""

    @property
    def until_ms(self) -> int:
        """When it ends, 0 if it does not."""


class Shares:
    """What accounts have spent, and who is near a limit."""

    _database: Database

    def over_share(
        self, policy: Policy, now: datetime, share: Decimal = Decimal("0.8"), overrides: Iterable[SetLimit] = ()
    ) -> list[Share]:
        """Who has spent a share of a limit of money or tokens or more in the window of now, the nearest to it first.

        Of the policy's budgets those of meter ``usd`` and ``tokens`` with a window. Calls count when they end: the
        ledger does not know when they began, so that a fixed window can seem to begin later by the length of a call.
        Tokens are those that providers reported.

        Args:
            policy: whose limits.
            now: an aware datetime.
            share: of the limit.
            overrides: what `BudgetEngine.overrides` returns, the limits that were set at run time.
        """
        in_force = [one for one in overrides if one.limit is not None and not 0 < one.until_ms <= ms_of(now)]
        policy = policy.with_limits({(one.tenant, one.budget): one.limit or 0 for one in in_force})
        own = {stored_text(name): name for name, tenant in policy.tenants.items() if tenant.budgets}
        seen = _Seen(self, now, PriceBook.of(policy))
        found = [*self._shares(policy, policy.budgets_of(""), seen, None, own, share)]
        for stored in sorted(own.keys() & self._active(policy, now)):
            budgets = [budget for budget in policy.budgets_of(own[stored]) if budget.scope != "global"]
            found += self._shares(policy, budgets, seen, stored, (), share)
        return sorted(found, key=lambda s: (-s.share, s.budget, s.tenant, s.user))

    def accounts(
        self,
        budget: Budget,
        since: datetime,
        until: datetime,
        *,
        tenant: str | None = None,
        user: str | None = None,
        without: Collection[str] = (),
        prices: PriceBook | None = None,
    ) -> dict[Who, int]:
        """What each account of a budget has spent, in nano-dollars or tokens, by tenant and user.

        Both are empty where the budget's scope is wider. Corrections of this budget and of spend itself are included.

        Args:
            budget: whose features and models count, of meter ``usd`` or ``tokens``.
            since, until: the span.
            tenant: only this one; None: all but those in `without`.
            user: only this one.
            without: tenants that have a budget of their own in its place.
            prices: of the policy, for a budget of some models that calls may name by their aliases.
        """
        booked = self._booked(budget.meter, since, until, tenant, user)
        return _accounts(budget, booked, without, PriceBook() if prices is None else prices)

    def _booked(
        self, meter: str, since: datetime, until: datetime, tenant: str | None = None, user: str | None = None
    ) -> _Booked:
        run, change = tables.runs.c, tables.overrides.c
        who = [run.tenant, run.user, run.feature, run.model]
        amount = run.booked_nusd if meter == "usd" else run.input_tokens + run.output_tokens
        asked = select(*who, func.sum(amount)).group_by(*who)
        asked = asked.where(*same(tables.runs, tenant=tenant, user=user), *between(tables.runs, since, until))
        corrections = select(change.tenant, change.user, change.budget, change.booked_nusd).where(
            change.kind == "adjust",
            *same(tables.overrides, tenant=tenant, user=user),
            *between(tables.overrides, since, until),
        )
        booked: _Booked = {}
        with self._database.reading() as connection:
            for row in map(tuple, connection.execute(asked)):
                booked.setdefault(row[0], ([], []))[0].append((row[1], row[2], row[3], int(row[4])))
            for row in map(tuple, connection.execute(corrections) if meter == "usd" else ()):
                booked.setdefault(row[0], ([], []))[1].append((row[1], row[2], int(row[3])))
        return booked

    def _active(self, policy: Policy, now: datetime) -> set[str]:
        """The tenants of whom the ledger has anything in the longest window that there is."""
        windows = [Window.parse(spec, policy.timezone) for spec in {budget.window for _, budget in policy.written()}]
        since = instant(min((_begins(window, ms_of(now)) for window in windows if window is not None), default=0))
        with self._database.reading() as connection:
            asked = [
                select(table.c.tenant).where(*between(table, since, None)).distinct()
                for table in (tables.runs, tables.overrides)
            ]
            return {row[0] for one in asked for row in connection.execute(one)}

    def _shares(
        self, policy: Policy, budgets: Iterable[Budget], seen: _Seen, tenant: str | None, without: Collection[str],
        share: Decimal,
    ) -> Iterator[Share]:  # fmt: skip
        for budget in budgets:
            window = Window.parse(budget.window, policy.timezone)
            if window is None or budget.meter not in ("usd", "tokens"):
                continue
            left_out = without if budget.scope != "global" else ()
            booked = seen.booked(budget.meter, window)
            if tenant is not None:
                booked = {tenant: booked[tenant]} if tenant in booked else {}
            for who, spent in _accounts(budget, booked, left_out, seen.prices).items():
                if spent >= share * budget.limit_units and window.kind == "fixed":
                    spent = self._spent_of_fixed(budget, window, who, seen)
                if spent >= share * budget.limit_units:
                    yield _share(budget, who, spent)

    def _spent_of_fixed(self, budget: Budget, window: Window, who: Who, seen: _Seen) -> int:
        """What an account has spent since the first use after its last window ended, all the way from the first."""
        tenant, user = who[0] or None, who[1] if budget.scope == "user" else None
        start_ms = self._last_start(budget, window.length_ms, seen, tenant, user)
        if start_ms is None or start_ms + window.length_ms <= ms_of(seen.now):
            return 0
        since, until = instant(start_ms), seen.now + timedelta(milliseconds=1)
        return self.accounts(budget, since, until, tenant=tenant, user=user, prices=seen.prices).get(who, 0)

    def _last_start(
        self, budget: Budget, length_ms: int, seen: _Seen, tenant: str | None, user: str | None
    ) -> int | None:
        run, mine = tables.runs.c, same(tables.runs, tenant=tenant, user=user)
        wanted: list[ColumnElement[bool]] = [*mine, run.at_ms <= ms_of(seen.now)]
        kinds = select(run.feature, run.model).where(*wanted).distinct()
        with self._database.reading() as connection:
            if budget.features or budget.models:
                covered = [
                    tuple(row)
                    for row in connection.execute(kinds)
                    if budget.covers(row.feature or None, row.model, seen.prices.is_one_of)
                ]
                wanted.append(tuple_(run.feature, run.model).in_(covered))
            first = func.min(run.at_ms).label("start")
            chain = select(first).where(*wanted, ~again()).cte("chain", recursive=True)
            after = select(first).where(*wanted, ~again(), run.at_ms >= chain.c.start + length_ms).scalar_subquery()
            chain = chain.union_all(select(after).select_from(chain).where(chain.c.start.is_not(None)))
            found: int | None = connection.execute(select(func.max(chain.c.start))).scalar()
        return found


class _Seen:
    """What the ledger has of some windows at one instant, each read once, however many budgets ask for it."""

    def __init__(self, ledger: Shares, now: datetime, prices: PriceBook) -> None:
        self.now = now
        self.prices = prices
        self._ledger = ledger
        self._read: dict[tuple[str, int], _Booked] = {}

    def booked(self, meter: str, window: Window) -> _Booked:
        since_ms = _begins(window, ms_of(self.now))
        if (meter, since_ms) not in self._read:
            until = self.now + timedelta(milliseconds=1)
            self._read[meter, since_ms] = self._ledger._booked(meter, instant(since_ms), until)
        return self._read[meter, since_ms]


def _accounts(budget: Budget, booked: _Booked, without: Collection[str], prices: PriceBook) -> dict[Who, int]:
    """What accounts of a budget have spent, of what was booked."""
    covers, is_one_of = budget.covers, prices.is_one_of
    accounts: dict[Who, int] = {}
    for tenant, (runs, corrections) in booked.items():
        if tenant in without:
            continue
        rows = [(user, amount) for user, feature, model, amount in runs if covers(feature or None, model, is_one_of)]
        if budget.meter == "usd":
            ours = [(user, amount) for user, name, amount in corrections if name in ("", budget.name)]
            rows += [(user, amount) for user, amount in ours if user or budget.scope != "user"]
        for user, amount in rows:
            key = ("" if budget.scope == "global" else tenant, user if budget.scope == "user" else "")
            accounts[key] = accounts.get(key, 0) + amount
    return accounts


def _share(budget: Budget, who: Who, spent: int) -> Share:
    share = Decimal(spent) / budget.limit_units
    if budget.meter == "usd":
        return Share(budget.name, *who, to_decimal(budget.limit_units), to_decimal(spent), share)
    return Share(budget.name, *who, budget.limit_units, spent, share)


def _begins(window: Window, now_ms: int) -> int:
    """When the window of now began; the earliest that it can have begun, for a fixed one."""
    return window.bounds(now_ms)[0] if window.kind == "calendar" else now_ms - window.length_ms + 1
