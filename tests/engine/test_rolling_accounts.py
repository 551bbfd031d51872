"""The account of a rolling window and its single entries are kept for the same time, on every store."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call

LIMIT = 5


def rules(**more: Any) -> dict[str, Any]:
    budget = {"name": "rate", "scope": "user", "meter": "calls", "limit": LIMIT, "window": "rolling:1s"}
    return {"store_timeout": "20s", "reservation_timeout": "100ms", "budgets": [{**budget, **more}]}


def spent(engine: BudgetEngine) -> Any:
    return engine.status(tenant="acme", user="u1")[0].spent


def test_b041_steady_use_for_long_never_fills_a_window(shared_url: str) -> None:
    with BudgetEngine.open(shared_url, rules()) as engine:
        for _ in range(8):
            engine.charge(Call(model="any", tenant="acme", user="u1"), cost=0)
            time.sleep(0.45)
        time.sleep(1)
        assert spent(engine) == 0


def test_b041_a_window_that_was_forgotten_begins_empty(shared_url: str) -> None:
    one = Call(model="any", tenant="acme", user="u1")
    with BudgetEngine.open(shared_url, rules()) as engine:
        for pause_s, calls in ((1.4, LIMIT), (1.05, 1)):
            for _ in range(calls):
                engine.charge(one, cost=0)
            time.sleep(pause_s)
        began = time.monotonic()
        for _ in range(LIMIT):
            engine.charge(one, cost=0)
        with pytest.raises(BudgetExceeded):
            engine.charge(one, cost=0)
        assert time.monotonic() - began < 1


def test_b041_old_entries_leave_the_sum_though_nobody_asked_for_long(engine_url: str) -> None:
    now = [datetime(2026, 11, 30, 12, tzinfo=UTC)]
    policy = rules(window="rolling:60s")
    with BudgetEngine.open(engine_url, policy, clock=lambda: now[0]) as engine:
        for seconds in (0, 50):
            now[0] += timedelta(seconds=seconds)
            engine.charge(Call(model="any", tenant="acme", user="u1"), cost=0)
        now[0] += timedelta(seconds=50)
        for number in range(600):
            engine.charge(Call(model="any", tenant="acme", user=f"other-{number}"), cost=0)
        assert spent(engine) == 1
        now[0] += timedelta(seconds=20)
        assert spent(engine) == 0


def test_b041_what_is_booked_while_old_accounts_are_cleared_away_is_counted(engine_url: str) -> None:
    now = [datetime(2026, 11, 30, 12, tzinfo=UTC)]
    one = Call(model="any", tenant="acme", user="u1")
    with BudgetEngine.open(engine_url, rules(window="rolling:60s", limit=1), clock=lambda: now[0]) as engine:
        assert spent(engine) == 0  # old records are cleared away with each so-manieth operation: make that a charge
        for _ in range(140):
            engine.charge(one, cost=0)
            with pytest.raises(BudgetExceeded) as caught:
                engine.charge(one, cost=0)
            assert caught.value.retry_after == 60
            now[0] += timedelta(seconds=70)


@pytest.mark.parametrize("meter", [{"meter": "usd", "limit": "$1"}, {"meter": "in_flight", "limit": 1, "window": None}])
def test_a_hold_that_is_extended_counts_as_long_as_it_is_open(
    engine_url: str, redis_servers: Any, meter: dict[str, Any]
) -> None:
    now = [datetime(2026, 11, 30, 12, tzinfo=UTC)]
    one = Call(model="any", tenant="acme", user="u1", amount="0.6")
    with BudgetEngine.open(engine_url, rules(**meter), clock=lambda: now[0]) as engine:
        held = engine.reserve(one)
        for _ in range(60 if meter["meter"] == "usd" else 1):
            let_accounts_end_soon(engine_url, redis_servers)
            now[0] += timedelta(milliseconds=90)
            engine.extend(held)
        time.sleep(0.03)
        for number in range(300 if engine_url.startswith("sqlite") else 10):
            engine.check(Call(model="any", tenant="acme", user=f"other-{number}", amount=0))
        with pytest.raises(BudgetExceeded):
            engine.reserve(one)
        engine.release(held)
        engine.reserve(one)


def let_accounts_end_soon(url: str, redis_servers: Any) -> None:
    """A Redis goes by real time: bring the ends of its accounts near."""
    for server in redis_servers.values():
        if server.url == url:
            for key in server.command("KEYS", "*:a:*"):
                server.command("PEXPIRE", key, 25)
