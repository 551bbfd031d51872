"""What each end of a model run books."""

from __future__ import annotations

import asyncio
import logging
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.decisions import BaseDecisionModel, ClassifierResponse
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from runs_under_test import OPEN, PRICE_IN, PRICE_OUT, Engines, Models, budget, config, cost

from llm_budget_hooks import BudgetEngine, Call
from llm_budget_hooks.langchain import BudgetCallbackHandler, BudgetRefused
from llm_budget_hooks.langchain.usage import usage_of
from llm_budget_hooks.testing import FakeProvider, Reply

TOKENS = {"name": "tokens", "scope": "user", "meter": "tokens", "limit": 10**9, "window": "month"}


def estimate(engine: BudgetEngine, messages: int = 50) -> Any:
    """What a call of a short prompt holds."""
    call = Call(model="gpt-4o-mini", tenant="acme", user="u1", input_tokens=messages, max_output_tokens=50)
    return engine.check(call).estimate


def test_cached_and_reasoning_tokens_are_priced_as_such(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(input_tokens=1000, cached_tokens=800, output_tokens=40, reasoning_tokens=30))
    engine = engines()
    models().invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == 200 * PRICE_IN + 800 * PRICE_IN / 2 + 40 * PRICE_OUT


def test_the_model_that_served_is_the_one_that_is_priced(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(model="gpt-4o-2024-08-06"))
    engine = engines()
    models().invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == Decimal("0.00045")


