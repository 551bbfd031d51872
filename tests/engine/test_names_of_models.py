"""Budgets of some models, and the tier ``cheap``, are about models and not about how a call spells them."""

from __future__ import annotations

from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, Call

POLICY = {"aliases": {"our-small": "gpt-4o-mini", "our-big": "gpt-4o", "our-mini-sized": "gpt-4o"}}
BIG = ["gpt-4o", "openai/gpt-4o", "openai:gpt-4o", "OPENAI/GPT-4o", "openrouter/openai/gpt-4o", "our-big"]
SMALL = ["gpt-4o-mini", "openai/gpt-4o-mini", "our-small"]


def opened(**more: Any) -> BudgetEngine:
    return BudgetEngine.open("memory://", policy={**POLICY, **more})


def call(model: str, **more: Any) -> Call:
    return Call(model=model, tenant="t", user="u", input_tokens=1_000, max_output_tokens=100, **more)


@pytest.mark.parametrize("pattern", ["gpt-4o", "GPT-4o", "openai/gpt-4o", "openai/*"])
@pytest.mark.parametrize("model", BIG)
def test_a_budget_of_a_model_is_about_it_however_it_is_spelled(pattern: str, model: str) -> None:
    dear = {"name": "dear", "scope": "user", "limit": "$0.001", "window": "day", "models": [pattern]}
    with opened(budgets=[dear]) as engine:
        assert not engine.check(call(model)).allowed
        assert engine.check(call("claude-sonnet-4-5")).allowed


def test_a_budget_can_be_about_a_name_that_the_policy_gives() -> None:
    team = {"name": "team", "scope": "user", "limit": "$0.001", "window": "day", "models": ["our-b*"]}
    with opened(budgets=[team]) as engine:
        assert [engine.check(call(name)).allowed for name in ("our-big", "gpt-4o")] == [False, True]


def test_a_budget_of_a_model_without_a_price_goes_by_its_name_with_and_without_provider() -> None:
    calls = {"name": "calls", "scope": "user", "meter": "tokens", "limit": 10, "window": "day", "models": ["own-*"]}
    with opened(budgets=[calls]) as engine:
        names = ("own-llama", "openai/own-llama", "another")
        assert [engine.check(call(name)).allowed for name in names] == [False, False, True]


@pytest.mark.parametrize(
    ("model", "passes"), [*[(name, True) for name in SMALL], *[(name, False) for name in (*BIG, "our-mini-sized")]]
)
@pytest.mark.parametrize("pattern", ["gpt-4o-mini", "*-mini*"])
def test_a_soft_cutoff_lets_a_cheap_model_pass_however_it_is_spelled(pattern: str, model: str, passes: bool) -> None:
    day = {"name": "d", "scope": "user", "limit": "$1", "window": "day"}
    with opened(cutoff="soft", tiers={"cheap": [pattern]}, budgets=[day]) as engine:
        engine.charge(call("gpt-4o"), cost="1")
        assert engine.check(call(model)).allowed == passes
        assert engine.is_cheap(model) == passes
