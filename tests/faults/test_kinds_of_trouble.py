"""Each way in which a Redis can fail, and what is made of it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call, StoreUnavailable
from llm_budget_hooks.testing import DelayProxy, RedisServer

POLICY: dict[str, Any] = {
    "budgets": [{"scope": "global", "limit": "$900", "window": "day"}],
    "store_timeout": "400ms",
    "degraded_allowance": "$0.10",
}
CALL = Call(model="m", amount="0.10")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[DelayProxy]:
    with DelayProxy(redis_server.port) as proxy:
        yield proxy


def passes_once_and_is_booked(engine: BudgetEngine, words: str) -> None:
    held = engine.reserve(CALL)
    with pytest.raises(StoreUnavailable, match=words) as refused:
        engine.reserve(CALL)
    assert not refused.value.busy
    assert engine.settle(held, cost="0.09").pending


def booked(engine: BudgetEngine) -> list[Any]:
    engine.flush()
    return [(s.spent, s.reserved) for s in engine.status()]


def test_a_server_that_is_gone_and_comes_back() -> None:
    kept = ("--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(args=kept) as server, BudgetEngine.open(server.url, POLICY) as engine:
        engine.charge(CALL, cost="1")
        server.kill()
        passes_once_and_is_booked(engine, "cannot be reached")
        server.start()
        assert booked(engine) == [(Decimal("1.09"), 0)]


def test_a_paused_server() -> None:
    with RedisServer() as server, BudgetEngine.open(server.url, POLICY) as engine:
        engine.charge(CALL, cost="1")
        server.pause()
        passes_once_and_is_booked(engine, "did not answer")
        server.resume()
        assert booked(engine) == [(Decimal("1.09"), 0)]


def test_a_primary_that_becomes_a_read_only_replica() -> None:
    with RedisServer() as server, RedisServer() as other, BudgetEngine.open(server.url, POLICY) as engine:
        engine.charge(CALL, cost="1")
        server.command("CONFIG", "SET", "replica-read-only", "yes")
        server.command("REPLICAOF", "127.0.0.1", str(other.port + 1 if other.port < 65000 else 1))
        passes_once_and_is_booked(engine, "read-only|MASTERDOWN")
        server.command("REPLICAOF", "NO", "ONE")
        assert booked(engine) == [(Decimal("1.09"), 0)]


def test_b031_a_server_that_reads_well_and_cannot_write(redis_server: RedisServer) -> None:
    with RedisServer() as server, BudgetEngine.open(server.url, {**POLICY, "on_store_error": "deny"}) as engine:
        engine.charge(CALL, cost="1")
        server.command("CONFIG", "SET", "maxmemory", "1")
        assert engine.status()[0].spent == 1
        with pytest.raises(StoreUnavailable, match="out of memory"):
            engine.reserve(CALL)
        server.command("CONFIG", "SET", "maxmemory", "0")
        assert booked(engine) == [(1, 0)]


def test_a_password_that_is_changed_while_it_runs() -> None:
    with RedisServer(requirepass="one") as server, BudgetEngine.open(server.url, POLICY) as engine:
        engine.charge(CALL, cost="1")
        server.command("CONFIG", "SET", "requirepass", "two")
        server._password = "two"  # noqa: S105 - of a server that lives for this test
        server.command("CLIENT", "KILL", "TYPE", "normal")
        passes_once_and_is_booked(engine, "password|cannot be reached")
        server.command("CONFIG", "SET", "requirepass", "one")
        server._password = "one"  # noqa: S105 - of a server that lives for this test
        assert booked(engine) == [(Decimal("1.09"), 0)]


def test_a_full_pool_is_waited_for_and_refused_as_busy(proxy: DelayProxy) -> None:
    with BudgetEngine.open(proxy.url, {**POLICY, "store_timeout": "1s"}) as engine:

        def refused(count: int) -> list[StoreUnavailable]:
            started = threading.Barrier(count)

            def work(_: int) -> StoreUnavailable | None:
                started.wait()
                try:
                    engine.reserve(CALL)
                except StoreUnavailable as error:
                    return error
                return None

            with ThreadPoolExecutor(count) as pool:
                return [error for error in pool.map(work, range(count)) if error is not None]

        proxy.delay_s = 0.05
        assert not refused(32)
        proxy.delay_s = 0.6
        found = refused(80)
        proxy.delay_s = 0.0
        assert len(found) >= 40
        assert all(error.busy for error in found)
        assert not engine.degraded
        time.sleep(1)
        assert engine.status()[0].reserved == Decimal("0.10") * (112 - len(found))


def test_a_stalled_server_is_no_full_pool(proxy: DelayProxy) -> None:
    async def work() -> list[Any]:
        async with BudgetEngine.open(proxy.url, {**POLICY, "on_store_error": "allow"}) as engine:
            await engine.areserve(CALL)
            proxy.stall = True
            held = await asyncio.gather(*(engine.areserve(CALL) for _ in range(80)), return_exceptions=True)
            await asyncio.gather(*(engine.arelease(one) for one in held if not isinstance(one, BaseException)))
            proxy.stall = False
            return held

    held = asyncio.run(work())
    assert not [one for one in held if isinstance(one, BaseException) and not isinstance(one, StoreUnavailable)]
    assert sum(not isinstance(one, BaseException) for one in held) >= 32


def test_a_reserve_that_arrives_after_its_release_is_not_held(proxy: DelayProxy) -> None:
    with BudgetEngine.open(proxy.url, {**POLICY, "on_store_error": "deny"}) as engine:
        engine.charge(CALL, cost="1")
        proxy.stall = True
        with pytest.raises(StoreUnavailable):
            engine.reserve(CALL)
        other = BudgetEngine.open(f"redis://127.0.0.1:{proxy.upstream_port}/0", POLICY)
        for finish in list(engine._pending):
            other._store.execute(finish)
        proxy.stall = False
        time.sleep(0.1)
        assert booked(engine) == [(1, 0)]
        other.close()
