"""Balances that a Redis has lost or that were set back are noticed, and put back from the ledger."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, ConfigurationError, StoreUnavailable, Usage
from llm_budget_hooks.testing import RedisServer

BUDGETS: list[dict[str, Any]] = [
    {"scope": "global", "limit": "$30", "window": "day"},
    {"scope": "user", "limit": "$20", "window": "month"},
    {"scope": "tenant", "limit": "$25", "window": "rolling:1h"},
    {"scope": "user", "limit": "$25", "window": "fixed:24h", "name": "fixed"},
    {"scope": "user", "meter": "calls", "limit": 10, "window": "rolling:1h"},
    {"scope": "tenant", "meter": "tokens", "limit": 100_000, "window": "day"},
]
POLICY: dict[str, Any] = {"budgets": BUDGETS, "on_store_error": "deny"}
CALL = Call(model="m", tenant="acme", user="u1", amount="0.50")

USED = Usage(input_tokens=40, output_tokens=60)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def ledger_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


def spend(engine: BudgetEngine, cost: str) -> None:
    engine.settle(engine.reserve(CALL), cost=cost, usage=USED)


def spent(engine: BudgetEngine) -> list[Any]:
    return [s.spent for s in engine.status("acme", "u1")]


def test_b026_lost_balances_are_no_fresh_limit(server: RedisServer, tmp_path: Path) -> None:
    with BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) as engine:
        for _ in range(3):
            spend(engine, "6.50")
        engine.flush()
        before = spent(engine)
        assert before == [Decimal("19.5")] * 4 + [3, 300]
        server.command("FLUSHALL")
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(Call(model="m", tenant="acme", user="u1", amount="0.60"))
        assert refused.value.budget == "user-usd-month"
        assert spent(engine) == before


def test_b025_a_restored_snapshot_is_noticed_and_raised(server: RedisServer, tmp_path: Path) -> None:
    with BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) as engine:
        spend(engine, "4")
        dumps = {key: server.command("DUMP", key) for key in server.command("KEYS", "*")}
        time.sleep(0.3)
        spend(engine, "5.80")
        engine.flush()
        server.command("FLUSHALL")
        for key, dump in dumps.items():
            if dump is not None:  # the drain's lock may have gone in between
                server.command("RESTORE", key, 0, dump)
        assert engine.check(CALL)
        assert spent(engine)[:2] == [Decimal("9.80")] * 2


def test_balances_that_were_set_back_are_noticed_though_others_have_gone_on(
    server: RedisServer, tmp_path: Path
) -> None:
    one, other = (BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) for _ in range(2))
    with one, other:
        spend(other, "1")
        spend(one, "3")
        one.flush()
        dumps = {key: server.command("DUMP", key) for key in server.command("KEYS", "*")}
        time.sleep(0.3)
        spend(one, "5.80")
        one.flush()
        time.sleep(0.3)
        server.command("FLUSHALL")
        for key, dump in dumps.items():
            if dump is not None:  # the drain's lock may have gone in between
                server.command("RESTORE", key, 0, dump)
        for _ in range(5):
            spend(other, "0.10")  # who has not seen what is lost cannot know, and carries on
            time.sleep(0.15)
        spend(other, "0.20")  # which is not in the ledger yet
        one.release(one.reserve(CALL))
        assert spent(one)[0] == Decimal("10.50")
        assert spent(other)[0] == Decimal("10.50")


def test_a_clock_that_comes_back_is_no_loss(server: RedisServer) -> None:
    with BudgetEngine.open(server.url, POLICY) as one, BudgetEngine.open(server.url, POLICY) as other:
        spend(one, "1")
        spend(other, "1")
        (key,) = server.command("KEYS", "*:z")
        epoch, last = server.command("GET", key).split(b" ")[:2]
        hour = 3_600_000
        forward = b"%d %d-%d" % (int(last) + hour, int(last), int(last) + hour)
        server.command("SET", key, epoch + b" " + forward)  # as a write did while the clock was an hour fast
        time.sleep(0.3)
        for _ in range(3):
            spend(one, "1")
            spend(other, "1")
        assert spent(one)[0] == 8


def test_a_quiet_store_has_lost_nothing(server: RedisServer) -> None:
    with BudgetEngine.open(server.url, POLICY) as one, BudgetEngine.open(server.url, POLICY) as other:
        for engine in (one, other, one, one, other, other, one, other):
            spend(engine, "0.10")
            time.sleep(0.6)
        assert spent(one)[0] == Decimal("0.80")


def test_settles_of_the_last_minute_are_booked_again_once(server: RedisServer, tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path)
    with BudgetEngine.open(server.url, POLICY, ledger=ledger) as one, BudgetEngine.open(server.url, POLICY) as other:
        spend(one, "1")
        one.flush()
        spend(other, "2")
        held = other.reserve(CALL)
        server.command("FLUSHALL")
        one.reserve(CALL)
        assert spent(one)[0] == 1
        other.settle(held, cost="4", usage=USED)
        other.flush()
        assert spent(other)[0] == 7
        assert spent(one)[0] == 7


def test_one_process_of_many_rebuilds(server: RedisServer, tmp_path: Path) -> None:
    engines = [BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) for _ in range(4)]
    engines[0].settle(engines[0].reserve(CALL), cost="3")
    engines[0].flush()
    for engine in engines:
        engine.status()
    server.command("FLUSHALL")

    def ask(engine: BudgetEngine) -> None:
        for _ in range(200):
            try:
                engine.release(engine.reserve(CALL))
            except StoreUnavailable:
                time.sleep(0.05)
            else:
                break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, engines))
    assert [spent(engine)[0] for engine in engines] == [3] * 4
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("lost", [False, True])
def test_threads_that_find_nothing_at_the_same_time_are_all_let_in(
    server: RedisServer, tmp_path: Path, lost: bool
) -> None:
    rules = {**POLICY, "store_timeout": "10s"}
    calls = [Call(model="m", tenant="acme", user=f"u{n}", amount="0.50") for n in range(16)]
    with BudgetEngine.open(server.url, rules, ledger=ledger_of(tmp_path)) as engine:
        if lost:
            engine.charge(calls[0], cost="0.50")
            engine.flush()
            server.command("FLUSHALL")
        with ThreadPoolExecutor(16) as threads:
            held = list(threads.map(lambda call: engine.reserve(call).id, calls))
        assert len(set(held)) == 16
        assert engine.status()[0].reserved == 8


def test_a_new_process_finds_what_was_lost(server: RedisServer, tmp_path: Path) -> None:
    with BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) as engine:
        spend(engine, "3")
    server.command("FLUSHALL")

    async def work() -> list[Any]:
        async with BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) as engine:
            await engine.arelease(await engine.areserve(CALL))
            return [s.spent for s in await engine.astatus("acme", "u1")]

    assert asyncio.run(work())[:2] == [3, 3]


def test_without_a_ledger_it_is_store_trouble_until_somebody_says_otherwise(server: RedisServer) -> None:
    with BudgetEngine.open(server.url, POLICY) as engine:
        spend(engine, "3")
        server.command("FLUSHALL")
        with pytest.raises(StoreUnavailable, match="lost or set back"):
            engine.reserve(CALL)
        assert engine.rebuild() == 0
        engine.release(engine.reserve(CALL))
        assert spent(engine)[0] == 3


def test_rebuild_raises_what_was_set_back_and_lowers_nothing(server: RedisServer, tmp_path: Path) -> None:
    with BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) as engine:
        spend(engine, "9.80")
        engine.adjust(tenant="acme", user="u1", cost="-1", reason="refund")
        engine.flush()
        (key,) = [k for k in server.command("KEYS", "*:a:.*") if b":" in k.split(b":a:")[1]][:1]
        server.command("DEL", key)
        assert engine.rebuild() >= 1
        assert spent(engine)[0] == Decimal("8.80")
        assert engine.rebuild() == 0


def test_rebuild_on_a_file(tmp_path: Path) -> None:
    with BudgetEngine.open(f"sqlite:///{tmp_path / 'a.db'}", POLICY, ledger=ledger_of(tmp_path)) as engine:
        spend(engine, "2")
        engine.flush()
        engine._store._connection.execute("UPDATE cells SET a = 0 WHERE key LIKE '%/.%'")  # type: ignore[attr-defined]
        engine.rebuild()
        assert spent(engine)[0] == 2


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_b030_a_redis_that_evicts_is_refused_at_start(policy: str) -> None:
    with RedisServer(maxmemory="50mb", args=("--maxmemory-policy", policy)) as server:
        with pytest.raises(ConfigurationError, match="noeviction"):
            BudgetEngine.open(server.url, POLICY)
        with BudgetEngine.open(server.url, {**POLICY, "allow_eviction": True}) as engine:
            engine.reserve(CALL)


def test_a_redis_that_has_no_memory_limit_evicts_nothing() -> None:
    evicting = RedisServer(args=("--maxmemory-policy", "allkeys-lru"))
    with evicting as server, BudgetEngine.open(server.url, POLICY) as engine:
        assert engine.check(CALL).allowed


def test_rebuild_can_be_awaited(server: RedisServer, tmp_path: Path) -> None:
    async def work() -> int:
        async with BudgetEngine.open(server.url, POLICY, ledger=ledger_of(tmp_path)) as engine:
            await engine.areserve(CALL)
            return await engine.arebuild()

    assert asyncio.run(work()) == 0
