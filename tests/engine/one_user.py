"""One user of one tenant, a clock that stands still, and short ways to make budgets and calls and to read balances."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from llm_budget_hooks import BudgetEngine, Call

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self, now: datetime = NOON) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def ahead(self, **by: float) -> None:
        self.now += timedelta(**by)


def day(limit: str = "$1", scope: str = "user", **more: Any) -> dict[str, Any]:
    return {"scope": scope, "limit": limit, "window": "day", **more}


def call(amount: str | None = "0.10", **more: Any) -> Call:
    return Call(**{"model": "gpt-4o-mini", "tenant": "acme", "user": "u1", "amount": amount, **more})


def spent(engine: BudgetEngine, budget: int = 0) -> tuple[Any, Any]:
    status = engine.status(tenant="acme", user="u1")[budget]
    return status.spent, status.reserved
