"""The root run is the utterance: counted once, its calls all billed, and whose it is cannot be changed inside."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
import requests
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, interrupt
from langsmith import Client, traceable, tracing_context
from runs_under_test import CALLS, OPEN, UTTERANCES, WHO, Engines, Models, budget, config, cost, reserved_calls

from llm_budget_hooks import ConfigurationError
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply, ToolCall


class NoSession(requests.Session):
    """Sends nothing; LangSmith takes it for a server that accepts all."""

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer._content = 200, b"{}"
        return answer


def three_tools_once(request: dict[str, Any]) -> Reply | None:
    """Asks for three tools when there are some and none has answered yet."""
    if "tools" not in request or any(message["role"] == "tool" for message in request["messages"]):
        return None
    return Reply(tool_calls=tuple(ToolCall("look_up", {"what": what}) for what in ("a", "b", "c")))


def fanned_out(model: Any) -> Any:
    """A router, a classifier, and an agent with a tool that calls a model itself."""

    @tool
    def look_up(what: str) -> str:
        """Look something up."""
        return str(model.invoke(what).content)

    def node(state: Any) -> Any:
        model.invoke(state["messages"])
        return {}

    graph = StateGraph(MessagesState)
    graph.add_node("router", node)
    graph.add_node("classifier", node)
    graph.add_node("agent", create_agent(model, [look_up]))
    graph.add_edge(START, "router")
    graph.add_edge("router", "classifier")
    graph.add_edge("classifier", "agent")
    graph.add_edge("agent", END)
    return graph.compile()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream"])
def test_an_agents_fan_out_is_one_utterance_and_every_call_is_billed(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.reply = three_tools_once
    engine = engines({**UTTERANCES, "limit": 2}, {**CALLS, "limit": 100}, OPEN)
    graph, handler = fanned_out(models()), BudgetCallbackHandler(engine)
    inputs = {"messages": ["hi"]}

    def ask() -> None:
        if way == "invoke":
            graph.invoke(inputs, config(handler))
        elif way == "ainvoke":
            asyncio.run(graph.ainvoke(inputs, config(handler)))
        else:
            list(graph.stream(inputs, config(handler)))

    ask()
    assert provider.count == 7
    assert budget(engine, "utterances").spent == 1
    assert budget(engine, "calls").spent == 7
    assert budget(engine, "spend").spent == 7 * cost(100, 20)
    assert budget(engine, "open").reserved == 0
    ask()
    with pytest.raises(BudgetRefused) as refused:
        ask()
    assert refused.value.code == "utterances"
    assert provider.count == 14


def test_b138_one_utterance_of_25_calls_and_the_eleventh_utterance(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**UTTERANCES, "limit": 10})
    model, handler = models(), BudgetCallbackHandler(engine)
    agent = RunnableParallel({f"a{n}": model for n in range(5)})
    agents = RunnableParallel({f"b{n}": agent for n in range(5)})
    agents.invoke("hi", config(handler))
    assert provider.count == 25
    assert budget(engine, "utterances").spent == 1
    for _ in range(9):
        model.invoke("hi", config(handler))
    with pytest.raises(BudgetRefused):
        model.invoke("hi", config(handler))
    assert provider.count == 34


def test_send_fans_out_within_one_utterance(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine, model = engines({**UTTERANCES, "limit": 1}), models()
    graph = StateGraph(MessagesState)
    graph.add_node("worker", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_conditional_edges(START, lambda state: [Send("worker", state) for _ in range(4)])
    graph.compile().invoke({"messages": ["hi"]}, config(BudgetCallbackHandler(engine)))
    assert provider.count == 4
    assert budget(engine, "utterances").spent == 1


def test_a_sub_agent_in_a_tool_belongs_to_the_outer_utterance(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.reply = three_tools_once
    engine, model = engines({**UTTERANCES, "limit": 1}), models()
    inner = create_agent(model, [])

    @tool
    def look_up(what: str) -> str:
        """Ask the other agent."""
        return str(inner.invoke({"messages": [what]})["messages"][-1].content)

    create_agent(model, [look_up]).invoke({"messages": ["hi"]}, config(BudgetCallbackHandler(engine)))
    assert provider.count == 5
    assert budget(engine, "utterances").spent == 1


def test_a_resumed_graph_with_the_same_id_is_the_same_utterance(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines({**UTTERANCES, "limit": 1}), models()

    def node(state: Any) -> Any:
        answer = model.invoke(state["messages"])
        interrupt("sure?")
        return {"messages": [answer]}

    graph = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile(checkpointer=InMemorySaver())
    run = config(BudgetCallbackHandler(engine), utterance="q-1") | {"configurable": {"thread_id": "t"}}
    compiled.invoke({"messages": ["hi"]}, run)
    compiled.invoke(Command(resume="yes"), run)
    assert provider.count == 2
    assert budget(engine, "utterances").spent == 1


def test_inner_metadata_cannot_change_whose_it_is(engines: Engines, models: Models) -> None:
    engine = engines()
    victim = {"metadata": {"tenant": "victim", "user": "victim", "feature": "other", "utterance": "else"}}
    model = models(metadata=victim["metadata"])
    chain = RunnableLambda(lambda x: model.invoke(x, victim))
    chain.invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "spend", "victim", "victim").spent == 0


def test_an_inner_scope_cannot_change_whose_it_is(engines: Engines, models: Models) -> None:
    engine, model = engines(), models()

    def inner(text: str) -> Any:
        with engine.utterance(tenant="victim", user="victim"):
            return model.invoke(text)

    RunnableLambda(inner).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "spend", "victim", "victim").spent == 0


@pytest.mark.parametrize("surrounded", [False, True])
def test_what_a_request_begins_for_somebody_else_is_theirs_in_a_scope_with_an_id(
    surrounded: bool, engines: Engines, models: Models
) -> None:
    engine, model = engines({**UTTERANCES, "limit": 1}), models()
    handler = BudgetCallbackHandler(engine)
    other = config(handler, tenant="other", user="u2")
    left: list[asyncio.Task[Any]] = []

    async def job() -> None:
        with engine.utterance(tenant="other", user="u2", id="job"):
            await model.ainvoke("hi", other)
            await (RunnableLambda(lambda x: x) | model).ainvoke("hi")

    async def request(text: str) -> Any:
        left.append(asyncio.create_task(job()))
        return await model.ainvoke(text)

    async def main() -> None:
        with engine.utterance(**WHO) if surrounded else nullcontext():
            await RunnableLambda(request).ainvoke("hi", config(handler))
        await left[0]

    asyncio.run(main())
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "spend", "other", "u2").spent == 2 * cost(100, 20)
    assert budget(engine, "utterances").spent == budget(engine, "utterances", "other", "u2").spent == 1


def test_metadata_does_not_take_a_task_out_of_the_request_that_began_it(
    engines: Engines, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    engine, model = engines(), models()
    other = config(BudgetCallbackHandler(engine), tenant="other", user="u2")

    async def request(_: str) -> Any:
        return [await asyncio.create_task(model.ainvoke("hi", other)) for _ in range(2)]

    asyncio.run(RunnableLambda(request).ainvoke("hi", config(BudgetCallbackHandler(engine))))
    assert budget(engine, "spend").spent == 2 * cost(100, 20)
    assert budget(engine, "spend", "other", "u2").spent == 0
    assert caplog.text.count("whose it is") == 1


def test_an_explicit_scope_goes_before_metadata_and_joins_roots(engines: Engines, models: Models) -> None:
    engine, model = engines({**UTTERANCES, "limit": 1}), models()
    handler = BudgetCallbackHandler(engine)
    with engine.utterance(tenant="acme", user="u1") as scope:
        model.invoke("hi", config(handler, tenant="victim", user="victim"))
        model.invoke("hi", config(handler))
    assert scope.calls == 2
    assert scope.spent == budget(engine, "spend").spent == 2 * cost(100, 20)
    assert budget(engine, "utterances").spent == 1


def test_a_scope_without_a_user_takes_the_metadatas(engines: Engines, models: Models) -> None:
    engine = engines()
    with engine.utterance(feature="chat"):
        models().invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == cost(100, 20)


def test_b122_identity_reaches_batches_executors_and_tasks(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines(), models()
    handler = BudgetCallbackHandler(engine)
    with engine.utterance(tenant="acme", user="u1"):
        model.batch(["hi"] * 50, {"callbacks": [handler], "max_concurrency": 8})
        asyncio.run(model.ainvoke("hi", {"callbacks": [handler]}))
    assert budget(engine, "spend").spent == 51 * cost(100, 20)

    async def elsewhere(_: str) -> Any:
        return await asyncio.to_thread(model.invoke, "hi")

    asyncio.run(RunnableLambda(elsewhere).ainvoke("hi", config(handler)))
    assert budget(engine, "spend").spent == provider.count * cost(100, 20) == 52 * cost(100, 20)


def test_work_that_outlives_its_root_still_belongs_to_it(engines: Engines, models: Models) -> None:
    engine, model = engines({**UTTERANCES, "limit": 1}), models()
    with ThreadPoolExecutor(1) as pool:
        later: list[Any] = []

        def begin(_: str, config: Any) -> str:
            later.append(lambda: model.invoke("hi", config))
            return "done"

        RunnableLambda(begin).invoke("hi", config(BudgetCallbackHandler(engine)))
        pool.submit(later[0]).result()
    assert budget(engine, "spend").spent == cost(100, 20)


def test_a_handler_on_the_model_alone_still_finds_a_common_utterance(engines: Engines, models: Models) -> None:
    engine = engines({**UTTERANCES, "limit": 1})
    model = models(callbacks=[BudgetCallbackHandler(engine)])
    RunnableParallel(a=model, b=model).invoke("hi", {"metadata": {"tenant": "acme", "user": "u1"}})
    assert budget(engine, "spend").spent == 2 * cost(100, 20)
    assert budget(engine, "utterances").spent == 1


def test_steps_are_named_in_the_documented_order(
    engines: Engines, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, model = engines(), models()
    calls = reserved_calls(engine, monkeypatch)
    handler = BudgetCallbackHandler(engine)
    model.invoke("hi", config(handler))
    model.with_config(run_name="classifier").invoke("hi", config(handler))
    graph = StateGraph(MessagesState)
    graph.add_node("router", lambda state: {"messages": [model.with_config(run_name="x").invoke(state["messages"])]})
    graph.add_edge(START, "router")
    graph.compile().invoke({"messages": ["hi"]}, config(handler))
    create_agent(model, [], name="helper").invoke({"messages": ["hi"]}, config(handler))
    model.invoke("hi", config(handler, step="named"))
    assert [call.step for call in calls] == ["gpt-4o-mini", "classifier", "router", "helper", "named"]


@pytest.mark.parametrize("wrong", [{"tenant": 5}, {"user": b"u"}, {"plan": "router"}, {"plan": [1]}])
def test_metadata_that_cannot_be_is_named(
    wrong: dict[str, Any], engines: Engines, models: Models, provider: FakeProvider
) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        models().invoke("hi", config(BudgetCallbackHandler(engines()), **wrong))
    assert provider.count == 0


def test_a_run_below_a_langsmith_trace_finds_its_root(engines: Engines, models: Models, provider: FakeProvider) -> None:
    """With tracing on, `traceable` puts runs between a root and its models that no handler sees begin."""
    engine, model = engines({**UTTERANCES, "limit": 1}), models()
    client = Client(api_url=provider.base_url, api_key="test", auto_batch_tracing=False, session=NoSession())

    @traceable(client=client)
    def middle(text: str) -> Any:
        return model.invoke(text)

    with tracing_context(enabled=True, client=client):
        RunnableLambda(lambda text: [middle(text), middle(text)]).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert provider.count_for("/v1/chat/completions") == 2
    assert budget(engine, "spend").spent == 2 * cost(100, 20)
    assert budget(engine, "utterances").spent == 1
