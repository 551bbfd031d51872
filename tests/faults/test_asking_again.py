"""When a store that was away is asked again, and by whom."""

from __future__ import annotations

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, StoreUnavailable
from llm_budget_hooks.stores.redis.codec import READ
from llm_budget_hooks.testing import DelayProxy, RedisServer

POLICY: dict[str, Any] = {
    "budgets": [{"scope": "global", "limit": "$900", "window": "day"}],
    "store_timeout": "300ms",
    "on_store_error": "deny",
}
CALL = Call(model="m", amount="0.10")
CALLERS = 24


def passes(engine: BudgetEngine) -> bool:
    try:
        engine.reserve(CALL)
    except StoreUnavailable:
        return False
    return True


async def apasses(engine: BudgetEngine) -> bool:
    try:
        await engine.areserve(CALL)
    except StoreUnavailable:
        return False
    return True


async def meet(engine: BudgetEngine) -> list[bool]:
    met = await asyncio.gather(*(apasses(engine) for _ in range(CALLERS)))
    await engine._store.aclose()  # the connections of this loop, and no more
    return met


def passes_within(engine: BudgetEngine, seconds: float) -> bool:
    ends = time.monotonic() + seconds
    while not (passed := passes(engine)) and time.monotonic() < ends:
        time.sleep(0.02)
    return passed


@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_a_stall_that_many_calls_meet_at_once_is_one_trouble(redis_server: RedisServer, face: str) -> None:
    with DelayProxy(redis_server.port) as proxy, BudgetEngine.open(proxy.url, POLICY) as engine:
        assert passes(engine)
        proxy.stall = True
        if face == "blocking":
            with ThreadPoolExecutor(CALLERS) as pool:
                assert not any(pool.map(passes, [engine] * CALLERS))
        else:
            assert not any(asyncio.run(meet(engine)))
        proxy.stall = False
        assert passes_within(engine, 1.5)  # half a second; where each of the calls that met it made that longer, five


def test_a_store_that_is_away_is_asked_again_by_one_call_at_a_time(redis_server: RedisServer) -> None:
    asked: list[tuple[float, float]] = []

    def call_on(engine: BudgetEngine) -> None:
        ends = time.monotonic() + 5
        while time.monotonic() < ends:
            began = time.monotonic()
            assert not passes(engine)
            if time.monotonic() - began > 0.4:
                asked.append((began, time.monotonic()))
            time.sleep(0.01)

    policy = {**POLICY, "store_timeout": "800ms"}
    with DelayProxy(redis_server.port) as proxy, BudgetEngine.open(proxy.url, policy) as engine:
        assert passes(engine)
        proxy.stall = True
        assert not passes(engine)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(call_on, [engine] * 4))
        proxy.stall = False
    asked.sort()
    assert len(asked) >= 2
    assert all(ended <= began for (_, ended), (began, _) in itertools.pairwise(asked))


def test_a_process_that_begins_in_an_outage_begins_when_it_is_over(redis_server: RedisServer, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with DelayProxy(redis_server.port) as proxy:
        proxy.stall = True
        with BudgetEngine.open(proxy.url, POLICY, ledger=ledger) as engine:
            assert not passes(engine)
            proxy.stall = False
            assert passes_within(engine, 3)


def test_a_rebuilding_that_is_cut_short_is_begun_again_at_once(redis_server: RedisServer, tmp_path: Path) -> None:
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    with (
        DelayProxy(redis_server.port, match=READ.sha.encode()) as proxy,
        BudgetEngine.open(proxy.url, POLICY, ledger=ledger) as engine,
    ):
        engine.charge(CALL, cost="7")
        engine.flush()
        redis_server.flush()
        proxy.cut_before_request = 1
        assert not passes(engine)
        assert proxy.cuts == 1
        assert passes_within(engine, 3)
        assert engine.status()[0].spent == 7


def scripts_run(server: RedisServer) -> int:
    stats = [
        fields for name, fields in server.info("commandstats").items() if name in ("cmdstat_evalsha", "cmdstat_eval")
    ]
    return sum(int(fields.partition("calls=")[2].partition(",")[0]) for fields in stats)


@pytest.mark.parametrize("trouble", ["gone", "replica", "out of memory"])
@pytest.mark.parametrize("face", ["blocking", "awaited"])
def test_what_a_store_cannot_have_got_is_not_taken_back_when_it_returns(trouble: str, face: str) -> None:
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(args=kept) as server, BudgetEngine.open(server.url, POLICY) as engine:
        assert passes(engine)
        if trouble == "gone":
            server.kill()
        elif trouble == "replica":
            server.command("REPLICAOF", "127.0.0.1", "1")
        else:
            server.command("CONFIG", "SET", "maxmemory", "1")
        if face == "blocking":
            assert not any(passes(engine) for _ in range(CALLERS))
        else:
            assert not any(asyncio.run(meet(engine)))
        if trouble == "gone":
            server.start()
        elif trouble == "replica":
            server.command("REPLICAOF", "NO", "ONE")
        else:
            server.command("CONFIG", "SET", "maxmemory", "0")
        before = scripts_run(server)
        assert passes(engine)
        assert scripts_run(server) - before <= 4  # one call went to a connection that was gone; scripts were forgotten


def test_a_store_that_reads_and_does_not_write_is_one_outage_and_ends_with_a_write() -> None:
    full = Call(model="m", user="full", amount="900")
    told: list[object] = []
    by_user = {**POLICY, "budgets": [{"scope": "user", "limit": "$900", "window": "day"}]}
    with RedisServer() as server, BudgetEngine.open(server.url, by_user, on_degraded=told.append) as engine:
        engine.charge(full, cost="900")
        server.command("REPLICAOF", "127.0.0.1", "1")
        for _ in range(5):
            with pytest.raises(BudgetExceeded, match="limit"):
                engine.reserve(full)  # which the store can tell without a write
            assert not passes(engine)
            engine.status("default", "full")
        assert len(told) == 1
        assert engine.degraded
        server.command("REPLICAOF", "NO", "ONE")
        assert passes(engine)
        assert not engine.degraded
