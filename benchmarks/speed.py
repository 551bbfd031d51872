"""Measures what the engine costs, as multiples of bare operations in the same run.

    python benchmarks/speed.py [--store redis] [--no-growth] [--short]

A pair is one reserve and one settle over five budgets, call and usage made anew, blocking. Short rounds of the pair
and of the bare operation alternate, the median round of each repeat is taken, and the least of these medians is
shown: what other processes do only adds. The server and this process are pinned to different cores. On Redis two
scripts that do nothing, with the arguments of the pair, are timed too: no pair of two trips can be below that.

Growth is the cost of a pair with so many tenants and users, an open hold for each and an ended call for every fourth,
and with so many past calls of one user that still count in a rolling window, over the cost with the number before. Up
to 10,000 such calls are counted exactly, so 9,000 are shown too, in few rounds, as each pair adds a call; and the same
at the moment when half of them have left the window. The rounds are long, so that SQLite's checkpoints fall into them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from figures import Figure, closed, options
from pairs import (
    REFERENCE,
    Clock,
    bare_evalsha,
    bare_increment,
    bare_transaction,
    client_of,
    empty_pair,
    engine_on,
    fill,
    hashing,
    leaving_calls,
    pair,
    past_calls,
    planning,
)
from rounds import Operation, Timed, alternate, ratio

from llm_budget_hooks.testing import RedisServer, available_servers

STORES = ("memory", "sqlite", "redis")
USERS = 1_000
PAIR, BARE = "reserve + settle", "EVALSHA return 1"
REDIS_MOST, SERVER_MOST, SQLITE_MOST, MEMORY_MOST, GROWTH_MOST = 4.0, 4.0, 14.0, 100.0, 1.25
PLANNING_MOST = 10.0
_ROUNDS, _REPEATS = 200, 5
_LONG = 20
_FEW_ROUNDS, _NEARLY_EXACT = 6, 9_000


def main() -> int:
    """Take all figures and judge them."""
    given = parsed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speed-")))
        pin(0)
        return closed(list(taken(given, folder, stack)), "What an operation costs", given.json)


def parsed() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--store", choices=STORES, help="only this store")
    parser.add_argument("--largest", type=int, help="how many users growth is shown up to; else 100,000, or 1,000")
    parser.add_argument("--no-growth", action="store_true", help="leave growth out")
    given = parser.parse_args()
    given.largest = given.largest or (1_000 if given.short else 100_000)
    return given


def pin(*cores: int) -> None:
    """Keep this process on a core, so that a server on the other has that to itself."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, cores)


def taken(given: argparse.Namespace, folder: Path, stack: ExitStack) -> Iterator[Figure]:
    takers = {"memory": on_memory, "sqlite": on_sqlite, "redis": on_redis}
    for store in [given.store] if given.store else STORES:
        yield from takers[store](folder, stack, 2 if given.short else _REPEATS)
        if not given.no_growth:
            yield from growth(store, given.largest, folder, stack)


def beside(name: str, timed: Timed) -> str:
    return f"{name}: {timed.us:,.2f} µs"


def compared(of: str, what: str, mine: Timed, bare: Timed, name: str, most: float | None = None) -> Figure:
    return Figure(of, f"{what}: {mine.us:,.1f} µs", ratio(mine, bare), "x", beside(name, bare), most)


def on_memory(folder: Path, stack: ExitStack, repeats: int) -> Iterator[Figure]:  # noqa: ARG001 - as the others
    engine = stack.enter_context(engine_on("memory://"))
    operations = [(pair(engine, USERS), 5), (bare_increment(), 1_000)]
    mine, bare = alternate(operations, rounds=_ROUNDS, repeats=repeats)
    yield compared("memory", PAIR, mine, bare, "dict increment under a lock", MEMORY_MOST)
    mine, bare = alternate([(planning(engine), 20), (hashing(), 100)], rounds=_ROUNDS, repeats=repeats)
    yield compared("memory", "planning a call", mine, bare, "hashing its tenant, user and id", PLANNING_MOST)


def on_sqlite(folder: Path, stack: ExitStack, repeats: int) -> Iterator[Figure]:
    path = folder / "pair.db"
    engine = stack.enter_context(engine_on(f"sqlite:///{path}"))
    transaction, close = bare_transaction(path)
    stack.callback(close)
    operations = [(pair(engine, USERS), 3), (transaction, 30)]
    mine, bare = alternate(operations, rounds=_ROUNDS, repeats=repeats)
    yield compared("sqlite", PAIR, mine, bare, "BEGIN IMMEDIATE, select, update", SQLITE_MOST)


