"""The stores that the contract is tested on, and one body for their blocking and their awaited face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_budget_hooks.stores.base import Store
from llm_budget_hooks.stores.memory import MemoryStore
from llm_budget_hooks.stores.redis import RedisStore
from llm_budget_hooks.stores.sqlite import SqliteStore
from llm_budget_hooks.testing import available_servers
from llm_budget_hooks.transitions import Answer, Command

Run = Callable[[Store, Command], Answer]


class Awaited:
    """Runs commands through a store's awaited face, on one loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def __call__(self, store: Store, command: Command) -> Answer:
        return self.loop.run_until_complete(store.aexecute(command))

    def close(self, *stores: Store) -> None:
        for store in stores:
            self.loop.run_until_complete(store.aclose())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


def blocking(store: Store, command: Command) -> Answer:
    return store.execute(command)


@contextmanager
def all_stores(folder: Path, redis_servers: Any, number: int) -> Iterator[dict[str, Store]]:
    """A memory store, and one of each kind of shared store, all empty."""
    namespace = f"n{number}"
    stores: dict[str, Store] = {
        "memory": MemoryStore(),
        "sqlite": SqliteStore(folder / f"{namespace}.db", namespace=namespace, timeout_s=10),
    }
    for name in available_servers():
        stores[name] = RedisStore(redis_servers[name].url, namespace=namespace, timeout_s=10)
    try:
        yield stores
    finally:
        for store in stores.values():
            store.close()
