"""How a call is let in: through the engine, or in the three ways that let too much through.

A call is a generator of steps, so that tasks and threads run the same body. The careless ways keep one total per
store, and are played without faults, so that the figure "callers x one call" can stand beside them.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis
from scenes import OUTPUT_NUSD, Books, Provider, ProviderFailed, Scene, Steps

from llm_budget_hooks import BudgetEngine, Reservation

CACHED_S = 60.0


class Refused(Exception):
    """A careless way says no."""


class Way(Protocol):
    """One process's way to let calls in."""

    def call(self, number: int, fate: str, chance: random.Random) -> Steps:
        """The steps of one call of one caller."""


@dataclass
class Engine:
    """Reserve before, settle after; and books of what the engine should have booked."""

    scene: Scene
    books: Books
    engine: BudgetEngine

    def call(self, number: int, fate: str, chance: random.Random) -> Steps:
        most = max(self.scene.hold, self.scene.one)
        self.books.add(more=most)
        try:
            held = yield "reserve", self.scene.call(number)
        finally:
            self.books.add(more=-most)
        hold = self.scene.hold if self.scene.step is None else int(held.estimate.scaleb(9))
        self.books.add(unbilled=hold)
        provider = Provider(self.scene, self.books)
        try:
            usage, cost = yield from provider.generate(fate, chance, self._most(hold))
        except ProviderFailed:
            yield from self._end(("release", held), hold)
        except (TimeoutError, asyncio.CancelledError):
            yield from (self._unknown(held) if provider.reached else self._end(("release", held), hold))
            raise
        else:
            if fate != "forgotten":
                yield from self._settle(held, usage, hold - cost)

    def _most(self, hold: int) -> int | None:
        """The tokens of output that a hold pays for, where it is a limit."""
        return (hold - self.scene.price(0)) // OUTPUT_NUSD if self.scene.clamp else None

    def _unknown(self, held: Reservation) -> Steps:
        """Nobody knows what was billed, so what was held is charged."""
        yield "settle", held

    def _settle(self, held: Reservation, usage: Any, rest: int) -> Steps:
        settlement = yield from self._end(("settle", held, {"usage": usage}), rest)
        if settlement.status == "late":
            self.books.add(late=1)

    def _end(self, ask: tuple[Any, ...], rest: int) -> Steps:
        """End a hold. What it gives back is in doubt until the answer; if that is cut off, the engine asks again."""
        doubt = "more" if rest > 0 else "less"
        self.books.add(**{"unbilled": -rest, doubt: rest})
        try:
            return (yield ask)
        finally:
            self.books.add(**{doubt: -rest})


class Total:
    """One number, in the store that the engine would use."""

    def __init__(self, url: str, key: str = "total") -> None:
        self._key = key
        self._scheme = urlsplit(url).scheme
        self._lock = threading.Lock()
        self._number = 0
        if self._scheme == "sqlite":
            self._file = sqlite3.connect(urlsplit(url).path[1:], timeout=20, check_same_thread=False)
            with self._file:
                self._file.execute("CREATE TABLE IF NOT EXISTS total (number INTEGER)")
        elif self._scheme == "redis":
            self._redis = redis.Redis.from_url(url)

    def read(self) -> int:
        if self._scheme == "redis":
            return int(self._redis.get(self._key) or 0)
        if self._scheme == "sqlite":
            with self._lock:
                return int(self._file.execute("SELECT coalesce(sum(number), 0) FROM total").fetchone()[0])
        return self._number

    def add(self, amount: int) -> None:
        if self._scheme == "redis":
            self._redis.incrby(self._key, amount)
        else:
            with self._lock:
                self._add_here(amount)

    def _add_here(self, amount: int) -> None:
        if self._scheme == "sqlite":
            with self._file:
                self._file.execute("INSERT INTO total VALUES (?)", (amount,))
        else:
            self._number += amount

    def close(self) -> None:
        if self._scheme == "sqlite":
            self._file.close()
        elif self._scheme == "redis":
            self._redis.close()


@dataclass
class Careless:
    """Looks at a total, makes the call, and adds its cost when it is known."""

    scene: Scene
    books: Books
    total: Total
    _seen: int = 0
    _until: float = 0.0

    def call(self, number: int, fate: str, chance: random.Random) -> Steps:  # noqa: ARG002 - the protocol's
        if not self._has_room():
            raise Refused
        _, cost = yield from Provider(self.scene, self.books).generate("well", chance)
        self.total.add(cost)

    def _has_room(self) -> bool:
        if self.scene.way == "count-after":
            return self.total.read() < self.scene.limit
        if self.scene.way == "check-then-charge":
            return self.total.read() + self.scene.hold <= self.scene.limit
        if time.monotonic() >= self._until:
            self._seen, self._until = self.total.read(), time.monotonic() + CACHED_S
        return self._seen + self.scene.hold <= self.scene.limit
