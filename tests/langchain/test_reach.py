"""The check for the start of a program names the models that no handler is bound to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware, SummarizationMiddleware
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from runs_under_test import CALLS, Engines, Models, budget, config

from llm_budget_hooks.langchain import (
    BudgetCallbackHandler,
    BudgetedEmbeddings,
    BudgetRefused,
    install,
    uninstall,
    unseen_models,
)
from llm_budget_hooks.testing import FakeProvider

INPUT: Any = {"messages": ["hi"]}
MINI, LARGE = "ChatOpenAI gpt-4o-mini", "ChatOpenAI gpt-4o"


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    uninstall()


class Worker:
    """A node that is a method."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def work(self, state: Any) -> Any:
        """Ask the model."""
        return {"messages": [self.model.invoke(state["messages"])]}


def graph_of(**nodes: Any) -> Any:
    """A graph of nodes that all begin at once."""
    graph = StateGraph(MessagesState)
    for name, node in nodes.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
    return graph.compile()


def asking(model: Any) -> Any:
    """A node that is a closure."""
    return lambda state: {"messages": [model.invoke(state["messages"])]}


def _tool(model: Any) -> Any:
    @tool
    def ask(what: str) -> str:
        """Ask a model."""
        return str(model.invoke(what).content)

    return ask


SHAPES: dict[str, Any] = {
    "model": lambda m: m,
    "sequence": lambda m: RunnableLambda(lambda x: x) | m,
    "parallel": lambda m: RunnableParallel(a=RunnableLambda(lambda x: x), b=m),
    "bound": lambda m: m.bind(stop=["x"]),
    "retry": lambda m: m.with_retry(),
    "fallbacks": lambda m: RunnableLambda(lambda x: x).with_fallbacks([m]),
    "lambda": lambda m: RunnableLambda(lambda x: m.invoke(x)),
    "partial": lambda m: RunnableLambda(partial(lambda model, x: model.invoke(x), m)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_b125_a_model_is_found_wherever_it_is(shape: str, engines: Engines, models: Models) -> None:
    engine, app = engines(), SHAPES[shape](models())
    assert unseen_models(app, engine) == (MINI,)
    run = config(BudgetCallbackHandler(engine))
    assert unseen_models(app.with_config(callbacks=run["callbacks"]), engine) == ()
    assert unseen_models(app, engine, run) == ()
    assert unseen_models(app, engine, config(BudgetCallbackHandler(engines()))) == (MINI,)


def test_b125_a_graph_names_the_node(engines: Engines, models: Models) -> None:
    engine = engines()
    inner = graph_of(deep=asking(models(model="gpt-4o")))
    graph = graph_of(router=asking(models()), method=Worker(models()).work, sub=inner, none=lambda state: {})
    assert set(unseen_models(graph, engine)) == {f"{MINI} in router", f"{MINI} in method", f"{LARGE} in deep"}
    bound = graph.with_config(callbacks=[BudgetCallbackHandler(engine)])
    assert unseen_models(bound, engine) == ()


def test_b125_agents_tools_and_middleware_are_searched(engines: Engines, models: Models) -> None:
    engine = engines()
    fallback = ModelFallbackMiddleware(models(model="gpt-4.1"))
    summary = SummarizationMiddleware(models(model="gpt-4.1-nano"), trigger=("messages", 2))
    agent = create_agent(models(), [_tool(models(model="gpt-4o"))], middleware=[fallback, summary])
    found = " ".join(unseen_models(agent, engine))
    for name in ("gpt-4o-mini", "gpt-4o in tools", "gpt-4.1 ", "gpt-4.1-nano"):
        assert name in found


def test_b125_a_handler_given_to_one_model_alone_covers_that_one(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 9})
    seen = models(callbacks=[BudgetCallbackHandler(engine)])
    app = RunnableParallel(a=seen, b=models(model="gpt-4o"))
    assert unseen_models(app, engine) == (LARGE,)
    app.invoke("hi", {"metadata": {"tenant": "acme", "user": "u1"}})
    assert provider.count == 2
    assert budget(engine, "calls").spent == 1


def test_b125_install_covers_all_but_embeddings(engines: Engines, models: Models) -> None:
    engine = engines()
    bare: Embeddings = DeterministicFakeEmbedding(size=3)
    app = RunnableLambda(lambda x: bare.embed_query(x)) | models()
    install(engine)
    assert unseen_models(app, engine) == ("DeterministicFakeEmbedding",)
    wrapped = BudgetedEmbeddings(bare, engine, model="text-embedding-3-small")
    assert unseen_models(RunnableLambda(lambda x: wrapped.embed_query(x)) | models(), engine) == ()


def test_b125_what_refers_to_itself_comes_to_an_end(engines: Engines, models: Models) -> None:
    model, loop = models(), []  # type: ignore[var-annotated]  # of itself
    loop.append(loop)

    def around(text: str) -> Any:
        return model.invoke(text) if loop else around(text)

    assert unseen_models(RunnableLambda(around), engines()) == (MINI,)


def test_b125_a_handler_in_a_compiled_graphs_configuration_refuses_on_blocking_and_awaited_paths(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    """A node that blocks inside an awaited graph is where handlers that are awaited fail open."""
    engine = engines({**CALLS, "limit": 1})
    graph = graph_of(node=asking(models())).with_config(callbacks=[BudgetCallbackHandler(engine)])
    run: Any = {"metadata": {"tenant": "acme", "user": "u1"}}
    asyncio.run(graph.ainvoke(INPUT, run))
    for awaited in (False, True):
        with pytest.raises(BudgetRefused):
            asyncio.run(graph.ainvoke(INPUT, run)) if awaited else graph.invoke(INPUT, run)
    assert provider.count == 1
