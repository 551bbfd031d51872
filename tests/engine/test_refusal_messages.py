"""What a refusal says: to the operator with the numbers, to the end user without any."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from llm_budget_hooks import BudgetEngine, BudgetExceeded, Call

NOW = datetime(2026, 11, 29, 18, 30, tzinfo=UTC)
DAY = {"scope": "user", "limit": "$2", "window": "day"}


@pytest.mark.parametrize(
    ("budget", "held", "asked", "operator", "public"),
    [
        (DAY, "", "0.03", "Daily limit of $2.00 for user u1 reached ($1.98 spent). Next at 2026-11-30 00:00 UTC.",
         "Daily limit reached. Try again tomorrow."),
        (DAY, "0.01", "0.015", "Daily limit of $2.00 for user u1 reached ($1.98 spent, $0.01 held). "
         "Calls under way are in the way; they end by 2026-11-29 18:40 UTC.",
         "Too much is going on at once. Try again in a moment."),
        (DAY, "", "2.01", "Daily limit of $2.00 for user u1 reached ($1.98 spent, this call asks for $2.01). "
         "No call of this size ever fits: make it smaller or raise the limit.",
         "This request is too large. Ask more narrowly."),
        ({**DAY, "scope": "tenant", "window": "month"}, "", "1",
         "Monthly limit of $2.00 for tenant acme reached ($1.98 spent). Next at 2026-12-01 00:00 UTC.",
         "Monthly limit reached. Try again on 2026-12-01."),
        ({**DAY, "scope": "global", "window": "rolling:1h"}, "", "1",
         "1-hour limit of $2.00 for all tenants reached ($1.98 spent). Next at 2026-11-29 19:30 UTC.",
         "Limit reached. Try again later."),
        ({**DAY, "meter": "calls", "limit": 1}, "", "0",
         "Daily call limit of 1 for user u1 reached (1 spent). Next at 2026-11-30 00:00 UTC.",
         "Daily limit reached. Try again tomorrow."),
    ],
)  # fmt: skip
def test_a_refusal_says_what_is_spent_and_when_again(
    budget: dict[str, Any], held: str, asked: str, operator: str, public: str
) -> None:
    with BudgetEngine.open("memory://", {"budgets": [budget]}, clock=lambda: NOW) as engine:
        engine.charge(call("1.98"), cost="1.98")
        if held:
            engine.reserve(call(held))
        with pytest.raises(BudgetExceeded) as refused:
            engine.reserve(call(asked))
    assert (str(refused.value), refused.value.public_message) == (operator, public)


def test_a_budget_that_is_only_busy_says_so_though_another_is_spent() -> None:
    week = {"name": "week", "scope": "global", "limit": "4\N{CENT SIGN}", "window": "week"}
    calls = {"name": "calls", "scope": "tenant", "meter": "calls", "limit": 1, "window": "day"}
    with BudgetEngine.open("memory://", {"budgets": [week, calls]}, clock=lambda: NOW) as engine:
        engine.reserve(call("0.03"))
        with pytest.raises(BudgetExceeded) as caught:
            engine.reserve(call("0.02"))
    refused = caught.value
    assert (refused.budget, refused.busy, refused.spent, refused.retry_after) == ("week", True, 0, 5.5 * 3600)
    assert str(refused) == (
        "Weekly limit of $0.04 for all tenants reached ($0.00 spent, $0.03 held). Calls under way are in the way; "
        "they end by 2026-11-29 18:40 UTC. Next at 2026-11-30 00:00 UTC."
    )
    assert refused.public_message == "Daily limit reached. Try again tomorrow."


def test_of_two_spent_budgets_the_one_that_is_named_says_when_both_let_in() -> None:
    day, month = ({"scope": "user", "limit": "$2", "window": window} for window in ("day", "month"))
    with BudgetEngine.open("memory://", {"budgets": [day, month]}, clock=lambda: NOW) as engine:
        engine.charge(call("2"), cost="2")
        with pytest.raises(BudgetExceeded) as caught:
            engine.reserve(call("1"))
    assert str(caught.value).endswith("Next at 2026-12-01 00:00 UTC.")
    assert caught.value.public_message == "Daily limit reached. Try again on 2026-12-01."


def test_an_answer_that_is_only_busy_says_so_and_one_of_too_many_steps_too() -> None:
    ceilings = [{"scope": "answer", "limit": "$0.05"}, {"scope": "answer", "meter": "calls", "limit": 2}]
    with BudgetEngine.open("memory://", {"budgets": ceilings}) as engine, engine.utterance(tenant="acme", plan=()):
        held = engine.reserve(call("0.04"))
        refusals = [engine.check(call("0.02")).refusal, engine.check(call("0.06")).refusal]
        engine.settle(held, cost="0.001")
        engine.settle(engine.reserve(call("0.001")), cost="0.001")
        refusals.append(engine.check(call("0.001")).refusal)
    assert [(refused.busy, refused.public_message) for refused in refusals if refused is not None] == [
        (True, "Too much is going on at once. Try again in a moment."),
        (False, "This question is too expensive to answer. Ask more narrowly."),
        (False, "This question takes too many steps to answer. Ask more narrowly."),
    ]


def call(amount: str) -> Call:
    return Call(model="any", tenant="acme", user="u1", amount=amount)
