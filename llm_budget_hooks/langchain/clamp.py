"""How many output tokens a call may be allowed, so that what it can cost is what was held and what is left."""

from __future__ import annotations

from decimal import Decimal

from llm_budget_hooks.clamp import affordable_output
from llm_budget_hooks.engine import BudgetEngine, Utterance
from llm_budget_hooks.errors import PriceUnknown
from llm_budget_hooks.keys import DEFAULT_TENANT
from llm_budget_hooks.models import Call
from llm_budget_hooks.money import parse_nusd
from llm_budget_hooks.transitions import Meter


def clamped_output(engine: BudgetEngine, call: Call, scope: Utterance | None) -> int | None:
    """The most output tokens that the call's estimate pays for, and that every budget of money has room for.

    Args:
        engine: whose budgets count.
        call: what will be asked.
        scope: the utterance it belongs to, for the answer's ceiling.

    Returns:
        None where it cannot be told: no price, or an input without a bound.
    """
    if call.input_tokens is None:
        return None
    try:
        price = engine.prices.price(call.model)
    except PriceUnknown:
        return None
    estimate = engine.check(call).estimate
    amounts = [*_rooms(engine, call), *_answer_rooms(engine, call, scope)]
    if estimate is not None:
        amounts.append(parse_nusd(estimate))
    return affordable_output(price, call, amounts)


def _rooms(engine: BudgetEngine, call: Call) -> list[int]:
    budgets = {budget.name: budget for budget in engine.policy.budgets_of(call.tenant or DEFAULT_TENANT)}
    is_one_of = engine.prices.is_one_of
    statuses = engine.status(call.tenant or DEFAULT_TENANT, call.user or "")
    return [
        parse_nusd(status.available)
        for status in statuses
        if isinstance(status.available, Decimal) and budgets[status.budget].covers(call.feature, call.model, is_one_of)
    ]


def _answer_rooms(engine: BudgetEngine, call: Call, scope: Utterance | None) -> list[int]:
    if scope is None:
        return []
    lines, accounts = engine.run(engine.answer_balances(scope))
    return [
        max(line.limit - account.spent - account.reserved, 0)
        for line, account in zip(lines, accounts, strict=True)
        if line.meter == Meter.USD and line.budget.covers(call.feature, call.model, engine.prices.is_one_of)
    ]
