"""Breaks everything around an engine for a while, and then holds its books against the truth.

    python benchmarks/faults.py                    10 minutes or 100,000 calls
    python benchmarks/faults.py --short            within 50 seconds
    python benchmarks/faults.py --seed 7           the same faults at the same moments again

Several processes reserve, call a made-up provider and settle, through a proxy in front of a real Redis that writes
each command to disk. Meanwhile replies are delayed, so that commands overtake each other; connections stall and are
cut before and after the script ran; the server is frozen, killed, made a replica and forgets its scripts; and the
processes are killed with SIGKILL. Faults come in stretches of a minute; then all is well for a little more than one,
which makes the allowance of the journal whole. While the store is away all calls are of one account, which was brought
to its limit before, and another one in each stretch. The provider keeps its own book, a line for each call that it got.

Afterwards each hold is looked up in the ledger. What was settled must be booked at what it cost; a call whose process
died at its cost or at what it held; a hold that was never called at nothing or at what it held. The exit status is 1
if anything was lost or doubled, if ledger and balances differ, or if an account passes its limit by more than the
journal's allowance.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call
from llm_budget_hooks.testing import DelayProxy, RedisServer

USERS = 12
TURN_S = 5
STRETCH_S = 55
CALM_S = 65
WARM_S = 10
LIMIT = Decimal("0.30")
ALLOWANCE = Decimal("0.20")
HELD = Decimal("0.01")
TIMEOUT_S = 4
POLICY: dict[str, Any] = {
    "budgets": [
        {"scope": "global", "limit": "$100000", "window": "week"},
        {"scope": "user", "limit": f"${LIMIT}", "window": "week"},
    ],
    "store_timeout": "300ms",
    "degraded_allowance": f"${ALLOWANCE}",
    "reservation_timeout": f"{TIMEOUT_S}s",
}
KINDS = (
    "delay", "stall", "cut before", "cut after", "freeze", "kill server", "replica", "forget scripts", "kill worker",
)  # fmt: skip


def main() -> int:
    """Play, and judge."""
    options = parsed()
    if options.worker is not None:
        work(options)
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    seconds = 20 if options.short else 600
    print(f"seed {seed}: {seconds} s of faults, {options.workers} processes", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        kept = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-min-size", "1mb")
        server = stack.enter_context(RedisServer(args=kept, start_timeout_s=60))
        proxy = stack.enter_context(DelayProxy(server.port))
        stage = Stage(server, proxy, folder, seed, options.workers)
        injected = stage.play(seconds, 100_000)
        return report(judged(stage, folder), injected)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Faults around an engine, and its books afterwards.")
    parser.add_argument("--short", action="store_true", help="within 50 seconds")
    parser.add_argument("--seed", type=int, help="of the faults and the calls")
    parser.add_argument("--workers", type=int, default=3, help="processes that call")
    parser.add_argument("--worker", nargs=4, metavar=("URL", "FOLDER", "NUMBER", "BEGAN"), help=argparse.SUPPRESS)
    return parser.parse_args()


def opened(url: str, folder: Path) -> BudgetEngine:
    ledger = f"sqlite:///{folder / 'ledger.db'}"
    return BudgetEngine.open(url, POLICY, ledger=ledger, journal=folder / "calls.journal")


def work(options: argparse.Namespace) -> None:
    """One process: calls until it is told to stop, in four threads."""
    logging.getLogger("llm_budget_hooks").setLevel(logging.ERROR)
    url, folder, number = options.worker[0], Path(options.worker[1]), int(options.worker[2])
    began = float(options.worker[3])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with opened(url, folder) as engine:
        book = os.open(folder / f"book-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        threads = [
            threading.Thread(
                target=call_on, args=(engine, book, stop, random.Random(f"{options.seed}/{number}/{at}"), began)
            )
            for at in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def call_on(engine: BudgetEngine, book: int, stop: threading.Event, chance: random.Random, began: float) -> None:
    def note(*words: Any) -> None:
        os.write(book, (" ".join(map(str, words)) + "\n").encode())

    while not stop.is_set():
        user = f"u{time.time() // TURN_S:.0f}-{chance.randrange(USERS)}"
        if engine.degraded or chance.random() < 0.3:
            user = f"s{(time.time() - began + CALM_S) // (STRETCH_S + CALM_S):.0f}"
        cost = Decimal(chance.randrange(1, 10_000_000)).scaleb(-9)
        try:
            held = engine.reserve(Call(model="m", user=user, amount=HELD))
        except BudgetExceeded as refusal:
            note("refused", refusal.code, user)
            stop.wait(0.02)
            continue
        if chance.random() < 0.05:
            engine.release(held)
            note("released", held.id, user)
            continue
        note("called", held.id, user, cost, int(engine.degraded))
        stop.wait(chance.random() * 0.01)
        engine.settle(held, cost=cost)
        note("settled", held.id, user)


@dataclass
class Stage:
    """The server, the proxy before it, and the processes that use them."""

    server: RedisServer
    proxy: DelayProxy
    folder: Path
    seed: int
    count: int
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    started: int = 0
    began: float = field(default_factory=time.time)

    def play(self, seconds: float, most: int) -> Counter[str]:
        """Let the processes call, and break things in the meantime."""
        chance, injected = random.Random(self.seed), Counter[str]()
        self.workers = [self.start() for _ in range(self.count)]
        try:
            while not self.noted(b"refused spend s0") and time.time() < self.began + WARM_S:
                time.sleep(0.1)
            while (passed := time.time() - self.began) < seconds and self.noted(b"called ") < most:
                if passed % (STRETCH_S + CALM_S) > STRETCH_S:
                    time.sleep(1)
                    continue
                kind = chance.choice(KINDS)
                injected[kind] += 1
                self.inject(kind, chance)
                self.proxy.delay_s, self.proxy.stall = 0.0, False
                time.sleep(chance.uniform(0.2, 1.2))
        finally:
            for worker in self.workers:
                worker.terminate()
            for worker in self.workers:
                worker.wait()
        return injected

    def start(self) -> subprocess.Popen[bytes]:
        self.started += 1
        command = [sys.executable, __file__, "--seed", str(self.seed)]
        told = (self.proxy.url, str(self.folder), str(self.started), str(self.began))
        return subprocess.Popen([*command, "--worker", *told])

    def noted(self, word: bytes) -> int:
        return sum(path.read_bytes().count(word) for path in self.folder.glob("book-*"))

    def inject(self, kind: str, chance: random.Random) -> None:
        proxy, server, lasting = self.proxy, self.server, chance.uniform(0.05, 0.8)
        if kind in ("delay", "stall"):
            proxy.delay_s, proxy.stall = chance.uniform(0.01, 0.35), kind == "stall"
            time.sleep(lasting)
        elif kind == "cut before":
            proxy.cut_before_request += chance.randrange(1, 6)
        elif kind == "cut after":
            proxy.cut_after_request += chance.randrange(1, 6)
        elif kind == "freeze":
            server.pause()
            time.sleep(lasting)
            server.resume()
        elif kind == "kill server":
            server.kill()
            time.sleep(lasting / 2)
            server.start()
        elif kind == "replica":
            server.command("REPLICAOF", "127.0.0.1", "1")
            time.sleep(lasting)
            server.command("REPLICAOF", "NO", "ONE")
        elif kind == "forget scripts":
            server.command("SCRIPT", "FLUSH")
        else:
            at = chance.randrange(self.count)
            self.workers[at].kill()
            self.workers[at].wait()
            self.workers[at] = self.start()


@dataclass
class Books:
    """What the provider knows, what the ledger knows, and what the store knows, in nano-dollars."""

    words: Counter[str] = field(default_factory=Counter)
    cost: dict[str, int] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    user: dict[str, str] = field(default_factory=dict)
    booked: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    balance: int = 0
    reserved: int = 0


def judged(stage: Stage, folder: Path) -> Books:
    """All books, after what was left open has expired and everything is drained."""
    books = Books()
    with opened(stage.server.url, folder) as engine:
        ends = time.monotonic() + TIMEOUT_S + 15
        while time.monotonic() < ends:
            engine.flush()
            (status,) = engine.status()
            if status.spent is not None and not status.reserved:
                break
            time.sleep(0.2)
        engine.flush()
        books.balance, books.reserved = (int(Decimal(n or 0).scaleb(9)) for n in (status.spent, status.reserved))
    for path in folder.glob("book-*"):
        for line in path.read_text().splitlines():
            read(books, *line.split(" "))
    with sqlite3.connect(folder / "ledger.db") as ledger:
        for id, user, nusd in ledger.execute("SELECT id, user, booked_nusd FROM ledger_runs"):
            books.booked[id] += nusd
            books.user[id] = user
    ledger.close()
    return books


def read(books: Books, word: str, id: str, user: str, cost: str = "0", alone: str = "0") -> None:
    books.words[word] += 1
    if word == "refused":
        books.words[f"refused {id}"] += 1
        return
    books.user[id] = user
    if word == "called":
        books.cost[id] = int(Decimal(cost).scaleb(9))
        books.words["let through alone"] += int(alone)
    elif word == "settled":
        books.settled.add(id)
    elif word == "released":
        books.released.add(id)


def report(books: Books, injected: Counter[str]) -> int:
    """Print the figures; 1 if they are not as they have to be."""
    held = int(HELD.scaleb(9))
    lost = doubled = 0
    for id in {*books.cost, *books.booked}:
        got, cost = books.booked.get(id, 0), books.cost.get(id)
        right = {cost} if id in books.settled else {0} if id in books.released else {cost, held} if cost else {0, held}
        if got not in right:
            known = max(n for n in right if n is not None)
            lost, doubled = lost + (got < known), doubled + (got > known)
            print(f"hold {id}: booked {got}, right is {right}")
    spent: dict[str, int] = defaultdict(int)
    for id, nusd in books.booked.items():
        spent[books.user[id]] += nusd
    overshoot = max([0, *(total - int(LIMIT.scaleb(9)) for total in spent.values())])
    apart = sum(books.booked.values()) - books.balance
    words = books.words
    alone, released = words["let through alone"], words["released"]
    print(f"calls {words['called']:,}, of them let through alone {alone:,}; released {released:,}")
    limit = words["refused spend"]
    print(f"refused {words['refused']:,}: {limit:,} at a limit, {words['refused'] - limit:,} while the store was away")
    print(f"faults {sum(injected.values())}: " + ", ".join(f"{n} {kind}" for kind, n in injected.most_common()))
    print(f"overshoot of an account ${overshoot / 10**9:.4f} (stated: at most ${ALLOWANCE} in a stretch)")
    print(f"lost {lost}, doubled {doubled}, ledger and balance apart ${apart / 10**9:.9f}, still held {books.reserved}")
    bad = (
        lost
        or doubled
        or apart
        or books.reserved
        or overshoot > int(ALLOWANCE.scaleb(9))
        or not words["settled"]
        or not injected
    )
    print("FAILED" if bad else "as stated")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
