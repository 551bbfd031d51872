"""Measures what the engine costs, as multiples of bare operations in the same run.

    python benchmarks/speed.py            print the figures
    python benchmarks/speed.py --check    and exit with 1 if one is above its limit

A pair is one reserve and one settle over five budgets, call and usage made anew, blocking. Short rounds of the pair
and of the bare operation alternate, the median round of each repeat is taken, and the least of these medians is
shown: what other processes do only adds. The server and this process are pinned to different cores. Growth is the
cost of a pair with so many tenants and users, an open hold for each and an ended call for every fourth, and with so
many past calls of one user that still count in a rolling window, over the cost with the number before. Up to 10,000
such calls are counted exactly, so 9,000 are shown too, in few rounds, as each pair adds a call; and the same at the
moment when half of them have left the window. The rounds are long, so that SQLite's checkpoints fall into them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pairs import (
    REFERENCE,
    Clock,
    bare_evalsha,
    bare_increment,
    bare_transaction,
    client_of,
    engine_on,
    fill,
    leaving_calls,
    pair,
    past_calls,
)
from rich.console import Console
from rich.table import Table
from rounds import Operation, Timed, alternate, ratio

from llm_budget_hooks.testing import RedisServer, available_servers

STORES = ("memory", "sqlite", "redis")
USERS = 1_000
REDIS_MOST, SQLITE_MOST, MEMORY_MOST, GROWTH_MOST = 4.5, 18.0, 150.0, 1.25
_ROUNDS, _REPEATS = 200, 5
_LONG = 20
_FEW_ROUNDS, _NEARLY_EXACT = 6, 9_000


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        store, what: of what it is the cost.
        us: microseconds of the operation in question.
        beside, beside_us: what it is compared with.
        ratio: the multiple.
        most: what it may be, None if it is only shown.
    """

    store: str
    what: str
    us: float
    beside: str
    beside_us: float
    ratio: float
    most: float | None = None

    @property
    def passed(self) -> bool:
        return self.most is None or self.ratio <= self.most


def main() -> int:
    """Take all figures and judge them."""
    options = parsed()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speed-")))
        pin(0)
        found = list(figures(options, folder, stack))
    Console(width=None if sys.stdout.isatty() else 140).print(table(found))
    failed = [figure for figure in found if not figure.passed]
    print(f"{len(found)} figures, {len(failed)} above their limit")
    return 1 if options.check and failed else 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure is above its limit")
    parser.add_argument("--store", choices=STORES, help="only this store")
    parser.add_argument("--largest", type=int, default=100_000, help="how many users growth is shown up to")
    parser.add_argument("--no-growth", action="store_true", help="leave growth out")
    return parser.parse_args()


def pin(core: int) -> None:
    """Keep this process on one core, so that a server on the other has that to itself."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(0, {core})


def figures(options: argparse.Namespace, folder: Path, stack: ExitStack) -> Iterator[Figure]:
    takers = {"memory": on_memory, "sqlite": on_sqlite, "redis": on_redis}
    for store in [options.store] if options.store else STORES:
        yield from takers[store](folder, stack)
        if not options.no_growth:
            yield from growth(store, options.largest, folder, stack)


def compared(store: str, one: Operation, bare: Operation, beside: str, times: tuple[int, int], most: float) -> Figure:
    mine, other = alternate([(one, times[0]), (bare, times[1])], rounds=_ROUNDS, repeats=_REPEATS)
    return Figure(store, "reserve + settle", mine.us, beside, other.us, ratio(mine, other), most)


def on_memory(folder: Path, stack: ExitStack) -> Iterator[Figure]:  # noqa: ARG001 - as the others
    engine = stack.enter_context(engine_on("memory://"))
    beside = "dict increment under a lock"
    yield compared("memory", pair(engine, USERS), bare_increment(), beside, (5, 1_000), MEMORY_MOST)


def on_sqlite(folder: Path, stack: ExitStack) -> Iterator[Figure]:
    path = folder / "pair.db"
    engine = stack.enter_context(engine_on(f"sqlite:///{path}"))
    bare, close = bare_transaction(path)
    stack.callback(close)
    yield compared("sqlite", pair(engine, USERS), bare, "BEGIN IMMEDIATE, select, update", (3, 30), SQLITE_MOST)


def on_redis(folder: Path, stack: ExitStack) -> Iterator[Figure]:  # noqa: ARG001 - as the others
    for server in servers(stack, [*available_servers()]):
        name, engine = f"redis {server.version}", stack.enter_context(engine_on(server.url))
        client = client_of(server.url)
        stack.callback(client.close)
        one = pair(engine, USERS)
        yield compared(name, one, bare_evalsha(client), "EVALSHA return 1", (2, 6), REDIS_MOST)
        yield server_time(name, server, one, bare_evalsha(client, REFERENCE))


def servers(stack: ExitStack, names: Sequence[str]) -> Iterator[RedisServer]:
    core = 1 if (os.cpu_count() or 1) > 1 else None
    for name in names:
        yield stack.enter_context(RedisServer(name, cpu=core))


def server_time(name: str, server: RedisServer, one: Operation, reference: Operation) -> Figure:
    """What the server itself counts for the scripts of a pair."""
    taken = [(counted(server, one), counted(server, reference)) for _ in range(_REPEATS)]
    best = min(taken, key=lambda both: both[0] / both[1])
    beside = "script of 10 GET, 10 SET PX"
    return Figure(name, "server time of the pair", best[0], beside, best[1], best[0] / best[1])


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


def step(store: str, what: str, sizes: tuple[int, int], timed: tuple[Timed, Timed], most: float | None) -> Figure:
    smaller, larger = timed
    beside = f"the same with {sizes[0]:,}"
    return Figure(store, f"pair, {sizes[1]:,} {what}", larger.us, beside, smaller.us, ratio(larger, smaller), most)


def place(store: str, name: str, folder: Path, stack: ExitStack) -> str:
    if store == "memory":
        return "memory://"
    if store == "sqlite":
        return f"sqlite:///{folder / name}.db"
    return next(servers(stack, [*available_servers()][:1])).url


def table(found: list[Figure]) -> Table:
    made = Table(title="What an operation costs")
    for name in ("store", "operation", "µs", "beside", "µs", "ratio", "at most", ""):
        made.add_column(name, justify="right" if name in ("µs", "ratio", "at most") else "left", no_wrap=True)
    for figure in found:
        made.add_row(*row(figure))
    return made


def row(figure: Figure) -> list[str]:
    most = "" if figure.most is None else f"{figure.most:g}"
    verdict = "" if figure.most is None else "ok" if figure.passed else "above"
    return [
        figure.store, figure.what, f"{figure.us:,.2f}", figure.beside, f"{figure.beside_us:,.2f}",
        f"{figure.ratio:.2f}", most, verdict,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
