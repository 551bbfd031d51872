"""The middleware: readable last words, calls that fit, a cheaper model on a soft cutoff."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ModelFallbackMiddleware
from langchain_core.tools import tool
from runs_under_test import ANSWER, CALLS, OPEN, UTTERANCES, WHO, Engines, Models, budget, config, cost, spent

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetMiddleware, BudgetRefused
from llm_budget_hooks.testing import FakeProvider, Reply, ToolCall

INPUT = {"messages": ["hi"]}


def run_of(engine: BudgetEngine, handler: bool, **metadata: Any) -> Any:
    """A run's configuration, with or without a handler."""
    return config(BudgetCallbackHandler(engine), **metadata) if handler else {"metadata": {**WHO, **metadata}}


def ask(agent: Any, run: Any, awaited: bool) -> Any:
    """The last message of an agent."""
    answer = asyncio.run(agent.ainvoke(INPUT, run)) if awaited else agent.invoke(INPUT, run)
    return answer["messages"][-1]


def looking_up(model: Any) -> Any:
    """A tool that asks a model itself."""

    @tool
    def look_up(what: str) -> str:
        """Look something up."""
        return str(model.invoke(what).content)

    return look_up


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("handler", [False, True])
def test_a_spent_budget_ends_the_agent_with_a_message_for_its_user(
    handler: bool, awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**CALLS, "limit": 1}, OPEN)
    agent = create_agent(models(), [], middleware=[BudgetMiddleware(engine)])
    run = run_of(engine, handler)
    assert "budget_refused" not in ask(agent, run, awaited).response_metadata
    last = ask(agent, run, awaited)
    assert last.content == "Daily limit reached. Try again tomorrow."
    assert last.response_metadata["budget_code"] == "calls"
    assert provider.count == 1
    assert budget(engine, "spend").spent == cost(100, 20)
    assert not budget(engine, "open").reserved


@pytest.mark.parametrize("handler", [False, True])
@pytest.mark.parametrize("awaited", [False, True])
def test_an_invocation_is_one_utterance_with_and_without_a_handler(
    awaited: bool, handler: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(tool_calls=(ToolCall("look_up", {"what": "a"}), ToolCall("look_up", {"what": "b"}))))
    engine = engines({**UTTERANCES, "limit": 2}, {**CALLS, "limit": 100})
    model = models()
    agent = create_agent(model, [looking_up(model)], middleware=[BudgetMiddleware(engine)])
    run = run_of(engine, handler)
    ask(agent, run, awaited)
    assert provider.count == 4
    assert budget(engine, "calls").spent == 4
    assert budget(engine, "spend").spent == 4 * cost(100, 20)
    assert budget(engine, "utterances").spent == 1
    ask(agent, run, awaited)
    assert budget(engine, "utterances").spent == 2
    assert "budget_refused" in ask(agent, run, awaited).response_metadata


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("handler", [False, True])
def test_a_refusal_inside_tools_ends_the_agent_with_a_message(
    handler: bool, awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(tool_calls=(ToolCall("look_up", {"what": "a"}), ToolCall("look_up", {"what": "b"}))))
    engine = engines({**CALLS, "limit": 1})
    model = models()
    agent = create_agent(model, [looking_up(model)], middleware=[BudgetMiddleware(engine)])
    last = ask(agent, run_of(engine, handler), awaited)
    assert last.content == "Daily limit reached. Try again tomorrow."
    assert provider.count == 1


