"""An engine on a frozen clock, on every store."""

from __future__ import annotations

from typing import Any

import pytest
from one_user import Clock

from llm_budget_hooks import BudgetEngine


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(engine_url: str, clock: Clock) -> Any:
    """Opens an engine with some budgets on a frozen clock."""
    engines = []

    def make(*budgets: dict[str, Any], **policy: Any) -> BudgetEngine:
        policy.setdefault("store_timeout", "10s")
        engine = BudgetEngine.open(engine_url, {"budgets": budgets, **policy}, clock=clock)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()
