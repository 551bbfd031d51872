"""Measures pairs a second: one caller, 50 tasks of one event loop, and four processes, on each store.

    python benchmarks/throughput.py [--store sqlite] [--short]

Fifty tasks are compared with as many that send a bare EVALSHA over redis-py's own client, in rounds that alternate;
server and client are on different cores. One and four processes take turns, each for some seconds, on stores that are
kept; where the store is a Redis they are on the one core and the server is on the other, so that four are told what
the server has left and not what the cores have. On SQLite all cores are free. Waiting is told as the time of a single
reserve or settle. What is refused because others held the file for the 5 s of its timeout is counted as locked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from figures import Figure, closed, options
from pairs import USAGE, call_of, client_of, engine_on
from redis.asyncio import Redis
from rounds import Operation, alternate, ratio
from speed import BARE, REDIS_MOST, USERS, beside, pin, servers

from llm_budget_hooks import BudgetEngine, StoreUnavailable, Usage
from llm_budget_hooks.testing import RedisServer, available_servers

STORES = ("memory", "sqlite", "redis")
TASKS, EACH, PROCESSES = 50, 8, 4
SHARE_LEAST, WAIT_MOST_MS = 0.8, 30.0


def main() -> int:
    """Take all figures and judge them."""
    given = parsed()
    if given.worker:
        print(json.dumps(worked(*given.worker)))
        return 0
    with ExitStack() as stack:
        pin(0)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="throughput-")))
        return closed(list(taken(given, folder, stack)), "How many pairs there are in a second", given.json)


def parsed() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--store", choices=STORES, help="only this store")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


def taken(given: argparse.Namespace, folder: Path, stack: ExitStack) -> Iterator[Figure]:
    seconds, turns = (1.0, 2) if given.short else (3.0, 5)
    for store in [given.store] if given.store else STORES:
        if store == "redis":
            for server in servers(stack, [*available_servers()]):
                of = f"redis {server.version}"
                yield from by_tasks(of, server.url, 2 if given.short else 5)
                yield from by_server(of, server)
                yield from by_processes(of, server.url, seconds, turns, core=0)
        elif store == "sqlite":
            yield from by_tasks(store, f"sqlite:///{folder / 'tasks.db'}", 2)
            yield from by_processes(store, f"sqlite:///{folder / 'processes.db'}", seconds, turns, core=None)
        else:
            yield from by_tasks(store, "memory://", 2)


def by_tasks(of: str, url: str, repeats: int) -> Iterator[Figure]:
    """Pairs of fifty tasks, and as many bare scripts where there are scripts."""
    with asyncio.Runner() as runner, engine_on(url) as engine:
        operations = [crowd(runner, pair_on(engine))]
        if url.startswith("redis"):
            client = Redis.from_url(url, max_connections=TASKS)
            with client_of(url) as blocking:
                sha = blocking.script_load("return 1")
                operations.append(crowd(runner, lambda: client.evalsha(sha, 1, "reference")))
        timed = alternate([(each, 1) for each in operations], rounds=10, repeats=repeats)
        mine, *bare = [type(each)(tuple(us / (TASKS * EACH) for us in each.medians)) for each in timed]
        yield Figure(of, f"pairs of {TASKS} tasks", 1e6 / mine.us, "a second")
        for other in bare:
            name, what = f"{BARE}, {TASKS} tasks", f"reserve + settle, {TASKS} tasks: {mine.us:,.1f} µs"
            yield Figure(of, what, ratio(mine, other), "x", beside(name, other), REDIS_MOST)
            runner.run(client.aclose())
        runner.run(engine.aclose())


def by_server(of: str, server: RedisServer) -> Iterator[Figure]:
    """The pairs that one server can do, by the processor's time that it takes for one, network and all."""
    path = Path(f"/proc/{server.pid}/schedstat")
    if not path.exists():
        return
    with asyncio.Runner() as runner, engine_on(server.url) as engine:
        work = crowd(runner, pair_on(engine))
        work()
        taken = []
        for _ in range(20):
            before = int(path.read_text().split()[0])
            work()
            taken.append((int(path.read_text().split()[0]) - before) / 1e3 / (TASKS * EACH))
        runner.run(engine.aclose())
    us = median(taken)
    yield Figure(of, "pairs that fill one server", 1e6 / us, "a second", f"{us:.0f} µs of its processor for each")


