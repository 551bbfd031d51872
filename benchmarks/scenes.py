"""What is played: a limit, callers who never stop asking, and a provider that counts for itself."""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import threading
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llm_budget_hooks import Call, Usage

MODEL = "made-up"
INPUT_NUSD, OUTPUT_NUSD = 1_000, 10_000
PRICES = {MODEL: {"input": "1", "output": "10"}}
PROCESSES = 4
TAIL = 1.1
LATENCY_S = 0.004
FATES = {"well": 76, "fails": 8, "times out": 4, "cancelled": 8, "forgotten": 4}

Ask = tuple[Any, ...]
Steps = Generator[Ask, Any, Any]


@dataclass(frozen=True)
class Scene:
    """One row of the table.

    Attributes:
        way: ``engine``, or a careless one.
        estimate: how what is held stands to what is billed, for the table.
        store, url: where the balances are.
        crowd: ``tasks``, ``threads`` or ``processes``.
        room: how many calls at their dearest the limit has room for.
        meter: ``usd`` or ``tokens``; amounts are nano-dollars or tokens.
        inputs, outputs: tokens of a call; the outputs lie between two numbers.
        step: tokens of output that are held for a call without a bound; None: the bound is given.
        binding: the scope of the budget with the limit; the others have plenty.
        callers: how many ask at the same time.
        calls_each: how many calls a caller makes at most; None: until it is refused for good.
        timeout_s: after what time an abandoned hold expires.
        tail: whether outputs are heavy-tailed between the two numbers: most are short, some are very long.
        clamp: whether an output ends where the hold does, as with a hook that lowers ``max_tokens``.
        faults: whether calls fail, are cancelled or forgotten, and processes are killed.
        total: key of the careless ways' number in Redis.
    """

    way: str
    estimate: str
    store: str
    url: str
    crowd: str
    room: float = 120
    meter: str = "usd"
    inputs: int = 1_000
    outputs: tuple[int, int] = (900, 900)
    step: int | None = None
    binding: str = "user"
    callers: int = 48
    calls_each: int | None = None
    timeout_s: float = 2.0
    tail: bool = False
    clamp: bool = False
    faults: bool = True
    total: str = "total"

    def price(self, outputs: int) -> int:
        """What a call with so many tokens of output costs, reckoned without the engine."""
        if self.meter == "tokens":
            return self.inputs + outputs
        return self.inputs * INPUT_NUSD + outputs * OUTPUT_NUSD

    @property
    def one(self) -> int:
        """The dearest call."""
        return self.price(self.outputs[1])

    @property
    def hold(self) -> int:
        """What the engine holds for a call."""
        return self.price(self.outputs[1] if self.step is None else self.step)

    @property
    def limit(self) -> int:
        return round(self.room * self.one)

    def draw(self, chance: random.Random, most: int | None) -> int:
        """How many tokens a call puts out, at most `most`."""
        low, high = self.outputs
        drawn = min(round(low * chance.paretovariate(TAIL)), high) if self.tail else chance.randint(low, high)
        return drawn if most is None else min(drawn, most)

    @property
    def keeps_limit(self) -> bool:
        """Whether the engine promises here that nobody passes the limit."""
        return self.honest_bound or self.clamp

    @property
    def honest_bound(self) -> bool:
        """Whether each call is held at its bound."""
        return self.way == "engine" and self.step is None

    def call(self, number: int) -> Call:
        """The call of one caller: of the account that binds, and of others' below it."""
        tenant = f"tenant-{number % 3}" if self.binding == "global" else "acme"
        user = f"user-{number % 5}" if self.binding != "user" else "u1"
        most = self.outputs[1] if self.step is None else None
        return Call(model=MODEL, tenant=tenant, user=user, input_tokens=self.inputs, max_output_tokens=most)

    def policy(self, namespace: str) -> dict[str, Any]:
        """Five budgets, of which one binds."""
        return {
            "namespace": namespace,
            "timezone": calm_zone(datetime.now(UTC)),
            "estimate": "bound" if self.step is None else "auto",
            "step_budget": f"0.{(self.step or 0) * OUTPUT_NUSD:09d}",
            "prices": PRICES,
            "store_timeout": "20s",
            "reservation_timeout": f"{self.timeout_s * 1000:.0f}ms",
            "budgets": [
                self._budget("global", "month"),
                self._budget("tenant", "month"),
                self._budget("user", "day"),
                {"scope": "tenant", "meter": "calls", "limit": 10**9, "window": "rolling:60s"},
                {"scope": "user", "meter": "in_flight", "limit": 10**6},
            ],
        }

    def _budget(self, scope: str, window: str) -> dict[str, Any]:
        budget = {"name": scope, "scope": scope, "limit": "$1000", "window": window}
        if scope != self.binding:
            return budget
        if self.meter == "tokens":
            return {**budget, "meter": "tokens", "limit": self.limit}
        return {**budget, "limit": f"{self.limit // 10**9}.{self.limit % 10**9:09d}"}


def calm_zone(now: datetime) -> str:
    """A zone in which no day ends while the scenes are played."""
    return "UTC" if 1 <= now.hour < 22 else "Etc/GMT+12"


class Books:
    """What really happened, in a file that outlives a killed process: one slot for each, with one writer.

    Amounts are in the scene's unit. `unbilled` is what was held above the bill for calls whose outcome nobody has
    learned; `more` and `less` are what a store has or has not booked on top when the process is killed just then.
    """

    FIELDS = ("offered", "through", "billed", "unbilled", "more", "less", "late")
    _LAYOUT = struct.Struct(f"={len(FIELDS)}q")

    def __init__(self, path: Path, slot: int) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._at = slot * self._LAYOUT.size
        self._lock = threading.Lock()

    @classmethod
    def make(cls, path: Path) -> None:
        path.write_bytes(bytes(cls._LAYOUT.size * PROCESSES))

    @classmethod
    def totals(cls, path: Path) -> dict[str, int]:
        rows = cls._LAYOUT.iter_unpack(path.read_bytes())
        return dict(zip(cls.FIELDS, map(sum, zip(*rows, strict=True)), strict=True))

    def add(self, **amounts: int) -> None:
        with self._lock:
            old = self._LAYOUT.unpack_from(self._map, self._at)
            new = [value + amounts.get(name, 0) for name, value in zip(self.FIELDS, old, strict=True)]
            self._LAYOUT.pack_into(self._map, self._at, *new)

    def die(self) -> None:
        """End this process as the system would, and not in the middle of an entry."""
        with self._lock:
            os.kill(os.getpid(), signal.SIGKILL)


class ProviderFailed(Exception):
    """An HTTP 500: nothing is billed."""


@dataclass
class Provider:
    """Takes a few milliseconds for one call, and bills it when it has arrived, whoever still listens."""

    scene: Scene
    books: Books
    reached: bool = False

    def generate(self, fate: str, chance: random.Random, most: int | None = None) -> Steps:
        """Steps that end in the usage and its cost."""
        yield "sleep", LATENCY_S / 2
        self.reached = True
        self.books.add(through=1)
        if fate == "fails":
            raise ProviderFailed
        outputs = self.scene.draw(chance, most)
        cost = self.scene.price(outputs)
        self.books.add(billed=cost, unbilled=-cost)
        yield "sleep", LATENCY_S / 2
        if fate == "killed":
            self.books.die()
        if fate == "times out":
            raise TimeoutError
        return Usage(input_tokens=self.scene.inputs, output_tokens=outputs), cost
