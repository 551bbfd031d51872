"""Fifty at once against a limit of ten: exactly ten reach the provider, on every route."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from typing import Any

import litellm
import pytest
from routes import ASYNC, SYNC, async_routes, at, balance, in_tasks, in_threads, sync_routes

from llm_budget_hooks import BudgetError, BudgetExceeded
from llm_budget_hooks.litellm import budgeted
from llm_budget_hooks.testing import FakeProvider

MakeEngine = Callable[..., Any]


def check_ten_of_fifty(outcomes: list[Any], provider: FakeProvider, engine: Any) -> None:
    refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert {type(refusal) for refusal in refusals if not isinstance(refusal, BudgetExceeded)} == set()
    assert len(refusals) == 40
    assert provider.count == 10
    assert balance(engine, "calls") == (10, 0)
    assert balance(engine)[1] == 0
    assert all(isinstance(refusal, litellm.BudgetExceededError) for refusal in refusals)


@pytest.mark.parametrize("route", ASYNC)
def test_b116_ten_of_fifty_tasks_reach_the_provider(route: str, provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    check_ten_of_fifty(in_tasks(async_routes(provider)[route], 50), provider, engine)


@pytest.mark.parametrize("route", SYNC)
def test_b116_ten_of_fifty_threads_reach_the_provider(route: str, provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    check_ten_of_fifty(in_threads(sync_routes(provider)[route], 50), provider, engine)


def test_ten_of_fifty_on_either_store(provider: FakeProvider, capped: MakeEngine, store_url: str) -> None:
    engine = capped(url=store_url)
    check_ten_of_fifty(in_tasks(lambda: litellm.acompletion(**at(provider)), 50), provider, engine)


def test_ten_of_fifty_threads_on_either_store(provider: FakeProvider, capped: MakeEngine, store_url: str) -> None:
    engine = capped(url=store_url)
    check_ten_of_fifty(in_threads(lambda: litellm.completion(**at(provider)), 50), provider, engine)


def test_dollars_cap_as_exactly_as_calls(provider: FakeProvider, capped: MakeEngine) -> None:
    """A bound of input and output at gpt-4o-mini's price, ten times over, and usage equal to the bound."""
    asked = at(provider, max_tokens=100)
    engine = capped({"scope": "global", "limit": "$1", "window": "day", "name": "dollars"})
    asyncio.run(litellm.acompletion(**asked))
    one = engine.status()[0].spent
    provider.output_tokens = 100
    held = litellm_hold(engine, asked)
    provider.input_tokens = held.call.input_tokens
    limit = held.estimate * 10
    provider.reset()
    engine = capped({"scope": "global", "limit": str(limit), "window": "day", "name": "dollars"})
    outcomes = in_tasks(lambda: litellm.acompletion(**asked), 50)
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == provider.count == 10
    assert balance(engine) == (limit, 0)
    assert one < held.estimate


@pytest.mark.parametrize(
    "more",
    [
        {"n": 5},
        {"n": "5"},
        {"n": 5.0},
        {"extra_body": {"n": 5}},
        {"n": 2, "extra_body": {"n": "5"}},
        {"extra_body": {"max_tokens": 200}},
    ],
    ids=str,
)
def test_with_bounds_no_spelling_of_the_number_of_answers_passes_the_limit(
    more: dict[str, Any], provider: FakeProvider, capped: MakeEngine
) -> None:
    provider.output_tokens = 200 if "max_tokens" in str(more) else 40
    engine = capped({"scope": "global", "limit": "$0.0003", "window": "day", "name": "dollars"}, estimate="bound")
    asked = at(provider, max_tokens=40, **more)
    held = litellm_hold(engine, asked).estimate
    litellm.completion(**asked)
    assert provider.billed_output_tokens == 200
    assert balance(engine)[0] <= held
    for _ in range(3):
        with suppress(BudgetExceeded):
            litellm.completion(**asked)
    assert balance(engine)[0] <= Decimal("0.0003")


@pytest.mark.parametrize(
    ("body", "same"),
    [
        ({"model": "gpt-4o"}, {"model": "openai/gpt-4o"}),
        ({"model": "gpt-3.5-turbo"}, {"model": "openai/gpt-3.5-turbo"}),
        ({"service_tier": "priority"}, {"service_tier": "priority"}),
        ({"model": "a name that has no price"}, {}),
    ],
    ids=str,
)
def test_what_is_put_into_the_body_as_it_is_is_held(
    body: dict[str, Any], same: dict[str, Any], provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(estimate="bound")
    held = litellm_hold(engine, at(provider, max_tokens=40, extra_body=body)).estimate
    assert held == litellm_hold(engine, at(provider, max_tokens=40, **same)).estimate


@pytest.mark.parametrize("count", [None, 0, -3, "five", float("nan"), [5], True], ids=str)
def test_a_number_of_answers_that_is_none_is_held_as_one(
    count: Any, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(estimate="bound")
    one = litellm_hold(engine, at(provider, max_tokens=40)).estimate
    assert litellm_hold(engine, at(provider, max_tokens=40, n=count)).estimate == one


@pytest.mark.parametrize("count", [10**9, "1e300", 10**400, float("inf")], ids=["many", "digits", "more", "endless"])
def test_more_answers_than_anybody_can_pay_are_an_error_of_this_package(
    count: Any, provider: FakeProvider, capped: MakeEngine
) -> None:
    engine = capped(estimate="bound")
    with pytest.raises(BudgetError):
        litellm.completion(**at(provider, max_tokens=40, n=count))
    assert (provider.count, balance(engine)) == (0, (0, 0))


def litellm_hold(engine: Any, asked: dict[str, Any]) -> Any:
    from llm_budget_hooks.litellm.calls import call_of

    held = engine.reserve(call_of(engine, "acompletion", asked))
    engine.release(held)
    return held


def test_budgeted_caps_without_a_callback(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    litellm.callbacks = []
    check_ten_of_fifty(in_threads(lambda: budgeted(engine).completion(**at(provider)), 50), provider, engine)


def test_budgeted_and_a_callback_hold_once(provider: FakeProvider, capped: MakeEngine) -> None:
    engine = capped()
    outcomes = in_tasks(lambda: budgeted(engine).acompletion(**at(provider), num_retries=1), 50)
    check_ten_of_fifty(outcomes, provider, engine)


def test_budgeted_names_what_it_has(capped: MakeEngine) -> None:
    with pytest.raises(AttributeError, match="budgeted"):
        _ = budgeted(capped()).token_counter
