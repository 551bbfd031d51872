"""The kill switch under LangChain: no call of a tenant that is stopped, and none that its root gets through later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda, RunnableParallel
from langchain_openai import OpenAIEmbeddings
from runs_under_test import OPEN, WHO, Engines, Models, budget, config, reserved_calls

from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetedEmbeddings, BudgetMiddleware, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply, ToolCall

RUNNABLES = {
    "model": lambda models: models(),
    "with_retry": lambda models: models().with_retry(),
    "with_fallbacks": lambda models: models().with_fallbacks([models(model="gpt-4o"), models(model="gpt-4.1-nano")]),
    "retry_in_fallbacks": lambda models: models().with_retry().with_fallbacks([models(model="gpt-4o").with_retry()]),
    "parallel": lambda models: RunnableParallel(a=models(), b=models().with_fallbacks([models(model="gpt-4o")])),
    "agent": lambda models: create_agent(models(), []),
}


@pytest.mark.parametrize("whose", ["acme", None])
@pytest.mark.parametrize("form", RUNNABLES)
def test_a_killed_tenant_reaches_no_provider(
    form: str, whose: str | None, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, runnable = engines(OPEN), RUNNABLES[form](models)
    inputs: Any = {"messages": ["hi"]} if form == "agent" else "hi"
    engine.kill(whose, reason="a test", by="tests")
    run = config(BudgetCallbackHandler(engine))
    for ask in (lambda: runnable.invoke(inputs, run), lambda: asyncio.run(runnable.ainvoke(inputs, run))):
        with pytest.raises(BudgetRefused) as refused:
            ask()
        assert refused.value.code == "killed"
    assert provider.count == 0
    assert not budget(engine, "open").reserved
    engine.revive(whose, by="tests")
    runnable.invoke(inputs, run)
    assert provider.count > 0


def test_another_tenant_goes_on(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines()
    engine.kill("acme", reason="a test", by="tests")
    models().invoke("hi", config(BudgetCallbackHandler(engine), tenant="globex"))
    assert provider.count == 1


@pytest.mark.parametrize("wrapped", ["alone", "with_fallbacks", "with_retry", "embeddings"])
def test_a_kill_sticks_to_the_root_that_met_it(
    wrapped: str, engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch,
    clients: dict[str, Any],
) -> None:  # fmt: skip
    engine, model = engines(), models(model="gpt-4o")
    inner = OpenAIEmbeddings(
        model="text-embedding-3-small", base_url=provider.base_url, api_key="test", max_retries=0,
        check_embedding_ctx_length=False, **clients,
    )  # fmt: skip
    again = {
        "alone": model.invoke,
        "with_fallbacks": model.with_fallbacks([models(model="gpt-4.1")]).invoke,
        "with_retry": model.with_retry().invoke,
        "embeddings": BudgetedEmbeddings(inner, engine).embed_query,
    }[wrapped]
    asked = reserved_calls(engine, monkeypatch)

    def work(text: str) -> Any:
        model.invoke(text)
        engine.kill("acme", reason="a test", by="tests")
        with pytest.raises(BudgetRefused):
            again(text)
        engine.revive("acme", by="tests")
        return again(text)

    with pytest.raises(BudgetRefused) as refused:
        RunnableLambda(work).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert refused.value.code == "killed"
    assert (provider.count, len(asked)) == (1, 2)
    again("hi") if wrapped == "embeddings" else again("hi", config(BudgetCallbackHandler(engine)))
    assert provider.count == 2


@pytest.mark.parametrize("handler", [False, True])
def test_the_middleware_ends_an_agent_that_is_killed_between_two_calls(
    handler: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(tool_calls=(ToolCall("stop", {}),)))
    engine = engines()

    def stop() -> str:
        """Stop everything."""
        engine.kill("acme", reason="a test", by="tests")
        return "stopped"

    agent = create_agent(models(), [stop], middleware=[BudgetMiddleware(engine, cheaper=models())])
    run: Any = config(BudgetCallbackHandler(engine)) if handler else {"metadata": WHO}
    last = agent.invoke({"messages": ["hi"]}, run)["messages"][-1]
    assert last.response_metadata["budget_code"] == "killed"
    assert provider.count == 1
