"""Clocks that jump, processes that are suspended or told to end, and a server that is still loading."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, StoreUnavailable
from llm_budget_hooks.testing import RedisServer

BUDGETS: list[dict[str, Any]] = [
    {"scope": "global", "limit": "$5", "window": "day"},
    {"scope": "user", "meter": "calls", "limit": 3, "window": "rolling:60s"},
]
POLICY: dict[str, Any] = {"budgets": BUDGETS, "store_timeout": "2s", "degraded_allowance": "$0.10"}
CALL = Call(model="m", tenant="acme", user="u1", amount="0.10")


def spent(engine: BudgetEngine) -> list[Any]:
    return [(s.spent, s.reserved) for s in engine.status("acme", "u1")]


def test_a_server_that_loads_a_large_snapshot_is_away_until_it_is_loaded() -> None:
    with (
        RedisServer() as server,
        BudgetEngine.open(server.url, POLICY) as engine,
        BudgetEngine.open(server.url, {**POLICY, "on_store_error": "deny"}) as asking,
    ):
        engine.charge(CALL, cost="1")
        for number in range(200):
            server.command("SET", f"filling-{number}", "x" * 100_000)
        server.command("CONFIG", "SET", "rdbcompression", "no")
        server.command("SAVE")
        server.kill()
        server._args = ("--key-load-delay", "8000")
        starting = threading.Thread(target=server.start)
        starting.start()
        while True:
            found = asking.check(CALL).refusal
            if "loading" in str(found):
                break
            assert starting.is_alive()
        assert isinstance(found, StoreUnavailable)
        engine.settle(engine.reserve(CALL), cost="0.07")
        starting.join()
        engine.flush()
        assert spent(engine) == [(Decimal("1.07"), 0), (2, 0)]


@pytest.mark.parametrize("hours", [-50, 50])
def test_b043_a_machine_whose_clock_jumps_stays_in_the_stores_windows(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    with BudgetEngine.open(redis_server.url, POLICY) as engine, BudgetEngine.open(redis_server.url, POLICY) as other:
        held = [engine.reserve(CALL), engine.reserve(CALL)]
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3600 * 10**9)
        engine.settle(held[0], cost="0.03")
        engine.settle(engine.reserve(CALL), cost="0.04")
        with pytest.raises(BudgetExceeded):
            engine.reserve(CALL)
        engine.release(held[1])
        assert spent(engine) == [(Decimal("0.07"), 0), (3, 0)]
        monkeypatch.undo()
        assert spent(other) == [(Decimal("0.07"), 0), (3, 0)]


def test_a_store_whose_clock_jumps_charges_once_and_in_the_right_window(engine_url: str) -> None:
    now = [datetime(2026, 3, 4, 12, tzinfo=UTC)]
    with BudgetEngine.open(engine_url, POLICY, clock=lambda: now[0]) as engine:
        held = [engine.reserve(CALL), engine.reserve(CALL)]
        now[0] += timedelta(hours=3)
        assert spent(engine)[0] == (Decimal("0.20"), 0)
        assert engine.settle(held[0], cost="0.03").status == "late"
        now[0] -= timedelta(hours=6)
        assert engine.settle(held[1], cost="0.04").status == "late"
        engine.settle(engine.reserve(CALL), cost="0.01")
        assert spent(engine)[0] == (Decimal("0.08"), 0)
        now[0] += timedelta(hours=3)
        assert spent(engine)[0] == (Decimal("0.08"), 0)


CHILD = """
import os, signal, sys, time
from llm_budget_hooks import BudgetEngine, Call
url, policy, how = sys.argv[1], eval(sys.argv[2]), sys.argv[3]
engine = BudgetEngine.open(url, policy)
call = Call(model="m", tenant="acme", user="u1", amount="0.10")
held = engine.reserve(call)
if how == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
    print(engine.settle(held, cost="0.04").status)
    engine.close()
else:
    engine.settle(held, cost="0.04")
    engine.reserve(call)
    print("settled", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def child(url: str, policy: dict[str, Any], how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", CHILD, url, repr(policy), how], stdout=subprocess.PIPE)


def test_a_process_that_is_suspended_in_a_call_is_charged_and_corrects_it_later(server: RedisServer) -> None:
    policy = {**POLICY, "reservation_timeout": "200ms"}
    with BudgetEngine.open(server.url, policy) as engine:
        process = child(server.url, policy, "stopped")
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        time.sleep(0.25)
        assert spent(engine)[0] == (Decimal("0.10"), 0)
        os.kill(process.pid, signal.SIGCONT)
        assert process.communicate()[0].strip() == b"late"
        assert spent(engine) == [(Decimal("0.04"), 0), (1, 0)]


def test_b129_a_process_that_is_told_to_end_has_booked_what_it_settled(server: RedisServer) -> None:
    process = child(server.url, POLICY, "told")
    assert process.stdout is not None
    assert process.stdout.readline() == b"settled\n"
    process.terminate()
    process.communicate()
    with BudgetEngine.open(server.url, POLICY) as engine:
        assert spent(engine) == [(Decimal("0.04"), Decimal("0.10")), (2, 0)]
