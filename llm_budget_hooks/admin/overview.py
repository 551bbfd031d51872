"""What a tenant's administrator, or an operator, sees at one look: the rules in force, balances, and the month."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import BaseModel

from llm_budget_hooks.admin.rows import Dollars, Number
from llm_budget_hooks.admin.switches import KillSwitch, SetLimit, in_units, kills_of, overrides_of
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.keys import tenant_name
from llm_budget_hooks.ledger import Cost, Ledger, LedgerUnavailable
from llm_budget_hooks.models import BudgetStatus, instant
from llm_budget_hooks.money import plain
from llm_budget_hooks.windows import Window

T = TypeVar("T")


class Rule(BaseModel):
    """A budget as it is in force, with the limit of the policy where an override has changed it."""

    name: str
    scope: str
    meter: str
    window: str | None
    limit: Number
    policy_limit: Number
    features: list[str]
    models: list[str]
    managed: bool


class Balance(BaseModel):
    """A balance as it stands; what could not be read is null."""

    budget: str
    scope: str
    meter: str
    window: str | None
    limit: Number
    spent: Number
    reserved: Number
    available: Number
    resets_at: datetime | None

    @classmethod
    def of(cls, line: BudgetStatus) -> Balance:
        """The balance of one line of `BudgetEngine.status`."""
        names = ("limit", "spent", "reserved", "available")
        numbers = {name: _number(getattr(line, name)) for name in names}
        rest = {name: getattr(line, name) for name in cls.model_fields if name not in names}
        return cls(**rest, **numbers)


class CostOf(BaseModel):
    """What one feature, step, model, user, tenant or day has cost."""

    key: str
    tenant: str
    cost: Dollars
    calls: int
    input_tokens: int
    output_tokens: int

    @classmethod
    def of(cls, cost: Cost) -> CostOf:
        """The row of a cost."""
        rest = {name: getattr(cost, name) for name in cls.model_fields if name != "cost"}
        return cls(cost=plain(cost.cost), **rest)


class Asks(BaseModel):
    """How many requests there were, and the limits of their number."""

    last_24h: int | None
    limits: list[Balance]


class Overview(BaseModel):
    """The rules in force, balances, kill switches, overrides, and what this month has cost. Null is unread.

    Where `shared` is false, the balances are those of one process, and nobody else's spending is in them.
    """

    tenant: str | None
    shared: bool
    namespace: str
    timezone: str
    now: datetime
    rules: list[Rule]
    budgets: list[Balance]
    killed: list[KillSwitch] | None
    overrides: list[SetLimit] | None
    month_spent: Dollars | None
    month_projection: Dollars | None
    cost_by_feature: list[CostOf] | None
    asks: Asks


def overview(
    engine: BudgetEngine, tenant: str | None, user: str | None = None, *, wide: bool = True, spent: bool = True
) -> Overview:
    """Everything at one look.

    Args:
        engine: whose.
        tenant: None: the global budgets, and what all tenants cost.
        user: reads this user's balances too.
        wide: whether who asks may see the figures of everybody together.
        spent: whether the ledger is asked what was spent; if not, all that comes of it is null.
    """
    now = instant(engine.now_ms())
    lines = [Balance.of(line) for line in engine.status(tenant, user) if wide or line.scope != "global"]
    name = None if tenant is None else tenant_name(tenant)
    changed = overrides_of(engine, name, wide=wide)
    rules = _rules(engine, name or "", {(o.tenant, o.budget): o.limit for o in changed or () if o.limit is not None})
    return Overview(
        tenant=name,
        shared=engine.shared,
        namespace=engine.policy.namespace,
        timezone=engine.policy.timezone,
        now=now,
        rules=[rule for rule in rules if wide or rule.scope != "global"],
        budgets=lines,
        killed=kills_of(engine, name),
        overrides=None if changed is None else [SetLimit.of(one, engine.policy) for one in changed],
        asks=_asks(engine, now, name, user, lines) if spent else Asks(last_24h=None, limits=[]),
        **_month(engine, now, name, spent),
    )


def month_of(zone: str, now: datetime) -> datetime:
    """When the month of an instant began."""
    month = Window.parse("month", zone)
    assert month is not None  # noqa: S101 - only no window at all is None
    return instant(month.bounds(int(now.timestamp() * 1000))[0])


def unless_away(read: Callable[[], T]) -> T | None:
    """What is read, None if its store or ledger does not answer."""
    try:
        return read()
    except (StoreUnavailable, LedgerUnavailable):
        return None


def _asks(engine: BudgetEngine, now: datetime, tenant: str | None, user: str | None, lines: list[Balance]) -> Asks:
    ledger: Ledger | None = engine.ledger
    count = None if ledger is None else ledger.questions(now, tenant=tenant, user=user)
    return Asks(last_24h=count, limits=[line for line in lines if line.meter == "utterances"])


def month(engine: BudgetEngine, now: datetime, tenant: str | None) -> dict[str, Dollars | None]:
    """What a month has cost until now, and what it comes to at this pace, as `Overview` has them; None is unread."""
    ledger: Ledger | None = engine.ledger
    spent = None if ledger is None else ledger.spent(month_of(engine.policy.timezone, now), now, tenant=tenant)
    projected = None if spent is None or ledger is None else ledger.at_this_pace(spent, now)
    return {
        "month_spent": None if spent is None else plain(spent),
        "month_projection": None if projected is None else plain(projected),
    }


def _month(engine: BudgetEngine, now: datetime, tenant: str | None, spent: bool) -> dict[str, Any]:
    ledger: Ledger | None = engine.ledger
    if ledger is None or not spent:
        return {"month_spent": None, "month_projection": None, "cost_by_feature": None}
    since, found = month_of(engine.policy.timezone, now), month(engine, now, tenant)
    costs = unless_away(lambda: ledger.cost_by("feature", tenant=tenant, since=since, until=now))
    return {**found, "cost_by_feature": None if costs is None else [CostOf.of(cost) for cost in costs]}


def _rules(engine: BudgetEngine, tenant: str, limits: dict[tuple[str, str], int]) -> list[Rule]:
    rules = []
    for budget in engine.policy.budgets_of(tenant, switched_off=True):
        whose = "" if budget.scope == "global" else tenant
        units = limits.get((whose, budget.name), budget.limit_units)
        rules.append(
            Rule(
                name=budget.name, scope=budget.scope, meter=budget.meter, window=budget.window,
                limit=in_units(budget, units), policy_limit=in_units(budget, budget.limit_units),
                features=[*budget.features], models=[*budget.models], managed=budget.managed,
            )
        )  # fmt: skip
    return rules


def _number(value: Decimal | int | None) -> str | int | None:
    return plain(value) if isinstance(value, Decimal) else value
