"""What a call is expected to cost before it is made. Pure; see rule 8 of the design.

``bound`` is never below the true cost of an honest call. ``p90`` is the input plus the 90th percentile of the output
of the step's last runs; with fewer than five, plus what the step is budgeted for. ``auto`` is the smallest of ``p90``,
from five runs on, and ``bound``; with fewer the bound if the caller gave `max_output_tokens`, else as ``p90``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from llm_budget_hooks.errors import ConfigurationError, PriceUnknown
from llm_budget_hooks.models import Basis, Call, EstimateMode
from llm_budget_hooks.money import MAX_CALL_NUSD, format_usd


class Priced(Protocol):
    """What an estimate needs of a price; `llm_budget_hooks.pricing.Price` has it."""

    @property
    def is_free(self) -> bool:
        """Whether no usage of the model costs anything."""

    @property
    def max_input_tokens(self) -> int | None:
        """The model's largest input."""

    @property
    def max_output_tokens(self) -> int | None:
        """The model's largest output."""

    def bound_nusd(
        self, input_tokens: int, output_tokens: int, *, writes_cache: bool = False, service_tier: str | None = None,
        audio: bool = False,
    ) -> int:  # fmt: skip
        """The most that such a call can cost."""

    def input_nusd(
        self, input_tokens: int, *, writes_cache: bool = False, service_tier: str | None = None, audio: bool = False
    ) -> int:
        """The most that the input alone can cost."""


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What a step without history and without an output bound is held for, on top of its input."""

    nusd: int
    tokens: int


def usd(
    call: Call,
    price: Priced | None,
    mode: EstimateMode,
    step: StepBudget,
    flat_nusd: int | None,
    output_p90: int | None = None,
) -> tuple[int, Basis]:
    """The estimate in nano-dollars, and where it came from.

    Args:
        call: what is asked.
        price: the model's price, None if it is not known.
        mode: how to estimate.
        step: the budget of the call's step.
        flat_nusd: what the policy holds for a model without a price; None: it refuses.
        output_p90: the 90th percentile of the step's output tokens; None: there are too few runs.

    Raises:
        PriceUnknown: there is no price and no flat amount, or no bound of the input.
        ConfigurationError: the estimate is above $100,000.
    """
    if call.amount_nusd is not None:
        return call.amount_nusd, "amount"
    if price is None:
        if flat_nusd is None:
            raise _unpriced(call)
        return flat_nusd, "flat"
    if price.is_free:
        return 0, "bound"
    inputs = call.input_tokens
    if inputs is None:
        inputs = _largest(call, price.max_input_tokens, "input")
    amount, basis = _priced(call, price, mode, step, inputs, output_p90)
    if amount > MAX_CALL_NUSD:
        raise ConfigurationError(f"the call would hold {format_usd(amount)}; one call is at most $100,000")
    return amount, basis


def _priced(
    call: Call, price: Priced, mode: EstimateMode, step: StepBudget, inputs: int, output_p90: int | None
) -> tuple[int, Basis]:
    """The bound, or what the step's history or its budget says where that is less or there is no bound."""
    outputs = call.max_output_tokens
    if outputs is None and mode == "bound":
        outputs = _largest(call, price.max_output_tokens, "output")
    if outputs is not None and (mode == "bound" or _at_most(outputs, output_p90, mode)):
        return _bound_nusd(call, price, inputs, outputs), "bound"
    if output_p90 is not None:
        return _bound_nusd(call, price, inputs, output_p90), "p90"
    guess = step.nusd + price.input_nusd(
        inputs, writes_cache=call.writes_cache, service_tier=call.service_tier, audio=call.audio
    )
    bound = _bound_nusd(call, price, inputs, outputs) if outputs is not None else None
    return (bound, "bound") if bound is not None and bound <= guess else (guess, "step")


def _at_most(outputs: int, output_p90: int | None, mode: EstimateMode) -> bool:
    return mode == "auto" if output_p90 is None else outputs <= output_p90


def _bound_nusd(call: Call, price: Priced, inputs: int, outputs: int) -> int:
    return price.bound_nusd(
        inputs, outputs, writes_cache=call.writes_cache, service_tier=call.service_tier, audio=call.audio
    )


def tokens(
    call: Call, price: Priced | None, mode: EstimateMode, step: StepBudget, output_p90: int | None = None
) -> int:
    """The estimate in tokens, input and output together; the arguments are those of `usd`.

    Raises:
        PriceUnknown: the input is not counted and the model's largest input is not known.
    """
    inputs = call.input_tokens
    if inputs is None:
        if call.amount_nusd is not None and price is None:
            inputs = 0
        else:
            inputs = _largest(call, price.max_input_tokens if price else None, "input")
    outputs = call.max_output_tokens
    if mode == "bound":
        known = price.max_output_tokens if price else None
        return inputs + (outputs if outputs is not None else step.tokens if known is None else known)
    if mode == "auto" and output_p90 is None and outputs is not None:
        return inputs + outputs
    guess = step.tokens if output_p90 is None else output_p90
    return inputs + (guess if outputs is None else min(guess, outputs))


def _largest(call: Call, known: int | None, which: str) -> int:
    if known is not None:
        return known
    given = "input_tokens" if which == "input" else "max_output_tokens"
    raise PriceUnknown(
        f"The largest {which} of model {call.model!r} is not known, so the call has no bound. "
        f"Give the call its {given}, or set max_{which}_tokens under [prices.{call.model!r}]."
    )


def _unpriced(call: Call) -> PriceUnknown:
    return PriceUnknown(
        f"No price is known for model {call.model!r}. Write one under [prices.{call.model!r}], "
        'name the model it stands for under [aliases], or set unknown_price = "$0.02", a flat amount per call.'
    )
