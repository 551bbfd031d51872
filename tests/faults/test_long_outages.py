"""Ends of holds that reach the store when it remembers them no more: each is booked once."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.testing import DelayProxy, RedisServer

LONG = {"remember": "1m", "reservation_timeout": "10m"}
POLICY: dict[str, Any] = {
    "budgets": [
        {"scope": "global", "limit": "$5", "window": "month"},
        {"scope": "user", "limit": "$5", "window": "rolling:7d"},
    ],
    "store_timeout": "200ms",
}
CALL = Call(model="m", tenant="acme", user="u1", amount="0.50")


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 2, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def spent(engine: BudgetEngine) -> list[Decimal | int | None]:
    return [s.spent for s in engine.status("acme", "u1")]


def test_an_end_without_a_cost_that_is_forgotten_is_not_charged_again(engine_url: str) -> None:
    clock = Clock()
    with BudgetEngine.open(engine_url, {**POLICY, **LONG}, clock=clock) as engine:
        held = engine.reserve(CALL)
        copies = [pickle.loads(pickle.dumps(held)) for _ in range(3)]
        engine.settle(held)
        clock.now += timedelta(minutes=5)
        engine.settle(copies[0])
        assert spent(engine) == [Decimal("0.50")] * 2
        assert engine.settle(copies[1], cost="0.20").status == "late"
        assert spent(engine) == [Decimal("0.20")] * 2
        clock.now += timedelta(minutes=4)
        engine.settle(copies[2], cost="0.20")
        assert spent(engine) == [Decimal("0.20")] * 2


@pytest.mark.parametrize(("ends", "left"), [("settle", "0.20"), ("unknown", "0.50"), ("release", "0")])
def test_a_hold_that_expired_in_a_long_outage_is_booked_once(
    redis_server: RedisServer, tmp_path: Path, ends: str, left: str
) -> None:
    clock = Clock()
    with DelayProxy(redis_server.port) as proxy:
        engine = BudgetEngine.open(proxy.url, POLICY, clock=clock, journal=tmp_path / "cut off")
        others = BudgetEngine.open(redis_server.url, POLICY, clock=clock, journal=tmp_path / "others")
        held = engine.reserve(CALL)
        proxy.stall = True
        {"settle": lambda: engine.settle(held, cost="0.20"), "unknown": lambda: engine.settle(held)}.get(
            ends, lambda: engine.release(held)
        )()
        clock.now += timedelta(minutes=20)
        assert spent(others) == [Decimal("0.50")] * 2  # it has expired
        clock.now += timedelta(hours=3)
        proxy.stall = False
        engine.flush()
        assert spent(others) == [Decimal(left)] * 2
        others.close()
        engine.close()


@pytest.mark.parametrize("final", [True, False])
def test_an_end_whose_reply_is_lost_before_a_long_outage_is_booked_once(
    redis_server: RedisServer, tmp_path: Path, final: bool
) -> None:
    clock = Clock()
    with DelayProxy(redis_server.port) as proxy:
        engine = BudgetEngine.open(proxy.url, POLICY, clock=clock, journal=tmp_path / "cut off")
        engine.settle(engine.reserve(CALL), cost="0.01")  # the server knows the scripts
        held = engine.reserve(CALL)
        proxy.cut_after_request = 1
        engine.settle(held, cost="0.20") if final else engine.settle(held)
        clock.now += timedelta(hours=3)
        engine.flush()
        assert spent(engine) == [Decimal("0.21") if final else Decimal("0.51")] * 2
        engine.close()


@pytest.mark.parametrize("final", [True, False])
def test_a_hold_whose_reply_is_lost_before_a_long_outage_is_booked_once(
    redis_server: RedisServer, tmp_path: Path, final: bool
) -> None:
    clock = Clock()
    with DelayProxy(redis_server.port) as proxy:
        policy = {**POLICY, "degraded_allowance": "$2"}
        engine = BudgetEngine.open(proxy.url, policy, clock=clock, journal=tmp_path / "cut off")
        others = BudgetEngine.open(redis_server.url, policy, clock=clock, journal=tmp_path / "others")
        engine.settle(engine.reserve(CALL), cost="0.01")  # the server knows the scripts
        proxy.cut_after_request = 1
        held = engine.reserve(CALL)
        assert proxy.cuts == 1
        proxy.stall = True
        engine.settle(held, cost="0.20") if final else engine.settle(held)
        clock.now += timedelta(minutes=20)
        assert spent(others) == [Decimal("0.51")] * 2  # it has expired
        clock.now += timedelta(hours=3)
        proxy.stall = False
        engine.flush()
        assert spent(others) == [Decimal("0.21") if final else Decimal("0.51")] * 2
        others.close()
        engine.close()
