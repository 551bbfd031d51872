"""What the LangChain handler adds to a call: interleaved pairs with and without it, on a fake model in memory.

    python benchmarks/langchain_overhead.py [--short] [--pairs 500] [--store memory://]

Prints the median of the paired differences with its 95 % confidence interval, and for a stream of 200 chunks the
median ratio with its own. Exits with 1 if a figure is above its target even at the near end of its interval.
In memory nothing waits, so times are those of the processor, whatever else the machine does; on another store they
are those of the clock. Two lines without a target say whose the difference is: a handler that does nothing, and the
engine's own reserve and settle.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from statistics import median
from typing import Any

from figures import Figure, closed, options
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from rounds import interval

from llm_budget_hooks import BudgetEngine, Call, Usage
from llm_budget_hooks.langchain import BudgetCallbackHandler

USAGE: Any = {"input_tokens": 12, "output_tokens": 20, "total_tokens": 32}
CHUNKS = 200
CLOCK = [time.thread_time_ns]
POLICY = {
    "budgets": [
        {"scope": "global", "limit": "$1000000", "window": "day"},
        {"scope": "user", "limit": "$1000000", "window": "day"},
        {"scope": "user", "meter": "utterances", "limit": 10**9, "window": "day"},
    ]
}


class Model(BaseChatModel):
    """Answers at once."""

    model: str = "gpt-4o-mini"

    @property
    def _llm_type(self) -> str:
        return "instant"

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:  # noqa: ARG002 - LangChain's signature
        return ChatResult(generations=[ChatGeneration(message=AIMessage("ok", usage_metadata=USAGE))])

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:  # noqa: ARG002 - LangChain's signature
        return self._generate(messages)

    def _stream(self, messages: Any, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:  # noqa: ARG002 - as above
        for at in range(CHUNKS):
            usage = USAGE if at == CHUNKS - 1 else None
            yield ChatGenerationChunk(message=AIMessageChunk("ok ", usage_metadata=usage))

    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> Any:  # noqa: ARG002 - as above
        for chunk in self._stream(messages):
            yield chunk


class Nothing(BaseCallbackHandler):
    """What LangChain takes for any handler at all."""

    run_inline = True

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""


async def pairs(form: Callable[[Any], Awaitable[Any]], bare: Any, capped: Any, times: int) -> list[tuple[float, float]]:
    """Times without and with the handler in microseconds, one after the other, the first of a pair in turn."""
    for _ in range(50):
        await form(bare)
        await form(capped)
    gc.collect()
    found = []
    for at in range(times):
        if at % 2:
            found.append((await timed(form, bare), await timed(form, capped)))
        else:
            two = await timed(form, capped)
            found.append((await timed(form, bare), two))
    return found


async def timed(form: Callable[[Any], Awaitable[Any]], config: Any) -> float:
    """How long a call takes, in microseconds."""
    began = CLOCK[0]()
    await form(config)
    return (CLOCK[0]() - began) / 1000


async def main() -> int:
    """Measure, print, and judge."""
    parser = options(__doc__)
    parser.add_argument("--pairs", type=int, help="else 500, or 200")
    parser.add_argument("--store", default="memory://")
    given = parser.parse_args()
    times = given.pairs or (200 if given.short else 500)
    if not given.store.startswith("memory"):
        CLOCK[0] = time.perf_counter_ns
    engine, model = BudgetEngine.open(given.store, POLICY), Model()
    bare: Any = {"metadata": {"tenant": "acme", "user": "u1"}}
    capped: Any = {**bare, "callbacks": [BudgetCallbackHandler(engine)]}
    messages = [HumanMessage("a question of some words")]

    async def invoke(config: Any) -> None:
        model.invoke(messages, config)

    async def ainvoke(config: Any) -> None:
        await model.ainvoke(messages, config)

    async def astream(config: Any) -> None:
        async for _ in model.astream(messages, config):
            pass

    async def engine_alone(config: Any) -> None:
        if config is capped:
            call = Call(model=model.model, tenant="acme", user="u1", input_tokens=72, utterance=f"ut-{next(numbers)}")
            engine.settle(engine.reserve(call), usage=Usage(input_tokens=12, output_tokens=20))

    numbers, nothing = count(), {**bare, "callbacks": [Nothing()]}
    found = [
        more("any handler, invoke", await pairs(invoke, bare, nothing, times)),
        more("reserve and settle alone", await pairs(engine_alone, bare, capped, times)),
        more("handler, invoke", await pairs(invoke, bare, capped, times), 40.0),
        more("handler, ainvoke", await pairs(ainvoke, bare, capped, times), 120.0),
        of_a_stream(await pairs(astream, bare, capped, times // 4), 1.5),
    ]
    return closed(found, "What the handler adds to a call of LangChain", given.json)


def more(what: str, times: list[tuple[float, float]], most: float | None = None) -> Figure:
    """What the second of each pair takes longer."""
    without = f"{median(one for one, _ in times):,.0f} µs without, {len(times)} pairs"
    middle, low, high = interval([two - one for one, two in times])
    return Figure("langchain", what, middle, "µs more", without, most, low=low, high=high)


def of_a_stream(times: list[tuple[float, float]], most: float) -> Figure:
    """How many times as long the second of each pair takes."""
    without = f"{median(one for one, _ in times):,.0f} µs without, {len(times)} pairs"
    middle, low, high = interval([two / one for one, two in times])
    return Figure("langchain", f"handler, astream of {CHUNKS} chunks", middle, "x", without, most, low=low, high=high)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
