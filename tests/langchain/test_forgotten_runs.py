"""Calls that LangChain drops without an event, and that nothing refers to any more, do not keep their holds."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI
from runs_under_test import CALLS, OPEN, Engines, Models, budget, config, cost

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.langchain import BudgetCallbackHandler
from llm_budget_hooks.testing import FakeProvider


class Fails(BaseCallbackHandler):
    """Another handler, which refuses every start."""

    raise_error = True
    run_inline = True

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        """Fail."""
        raise LookupError("another handler")


class Impatient(InMemoryRateLimiter):
    """Fails where it would wait."""

    def acquire(self, *, blocking: bool = True) -> bool:
        """Fail."""
        raise LookupError("no token")


def held(engine: BudgetEngine) -> int:
    """How many holds are open."""
    return int(budget(engine, "open").reserved)


def estimate(engine: BudgetEngine) -> Any:
    """What a call of this prompt and bound holds."""
    call = Call(model="gpt-4o-mini", tenant="acme", user="u1", input_tokens=50, max_output_tokens=50)
    return engine.check(call).estimate


@pytest.mark.parametrize("form", ["timeout", "wait_for"])
def test_b112_timeouts_inside_a_task_that_goes_on(
    form: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    """No task ends and no root does; that the run is gone is all there is to see."""
    engine, model = engines(OPEN), models()
    run = config(BudgetCallbackHandler(engine))

    async def once() -> None:
        provider.hang_next()
        with pytest.raises(TimeoutError):  # noqa: PT012 - two ways to wait
            if form == "wait_for":
                await asyncio.wait_for(model.ainvoke("hi", run), 0.3)
            else:
                async with asyncio.timeout(0.3):
                    await model.ainvoke("hi", run)

    async def main() -> None:
        for _ in range(3):
            await once()
            gc.collect()
            await asyncio.sleep(0.01)
            assert held(engine) == 0
        assert budget(engine, "spend").spent == 3 * estimate(engine)
        await model.ainvoke("hi", run)

    asyncio.run(main())
    assert budget(engine, "spend").spent == 3 * estimate(engine) + cost(100, 20)


@pytest.mark.parametrize("why", ["handler", "rate_limiter"])
def test_a_blocking_call_that_died_at_its_start_makes_room_for_the_next(
    why: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**OPEN, "limit": 1})
    run = config(BudgetCallbackHandler(engine))
    broken = dict(run)
    if why == "handler":
        broken["callbacks"] = [*run["callbacks"], Fails()]
    model = models(rate_limiter=Impatient()) if why == "rate_limiter" else models()
    with pytest.raises(LookupError):
        list(model.stream("hi", broken)) if why == "rate_limiter" else model.invoke("hi", broken)
    assert provider.count == 0
    gc.collect()
    models().invoke("hi", run)
    assert provider.count == 1
    assert held(engine) == 0


def test_a_stream_of_events_that_is_dropped_half_way(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine, model = engines({**CALLS, "limit": 9}, {**OPEN, "limit": 1}), models()
    run = config(BudgetCallbackHandler(engine))
    stream = model.stream_events("hi", run, version="v3")
    next(iter(stream))
    assert held(engine) == 1
    del stream
    gc.collect()
    model.invoke("hi", run)
    assert held(engine) == 0
    assert budget(engine, "spend").spent >= estimate(engine) + cost(100, 20)


def test_a_stream_that_is_only_held_open_keeps_its_hold(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines(OPEN), models(stream_usage=True)
    run = config(BudgetCallbackHandler(engine))
    stream = model.stream("hi", run)
    next(stream)
    gc.collect()
    model.invoke("hi", run)
    assert held(engine) == 1
    list(stream)
    assert held(engine) == 0
    assert budget(engine, "spend").spent == 2 * cost(100, 20)


class BlockingOnly(ChatOpenAI):
    """A model without an awaited form: LangChain runs the blocking one in a thread, which goes on when cancelled."""

    _agenerate = BaseChatModel._agenerate


def test_a_cancelled_call_whose_thread_goes_on_is_charged_what_it_held(
    engines: Engines, provider: FakeProvider, clients: dict[str, Any]
) -> None:
    engine = engines(OPEN)
    provider.hang_next()
    model = BlockingOnly(
        model="gpt-4o-mini", max_tokens=50, max_retries=0, base_url=provider.base_url, api_key="test", **clients
    )

    async def main() -> None:
        task = asyncio.create_task(model.ainvoke("hi", config(BudgetCallbackHandler(engine))))
        await asyncio.to_thread(provider.wait_for, 1)
        assert held(engine) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert held(engine) == 0
        provider.answer_hung()

    asyncio.run(main())
    assert provider.count == 1
    assert held(engine) == 0
    assert budget(engine, "spend").spent == estimate(engine)


def test_a_call_cancelled_while_a_rate_limiter_makes_it_wait(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    model = models(rate_limiter=InMemoryRateLimiter(requests_per_second=0.001, check_every_n_seconds=0.01))

    async def main() -> None:
        for form in (model.ainvoke, lambda *args: anext(model.astream(*args))):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(form("hi", config(BudgetCallbackHandler(engine))), 0.2)
            gc.collect()
            await asyncio.sleep(0.01)
            assert held(engine) == 0

    asyncio.run(main())
    assert provider.count == 0
