"""A refusal costs nothing, keeps its type, and is not tried again."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections.abc import Callable
from typing import Any

import litellm
import pytest
from routes import ASYNC, MESSAGES, SYNC, async_routes, at, balance, in_tasks, router_of, sync_routes

from llm_budget_hooks import BudgetExceeded, PriceUnknown
from llm_budget_hooks.litellm import BudgetRefused
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
SPENT = {"scope": "global", "limit": "$0.000000001", "window": "day", "name": "dollars"}
CALLS = {"scope": "global", "meter": "calls", "limit": 100, "window": "day", "name": "calls"}


@pytest.mark.parametrize("route", ASYNC)
def test_b104_an_exhausted_budget_refuses_tasks_for_nothing(
    route: str, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(SPENT, CALLS)
    call = async_routes(provider)[route]
    in_tasks(call, 1)  # loads what LiteLLM loads at a route's first call
    took_s = []
    for _ in range(3):
        begun = time.monotonic()
        [refusal] = in_tasks(call, 1)
        took_s.append(time.monotonic() - begun)
    assert isinstance(refusal, BudgetExceeded)
    assert isinstance(refusal, litellm.BudgetExceededError)
    assert (refusal.code, refusal.budget, refusal.status_code) == ("spend", "dollars", 422)
    assert (provider.count, balance(engine, "calls")) == (0, (0, 0))
    assert min(took_s) < 1  # what is waited for before a retry is waited for each time; a busy machine is not


@pytest.mark.parametrize("route", SYNC)
def test_b104_an_exhausted_budget_refuses_threads_for_nothing(
    route: str, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(SPENT, CALLS)
    with pytest.raises(BudgetExceeded) as caught:
        sync_routes(provider)[route]()
    assert caught.value.code == "spend"
    assert (provider.count, balance(engine, "calls")) == (0, (0, 0))


@pytest.mark.parametrize("status", [422, 429])
def test_no_deployment_is_cooled_down(
    status: int, provider: FakeProvider, capped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(litellm, "budget_exceeded_status_code", status)
    router = router_of(provider)
    capped({"scope": "tenant", "meter": "calls", "limit": 1, "window": "day", "name": "calls"})

    async def run() -> None:
        await router.acompletion(model="first", messages=MESSAGES, metadata={"tenant": "greedy"})
        for _ in range(5):
            with pytest.raises(BudgetRefused):
                await router.acompletion(model="first", messages=MESSAGES, metadata={"tenant": "greedy"})
        for tenant in ("a", "b", "c"):
            await router.acompletion(model="first", messages=MESSAGES, metadata={"tenant": tenant})

    asyncio.run(run())
    assert provider.count == 4


def test_a_fallback_to_a_cheaper_model_does_not_get_past_a_refusal(provider: FakeProvider, capped: MakeEngine) -> None:
    """The fallback alone would fit: it is refused for the first model's sake, and passes when asked for by itself."""
    capped({"scope": "global", "limit": "$0.02", "window": "day", "name": "dollars"})
    dear = at(provider, model="openai/gpt-4o", max_tokens=4000)
    with pytest.raises(BudgetRefused):
        asyncio.run(litellm.acompletion(**dear, fallbacks=["openai/gpt-4o-mini"]))
    assert provider.count == 0
    asyncio.run(litellm.acompletion(**at(provider, max_tokens=4000)))
    assert provider.count == 1


def test_a_router_does_not_fall_back_past_a_refusal(provider: FakeProvider, capped: MakeEngine) -> None:
    capped({"scope": "global", "limit": "$0.02", "window": "day", "name": "dollars"})
    where = {"api_base": provider.base_url, "api_key": "test"}
    groups = [
        {"model_name": "dear", "litellm_params": {"model": "openai/gpt-4o", **where}},
        {"model_name": "cheap", "litellm_params": {"model": "openai/gpt-4o-mini", **where}},
    ]
    router = litellm.Router(model_list=groups, fallbacks=[{"dear": ["cheap"]}], num_retries=2)
    with pytest.raises(BudgetRefused):
        asyncio.run(router.acompletion(model="dear", messages=MESSAGES, max_tokens=4000))
    assert provider.count == 0
    asyncio.run(router.acompletion(model="cheap", messages=MESSAGES, max_tokens=4000))
    assert provider.count == 1


