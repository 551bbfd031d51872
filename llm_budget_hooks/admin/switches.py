"""What was changed at run time and is in force: kill switches and overridden limits. None is unread."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel

from llm_budget_hooks.admin.rows import Number
from llm_budget_hooks.engine import BudgetEngine
from llm_budget_hooks.engine.settings import Killed, Override
from llm_budget_hooks.errors import StoreUnavailable
from llm_budget_hooks.models import Budget, Policy, instant
from llm_budget_hooks.money import plain, to_decimal


class KillSwitch(BaseModel):
    """A kill switch that is on; without a tenant it is that of everybody."""

    tenant: str | None
    reason: str
    by: str
    since: datetime
    automatic: bool

    @classmethod
    def of(cls, switch: Killed) -> KillSwitch:
        """The switch as the engine has it."""
        return cls(
            tenant=encodable(switch.tenant) or None, reason=encodable(switch.reason), by=encodable(switch.by),
            since=instant(switch.at_ms), automatic=switch.automatic,
        )  # fmt: skip


class SetLimit(BaseModel):
    """A limit that was overridden, and until when; one that is no limit is null, and ignored."""

    budget: str
    tenant: str | None
    limit: Number
    expires_at: datetime | None
    by: str
    reason: str
    since: datetime

    @classmethod
    def of(cls, one: Override, policy: Policy) -> SetLimit:
        """The override as the engine has it, in the unit of its budget."""
        found = {b.name: b for b in policy.budgets_of(one.tenant, switched_off=True)}.get(one.budget)
        limit = None if found is None or one.limit is None else in_units(found, one.limit)
        return cls(
            budget=one.budget, tenant=encodable(one.tenant) or None, limit=limit, by=encodable(one.by),
            reason=encodable(one.reason),
            expires_at=instant(one.until_ms) if one.until_ms else None, since=instant(one.at_ms),
        )  # fmt: skip


def kills_of(engine: BudgetEngine, tenant: str | None) -> list[KillSwitch] | None:
    """The kill switches that are in a tenant's way; without a tenant, all.

    Args:
        engine: whose.
        tenant: the tenant's name as accounts have it.
    """
    try:
        return [KillSwitch.of(one) for one in engine.kills() if tenant is None or one.tenant in ("", tenant)]
    except StoreUnavailable:
        return None


def overrides_of(engine: BudgetEngine, tenant: str | None, *, wide: bool = True) -> list[Override] | None:
    """The overrides of a tenant's limits and, if who asks may see them, of the global ones; without a tenant, all."""
    try:
        return [
            one for one in engine.overrides() if tenant is None or one.tenant == tenant or (wide and not one.tenant)
        ]
    except StoreUnavailable:
        return None


def encodable(text: str) -> str:
    """A text with a question mark in the place of each half of a surrogate pair, which no answer can carry."""
    return text.encode("utf-8", "replace").decode()


def in_units(budget: Budget, units: int) -> str | int:
    """A limit in the unit of its budget: exact dollars as a text, or a count."""
    return plain(to_decimal(units)) if budget.meter == "usd" else units
