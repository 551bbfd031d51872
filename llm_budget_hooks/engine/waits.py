"""How long an engine waits for its store, measured where observers are told of it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from time import perf_counter

from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.transitions import Answer, Command

Ask = Callable[[Command], Answer]
AwaitedAsk = Callable[[Command], Awaitable[Answer]]


class Waits(threading.local):
    """The last wait of each thread, for what is told before the same thread asks the store again."""

    last_s: float | None = None

    def take(self) -> float | None:
        """How long the last wait took; None if it was taken before."""
        last, self.last_s = self.last_s, None
        return last


def timed(store: Store, waits: Waits) -> tuple[Ask, AwaitedAsk]:
    """The two ways to ask a store, each of which notes how long it took, even where it failed."""

    def ask(command: Command) -> Answer:
        began = perf_counter()
        try:
            return store.execute(command)
        finally:
            waits.last_s = perf_counter() - began

    async def aask(command: Command) -> Answer:
        began = perf_counter()
        try:
            return await store.aexecute(command)
        finally:
            waits.last_s = perf_counter() - began

    return ask, aask