def test_global_num_retries_do_not_get_past_a_refusal(
    provider: FakeProvider, capped: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    capped(SPENT)
    monkeypatch.setattr(litellm, "num_retries", 3)
    with pytest.raises(BudgetRefused):
        asyncio.run(litellm.acompletion(**at(provider)))
    monkeypatch.setattr(litellm, "num_retries", 3)
    with pytest.raises(BudgetRefused):
        litellm.completion(**at(provider))
    assert provider.count == 0


def test_a_refusal_survives_pickling(provider: FakeProvider, capped: MakeEngine) -> None:
    capped(SPENT)
    with pytest.raises(BudgetRefused) as caught:
        litellm.completion(**at(provider))
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is BudgetRefused
    assert (str(again), again.limit, again.status_code) == (str(caught.value), caught.value.limit, 422)


def test_b088_an_unknown_model_is_refused_as_such(provider: FakeProvider, capped: MakeEngine) -> None:
    capped()
    with pytest.raises(PriceUnknown) as caught:
        litellm.completion(**at(provider, model="openai/Qwen3-4B-of-ours"))
    assert isinstance(caught.value, BudgetRefused)
    assert "Qwen3-4B-of-ours" in str(caught.value)
    assert provider.count == 0


def test_b095_a_paid_fallback_is_asked_for_by_itself(provider: FakeProvider, capped: MakeEngine) -> None:
    """The free primary is let in when nothing is left, and its paid fallback is not."""
    capped(SPENT, prices={"openai/of-ours": {"input": "0", "output": "0"}})
    asked = at(provider, model="openai/of-ours", max_tokens=100, fallbacks=["openai/gpt-4o"])
    asyncio.run(litellm.acompletion(**asked))
    assert provider.count == 1
    provider.fail_next(1, status=400)
    with pytest.raises(BudgetExceeded):
        asyncio.run(litellm.acompletion(**asked))
    assert provider.count == 2


@pytest.mark.parametrize("awaited", [False, True])
def test_litellm_logs_no_traceback_of_a_refusal_and_those_of_errors_as_ever(
    awaited: bool,
    provider: FakeProvider,
    capped: MakeEngine,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("ERROR", "LiteLLM")
    monkeypatch.setattr(logging.getLogger("LiteLLM"), "propagate", True)
    asked = at(provider, fallbacks=["openai/gpt-4o"], max_retries=0)

    def ask() -> None:
        if awaited:
            asyncio.run(litellm.acompletion(**asked))
        else:
            litellm.completion(**asked)

    capped(SPENT)
    with pytest.raises(BudgetRefused):
        ask()
    assert [bool(record.exc_info) for record in caplog.records if record.name == "LiteLLM"] == [False, False]
    caplog.clear()
    capped(CALLS)
    provider.fail_next(1, status=400)
    ask()
    assert [bool(record.exc_info) for record in caplog.records if record.name == "LiteLLM"] == [True]


def test_a_mocked_answer_is_held_and_billed_as_litellm_prices_it(provider: FakeProvider, capped: MakeEngine) -> None:
    """So that a test of an app spends a budget as the app does."""
    engine = capped(CALLS, {"scope": "global", "limit": "$1", "window": "day", "name": "dollars"})
    answer = litellm.completion(**at(provider, mock_response="hi there"))
    assert float(balance(engine)[0]) == pytest.approx(answer._hidden_params["response_cost"])
    assert (provider.count, balance(engine, "calls")) == (0, (1, 0))