def on_redis(folder: Path, stack: ExitStack, repeats: int) -> Iterator[Figure]:  # noqa: ARG001 - as the others
    for server in servers(stack, [*available_servers()]):
        of, engine = f"redis {server.version}", stack.enter_context(engine_on(server.url))
        client = client_of(server.url)
        stack.callback(client.close)
        one = pair(engine, USERS)
        operations = [(one, 2), (bare_evalsha(client), 6), (empty_pair(client, one), 3)]
        mine, bare, empty = alternate(operations, rounds=_ROUNDS, repeats=repeats)
        yield compared(of, PAIR, mine, bare, BARE, REDIS_MOST)
        yield compared(of, PAIR, mine, empty, "two empty EVALSHAs with its arguments")
        yield compared(of, "two empty EVALSHAs with its arguments", empty, bare, BARE)
        yield server_time(of, server, one, bare_evalsha(client, REFERENCE), repeats)


def servers(stack: ExitStack, names: Sequence[str]) -> Iterator[RedisServer]:
    core = 1 if (os.cpu_count() or 1) > 1 else None
    for name in names:
        yield stack.enter_context(RedisServer(name, cpu=core))


def server_time(of: str, server: RedisServer, one: Operation, reference: Operation, repeats: int) -> Figure:
    """What the server itself counts for the scripts of a pair."""
    rounds = [(counted(server, one), counted(server, reference)) for _ in range(repeats)]
    mine, bare = min(rounds, key=lambda both: both[0] / both[1])
    what, name = f"the server's own time of a pair: {mine:,.1f} µs", f"script of 10 GET, 10 SET PX: {bare:,.1f} µs"
    return Figure(of, what, mine / bare, "x", name, SERVER_MOST)


def counted(server: RedisServer, operation: Operation, times: int = 2_000) -> float:
    server.command("CONFIG", "RESETSTAT")
    for _ in range(times):
        operation()
    fields = dict(part.split("=") for part in server.info("commandstats")["cmdstat_evalsha"].split(","))
    return int(fields["usec"]) / times


def growth(store: str, largest: int, folder: Path, stack: ExitStack) -> Iterator[Figure]:
    sizes = [1, largest // 100, largest]
    yield from grown(store, "tenants, users, open holds", sizes, folder, stack, fill, _ROUNDS // 5)
    sizes = sorted({*sizes, min(_NEARLY_EXACT, largest)})
    yield from grown(store, "past calls of one user", sizes, folder, stack, past_calls, _FEW_ROUNDS)
    exact = [size for size in sizes if size <= _NEARLY_EXACT]
    yield from grown(store, "calls that are leaving", exact, folder, stack, leaving_calls, _FEW_ROUNDS)


def grown(
    store: str,
    what: str,
    sizes: Sequence[int],
    folder: Path,
    stack: ExitStack,
    filled: Callable[..., None],
    rounds: int,
) -> Iterator[Figure]:
    operations: list[tuple[Operation, int]] = []
    for at, size in enumerate(sizes):
        url, clock = place(store, f"{filled.__name__}-{at}", folder, stack), Clock()
        engine = stack.enter_context(engine_on(url, "6h", clock if filled is leaving_calls else None))
        began = time.monotonic()
        filled(engine, size, awaited=store == "redis", clock=clock)
        print(f"{store}: {size:,} {what} in {time.monotonic() - began:.0f} s", file=sys.stderr)
        operations.append((pair(engine, size if filled is fill else 1), _LONG))
    timed = alternate(operations, rounds=rounds, repeats=_REPEATS)
    for smaller, larger, a, b in zip(sizes, sizes[1:], timed, timed[1:], strict=False):
        most = GROWTH_MOST if smaller > 1 else None
        yield step(store, what, (smaller, larger), (a, b), most)


def step(of: str, what: str, sizes: tuple[int, int], timed: tuple[Timed, Timed], most: float | None) -> Figure:
    smaller, larger = timed
    return compared(of, f"pair, {sizes[1]:,} {what}", larger, smaller, f"the same with {sizes[0]:,}", most)


def place(store: str, name: str, folder: Path, stack: ExitStack) -> str:
    if store == "memory":
        return "memory://"
    if store == "sqlite":
        return f"sqlite:///{folder / name}.db"
    return next(servers(stack, [*available_servers()][:1])).url


if __name__ == "__main__":
    sys.exit(main())
