"""Measures what a store keeps, in bytes: an open hold, an ended one, a user, a tenant, a call in a rolling window.

    python benchmarks/footprint.py [--short]

Five budgets, of everybody, tenant and user, in dollars, calls and open holds. Of each thing there are many, and what
the store has grown by is divided by their number: of a Redis its ``used_memory``, so with its keys, their times and
its tables; of SQLite the pages in use; of ``memory://`` what Python has allocated. A user or a tenant is one that was
seen and is idle, its ended call not counted. A user whose calls are counted in a rolling window is not among them;
what that adds for each call is a row of its own.
"""

from __future__ import annotations

import gc
import sqlite3
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from figures import Figure, closed, options
from pairs import MODEL

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.testing import RedisServer, available_servers

ENDED_MOST, HOLD_MOST, USER_MOST = 200, 1_100, 600
BUDGETS: list[dict[str, Any]] = [
    {"scope": "global", "limit": "$5000000", "window": "month"},
    {"scope": "tenant", "limit": "$5000000", "window": "month"},
    {"scope": "user", "limit": "$5000000", "window": "day"},
    {"scope": "user", "meter": "calls", "limit": 10**9, "window": "day"},
    {"scope": "tenant", "meter": "in_flight", "limit": 10**6},
]
ROLLING: list[dict[str, Any]] = [{"scope": "user", "meter": "calls", "limit": 10**9, "window": "rolling:24h"}]

Size = Callable[[], int]


def main() -> int:
    """Take all figures and judge them."""
    given = options(__doc__).parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="footprint-")))
        found = list(taken(2_000 if given.short else 20_000, folder, stack))
    return closed(found, "What a store keeps, in bytes", given.json)


def taken(count: int, folder: Path, stack: ExitStack) -> Iterator[Figure]:
    for name in available_servers():
        server, other = (stack.enter_context(RedisServer(name)) for _ in range(2))
        of = f"redis {server.version}"
        yield from kept(of, server.url, used_memory(server), count)
        yield from rolling(of, other.url, used_memory(other), count)
    for name, each in (("kept.db", kept), ("rolling.db", rolling)):
        yield from each("sqlite", f"sqlite:///{folder / name}", pages(folder / name), count)
    tracemalloc.start()
    for each in (kept, rolling):
        yield from each("memory", "memory://", allocated, count // 4)


def used_memory(server: RedisServer) -> Size:
    return lambda: int(server.info("memory")["used_memory"])


def pages(path: Path) -> Size:
    """The bytes of a database's pages that are not free."""

    def in_use() -> int:
        with closing(sqlite3.connect(path)) as file:
            count, free, size = (
                file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
            )
        return int((count - free) * size)

    return in_use


def allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def kept(of: str, url: str, size: Size, count: int) -> Iterator[Figure]:
    """What holds, users and tenants take."""
    with opened(url, BUDGETS) as engine:
        users = [Call(model=MODEL, tenant="acme", user=f"user-{at}", amount="0.01") for at in range(count)]
        tenants = [Call(model=MODEL, tenant=f"tenant-{at}", user="u", amount="0.01") for at in range(count)]
        sizes = [size()]
        end(engine, users)
        sizes.append(size())
        held = [engine.reserve(call) for call in users]
        sizes.append(size())
        for each in held:
            engine.settle(each, cost="0.005")
        held.clear()
        sizes.append(size())
        end(engine, tenants)
        sizes.append(size())
    empty, seen, open_, ended, wide = sizes
    over = (ended - seen) / count
    yield Figure(of, "an open hold", (open_ - seen) / count, "bytes", most=limit(of, HOLD_MOST))
    yield Figure(of, "an ended hold, while it is remembered", over, "bytes", most=limit(of, ENDED_MOST))
    yield Figure(of, "a user", user := (seen - empty) / count - over, "bytes", most=limit(of, USER_MOST))
    yield Figure(of, "a tenant, above its user", (wide - ended) / count - over - user, "bytes")


def rolling(of: str, url: str, size: Size, count: int) -> Iterator[Figure]:
    """What a call adds to a rolling window in which each is counted, its ended hold included and taken out again."""
    with opened(url, ROLLING) as engine, opened(url, BUDGETS[3:4]) as other:
        calls = [
            Call(model=MODEL, tenant="acme", user=f"user-{at % (count // 50)}", amount="0.01") for at in range(count)
        ]
        for each in (engine, other):
            end(each, calls[: count // 50])
        first = size()
        end(other, calls)
        second = size()
        end(engine, calls)
        third = size()
    yield Figure(of, "a call in a rolling window", ((third - second) - (second - first)) / count, "bytes")


def limit(of: str, most: int) -> int | None:
    return most if of.startswith("redis") else None


def opened(url: str, budgets: list[dict[str, Any]]) -> BudgetEngine:
    policy = {"reservation_timeout": "24h", "store_timeout": "30s", "budgets": budgets}
    return BudgetEngine.open(url, policy)


def end(engine: BudgetEngine, calls: Iterable[Call]) -> None:
    """Hold and settle each."""
    for call in calls:
        engine.settle(engine.reserve(call), cost="0.005")


if __name__ == "__main__":
    sys.exit(main())
