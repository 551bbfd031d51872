"""A call that takes longer than a hold lives keeps its hold, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import runpy
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import litellm
import pytest
from routes import at, balance, in_threads

from llm_budget_hooks.litellm import BudgetRefused
from llm_budget_hooks.litellm.attempts import Attempt
from llm_budget_hooks.litellm.later import wait_settled
from llm_budget_hooks.litellm.renewal import watched
from llm_budget_hooks.testing import FakeProvider, Reply

MakeEngine = Callable[..., Any]
USED = Decimal("0.0000243")
OPEN = {"scope": "global", "meter": "in_flight", "limit": 10, "name": "open"}
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}


def test_long_calls_keep_their_holds(provider: FakeProvider, capped: MakeEngine) -> None:
    """A sync call, an async one, and a stream whose pieces come more slowly than a hold lives."""
    engine = capped(OPEN, DOLLARS, reservation_timeout="2s")
    asked = at(provider)
    waiting = [
        (Reply(latency_s=4.2), lambda: litellm.completion(**asked)),
        (Reply(latency_s=4.2), lambda: asyncio.run(litellm.acompletion(**asked))),
        (Reply(chunk_latency_s=2.2, text="k"), lambda: list(litellm.completion(**asked, stream=True))),
    ]
    threads = [threading.Thread(target=call) for _, call in waiting]
    for number, thread in enumerate(threads, 1):
        provider.next_replies(waiting[number - 1][0])
        thread.start()
        provider.wait_for(number)
    seen = []
    while all(thread.is_alive() for thread in threads):
        seen.append(balance(engine, "open")[1])
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    assert len(seen) > 5
    assert set(seen[:-1]) == {3}  # one may have ended between the last look and its balance
    assert balance(engine) == (3 * USED, 0)
    assert watched() == 0


def test_a_stream_that_nobody_reads_is_not_renewed(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(OPEN, DOLLARS, reservation_timeout="1s")
    kept = litellm.completion(**at(provider, stream=True))
    time.sleep(1.3)
    assert balance(engine, "open") == (0, 0)
    list(kept)
    assert balance(engine) == (USED, 0)


@pytest.mark.parametrize("entry", ["completion", "embedding", "responses", "text_completion"])
@pytest.mark.parametrize("awaited", [False, True])
def test_b112_a_client_timeout_settles_at_once(
    entry: str, awaited: bool, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(OPEN, DOLLARS)
    provider.hang_next(3)
    asked = {"model": "openai/text-embedding-3-small" if entry == "embedding" else "openai/gpt-4o-mini"}
    asked |= {"messages": at(provider)["messages"]} if entry == "completion" else {}
    asked |= {"input": "hi"} if entry in ("embedding", "responses") else {}
    asked |= {"prompt": "hi"} if entry == "text_completion" else {}
    more: dict[str, Any] = {"api_base": provider.base_url, "api_key": "test", "timeout": 0.3, "max_retries": 0}
    call = getattr(litellm, f"a{entry}" if awaited else entry)
    [outcome] = in_threads(lambda: asyncio.run(call(**asked, **more)) if awaited else call(**asked, **more), 1)
    assert isinstance(outcome, Exception)
    assert balance(engine, "open") == (0, 0)
    assert balance(engine)[0] > 0


def _attempts() -> int:
    gc.collect()
    return sum(isinstance(thing, Attempt) for thing in gc.get_objects())


def test_calls_of_which_half_never_end_leave_a_bounded_map(capped: MakeEngine) -> None:
    """An ended call is forgotten also where LiteLLM still keeps what it is to log; the script makes 100,000 calls."""
    unended = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "litellm_unended.py"))
    calls = {"scope": "global", "meter": "calls", "limit": 10_000, "window": "day", "name": "calls"}
    engine = capped(OPEN, calls, DOLLARS)

    async def run() -> list[tuple[int, int, int]]:
        return [look async for look in unended["drive"](1000, 5)]

    for _, looked_after, kept in asyncio.run(run()):
        assert max(looked_after, kept) < unended["BOUND"]  # what the collector has not come to yet is counted too
    assert wait_settled(10)
    assert balance(engine, "calls") == (1000, 0)
    assert balance(engine, "open") == (0, 0)
    assert watched() == 0


def test_a_refusal_keeps_nothing_of_its_request(provider: FakeProvider, capped: MakeEngine) -> None:
    """It is remembered for the retries that LiteLLM may make, without the frames that hold the prompt."""
    capped({"scope": "global", "meter": "calls", "limit": 1, "window": "day", "name": "calls"})
    litellm.completion(**at(provider))
    before = _attempts()
    for _ in range(20):
        with pytest.raises(BudgetRefused):
            litellm.completion(**at(provider))
    assert _attempts() - before < 3