def pair_on(engine: BudgetEngine) -> Callable[[], Awaitable[object]]:
    """Reserve and settle, each time for another user."""
    chance = random.Random(1)

    async def pair() -> None:
        held = await engine.areserve(call_of(chance.randrange(USERS)))
        await engine.asettle(held, usage=Usage(**USAGE))

    return pair


def crowd(runner: asyncio.Runner, once: Callable[[], Awaitable[object]]) -> Operation:
    """Fifty tasks that do something a few times each."""

    async def some() -> None:
        for _ in range(EACH):
            await once()

    async def all_of_them() -> None:
        await asyncio.gather(*(some() for _ in range(TASKS)))

    return lambda: runner.run(all_of_them())


@dataclass
class Turn:
    """What some processes did at the same time: pairs a second, waits in ms, and calls that found the file locked."""

    rate: float
    waits: list[float]
    locked: int


def by_processes(of: str, url: str, seconds: float, turns: int, core: int | None) -> Iterator[Figure]:
    """One process and four take turns."""
    one, four = [], []
    for _ in range(turns):
        one.append(turn(url, 1, seconds, core))
        four.append(turn(url, PROCESSES, seconds, core))
    alone, together = (median(each.rate for each in some) for some in (one, four))
    waits = quantiles([wait for each in four for wait in each.waits], n=1000)
    yield Figure(of, "pairs of one process", alone, "a second")
    yield Figure(of, f"pairs of {PROCESSES} processes", together, "a second")
    shares = [b.rate / a.rate for a, b in zip(one, four, strict=True)]
    judged = of == "sqlite"
    what = f"rate of {PROCESSES} processes"
    least, most = (SHARE_LEAST, WAIT_MOST_MS) if judged else (None, None)
    yield Figure(of, what, median(shares), "x", f"one process, {turns} turns", least=least)
    told = f"median {waits[499]:.2f} ms, longest {max(wait for each in four for wait in each.waits):,.0f} ms"
    yield Figure(of, f"longest wait in {PROCESSES} processes, of 99 of 100", waits[989], "ms", told, most)
    if judged:
        yield Figure(of, "calls that found it locked for 5 s", sum(each.locked for each in four), "", "", 0)


def turn(url: str, processes: int, seconds: float, core: int | None) -> Turn:
    """Let processes work for a while, from the moment when all of them are there."""
    command = [sys.executable, __file__, "--worker", url, str(seconds), "" if core is None else str(core)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    for each in running:
        each.stdout.readline()
    for each in running:
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [json.loads(each.communicate()[0]) for each in running]
    waits = [wait for each in told for wait in each["waits"]]
    return Turn(len(waits) / 2 / seconds, waits, sum(each["locked"] for each in told))


def worked(url: str, seconds: str, core: str) -> dict[str, object]:
    """What one process does: pairs until its time is over."""
    pin(*([int(core)] if core else range(os.cpu_count() or 1)))
    waits: list[float] = []
    locked, chance, usage = 0, random.Random(os.getpid()), Usage(**USAGE)
    with engine_on(url, timeout="5s") as engine:
        engine.settle(engine.reserve(call_of(0)), usage=usage)
        print("ready", flush=True)
        sys.stdin.readline()
        ends = time.perf_counter() + float(seconds)
        while (began := time.perf_counter()) < ends:
            try:
                held = engine.reserve(call_of(chance.randrange(USERS)))
            except StoreUnavailable:
                locked += 1
                continue
            between = time.perf_counter()
            locked += engine.settle(held, usage=usage).pending
            waits += [(between - began) * 1e3, (time.perf_counter() - between) * 1e3]
    return {"waits": waits, "locked": locked}


if __name__ == "__main__":
    sys.exit(main())
