"""Counts the trips to a Redis of an agent that fans out into 12 model calls, through the hooks.

    python benchmarks/fanout.py [--short]

A trip is a read of the server's own count (``total_reads_processed``), so that commands which travel together are one.
The calls are one utterance, made one after the other or all at once; LangChain's model answers in memory, LiteLLM's is
a provider on loopback. What was put off is waited for and counted too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from figures import Figure, closed, options
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_overhead import Model

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.langchain import BudgetCallbackHandler
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider, RedisServer

CALLS = 12
POLICY = {
    "store_timeout": "30s",
    "budgets": [
        {"scope": "global", "limit": "$5000000", "window": "month"},
        {"scope": "tenant", "limit": "$5000000", "window": "month"},
        {"scope": "user", "limit": "$5000000", "window": "day"},
        {"scope": "user", "meter": "utterances", "limit": 10**9, "window": "day"},
        {"scope": "user", "meter": "in_flight", "limit": 10**6},
    ],
}
WHO = {"tenant": "acme", "user": "u1"}

Fan = Callable[[], Awaitable[None]]


def main() -> int:
    """Count, and judge."""
    given = options(__doc__).parse_args()
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    with RedisServer() as server, FakeProvider() as provider, BudgetEngine.open(server.url, POLICY) as engine:
        found = asyncio.run(counted(server, engine, provider, 3 if given.short else 20))
    return closed(found, f"Trips to a Redis of {CALLS} calls", given.json)


async def counted(server: RedisServer, engine: BudgetEngine, provider: FakeProvider, times: int) -> list[Figure]:
    found = []
    for name, ordered, fan in (*langchain(engine), *with_litellm(engine, provider)):
        trips = [await trips_of(server, engine, fan) for _ in range(times + 1)][1:]
        how = "one after the other" if ordered else "all at once"
        worst = f"most of {times}: {max(trips)}"
        found.append(Figure(name, f"{CALLS} calls {how}", sorted(trips)[times // 2], "trips", worst, MOST))
    await engine.aclose()
    return found


MOST = CALLS + 1


async def trips_of(server: RedisServer, engine: BudgetEngine, fan: Fan) -> int:
    """How often the server had something to read, its own answers to INFO left out."""
    await asyncio.sleep(0.3)
    before = reads(server)
    empty = reads(server) - before
    await fan()
    await asyncio.sleep(0.3)
    await asyncio.to_thread(engine.flush)
    return reads(server) - before - 2 * empty


def reads(server: RedisServer) -> int:
    return int(server.info("stats")["total_reads_processed"])


def langchain(engine: BudgetEngine) -> Iterator[tuple[str, bool, Fan]]:
    model, messages = Model(), [HumanMessage("a question of some words")]
    config: RunnableConfig = {"callbacks": [BudgetCallbackHandler(engine)], "metadata": dict(WHO)}

    async def in_turn(_: Any, config: RunnableConfig) -> None:
        for _at in range(CALLS):
            await model.ainvoke(messages, config)

    async def at_once(_: Any, config: RunnableConfig) -> None:
        await asyncio.gather(*(model.ainvoke(messages, config) for _ in range(CALLS)))

    async def fan(form: Any) -> None:
        await RunnableLambda(form).ainvoke(None, config)

    yield "langchain", True, lambda: fan(in_turn)
    yield "langchain", False, lambda: fan(at_once)


def with_litellm(engine: BudgetEngine, provider: FakeProvider) -> Iterator[tuple[str, bool, Fan]]:
    litellm.callbacks = [BudgetCallback(engine)]
    asked: dict[str, Any] = {
        "model": "openai/gpt-4o-mini", "api_base": provider.base_url, "api_key": "test", "max_tokens": 100,
        "messages": [{"role": "user", "content": "a question of some words"}],
    }  # fmt: skip

    def call() -> Awaitable[Any]:
        called: Awaitable[Any] = litellm.acompletion(**asked)
        return called

    async def in_turn() -> None:
        async with engine.utterance(**WHO):
            for _at in range(CALLS):
                await call()

    async def at_once() -> None:
        async with engine.utterance(**WHO):
            await asyncio.gather(*(call() for _ in range(CALLS)))

    yield "litellm", True, in_turn
    yield "litellm", False, at_once


if __name__ == "__main__":
    sys.exit(main())
