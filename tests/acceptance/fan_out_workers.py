"""What the processes of the acceptance tests run: tasks that call in every way there is, and one process that dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass
from typing import Any

from llm_budget_hooks import BudgetEngine, Call, Usage

MODEL = "made-up"
TASKS = 50
_CALLS_EACH = 3
_FATES = ("usage", "usage", "usage", "cost", "above", "nothing", "released", "cancelled", "forgotten")


@dataclass(frozen=True)
class Crowd:
    """What a process needs to know to take part.

    Attributes:
        store, ledger: the URLs.
        policy: the rules.
    """

    store: str
    ledger: str
    policy: dict[str, Any]

    def open(self) -> BudgetEngine:
        return BudgetEngine.open(self.store, self.policy, ledger=self.ledger)


def run_tasks(crowd: Crowd, number: int, dies_after: int | None = None) -> None:
    """Run all tasks of one process; it kills itself in the middle of its so-manieth call."""
    asyncio.run(_all_tasks(crowd, random.Random(number), dies_after))  # noqa: S311 - no secrets


async def _all_tasks(crowd: Crowd, chance: random.Random, dies_after: int | None) -> None:
    reserved = 0

    async def one_task(task: int) -> None:
        nonlocal reserved
        for _ in range(_CALLS_EACH):
            call = Call(
                model=MODEL, tenant=f"t{task % 3}", user=f"u{task % 7}", step="answer",
                input_tokens=chance.randrange(2000), max_output_tokens=300,
            )  # fmt: skip
            held = await engine.areserve(call)
            reserved += 1
            if reserved == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(chance.random() / 50)
            await _end(engine, held, chance)

    async with crowd.open() as engine:
        await asyncio.gather(*(one_task(task) for task in range(TASKS)))


async def _end(engine: BudgetEngine, held: Any, chance: random.Random) -> None:
    fate = chance.choice(_FATES)
    if fate == "usage":
        used = Usage(input_tokens=chance.randrange(2000), output_tokens=chance.randrange(400))
        await engine.asettle(held, usage=used)
    elif fate in ("cost", "above"):
        await engine.asettle(held, cost=f"0.{chance.randrange(10**6):09d}" if fate == "cost" else "0.02")
    elif fate == "nothing":
        await engine.asettle(held)
        if chance.random() < 0.5:
            await engine.asettle(held, cost="0.000000007")
    elif fate == "released":
        await engine.arelease(held)
    elif fate == "cancelled":
        task = asyncio.ensure_future(engine.asettle(held, cost="0.003"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