def test_b111_a_stream_without_usage_is_counted_and_the_option_is_named_once(
    engines: Engines, models: Models, provider: FakeProvider, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    from llm_budget_hooks.langchain import opened

    monkeypatch.setattr(opened._Hint, "given", False)
    engine = engines(TOKENS)
    handler = BudgetCallbackHandler(engine)
    with caplog.at_level(logging.WARNING, "llm_budget_hooks"):
        list(models().stream("a question of some words", config(handler)))
        list(models().stream("a question of some words", config(handler)))
    assert sum("stream_usage" in record.message for record in caplog.records) == 1
    assert budget(engine, "tokens").spent >= 2 * (6 + 20)
    assert budget(engine, "spend").spent >= 2 * cost(6, 20)


@pytest.mark.parametrize("way", ["break", "close", "abreak", "cancel"])
def test_b107_an_abandoned_stream_costs_no_less_than_what_arrived(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    """Without a bound the hold is the step's budget, which is less than the words that came."""
    provider.output_tokens = 400
    engine = engines(OPEN, step_budget="$0.00001")
    model, run = models(max_tokens=None), config(BudgetCallbackHandler(engine))

    def read() -> None:
        stream = model.stream("hi", run)
        for _ in range(5):
            next(stream)
        if way == "close":
            stream.close()

    async def aread() -> None:
        async def consume() -> None:
            received = 0
            async for _ in model.astream("hi", run):
                received += 1
                if received == 5:
                    break

        if way == "abreak":
            await consume()
            await asyncio.sleep(0.01)
            return
        provider.chunk_latency_s = 0.05
        stream = model.astream("hi", run)
        for _ in range(5):
            await anext(stream)
        task = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await stream.aclose()

    if way in ("break", "close"):
        read()
    else:
        asyncio.run(aread())
    assert not budget(engine, "open").reserved
    assert budget(engine, "spend").spent >= 300 * PRICE_OUT


def test_b106_a_stream_dropped_early_is_charged_what_it_held(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    stream = models().stream("hi", config(BudgetCallbackHandler(engine)))
    next(stream)
    stream.close()
    assert not budget(engine, "open").reserved
    assert budget(engine, "spend").spent == estimate(engine)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke"])
def test_b101_the_providers_refusals_cost_nothing(
    way: str, status: int, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.fail_next(status=status)
    engine, model = engines(OPEN), models()
    run = config(BudgetCallbackHandler(engine))
    with pytest.raises(Exception, match=str(status)):  # noqa: PT012 - one of two ways in
        if way == "ainvoke":
            asyncio.run(model.ainvoke("hi", run))
        elif way == "stream":
            list(model.stream("hi", run))
        else:
            model.invoke("hi", run)
    assert budget(engine, "spend").spent == 0
    assert not budget(engine, "open").reserved


@pytest.mark.parametrize("failure", ["408", "timeout", "cut", "cut_late"])
def test_b100_a_call_that_may_have_been_made_is_charged_what_it_held(
    failure: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    if failure == "408":
        provider.fail_next(status=408)
    elif failure == "timeout":
        provider.hang_next()
    else:
        provider.cut_next(after=0 if failure == "cut" else 1)
    engine = engines(OPEN)
    with pytest.raises(Exception, match=r"408|timed out|[Cc]onnection"):
        models(timeout=0.3).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == estimate(engine)
    assert not budget(engine, "open").reserved


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch"])
def test_a_hit_of_the_response_cache_costs_nothing(
    way: str, engines: Engines, models: Models, provider: FakeProvider
) -> None:
    engine, model = engines(TOKENS, OPEN), models(cache=InMemoryCache())
    run = config(BudgetCallbackHandler(engine))
    model.invoke("hi", run)
    for _ in range(2):
        if way == "ainvoke":
            asyncio.run(model.ainvoke("hi", run))
        elif way == "batch":
            model.batch(["hi"], run)
        else:
            model.invoke("hi", run)
    assert provider.count == 1
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "tokens").spent == 120
    assert not budget(engine, "open").reserved


def test_b103_a_filtered_answer_is_billed_by_its_usage(
    engines: Engines, models: Models, provider: FakeProvider
) -> None:
    provider.next_replies(Reply(text="", input_tokens=12, output_tokens=14))
    engine = engines()
    models().invoke("hi", config(BudgetCallbackHandler(engine)))
    assert budget(engine, "spend").spent == cost(12, 14)


def _ended(usage: dict[str, Any] | None, facts: dict[str, Any], text: str = "") -> LLMResult:
    message = AIMessage(text, usage_metadata=usage, response_metadata=facts)
    return LLMResult(generations=[[ChatGeneration(message=message)]])


def test_b120_usage_without_a_models_name_is_priced_as_the_model_asked_for(engines: Engines) -> None:
    engine = engines()
    handler, run_id = BudgetCallbackHandler(engine), uuid4()
    handler.on_chat_model_start(
        {}, [[]], run_id=run_id, metadata={"tenant": "acme", "user": "u1", "ls_model_name": "gpt-4o-mini"}
    )
    handler.on_llm_end(_ended({"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}, {}), run_id=run_id)
    assert budget(engine, "spend").spent == cost(1, 2)


def test_usage_without_input_is_filled_up(engines: Engines) -> None:
    engine = engines()
    handler, run_id = BudgetCallbackHandler(engine), uuid4()
    metadata = {"tenant": "acme", "user": "u1", "ls_model_name": "gpt-4o-mini"}
    handler.on_chat_model_start({}, [[AIMessage("x" * 3000)]], run_id=run_id, metadata=metadata)
    handler.on_llm_end(_ended({"input_tokens": 0, "output_tokens": 2, "total_tokens": 2}, {}), run_id=run_id)
    assert budget(engine, "spend").spent >= cost(1000, 2)


def test_b123_ends_of_runs_that_never_began(engines: Engines) -> None:
    engine = engines()
    handler = BudgetCallbackHandler(engine)
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    handler.on_llm_error(ValueError("late"), run_id=uuid4())
    handler.on_llm_end(_ended(None, {}), run_id=uuid4())
    handler.on_chain_end({}, run_id=uuid4())
    handler.on_tool_error(ValueError("late"), run_id=uuid4())
    run_id = uuid4()
    for _ in range(2):
        handler.on_llm_end(_ended(usage, {"model_name": "gpt-4o-mini"}), run_id=run_id)
    assert budget(engine, "spend", "default", "").spent == cost(10, 5)


def test_b113_an_end_after_an_abort_books_once(engines: Engines) -> None:
    engine = engines(OPEN)
    handler, run_id = BudgetCallbackHandler(engine), uuid4()
    metadata = {"tenant": "acme", "user": "u1", "ls_model_name": "gpt-4o-mini", "ls_max_tokens": 50}
    handler.on_chat_model_start({}, [[]], run_id=run_id, metadata=metadata)
    handler.on_llm_error(GeneratorExit(), run_id=run_id)
    first = budget(engine, "spend").spent
    usage = {"input_tokens": 9000, "output_tokens": 5, "total_tokens": 9005}
    handler.on_llm_end(_ended(usage, {"model_name": "gpt-4o-mini"}), run_id=run_id)
    assert budget(engine, "spend").spent == cost(9000, 5) != first
    handler.on_llm_error(ValueError("again"), run_id=run_id)
    handler.on_llm_end(_ended(usage, {"model_name": "gpt-4o-mini"}), run_id=run_id)
    assert budget(engine, "spend").spent == cost(9000, 5)
    assert not budget(engine, "open").reserved


class Decider(BaseDecisionModel):
    """A decision model that needs no network."""

    model: str = "gpt-4o-mini"

    @property
    def _provider(self) -> str:
        return "openai"

    def _classify(self, state: Any, questions: Any) -> ClassifierResponse:
        return ClassifierResponse(
            model=self.model, answers={}, usage={"input_tokens": 30, "output_tokens": 4, "total_tokens": 34}
        )


def test_decision_models_are_capped(engines: Engines) -> None:
    engine = engines({"name": "calls", "scope": "user", "meter": "calls", "limit": 1, "window": "day"}, OPEN)
    handler = BudgetCallbackHandler(engine)
    request: Any = {"state": "hi", "questions": {}}
    Decider().invoke(request, config(handler))
    assert budget(engine, "spend").spent == cost(30, 4)
    assert not budget(engine, "open").reserved
    with pytest.raises(BudgetRefused):
        asyncio.run(Decider().ainvoke(request, config(handler)))


def test_a_failing_store_at_the_end_does_not_lose_the_answer(
    engines: Engines, models: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines()

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(engine, "settle", broken)
    answer = models().invoke("hi", config(BudgetCallbackHandler(engine)))
    assert answer.content
    assert "at the end of a call" in caplog.text


@pytest.mark.parametrize("on_store_error", ["allow", "bounded", "deny"])
def test_b117_a_bug_at_the_start_follows_the_policy_for_store_errors(
    on_store_error: str, engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(on_store_error=on_store_error)

    def broken(*_: Any, **__: Any) -> Any:
        raise NotImplementedError("a bug")

    monkeypatch.setattr(engine, "reserve", broken)
    if on_store_error == "allow":
        models().invoke("hi", config(BudgetCallbackHandler(engine)))
        assert provider.count == 1
        return
    with pytest.raises(BudgetRefused) as refused:
        models().invoke("hi", config(BudgetCallbackHandler(engine)))
    assert refused.value.code == "store_unavailable"
    assert provider.count == 0


def test_a_model_without_a_name_is_refused_by_a_name_that_can_be_priced(engines: Engines) -> None:
    model = GenericFakeChatModel(messages=iter(["a", "b"]))
    with pytest.raises(BudgetRefused) as refused:
        model.invoke("hi", config(BudgetCallbackHandler(engines())))
    assert refused.value.code == "price_unknown"
    assert "generic-fake-chat-model" in str(refused.value)


@pytest.mark.parametrize(
    ("metadata", "facts", "expected"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, {}, {"input_tokens": 5, "output_tokens": 2}),
        (
            {
                "input_tokens": 100,
                "output_tokens": 50,
                "input_token_details": {"priority_cache_read": 30, "priority": 70},
                "output_token_details": {"priority_reasoning": 10, "priority": 40},
            },
            {},
            {"cached_input_tokens": 30, "reasoning_tokens": 10, "service_tier": "priority"},
        ),
        (
            {"input_tokens": 10, "output_tokens": 5, "input_token_details": {"flex": 10}},
            {},
            {"service_tier": "flex", "cached_input_tokens": 0},
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 1,
                "input_token_details": {
                    "cache_creation": 0,
                    "ephemeral_5m_input_tokens": 40,
                    "ephemeral_1h_input_tokens": 20,
                    "cache_read": 10,
                },
            },
            {},
            {"cache_write_tokens": 40, "cache_write_1h_tokens": 20, "cached_input_tokens": 10},
        ),
        (
            {
                "input_tokens": 100,
                "output_tokens": 1,
                "input_token_details": {"cache_creation": 60, "ephemeral_1h_input_tokens": 20},
            },
            {},
            {"cache_write_tokens": 40, "cache_write_1h_tokens": 20},
        ),
        (
            {"input_tokens": 9, "output_tokens": 9, "input_token_details": {"audio": 4}},
            {"service_tier": "default", "usage": {"server_tool_use": {"web_search_requests": 2}}},
            {"input_audio_tokens": 4, "service_tier": "default", "searches": 2},
        ),
    ],
)
def test_usage_metadata_is_read_in_all_its_forms(
    metadata: dict[str, Any], facts: dict[str, Any], expected: dict[str, Any]
) -> None:
    usage = usage_of(metadata, facts)
    assert {name: getattr(usage, name) for name in expected} == expected
