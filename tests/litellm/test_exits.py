"""Nothing is lost where a loop or a process ends."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import litellm
import pytest
from routes import at, balance

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.litellm.later import settle_later, wait_settled
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
USED = Decimal("0.0000243")
RULES = {"budgets": [{"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}]}
BY_USER = {"budgets": [{"scope": "user", "limit": "$50", "window": "day", "name": "dollars"}]}
SCRIPT = """
import asyncio, json, sys
import litellm
from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.litellm import BudgetCallback

store, base, rules = sys.argv[1:]
litellm.callbacks = [BudgetCallback(BudgetEngine.open(store, json.loads(rules)))]
asked = dict(model="openai/gpt-4o-mini", api_base=base, api_key="test")
asked["messages"] = [{"role": "user", "content": "hello world"}]
for _ in range(2):
    asyncio.run(litellm.acompletion(**asked, metadata={"user": "caller"}))
litellm.completion(**asked, metadata={"user": "caller"})
kept = litellm.completion(**asked, stream=True, metadata={"user": "reader"})
next(kept)
"""


def test_b115_a_process_that_ends_has_settled_its_calls_and_its_open_stream(
    provider: FakeProvider, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path}/budget.db"
    subprocess.run([sys.executable, "-c", SCRIPT, store, provider.base_url, json.dumps(BY_USER)], check=True)
    with BudgetEngine.open(store, BY_USER) as engine:
        assert balance(engine, tenant="default", user="caller") == (3 * USED, 0)
        spent, reserved = balance(engine, tenant="default", user="reader")
    assert reserved == 0
    assert 0 < spent < USED


def test_b115_asyncio_run_twice_without_a_pause(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped({"scope": "global", "meter": "in_flight", "limit": 1, "name": "open"}, *RULES["budgets"])
    for n in (1, 2):
        asyncio.run(litellm.acompletion(**at(provider)))
        assert balance(engine) == (n * USED, 0)


def test_b128_five_loops_in_five_threads(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(*RULES["budgets"])

    async def ten() -> None:
        await asyncio.gather(*(litellm.acompletion(**at(provider)) for _ in range(10)))

    threads = [threading.Thread(target=lambda: asyncio.run(ten())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert balance(engine) == (50 * USED, 0)


def test_b130_the_sync_interface_works_inside_a_running_loop(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped(*RULES["budgets"])

    async def run() -> None:
        litellm.completion(**at(provider))
        await litellm.acompletion(**at(provider))

    asyncio.run(run())
    assert balance(engine) == (2 * USED, 0)


def test_whoever_finds_a_dropped_stream_inside_the_store_does_not_wait_for_itself() -> None:
    """The settle needs a lock that its finder holds; it is done when the finder lets go."""
    held, done = threading.Lock(), threading.Event()

    def settle() -> None:
        with held:
            done.set()

    with held:
        settle_later(settle)
        assert not done.is_set()
    assert wait_settled(5)
    assert done.is_set()


def _ours() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if thread.name.startswith("llm-budget")}


def test_no_thread_is_left_behind_by_calls(provider: FakeProvider, capped: MakeEngine) -> None:
    """There is one thread that renews and one that settles what is dropped, however many calls there are."""
    capped(*RULES["budgets"])

    settle_later(lambda: None)
    litellm.completion(**at(provider))
    before = _ours()
    for _ in range(20):
        settle_later(lambda: None)
        stream = litellm.completion(**at(provider, stream=True))
        next(stream)
        stream.close()
        del stream
    gc.collect()
    assert _ours() == before
    assert len(before) == 2


@pytest.mark.parametrize("awaited", [False, True])
def test_a_flush_waits_for_what_is_still_to_be_settled(awaited: bool, capped: MakeEngine) -> None:
    """A settle that takes longer than its finder waits, as that of a dropped stream on a slow store."""
    engine, done = capped(*RULES["budgets"]), threading.Event()
    settle_later(lambda: (time.sleep(0.3), done.set()))
    assert not done.is_set()
    if awaited:
        asyncio.run(engine.aflush())
    else:
        engine.flush()
    assert done.is_set()


def test_a_flush_on_the_settling_thread_does_not_wait_for_itself(capped: MakeEngine) -> None:
    engine, done = capped(*RULES["budgets"]), threading.Event()
    settle_later(lambda: (engine.flush(), done.set()))
    assert done.wait(5)
