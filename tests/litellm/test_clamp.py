"""With ``clamp = true`` what is sent to the provider is bounded by what is held."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import litellm
import pytest
from routes import CHAT, MESSAGES, at, balance, in_tasks

from llm_budget_hooks import BudgetExceeded
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]
DOLLARS = {"scope": "global", "limit": "$50", "window": "day", "name": "dollars"}
CALLS = {"scope": "global", "meter": "calls", "limit": 10, "window": "day", "name": "calls"}


def _sync(asked: dict[str, Any]) -> None:
    litellm.completion(**asked)


def _async(asked: dict[str, Any]) -> None:
    asyncio.run(litellm.acompletion(**asked))


def _async_stream(asked: dict[str, Any]) -> None:
    async def read() -> None:
        async for _ in await litellm.acompletion(**asked, stream=True):
            pass

    asyncio.run(read())


@pytest.mark.parametrize("ask", [_sync, _async, _async_stream])
def test_a_call_without_a_bound_gets_that_of_its_step(
    ask: Callable[[dict[str, Any]], None], provider: FakeProvider, capped: MakeEngine
) -> None:
    """$0.0006 at gpt-4o-mini's $0.60 a million are 1,000 tokens; the model would make 10,000."""
    provider.output_tokens = 10_000
    engine = capped(DOLLARS, clamp=True, step_budget="$0.0006")
    ask(at(provider))
    assert provider.requests[0].json["max_tokens"] == 1000
    spent, reserved = balance(engine)
    assert reserved == 0
    assert Decimal("0.0006") < spent < Decimal("0.00061")


def test_a_bound_that_is_put_into_the_body_is_lowered_too(provider: FakeProvider, capped: MakeEngine) -> None:
    capped(DOLLARS, clamp=True, estimate="p90", step_budget="$0.0006")
    litellm.completion(**at(provider, max_tokens=100, extra_body={"max_tokens": 5000, "seed": 1}))
    assert [provider.requests[0].json[name] for name in ("max_tokens", "seed")] == [1000, 1]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_name_that_the_caller_used_is_kept(name: str, provider: FakeProvider, capped: MakeEngine) -> None:
    """Under ``p90`` a call with a bound is held at the smaller of it and the step's budget."""
    capped(DOLLARS, clamp=True, estimate="p90", step_budget="$0.0006")
    litellm.completion(**at(provider, **{name: 5000}))
    litellm.completion(**at(provider, **{name: 100}))
    assert [request.json.get(name) for request in provider.requests] == [1000, 100]


def test_arguments_by_place_are_lowered_too(provider: FakeProvider, capped: MakeEngine) -> None:
    capped(DOLLARS, clamp=True, step_budget="$0.0006")
    litellm.completion(CHAT, MESSAGES, api_base=provider.base_url, api_key="test")
    assert provider.requests[0].json["max_tokens"] == 1000


def test_several_answers_share_what_is_held(provider: FakeProvider, capped: MakeEngine) -> None:
    provider.output_tokens = 10_000
    engine = capped(DOLLARS, clamp=True, step_budget="$0.0006")
    litellm.completion(**at(provider, n=4))
    assert provider.requests[0].json["max_tokens"] == 250
    assert balance(engine)[0] < Decimal("0.00061")


def test_responses_have_a_name_of_their_own(provider: FakeProvider, capped: MakeEngine) -> None:
    capped(DOLLARS, clamp=True, step_budget="$0.0006")
    litellm.responses(model=CHAT, input="hi", api_base=provider.base_url, api_key="test")
    assert provider.requests[0].json["max_output_tokens"] == 1000


def test_a_hold_of_tokens_clamps_as_well(provider: FakeProvider, capped: MakeEngine) -> None:
    tokens = {"scope": "global", "meter": "tokens", "limit": 100_000, "window": "day", "name": "tokens"}
    engine = capped(tokens, clamp=True, step_tokens=700)
    provider.output_tokens = 10_000
    litellm.completion(**at(provider))
    assert provider.requests[0].json["max_tokens"] == 700
    assert balance(engine, "tokens")[0] <= 720


@pytest.mark.parametrize("ask", [_sync, _async])
def test_below_the_minimum_the_call_is_refused_and_not_counted(
    ask: Callable[[dict[str, Any]], None], provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(DOLLARS, CALLS, clamp=True, step_budget="$0.00002")
    with pytest.raises(BudgetExceeded, match="pays for 33 output tokens") as caught:
        ask(at(provider, num_retries=2))
    assert isinstance(caught.value, litellm.BudgetExceededError)
    assert provider.count == 0
    assert balance(engine, "calls") == balance(engine) == (0, 0)
    ask(at(provider, max_tokens=20))
    assert provider.requests[0].json["max_tokens"] == 20


def test_no_limit_is_passed_by_fifty_that_would_use_more(provider: FakeProvider, capped: MakeEngine) -> None:
    provider.output_tokens = 10_000
    engine = capped({**DOLLARS, "limit": "$0.0061"}, clamp=True, step_budget="$0.0006")
    outcomes = in_tasks(lambda: litellm.acompletion(**at(provider)), 50)
    assert provider.count == sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 10
    spent, reserved = balance(engine)
    assert reserved == 0
    assert spent <= Decimal("0.0061")


def test_without_clamp_nothing_is_sent_that_was_not_asked(provider: FakeProvider, capped: MakeEngine) -> None:
    capped(DOLLARS, step_budget="$0.0006")
    litellm.completion(**at(provider))
    assert "max_tokens" not in provider.requests[0].json
