"""What the proof's processes and threads run: callers that start together, and one that dies in mid-call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from threading import Barrier as ThreadBarrier
from typing import Any

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call, Reservation

PROCESSES = 4
_START_S = 60
_together: Barrier | None = None


@dataclass
class FrozenClock:
    """A clock that stands until it is told to go on; it can be sent to other processes."""

    now: datetime = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


Open = Callable[[], BudgetEngine]
Settle = Callable[[BudgetEngine, Reservation], Any]


@dataclass(frozen=True)
class AtCost:
    """Settles a hold at a cost."""

    cost: str

    def __call__(self, engine: BudgetEngine, held: Reservation) -> Any:
        return engine.settle(held, cost=self.cost)


def attempt(engine: BudgetEngine, call: Call, settle: Settle) -> bool:
    """One call: whether it was let through."""
    try:
        held = engine.reserve(call)
    except BudgetExceeded:
        return False
    settle(engine, held)
    return True


def in_threads(engine: BudgetEngine, calls: list[Call], settle: Settle) -> int:
    """How many of some calls are let through, all of them at once, a thread for each."""
    barrier = ThreadBarrier(len(calls))

    def one(call: Call) -> bool:
        barrier.wait(_START_S)
        return attempt(engine, call, settle)

    with ThreadPoolExecutor(len(calls)) as pool:
        return sum(pool.map(one, calls))


class Four:
    """Four processes that take one share of the work each and start on it together."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(PROCESSES, context, _remember, (context.Barrier(PROCESSES),))

    def __call__(self, opens: Open, calls: list[Call], settle: Settle) -> int:
        """How many of some calls are let through, when every process has a part of them in threads."""
        parts = [calls[at::PROCESSES] for at in range(PROCESSES)]
        jobs = [self._pool.submit(_share, opens, part, settle) for part in parts]
        return sum(job.result() for job in jobs)

    def close(self) -> None:
        self._pool.shutdown()


def _remember(barrier: Barrier) -> None:
    global _together
    _together = barrier


def _share(opens: Open, calls: list[Call], settle: Settle) -> int:
    assert _together is not None
    with opens() as engine:
        _together.wait(_START_S)
        return in_threads(engine, calls, settle)


def reserve_and_die(opens: Open, calls: list[Call]) -> None:
    """Take holds, and end as a process does that the system kills in mid-call."""
    engine = opens()
    for call in calls:
        engine.reserve(call)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_mid_call(opens: Open, calls: list[Call]) -> int | None:
    """Run `reserve_and_die` in a process of its own; its exit code."""
    process = get_context("spawn").Process(target=reserve_and_die, args=(opens, calls))
    process.start()
    process.join(_START_S)
    return process.exitcode
