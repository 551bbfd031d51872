"""Forks, spawned copies, threads and loops while the store is away, and afterwards."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.testing import DelayProxy, RedisServer

POLICY: dict[str, Any] = {
    "budgets": [{"scope": "global", "limit": "$5", "window": "day"}],
    "store_timeout": "300ms",
    "degraded_allowance": "$3",
}
CALL = Call(model="m", amount="0.10")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[DelayProxy]:
    with DelayProxy(redis_server.port) as proxy:
        yield proxy


def spend(engine: BudgetEngine) -> None:
    engine.settle(engine.reserve(CALL), cost="0.07")


def in_fork(engine: BudgetEngine) -> None:
    pid = os.fork()
    if not pid:
        try:
            spend(engine)
        except BaseException:  # noqa: BLE001 - the exit status says so
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    assert ended[1] == 0


def total(engine: BudgetEngine) -> list[Any]:
    engine.flush()
    return [(s.spent, s.reserved) for s in engine.status()]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_forks_before_and_after_first_use_share_one_journal(proxy: DelayProxy, tmp_path: Path) -> None:
    with BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j") as engine:
        in_fork(engine)
        spend(engine)
        in_fork(engine)
        proxy.stall = True
        in_fork(engine)
        spend(engine)
        in_fork(engine)
        spend(engine)
        proxy.stall = False
        assert total(engine) == [(Decimal("0.07") * 7, 0)]


def test_spawned_copies_share_the_journal(proxy: DelayProxy, tmp_path: Path) -> None:
    with BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j") as engine:
        spend(engine)
        proxy.stall = True
        processes = [multiprocessing.get_context("spawn").Process(target=spend, args=(engine,)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
        proxy.stall = False
        assert total(engine) == [(Decimal("0.07") * 3, 0)]


def test_threads_and_loops_of_one_process_share_the_journal(proxy: DelayProxy, tmp_path: Path) -> None:
    async def awaited(engine: BudgetEngine) -> None:
        await engine.asettle(await engine.areserve(CALL), cost="0.07")

    with BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j") as engine:
        spend(engine)
        proxy.stall = True
        threads = [threading.Thread(target=spend, args=(engine,)) for _ in range(4)]
        threads += [threading.Thread(target=lambda: asyncio.run(awaited(engine))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        proxy.stall = False
        assert total(engine) == [(Decimal("0.07") * 9, 0)]


ENDS = """
import sys
from llm_budget_hooks import BudgetEngine, Call

url, journal, ledger, mode = sys.argv[1:]
policy = {"budgets": [{"scope": "global", "limit": "$5", "window": "day"}], "store_timeout": "300ms",
          "degraded_allowance": "$3", "on_store_error": mode}
engine = BudgetEngine.open(url, policy, journal=journal, ledger=ledger)
for _ in range(3):
    try:
        engine.settle(engine.reserve(Call(model="m", amount="0.10")), cost="0.07")
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("mode", ["bounded", "allow", "deny"])
def test_an_interpreter_ends_at_once_though_the_store_is_away_and_leaves_its_journal(
    proxy: DelayProxy, tmp_path: Path, mode: str
) -> None:
    proxy.stall = True
    told = [proxy.url, str(tmp_path / "j"), f"sqlite:///{tmp_path / 'l.db'}", mode]
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", ENDS, *told], capture_output=True, text=True, check=True)
    assert time.monotonic() - began < 8
    assert ended.stdout.split() == ["StoreUnavailable"] * 3 * (mode == "deny")
    assert "Traceback" not in ended.stderr
    proxy.stall = False
    with BudgetEngine.open(proxy.url, POLICY, journal=tmp_path / "j", ledger=told[2]) as engine:
        assert total(engine) == [(Decimal("0.07") * 3 * (mode != "deny"), 0)]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("away", [False, True])
def test_a_fork_in_the_middle_of_another_threads_call_can_call(shared_url: str, tmp_path: Path, away: bool) -> None:
    stop = threading.Event()
    with DelayProxy(1) as nobody:
        url = nobody.url if away else shared_url
        budgets = [{"scope": "global", "limit": "$90000", "window": "day"}]
        policy = {"budgets": budgets, "store_timeout": "1s", "degraded_allowance": "$9000" if away else "$0"}
        with BudgetEngine.open(url, policy, journal=tmp_path / "j") as engine:

            def work() -> None:
                while not stop.is_set():
                    spend(engine)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            try:
                for _ in range(10):
                    in_fork(engine)
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
