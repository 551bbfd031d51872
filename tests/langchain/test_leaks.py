"""Where LangChain fires no end event, the hold ends all the same; what comes late corrects it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Send
from runs_under_test import CALLS, OPEN, WHO, Engines, Models, budget, config, cost

from llm_budget_hooks import BudgetEngine
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply

INPUT = {"messages": ["hi"]}


class Fails(BaseCallbackHandler):
    """Another handler, which raises where it is told to."""

    raise_error = True
    run_inline = True

    def __init__(self, where: str) -> None:
        self.where = where

    def __getattribute__(self, name: str) -> Any:
        if name != "where" and name == object.__getattribute__(self, "where"):
            return self._fail
        return object.__getattribute__(self, name)

    def _fail(self, *args: Any, **kwargs: Any) -> None:
        raise LookupError("another handler")


def held(engine: BudgetEngine) -> bool:
    """Whether a hold is open."""
    return bool(budget(engine, "open").reserved)


def estimate(models: Models, engine: BudgetEngine) -> Any:
    """What a call of this prompt and bound holds."""
    return engine.check(_call()).estimate


def _call() -> Any:
    from llm_budget_hooks import Call

    return Call(model="gpt-4o-mini", tenant="acme", user="u1", input_tokens=50, max_output_tokens=50)


async def cancelled(provider: FakeProvider, work: Any) -> None:
    """Cancel work as soon as the provider has its request."""
    task = asyncio.create_task(work)
    await asyncio.to_thread(provider.wait_for, 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def waited(provider: FakeProvider, work: Any) -> None:
    """Give up on work after a while."""
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work, 0.3)


@pytest.mark.parametrize("way", ["model", "chain", "graph"])
@pytest.mark.parametrize("ended", [cancelled, waited])
def test_b112_a_cancelled_ainvoke_is_charged_what_it_held(
    ended: Any, way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.hang_next()
    engine, model = engines(OPEN), models()
    runnable = {"model": model, "chain": RunnableLambda(lambda x: x) | model, "graph": _graph(model)}[way]
    inputs = INPUT if way == "graph" else "hi"

    async def main() -> None:
        await ended(provider, runnable.ainvoke(inputs, config(BudgetCallbackHandler(engine))))
        await asyncio.sleep(0)
        assert not held(engine)

    asyncio.run(main())
    assert budget(engine, "spend").spent == estimate(models, engine)


def _graph(model: Any, **options: Any) -> Any:
    async def node(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node, **options)
    graph.add_edge(START, "node")
    return graph.compile()


def test_a_graphs_step_timeout_is_charged_what_it_held(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.hang_next()
    engine = engines(OPEN)
    graph = _graph(models())
    graph.step_timeout = 0.3
    with pytest.raises(TimeoutError):
        asyncio.run(graph.ainvoke(INPUT, config(BudgetCallbackHandler(engine))))
    assert not held(engine)
    assert budget(engine, "spend").spent == estimate(models, engine)


def test_siblings_cancelled_by_a_failure_are_charged(engines: Engines, models: Models, provider: FakeProvider) -> None:
    provider.hang_next(2)
    engine, model = engines(OPEN), models()

    async def worker(state: Any) -> Any:
        if state["messages"] == ["fail"]:
            await asyncio.to_thread(provider.wait_for, 2)
            raise LookupError("a sibling")
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("worker", worker)
    graph.add_conditional_edges(START, lambda _: [Send("worker", {"messages": [m]}) for m in ("hi", "hi", "fail")])
    with pytest.raises(LookupError):
        asyncio.run(graph.compile().ainvoke(INPUT, config(BudgetCallbackHandler(engine))))
    assert not held(engine)
    assert budget(engine, "spend").spent == 2 * estimate(models, engine)


def test_a_task_group_that_fails_leaves_no_hold(engines: Engines, models: Models, provider: FakeProvider) -> None:
    provider.hang_next()
    engine, model = engines(OPEN), models()

    async def fail() -> None:
        await asyncio.to_thread(provider.wait_for, 1)
        raise LookupError("a sibling")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(model.ainvoke("hi", config(BudgetCallbackHandler(engine))))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        asyncio.run(main())
    assert not held(engine)
    assert budget(engine, "spend").spent == estimate(models, engine)


@pytest.mark.parametrize("awaited", [False, True])
def test_another_handler_that_fails_at_the_start(
    awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    chain = RunnableLambda(lambda x: x) | models()
    run = config(BudgetCallbackHandler(engine))
    run["callbacks"].append(Fails("on_chat_model_start"))
    with pytest.raises(LookupError):
        asyncio.run(chain.ainvoke("hi", run)) if awaited else chain.invoke("hi", run)
    assert provider.count == 0
    assert not held(engine)


@pytest.mark.parametrize("where", ["on_llm_end", "on_llm_error"])
def test_another_handler_that_fails_at_the_end(
    where: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    if where == "on_llm_error":
        provider.cut_next()
    engine = engines(OPEN)
    run = config(BudgetCallbackHandler(engine))
    run["callbacks"].insert(0, Fails(where))
    with pytest.raises(LookupError):
        (RunnableLambda(lambda x: x) | models()).invoke("hi", run)
    assert not held(engine)
    assert budget(engine, "spend").spent == estimate(models, engine)


@pytest.mark.parametrize("awaited", [False, True])
def test_prompts_before_a_refused_one_are_given_back(
    awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 2}, OPEN)
    prompts, run = [[HumanMessage("hi")]] * 3, {"callbacks": [BudgetCallbackHandler(engine)], "metadata": WHO}
    with pytest.raises(BudgetRefused):
        asyncio.run(models().agenerate(prompts, **run)) if awaited else models().generate(prompts, **run)
    assert provider.count == 0
    assert not held(engine)
    assert budget(engine, "spend").spent == 0


@pytest.mark.parametrize("awaited", [False, True])
def test_prompts_beside_a_failed_one_are_not_forgotten(
    awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.reply = lambda request: Reply(status=400) if "boom" in str(request["messages"]) else None
    engine = engines(OPEN)
    prompts = [[HumanMessage(text)] for text in ("hi", "boom", "hi")]
    run = {"callbacks": [BudgetCallbackHandler(engine)], "metadata": WHO}
    with pytest.raises(Exception, match="400"):
        asyncio.run(models().agenerate(prompts, **run)) if awaited else models().generate(prompts, **run)
    assert not held(engine)
    expected = 2 * cost(100, 20) if awaited else 2 * estimate(models, engine)
    assert budget(engine, "spend").spent == expected


class Impatient(InMemoryRateLimiter):
    """Fails where it would wait."""

    def acquire(self, *, blocking: bool = True) -> bool:
        raise LookupError("no token")


def test_a_rate_limiter_that_fails_in_a_stream(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines(OPEN)
    chain = RunnableLambda(lambda x: x) | models(rate_limiter=Impatient())
    with pytest.raises(LookupError):
        list(chain.stream("hi", config(BudgetCallbackHandler(engine))))
    assert provider.count == 0
    assert not held(engine)


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 2, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def _held_stream(model: Any, run: Any) -> Iterator[Any]:
    stream = model.stream("hi", run)
    next(stream)
    return stream


def _dropped_events(model: Any, run: Any) -> Any:
    stream = model.stream_events("hi", run, version="v3")
    next(iter(stream))
    return stream


@pytest.mark.parametrize("way", [_held_stream, _dropped_events])
def test_b106_a_stream_that_nobody_ends_is_charged_when_its_hold_expires(
    way: Any, models: Models, provider: FakeProvider
) -> None:
    clock = Clock()
    policy = {"budgets": [OPEN, {"name": "spend", "scope": "user", "limit": "$1", "window": "month"}]}
    engine = BudgetEngine.open("memory://", policy, clock=clock)
    stream = way(models(), config(BudgetCallbackHandler(engine)))
    if not held(engine):
        pytest.fail("the stream was not held open")
    clock.now += timedelta(minutes=11)
    assert not held(engine)
    assert budget(engine, "spend").spent == estimate(models, engine)
    if hasattr(stream, "close"):
        stream.close()


def test_branches_that_run_on_after_the_root_correct_what_was_swept(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(hang=True))
    engine, model = engines(OPEN), models()

    async def fail(_: str) -> str:
        await asyncio.to_thread(provider.wait_for, 1)
        raise LookupError("a branch")

    async def main() -> None:
        branches = RunnableParallel(a=model, b=RunnableLambda(fail))
        with pytest.raises(LookupError):
            await branches.ainvoke("hi", config(BudgetCallbackHandler(engine)))
        assert not held(engine)
        assert budget(engine, "spend").spent == estimate(models, engine)
        provider.answer_hung()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(main())
    assert budget(engine, "spend").spent == cost(100, 20)
    assert not held(engine)