def test_a_fallback_outside_of_it_is_not_tried(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = spent(engines({**CALLS, "limit": 1}))
    fallback = ModelFallbackMiddleware(models(model="gpt-4o"))
    for middleware in ([BudgetMiddleware(engine), fallback], [fallback, BudgetMiddleware(engine)]):
        last = ask(create_agent(models(), [], middleware=middleware), run_of(engine, True), False)
        assert last.response_metadata["budget_refused"]
    assert provider.count == 0


@pytest.mark.parametrize("handler", [False, True])
def test_max_tokens_is_lowered_to_what_is_left(
    handler: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    tight = {"name": "tight", "scope": "user", "limit": "$0.001", "window": "day"}
    engine = engines(tight, clamp=True)
    provider.output_tokens, provider.input_tokens = 10_000, None
    agent = create_agent(models(max_tokens=8000), [], middleware=[BudgetMiddleware(engine)])
    ask(agent, run_of(engine, handler), False)
    sent = provider.requests[0].json
    assert 1500 < sent["max_completion_tokens"] < 8000
    assert 0 < budget(engine, "tight").spent <= budget(engine, "tight").limit


def test_without_a_bound_of_its_own_a_call_is_clamped_to_its_steps_budget(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines(clamp=True, step_budget="$0.0006")
    agent = create_agent(models(max_tokens=None), [], middleware=[BudgetMiddleware(engine)])
    ask(agent, run_of(engine, True), False)
    assert provider.requests[0].json["max_completion_tokens"] == 1000


def test_clamping_counts_the_answers_ceiling(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines({**ANSWER, "limit": "$0.001"}, clamp=True)
    agent = create_agent(models(max_tokens=8000), [], middleware=[BudgetMiddleware(engine)])
    ask(agent, run_of(engine, True), False)
    assert 1500 < provider.requests[0].json["max_completion_tokens"] < 1667


def test_below_the_minimum_the_call_is_refused(engines: Engines, models: Models, provider: FakeProvider) -> None:
    tight = {"name": "tight", "scope": "user", "limit": "$0.0001", "window": "day"}
    engine = engines(tight, clamp=True)
    agent = create_agent(models(max_tokens=8000), [], middleware=[BudgetMiddleware(engine, min_output_tokens=500)])
    assert ask(agent, run_of(engine, True), False).response_metadata["budget_code"] == "spend"
    assert provider.count == 0


def test_without_clamp_nothing_is_changed(engines: Engines, models: Models, provider: FakeProvider) -> None:
    engine = engines()
    agent = create_agent(models(max_tokens=8000), [], middleware=[BudgetMiddleware(engine)])
    ask(agent, run_of(engine, True), False)
    assert provider.requests[0].json["max_completion_tokens"] == 8000


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("cutoff", ["soft", "hard"])
def test_a_soft_cutoff_moves_to_the_cheaper_model(
    cutoff: str, awaited: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    dear = {"name": "dear", "scope": "user", "limit": "$0.01", "window": "day", "models": ["gpt-4o"]}
    engine = engines(dear, cutoff=cutoff)
    engine.charge(Call(model="gpt-4o", tenant="acme", user="u1"), cost="0.01")
    middleware = BudgetMiddleware(engine, cheaper=models())
    last = ask(create_agent(models(model="gpt-4o"), [], middleware=[middleware]), run_of(engine, True), awaited)
    assert [request.model for request in provider.requests] == (["gpt-4o-mini"] if cutoff == "soft" else [])
    assert ("budget_refused" in last.response_metadata) is (cutoff == "hard")


@pytest.mark.parametrize("handler", [False, True])
@pytest.mark.parametrize("whose", ["user", "tenant", "global"])
def test_a_soft_cutoff_of_all_models_lets_the_cheaper_one_go_on_up_to_its_ceiling(
    whose: str, handler: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    limited = {"name": "all", "scope": whose, "limit": "$0.01", "window": "day"}
    engine = engines(limited, cutoff="soft", soft_ceiling=1.1)
    cheaper = BudgetMiddleware(engine, cheaper=models())
    agent, run = create_agent(models(model="gpt-4o"), [], middleware=[cheaper]), run_of(engine, handler)
    engine.charge(Call(model="gpt-4o", tenant="acme", user="u1"), cost="0.01")
    assert "budget_refused" not in ask(agent, run, False).response_metadata
    assert "budget_refused" not in ask(agent, run, True).response_metadata
    assert [request.model for request in provider.requests] == ["gpt-4o-mini"] * 2
    engine.charge(Call(model="gpt-4o-mini", tenant="acme", user="u1"), cost="0.001", force=True)
    assert ask(agent, run, False).response_metadata["budget_code"] == "spend"
    assert provider.count == 2


def test_a_tenants_own_hard_cutoff_is_not_softened(engines: Engines, models: Models, provider: FakeProvider) -> None:
    limited = {"name": "all", "scope": "user", "limit": "$0.01", "window": "day"}
    engine = engines(limited, cutoff="soft", tenants={"acme": {"cutoff": "hard"}})
    engine.charge(Call(model="gpt-4o", tenant="acme", user="u1"), cost="0.01")
    agent = create_agent(models(model="gpt-4o"), [], middleware=[BudgetMiddleware(engine, cheaper=models())])
    assert ask(agent, run_of(engine, True), False).response_metadata["budget_code"] == "spend"
    assert provider.count == 0


@pytest.mark.parametrize("handler", [False, True])
def test_a_cancelled_agent_has_settled_when_it_is_cancelled(
    handler: bool, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.hang_next()
    engine = engines(OPEN)
    agent = create_agent(models(), [], middleware=[BudgetMiddleware(engine)])

    async def main() -> None:
        task = asyncio.create_task(agent.ainvoke(INPUT, run_of(engine, handler)))
        await asyncio.to_thread(provider.wait_for, 1)
        assert budget(engine, "open").reserved == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not budget(engine, "open").reserved
        assert budget(engine, "spend").spent > 0

    asyncio.run(main())


def test_a_planned_answer_above_its_ceiling_ends_before_any_model(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines({**ANSWER, "limit": "$0.01"}, steps={"router": "$0.006", "answer": "$0.006"})
    agent = create_agent(models(), [], middleware=[BudgetMiddleware(engine)])
    last = ask(agent, run_of(engine, False, plan=["router", "answer"]), False)
    assert last.content == "This question is too expensive to answer. Ask more narrowly."
    assert provider.count == 0


def test_an_answer_above_its_ceiling_is_raised_with_its_output(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.output_tokens = 5000
    engine = engines({**ANSWER, "limit": "$0.001"}, step_budget="$0.0001")
    agent = create_agent(models(max_tokens=None), [], middleware=[BudgetMiddleware(engine)])
    with pytest.raises(BudgetRefused) as refused:
        agent.invoke(INPUT, run_of(engine, False))
    assert refused.value.code == "answer_actual"
    assert refused.value.output.content.startswith("ok")
