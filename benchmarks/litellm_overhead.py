"""What the callback adds to ``litellm.acompletion``: interleaved rounds against a fake provider on loopback.

    python benchmarks/litellm_overhead.py [--short] [--rounds 400] [--store memory://] [--profile]

Each round makes one call bare, one with a CustomLogger that does nothing, and one with the callback, in an order that
turns. Prints the median of the paired ratios to the bare call, with its 95 % confidence interval by order statistics.
Exits with 1 if the callback's is above its target even at the near end of the interval.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import logging
import os
import pstats
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from figures import Figure, closed, options
from litellm.integrations.custom_logger import CustomLogger
from rounds import interval

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider

TARGET = 1.05
POLICY = {
    "store_timeout": "30s",
    "budgets": [
        {"scope": "global", "limit": "$1000000", "window": "day"},
        {"scope": "user", "limit": "$1000000", "window": "day"},
        {"scope": "user", "meter": "utterances", "limit": 10**9, "window": "day"},
    ],
}
BARE, LOGGER, CAPPED = "bare", "no-op CustomLogger", "BudgetCallback"


async def called(callbacks: list[Any], asked: dict[str, Any]) -> float:
    """How long one call takes, in microseconds, with what LiteLLM puts off settled before the next."""
    litellm.callbacks = callbacks
    asked = {**asked, "metadata": dict(asked["metadata"])}  # LiteLLM adds to it, and so to the next call's work
    began = time.perf_counter()
    await litellm.acompletion(**asked)
    took = (time.perf_counter() - began) * 1e6
    await asyncio.sleep(0.002)
    return took


async def rounds(ways: dict[str, list[Any]], asked: dict[str, Any], count: int) -> list[dict[str, float]]:
    """Times by way, one of each in a round, the first in turn."""
    names = list(ways)
    for _ in range(20):
        for name in names:
            await called(ways[name], asked)
    gc.collect()
    found = []
    for at in range(count):
        turn = at % len(names)
        found.append({name: await called(ways[name], asked) for name in (*names[turn:], *names[:turn])})
    return found


def figures(found: list[dict[str, float]]) -> Iterator[Figure]:
    """What each way takes beside the bare call, from the pairs of each round."""
    beside = f"bare acompletion: {median(times[BARE] for times in found):,.0f} µs, {len(found)} rounds"
    for name, most in ((LOGGER, None), (CAPPED, TARGET)):
        middle, low, high = interval([times[name] / times[BARE] for times in found])
        more = median(times[name] - times[BARE] for times in found)
        yield Figure("litellm", f"{name}: {more:+,.0f} µs", middle, "x", beside, most, low=low, high=high)


async def profiled(callbacks: list[Any], asked: dict[str, Any], count: int) -> None:
    """Print where the time of this package goes."""
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(count):
        await called(callbacks, asked)
    profile.disable()
    pstats.Stats(profile).sort_stats("cumulative").print_stats("llm_budget_hooks", 45)


def main() -> int:
    """Measure, print, and judge."""
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, help="else 400, or 100")
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    count = given.rounds or (100 if given.short else 400)
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    ways = {BARE: [], LOGGER: [CustomLogger()], CAPPED: [BudgetCallback(BudgetEngine.open(given.store, POLICY))]}
    with FakeProvider() as provider:
        asked = {
            "model": "openai/gpt-4o-mini", "api_base": provider.base_url, "api_key": "test", "max_tokens": 100,
            "messages": [{"role": "user", "content": "a question of some words"}],
            "metadata": {"tenant": "acme", "user": "u1"},
        }  # fmt: skip
        if given.profile:
            asyncio.run(profiled(ways[CAPPED], asked, count))
            return 0
        found = list(figures(asyncio.run(rounds(ways, asked, count))))
    return closed(found, "What the callback adds to a call of LiteLLM", given.json)


if __name__ == "__main__":
    sys.exit(main())
