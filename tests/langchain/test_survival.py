"""No wrapper of LangChain or LangGraph retries a refusal, swallows it, or gets a call past it."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.exceptions import ModelError
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy, Send
from runs_under_test import CALLS, OPEN, UTTERANCES, Engines, Models, budget, config, cost, reserved_calls, spent

from llm_budget_hooks import BudgetExceeded, PriceUnknown
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply, ToolCall

INPUT = {"messages": ["hi"]}


def _tool(model: Any) -> Any:
    @tool
    def ask(what: str) -> str:
        """Ask a model."""
        return str(model.invoke(what).content)

    return ask


def _tool_node(model: Any) -> Any:
    call = {"role": "assistant", "content": "", "tool_calls": [{"name": "ask", "args": {"what": "x"}, "id": "1"}]}
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode([_tool(model)], handle_tool_errors=True))
    graph.add_edge(START, "tools")
    return graph.compile(), {"messages": [call]}


def _agent_tool(model: Any, *middleware: Any) -> Any:
    return create_agent(model, [_tool(model)], middleware=middleware), INPUT


def _retry_policy(model: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node(
        "node",
        lambda state: {"messages": [model.invoke(state["messages"])]},
        retry_policy=RetryPolicy(max_attempts=3, initial_interval=0.01),
    )
    graph.add_edge(START, "node")
    return graph.compile(), INPUT


def _summarizing(model: Any) -> Any:
    middleware = SummarizationMiddleware(model, trigger=("messages", 2), keep=("messages", 1))
    return create_agent(model, [], middleware=[middleware]), {"messages": ["a", "b", "c"]}


WRAPPERS: dict[str, Callable[[Models], tuple[Any, Any]]] = {
    "with_retry": lambda models: (models().with_retry(), "hi"),
    "with_retry_of_a_chain": lambda models: ((RunnableLambda(lambda x: x) | models()).with_retry(), "hi"),
    "with_retry_of_its_own": lambda models: (models().with_retry(retry_if_exception_type=(RuntimeError,)), "hi"),
    "retry_in_fallbacks": lambda models: (
        models().with_retry().with_fallbacks([models(model="gpt-4o").with_retry()]),
        "hi",
    ),
    "with_fallbacks": lambda models: (models().with_fallbacks([models(model="gpt-4o")]), "hi"),
    "tool_node": lambda models: _tool_node(models()),
    "model_fallback": lambda models: (
        create_agent(models(), [], middleware=[ModelFallbackMiddleware(models(model="gpt-4o"))]),
        INPUT,
    ),
    "model_retry": lambda models: (
        create_agent(models(), [], middleware=[ModelRetryMiddleware(max_retries=2, initial_delay=0.01)]),
        INPUT,
    ),
    "retry_policy": lambda models: _retry_policy(models()),
    "summarization": lambda models: _summarizing(models()),
}


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_b104_a_refusal_reaches_the_caller_and_no_call_the_provider(
    wrapper: str,
    awaited: bool,
    engines: Engines,
    models: Models,
    provider: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = spent(engines({**CALLS, "limit": 1}, {**UTTERANCES, "limit": 10}))
    asked = reserved_calls(engine, monkeypatch)
    runnable, inputs = WRAPPERS[wrapper](models)
    run = config(BudgetCallbackHandler(engine))
    before = budget(engine, "utterances").spent
    began = time.monotonic()
    with pytest.raises(BudgetRefused):
        asyncio.run(runnable.ainvoke(inputs, run)) if awaited else runnable.invoke(inputs, run)
    assert time.monotonic() - began < 1
    assert provider.count == 0
    assert len(asked) == 1
    assert budget(engine, "utterances").spent == before
    assert budget(engine, "calls").spent == 1


@pytest.mark.parametrize("awaited", [False, True])
def test_b104_a_batch_with_retries_keeps_the_answers_beside_a_refusal(
    awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 2})
    chain, run = models().with_retry(), config(BudgetCallbackHandler(engine))
    began = time.monotonic()
    if awaited:
        answers = asyncio.run(chain.abatch(["a", "b", "c"], run, return_exceptions=True))
    else:
        answers = chain.batch(["a", "b", "c"], run, return_exceptions=True)
    assert time.monotonic() - began < 1
    assert provider.count == 2
    assert sorted(type(answer).__name__ for answer in answers) == ["AIMessage", "AIMessage", "BudgetRefused"]


def test_with_retry_goes_on_with_what_is_not_refused_and_with_what_is_busy(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**OPEN, "limit": 1})
    provider.fail_next(status=500)
    handler = BudgetCallbackHandler(engine)
    models().with_retry(wait_exponential_jitter=False).invoke("hi", config(handler))
    assert provider.count == 2
    held = engine.reserve(_call("gpt-4o-mini"))
    seen = []

    def release(_: Any) -> str:
        seen.append(budget(engine, "open").reserved)
        if len(seen) == 2:
            engine.release(held)
        return "hi"

    chain = (RunnableLambda(release) | models()).with_retry(wait_exponential_jitter=False)
    chain.invoke("hi", config(handler))
    assert seen == [1, 1]
    assert provider.count == 3


@pytest.mark.parametrize("middleware", [[], [ToolRetryMiddleware(max_retries=2, initial_delay=0.01)]])
def test_a_refusal_inside_a_tool_ends_the_agent(
    middleware: list[Any], engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(tool_calls=(ToolCall("ask", {"what": "x"}),)))
    engine = engines({**CALLS, "limit": 1})
    agent, inputs = _agent_tool(models(), *middleware)
    with pytest.raises(BudgetRefused):
        agent.invoke(inputs, config(BudgetCallbackHandler(engine)))
    assert provider.count == 1


def test_a_fallback_after_a_spent_user_budget_is_refused_without_asking(
    engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = spent(engines({**CALLS, "limit": 1, "models": ["gpt-4o"]}))
    engine.charge(_call("gpt-4o"), cost=0)
    asked = reserved_calls(engine, monkeypatch)
    chain = models(model="gpt-4o").with_fallbacks([models(model="gpt-4.1")])
    with pytest.raises(BudgetRefused):
        chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert provider.count == 0
    assert [call.model for call in asked] == ["gpt-4o"]


def test_a_cheap_fallback_is_always_asked_for(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines({**CALLS, "limit": 1, "models": ["gpt-4o"]})
    engine.charge(_call("gpt-4o"), cost=0)
    chain = models(model="gpt-4o").with_fallbacks([models(model="gpt-4o-mini")])
    chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert [request.model for request in provider.requests] == ["gpt-4o-mini"]


def test_a_busy_budget_does_not_stick(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines({**OPEN, "limit": 1, "models": ["gpt-4o"]})
    held = engine.reserve(_call("gpt-4o"))
    handler = BudgetCallbackHandler(engine)
    models(model="gpt-4o").with_fallbacks([models(model="gpt-4.1")]).invoke("hi", config(handler))
    assert provider.count == 1
    engine.release(held)


def _call(model: str) -> Any:
    from llm_budget_hooks import Call

    return Call(model=model, tenant="acme", user="u1", input_tokens=10, max_output_tokens=10)


def test_siblings_of_a_refused_branch_finish_and_are_billed(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.latency_s = 0.1
    engine, model = engines({**CALLS, "limit": 2}, OPEN), models()

    async def worker(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("worker", worker)
    graph.add_conditional_edges(START, lambda state: [Send("worker", state) for _ in range(3)])
    with pytest.raises(BudgetRefused):
        asyncio.run(graph.compile().ainvoke(INPUT, config(BudgetCallbackHandler(engine))))
    assert provider.count == 2
    assert not any(request.disconnected for request in provider.requests)
    assert budget(engine, "spend").spent == 2 * cost(100, 20)
    assert budget(engine, "open").reserved == 0


def test_the_clients_own_retries_never_see_a_refusal(engines: Engines, models: Models, provider: FakeProvider) -> None:
    handler = BudgetCallbackHandler(spent(engines({**CALLS, "limit": 1})))
    with pytest.raises(BudgetRefused):
        models(max_retries=2).invoke("hi", config(handler))
    assert provider.count == 0


def test_the_refusal_is_all_that_it_has_to_be_and_survives_pickling(engines: Engines, models: Models) -> None:
    handler = BudgetCallbackHandler(spent(engines({**CALLS, "limit": 1})))
    seen = []
    for _ in range(2):
        with pytest.raises(BudgetExceeded) as refused:
            models().invoke("hi", config(handler))
        seen.append(refused.value)
    error = seen[0]
    assert isinstance(error, BudgetRefused)
    assert isinstance(error, GraphBubbleUp | ModelError | RuntimeError)
    assert not error.is_retryable
    assert seen[0] is not seen[1]
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is BudgetRefused
    assert (str(copy), copy.code, copy.budget, copy.limit, copy.resets_at) == (
        str(error),
        "calls",
        "calls",
        1,
        error.resets_at,
    )


def test_an_unknown_price_is_refused_as_what_it_is(engines: Engines, models: Models, provider: FakeProvider) -> None:
    with pytest.raises(PriceUnknown) as refused:
        models(model="no-such-model").invoke("hi", config(BudgetCallbackHandler(engines())))
    assert isinstance(refused.value, BudgetRefused)
    assert provider.count == 0


def _refusing(engine: Any, monkeypatch: pytest.MonkeyPatch, **facts: Any) -> list[str]:
    """Refuse the first reserve with a refusal of this kind; the models that were asked for."""
    asked: list[str] = []
    reserve = engine.reserve

    def refuse(call: Any) -> Any:
        asked.append(call.model)
        if len(asked) == 1:
            raise BudgetExceeded("no", **facts)
        return reserve(call)

    monkeypatch.setattr(engine, "reserve", refuse)
    return asked


STICKS = {
    "killed": {"code": "killed", "scope": "tenant"},
    "killed_for_all": {"code": "killed", "scope": "global"},
    "answer_estimate": {"code": "answer_estimate", "scope": "answer"},
    "answer_actual": {"code": "answer_actual", "scope": "answer", "stage": "end"},
    "calls_of_an_answer": {"code": "calls", "scope": "answer"},
    "spend": {"code": "spend", "scope": "user"},
    "tokens": {"code": "tokens", "scope": "user"},
}
PASSES = {
    "busy": {"code": "spend", "scope": "user", "busy": True},
    "tenant": {"code": "spend", "scope": "tenant"},
    "global": {"code": "spend", "scope": "global"},
    "store": {"code": "store_unavailable", "scope": None},
}


@pytest.mark.parametrize("kind", [*STICKS, *PASSES])
def test_what_sticks_to_a_root_and_what_does_not(
    kind: str, engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    asked = _refusing(engine, monkeypatch, **{**STICKS, **PASSES}[kind])
    chain = models(model="gpt-4o").with_fallbacks([models(model="gpt-4.1")])
    if kind in STICKS:
        with pytest.raises(BudgetRefused) as refused:
            chain.invoke("hi", config(BudgetCallbackHandler(engine)))
        assert refused.value.code == STICKS[kind]["code"]
    else:
        chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert asked == (["gpt-4o"] if kind in STICKS else ["gpt-4o", "gpt-4.1"])
    assert provider.count == len(asked) - 1


@pytest.mark.parametrize("kind", STICKS)
def test_a_cheap_model_may_always_ask(
    kind: str, engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    asked = _refusing(engine, monkeypatch, **STICKS[kind])
    chain = models(model="gpt-4o").with_fallbacks([models(model="gpt-4.1"), models(model="gpt-4.1-nano")])
    chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert asked == ["gpt-4o", "gpt-4.1-nano"]
    assert provider.count == 1


def test_a_refusal_that_sticks_ends_with_its_root(
    engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines()
    _refusing(engine, monkeypatch, code="killed", scope="tenant")
    handler = BudgetCallbackHandler(engine)
    with pytest.raises(BudgetRefused):
        models(model="gpt-4o").invoke("hi", config(handler))
    models(model="gpt-4o").invoke("hi", config(handler))
    assert provider.count == 1
