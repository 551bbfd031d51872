"""What is held and booked is what the provider is asked for, wherever the model's package puts that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import litellm
import pytest
from langchain_litellm import ChatLiteLLM, ChatLiteLLMRouter
from runs_under_test import CALLS, LITELLM, OPEN, Engines, Models, budget, collected, config, cost, reserved_calls

from llm_budget_hooks import PriceUnknown
from llm_budget_hooks.langchain import BudgetCallbackHandler
from llm_budget_hooks.litellm import BudgetCallback
from llm_budget_hooks.testing import FakeProvider

pytestmark = [*LITELLM, pytest.mark.filterwarnings("ignore:Router..* is deprecated:DeprecationWarning")]
# LiteLLM keeps its clients, and their connections would outlive the event loops of the tests.
ALONE = {"Connection": "close"}
MINI, LARGE = "openai/gpt-4o-mini", "openai/gpt-4o"
LARGE_COST = 100 * Decimal("0.0000025") + 20 * Decimal("0.00001")


FORMS: dict[str, Callable[..., Any]] = {
    "invoke": lambda subject, run, **more: subject.invoke("hi", run, **more),
    "ainvoke": lambda subject, run, **more: asyncio.run(subject.ainvoke("hi", run, **more)),
    "stream": lambda subject, run, **more: list(subject.stream("hi", run, **more)),
    "astream": lambda subject, run, **more: asyncio.run(collected(subject.astream("hi", run, **more))),
    "batch": lambda subject, run, **more: subject.batch(["hi"], run, **more),
    "bind": lambda subject, run, **more: subject.bind(**more).invoke("hi", run),
}


def _lite(provider: FakeProvider, **more: Any) -> ChatLiteLLM:
    given = {"model": MINI, "api_base": provider.base_url, "api_key": "test", "max_tokens": 50, **more}
    return ChatLiteLLM(extra_headers=ALONE, **given)


def _deployment(provider: FakeProvider, name: str, model: str, **more: Any) -> dict[str, Any]:
    where = {"api_base": provider.base_url, "api_key": "test", "extra_headers": ALONE}
    return {"model_name": name, "litellm_params": {"model": model, **where, **more}}


@pytest.mark.parametrize("form", FORMS)
def test_a_model_that_is_named_per_call_is_the_one_that_is_priced(
    form: str, engines: Engines, provider: FakeProvider
) -> None:
    engine = engines(OPEN)
    FORMS[form](_lite(provider), config(BudgetCallbackHandler(engine)), model=LARGE)
    assert provider.requests[-1].model == "gpt-4o"
    assert budget(engine, "spend").spent == LARGE_COST
    assert not budget(engine, "open").reserved


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream", "astream"])
def test_what_a_litellm_model_sends_beside_its_fields_is_held(
    form: str, engines: Engines, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(estimate="bound")
    asked = reserved_calls(engine, monkeypatch)
    model = _lite(provider, model_kwargs={"max_tokens": 70, "n": 2, "model": LARGE})
    FORMS[form](model, config(BudgetCallbackHandler(engine)))
    sent = provider.requests[-1]
    assert (sent.model, sent.json["max_tokens"], sent.json["n"]) == ("gpt-4o", 70, 2)
    assert [(call.model, call.max_output_tokens) for call in asked] == [(LARGE, 140)]
    assert budget(engine, "spend").spent >= LARGE_COST


@pytest.mark.parametrize(
    ("fields", "per_call", "held"),
    [
        ({}, {"max_tokens": 9}, (MINI, 9)),
        ({"n": 3}, {}, (MINI, 150)),
        ({"max_tokens": None}, {}, (MINI, None)),
        ({"model_kwargs": {"max_tokens": 70}}, {"max_tokens": 80}, (MINI, 80)),
        ({"model": "gpt-4o-mini", "custom_llm_provider": "openai"}, {}, (MINI, 50)),
        ({"model": "openai/tuned-by-us", "base_model": "gpt-4o"}, {}, ("gpt-4o", 50)),
        ({}, {"extra_body": {"max_completion_tokens": 90, "n": 2}}, (MINI, 180)),
    ],
)
def test_what_a_litellm_model_asks_for_is_held(
    fields: dict[str, Any],
    per_call: dict[str, Any],
    held: tuple[str, int | None],
    engines: Engines,
    provider: FakeProvider,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engines()
    asked = reserved_calls(engine, monkeypatch)
    _lite(provider, **fields).invoke("hi", config(BudgetCallbackHandler(engine)), **per_call)
    assert [(call.model, call.max_output_tokens) for call in asked] == [held]


@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream", "bind"])
def test_what_is_put_into_the_body_as_it_is_is_held(
    form: str, engines: Engines, models: Models, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines(estimate="bound")
    asked = reserved_calls(engine, monkeypatch)
    body = {"max_tokens": 90, "n": 3, "model": "gpt-4o", "service_tier": "priority"}
    model = models(max_tokens=None, stream_usage=True)
    run = config(BudgetCallbackHandler(engine))
    if form == "bind":
        FORMS[form](model, run, extra_body=body)
    else:
        FORMS[form](model.model_copy(update={"extra_body": body}), run)
    assert provider.requests[-1].json["max_tokens"] == 90
    assert [(call.model, call.max_output_tokens, call.service_tier) for call in asked] == [("gpt-4o", 270, "priority")]


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside the callback"])
@pytest.mark.parametrize("form", ["invoke", "ainvoke", "stream", "astream"])
def test_a_routers_group_is_held_at_its_dearest_deployment_and_booked_at_the_one_that_served(
    form: str, beside: bool, engines: Engines, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines({**CALLS, "limit": 9}, OPEN)
    asked = reserved_calls(engine, monkeypatch)
    litellm.callbacks = [BudgetCallback(engine)] if beside else []
    group = [_deployment(provider, "chat", MINI, max_tokens=50), _deployment(provider, "chat", LARGE, weight=0)]
    group[0]["litellm_params"]["weight"] = 1
    model = ChatLiteLLMRouter(router=litellm.Router(model_list=group), streaming=False)
    try:
        FORMS[form](model, config(BudgetCallbackHandler(engine)))
    finally:
        litellm.callbacks = []
    engine.flush()
    assert provider.requests[-1].model == "gpt-4o-mini"
    assert [call.model for call in asked] == [LARGE]
    assert budget(engine, "spend").spent == cost(100, 20)
    assert budget(engine, "calls").spent == 1
    assert not budget(engine, "open").reserved


def test_a_group_that_falls_back_is_booked_at_the_model_that_served(engines: Engines, provider: FakeProvider) -> None:
    engine = engines(OPEN)
    groups = [_deployment(provider, "first", MINI, max_retries=0), _deployment(provider, "second", LARGE)]
    router = litellm.Router(model_list=groups, fallbacks=[{"first": ["second"]}], num_retries=0)
    provider.fail_next(status=500)
    ChatLiteLLMRouter(router=router).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert provider.requests[-1].model == "gpt-4o"
    assert budget(engine, "spend").spent == LARGE_COST


def test_a_group_without_a_priced_deployment_is_refused_by_name(engines: Engines, provider: FakeProvider) -> None:
    engine = engines()
    router = litellm.Router(model_list=[_deployment(provider, "chat", "openai/tuned-by-us")])
    with pytest.raises(PriceUnknown, match="tuned-by-us"):
        ChatLiteLLMRouter(router=router).invoke("hi", config(BudgetCallbackHandler(engine)))
    assert provider.count == 0
