"""What the LiteLLM callback keeps of calls that never end: nothing that grows with their number.

    python benchmarks/litellm_unended.py [--calls 100000]

Half of the calls are streams that are read to their end. Of the others one is left in mid-stream and forgotten, the
next one waits for a provider that never answers, and nobody keeps its task. The calls come in where LiteLLM hands them
over, so that LiteLLM's own time is left out; what it logs by is kept for all of them, as by a queue that is behind.
Exits with 1 if more than BOUND attempts are ever kept, or if a hold is left.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.litellm.attempts import Attempt
from llm_budget_hooks.litellm.entry import around
from llm_budget_hooks.litellm.later import wait_settled
from llm_budget_hooks.litellm.renewal import watched

BOUND = 100
POLICY = {
    "store_timeout": "30s",
    "budgets": [
        {"scope": "global", "limit": "$1000000", "window": "day"},
        {"scope": "global", "meter": "in_flight", "limit": 10**6, "name": "open"},
    ],
}
PIECES = [{"choices": [{"delta": {"content": word}}]} for word in ("one ", "two ", "three")]
USED = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}


async def acompletion(*, never: bool = False, **_: Any) -> AsyncIterator[Any]:
    """Stands for LiteLLM's own function of that name."""
    if never:
        await asyncio.get_running_loop().create_future()
    return _pieces()


async def _pieces() -> AsyncIterator[Any]:
    for piece in (*PIECES, USED):
        yield piece


async def drive(calls: int, looks: int) -> AsyncIterator[tuple[int, int, int]]:
    """Make calls of which half never end; how many were made, are looked after and are kept, so many times."""
    call, kept = around(acompletion), []
    asked = {"model": "openai/gpt-4o-mini", "messages": [{"role": "user", "content": "a question"}], "stream": True}
    for number in range(1, calls + 1):
        kept.append(SimpleNamespace())
        coming = call(**asked, litellm_logging_obj=kept[-1], never=number % 4 == 3)
        if number % 4 == 3:
            coming.send(None)
        elif number % 4 == 1:
            await anext(await coming)
        else:
            async for _ in await coming:
                pass
        del coming
        if number % (calls // looks) == 0:
            yield number, watched(), sum(isinstance(thing, Attempt) for thing in gc.get_objects())


async def _run(engine: BudgetEngine, calls: int) -> bool:
    most, began = 0, time.process_time()
    async for number, looked_after, kept in drive(calls, 10):
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{number:8,} calls: {looked_after:4} looked after, {kept:4} kept, {peak_mb:5.0f} MB at most")
        most = max(most, looked_after, kept)
    wait_settled()
    status = {found.budget: found for found in engine.status()}
    took_us = (time.process_time() - began) / calls * 1e6
    print(f"{most} at most (bound {BOUND}), {status['open'].reserved} holds left, {took_us:.0f} us of CPU each")
    return most > BOUND or bool(status["open"].reserved)


def main() -> int:
    """Run, print, and judge."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--calls", type=int, default=100_000)
    given = options.parse_args()
    gc.collect()
    gc.freeze()  # what the imports made is not gone through at each look
    engine = BudgetEngine.open("memory://", POLICY)
    litellm.callbacks = [BudgetCallback(engine)]
    return int(asyncio.run(_run(engine, given.calls)))


if __name__ == "__main__":
    sys.exit(main())
