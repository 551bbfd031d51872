"""A slow or silent Redis: the event loop waits for the store, and never longer than its timeout."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from redis import Redis
from runs_under_test import config

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import DelayProxy, RedisServer

POLICY = {
    "budgets": [{"name": "calls", "scope": "user", "meter": "calls", "limit": 1000, "window": "day"}],
    "store_timeout": "300ms",
    "on_store_error": "deny",
}


async def longest_pause(work: Any) -> float:
    """The longest time in seconds for which the loop did not turn while it did some work."""
    longest, last, done = 0.0, time.perf_counter(), False

    async def turn() -> None:
        nonlocal longest, last
        while not done:
            await asyncio.sleep(0)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now

    turning = asyncio.create_task(turn())
    await asyncio.gather(work, return_exceptions=True)
    done = True
    await turning
    return longest


def test_the_loop_waits_under_a_millisecond_for_a_store_nearby(redis_server: RedisServer) -> None:
    """What each event of the handler takes, which is for how long the loop does not turn, beyond a bare trip.

    Of 300 the fastest tenth, since a machine that does other things as well makes every trip wait.
    """
    times: dict[str, list[float]] = {"on_chat_model_start": [], "on_llm_end": [], "trip": []}

    class Timed(BudgetCallbackHandler):
        """Knows how long it took."""

        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            super().on_chat_model_start(*args, **kwargs)
            times["on_chat_model_start"].append(time.perf_counter() - began)

        def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
            began = time.perf_counter()
            super().on_llm_end(*args, **kwargs)
            times["on_llm_end"].append(time.perf_counter() - began)

    with BudgetEngine.open(redis_server.url, POLICY) as engine, Redis(port=redis_server.port) as bare:
        model, run = FakeListChatModel(responses=["ok"]), config(Timed(engine))

        async def main() -> None:
            for _ in range(300):
                await model.ainvoke("hi", run)
                began = time.perf_counter()
                bare.ping()
                times["trip"].append(time.perf_counter() - began)

        asyncio.run(main())
        assert engine.status("acme", "u1")[0].spent == 300
    fastest = {name: sorted(each)[len(each) // 10] for name, each in times.items()}
    assert fastest["on_chat_model_start"] - fastest["trip"] < 0.001, fastest
    assert fastest["on_llm_end"] - fastest["trip"] < 0.001, fastest


def test_the_loop_waits_for_a_slow_store_one_trip_at_a_time(redis_server: RedisServer) -> None:
    with DelayProxy(redis_server.port) as proxy, BudgetEngine.open(proxy.url, POLICY) as engine:
        model, handler = FakeListChatModel(responses=["ok"]), BudgetCallbackHandler(engine)
        model.invoke("hi", config(handler))
        proxy.delay_s = 0.05
        pause = asyncio.run(longest_pause(model.ainvoke("hi", config(handler))))
        assert 0.05 <= pause < 0.3
        assert next(s for s in engine.status("acme", "u1")).spent == 2


def test_the_loop_never_waits_longer_than_the_stores_timeout(redis_server: RedisServer) -> None:
    with DelayProxy(redis_server.port) as proxy:
        engine = BudgetEngine.open(proxy.url, POLICY)
        model, handler = FakeListChatModel(responses=["ok"]), BudgetCallbackHandler(engine)
        model.invoke("hi", config(handler))
        proxy.stall = True

        async def refused() -> None:
            with pytest.raises(BudgetRefused) as error:
                await model.ainvoke("hi", config(handler))
            assert (error.value.code, error.value.http_status) == ("store_unavailable", 503)

        pause = asyncio.run(longest_pause(refused()))
        assert 0.25 <= pause < 0.6
        proxy.stall = False
        engine.close()
