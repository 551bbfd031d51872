"""Every way to call a model is capped: refused before the provider is contacted, settled after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_openai import OpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from runs_under_test import CALLS, OPEN, UTTERANCES, WHO, Engines, Models, budget, collected, config, cost

from llm_budget_hooks import BudgetExceeded
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import FakeProvider

Way = Callable[[Any, Any], Any]


WAYS: dict[str, Way] = {
    "invoke": lambda model, c: model.invoke("hi", c),
    "ainvoke": lambda model, c: asyncio.run(model.ainvoke("hi", c)),
    "stream": lambda model, c: list(model.stream("hi", c)),
    "astream": lambda model, c: asyncio.run(collected(model.astream("hi", c))),
    "batch": lambda model, c: model.batch(["hi"], c),
    "abatch": lambda model, c: asyncio.run(model.abatch(["hi"], c)),
    "astream_events_v2": lambda model, c: asyncio.run(collected(model.astream_events("hi", c, version="v2"))),
    "chain": lambda model, c: (RunnableLambda(lambda x: x) | model).invoke("hi", c),
    "chain_stream": lambda model, c: list((RunnableLambda(lambda x: x) | model).stream("hi", c)),
    "lambda": lambda model, c: RunnableLambda(lambda x: model.invoke(x)).invoke("hi", c),
    "async_lambda": lambda model, c: asyncio.run(RunnableLambda(lambda x: model.invoke(x)).ainvoke("hi", c)),
    "parallel": lambda model, c: RunnableParallel(a=model).invoke("hi", c),
    "async_parallel": lambda model, c: asyncio.run(RunnableParallel(a=model).ainvoke("hi", c)),
    "graph": lambda model, c: _graph(model).invoke({"messages": ["hi"]}, c),
    "sync_node_of_async_graph": lambda model, c: asyncio.run(_graph(model).ainvoke({"messages": ["hi"]}, c)),
    "async_node": lambda model, c: asyncio.run(_async_graph(model).ainvoke({"messages": ["hi"]}, c)),
    "graph_stream": lambda model, c: list(_graph(model).stream({"messages": ["hi"]}, c)),
    "subgraph": lambda model, c: _subgraph(model).invoke({"messages": ["hi"]}, c),
}


def _one_node(node: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    graph.add_edge("node", END)
    return graph.compile()


def _graph(model: Any) -> Any:
    return _one_node(lambda state: {"messages": [model.invoke(state["messages"])]})


def _async_graph(model: Any) -> Any:
    async def node(state: Any) -> Any:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return _one_node(node)


def _subgraph(model: Any) -> Any:
    return _one_node(_graph(model))


@pytest.mark.parametrize("way", WAYS)
def test_b117_a_spent_budget_refuses_before_the_provider_is_contacted(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 1}, OPEN)
    handler = BudgetCallbackHandler(engine)
    WAYS[way](models(stream_usage=True), config(handler))
    assert provider.count == 1
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "open").reserved == 0
    with pytest.raises(BudgetExceeded) as refused:
        WAYS[way](models(stream_usage=True), config(handler))
    assert provider.count == 1
    assert isinstance(refused.value, BudgetRefused)
    assert refused.value.code == "calls"
    assert budget(engine, "open").reserved == 0


def test_generate_with_three_prompts_is_three_calls(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines({**CALLS, "limit": 3}, OPEN)
    handler = BudgetCallbackHandler(engine)
    prompts = [[HumanMessage(text)] for text in "abc"]
    models().generate(prompts, callbacks=[handler], metadata=WHO)
    assert provider.count == 3
    assert budget(engine, "spend").spent == 3 * cost(100, 20)
    with pytest.raises(BudgetRefused):
        asyncio.run(models().agenerate(prompts, callbacks=[handler], metadata=WHO))
    assert provider.count == 3


def test_batch_can_return_its_refusals(engines: Engines, models: Models, provider: FakeProvider) -> None:
    handler = BudgetCallbackHandler(engines({**CALLS, "limit": 2}))
    answers = models().batch(["a", "b", "c"], config(handler), return_exceptions=True)
    assert sum(isinstance(answer, BudgetRefused) for answer in answers) == 1
    assert provider.count == 2


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch"])
def test_text_models_are_capped(way: str, engines: Engines, provider: FakeProvider, clients: dict[str, Any]) -> None:
    engine = engines({**CALLS, "limit": 1}, OPEN)
    handler = BudgetCallbackHandler(engine)
    model = OpenAI(
        base_url=provider.base_url,
        api_key="test",
        model="gpt-3.5-turbo-instruct",
        max_tokens=50,
        max_retries=0,
        **clients,
    )
    WAYS[way](model, config(handler))
    assert provider.count == 1
    assert budget(engine, "spend").spent > 0
    with pytest.raises(BudgetRefused):
        WAYS[way](model, config(handler))
    assert provider.count == 1
    assert budget(engine, "open").reserved == 0


@pytest.mark.parametrize("limit", [{**CALLS, "limit": 10}, {**UTTERANCES, "limit": 10}])
def test_fifty_tasks_at_a_limit_of_ten(limit: Any, engines: Engines, models: Models, provider: FakeProvider) -> None:
    provider.latency_s = 0.02
    engine = engines(limit, OPEN)
    handler, model = BudgetCallbackHandler(engine), models()

    async def race() -> list[Any]:
        calls = (model.ainvoke("hi", config(handler)) for _ in range(50))
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = asyncio.run(race())
    assert provider.count == 10
    assert sum(isinstance(answer, BudgetRefused) for answer in answers) == 40
    assert budget(engine, "spend").spent == 10 * cost(100, 20)
    assert budget(engine, "open").reserved == 0


def test_fifty_threads_at_a_limit_worth_ten(engines: Engines, models: Models, provider: FakeProvider) -> None:
    provider.latency_s = 0.02
    engine = engines({**CALLS, "limit": 10}, OPEN)
    handler, model = BudgetCallbackHandler(engine), models()

    def one(_: int) -> bool:
        try:
            model.invoke("hi", config(handler))
        except BudgetRefused:
            return False
        return True

    with ThreadPoolExecutor(50) as pool:
        let_in = sum(pool.map(one, range(50)))
    assert let_in == provider.count == 10
    assert budget(engine, "spend").spent == 10 * cost(100, 20)
    assert budget(engine, "open").reserved == 0


def test_money_worth_ten_lets_ten_through(engines: Engines, models: Models, provider: FakeProvider) -> None:
    tight = engines(
        {"name": "tight", "scope": "user", "limit": "$0.01", "window": "day"},
        prices={"flat": {"input": "$0", "output": "$20"}},
    )
    provider.output_tokens = 50
    model, handler = models(model="flat"), BudgetCallbackHandler(tight)

    async def race() -> list[Any]:
        return await asyncio.gather(*(model.ainvoke("hi", config(handler)) for _ in range(50)), return_exceptions=True)

    asyncio.run(race())
    assert provider.count == 10
    assert budget(tight, "tight").available == 0
