"""What code inside a run could do to get a call past its budget, on purpose or not."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.callbacks import CallbackManager
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import OpenAI
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from runs_under_test import CALLS, OPEN, PRICE_IN, PRICE_OUT, UTTERANCES, WHO, Engines, Models, budget, config, cost

from llm_budget_hooks import BudgetExceeded
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply, ToolCall

BARE: Any = {"callbacks": []}


PRICES = {"gpt-3.5-turbo-instruct": {"input": PRICE_IN * 10**6, "output": PRICE_OUT * 10**6}}


def _text_model(provider: FakeProvider, clients: dict[str, Any]) -> OpenAI:
    options: dict[str, Any] = {"max_tokens": 50, "max_retries": 0, **clients}
    return OpenAI(base_url=provider.base_url, api_key="test", model="gpt-3.5-turbo-instruct", **options)


def _in_an_agents_tool(model: Any) -> Any:
    @tool
    def ask(what: str) -> str:
        """Ask a model."""
        return str(model.invoke(what, BARE).content)

    agent = create_agent(model, [ask])
    return lambda text: agent.invoke({"messages": [text]}, BARE)


def _in_a_node(model: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("node", lambda state: {"messages": [model.invoke(state["messages"], BARE)]})
    graph.add_edge(START, "node")
    compiled = graph.compile()
    return lambda text: compiled.invoke({"messages": [text]})


SHAKEN: dict[str, Any] = {
    "model": lambda model: lambda text: model.invoke(text, BARE),
    "manager": lambda model: lambda text: model.invoke(text, {"callbacks": CallbackManager([])}),
    "stream": lambda model: lambda text: [*model.stream(text, BARE)],
    "batch": lambda model: lambda text: model.batch([text], BARE),
    "chain": lambda model: lambda text: RunnableLambda(lambda x: model.invoke(x)).invoke(text, BARE),
    "bound": lambda model: model.with_config(callbacks=[]).invoke,
    "node": _in_a_node,
    "tool": _in_an_agents_tool,
}


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("way", SHAKEN)
def test_callbacks_given_inside_a_run_do_not_shake_its_handler_off(
    way: str, awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 2}, {**UTTERANCES, "limit": 10}, OPEN)
    ask = SHAKEN[way](models())
    chain, run = RunnableLambda(lambda text: [ask(text) for _ in range(4)]), config(BudgetCallbackHandler(engine))
    if way == "tool":
        provider.next_replies(*[Reply(tool_calls=(ToolCall("ask", {"what": "x"}),))] * 4)
    with pytest.raises(BudgetRefused):
        asyncio.run(chain.ainvoke("hi", run)) if awaited else chain.invoke("hi", run)
    assert provider.count == budget(engine, "calls").spent == 2
    assert budget(engine, "utterances").spent == 1
    assert not budget(engine, "open").reserved


def test_awaited_calls_do_not_shake_it_off_either(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine, model = engines({**CALLS, "limit": 2}), models()

    async def work(text: str) -> Any:
        return [await model.ainvoke(text, BARE) for _ in range(4)]

    with pytest.raises(BudgetRefused):
        asyncio.run(RunnableLambda(work).ainvoke("hi", config(BudgetCallbackHandler(engine))))
    assert provider.count == 2


def test_code_beside_a_stream_is_not_the_streams(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine, model = engines({**CALLS, "limit": 10}), models()
    for _ in (RunnableLambda(lambda x: x) | model).stream("hi", config(BudgetCallbackHandler(engine))):
        model.invoke("beside")
        break
    assert provider.count == 2
    assert budget(engine, "calls").spent == 1


@pytest.mark.parametrize("handlers", [1, 2])
def test_a_run_id_that_is_used_again_is_a_call_of_its_own(
    handlers: int, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model, id = engines({**CALLS, "limit": 3}, OPEN), models(), uuid4()
    run = {
        **config(BudgetCallbackHandler(engine)),
        "callbacks": [BudgetCallbackHandler(engine) for _ in range(handlers)],
    }
    chain = RunnableLambda(lambda text: [model.invoke(text, {"run_id": id}) for _ in range(5)])
    with pytest.raises(BudgetRefused):
        chain.invoke("hi", run)
    assert provider.count == budget(engine, "calls").spent == 3
    assert budget(engine, "spend").spent == 3 * cost(100, 20)
    assert not budget(engine, "open").reserved


def test_a_roots_run_id_that_is_used_again_is_an_utterance_of_its_own(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model, id = engines({**UTTERANCES, "limit": 2}), models(), uuid4()
    for chain in (model, RunnableLambda(lambda x: x) | model):
        chain.invoke("hi", {**config(BudgetCallbackHandler(engine)), "run_id": id})
    assert budget(engine, "utterances").spent == 2
    with pytest.raises(BudgetRefused):
        model.invoke("hi", {**config(BudgetCallbackHandler(engine)), "run_id": id})
    assert provider.count == 2


@pytest.mark.parametrize("handlers", [1, 2])
@pytest.mark.parametrize("kind", ["chat", "text"])
def test_a_run_id_in_use_twice_at_once_is_two_calls(
    kind: str, handlers: int, engines: Engines, models: Models, provider: FakeProvider, clients: dict[str, Any]
) -> None:
    provider.latency_s = 0.2
    provider.next_replies(*[Reply(output_tokens=output) for output in (10, 20, 30)])
    engine, id = engines({**CALLS, "limit": 3}, OPEN, prices=PRICES), uuid4()
    model = models() if kind == "chat" else _text_model(provider, clients)
    run = {**config(BudgetCallbackHandler(engine)), "run_id": id}
    run["callbacks"] += [BudgetCallbackHandler(engine) for _ in range(handlers - 1)]
    with ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(model.invoke, "hi", {**run}) for _ in range(5)]
    assert sum(isinstance(each.exception(), BudgetRefused) for each in asked) == 2
    assert provider.count == budget(engine, "calls").spent == 3
    assert budget(engine, "spend").spent == cost(300, 60)
    assert not budget(engine, "open").reserved


def test_ends_of_a_run_id_in_use_twice_may_come_in_any_order(engines: Engines) -> None:
    engine, id = engines({**CALLS, "limit": 3}, OPEN), uuid4()
    handlers = [BudgetCallbackHandler(engine) for _ in range(2)]
    answers = [
        LLMResult(generations=[[ChatGeneration(message=AIMessage("x", usage_metadata=counts))]])
        for output in (10, 20, 30)
        if (counts := UsageMetadata(input_tokens=100, output_tokens=output, total_tokens=100 + output))
    ]
    for _ in answers:
        messages: list[list[Any]] = [["hi"]]
        for handler in handlers:
            handler.on_chat_model_start({}, messages, run_id=id, metadata={**WHO, "ls_model_name": "gpt-4o-mini"})
    for answer, handler in [(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (2, 0)]:
        handlers[handler].on_llm_end(answers[answer], run_id=id)
    assert budget(engine, "spend").spent == cost(300, 60)
    assert not budget(engine, "open").reserved


class Verdict(BaseModel):
    """What an agent is asked for, and never gives."""

    right: bool


def _workflow(model: Any) -> Any:
    @task
    def ask(text: str) -> Any:
        return model.invoke(text).content

    @entrypoint()
    def workflow(text: str) -> Any:
        return [asked.result() for asked in [ask(text) for _ in range(6)]]

    return workflow


def _awaited_workflow(model: Any) -> Any:
    @task
    async def ask(text: str) -> Any:
        return (await model.ainvoke(text)).content

    @entrypoint()
    async def workflow(text: str) -> Any:
        return await asyncio.gather(*[ask(text) for _ in range(6)])

    return workflow


def _asking(model: Any) -> Any:
    return RunnableLambda(lambda text: [model.invoke(text) for _ in range(6)])


def _never_right(model: Any) -> Any:
    return RunnableLambda(lambda text: {"messages": [text]}) | create_agent(
        model, [], response_format=ToolStrategy(Verdict)
    )


STUBBORN: dict[str, Any] = {
    "workflow": lambda models: _workflow(models()),
    "awaited_workflow": lambda models: _awaited_workflow(models()),
    "structured_output": lambda models: _never_right(models()),
    "retry_on_refusal": lambda models: _asking(models().with_retry(retry_if_exception_type=(BudgetExceeded,))),
    "fallback_on_all": lambda models: _asking(
        models().with_fallbacks([models(model="gpt-4o")], exceptions_to_handle=(BaseException,))
    ),
    "each": lambda models: RunnableLambda(lambda text: [text] * 6) | models().map(),
}


@pytest.mark.parametrize("way", STUBBORN)
def test_what_goes_on_asking_is_stopped(way: str, engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines({**CALLS, "limit": 3}, {**UTTERANCES, "limit": 10}, OPEN)
    runnable, run = STUBBORN[way](models), config(BudgetCallbackHandler(engine))
    if way == "structured_output":
        provider.next_replies(*[Reply(tool_calls=(ToolCall("Verdict", {"wrong": "x"}),))] * 3)
    with pytest.raises(BudgetRefused):
        asyncio.run(runnable.ainvoke("hi", run)) if way == "awaited_workflow" else runnable.invoke("hi", run)
    assert provider.count == budget(engine, "calls").spent == 3
    assert budget(engine, "utterances").spent == 1
    assert not budget(engine, "open").reserved


def test_a_task_that_outlives_its_root_is_still_capped(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model, left = engines({**CALLS, "limit": 3}, OPEN), models(), []

    async def later(over: asyncio.Event) -> None:
        await over.wait()
        for _ in range(6):
            await model.ainvoke("later", BARE)

    async def main() -> None:
        over = asyncio.Event()

        async def work(text: str) -> Any:
            left.append(asyncio.create_task(later(over)))
            return await model.ainvoke(text)

        await RunnableLambda(work).ainvoke("hi", config(BudgetCallbackHandler(engine)))
        over.set()
        with pytest.raises(BudgetRefused):
            await left[0]

    asyncio.run(main())
    assert provider.count == budget(engine, "calls").spent == 3
    assert not budget(engine, "open").reserved
