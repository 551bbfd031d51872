"""What the callback adds to ``litellm.acompletion``: interleaved rounds against a fake provider on loopback.

    python benchmarks/litellm_overhead.py [--rounds 400] [--store memory://] [--profile]

Each round makes one call bare, one with a CustomLogger that does nothing, and one with the callback, in an order that
turns. Prints the median of the paired ratios to the bare call, with its 95 % confidence interval by order statistics.
Exits with 1 if the callback's is above its target even at the near end of the interval.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import logging
import os
import pstats
import sys
import time
from statistics import median
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm.integrations.custom_logger import CustomLogger

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


def interval(values: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % confidence interval, by order statistics."""
    ordered = sorted(values)
    reach = 0.98 * len(ordered) ** 0.5
    low = max(int(len(ordered) / 2 - reach), 0)
    high = min(int(len(ordered) / 2 + reach), len(ordered) - 1)
    return median(ordered), ordered[low], ordered[high]


def show(found: list[dict[str, float]]) -> bool:
    """Print a line for each way; whether the target is missed beyond doubt."""
    print(f"{BARE:20} {median(times[BARE] for times in found):7.0f} us, {len(found)} rounds")
    low = 0.0
    for name in (LOGGER, CAPPED):
        middle, low, high = interval([times[name] / times[BARE] for times in found])
        more, least, most = interval([times[name] - times[BARE] for times in found])
        print(f"{name:20} {middle:7.3f} x ({low:.3f} to {high:.3f}), {more:+.0f} us ({least:+.0f} to {most:+.0f})")
    print(f"target of {CAPPED}: {TARGET:g} x")
    return low > TARGET


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
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=400)
    options.add_argument("--store", default="memory://")
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    logging.getLogger("LiteLLM").setLevel(logging.CRITICAL)
    ways = {BARE: [], LOGGER: [CustomLogger()], CAPPED: [BudgetCallback(BudgetEngine.open(given.store, POLICY))]}
    with FakeProvider() as provider:
        asked = {
            "model": "openai/gpt-4o-mini", "api_base": provider.base_url, "api_key": "test", "max_tokens": 100,
            "messages": [{"role": "user", "content": "a question of some words"}],
            "metadata": {"tenant": "acme", "user": "u1"},
        }  # fmt: skip
        if given.profile:
            asyncio.run(profiled(ways[CAPPED], asked, given.rounds))
            return 0
        return int(show(asyncio.run(rounds(ways, asked, given.rounds))))


if __name__ == "__main__":
    sys.exit(main())
