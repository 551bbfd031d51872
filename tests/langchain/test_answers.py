"""The answer's ceiling: before any model, at each call, and at the end, where the exception carries the output."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from runs_under_test import ANSWER, OPEN, WHO, Engines, Models, budget, config, cost

from llm_budget_hooks import BudgetExceeded
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply

PLANNED = {"steps": {"router": "$0.006", "answer": "$0.006"}}


def graph_of(model: Any, calls: int = 1) -> Any:
    """A graph whose one node calls the model so many times."""

    def node(state: Any) -> Any:
        return {"messages": [model.invoke(state["messages"]) for _ in range(calls)][-1:]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    return graph.compile()


@pytest.mark.parametrize("way", ["model", "chain", "graph", "agent", "agraph"])
def test_a_plan_above_the_ceiling_is_refused_before_any_model(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.01"}, **PLANNED)
    model, run = models(), config(BudgetCallbackHandler(engine), plan=["router", "answer"])
    ways = {
        "model": lambda: model.invoke("hi", run),
        "chain": lambda: (RunnableLambda(lambda x: x) | model).invoke("hi", run),
        "graph": lambda: graph_of(model).invoke({"messages": ["hi"]}, run),
        "agent": lambda: create_agent(model, []).invoke({"messages": ["hi"]}, run),
        "agraph": lambda: asyncio.run(graph_of(model).ainvoke({"messages": ["hi"]}, run)),
    }
    with pytest.raises(BudgetRefused) as refused:
        ways[way]()
    assert (refused.value.code, refused.value.stage) == ("answer_estimate", "start")
    assert "0.012" in str(refused.value)
    assert provider.count == 0
    assert budget(engine, "spend").spent == 0


def test_a_plan_within_the_ceiling_runs(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines({**ANSWER, "limit": "$0.02"}, **PLANNED)
    graph_of(models()).invoke({"messages": ["hi"]}, config(BudgetCallbackHandler(engine), plan=("router", "answer")))
    assert provider.count == 1


def test_a_plan_is_checked_inside_an_explicit_scope_too(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.01"}, **PLANNED)
    with engine.utterance(**WHO), pytest.raises(BudgetRefused):
        models().invoke("hi", config(BudgetCallbackHandler(engine), plan=["router", "answer"]))
    assert provider.count == 0


@pytest.mark.parametrize("plan", [None, ["node"] * 3])
@pytest.mark.parametrize("awaited", [False, True])
def test_what_answers_have_cost_is_held_against_the_ceiling_before_any_model(
    awaited: bool, plan: list[str] | None, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.0002"})
    graph, run = graph_of(models(), calls=3), config(BudgetCallbackHandler(engine), plan=plan)
    for _ in range(5):
        graph.invoke({"messages": ["hi"]}, config(BudgetCallbackHandler(engine)))
    engine.override("answer", "$0.00007", tenant="acme", by="tests", reason="a test")
    with pytest.raises(BudgetRefused) as refused:
        asyncio.run(graph.ainvoke({"messages": ["hi"]}, run)) if awaited else graph.invoke({"messages": ["hi"]}, run)
    assert refused.value.code == "answer_estimate"
    assert provider.count == 15
    engine.override("answer", "$0.0002", tenant="acme", by="tests", reason="a test")
    graph.invoke({"messages": ["hi"]}, run)
    assert provider.count == 18


def test_the_running_check_stops_an_answer_in_the_middle(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.0001"}, OPEN)
    with pytest.raises(BudgetRefused) as refused:
        graph_of(models(), calls=10).invoke({"messages": ["hi"]}, config(BudgetCallbackHandler(engine)))
    assert (refused.value.code, refused.value.stage) == ("answer_estimate", "call")
    assert provider.count == 3
    assert budget(engine, "spend").spent == 3 * cost(100, 20) <= refused.value.limit
    assert not budget(engine, "open").reserved


def test_after_the_ceiling_nothing_gets_through_in_the_same_answer(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.0001"})
    chain = models(model="gpt-4o").with_fallbacks([models(model="gpt-4.1-nano"), models(model="gpt-4.1")])
    chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert [request.model for request in provider.requests] == ["gpt-4.1-nano"]


@pytest.mark.parametrize("way", ["model", "amodel", "graph", "agraph", "batch"])
def test_the_actual_above_the_ceiling_is_raised_with_the_output(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.output_tokens = 5000
    engine = engines({**ANSWER, "limit": "$0.001"}, step_budget="$0.0001")
    model, run = models(max_tokens=None), config(BudgetCallbackHandler(engine))
    ways = {
        "model": lambda: model.invoke("hi", run),
        "amodel": lambda: asyncio.run(model.ainvoke("hi", run)),
        "graph": lambda: graph_of(model).invoke({"messages": ["hi"]}, run),
        "agraph": lambda: asyncio.run(graph_of(model).ainvoke({"messages": ["hi"]}, run)),
        "batch": lambda: model.batch(["hi", "ho"], run),
    }
    with pytest.raises(BudgetRefused) as refused:
        ways[way]()
    error = refused.value
    assert (error.code, error.stage) == ("answer_actual", "end")
    message = error.output["messages"][-1] if isinstance(error.output, dict) else error.output
    assert message.content.startswith("ok")
    assert error.spent == cost(100, 5000)


@pytest.mark.parametrize("way", ["model", "amodel", "graph", "agraph"])
def test_a_streamed_answer_above_the_ceiling_is_not_taken_back(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.output_tokens = 5000
    engine = engines({**ANSWER, "limit": "$0.001"}, step_budget="$0.0001")
    model, run = models(max_tokens=None, stream_usage=True), config(BudgetCallbackHandler(engine))

    async def collect(stream: Any) -> list[Any]:
        return [chunk async for chunk in stream]

    ways = {
        "model": lambda: list(model.stream("hi", run)),
        "amodel": lambda: asyncio.run(collect(model.astream("hi", run))),
        "graph": lambda: list(graph_of(model).stream({"messages": ["hi"]}, run)),
        "agraph": lambda: asyncio.run(collect(graph_of(model).astream({"messages": ["hi"]}, run))),
    }
    assert ways[way]()
    assert budget(engine, "spend").spent == cost(100, 5000)


def test_an_exception_on_its_way_is_not_replaced(engines: Engines, models: Models, provider: FakeProvider) -> None:
    provider.output_tokens = 5000
    engine, model = engines({**ANSWER, "limit": "$0.001"}, step_budget="$0.0001"), models(max_tokens=None)

    def fail(text: str) -> None:
        model.invoke(text)
        raise LookupError("the application's")

    with pytest.raises(LookupError):
        RunnableLambda(fail).invoke("hi", config(BudgetCallbackHandler(engine)))


def test_several_prompts_do_not_lose_each_others_ends(engines: Engines, models: Models, provider: FakeProvider) -> None:
    provider.output_tokens = 5000
    engine = engines({**ANSWER, "limit": "$0.001"}, OPEN, step_budget="$0.0001")
    run = {"callbacks": [BudgetCallbackHandler(engine)], "metadata": WHO}
    models(max_tokens=None).generate([[HumanMessage("hi")]] * 3, **run)
    assert provider.count == 3
    assert budget(engine, "spend").spent == 3 * cost(100, 5000)
    assert not budget(engine, "open").reserved


def test_an_answer_without_a_model_is_never_refused_for_cost(engines: Engines) -> None:
    engine = engines({**ANSWER, "limit": "$0.001"})
    run = config(BudgetCallbackHandler(engine))
    assert RunnableLambda(lambda x: x).invoke("hi", run) == "hi"


def test_b105_a_ceiling_on_the_attempts_of_one_answer_ends_retries(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.reply = Reply(status=500)
    engine = engines({"name": "attempts", "scope": "answer", "meter": "calls", "limit": 4})
    chain = (
        models()
        .with_retry(stop_after_attempt=3, wait_exponential_jitter=False)
        .with_fallbacks([models(model="gpt-4o").with_retry(stop_after_attempt=3, wait_exponential_jitter=False)])
    )
    with pytest.raises(Exception, match="500"):
        chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert provider.count == 4
    assert budget(engine, "spend").spent == 0


@pytest.mark.parametrize("way", ["model", "amodel", "stream", "astream"])
def test_an_explicit_scope_says_whether_its_answer_was_served(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.001"}, step_budget="$0.0001")
    model, run = models(max_tokens=None, stream_usage=True), {"callbacks": [BudgetCallbackHandler(engine)]}

    async def collect() -> list[Any]:
        return [chunk async for chunk in model.astream("hi", run)]

    ways = {
        "model": lambda: model.invoke("hi", run),
        "amodel": lambda: asyncio.run(model.ainvoke("hi", run)),
        "stream": lambda: list(model.stream("hi", run)),
        "astream": lambda: asyncio.run(collect()),
    }
    with engine.utterance(**WHO) as fine:
        ways[way]()
    assert fine.served
    provider.output_tokens = 5000
    with pytest.raises(BudgetExceeded) as refused, engine.utterance(**WHO) as dear:
        dear.output = ways[way]()
    assert not dear.served
    assert dear.spent == cost(100, 5000)
    assert refused.value.code == "answer_actual"
    assert refused.value.output is dear.output is not None


def test_a_resumed_graph_goes_on_under_the_ceiling_of_the_same_answer(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines({**ANSWER, "limit": "$0.0001"}), models()

    def node(state: Any) -> Any:
        answer = model.invoke(state["messages"])
        interrupt("sure?")
        return {"messages": [answer]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=InMemorySaver())

    def ask(inputs: Any, thread: str, **named: str) -> None:
        run = config(BudgetCallbackHandler(engine), **named) | {"configurable": {"thread_id": thread}}
        compiled.invoke(inputs, run)

    def three(**named: str) -> None:
        """A question, its resumption and a second question, worth three calls."""
        ask({"messages": ["hi"]}, f"a{named}", **named)
        ask(Command(resume="no"), f"a{named}", **named)
        ask({"messages": ["hi"]}, f"b{named}", **named)

    three(utterance="q-1")
    with pytest.raises(BudgetRefused) as refused:
        ask({"messages": ["hi"]}, "c", utterance="q-1")
    assert refused.value.code == "answer_estimate"
    assert provider.count == 3
    three()
    ask({"messages": ["hi"]}, "d")
    assert provider.count == 7
