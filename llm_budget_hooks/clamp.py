"""How many output tokens an amount pays for, so that a call can be bounded by what is held for it. Pure.

The hooks that can, send the bound to the provider when the policy says ``clamp = true``: an estimate that was a guess
becomes a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from llm_budget_hooks.models import Call

MIN_OUTPUT_TOKENS: Final = 64
"""Below this an answer is of no use, if nothing else is said."""

_MOST: Final = 1_000_000


class Bounded(Protocol):
    """What a clamp needs of a price; `llm_budget_hooks.pricing.Price` has it."""

    @property
    def max_output_tokens(self) -> int | None:
        """The model's largest output."""

    def bound_nusd(
        self, input_tokens: int, output_tokens: int, *, writes_cache: bool = False, service_tier: str | None = None,
        audio: bool = False,
    ) -> int:  # fmt: skip
        """The most that such a call can cost."""


def affordable_output(price: Bounded, call: Call, amounts_nusd: Iterable[int]) -> int:
    """The most output tokens whose bound is within every one of some amounts; never more than the call asks for.

    Args:
        price: the price of the call's model.
        call: what is asked; its input is taken as 0 if it is not known.
        amounts_nusd: what is held, and what is left, in nano-dollars.
    """
    most = min(n for n in (call.max_output_tokens, price.max_output_tokens, _MOST) if n is not None)
    return min((_affordable(price, call, amount, most) for amount in amounts_nusd), default=most)


def _affordable(price: Bounded, call: Call, nusd: int, most: int) -> int:
    """By bisection: the bound grows with the output."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        bound = price.bound_nusd(
            call.input_tokens or 0, middle, writes_cache=call.writes_cache, service_tier=call.service_tier,
            audio=call.audio,
        )  # fmt: skip
        low, high = (middle, high) if bound <= nusd else (low, middle - 1)
    return low
