"""A call's own bound of its output, lowered to what is held for it (``clamp = true`` in the policy)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from llm_budget_hooks.clamp import MIN_OUTPUT_TOKENS, affordable_output
from llm_budget_hooks.engine import BudgetEngine, Reservation
from llm_budget_hooks.errors import BudgetExceeded, PriceUnknown
from llm_budget_hooks.litellm.calls import BOUNDS, answers_of
from llm_budget_hooks.litellm.requests import sent
from llm_budget_hooks.models import Call, Outcome
from llm_budget_hooks.money import parse_nusd

_NAME_OF: Final = {
    "completion": "max_tokens",
    "text_completion": "max_tokens",
    "anthropic_messages": "max_tokens",
    "responses": "max_output_tokens",
}


def refuse_below_minimum(engine: BudgetEngine, call: Call, outcome: Outcome) -> None:
    """Refuse a call whose estimate pays for less output than an answer needs; before anything is held or counted.

    Raises:
        BudgetExceeded: naming what the estimate pays for.
    """
    if outcome.allowed and outcome.estimate is not None:
        fits = _fitting(engine, call, [outcome.estimate], [])
        if fits is not None and _is_too_little(call, fits):
            raise _refusal(call, fits, outcome.estimate)


def clamped(
    engine: BudgetEngine, kind: str, held: Reservation, asked: Mapping[str, Any], changes: dict[str, Any]
) -> None:
    """Put the lowered bound into `changes`, under the name that the caller used, if it has to be lowered.

    Args:
        engine: knows the prices.
        kind: the sync name of the entry point.
        held: the hold.
        asked: the arguments by name.
        changes: what the arguments are changed by.

    Raises:
        BudgetExceeded: the hold pays for less output than an answer needs; it is still open.
    """
    name = _NAME_OF.get(kind)
    if name is None:
        return
    dollars = [amount for amount in held.holds.values() if isinstance(amount, Decimal)]
    fits = _fitting(engine, held.call, [held.estimate, *dollars], _token_holds(engine, held))
    most = held.call.max_output_tokens
    if fits is None or (most is not None and most <= fits):
        return
    if _is_too_little(held.call, fits):
        raise _refusal(held.call, fits, held.estimate)
    each = max(fits // answers_of(asked), 1)
    lowered = [
        {bound: min(place[bound], each) for bound in BOUNDS if type(place.get(bound)) is int} for place in sent(asked)
    ]
    changes.update(lowered[0])
    if any(lowered[1:]):
        changes["extra_body"] = {**asked["extra_body"], **lowered[1]}
    elif not changes:
        changes[name] = each


def _fitting(engine: BudgetEngine, call: Call, dollars: list[Decimal], tokens: list[int]) -> int | None:
    """The most output tokens that all amounts pay for; None where it cannot be told."""
    if call.input_tokens is None or call.amount is not None:
        return None
    left = min((held - call.input_tokens for held in tokens), default=None)
    try:
        fits: int | None = affordable_output(engine.prices.price(call.model), call, map(parse_nusd, dollars))
    except PriceUnknown:
        fits = None
    known = [max(count, 0) for count in (left, fits) if count is not None]
    return min(known, default=None)


def _token_holds(engine: BudgetEngine, held: Reservation) -> list[int]:
    meters = {budget.name: budget.meter for budget in engine.policy.budgets_of(held.call.tenant or "default")}
    return [n for name, n in held.holds.items() if meters.get(name) == "tokens" and isinstance(n, int)]


def _is_too_little(call: Call, fits: int) -> bool:
    wanted = call.max_output_tokens
    return fits < MIN_OUTPUT_TOKENS and (wanted is None or wanted > fits)


def _refusal(call: Call, fits: int, estimate: Decimal) -> BudgetExceeded:
    return BudgetExceeded(
        f"The estimate of ${estimate:f} pays for {fits} output tokens of {call.model}, and an answer is clamped to no "
        f"fewer than {MIN_OUTPUT_TOKENS}. Raise step_budget or the step's own under [steps].",
        code="spend",
        requested=estimate,
        public_message="This request is too large. Ask more narrowly.",
    )
