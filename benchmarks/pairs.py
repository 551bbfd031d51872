"""The operations that are timed: reserve and settle over five budgets, and the bare ones beside them."""

from __future__ import annotations

import asyncio
import itertools
import random
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import redis

from llm_budget_hooks import BudgetEngine, Call, Usage
from llm_budget_hooks.keys import digest
from llm_budget_hooks.stores.redis.connections import SyncConnections

MODEL = "made-up"
USAGE = {"input_tokens": 1_000, "cached_input_tokens": 200, "output_tokens": 300}
REFERENCE = "for i = 1, 10 do redis.call('GET', KEYS[1]..i) redis.call('SET', KEYS[1]..i, i, 'PX', 60000) end return 1"
_TASKS = 50

Operation = Callable[[], object]


@dataclass
class Clock:
    """A clock that goes on when it is told to, from the start of a slot of a rolling window."""

    now: datetime = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def engine_on(url: str, rolling: str = "60s", clock: Clock | None = None, timeout: str = "30s") -> BudgetEngine:
    """An engine with five budgets that are never reached."""
    policy = {
        "prices": {MODEL: {"input": "1", "cached_input": "0.1", "output": "10"}},
        "reservation_timeout": "24h",
        "store_timeout": timeout,
        "budgets": [
            {"scope": "global", "limit": "$5000000", "window": "month"},
            {"scope": "tenant", "limit": "$5000000", "window": "month"},
            {"scope": "user", "limit": "$5000000", "window": "day"},
            {"scope": "tenant", "meter": "calls", "limit": 10**9, "window": f"rolling:{rolling}"},
            {"scope": "user", "meter": "in_flight", "limit": 10**6},
        ],
    }
    return BudgetEngine.open(url, policy, clock=clock)


def call_of(number: int) -> Call:
    """A call of one of many tenants with two users each."""
    tenant, user = f"tenant-{number // 2}", f"user-{number}"
    return Call(model=MODEL, tenant=tenant, user=user, input_tokens=1_000, max_output_tokens=500)


def pair(engine: BudgetEngine, users: int, seed: int = 1) -> Operation:
    """Reserve and settle, each time for another user."""
    chance = random.Random(seed)
    order = itertools.cycle([chance.randrange(users) for _ in range(10_000)])

    def reserve_and_settle() -> None:
        held = engine.reserve(call_of(next(order)))
        engine.settle(held, usage=Usage(**USAGE))  # type: ignore[arg-type]  # counts only

    return reserve_and_settle


def planning(engine: BudgetEngine) -> Operation:
    """What is done for a call before the store is asked."""
    call, planner = call_of(0), engine._planner
    now = engine.now_ms()
    return lambda: planner.plan(call, now)


def hashing() -> Operation:
    """The digests of a call's tenant, user and id."""
    call = call_of(0)
    tenant, user = str(call.tenant), str(call.user)

    def three() -> None:
        digest("t", tenant)
        digest("u", tenant, user)
        digest("h", user)

    return three


def bare_evalsha(client: Any, script: str = "return 1") -> Operation:
    """One script over redis-py's own client."""
    sha = client.script_load(script)
    return lambda: client.evalsha(sha, 1, "reference")


def empty_pair(client: Any, one: Operation) -> Operation:
    """Scripts that do nothing, with the very arguments that the scripts of a pair have."""
    sent: list[tuple[Any, ...]] = []
    evaluate = SyncConnections.evaluate

    def recorded(self: SyncConnections, script: Any, root: str, arguments: Any) -> object:
        sent.append((root, *arguments))
        return evaluate(self, script, root, arguments)

    with patch.object(SyncConnections, "evaluate", recorded):
        one()
    sha = client.script_load("return 1")

    def both() -> None:
        for arguments in sent:
            client.evalsha(sha, 1, *arguments)

    return both


def client_of(url: str) -> Any:
    return redis.Redis.from_url(url)


def bare_transaction(path: Path) -> tuple[Operation, Callable[[], None]]:
    """``BEGIN IMMEDIATE``, a select and an update of one row on the same file; and what closes it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS bare (id INTEGER PRIMARY KEY, number INTEGER)")
    connection.execute("INSERT OR REPLACE INTO bare VALUES (1, 0)")
    execute = connection.execute

    def transact() -> None:
        execute("BEGIN IMMEDIATE")
        number = execute("SELECT number FROM bare WHERE id = 1").fetchone()[0]
        execute("UPDATE bare SET number = ? WHERE id = 1", (number + 1,))
        execute("COMMIT")

    return transact, connection.close


def bare_increment() -> Operation:
    """One number of a dict goes up, under a lock."""
    lock, numbers = threading.Lock(), {"key": 0}

    def increment() -> None:
        with lock:
            numbers["key"] += 1

    return increment


def fill(engine: BudgetEngine, users: int, *, awaited: bool, clock: Clock) -> None:  # noqa: ARG001 - as the others
    """Give every user a hold that is open, and every fourth one a call that is over."""
    if awaited:
        asyncio.run(_fill(engine, users))
        return
    for number in range(users):
        held = engine.reserve(call_of(number))
        if number % 4 == 3:
            engine.settle(held, cost="0.001")
            engine.reserve(call_of(number))


async def _fill(engine: BudgetEngine, users: int) -> None:
    numbers = iter(range(users))

    async def some() -> None:
        for number in numbers:
            held = await engine.areserve(call_of(number))
            if number % 4 == 3:
                await engine.asettle(held, cost="0.001")
                await engine.areserve(call_of(number))

    await asyncio.gather(*(some() for _ in range(_TASKS)))
    await engine.aclose()


def past_calls(engine: BudgetEngine, calls: int, *, awaited: bool, clock: Clock) -> None:
    """Book many calls of one user, within five minutes of a clock that somebody may look at."""
    if awaited:
        asyncio.run(_past_calls(engine, calls, clock))
        return
    for _ in range(calls):
        clock.advance(300 / calls)
        engine.charge(call_of(0), cost="0.001")


def leaving_calls(engine: BudgetEngine, calls: int, *, awaited: bool, clock: Clock) -> None:
    """Book many calls of one user, and go on to where half of them have left a window of six hours."""
    past_calls(engine, calls, awaited=awaited, clock=clock)
    clock.advance(6 * 3600 - 150)


async def _past_calls(engine: BudgetEngine, calls: int, clock: Clock) -> None:
    numbers = iter(range(calls))

    async def some() -> None:
        for _ in numbers:
            clock.advance(300 / calls)
            await engine.acharge(call_of(0), cost="0.001")

    await asyncio.gather(*(some() for _ in range(_TASKS)))
    await engine.aclose()
