"""What becomes of the journal's file while it is in use."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call, StoreUnavailable
from llm_budget_hooks.testing import DelayProxy, RedisServer

POLICY: dict[str, Any] = {
    "budgets": [{"scope": "global", "limit": "$5", "window": "day"}],
    "store_timeout": "200ms",
    "degraded_allowance": "$0.50",
}
CALL = Call(model="m", amount="0.10")


def test_a_journal_that_is_deleted_under_its_process_is_no_new_allowance(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    with (
        DelayProxy(redis_server.port) as proxy,
        BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j") as engine,
    ):
        engine.charge(CALL, cost="1")
        proxy.stall = True
        for _ in range(2):
            engine.settle(engine.reserve(CALL), cost="0.10")
        for path in tmp_path.glob("j*"):
            path.unlink()
        for _ in range(3):
            engine.settle(engine.reserve(CALL), cost="0.10")
        with pytest.raises(StoreUnavailable, match="used up"):
            engine.reserve(CALL)
        proxy.stall = False
        engine.flush()
        assert [(s.spent, s.reserved) for s in engine.status()] == [(Decimal("1.50"), 0)]


def test_a_journal_that_is_none_lets_nothing_pass_and_is_named(redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"something else" * 500)
    with (
        DelayProxy(redis_server.port) as proxy,
        BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j") as engine,
    ):
        proxy.stall = True
        with pytest.raises(StoreUnavailable, match="journal j cannot be used"):
            engine.reserve(CALL)
        proxy.stall = False
    assert (tmp_path / "j").read_bytes() == b"something else" * 500
